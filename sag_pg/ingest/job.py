"""The ingest: documents in, events and entities out, in batches that are merged whole.

Everything that takes time, which is hashing, chunking, extraction and embedding, happens outside
of any transaction. A transaction then only copies what is ready and merges it, so that a run that
is stopped at any moment has merged some documents whole and others not at all.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import psycopg
from pgvector import HalfVector
from psycopg import errors

from sag_pg.database import explain_error
from sag_pg.errors import DatabaseError, LoadError, SagError
from sag_pg.ingest.batch import Batch
from sag_pg.ingest.chunking import Chunk, chunk
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.models.base import EmbeddingModel, Extraction, Extractor, Passage

_VERSION: Final = 1
_GROUP_CHUNKS: Final = 64
_BATCH_CHUNKS: Final = 1000
_WINDOW_DOCUMENTS: Final = 256
_WINDOW_CHARACTERS: Final = 8 * 2**20
_KEPT_CHARACTERS: Final = 2**20
_SOURCE_BYTES: Final = 2000
_MERGE_TRIES: Final = 5
_VACUUM_CHUNKS: Final = 500
_ALREADY_HERE: Final = "unchanged"
# What one document can be refused for; anything else is a fault of the run.
_REFUSALS: Final = (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded)


@dataclass(slots=True)
class Progress:
    """How far a run is; one object that changes while it runs.

    Attributes:
        documents: Documents dealt with, whatever became of them.
        chunks: Chunks extracted and embedded.
        failed: Documents that failed.
        bytes: Size of the documents dealt with, as far as it is known.
    """

    documents: int = 0
    chunks: int = 0
    failed: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A document that failed: its source, what was wrong, and what would be right."""

    source: str
    message: str
    hint: str | None

    def __str__(self) -> str:
        # The loaders' messages begin with the file, and the line where there is one.
        if self.message.startswith(self.source):
            return self.message
        return f"{self.source}: {self.message}"


@dataclass(slots=True)
class Report:
    """What a run did.

    Attributes:
        added: Documents that are new.
        replaced: Documents whose content had changed.
        unchanged: Documents that were there already.
        failed: Documents that failed; the others are in.
        chunks: Chunks of the documents added and replaced.
        failures: Each failure, in order.
        seconds: Time of the whole run.
        database_seconds: Time of that spent waiting for the database.
    """

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    failed: int = 0
    chunks: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    database_seconds: float = 0.0

    def summary(self) -> str:
        """Return the run in one line."""
        return (
            f"{self.added} added, {self.replaced} replaced, {self.unchanged} unchanged,"
            f" {self.failed} failed; {self.chunks} chunks in {self.seconds:.1f} s,"
            f" {self.database_seconds:.1f} s of them in the database"
        )


