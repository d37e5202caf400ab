"""How fast a merge is, beside a bare binary COPY of the rows that it makes.

    python benchmarks/merge.py [--events 100000] [--rounds 5]

Two databases hold the same events, with all indexes. In each round one of them takes a batch of
1000 chunks with `sag.begin_batch()`, COPY and `sag.merge_batch()`; the other then takes the rows
that came of it, ids, lexemes and vectors and all, with one COPY a table.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import click
import psycopg
from server import BATCH_CHUNKS, connect, fill, make_batch, prepare, temporary_server
from synthetic import Corpus, read_sentences

_TABLES = ("document", "chunk", "event", "entity", "event_entity")


def _columns(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """The columns of each table that COPY can fill."""
    rows = connection.execute(
        "SELECT c.relname, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)"
        " FROM pg_attribute AS a INNER JOIN pg_class AS c ON c.oid = a.attrelid"
        " WHERE c.relnamespace = 'sag'::regnamespace AND c.relname = ANY(%s)"
        " AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
        " GROUP BY c.relname",
        [list(_TABLES)],
    )
    return dict(rows.fetchall())


def _highest(connection: psycopg.Connection[Any]) -> dict[str, int]:
    row = connection.execute(
        "SELECT (SELECT max(document_id) FROM sag.document), (SELECT max(chunk_id) FROM sag.chunk),"
        " (SELECT max(event_id) FROM sag.event), (SELECT max(entity_id) FROM sag.entity)"
    ).fetchone()
    assert row is not None
    document, chunk, event, entity = row
    return {
        "document": document,
        "chunk": chunk,
        "event": event,
        "entity": entity,
        "event_entity": event,
    }


def _copy_out(
    connection: psycopg.Connection[Any], columns: dict[str, str], after: dict[str, int]
) -> dict[str, list[bytes]]:
    """The rows that came after those ids, as a binary COPY."""
    found = {}
    for table in _TABLES:
        key = "event_id" if table == "event_entity" else f"{table}_id"
        query = (
            f"COPY (SELECT {columns[table]} FROM sag.{table}"  # noqa: S608
            f" WHERE {key} > {after[table]} ORDER BY ctid) TO STDOUT (FORMAT binary)"
        )
        with connection.cursor().copy(query.encode()) as copy:
            found[table] = [bytes(data) for data in copy]
    return found


def _copy_in(
    connection: psycopg.Connection[Any], columns: dict[str, str], rows: dict[str, list[bytes]]
) -> float:
    blocks = {table: b"".join(data) for table, data in rows.items()}
    started = time.perf_counter()
    with connection.transaction():
        for table in _TABLES:
            query = f"COPY sag.{table} ({columns[table]}) FROM STDIN (FORMAT binary)"
            with connection.cursor().copy(query.encode()) as copy:
                copy.write(blocks[table])
    return time.perf_counter() - started


def _queue(
    connection: psycopg.Connection[Any], corpus: Corpus, start: int
) -> tuple[int, list[int]]:
    """Puts the documents of a batch into the queue and takes them, as a worker does."""
    sources = [document["source"] for document in corpus.documents(start, BATCH_CHUNKS)]
    row = connection.execute("SELECT sag.register_worker('benchmark')").fetchone()
    assert row is not None
    worker = row[0]
    for source in sources:
        connection.execute("SELECT sag_ingest(%s, 'text')", [source])
    tasks = connection.execute(
        "SELECT source, task_id FROM sag.take_tasks(%s, '{}', NULL, NULL, %s, 1000000000)",
        [worker, BATCH_CHUNKS],
    )
    by_source = dict(tasks.fetchall())
    return worker, [by_source[source] for source in sources]


@click.command()
@click.option("--events", default=100_000, show_default=True, help="Events there before.")
@click.option("--rounds", default=5, show_default=True, help="Batches of each kind.")
@click.option(
    "--vectors",
    type=click.Choice(("none", "events", "all")),
    default="events",
    show_default=True,
    help="What has vectors: nothing, events, or events and entities.",
)
@click.option("--corpus", "corpora", multiple=True, type=click.Path(path_type=Path), help="Texts.")
def main(events: int, rounds: int, vectors: str, corpora: tuple[Path, ...]) -> None:
    """Measure, and print chunks a second of both, each round and the median."""
    corpus = Corpus(read_sentences(list(corpora)), vectors=vectors)
    with temporary_server() as uri:
        merging = prepare(uri, "merging")
        fill(merging, corpus, events)
        merging.execute("VACUUM (ANALYZE)")
        merging.close()
        with connect(uri) as maintenance:
            maintenance.execute("CREATE DATABASE copying TEMPLATE merging STRATEGY file_copy")
        merging, copying = connect(uri, "merging"), connect(uri, "copying")
        columns = _columns(merging)
        ratios = []
        # The first round warms both up.
        for number in range(rounds + 1):
            start = events + number * BATCH_CHUNKS
            worker, task_ids = _queue(merging, corpus, start)
            batch = make_batch(corpus, start, BATCH_CHUNKS, task_ids)
            before = _highest(merging)
            started = time.perf_counter()
            with merging.transaction():
                batch.merge(merging, "default", worker)
            merged = time.perf_counter() - started
            batch.close()
            copied = _copy_in(copying, columns, _copy_out(merging, columns, before))
            if number > 0:
                ratios.append(copied / merged)
            click.echo(
                f"{'warm-up' if number == 0 else f'round {number}'}:"
                f" merge {BATCH_CHUNKS / merged:.0f} chunks/s,"
                f" bare COPY {BATCH_CHUNKS / copied:.0f} chunks/s, ratio {copied / merged:.2f}"
            )
        click.echo(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
