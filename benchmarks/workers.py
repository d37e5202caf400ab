"""Whether more workers are faster where a model's answers are waited for and all entities meet.

    python benchmarks/workers.py [--minutes 10] [--delay 0.2]

A queue of documents that all share ten entities is worked off by one `sag-pg work` and then by
four, each time in a new database and for so long. Every answer of the language model takes the
delay. Printed are chunks merged per second and deadlocks.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import psycopg
from psycopg import conninfo
from server import connect, prepare, temporary_server

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from model_server import JsonObject, ModelServer, SimpleAnswers

_COUNTS = (1, 4)
_HUBS = [f"Hub{number} Corporation" for number in range(10)]
# A worker asks for so many at once, by default.
_CONCURRENCY = 8


class _Hubs(SimpleAnswers):
    def extraction(self, asked: JsonObject) -> JsonObject:
        """Give the hubs and the one entity that is the document's own."""
        names = [*_HUBS, asked["text"].split()[0]]
        return {
            "title": None,
            "content": None,
            "entities": [{"name": name, "type": "organization"} for name in names],
        }


def _sag_pg(url: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "sag_pg", "--database-url", url, *arguments]


def _write_documents(path: Path, count: int) -> None:
    hubs = ", ".join(_HUBS)
    with path.open("w") as file:
        for number in range(count):
            text = f"Plant{number} was built and is run by {hubs}."
            file.write(json.dumps({"id": f"d{number}", "text": text}) + "\n")


def _value(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def _measure(url: str, server: ModelServer, workers: int, seconds: float, path: Path) -> None:
    models = ["--extractor", "openai:test", "--embedding", "none", "--base-url", server.url]
    # More than they can get through, so that the queue never ends.
    _write_documents(path, 1000 + int(1.2 * workers * seconds * _CONCURRENCY / server.delay))
    queue = _sag_pg(url, "ingest", str(path), "--queue", "--json", *models)
    subprocess.run(queue, check=True, stdout=subprocess.DEVNULL)
    work = _sag_pg(url, "work", *models)
    processes = [subprocess.Popen(work, stderr=subprocess.DEVNULL) for _ in range(workers)]
    try:
        while server.count() == 0:
            time.sleep(0.05)
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            time.sleep(1)
            # They are many, and of no more use.
            server.requests.clear()
    finally:
        # What is ready is merged, which counts.
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait()
    elapsed = time.perf_counter() - started
    with connect(url) as connection:
        merged = _value(connection, "SELECT count(*) FROM sag.chunk")
        left = _value(connection, "SELECT count(*) FROM sag.ingest_task WHERE state = 'queued'")
        deadlocks = _value(
            connection,
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
        )
    assert left > 0, "the queue was too short"
    click.echo(
        f"{workers} workers: {merged / elapsed:6.1f} chunks/s"
        f" ({merged} in {elapsed:.0f} s), {deadlocks} deadlocks"
    )


@click.command()
@click.option("--minutes", type=float, default=10.0, show_default=True, help="For each number.")
@click.option("--delay", type=float, default=0.2, show_default=True, help="Of answers, in seconds.")
def main(minutes: float, delay: float) -> None:
    """Measure one worker and four, on hub entities and a slow model."""
    with (
        temporary_server() as uri,
        ModelServer(answers=_Hubs(), delay=delay) as server,
        tempfile.TemporaryDirectory() as directory,
    ):
        for workers in _COUNTS:
            name = f"workers{workers}"
            prepare(uri, name).close()
            url = conninfo.make_conninfo(uri, dbname=name)
            server.requests.clear()
            _measure(url, server, workers, minutes * 60, Path(directory) / f"{name}.jsonl")


if __name__ == "__main__":
    main()
