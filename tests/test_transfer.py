"""Export and import of a collection, and pg_dump of a whole database."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from conftest import Server
from corpus import Chunk, Document, Entity, assert_counts_exact, column, delete, merge, value
from pgvector import HalfVector
from psycopg import conninfo
from pytest_postgresql.janitor import DatabaseJanitor

from sag_pg import config, embedded, migrate
from sag_pg.cli import main
from sag_pg.client import Client
from sag_pg.errors import ConfigurationError, LoadError
from sag_pg.transfer import FILES, ExportedSet, export_collection, import_collection

Connection = psycopg.Connection[Any]

WORDS = ["Acme", "Über 'quoted'", 'back\\slash "x"', "灯笼鱼计划", "O'Neil", "Kelmouth", "100 %"]


@pytest.fixture
def source(database_url: str) -> Iterator[Connection]:
    with migrate.connect_migrated(config.resolve(database_url, None)) as connection:
        connection.execute("SELECT sag.set_embedding_space('small', 3)")
        connection.execute("SELECT sag.create_collection('from', 'simple')")
        connection.execute("SELECT sag.set_parameter('hops', '2', 'from')")
        connection.execute("INSERT INTO sag.entity_type VALUES ('ship', 'Ships')")
        merge(connection, random_documents(120), "from")
        # An alias that a person gave, and one whose entity no event carries any more.
        connection.execute(
            "INSERT INTO sag.entity_alias (collection_id, entity_id, name)"
            " SELECT collection_id, entity_id, 'The Company' FROM sag.entity"
            " WHERE normalized_name = 'acme'"
        )
        merge(connection, [Document("gone", [Chunk("x", [Entity("Old Name")])])], "from")
        connection.execute(
            "INSERT INTO sag.entity_alias (collection_id, entity_id, name)"
            " SELECT collection_id, entity_id, 'Ancient' FROM sag.entity"
            " WHERE normalized_name = 'old name'"
        )
        delete(connection, ["gone"], "from")
        worker = value(connection, "SELECT sag.register_worker('test')")
        for number in range(30):
            connection.execute(
                "SELECT sag.store_answer('from', %s, %s, 'openai:m+p', %s)",
                (worker, b"key %d" % number, json.dumps({"entities": [], "n": number})),
            )
        yield connection


@pytest.fixture
def target(embedded_server: Server) -> Iterator[Connection]:
    with DatabaseJanitor(
        host=embedded_server.host,
        port=embedded_server.port,
        user=embedded_server.user,
        dbname="sag_target",
    ):
        url = embedded_server.url("sag_target")
        with psycopg.connect(url, autocommit=True) as connection:
            migrate.migrate(connection)
        with migrate.connect_migrated(config.resolve(url, None)) as connection:
            yield connection


def random_documents(count: int) -> list[Document]:
    chance = random.Random(7)  # noqa: S311
    documents = []
    for number in range(count):
        chunks = []
        for ordinal in range(chance.randint(1, 4)):
            names = chance.sample(WORDS, 3)
            text = f"{names[0]} met {names[1]} — no. {number}/{ordinal}.\tŧ\n{names[2]}"
            has_statement = chance.random() < 0.4
            has_vector = chance.random() < 0.8
            chunks.append(
                Chunk(
                    text,
                    [
                        Entity(names[0], "ship", is_subject=True, role="it 'meets'"),
                        Entity(names[1], embedding=[0.3, chance.random(), 0.123456]),
                        Entity(names[2], "person"),
                        Entity(f"Alias {names[2]}", alias_of=names[2]),
                    ],
                    title=chance.choice(["", "Title \\n"]),
                    statement=f"{names[0]} has met {names[1]}." if has_statement else None,
                    embedding=[chance.random(), chance.random(), 1.0] if has_vector else None,
                    chunk_embedding=[1.0, chance.random(), 0.5] if has_statement else None,
                    answer_key=b"key %d" % (number % 30) if has_statement else None,
                )
            )
        documents.append(
            Document(
                f"d/{number} ü" if number % 2 else f"D{number}",
                chunks,
                title=chance.choice(["", "Заголовок", 'a "b" \\']),
                metadata={"n": number, "x": [1.5, None, {"lang": "zh"}], "big": 2**60},
                extractor="a model",
            )
        )
    return documents


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_round_trip(source: Connection, target: Connection, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    exported = export_collection(source, "from", first)
    assert exported.documents == 120
    assert exported.answers == 30
    assert set(files(first)) == {"manifest.json", *(f"{name}.jsonl" for name in FILES)}
    transfer = import_collection(target, ExportedSet(first))
    assert (transfer.added, transfer.documents) == (120, 120)
    assert_counts_exact(target)
    export_collection(target, "from", second)
    for name, content in files(first).items():
        assert files(second)[name] == content, name
    # Again it changes nothing.
    assert import_collection(target, ExportedSet(first)).unchanged == 120
    export_collection(target, "from", second, overwrite=True)
    assert files(second) == files(first)
    for question in ("Whom did Acme meet?", "灯笼鱼计划 met the Company", "Kelmouth"):
        found = [
            Client(connection, collection="from").retrieve(question, embedding=[0.5, 0.4, 1.0])
            for connection in (source, target)
        ]
        assert found[0]
        # Of events with the same score the older stands first, and that is another one here.
        before, after = (sorted((each.score or 0, each.via) for each in rows) for rows in found)
        assert before == after


def test_into_a_collection_that_holds_others(
    source: Connection, target: Connection, tmp_path: Path
) -> None:
    export_collection(source, "from", tmp_path / "set")
    merge(target, [Document("mine", [Chunk("Acme stays.", [Entity("Acme")])])])
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="model 'other'"):
        target.execute("SELECT sag.set_embedding_space('other', 4)")
        merge(target, [Document("v", [Chunk("x", embedding=[1, 0, 0, 0])])])
        import_collection(target, ExportedSet(tmp_path / "set"), "default")
    transfer = import_collection(target, ExportedSet(tmp_path / "set"), "default", embeddings=False)
    assert transfer.added == 120
    assert_counts_exact(target)
    assert value(target, "SELECT count(embedding) FROM sag.entity") == 0
    assert value(target, "SELECT count(*) FROM sag.document WHERE source = 'mine'") == 1


def test_a_set_that_is_not_whole_is_refused(
    source: Connection, target: Connection, tmp_path: Path
) -> None:
    directory = tmp_path / "set"
    export_collection(source, "from", directory)
    with pytest.raises(ConfigurationError, match="earlier export"):
        export_collection(source, "from", directory)
    with pytest.raises(LoadError, match="no manifest"):
        ExportedSet(tmp_path)
    chunks = directory / "chunks.jsonl"
    whole = chunks.read_bytes()
    chunks.write_bytes(whole[:-40])
    with pytest.raises(LoadError, match=r"chunks\.jsonl is not as it was exported"):
        ExportedSet(directory)
    chunks.write_bytes(whole)
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(LoadError, match="format 99"):
        ExportedSet(directory)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="no earlier export"):
        export_collection(source, "from", tmp_path / "other", overwrite=True)
    with pytest.raises(psycopg.errors.UndefinedObject):
        export_collection(source, "missing", tmp_path / "none")
    # Nothing half written is left of what failed.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "set"]


def test_an_export_is_of_one_moment(source: Connection, tmp_path: Path) -> None:
    ended = threading.Event()

    def write() -> None:
        with migrate.connect_migrated(config.resolve(source.info.dsn, None)) as connection:
            number = 0
            while not ended.is_set():
                number += 1
                merge(connection, random_documents(5 + number % 7), "from")
                delete(connection, [f"D{2 * no}" for no in range(number % 5)], "from")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            export_collection(source, "from", tmp_path / str(number))
            read = ExportedSet(tmp_path / str(number)).read
            sources = {document["source"] for document in read("documents")}
            chunks = {(chunk["source"], chunk["ordinal"]) for chunk in read("chunks")}
            assert {source for source, _ in chunks} == sources
            assert {(event["source"], event["ordinal"]) for event in read("events")} == chunks
            names = {entity["name"] for entity in read("entities")}
            assert {link["entity"] for link in read("links")} <= names
    finally:
        ended.set()
        writer.join()


def invoke(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--database-url", url, *arguments])


def test_commands_and_a_kill(
    source: Connection, target: Connection, embedded_server: Server, tmp_path: Path
) -> None:
    merge(
        source, [Document(f"more {no}", [Chunk(f"Text {no}.")] * 2) for no in range(3000)], "from"
    )
    directory = str(tmp_path / "set")
    result = invoke(source.info.dsn, "export", directory, "-c", "from", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["documents"] == 3120
    url = embedded_server.url("sag_target")
    command = [sys.executable, "-m", "sag_pg", "--database-url", url, "import", directory]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while value(target, "SELECT count(*) FROM sag.document") < 1000 and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = value(target, "SELECT count(*) FROM sag.document")
    assert before >= 1000
    result = invoke(url, "import", directory, "--json")
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout)
    assert counts["added"] + counts["unchanged"] == 3120
    assert counts["unchanged"] >= 1000
    again = tmp_path / "again"
    export_collection(target, "from", again)
    assert files(again) == files(Path(directory))
    assert invoke(url, "import", str(tmp_path)).exit_code == 1
    assert invoke(url, "export", directory).exit_code == 2


def test_a_reader_exports_and_a_writer_imports(
    source: Connection, target: Connection, embedded_server: Server, tmp_path: Path
) -> None:
    source.execute("CREATE ROLE transfer_reader LOGIN IN ROLE sag_reader")
    source.execute("CREATE ROLE transfer_writer LOGIN IN ROLE sag_writer")
    try:
        url = conninfo.make_conninfo(source.info.dsn, user="transfer_reader")
        with migrate.connect_migrated(config.resolve(url, None)) as reader:
            export_collection(reader, "from", tmp_path / "set")
        url = embedded_server.url("sag_target", "transfer_writer")
        with migrate.connect_migrated(config.resolve(url, None)) as writer:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="embedding space"):
                import_collection(writer, ExportedSet(tmp_path / "set"))
            target.execute("SELECT sag.set_embedding_space('small', 3)")
            target.execute("INSERT INTO sag.entity_type VALUES ('ship', 'Ships')")
            assert import_collection(writer, ExportedSet(tmp_path / "set")).added == 120
    finally:
        source.execute("DROP ROLE transfer_reader")
        source.execute("DROP ROLE transfer_writer")


@pytest.mark.parametrize("form", ["plain", "custom"])
@pytest.mark.parametrize("schema", ["public", "extensions"])
def test_dump_and_restore(embedded_server: Server, tmp_path: Path, form: str, schema: str) -> None:
    names = ("sag_dumped", "sag_restored")
    janitors = [
        DatabaseJanitor(
            host=embedded_server.host,
            port=embedded_server.port,
            user=embedded_server.user,
            dbname=name,
        )
        for name in names
    ]
    before, after = map(embedded_server.url, names)
    with janitors[0], janitors[1]:
        with psycopg.connect(before, autocommit=True) as owner:
            if schema != "public":
                owner.execute("CREATE SCHEMA extensions")
                owner.execute("CREATE EXTENSION vector SCHEMA extensions")
                owner.execute("CREATE EXTENSION pg_trgm SCHEMA extensions")
            migrate.migrate(owner)
        with migrate.connect_migrated(config.resolve(before, None)) as connection:
            connection.execute("SELECT sag.set_embedding_space('small', 3)")
            connection.execute("SELECT sag.set_parameter('hops', '2')")
            connection.execute("INSERT INTO sag.entity_type VALUES ('ship', 'Ships')")
            merge(connection, random_documents(60))
            connection.execute("SELECT sag_ingest('waiting', 'Acme waits in the queue.')")
            facts = state(connection)
        _dump(before, after, tmp_path / "dump", form)
        status = invoke(after, "status", "--json")
        assert status.exit_code == 0, status.output
        with migrate.connect_migrated(config.resolve(after, None)) as connection:
            assert state(connection) == facts
            assert_counts_exact(connection)
            # Keys go on where they were, and what was in the queue is still there.
            assert set(merge(connection, random_documents(70)).values()) == {"added", "unchanged"}
            assert delete(connection, ["D0"]) == {"D0"}
            connection.execute("SELECT sag_ingest('another', 'Acme too.')")
            assert column(connection, "SELECT source FROM sag.task_status ORDER BY task_id") == [
                "waiting",
                "another",
            ]
            assert_counts_exact(connection)


def state(connection: Connection) -> dict[str, Any]:
    """What must be the same after a restore."""
    return {
        "indexes": connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'sag' ORDER BY 1"
        ).fetchall(),
        "comments": connection.execute(
            "SELECT d.objoid::regclass::text, a.attname, d.description FROM pg_description AS d"
            " LEFT JOIN pg_attribute AS a ON a.attrelid = d.objoid AND a.attnum = d.objsubid"
            " WHERE d.classoid = 'pg_class'::regclass AND d.objoid::regclass::text LIKE 'sag.%'"
            " ORDER BY 1, 2, 3"
        ).fetchall(),
        "functions": connection.execute(
            "SELECT p.oid::regprocedure::text, p.proconfig, d.description FROM pg_proc AS p"
            " JOIN pg_description AS d ON d.objoid = p.oid"
            " WHERE p.pronamespace = 'sag'::regnamespace OR p.proname LIKE 'sag\\_%' ORDER BY 1"
        ).fetchall(),
        "parameters": connection.execute("SELECT * FROM sag.parameter ORDER BY name").fetchall(),
        "evidence": connection.execute(
            "SELECT source, content, score, via, metadata FROM public.sag_retrieve("
            "'Whom did Acme meet?', options => '{\"understand\": \"sql\"}')"
        ).fetchall(),
        "nearest": connection.execute(
            "SELECT e.chunk_id FROM sag.nearest_events(%s, 50) AS n"
            " JOIN sag.event AS e USING (event_id)",
            [HalfVector([0.5, 0.4, 1.0])],
        ).fetchall(),
    }


def _dump(before: str, after: str, path: Path, form: str) -> None:
    binaries = embedded.bin_dir()
    subprocess.run(
        [str(binaries / "pg_dump"), f"--format={form}", f"--file={path}", before],
        check=True,
        capture_output=True,
    )
    restore = (
        [str(binaries / "psql"), "-X", "-v", "ON_ERROR_STOP=1", "-f", str(path), after]
        if form == "plain"
        else [str(binaries / "pg_restore"), "--exit-on-error", f"--dbname={after}", str(path)]
    )
    done = subprocess.run(restore, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
