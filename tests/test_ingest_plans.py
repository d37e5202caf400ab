"""Merges and deletions read what they change, and not the collection, whatever ANALYZE knows."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from corpus import assert_counts_exact, delete, merge, passage

Connection = psycopg.Connection[Any]

# What grows with a collection.
TABLES = ("document", "chunk", "event", "entity", "event_entity")
MODES = ("auto", "force_custom_plan", "force_generic_plan")
CHANGED = 10


def rows_read(connection: Connection, change: Callable[[], object]) -> dict[str, int]:
    """Rows that a change reads from each table, by indexes and without, in one transaction."""
    query = (
        "SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0)"
        " FROM pg_stat_xact_user_tables WHERE schemaname = 'sag' AND relname = ANY(%s)"
    )
    with connection.transaction():
        before = dict(connection.execute(query, [list(TABLES)]).fetchall())
        change()
        after = dict(connection.execute(query, [list(TABLES)]).fetchall())
    return {table: count - before.get(table, 0) for table, count in after.items()}


@pytest.fixture
def unseen(postgresql: Connection) -> Connection:
    """A collection "unseen" of 400 documents, and statistics that know of another one only."""
    postgresql.autocommit = True
    for table in TABLES:
        # ANALYZE is not to come meanwhile.
        postgresql.execute(f"ALTER TABLE sag.{table} SET (autovacuum_enabled = FALSE)".encode())
    merge(postgresql, [passage(f"{no}", f"text {no}", f"Name {no}") for no in range(400)])
    postgresql.execute("ANALYZE")
    postgresql.execute("SELECT sag.create_collection('unseen')")
    documents = [passage(f"{no}", f"text {no}", f"Name {no}", "Hub") for no in range(400)]
    merge(postgresql, documents, "unseen")
    return postgresql


@pytest.mark.parametrize("mode", MODES)
def test_a_deletion_reads_what_it_deletes(unseen: Connection, mode: str) -> None:
    unseen.execute(f"SET plan_cache_mode = {mode}".encode())
    # The first ones find no cached plan of the foreign keys' checks.
    for start in (0, 100):
        sources = [f"{no}" for no in range(start, start + CHANGED)]
        counts = rows_read(unseen, lambda sources=sources: delete(unseen, sources, "unseen"))
        assert max(counts.values()) < 20 * CHANGED, counts
    assert_counts_exact(unseen)


@pytest.mark.parametrize("mode", MODES)
def test_a_merge_reads_what_it_changes(unseen: Connection, mode: str) -> None:
    unseen.execute(f"SET plan_cache_mode = {mode}".encode())
    for start in (395, 100):
        # New ones first, then others that are there.
        documents = [
            passage(f"{no}", f"new text {no}", f"New name {no}", "Hub")
            for no in range(start, start + CHANGED)
        ]
        counts = rows_read(unseen, lambda documents=documents: merge(unseen, documents, "unseen"))
        assert max(counts.values()) < 20 * CHANGED, counts
    assert_counts_exact(unseen)
