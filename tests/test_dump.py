"""pg_dump and restore: a restored database is as good as the one that it was dumped from."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from conftest import Server
from corpus import (
    Chunk,
    Connection,
    Document,
    Entity,
    assert_counts_exact,
    column,
    delete,
    merge,
    value,
)
from pgvector import HalfVector
from pytest_postgresql.janitor import DatabaseJanitor

from sag_pg import config, embedded, migrate
from sag_pg.cli import main

NAMES = ("sag_dumped", "sag_restored")
PLACES = [f"Place{number}" for number in range(20)]


def documents(first: int, count: int) -> list[Document]:
    """Documents whose vectors are all different, so that HNSW has a choice."""
    return [
        Document(
            f"d{number}",
            [
                Chunk(
                    f"Acme opened plant {number} in {PLACES[number % 20]}; 灯笼鱼 it's 100 \\n.",
                    [
                        Entity("The Acme", "organization", is_subject=True, role="opens 'it'"),
                        Entity(PLACES[number % 20], "site", embedding=[1, number % 7, 0.25]),
                        Entity("Acme Inc.", alias_of="The Acme"),
                    ],
                    title=f"Plant {number}",
                    statement=f"Plant {number} was opened." if number % 3 == 0 else None,
                    embedding=[1.0, (number * 37 % 101) / 101, (number * 53 % 103) / 103],
                    chunk_embedding=[1.0, 0.5, number / 1000] if number % 3 == 0 else None,
                )
            ],
            title=f"Plant {number}",
            metadata={"number": number},
        )
        for number in range(first, first + count)
    ]


@pytest.fixture
def urls(embedded_server: Server) -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        for name in NAMES:
            stack.enter_context(
                DatabaseJanitor(
                    host=embedded_server.host,
                    port=embedded_server.port,
                    user=embedded_server.user,
                    dbname=name,
                )
            )
        yield embedded_server.url(NAMES[0]), embedded_server.url(NAMES[1])


def fill(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        # What many an administrator does on a fresh server.
        owner.execute("ALTER DATABASE sag_dumped SET search_path = ''")
        if schema != "public":
            owner.execute(f"CREATE SCHEMA {schema}".encode())
            owner.execute(f"CREATE EXTENSION vector SCHEMA {schema}".encode())
            owner.execute(f"CREATE EXTENSION pg_trgm SCHEMA {schema}".encode())
    with psycopg.connect(url, autocommit=True) as owner:
        migrate.migrate(owner)
    with migrate.connect_migrated(config.resolve(url, None)) as connection:
        connection.execute("SELECT sag.set_embedding_space('small', 3)")
        connection.execute("SELECT sag.set_parameter('event_limit', '9')")
        connection.execute("SELECT sag.create_collection('other', 'simple')")
        connection.execute("SELECT sag.set_parameter('hops', '2', 'other')")
        connection.execute("INSERT INTO sag.entity_type VALUES ('site', 'Building sites')")
        merge(connection, documents(0, 400))
        merge(connection, documents(0, 30), "other")
        connection.execute(
            "INSERT INTO sag.entity_alias (collection_id, entity_id, name)"
            " SELECT collection_id, entity_id, 'The Giant' FROM sag.entity"
            " WHERE normalized_name = 'acme'"
        )
        connection.execute("SELECT public.sag_ingest('waiting', 'Acme waits in the queue.')")
        connection.execute(
            "SELECT sag.store_answer('default', sag.register_worker('w'), 'key', 'm', '[1.50]')"
        )


def dump(before: str, after: str, path: Path, form: str) -> None:
    binaries = embedded.bin_dir()
    restore = (
        [binaries / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", path, after]
        if form == "plain"
        else [binaries / "pg_restore", "--exit-on-error", f"--dbname={after}", path]
    )
    for command in ([binaries / "pg_dump", f"--format={form}", f"--file={path}", before], restore):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


def invoke(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["--database-url", url, *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def objects(connection: Connection) -> dict[str, list[Any]]:
    """All that the schema is made of, without keys and numbers of columns, which may differ."""
    queries = {
        "indexes": "SELECT indexname, indexdef FROM pg_catalog.pg_indexes WHERE schemaname = 'sag'",
        "constraints": "SELECT conrelid::regclass::text, conname,"
        " pg_catalog.pg_get_constraintdef(oid), convalidated FROM pg_catalog.pg_constraint"
        " WHERE connamespace = 'sag'::regnamespace",
        "columns": "SELECT a.attrelid::regclass::text, a.attname, a.attnotnull, a.attidentity,"
        " a.attstorage, pg_catalog.format_type(a.atttypid, a.atttypmod),"
        " pg_catalog.pg_get_expr(d.adbin, d.adrelid),"
        " pg_catalog.col_description(a.attrelid, a.attnum)"
        " FROM pg_catalog.pg_attribute AS a"
        " JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid"
        " LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum"
        " WHERE c.relnamespace = 'sag'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped",
        "relations": "SELECT c.relname, c.relkind, c.reloptions, c.relacl::text,"
        " pg_catalog.obj_description(c.oid, 'pg_class'), pg_catalog.pg_get_viewdef(v.oid)"
        " FROM pg_catalog.pg_class AS c"
        " LEFT JOIN pg_catalog.pg_class AS v ON v.oid = c.oid AND v.relkind = 'v'"
        " WHERE c.relnamespace = 'sag'::regnamespace",
        "functions": "SELECT p.oid::regprocedure::text, p.proconfig, p.provolatile, p.proparallel,"
        " p.proacl::text, pg_catalog.obj_description(p.oid, 'pg_proc'),"
        " CASE WHEN p.prokind = 'f' THEN pg_catalog.pg_get_functiondef(p.oid) END"
        " FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = 'sag'::regnamespace"
        " OR p.pronamespace = 'public'::regnamespace AND p.proname LIKE 'sag\\_%'",
        "collations": "SELECT collname, collprovider, colllocale, collcollate"
        " FROM pg_catalog.pg_collation WHERE collnamespace = 'sag'::regnamespace",
        "schema": "SELECT nspname, nspacl::text,"
        " pg_catalog.obj_description(oid, 'pg_namespace') FROM pg_catalog.pg_namespace"
        " WHERE nspname = 'sag'",
    }
    return {
        kind: sorted(connection.execute(query.encode()).fetchall(), key=repr)
        for kind, query in queries.items()
    }


def rows(connection: Connection) -> dict[str, list[Any]]:
    """The rows of all tables, and where the sequences stand."""
    found: dict[str, list[Any]] = {
        table: column(connection, f"SELECT t::text FROM {table} AS t ORDER BY 1")  # noqa: S608
        for table in column(
            connection,
            "SELECT oid::regclass::text FROM pg_catalog.pg_class"
            " WHERE relnamespace = 'sag'::regnamespace AND relkind = 'r' ORDER BY 1",
        )
    }
    found["sequences"] = connection.execute(
        "SELECT sequencename, last_value FROM pg_catalog.pg_sequences WHERE schemaname = 'sag'"
        " ORDER BY 1"
    ).fetchall()
    return found


def answers(connection: Connection) -> list[Any]:
    """What retrieval says, with and without vectors, by alias, with a filter, in Chinese."""
    embedding = HalfVector([1.0, 0.4, 0.7])
    return [
        connection.execute(
            "SELECT * FROM public.sag_retrieve(%s::text, %s::text, embedding => %s,"
            ' filter => %s::jsonpath, options => \'{"understand": "sql"}\')',
            [question, collection, vector, filter_],
        ).fetchall()
        for question in (
            "What did the Giant open in Place7?",
            "Acme Inc. 灯笼鱼",
            "Which plant is in Plase11?",
        )
        for vector in (embedding, None)
        for collection, filter_ in (
            ("default", None),
            ("default", "$.number < 90"),
            ("other", None),
        )
    ]


def nearest_plan(connection: Connection) -> str:
    """The plan of a search for the nearest events, as the pipeline does it."""
    with connection.transaction():
        connection.execute("SELECT set_config('search_path', sag.search_path(), TRUE)")
        plan = column(
            connection,
            "EXPLAIN SELECT event_id FROM sag.event"
            " WHERE collection_id = sag.collection_key('default')"
            " ORDER BY embedding <=> '[1,0.4,0.7]' LIMIT 10",
        )
    return "\n".join(plan)


@pytest.mark.parametrize(("form", "schema"), [("plain", "public"), ("custom", "extensions")])
def test_dump_and_restore(urls: tuple[str, str], tmp_path: Path, form: str, schema: str) -> None:
    before, after = urls
    fill(before, schema)
    dump(before, after, tmp_path / "dump", form)

    status = json.loads(invoke(after, "status", "--json"))
    assert (status["pending"], status["drifted"], status["sources_drifted"]) == ([], [], [])
    with (
        migrate.connect_migrated(config.resolve(before, None)) as old,
        migrate.connect_migrated(config.resolve(after, None)) as new,
    ):
        old.execute("SET search_path = pg_catalog")
        new.execute("SET search_path = pg_catalog")
        assert objects(new) == objects(old)
        assert rows(new) == rows(old)
        assert {"event_embedding", "chunk_embedding", "entity_embedding"} <= {
            name for name, _ in objects(new)["indexes"]
        }
        new.execute("ANALYZE")
        assert "Index Scan using event_embedding" in nearest_plan(new)
        old.execute("ANALYZE")
        found = answers(old)
        assert [len(each) > 0 for each in found] == [True] * len(found)
        assert answers(new) == found
        assert_counts_exact(new)

        # Keys go on where they were; what is there is known, and what goes takes all along.
        assert set(merge(new, documents(399, 2)).items()) == {
            ("d399", "unchanged"),
            ("d400", "added"),
        }
        assert merge(new, documents(1, 1), "other") == {"d1": "unchanged"}
        assert delete(new, ["d0", "d1"]) == {"d0", "d1"}
        assert_counts_exact(new)
        task = value(new, "SELECT public.sag_ingest('another', 'Acme waits too.')")
        assert task > value(new, "SELECT min(task_id) FROM sag.ingest_task")
        assert column(new, "SELECT source FROM sag.task_status ORDER BY task_id") == [
            "waiting",
            "another",
        ]
        assert value(new, "SELECT sag.create_collection('third')") > value(
            new, "SELECT sag.collection_key('other')"
        )
    # And nothing is to be migrated.
    assert (
        "the database is up to date"
        in CliRunner().invoke(main, ["--database-url", after, "migrate"]).stderr
    )


def test_work_goes_on_in_a_restored_database(urls: tuple[str, str], tmp_path: Path) -> None:
    before, after = urls
    fill(before, "public")
    with psycopg.connect(before, autocommit=True) as connection:
        # A worker that had a task at the moment of the dump.
        connection.execute(
            "SELECT FROM sag.take_tasks(sag.register_worker('gone'),"
            ' \'{"extractor": "rules"}\', NULL, NULL, 1, 1000)'
        )
        assert column(connection, "SELECT state FROM sag.ingest_task") == ["running"]
        connection.execute("UPDATE sag.ingest_worker SET heartbeat_at = now() - interval '1 day'")
    dump(before, after, tmp_path / "dump", "custom")
    (tmp_path / "more.txt").write_text("Acme opened one more plant in Place3.")
    for command in (
        ["ingest", str(tmp_path / "more.txt"), "--extractor", "rules", "--embedding", "none"],
        ["work", "--extractor", "rules", "--embedding", "none", "--until-done"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "sag_pg", "--database-url", after, *command],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    with migrate.connect_migrated(config.resolve(after, None)) as connection:
        assert set(column(connection, "SELECT state FROM sag.ingest_task")) == {"added"}
        sources = column(connection, "SELECT source FROM sag.document")
        assert {"waiting", (tmp_path / "more.txt").as_posix()} <= set(sources)
        assert_counts_exact(connection)
