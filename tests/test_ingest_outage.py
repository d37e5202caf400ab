"""What an ingest is worth whose worker, whose database or whose helpers die on the way.

SAG_PG_TEST_KILLS says how often the worker is killed; 20 is the full measure.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from corpus import assert_counts_exact, column, value
from model_server import ModelServer

from sag_pg import config, embedded, migrate
from sag_pg.ingest.stored_extraction import answer_key
from sag_pg.models.base import Passage
from sag_pg.transfer import export_collection

KILLS = int(os.environ.get("SAG_PG_TEST_KILLS", "3"))
DOCUMENTS = 500
EXTRACTOR = "openai:test-chat"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        server.delay = 0.02
        yield server


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    records = [
        {"id": f"d{no}", "title": f"Title {no % 40}", "text": text(no), "metadata": {"n": no}}
        for no in range(DOCUMENTS)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def text(number: int) -> str:
    hubs = " and ".join(f"Hub{hub}" for hub in range(10))
    return f"Plant{number} stands in Town{number % 50}, near {hubs}."


def ingest(url: str, server: ModelServer, documents: Path, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "sag_pg", "--database-url", url, "ingest", str(documents)),
        *("--extractor", EXTRACTOR, "--embedding", "openai:test-embedding"),
        *("--base-url", server.url, "--model-concurrency", "8", *options),
    ]


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.002)


def asked(server: ModelServer) -> Counter[str]:
    return Counter(
        json.loads(body["messages"][1]["content"])["text"] for body in server.bodies("extraction")
    )


def stored(connection: psycopg.Connection[Any]) -> set[str]:
    """Texts whose answer is in the database, once nobody is left who could store one."""
    others = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'sag-pg'"
        " AND pid <> pg_backend_pid()"
    )
    while value(connection, others) > 0:
        time.sleep(0.02)
    keys = column(connection, "SELECT answer_key FROM sag.model_answer WHERE answer IS NOT NULL")
    name = f"{EXTRACTOR}+extraction-1"
    text_of = {
        answer_key(name, Passage(f"Title {no % 40}", text(no))): text(no) for no in range(DOCUMENTS)
    }
    return {text_of[key] for key in keys}


def content(url: str, directory: Path) -> dict[str, bytes]:
    with migrate.connect_migrated(config.resolve(url, None)) as connection:
        assert_counts_exact(connection)
        export_collection(connection, "default", directory)
        assert value(connection, "SELECT count(*) FROM sag.ingest_piece") == 0
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def undisturbed(
    empty_database_url: str, server: ModelServer, documents: Path, tmp_path: Path
) -> dict[str, bytes]:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        migrate.migrate(connection)
    with ModelServer() as other:
        finish(ingest(empty_database_url, other, documents))
    return content(empty_database_url, tmp_path / "undisturbed")


def test_a_worker_killed_at_any_moment(
    database_url: str,
    server: ModelServer,
    documents: Path,
    undisturbed: dict[str, bytes],
    tmp_path: Path,
) -> None:
    chance = random.Random(11)  # noqa: S311
    command = ingest(database_url, server, documents)
    lost: dict[str, int] = {}
    with migrate.connect_migrated(config.resolve(database_url, None)) as connection:
        for kill in range(1, KILLS + 1):
            process = start(command)
            target = DOCUMENTS * kill // (KILLS + 1)
            wait_until(lambda target=target: len(asked(server)) >= target, process)  # type: ignore[misc]
            time.sleep(chance.random() * 0.1)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            there = stored(connection)
            # All that was asked of a text so far was for nothing, if no answer of it is there.
            lost |= {each: n for each, n in asked(server).items() if each not in there}
    finish(command)
    assert content(database_url, tmp_path / "killed") == undisturbed
    assert asked(server) == {text(no): 1 + lost.get(text(no), 0) for no in range(DOCUMENTS)}
    # A kill loses what is on its way, and no more.
    assert len(lost) <= 8 * KILLS


def test_the_database_goes_away_and_comes_back(
    server: ModelServer, documents: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    data_dir = tmp_path / "server"
    data_dir.mkdir()
    url = embedded.get_uri(data_dir)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            migrate.migrate(connection)
        process = start(ingest(url, server, documents, "--workers", "2"))
        for count in (120, 300):
            wait_until(lambda count=count: len(asked(server)) >= count, process)  # type: ignore[misc]
            embedded.stop(data_dir)
            time.sleep(1)
            assert embedded.get_uri(data_dir) == url
        assert process.wait(180) == 0, process.stderr and process.stderr.read()
        assert content(url, tmp_path / "restarted") == undisturbed
        # The workers lived, so that even what was on its way was stored.
        assert set(asked(server).values()) == {1}
    finally:
        embedded.stop(data_dir)


def test_workers_share_hubs_without_a_deadlock(
    database_url: str,
    server: ModelServer,
    documents: Path,
    undisturbed: dict[str, bytes],
    tmp_path: Path,
) -> None:
    process = start(ingest(database_url, server, documents, "--workers", "3"))
    with psycopg.connect(database_url, autocommit=True) as connection:
        # One of the helpers dies, and the others take over what it had.
        helpers = "SELECT name FROM sag.ingest_worker ORDER BY worker_id DESC LIMIT 1"
        wait_until(lambda: len(asked(server)) >= 150, process)
        (name,) = column(connection, helpers)
        victim = int(name.rpartition(":")[2])
        assert victim != process.pid
        os.kill(victim, signal.SIGKILL)
        process.wait(180)
        assert (
            value(
                connection,
                "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
            )
            == 0
        )
    assert content(database_url, tmp_path / "shared") == undisturbed
    assert sum(asked(server).values()) <= DOCUMENTS + 8
