"""A batch of documents on its way into the database, kept outside of memory and transactions."""

import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

_IN_MEMORY_BYTES: Final = 32 * 2**20

# The columns that `sag.begin_batch()` gives the four temporary tables, with their types: a binary
# COPY takes nothing else. A vector as text takes longer to write than all the rest of its row.
_TABLES: Final = {
    "document": {
        "document_no": "int4",
        "source": "text",
        "title": "text",
        "metadata": "jsonb",
        "content_hash": "bytea",
        "extractor": "text",
        "task_id": "int8",
    },
    "chunk": {
        "document_no": "int4",
        "ordinal": "int4",
        "heading_path": "text[]",
        "content": "text",
        "start_offset": "int8",
        "end_offset": "int8",
        "event_title": "text",
        "event_content": "text",
        "event_embedding": "halfvec",
        "chunk_embedding": "halfvec",
        "answer_key": "bytea",
    },
    "entity": {
        "document_no": "int4",
        "ordinal": "int4",
        "name": "text",
        "type": "text",
        "is_subject": "bool",
        "role": "text",
        "alias_of": "text",
        "embedding": "halfvec",
    },
    "failure": {"document_no": "int4", "ordinal": "int4", "error": "text", "hint": "text"},
}


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of a document: state is "added", "replaced", "unchanged" or "superseded"."""

    source: str
    state: str
    chunk_count: int


@dataclass(frozen=True, slots=True)
class _Document:
    row: tuple[Any, ...]
    start: int
    end: int


def hold_embedding_space(
    connection: psycopg.Connection[Any], collection: str, model: str, dimensions: int
) -> None:
    """Keep the database from changing its embedding model until the transaction ends.

    Args:
        connection: A connection in a transaction.
        collection: The collection that is to get vectors, which is held too.
        model: Name of the model that makes them.
        dimensions: Their length.

    Raises:
        psycopg.Error: The database holds vectors of another model.
    """
    connection.execute("SELECT FROM sag.lock_collection(%s)", [collection])
    connection.execute("SELECT FROM sag.check_embedding_space(%s, %s)", [model, dimensions])


class Batch:
    """Documents with their chunks and entities, spooled to disk when there are many.

    Rows of a document are added between `open_document` and `close_document`; a document that
    fails on the way is dropped by `abandon_document` without a trace.
    """

    def __init__(self) -> None:
        # Unlinked by the system when the process ends, however it ends.
        self._spool = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115
        self._documents: list[_Document] = []
        self._start = 0
        self.chunk_count = 0

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def sources(self) -> list[str]:
        """Sources of the documents, in order."""
        return [document.row[1] for document in self._documents]

    @property
    def task_ids(self) -> list[int]:
        """Tasks of the documents that have one, in order."""
        return [document.row[-1] for document in self._documents if document.row[-1] is not None]

    def open_document(self) -> int:
        """Begin a document and return its number, the first column of its rows."""
        self._start = self._spool.tell()
        return len(self._documents)

    def add_rows(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows of the open document for the table "chunk", "entity" or "failure"."""
        pickle.dump((table, list(rows)), self._spool, pickle.HIGHEST_PROTOCOL)

    def close_document(
        self,
        source: str,
        title: str,
        metadata: Jsonb,
        content_hash: bytes,
        extractor: str,
        chunk_count: int,
        *,
        task_id: int | None = None,
        failures: Sequence[tuple[int, str, str | None]] = (),
    ) -> None:
        """End the open document.

        Args:
            source: The document's key.
            title: Its title.
            metadata: Its metadata.
            content_hash: What tells its content, and how it was processed, from others.
            extractor: Name of what made its events.
            chunk_count: Number of its chunks.
            task_id: Its task in the queue; None where it is not from there.
            failures: Ordinal of each chunk for which a model failed, how, and what would be right.
        """
        number = len(self._documents)
        if failures:
            self.add_rows("failure", ((number, *failure) for failure in failures))
        row = (
            number,
            source,
            title,
            metadata,
            content_hash,
            extractor,
            task_id,
        )
        self._documents.append(_Document(row, self._start, self._spool.tell()))
        self.chunk_count += chunk_count

    def abandon_document(self) -> None:
        """Drop what was added for the open document."""
        self._spool.seek(self._start)
        self._spool.truncate()

    def merge(
        self,
        connection: psycopg.Connection[Any],
        collection: str,
        worker_id: int | None = None,
        only: int | None = None,
    ) -> list[Merged]:
        """Copy the batch into temporary tables and merge it; within the caller's transaction.

        Args:
            connection: A connection with the vector types registered, in a transaction.
            collection: The collection to merge into.
            worker_id: The worker that has the documents' tasks.
            only: Number of the one document to take; all by default.

        Returns:
            What became of each document, in order.
        """
        documents = self._documents if only is None else [self._documents[only]]
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM sag.begin_batch()")
            self._copy(cursor, "document", (document.row for document in documents))
            for table in ("chunk", "entity", "failure"):
                self._copy(cursor, table, self._rows(table, documents))
            cursor.execute(
                "SELECT source, state, chunk_count FROM sag.merge_batch(%s, %s)",
                [collection, worker_id],
            )
            return [Merged(*row) for row in cursor]

    def clear(self) -> None:
        """Forget all documents."""
        self._documents.clear()
        self._spool.seek(0)
        self._spool.truncate()
        self.chunk_count = 0

    def close(self) -> None:
        """Give the spool back."""
        self._spool.close()

    @staticmethod
    def _copy(cursor: psycopg.Cursor[Any], table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        columns = _TABLES[table]
        query = f"COPY pg_temp.sag_batch_{table} ({', '.join(columns)}) FROM STDIN (FORMAT binary)"
        with cursor.copy(query) as copy:
            copy.set_types(list(columns.values()))
            for row in rows:
                copy.write_row(row)

    def _rows(self, table: str, documents: list[_Document]) -> Iterator[tuple[Any, ...]]:
        for document in documents:
            self._spool.seek(document.start)
            while self._spool.tell() < document.end:
                # The spool is this process's own unlinked file.
                kind, rows = pickle.load(self._spool)  # noqa: S301
                if kind == table:
                    yield from rows
