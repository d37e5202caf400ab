"""A server of its own for a measurement, and a database filled at speed."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psycopg
from psycopg import conninfo
from psycopg.types.json import Jsonb
from synthetic import DIMENSIONS, Corpus

from sag_pg import embedded, migrate
from sag_pg.database import register_types
from sag_pg.ingest.batch import Batch

BATCH_CHUNKS = 1000


@contextmanager
def temporary_server(**settings: str) -> Iterator[str]:
    """An embedded server in a temporary directory, with its usual settings and more; its URI."""
    with tempfile.TemporaryDirectory(prefix="sag-benchmark-") as directory:
        Path(directory).chmod(0o711)
        data_dir = Path(directory) / "data"
        try:
            yield embedded.get_uri(data_dir, {**embedded.SETTINGS, **settings})
        finally:
            embedded.stop(data_dir)


def connect(uri: str, database: str | None = None) -> psycopg.Connection[Any]:
    """A connection in autocommit mode, to another database of the server where one is named."""
    string = uri if database is None else conninfo.make_conninfo(uri, dbname=database)
    connection = psycopg.connect(string, autocommit=True)
    register_types(connection)
    return connection


def prepare(uri: str, database: str) -> psycopg.Connection[Any]:
    """A new database with an embedding space."""
    with connect(uri) as maintenance:
        maintenance.execute(f'CREATE DATABASE "{database}"'.encode())
    migrate.migrate(connect(uri, database))
    connection = connect(uri, database)
    connection.execute("SELECT sag.set_embedding_space('synthetic', %s)", [DIMENSIONS])
    return connection


def make_batch(corpus: Corpus, start: int, count: int, task_ids: list[int] | None = None) -> Batch:
    """A batch of documents of the corpus, ready to be merged."""
    batch = Batch()
    for number, document in enumerate(corpus.documents(start, count)):
        no = batch.open_document()
        batch.add_rows("chunk", [(no, *document["chunk"])])
        batch.add_rows("entity", [(no, *row) for row in document["entities"]])
        batch.close_document(
            document["source"],
            document["title"],
            Jsonb({}),
            document["content_hash"],
            "synthetic",
            1,
            task_id=None if task_ids is None else task_ids[number],
        )
    return batch


def fill(connection: psycopg.Connection[Any], corpus: Corpus, count: int) -> None:
    """Merge the first `count` documents of the corpus; most indexes are built at the end."""
    started = time.perf_counter()
    indexes = connection.execute(
        "SELECT indexname, indexdef FROM pg_indexes"
        " WHERE schemaname = 'sag' AND indexdef ~ 'USING (hnsw|gin)'"
    ).fetchall()
    for name, _ in indexes:
        connection.execute(f"DROP INDEX sag.{name}".encode())
    for start in range(0, count, BATCH_CHUNKS):
        batch = make_batch(corpus, start, min(BATCH_CHUNKS, count - start))
        with connection.transaction():
            batch.merge(connection, "default")
        batch.close()
    for _, definition in indexes:
        connection.execute(definition.encode())
    click.echo(f"filled with {count} documents in {time.perf_counter() - started:.0f} s", err=True)