def ingest(
    connection: psycopg.Connection[Any],
    documents: Iterable[SourceDocument | LoadFailure],
    *,
    collection: str,
    extractor: Extractor,
    embedding_model: EmbeddingModel | None,
    max_characters: int | None = 1200,
    embed_entities: bool = False,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Report:
    """Bring documents into a collection.

    A document that is there with the same content, processed in the same way, costs nothing but
    a hash; one with other content is replaced in one transaction. A document that fails is
    recorded and the others go on.

    Args:
        connection: A connection in autocommit mode with the vector types registered.
        documents: What `load_paths` yields.
        collection: Name of an existing collection.
        extractor: Finds events and entities.
        embedding_model: Embeds events; None leaves them to lexical retrieval.
        max_characters: Longest chunk; None makes each document one chunk.
        embed_entities: Whether to embed the entities' names too, so that names link to their
            neighbours by vector. It takes about as long again as embedding the events.
        progress: Called whenever something got done.

    Returns:
        What was done.

    Raises:
        DatabaseError: The connection was lost. What was merged stays, and the same call goes on
            from there.
        psycopg.Error: The database refused the run as a whole, such as an unknown collection or
            another embedding model.
    """
    run = _Run(
        connection,
        collection,
        extractor,
        embedding_model,
        max_characters,
        embed_entities and embedding_model is not None,
        progress,
    )
    try:
        return run.run(documents)
    except psycopg.OperationalError as error:
        if not connection.broken:
            raise
        done = run.report.added + run.report.replaced
        raise DatabaseError(
            f"The connection to the database was lost after {done} documents were merged:"
            f" {explain_error(error)[0]}",
            "Nothing is half written. Run the same command again; it goes on from there.",
        ) from error
    finally:
        run.batch.close()


@dataclass(slots=True)
class _Pending:
    document: SourceDocument
    content_hash: bytes
    # The text, where it is small enough to be kept until it is chunked.
    pieces: list[str] | None

    def read(self) -> Iterable[str]:
        return self.pieces if self.pieces is not None else self.document.read()


class _Run:
    def __init__(
        self,
        connection: psycopg.Connection[Any],
        collection: str,
        extractor: Extractor,
        embedding_model: EmbeddingModel | None,
        max_characters: int | None,
        embed_entities: bool,
        notify: Callable[[Progress], None],
    ) -> None:
        self.connection = connection
        self.collection = collection
        self.extractor = extractor
        self.embedding_model = embedding_model
        self.max_characters = max_characters
        self.embed_entities = embed_entities
        self.notify = notify
        self.progress = Progress()
        self.report = Report()
        self.batch = Batch()
        self.job_id = 0
        embedding = embedding_model.name if embedding_model is not None else "none"
        self.fingerprint = json.dumps(
            [_VERSION, max_characters, extractor.name, embedding, embed_entities]
        )

    def run(self, documents: Iterable[SourceDocument | LoadFailure]) -> Report:
        started = time.perf_counter()
        if self.embedding_model is not None:
            self._call(
                "SELECT FROM sag.set_embedding_space(%s, %s)",
                [self.embedding_model.name, self.embedding_model.dimensions],
            )
        self.job_id = self._call("SELECT job FROM sag.start_job(%s) AS job", [self.collection])[0][
            0
        ]
        state = "failed"
        try:
            for window in self._windows(documents):
                self._take(window)
            self._flush()
            state = "finished"
        finally:
            if not self.connection.broken:
                self._call(
                    "SELECT FROM sag.finish_job(%s, %s, %s)", [self.collection, self.job_id, state]
                )
        self._maintain()
        self.report.seconds = time.perf_counter() - started
        return self.report

    def _call(self, query: str, arguments: list[Any]) -> list[tuple[Any, ...]]:
        started = time.perf_counter()
        try:
            cursor = self.connection.execute(query, arguments)
            return cursor.fetchall()
        finally:
            self.report.database_seconds += time.perf_counter() - started

    def _windows(
        self, documents: Iterable[SourceDocument | LoadFailure]
    ) -> Iterator[list[_Pending]]:
        """Hash the documents, and gather as many as are worth one question to the database."""
        window: list[_Pending] = []
        characters = 0
        for document in documents:
            if isinstance(document, LoadFailure):
                self._fail(document.source, document.error, None)
                continue
            try:
                pending = self._hash(document)
            except SagError as error:
                self._fail(document.source, error, document.size)
                continue
            window.append(pending)
            characters += sum(map(len, pending.pieces or ()))
            if len(window) >= _WINDOW_DOCUMENTS or characters >= _WINDOW_CHARACTERS:
                yield window
                window, characters = [], 0
        if window:
            yield window

    def _hash(self, document: SourceDocument) -> _Pending:
        length = len(document.source.encode())
        if not 0 < length <= _SOURCE_BYTES:
            raise LoadError(
                f"its source is {length} bytes long",
                f"Give it a source of 1 to {_SOURCE_BYTES} bytes.",
            )
        head = [self.fingerprint, document.title, document.metadata]
        digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
        pieces: list[str] | None = []
        kept = 0
        for piece in document.read():
            digest.update(piece.encode())
            kept += len(piece)
            if kept > _KEPT_CHARACTERS:
                pieces = None
            elif pieces is not None:
                pieces.append(piece)
        return _Pending(document, digest.digest(), pieces)

    def _take(self, window: list[_Pending]) -> None:
        unchanged = {
            row[0]
            for row in self._call(
                "SELECT source FROM sag.unchanged_sources(%s, %s, %s)",
                [
                    self.collection,
                    [pending.document.source for pending in window],
                    [pending.content_hash for pending in window],
                ],
            )
        }
        # Of a source that comes twice the database knows one content only.
        times = Counter(pending.document.source for pending in window)
        unchanged -= {source for source in unchanged if times[source] > 1}
        self.report.unchanged += len(unchanged)
        for pending in window:
            if pending.document.source in unchanged:
                self._count(pending.document.size)
                continue
            if pending.document.source in self.batch.sources:
                self._flush()
            self._process(pending)
            if self.batch.chunk_count >= _BATCH_CHUNKS:
                self._flush()

    def _process(self, pending: _Pending) -> None:
        """Chunk, extract and embed a document into the batch."""
        document = pending.document
        number = self.batch.open_document()
        count = 0
        try:
            chunks = chunk(
                pending.read(), markdown=document.markdown, max_characters=self.max_characters
            )
            while group := list(islice(chunks, _GROUP_CHUNKS)):
                self._process_group(document, number, group)
                count += len(group)
                self.progress.chunks += len(group)
                self.notify(self.progress)
            if count == 0:
                raise LoadError(f"{document.source} holds no text.", "Leave it out, or fill it.")
        except SagError as error:
            self.batch.abandon_document()
            self._fail(document.source, error, document.size)
            return
        self.batch.close_document(
            document.source, document.title, document.metadata, pending.content_hash, count
        )
        self._count(document.size)

    def _process_group(self, document: SourceDocument, number: int, group: list[Chunk]) -> None:
        passages = [Passage(document.title, each.content, each.heading_path) for each in group]
        extractions = self.extractor.extract(passages)
        events = [
            _event_text(passage, extraction)
            for passage, extraction in zip(passages, extractions, strict=True)
        ]
        event_vectors = self._embed(events)
        # A chunk whose own text is its event needs no vector of its own.
        chunk_vectors = self._embed(
            [
                passage.titled_text if extraction.event_text is not None else None
                for passage, extraction in zip(passages, extractions, strict=True)
            ]
        )
        self.batch.add_rows(
            "chunk",
            (
                (
                    number,
                    each.ordinal,
                    list(each.heading_path),
                    each.content,
                    each.start_offset,
                    each.end_offset,
                    _event_title(passage, extraction),
                    extraction.event_text,
                    event_vector,
                    chunk_vector,
                )
                for each, passage, extraction, event_vector, chunk_vector in zip(
                    group, passages, extractions, event_vectors, chunk_vectors, strict=True
                )
            ),
        )
        name_vectors = self._embed_names(extractions)
        self.batch.add_rows(
            "entity",
            (
                row
                for each, extraction in zip(group, extractions, strict=True)
                for entity in extraction.entities
                for row in (
                    (
                        number,
                        each.ordinal,
                        entity.name,
                        entity.type,
                        entity.is_subject,
                        entity.role,
                        None,
                        name_vectors.get(entity.name),
                    ),
                    *(
                        (number, each.ordinal, alias, entity.type, False, None, entity.name, None)
                        for alias in entity.aliases
                    ),
                )
            ),
        )

    def _embed(self, texts: Sequence[str | None]) -> list[HalfVector | None]:
        """Embed those texts that are there and whose script the model knows."""
        vectors: list[HalfVector | None] = [None] * len(texts)
        model = self.embedding_model
        if model is None:
            return vectors
        known = [no for no, text in enumerate(texts) if text is not None and model.knows(text)]
        if known:
            embedded = model.embed_passages([texts[no] or "" for no in known])
            for no, vector in zip(known, embedded, strict=True):
                vectors[no] = HalfVector(vector)
        return vectors

    def _embed_names(self, extractions: Sequence[Extraction]) -> dict[str, HalfVector | None]:
        if not self.embed_entities:
            return {}
        names = list(
            dict.fromkeys(
                entity.name for extraction in extractions for entity in extraction.entities
            )
        )
        return dict(zip(names, self._embed(names), strict=True))

    def _flush(self) -> None:
        """Merge the batch; where the database refuses it, each of its documents alone."""
        if len(self.batch) == 0:
            return
        started = time.perf_counter()
        try:
            try:
                self._merge(None)
            except _REFUSALS:
                for number, source in enumerate(self.batch.sources):
                    try:
                        self._merge(number)
                    except _REFUSALS as error:
                        message, hint = explain_error(error)
                        self._fail(source, LoadError(message, hint), None)
        finally:
            self.report.database_seconds += time.perf_counter() - started
        self.batch.clear()
        self.notify(self.progress)

    def _merge(self, only: int | None) -> None:
        for attempt in range(1, _MERGE_TRIES + 1):
            try:
                with self.connection.transaction():
                    merged = self.batch.merge(self.connection, self.collection, only)
                    self._record(
                        [(each.source, each.state, each.chunk_count, None) for each in merged]
                    )
                break
            except (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable):
                # Somebody else's statements may lock in another order than sag's functions.
                if attempt == _MERGE_TRIES:
                    raise
                time.sleep(0.1 * 2**attempt)
        for document in merged:
            if document.state == "added":
                self.report.added += 1
            elif document.state == "replaced":
                self.report.replaced += 1
            if document.state != _ALREADY_HERE:
                self.report.chunks += document.chunk_count
        self.report.unchanged += sum(document.state == _ALREADY_HERE for document in merged)

    def _record(self, tasks: list[tuple[str, str, int, str | None]]) -> None:
        sources, states, counts, reasons = map(list, zip(*tasks, strict=True))
        self.connection.execute(
            "SELECT FROM sag.record_tasks(%s, %s, %s, %s, %s::integer[], %s)",
            [self.collection, self.job_id, sources, states, counts, reasons],
        )

    def _fail(self, source: str, error: SagError, size: int | None) -> None:
        failure = Failure(_shown(source), str(error), error.hint)
        self.report.failed += 1
        self.report.failures.append(failure)
        self.progress.failed += 1
        self._record([(failure.source, "failed", 0, failure.message)])
        self._count(size)

    def _count(self, size: int | None) -> None:
        self.progress.documents += 1
        self.progress.bytes += size or 0
        self.notify(self.progress)

    def _maintain(self) -> None:
        """Let the planner and index-only scans know what came, without waiting for autovacuum."""
        if self.report.chunks < _VACUUM_CHUNKS:
            return
        started = time.perf_counter()
        if self._call("SELECT may FROM sag.is_maintainer() AS may", [])[0][0]:
            # No function can vacuum. Indexes are left to autovacuum: a pass over a large HNSW
            # index takes hours and is not needed for what was added.
            self.connection.execute(
                "VACUUM (ANALYZE, INDEX_CLEANUP OFF)"
                " sag.document, sag.chunk, sag.event, sag.entity, sag.event_entity"
            )
        self.report.database_seconds += time.perf_counter() - started


def _event_text(passage: Passage, extraction: Extraction) -> str:
    if extraction.event_text is None:
        return passage.titled_text
    return f"{_event_title(passage, extraction)}. {extraction.event_text}"


def _event_title(passage: Passage, extraction: Extraction) -> str:
    if extraction.event_title is not None:
        return extraction.event_title
    return passage.head


def _shown(source: str) -> str:
    return source if len(source) <= 200 else f"{source[:200]}…"
