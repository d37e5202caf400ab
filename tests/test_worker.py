"""Ingest and work as processes: killed, interrupted, several at once, the database gone meanwhile.

SAG_PG_TEST_KILLS says how many times a worker is killed, 4 by default.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import model_server
import psutil
import psycopg
import pytest
from click.testing import CliRunner, Result
from conftest import SETTINGS, Server
from corpus import assert_counts_exact, column, value
from model_server import JsonObject, ModelServer, SimpleAnswers
from psycopg import sql

from sag_pg import embedded, migrate
from sag_pg.cli import main
from sag_pg.client import Client
from sag_pg.database import register_types
from sag_pg.ingest.document import text_document
from sag_pg.ingest.estimate import estimate
from sag_pg.ingest.job import ingest
from sag_pg.ingest.processing import Processing
from sag_pg.ingest.session import Session
from sag_pg.ingest.worker import Worker
from sag_pg.models.load import load_extractor

Connection = psycopg.Connection[Any]

KILLS = int(os.environ.get("SAG_PG_TEST_KILLS", "4"))
# So long anything may take on a busy machine before a test gives up.
PATIENCE = 240.0
SMALL_CHUNKS = ("--chunk-size", "150")


class Statements(SimpleAnswers):
    """Answers with all that one can hold: a statement of their own, types, roles and aliases."""

    def extraction(self, asked: JsonObject) -> JsonObject:
        """Name the plant, and Oslo with its old name."""
        plant = asked["text"].split()[0]
        return {
            "title": f"{plant} in Oslo",
            "content": f"{plant} stands in Oslo, once Kristiania.",
            "entities": [
                {"name": plant, "type": "organization", "subject": True, "role": "stands there"},
                {"name": "Oslo", "type": "location", "aliases": ["Kristiania"]},
            ],
        }


@dataclass
class Commands:
    """Runs sag-pg on a database, with a model server, as processes of their own.

    Attributes:
        database_url: The database.
        server: The models.
        directory: Where the processes' outputs go.
        started: All processes, in order.
    """

    database_url: str
    server: ModelServer
    directory: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own."""
        with self.output(len(self.started)).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "sag_pg", "--database-url", self.database_url, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def model_options(self, embedding: bool = True) -> list[str]:
        """Both models behind the server."""
        return [
            *("--extractor", "openai:test-chat", "--base-url", self.server.url),
            *("--embedding", "openai:test-embedding" if embedding else "none"),
        ]

    def ingest(self, path: Path, *options: str) -> subprocess.Popen[bytes]:
        """Start an ingest by the models."""
        return self.start("ingest", str(path), *self.model_options(), *options)

    def work(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker with the models."""
        return self.start("work", *self.model_options(), *options)

    def output(self, number: int) -> Path:
        """What a process said."""
        return self.directory / f"output{number}.txt"

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """What a process said so far."""
        return self.output(self.started.index(process)).read_text()

    def end(self, process: subprocess.Popen[bytes], code: int = 0) -> str:
        """Await the end of a process, and return what it said."""
        assert process.wait(PATIENCE) == code, self.said(process)
        return self.said(process)

    def await_that(self, is_so: Callable[[], Any], *processes: subprocess.Popen[bytes]) -> None:
        """Wait until something is so, while processes run."""
        until = time.monotonic() + PATIENCE
        while not is_so():
            for process in processes:
                assert process.poll() is None, self.said(process)
            assert time.monotonic() < until, "it took too long"
            time.sleep(0.01)

    def close(self) -> None:
        """Kill what still runs, with its helpers."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(answers=Statements()) as server:
        yield server


@pytest.fixture
def commands(database_url: str, server: ModelServer, tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(database_url, server, tmp_path)
    yield commands
    commands.close()


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def write_documents(path: Path, count: int, chunks: int = 2) -> Path:
    """Documents of which each chunk has a text of its own."""
    with path.open("w") as file:
        for number in range(count):
            text = "\n\n".join(
                f"Plant{number} stands in Oslo, once Kristiania, and this is the part of number"
                f" {part} of what is said about the plant."
                for part in range(chunks)
            )
            record = {
                "id": f"d{number}",
                "title": f"Plant {number}",
                "text": text,
                "metadata": {"year": number},
            }
            file.write(json.dumps(record) + "\n")
    return path


def asked_for(server: ModelServer) -> Counter[str]:
    """How often the language model was asked for each text."""
    return Counter(
        json.loads(body["messages"][1]["content"])["text"] for body in server.bodies("extraction")
    )


def worker_names(connection: Connection) -> list[str]:
    return column(connection, "SELECT name FROM sag.ingest_worker ORDER BY worker_id")


def worker_of(connection: Connection, process: subprocess.Popen[bytes]) -> int | None:
    """The worker that a process is, once it beats and listens."""
    name = f"{socket.gethostname()}:{process.pid}"
    found = column(
        connection,
        "SELECT worker_id FROM sag.ingest_worker WHERE name = %s AND backend_pid IS NOT NULL",
        name,
    )
    return found[0] if found else None


def latest_job(connection: Connection) -> dict[str, Any]:
    query = "SELECT to_jsonb(j) FROM sag.job_status AS j ORDER BY job_id DESC LIMIT 1"
    return dict(value(connection, query))


# All columns but ids and times; what the ids stand for is there by name.
CONTENTS = {
    "document": ("source", ""),
    "chunk": ("d.source, t.ordinal", "JOIN sag.document AS d USING (collection_id, document_id)"),
    "event": (
        "d.source, c.ordinal",
        "JOIN sag.chunk AS c USING (collection_id, chunk_id)"
        " JOIN sag.document AS d ON d.collection_id = t.collection_id"
        " AND d.document_id = c.document_id",
    ),
    "entity": ("t.normalized_name", ""),
    "entity_alias": (
        "n.normalized_name, t.name",
        "JOIN sag.entity AS n USING (collection_id, entity_id)",
    ),
    "event_entity": (
        "d.source, c.ordinal, n.normalized_name",
        "JOIN sag.entity AS n USING (collection_id, entity_id)"
        " JOIN sag.event AS e USING (collection_id, event_id)"
        " JOIN sag.chunk AS c USING (collection_id, chunk_id)"
        " JOIN sag.document AS d ON d.collection_id = t.collection_id"
        " AND d.document_id = c.document_id",
    ),
    "event_alias": (
        "d.source, c.ordinal, n.normalized_name, t.normalized_name",
        "JOIN sag.entity AS n USING (collection_id, entity_id)"
        " JOIN sag.event AS e USING (collection_id, event_id)"
        " JOIN sag.chunk AS c USING (collection_id, chunk_id)"
        " JOIN sag.document AS d ON d.collection_id = t.collection_id"
        " AND d.document_id = c.document_id",
    ),
    "collection_statistic": ("''", ""),
    "model_answer": ("t.answer_key", ""),
}


def contents(connection: Connection, collection: str, table: str) -> list[Any]:
    """The rows of a table that a collection has, in an order of their own."""
    key, joins = CONTENTS[table]
    query = (
        "SELECT jsonb_build_array("  # noqa: S608
        " (SELECT jsonb_object_agg(f.key, f.value) FROM jsonb_each(to_jsonb(t)) AS f"
        f" WHERE f.key !~ '(_id|_at)$'), {key})::text"
        f" FROM sag.{table} AS t {joins}"
        " WHERE t.collection_id = sag.collection_key(%s) ORDER BY 1"
    )
    return column(connection, query, collection)


def assert_equal_collections(connection: Connection, first: str, second: str) -> None:
    for table in CONTENTS:
        one, other = (contents(connection, name, table) for name in (first, second))
        assert len(one) > 0, table
        assert one == other, table


# Standing workers.


def test_a_worker_keeps_up_with_sql_clients(commands: Commands, connection: Connection) -> None:
    process = commands.start("work", "--extractor", "rules", "--embedding", "none")
    commands.await_that(lambda: worker_of(connection, process), process)
    client = Client(connection)

    def ingest(content: str) -> None:
        task_id = value(connection, "SELECT sag_ingest('note/1', %s, 'Note')", content)
        query = "SELECT state FROM sag.ingest_task WHERE task_id = %s"
        commands.await_that(
            lambda: value(connection, query, task_id) not in ("queued", "running"), process
        )
        # A second is what is promised; a busy machine gets some more.
        assert value(
            connection,
            "SELECT finished_at - created_at < interval '5 s' FROM sag.ingest_task"
            " WHERE task_id = %s",
            task_id,
        )

    ingest("Alice founded Acme in Berlin.")
    (evidence,) = client.retrieve("Who founded Acme?")
    assert (evidence.source, evidence.content) == ("note/1", "Alice founded Acme in Berlin.")
    ingest("Bob founded Acme in Paris.")
    (evidence,) = client.retrieve("Who founded Acme?")
    assert evidence.content == "Bob founded Acme in Paris."
    ingest("Bob founded Acme in Paris.")
    states = column(connection, "SELECT state FROM sag.ingest_task ORDER BY task_id")
    assert states == ["added", "replaced", "unchanged"]
    assert value(connection, "SELECT sag_delete('note/1')") is True
    assert client.retrieve("Who founded Acme?") == []
    process.terminate()
    assert "Dealt with 3 documents" in commands.end(process)
    assert worker_names(connection) == []


def test_a_worker_outlives_a_collection_that_is_dropped(
    commands: Commands, connection: Connection
) -> None:
    process = commands.work()
    commands.await_that(lambda: worker_of(connection, process), process)
    commands.server.delay = 0.1
    document = "SELECT sag_ingest(%s, %s, collection => %s)"
    for again in (False, True):
        connection.execute("SELECT sag.create_collection('gone')")
        with connection.transaction():
            for number in range(100):
                text = f"Plant{number} stands in Oslo, {again}."
                connection.execute(document, [f"d{number}", text, "gone"])
        asked = commands.server.count("extraction")
        commands.await_that(lambda: commands.server.count("extraction") > asked + 20, process)  # noqa: B023
        connection.execute("SELECT sag.drop_collection('gone')")
        if again:
            # Another one of the same name is not what the worker had at hand.
            connection.execute("SELECT sag.create_collection('gone')")
        task = value(connection, document, "kept", f"Plant stands in Oslo, {again}.", "default")
        query = "SELECT state FROM sag.ingest_task WHERE task_id = %s"
        done = ("added", "replaced")
        commands.await_that(lambda: value(connection, query, task) in done, process)  # noqa: B023
    process.terminate()
    assert "Dealt with" in commands.end(process)
    assert column(connection, "SELECT source FROM sag.document") == ["kept"]
    assert worker_names(connection) == []
    assert_counts_exact(connection)


def test_metadata_that_cannot_be_read_fail_alone(
    commands: Commands, connection: Connection
) -> None:
    exact = '{"pi": 3.14159265358979323846264338327950288, "price": 1.50}'
    levels = 5000
    given = {
        "digits": '{"n": 1e5000}',
        "exact": exact,
        "levels": '{"n": ' + "[" * levels + "]" * levels + "}",
        "none": "{}",
    }
    with connection.transaction():
        for source, metadata in given.items():
            connection.execute("SELECT sag_ingest(%s, 'Oslo stands there.')", [source])
            # What sag_ingest() would refuse.
            connection.execute(
                "UPDATE sag.ingest_task SET metadata = %s, max_attempts = 1 WHERE source = %s",
                [metadata, source],
            )
    said = commands.end(
        commands.start("work", "--until-done", "--extractor", "rules", "--embedding", "none")
    )
    assert "Failed: levels: " in said
    assert said.count("Failed: ") == 2
    states = connection.execute("SELECT source, state FROM sag.ingest_task").fetchall()
    added = {"exact": "added", "none": "added"}
    assert dict(states) == {"digits": "failed", "levels": "failed", **added}
    query = "SELECT metadata::text FROM sag.document WHERE source = 'exact'"
    assert value(connection, query) == exact
    query = "SELECT error FROM sag.ingest_task WHERE source = 'levels'"
    assert "nested too deeply" in value(connection, query)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_while_its_database_is_away(
    commands: Commands, embedded_server: Server, connection: Connection, number: int
) -> None:
    process = commands.work()
    commands.await_that(lambda: worker_of(connection, process), process)
    name = connection.info.dbname
    with psycopg.connect(embedded_server.url("postgres"), autocommit=True) as other:
        closed = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        other.execute(closed.format(sql.Identifier(name), sql.SQL("FALSE")))
        try:
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            other.execute(query, [name])
            time.sleep(2)
            assert process.poll() is None
            process.send_signal(number)
            assert "was lost" in commands.end(process, 1)
        finally:
            other.execute(closed.format(sql.Identifier(name), sql.SQL("TRUE")))


def test_a_second_interrupt_does_not_wait_for_a_model(
    commands: Commands, connection: Connection
) -> None:
    commands.server.delay = 15
    connection.execute("SELECT sag_ingest('d', 'Plant stands in Oslo.')")
    process = commands.work()
    commands.await_that(lambda: commands.server.count("extraction"), process)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    # What the process is sent by whoever started it is no second one.
    process.terminate()
    time.sleep(1)
    assert process.poll() is None
    interrupted_at = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in commands.end(process, 130)
    assert time.monotonic() - interrupted_at < 8
    assert column(connection, "SELECT state FROM sag.ingest_task") == ["queued"]
    assert column(connection, "SELECT answer FROM sag.model_answer") == []
    assert worker_names(connection) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_told_to_end_gives_back_what_it_has(
    commands: Commands, connection: Connection, number: int
) -> None:
    commands.server.delay = 0.2
    for document in range(150):
        connection.execute(
            "SELECT sag_ingest(%s, %s)", [f"d{document}", f"Plant{document} stands in Oslo."]
        )
    process = commands.work()
    commands.await_that(lambda: commands.server.count("extraction") > 70, process)
    process.send_signal(number)
    commands.end(process)
    assert worker_names(connection) == []
    assert value(connection, "SELECT count(*) FROM sag.model_answer WHERE answer IS NULL") == 0
    states = Counter(column(connection, "SELECT state FROM sag.ingest_task"))
    # What was ready is in, and the rest waits for the next worker, without a stain.
    assert set(states) == {"added", "queued"}
    assert states["added"] == value(connection, "SELECT count(*) FROM sag.document") > 0
    assert value(connection, "SELECT max(lapses + attempts) FROM sag.ingest_task") == 0
    commands.server.delay = 0.0
    commands.end(commands.work("--until-done"))
    assert value(connection, "SELECT count(*) FROM sag.document") == 150
    assert set(asked_for(commands.server).values()) == {1}
    assert_counts_exact(connection)


def test_a_task_that_somebody_has_in_hand_at_the_merge_is_not_lost(
    commands: Commands, connection: Connection, database_url: str
) -> None:
    """As the same ingest, started anew, has it while it takes the document over."""
    commands.server.delay = 0.5
    connection.execute("SELECT sag_ingest('a', 'Plant stands in Oslo.')")
    process = commands.work("--until-done")
    commands.await_that(lambda: commands.server.count("extraction") == 1, process)
    answered = "SELECT count(*) FROM sag.model_answer WHERE answer IS NOT NULL"
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM sag.ingest_task WHERE source = 'a' FOR UPDATE")
        commands.await_that(lambda: value(connection, answered) == 1, process)
        # The worker merges nothing and looks around for other work.
        time.sleep(1)
        assert value(connection, "SELECT count(*) FROM sag.document") == 0
    commands.end(process)
    assert column(connection, "SELECT state FROM sag.ingest_task") == ["added"]
    assert commands.server.count("extraction") == 1


# Workers that are killed.


@dataclass
class Account:
    """Which answers were lost with the workers that were killed.

    Attributes:
        connection: The database.
        server: Knows what was asked for.
        text_of: The passage of each answer's key.
        lost: How often the answer for a passage was lost.
    """

    connection: Connection
    server: ModelServer
    text_of: dict[bytes, str]
    lost: Counter[str] = field(default_factory=Counter)

    def texts(self, rows: str, *values: Any) -> set[str]:
        query = f"SELECT answer_key FROM sag.model_answer WHERE {rows}"  # noqa: S608
        target = " AND collection_id = sag.collection_key('default')"
        return {self.text_of[key] for key in column(self.connection, query + target, *values)}

    def close(self, worker_id: int | None) -> None:
        """Count what was asked for by a worker that is dead now and not stored.

        Args:
            worker_id: The worker; None where it was not registered yet.
        """
        asked = asked_for(self.server)
        stored = self.texts("answer IS NOT NULL")
        for text in self.texts("answer IS NULL AND worker_id = %s", worker_id):
            assert text not in stored
            unanswered = asked[text] - self.lost[text]
            assert unanswered in (0, 1)
            self.lost[text] += unanswered


def await_end_of_sessions(connection: Connection, most: int) -> None:
    """A session whose client was killed may still be at the client's last statement."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'sag-pg'"
    )
    while value(connection, query) > most:
        time.sleep(0.02)


def await_idle(server: ModelServer) -> None:
    """Requests of a client that was killed may still be on their way."""
    count = -1
    while server._running or count != server.count():
        count = server.count()
        time.sleep(0.1)


@pytest.fixture
def undisturbed(commands: Commands, connection: Connection) -> tuple[Path, dict[bytes, str]]:
    """500 documents, in collection "calm" already, and the passage of each answer's key."""
    path = write_documents(commands.directory / "documents.jsonl", 500)
    with ModelServer(answers=Statements()) as server:
        calm = Commands(commands.database_url, server, commands.directory / "calm")
        calm.directory.mkdir()
        calm.end(calm.ingest(path, *SMALL_CHUNKS, "-c", "calm"))
        assert set(asked_for(server).values()) == {1}
        assert len(asked_for(server)) == 1000
    rows = connection.execute("SELECT answer_key, content FROM sag.chunk").fetchall()
    return path, dict(rows)


def moments(kills: int, total: int) -> list[int]:
    """Numbers of requests after which to kill: at the start, on the way, and beyond the last."""
    chance = random.Random(kills)  # noqa: S311
    on_the_way = (chance.randint(1, total + total // 5) for _ in range(kills - 2))
    return sorted([0, *on_the_way, total + 1])


def test_an_ingest_that_is_killed_time_and_again(
    commands: Commands, connection: Connection, undisturbed: tuple[Path, dict[bytes, str]]
) -> None:
    path, text_of = undisturbed
    connection.execute("SELECT sag.create_collection('default')")
    account = Account(connection, commands.server, text_of)
    commands.server.delay = 0.03
    chance = random.Random(1)  # noqa: S311
    killed = 0
    for moment in moments(KILLS, 1000):
        process = commands.ingest(path, *SMALL_CHUNKS)
        late = moment > 1000
        if moment:
            commands.await_that(
                lambda moment=moment, process=process: (
                    process.poll() is not None
                    or commands.server.count("extraction") >= min(moment, 1000)
                )
            )
        if late or moment == 0:
            # While it starts and queues, waits for what a dead worker had, or merges.
            time.sleep(chance.uniform(0, 10))
        else:
            time.sleep(chance.uniform(0, 0.1))
        worker_id = worker_of(connection, process)
        killed += process.poll() is None
        process.kill()
        process.wait()
        await_end_of_sessions(connection, 0)
        await_idle(commands.server)
        account.close(worker_id)
    assert killed > KILLS // 2
    report = json.loads(
        commands.end(commands.ingest(path, *SMALL_CHUNKS, "--json")).splitlines()[-1]
    )
    assert (report["failed"], report["waiting"]) == (0, 0)
    assert_equal_collections(connection, "calm", "default")
    assert_counts_exact(connection)
    assert asked_for(commands.server) == Counter(
        {text: 1 + account.lost[text] for text in text_of.values()}
    )


def test_workers_that_are_killed_time_and_again(
    commands: Commands, connection: Connection, undisturbed: tuple[Path, dict[bytes, str]]
) -> None:
    path, text_of = undisturbed
    account = Account(connection, commands.server, text_of)
    commands.server.delay = 0.05
    commands.end(commands.ingest(path, *SMALL_CHUNKS, "--queue"))
    chance = random.Random(2)  # noqa: S311
    running = [commands.work(*SMALL_CHUNKS) for _ in range(2)]
    for moment in moments(KILLS, 1000):
        for process in running:
            commands.await_that(lambda process=process: worker_of(connection, process), *running)
        commands.await_that(
            lambda moment=moment: commands.server.count("extraction") >= min(moment, 1000),
            *running,
        )
        time.sleep(chance.uniform(0, 8 if moment > 1000 else 0.1))
        process = running.pop(chance.randrange(2))
        worker_id = worker_of(connection, process)
        process.kill()
        process.wait()
        await_end_of_sessions(connection, 2)
        # The other one goes on asking; what the dead one asked for has come by then.
        time.sleep(0.2)
        account.close(worker_id)
        running.append(commands.work(*SMALL_CHUNKS))
    for process in running:
        commands.await_that(lambda process=process: worker_of(connection, process), *running)
    live = "SELECT count(*) FROM sag.ingest_task WHERE state IN ('queued', 'running')"
    commands.await_that(lambda: value(connection, live) == 0, *running)
    for process in running:
        process.terminate()
        commands.end(process)
    # A document may have been there at too many deaths; the same ingest tries it again.
    commands.end(commands.ingest(path, *SMALL_CHUNKS))
    assert_equal_collections(connection, "calm", "default")
    assert_counts_exact(connection)
    assert asked_for(commands.server) == Counter(
        {text: 1 + account.lost[text] for text in text_of.values()}
    )


# A server that is stopped.


def test_the_database_restarts(tmp_path: Path, server: ModelServer) -> None:
    data_dir = tmp_path / "pg"
    with ExitStack() as exits:
        exits.callback(embedded.stop, data_dir)
        uri = embedded.get_uri(data_dir, SETTINGS)
        with psycopg.connect(uri, autocommit=True) as connection:
            migrate.migrate(connection)
            value(connection, "SELECT sag.register_worker('long gone')")
            connection.execute(
                "UPDATE sag.ingest_worker SET heartbeat_at = now() - interval '50 minutes'"
            )
        commands = Commands(uri, server, tmp_path)
        exits.callback(commands.close)
        path = write_documents(tmp_path / "documents.jsonl", 200)
        server.delay = 0.1
        processes = [commands.ingest(path, *SMALL_CHUNKS), commands.work(*SMALL_CHUNKS)]
        for moment in (100, 250):
            commands.await_that(
                lambda moment=moment: server.count("extraction") >= moment, *processes
            )
            assert embedded.stop(data_dir)
            time.sleep(1)
            assert embedded.get_uri(data_dir) == uri
            with psycopg.connect(uri, autocommit=True) as connection:
                # Nobody could be heard of, and so nobody is taken for dead.
                lapsed = "SELECT count(*) FROM sag.ingest_worker WHERE sag.worker_lapsed(worker_id)"
                assert value(connection, lapsed) == 0
        ingest, work = processes
        commands.end(ingest)
        work.terminate()
        commands.end(work)
        with psycopg.connect(uri, autocommit=True) as connection:
            assert worker_names(connection) == ["long gone"]
            assert latest_job(connection)["added"] == 200
            assert value(connection, "SELECT max(lapses) FROM sag.ingest_task") == 0
            assert_counts_exact(connection)
        # What was on its way arrived, and was stored when the database was back.
        asked = asked_for(server)
        assert len(asked) == 400
        assert set(asked.values()) == {1}


# Several at once.


def test_processes_share_a_job_and_one_of_them_dies(
    commands: Commands, connection: Connection
) -> None:
    path = write_documents(commands.directory / "documents.jsonl", 400, chunks=1)
    # Slow until all are there.
    commands.server.delay = 1.0
    standing = commands.work()
    ingest = commands.ingest(path, "--workers", "4")
    commands.await_that(lambda: len(worker_names(connection)) == 5, standing, ingest)
    commands.server.delay = 0.1
    commands.await_that(lambda: commands.server.count("extraction") > 100, standing, ingest)
    helpers = psutil.Process(ingest.pid).children()
    assert len(helpers) == 3
    taken = "SELECT count(DISTINCT worker_id) FROM sag.ingest_task WHERE worker_id IS NOT NULL"
    commands.await_that(lambda: value(connection, taken) >= 2, standing, ingest)
    helpers[0].kill()
    output = commands.end(ingest)
    assert "400 added" in output
    assert "a worker ended with exit code -9" in output
    asking = "SELECT count(DISTINCT worker_id) FROM sag.model_answer WHERE answer IS NOT NULL"
    assert value(connection, asking) >= 3
    standing.terminate()
    commands.end(standing)
    job = latest_job(connection)
    assert (job["state"], job["added"]) == ("finished", 400)
    assert_counts_exact(connection)


@pytest.mark.parametrize("to_all", [False, True], ids=["to the parent", "as from a terminal"])
def test_an_interrupted_ingest_ends_its_helpers_and_goes_on_later(
    commands: Commands, connection: Connection, to_all: bool
) -> None:
    path = write_documents(commands.directory / "documents.jsonl", 300, chunks=1)
    commands.server.delay = 1.0
    ingest = commands.ingest(path, "--workers", "3")
    commands.await_that(lambda: len(worker_names(connection)) == 3, ingest)
    commands.server.delay = 0.1
    commands.await_that(lambda: commands.server.count("extraction") > 50, ingest)
    helpers = psutil.Process(ingest.pid).children()
    assert len(helpers) == 2
    if to_all:
        os.killpg(ingest.pid, signal.SIGINT)
    else:
        ingest.send_signal(signal.SIGINT)
    output = commands.end(ingest, 130)
    assert "the same command goes on from there.\nInterrupted" in output
    assert "Traceback" not in output
    assert not any(helper.is_running() for helper in helpers)
    assert worker_names(connection) == []
    job = latest_job(connection)
    assert (job["state"], job["running"]) == ("stopped", 0)
    assert job["queued"] > 0
    commands.server.delay = 0.0
    output = commands.end(commands.ingest(path))
    assert value(connection, "SELECT count(*) FROM sag.document") == 300
    assert latest_job(connection)["state"] == "finished"
    assert_counts_exact(connection)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_helpers_end_with_the_ingest_that_started_them(
    commands: Commands, connection: Connection, number: int
) -> None:
    path = write_documents(commands.directory / "documents.jsonl", 1000, chunks=1)
    commands.server.delay = 0.2
    ingest = commands.ingest(path, "--workers", "3")
    commands.await_that(lambda: len(worker_names(connection)) == 3, ingest)
    commands.await_that(lambda: commands.server.count("extraction") > 50, ingest)
    helpers = psutil.Process(ingest.pid).children()
    assert len(helpers) == 2
    ingest.send_signal(number)
    ingest.wait()
    _, alive = psutil.wait_procs(helpers, 60)
    assert alive == []
    # They took their leave; of the other one nobody heard the end.
    assert len(worker_names(connection)) == 1
    assert commands.server.count("extraction") < 600
    assert_counts_exact(connection)


def test_workers_that_meet_at_hub_entities_do_not_deadlock(
    commands: Commands, connection: Connection
) -> None:
    """Many small merges at once, of documents that share ten entities, and deletions between."""
    hubs = " ".join(f"Hub{number} Corp met Acme{number} Ltd." for number in range(10))
    options = ("--extractor", "rules", "--embedding", "none")
    workers = [commands.start("work", *options) for _ in range(4)]
    for process in workers:
        commands.await_that(lambda process=process: worker_of(connection, process), process)
    chance = random.Random(3)  # noqa: S311
    for number in range(600):
        name = f"d{chance.randrange(150)}"
        if number % 20 == 19:
            connection.execute("SELECT sag_delete(%s)", [name])
        else:
            text = f"{hubs} Number{number} Inc was there, too."
            connection.execute("SELECT sag_ingest(%s, %s)", [name, text])
    live = "SELECT count(*) FROM sag.ingest_task WHERE state IN ('queued', 'running')"
    commands.await_that(lambda: value(connection, live) == 0, *workers)
    for process in workers:
        process.terminate()
    for process in workers:
        assert "Error" not in commands.end(process)
    connection.execute("SELECT pg_stat_force_next_flush()")
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert value(connection, deadlocks) == 0
    states = set(column(connection, "SELECT DISTINCT state FROM sag.ingest_task"))
    assert states <= {"added", "replaced", "superseded"}
    assert value(connection, "SELECT max(event_count) FROM sag.entity") == value(
        connection, "SELECT count(*) FROM sag.document"
    )
    assert_counts_exact(connection)


def test_workers_that_meet_at_a_passage_ask_for_it_once(
    commands: Commands, connection: Connection
) -> None:
    commands.server.delay = 1.0
    for number in range(192):
        connection.execute(
            "SELECT sag_ingest(%s, %s)", [f"d{number}", f"Plant{number % 64} stands in Oslo."]
        )
    workers = [commands.work("--until-done") for _ in range(3)]
    taken = "SELECT count(DISTINCT worker_id) FROM sag.ingest_task WHERE state = 'running'"
    commands.await_that(lambda: value(connection, taken) >= 2, *workers)
    for process in workers:
        commands.end(process)
    assert value(connection, "SELECT count(*) FROM sag.document") == 192
    asked = asked_for(commands.server)
    assert len(asked) == 64
    assert set(asked.values()) == {1}


# The commands.


@dataclass
class Cli:
    """Runs commands in this process."""

    database_url: str
    server: ModelServer

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["--database-url", self.database_url, *arguments])
        assert result.exit_code == code, result.output
        return result

    def ingest(self, *arguments: str, code: int = 0) -> Result:
        models = ("--extractor", "openai:test-chat", "--embedding", "openai:test-embedding")
        command, *rest = arguments
        return self(command, *models, "--base-url", self.server.url, *rest, code=code)


@pytest.fixture
def cli(database_url: str, server: ModelServer) -> Cli:
    return Cli(database_url, server)


def write_files(directory: Path, texts: dict[str, str]) -> None:
    directory.mkdir(exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text)


def held(connection: Connection) -> list[str]:
    """Names of the files that the collection holds."""
    return [
        Path(name).name for name in column(connection, "SELECT source FROM sag.document ORDER BY 1")
    ]


def test_jobs(cli: Cli, connection: Connection, tmp_path: Path) -> None:
    files = tmp_path / "files"
    write_files(files, {"a.txt": "Ada stands in Oslo.", "b.txt": "Bea stands in Oslo."})
    cli.server.script("extraction", model_server.EMPTY, model_server.EMPTY)
    failed = cli.ingest("ingest", str(files), "--model-concurrency", "1", code=1)
    assert "1 incomplete" in failed.stdout
    job = latest_job(connection)
    text = cli("jobs").stdout
    assert "failed" in text
    assert "1 incomplete" in text
    listed = json.loads(cli("jobs", "--json").stdout)
    assert [each["job_id"] for each in listed] == sorted(
        (each["job_id"] for each in listed), reverse=True
    )
    assert (listed[0]["job_id"], listed[0]["state"]) == (job["job_id"], "failed")
    assert json.loads(cli("jobs", "-c", "nowhere", "--json").stdout) == []
    shown = cli("jobs", "show", str(job["job_id"])).stdout
    for part in (
        "test-chat",
        "test-embedding",
        "txt: chunk 0: The model test-chat",
        "openai:test-chat",
    ):
        assert part in shown
    facts = json.loads(cli("jobs", "show", str(job["job_id"]), "--json").stdout)
    assert (facts["failed_chunk_count"], len(facts["failures"])) == (1, 1)
    assert {each["model"]: each["requests"] for each in facts["models"]}["test-chat"] == 3
    retried = cli("jobs", "retry", str(job["job_id"]))
    assert f"1 documents of job {job['job_id']} wait" in retried.stderr
    # The job of SQL clients, who are none, is not shown.
    assert {each["origin"] for each in listed} == {"command"}
    before = cli.server.count("extraction")
    cli.ingest("work", "--until-done", "--job", str(job["job_id"]))
    assert cli.server.count("extraction") == before + 1
    assert latest_job(connection)["state"] == "finished"
    facts = json.loads(cli("jobs", "show", str(job["job_id"]), "--json").stdout)
    assert (facts["failures"], facts["replaced"]) == ([], 1)
    # Queued, and given up.
    queued = cli.ingest("ingest", str(files), "--queue", "-c", "other")
    job = latest_job(connection)
    assert "2 queued" in queued.stdout
    assert f"sag-pg work --job {job['job_id']}" in queued.stderr
    assert (job["state"], job["queued"], job["collection"]) == ("queued", 2, "other")
    cancelled = cli("jobs", "cancel", str(job["job_id"]))
    assert f"Cancelled 2 documents of job {job['job_id']}" in cancelled.stderr
    assert latest_job(connection)["state"] == "cancelled"
    assert "nothing to queue again" in cli("jobs", "retry", str(job["job_id"])).stderr


def test_failures_are_told_once_and_counted(
    cli: Cli, connection: Connection, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    write_files(files, {f"{number:02}.txt": "" for number in range(23)} | {"a.txt": "In Oslo."})
    estimated = cli.ingest("ingest", str(files), "--estimate").stderr
    assert (estimated.count("Failed: "), "3 more" in estimated) == (20, True)
    said = cli.ingest("ingest", str(files), code=1).stderr
    job = str(latest_job(connection)["job_id"])
    assert f"3 more: sag-pg jobs show {job} --failures 23\n" in said
    shown = cli("jobs", "show", job)
    assert shown.stdout.count("00.txt") == 1
    assert "more: --failures N" in shown.stdout
    assert shown.stdout.count("A document needs some text.") == 1
    shown = cli("jobs", "show", job, "--failures", "23")
    assert shown.stdout.count("the file is empty") == 23
    assert "more" not in shown.stdout


@pytest.mark.parametrize("command", ["show", "retry", "cancel"])
def test_jobs_that_do_not_exist(cli: Cli, command: str) -> None:
    result = cli("jobs", command, "99999", code=1)
    assert "99999" in result.stderr
    assert "Hint" in result.stderr


def test_queue_only(cli: Cli, connection: Connection, tmp_path: Path) -> None:
    files = tmp_path / "files"
    write_files(files, {"a.txt": "Ada stands in Oslo.", "empty.txt": " \n"})
    report = json.loads(cli.ingest("ingest", str(files), "--queue", "--json", code=1).stdout)
    assert (report["waiting"], report["failed"], report["added"]) == (1, 1, 0)
    assert cli.server.count("extraction") == 0
    assert worker_names(connection) == []
    # A worker with other settings says what it leaves to others, and leaves it.
    other = cli("work", "--until-done", "--extractor", "rules", "--embedding", "none")
    assert "waits for a worker with" in other.stderr
    assert held(connection) == []
    cli.ingest("work", "--until-done")
    assert held(connection) == ["a.txt"]
    assert latest_job(connection)["failed"] == 1


def test_an_estimate_is_what_the_ingest_then_asks(
    cli: Cli, connection: Connection, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    first = write_documents(files / "first.jsonl", 10)
    cli.ingest("ingest", str(first), *SMALL_CHUNKS)
    # Some are there, one is changed, one holds a passage that another one holds too.
    second = write_documents(files / "second.jsonl", 30, chunks=3)
    record = {"id": "again", "title": "Plant 25", "text": json.loads(
        second.read_text().splitlines()[25])["text"]}  # fmt: skip
    with second.open("a") as file:
        file.write(json.dumps(record) + "\n")
    rows = column(connection, "SELECT ctid::text FROM sag.ingest_job ORDER BY 1")
    asked, embedded_texts = cli.server.count("extraction"), embedded_count(cli.server)
    dimensions = cli.server.count("embedding")
    estimated = json.loads(
        cli.ingest("ingest", str(files), *SMALL_CHUNKS, "--estimate", "--json").stdout
    )
    assert cli.server.count("extraction") == asked
    assert cli.server.count("embedding") - dimensions <= 1
    assert column(connection, "SELECT ctid::text FROM sag.ingest_job ORDER BY 1") == rows
    embedded_texts = embedded_count(cli.server)
    report = json.loads(cli.ingest("ingest", str(files), *SMALL_CHUNKS, "--json").stdout)
    assert estimated["chunks"] == report["chunks"]
    assert estimated["extraction_calls"] == cli.server.count("extraction") - asked
    assert estimated["documents"] == report["added"] + report["replaced"]
    # One is for the dimensions.
    assert estimated["embedding_texts"] == embedded_count(cli.server) - embedded_texts - 1
    again = json.loads(
        cli.ingest("ingest", str(second), *SMALL_CHUNKS, "--estimate", "--json").stdout
    )
    assert (again["extraction_calls"], again["chunks"], again["unchanged"]) == (0, 0, 31)
    assert "calls" in cli.ingest("ingest", str(second), "--estimate", "-c", "new").stdout


def embedded_count(server: ModelServer) -> int:
    """Texts that were embedded so far."""
    return sum(len(body["input"]) for body in server.bodies("embedding"))


def test_an_estimate_asks_the_database_for_many_documents_at_once(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_types(connection)
    documents = [text_document(f"d{number}", f"Text {number}.") for number in range(300)]
    processing = Processing(load_extractor("rules"), None)
    ingest(
        connection,
        documents[:200],
        collection="default",
        extractor=processing.extractor,
        embedding_model=None,
    )
    asked = []
    execute = type(connection).execute

    def count(self: Connection, query: Any, *rest: Any, **options: Any) -> Any:
        asked.append(query)
        return execute(self, query, *rest, **options)

    monkeypatch.setattr(type(connection), "execute", count)
    # The second of two with one source is compared by its own content.
    again = [*documents, text_document("d0", "Other text.")]
    found = estimate(connection, again, "default", processing)
    assert (found.unchanged, found.documents) == (200, 101)
    assert len(asked) < 5


def test_front_matter_that_is_broken_is_said(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("---\ntitle: a: b\n---\nAda stands in Oslo.")
    warning = f"{path}: its front matter is broken"
    estimated = cli.ingest("ingest", str(path), "--estimate")
    assert f"Warning: {warning}" in estimated.stderr
    queued = cli.ingest("ingest", str(path), "--queue", "-c", "queued")
    assert f"Warning: {warning}" in queued.stderr
    (said,) = json.loads(cli.ingest("ingest", str(path), "--json").stdout)["warnings"]
    assert said.startswith(warning)
    # As long as it is not mended.
    assert f"Warning: {warning}" in cli.ingest("sync", str(tmp_path)).stderr


def test_metadata_of_the_command(cli: Cli, connection: Connection, tmp_path: Path) -> None:
    path = write_documents(tmp_path / "documents.jsonl", 2)
    options = ("--metadata", "project=Apollo", "--metadata", "level=3")
    cli.ingest("ingest", str(path), *options)
    assert column(connection, "SELECT metadata FROM sag.document ORDER BY source") == [
        {"project": "Apollo", "level": 3, "year": number} for number in range(2)
    ]
    # What goes deeper than metadata can is a text.
    deep = "[" * 600 + "]" * 600
    cli.ingest("ingest", str(path), "--metadata", f"deep={deep}", "--estimate")
    # With other metadata it is another document, with answers that are there.
    report = json.loads(cli.ingest("ingest", str(path), "--metadata", "level=4", "--json").stdout)
    assert report["replaced"] == 2
    assert set(asked_for(cli.server).values()) == {1}


def test_a_worker_says_which_chunks_failed(cli: Cli, connection: Connection) -> None:
    for source in "ab":
        connection.execute("SELECT sag_ingest(%s, %s)", [source, f"Plant {source} stands in Oslo."])
    connection.execute("UPDATE sag.ingest_task SET max_attempts = 1")
    cli.server.script("extraction", *[model_server.EMPTY] * 4)
    said = cli.ingest("work", "--until-done", "--model-concurrency", "1").stderr
    for source in "ab":
        assert f"Failed: {source}: models failed for 1 of 1 chunks; " in said


def test_a_document_is_tried_again(cli: Cli, connection: Connection, tmp_path: Path) -> None:
    path = write_documents(tmp_path / "documents.jsonl", 3, chunks=1)
    cli.server.script("extraction", model_server.EMPTY, model_server.EMPTY)
    options = ("--attempts", "2", "--model-concurrency", "1", "--json")
    report = json.loads(cli.ingest("ingest", str(path), *options).stdout)
    assert (report["failures"], report["incomplete"], report["waiting"]) == ([], 0, 0)
    assert (report["added"], report["replaced"]) == (2, 1)
    assert value(connection, "SELECT max(attempts) FROM sag.ingest_task") == 1
    assert value(connection, "SELECT count(*) FROM sag.event WHERE content IS NOT NULL") == 3


def test_a_worker_that_loses_its_first_connection_goes_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(session: Session, model: object) -> None:
        pid = session.connection.info.backend_pid
        with session.reopen() as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        assert session.call("SELECT 1") == [(1,)]

    monkeypatch.setattr("sag_pg.cli.work.set_embedding_space", cut)
    monkeypatch.setattr(Worker, "work", lambda self, **_: None)
    cli("work", "--extractor", "rules", "--embedding", "none")
