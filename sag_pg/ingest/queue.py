"""Puts documents into the queue: phase one of an ingest, and all of it that reads files."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.types.json import Jsonb

from sag_pg.database import explain_error
from sag_pg.errors import LoadError, SagError
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.processing import Processing
from sag_pg.ingest.session import Session

_WINDOW_DOCUMENTS: Final = 256
_WINDOW_CHARACTERS: Final = 4 * 2**20
# A longer text goes into the database in pieces, and is never whole in memory.
KEPT_CHARACTERS: Final = 2**20
_PIECE_CHARACTERS: Final = 2**18
_SOURCE_BYTES: Final = 2000
_SHOWN_CHARACTERS: Final = 200
_MOST_WARNINGS: Final = 1000
# What one document can be refused for; anything else is a fault of the run.
REFUSALS: Final = (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded)


@dataclass(slots=True)
class Queued:
    """How far the queueing is; one object that changes.

    Attributes:
        documents: Documents taken, whatever became of them.
        waiting: Those of them that are in the queue now.
        adopted: Those of these that were there already, of another job or of this one.
        failed: Those that could not be read.
        bytes: Size of the documents taken, as far as it is known.
        warnings: What is wrong with documents that could be read; the first thousand.
    """

    documents: int = 0
    waiting: int = 0
    adopted: int = 0
    failed: int = 0
    bytes: int = 0
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Pending:
    document: SourceDocument
    content_hash: bytes
    characters: int
    # The text, where it is small enough to be kept.
    content: str | None


class Queue:
    """The queue of a job, for whoever has documents for it.

    Args:
        session: The database.
        collection: Name of an existing collection.
        job_id: The job.
        processing: How the documents are to be processed.
        max_attempts: How often a document is tried before it counts as failed.
        progress: Called whenever documents were taken.
    """

    def __init__(
        self,
        session: Session,
        collection: str,
        job_id: int,
        processing: Processing,
        max_attempts: int,
        progress: Callable[[Queued], None],
    ) -> None:
        self._session = session
        self._collection = collection
        self._job_id = job_id
        self._processing = processing
        self._max_attempts = max_attempts
        self._notify = progress
        self._queued = Queued()

    def add(self, documents: Iterable[SourceDocument | LoadFailure]) -> Queued:
        """Queue those documents that are not in the collection as they are.

        A document that cannot be read is recorded as failed, and the others go on.

        Returns:
            What became of all of them.

        Raises:
            DatabaseError: The database was lost.
            psycopg.Error: The database refused all of it, such as for a missing right.
        """
        window: list[_Pending] = []
        characters = 0
        for document in documents:
            if isinstance(document, LoadFailure):
                self._fail(document.source, document.error)
                self._count(None)
                continue
            try:
                pending = self._hash(document)
            except SagError as error:
                self._fail(document.source, error)
                self._count(document.size)
                continue
            if document.warning and len(self._queued.warnings) < _MOST_WARNINGS:
                self._queued.warnings.append(document.warning)
            if pending.content is None:
                self._send([pending])
                continue
            window.append(pending)
            characters += pending.characters
            if len(window) >= _WINDOW_DOCUMENTS or characters >= _WINDOW_CHARACTERS:
                self._send(window)
                window, characters = [], 0
        if window:
            self._send(window)
        return self._queued

    def _hash(self, document: SourceDocument) -> _Pending:
        length = len(document.source.encode())
        if not 0 < length <= _SOURCE_BYTES:
            raise LoadError(
                f"its source is {length} bytes long",
                f"Give it a source of 1 to {_SOURCE_BYTES} bytes.",
            )
        digest = self._processing.begin_hash(document)
        pieces: list[str] | None = []
        characters = 0
        is_blank = True
        for piece in document.read():
            digest.update(piece.encode())
            characters += len(piece)
            is_blank = is_blank and piece.isspace()
            if characters > KEPT_CHARACTERS:
                pieces = None
            elif pieces is not None:
                pieces.append(piece)
        if is_blank:
            raise LoadError(f"{document.source} holds no text.", "Leave it out, or fill it.")
        content = "".join(pieces) if pieces is not None else None
        return _Pending(document, digest.digest(), characters, content)

    def _send(self, window: list[_Pending]) -> None:
        """Queue documents together; where the database refuses them, each alone."""
        try:
            outcomes = self._session.transact(lambda connection: self._queue(connection, window))
        except (*REFUSALS, LoadError) as error:
            if len(window) > 1:
                for pending in window:
                    self._send([pending])
                return
            if isinstance(error, psycopg.Error):
                error = LoadError(*explain_error(error))
            self._fail(window[0].document.source, error)
            outcomes = []
        self._queued.waiting += sum(outcome != "unchanged" for outcome in outcomes)
        self._queued.adopted += outcomes.count("adopted")
        for pending in window:
            self._count(pending.document.size)

    def _queue(self, connection: psycopg.Connection[Any], window: list[_Pending]) -> list[str]:
        documents = [pending.document for pending in window]
        rows = connection.execute(
            "SELECT task_id, outcome FROM sag.queue_documents("
            "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::bigint[], %s) ORDER BY place",
            [
                self._collection,
                self._job_id,
                [document.source for document in documents],
                [document.title for document in documents],
                [document.title_stated for document in documents],
                [document.markdown for document in documents],
                [Jsonb(document.metadata) for document in documents],
                [pending.content_hash for pending in window],
                [pending.content for pending in window],
                [pending.characters for pending in window],
                self._max_attempts,
            ],
        ).fetchall()
        for pending, (task_id, outcome) in zip(window, rows, strict=True):
            if pending.content is None and outcome == "queued":
                self._copy_text(connection, task_id, pending)
        return [outcome for _, outcome in rows]

    def _copy_text(
        self, connection: psycopg.Connection[Any], task_id: int, pending: _Pending
    ) -> None:
        digest = self._processing.begin_hash(pending.document)
        (row,) = connection.execute("SELECT sag.collection_key(%s)", [self._collection]).fetchall()
        with (
            connection.cursor() as cursor,
            cursor.copy(
                "COPY sag.ingest_piece (collection_id, task_id, piece_no, content) FROM STDIN"
            ) as copy,
        ):
            number = 0
            for piece in pending.document.read():
                digest.update(piece.encode())
                for start in range(0, len(piece), _PIECE_CHARACTERS):
                    part = piece[start : start + _PIECE_CHARACTERS]
                    copy.write_row((row[0], task_id, number, part))
                    number += 1
        if digest.digest() != pending.content_hash:
            # Its hash would vouch for a text that is not in the database.
            raise LoadError(
                f"{pending.document.source} changed while it was read.",
                "Ingest it again when nobody writes it any more.",
            )

    def _fail(self, source: str, error: SagError) -> None:
        self._session.call(
            "SELECT FROM sag.record_failure(%s, %s, %s, %s, %s)",
            [self._collection, self._job_id, shown(source), str(error), error.hint],
        )
        self._queued.failed += 1

    def _count(self, size: int | None) -> None:
        self._queued.documents += 1
        self._queued.bytes += size or 0
        self._notify(self._queued)


def shown(source: str) -> str:
    """Return a source as far as it is shown."""
    if len(source) <= _SHOWN_CHARACTERS:
        return source
    return f"{source[:_SHOWN_CHARACTERS]}…"
