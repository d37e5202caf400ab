"""The ingest: documents in, events and entities out, in batches that are merged whole.

Everything that takes time, which is hashing, chunking, extraction and embedding, happens outside
of any transaction. A transaction then only copies what is ready and merges it, so that a run that
is stopped at any moment has merged some documents whole and others not at all.

A model may fail for some chunks of a document. The document is merged all the same, so that its
text is found, but under a hash that its content does not have, so that the next run takes it up
again. What a language model answers is stored at once, so that no run pays for it twice.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import psycopg
from pgvector import HalfVector
from psycopg import errors

from sag_pg.database import explain_error
from sag_pg.errors import (
    BudgetExhaustedError,
    DatabaseError,
    EndpointDownError,
    EndpointRefusedError,
    InputRejectedError,
    LoadError,
    ModelError,
    SagError,
)
from sag_pg.ingest.batch import Batch
from sag_pg.ingest.chunking import Chunk, chunk
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.stored_extraction import StoredExtractor
from sag_pg.models.base import CostlyExtractor, EmbeddingModel, Extraction, Extractor, Passage
from sag_pg.models.budget import ModelUsage, Usage
from sag_pg.text import clean

_VERSION: Final = 1
# What goes to the models at once, of one document or of many.
_GROUP_CHUNKS: Final = 64
_GROUP_CHARACTERS: Final = 2**20
_BATCH_CHUNKS: Final = 1000
# What a slow model made, and somebody may have paid for, is not kept waiting for a full batch.
_BATCH_SECONDS: Final = 15.0
# An embedding model that gives no vector for so many groups in a row is down.
_MOST_EMBEDDING_FAILURES: Final = 3
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
        failed_chunks: Chunks of other documents for which a model failed.
        tokens: Tokens used so far, of questions to models and of their answers.
        bytes: Size of the documents dealt with, as far as it is known.
    """

    documents: int = 0
    chunks: int = 0
    failed: int = 0
    failed_chunks: int = 0
    tokens: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A document or chunk that failed: its source, what was wrong, and what would be right."""

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
        failed_chunks: Chunks of these for which a model failed: they are found by what could be
            read without it, and the same ingest tries their documents again.
        failures: Each failure of a document or chunk, in order.
        stopped: Why the run ended before all documents were taken, be it a budget or a model
            that is down; None where it did not. The same ingest goes on from there, and what a
            language model answered for documents that are not in yet is not asked for again.
        usage: What the models were asked.
        seconds: Time of the whole run.
        database_seconds: Time of that spent waiting for the database.
    """

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    failed: int = 0
    chunks: int = 0
    failed_chunks: int = 0
    failures: list[Failure] = field(default_factory=list)
    stopped: str | None = None
    usage: ModelUsage = field(default_factory=ModelUsage)
    seconds: float = 0.0
    database_seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether every document was taken and nothing of any failed."""
        return not (self.failed or self.failed_chunks or self.stopped)

    def summary(self) -> str:
        """Return the run in one line."""
        parts = [
            f"{self.added} added, {self.replaced} replaced, {self.unchanged} unchanged,"
            f" {self.failed} failed",
            f"{self.chunks} chunks in {self.seconds:.1f} s,"
            f" {self.database_seconds:.1f} s of them in the database",
        ]
        if self.failed_chunks:
            parts.append(f"models failed for {self.failed_chunks} chunks")
        if self.usage.requests:
            parts.append(describe_usage(self.usage))
        return "; ".join(parts)


def describe_usage(usage: ModelUsage) -> str:
    """Return what models were asked in a few words."""
    tokens = usage.prompt_tokens + usage.completion_tokens
    estimated = f", {usage.estimated_tokens} of them estimated" if usage.estimated_tokens else ""
    return f"{usage.requests} requests to models, {tokens} tokens{estimated}"


def ingest(
    connection: psycopg.Connection[Any],
    documents: Iterable[SourceDocument | LoadFailure],
    *,
    collection: str,
    extractor: Extractor,
    embedding_model: EmbeddingModel | None,
    max_characters: int | None = 1200,
    embed_entities: bool = False,
    usage: Usage | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Report:
    """Bring documents into a collection.

    A document that is there with the same content, processed in the same way, costs nothing but
    a hash; one with other content is replaced in one transaction. A document that fails is
    recorded and the others go on; a chunk for which a model fails keeps its text. Where a budget
    is used up or a model is down, what is ready is merged and the report says that the run
    stopped.

    Args:
        connection: A connection in autocommit mode with the vector types registered.
        documents: What `load_paths` yields.
        collection: Name of an existing collection.
        extractor: Finds events and entities. The answers of a `CostlyExtractor` are stored as they
            arrive.
        embedding_model: Embeds events; None leaves them to lexical retrieval.
        max_characters: Longest chunk; None makes each document one chunk.
        embed_entities: Whether to embed the entities' names too, so that names link to their
            neighbours by vector. It takes about as long again as embedding the events.
        usage: What the models count their requests and tokens with; None where they count none.
        progress: Called whenever something got done.

    Returns:
        What was done.

    Raises:
        DatabaseError: The connection was lost. What was merged stays, and the same call goes on
            from there.
        EndpointRefusedError: An endpoint does not take the key, does not know the model or wants
            money. What was ready is merged.
        ModelError: A model cannot be used at all. What was ready is merged.
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
        usage or Usage(),
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


@dataclass(slots=True)
class _Part:
    """Consecutive chunks of one document that go to the models together.

    Attributes:
        pending: The document.
        chunks: The chunks; none where the document has none or could not be read on.
        is_last: Whether the document ends here.
        error: Why it could not be read on; it ends here then.
    """

    pending: _Pending
    chunks: list[Chunk] = field(default_factory=list)
    is_last: bool = False
    error: SagError | None = None


@dataclass(slots=True)
class _Current:
    """The document whose chunks are on their way into the batch."""

    number: int
    chunk_count: int = 0
    failures: list[Failure] = field(default_factory=list)
    failed_ordinals: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A chunk with what the models made of it.

    Attributes:
        chunk: The chunk.
        event_title: Title of its event.
        extraction: Its event and entities.
        event_vector: Of the event's text.
        chunk_vector: Of the chunk's own text, where the event has another one.
        name_vectors: Of the entities' names, where they are embedded.
        answer_key: Where the model's answer is stored, under which key.
        failure: Where a model failed for the chunk, how.
    """

    chunk: Chunk
    event_title: str
    extraction: Extraction
    event_vector: HalfVector | None
    chunk_vector: HalfVector | None
    name_vectors: Mapping[str, HalfVector | None]
    answer_key: bytes | None
    failure: ModelError | None


# What became of a text to be embedded; None where there is none, or none that the model knows.
_Embedded: TypeAlias = HalfVector | ModelError | None


class _Run:
    def __init__(
        self,
        connection: psycopg.Connection[Any],
        collection: str,
        extractor: Extractor,
        embedding_model: EmbeddingModel | None,
        max_characters: int | None,
        embed_entities: bool,
        usage: Usage,
        notify: Callable[[Progress], None],
    ) -> None:
        self.connection = connection
        self.collection = collection
        self.stored = (
            StoredExtractor(extractor, collection, self._call)
            if isinstance(extractor, CostlyExtractor)
            else None
        )
        self.extractor = self.stored or extractor
        self.embedding_model = embedding_model
        self.max_characters = max_characters
        self.embed_entities = embed_entities
        self.usage = usage
        self.notify = notify
        self.progress = Progress()
        self.report = Report()
        self.batch = Batch()
        self.merged_at = time.monotonic()
        self.current: _Current | None = None
        # Sources of the batch for whose chunks a model failed, and how.
        self.incomplete: dict[str, str] = {}
        self.embedding_failures = 0
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
            try:
                for window in self._windows(documents):
                    self._take(window)
                state = "finished"
            except (BudgetExhaustedError, EndpointDownError) as error:
                self.report.stopped = " ".join(filter(None, (str(error), error.hint)))
            # After what no later document can mend, what is ready is merged too: it may have been
            # paid for.
            except ModelError:
                self._flush()
                raise
            self._flush()
        finally:
            if not self.connection.broken:
                self._call(
                    "SELECT FROM sag.finish_job(%s, %s, %s)", [self.collection, self.job_id, state]
                )
        self._maintain()
        self.report.usage = self.usage.total
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
        changed = []
        for pending in window:
            if pending.document.source in unchanged:
                self._count(pending.document.size)
            else:
                changed.append(pending)
        for group in self._groups(changed):
            self._process(group)

    def _groups(self, documents: Iterable[_Pending]) -> Iterator[list[_Part]]:
        """Chunk the documents, and gather as many chunks as are worth one call of the models."""
        group: list[_Part] = []
        count = characters = 0
        for pending in documents:
            part = _Part(pending)
            try:
                for each in chunk(
                    pending.read(),
                    markdown=pending.document.markdown,
                    max_characters=self.max_characters,
                ):
                    if count >= _GROUP_CHUNKS or characters >= _GROUP_CHARACTERS:
                        yield [*group, part] if part.chunks else group
                        group, part, count, characters = [], _Part(pending), 0, 0
                    part.chunks.append(each)
                    count += 1
                    characters += len(each.content)
            except SagError as error:
                part.error = error
            part.is_last = True
            group.append(part)
        if group:
            yield group

    def _process(self, group: list[_Part]) -> None:
        """Extract and embed the chunks of a group, and put them into the batch."""
        ready = iter(self._ask_models(group))
        is_due = time.monotonic() - self.merged_at >= _BATCH_SECONDS
        ends = [number for number, part in enumerate(group) if part.is_last]
        for number, part in enumerate(group):
            if self.current is None:
                self.current = self._begin(part.pending.document)
            self._add(part.pending.document, self.current, [next(ready) for _ in part.chunks])
            if part.is_last:
                self._end(part, self.current)
                self.current = None
                if self.batch.chunk_count >= _BATCH_CHUNKS or (is_due and number == ends[-1]):
                    self._flush()
        self.progress.tokens = self.usage.tokens
        self.notify(self.progress)

    def _ask_models(self, group: list[_Part]) -> list[_Ready]:
        chunks = [each for part in group for each in part.chunks]
        if not chunks:
            return []
        passages = [
            Passage(part.pending.document.title, each.content, each.heading_path)
            for part in group
            for each in part.chunks
        ]
        extractions = self.extractor.extract(passages)
        both = list(zip(passages, extractions, strict=True))
        names = list(self._names(extractions))
        embedded = self._embed(
            [
                *(_event_text(passage, extraction) for passage, extraction in both),
                # A chunk whose own text is its event needs no vector of its own.
                *(
                    passage.titled_text if extraction.event_text is not None else None
                    for passage, extraction in both
                ),
                *names,
            ]
        )
        count = len(chunks)
        by_name = dict(zip(names, embedded[2 * count :], strict=True))
        name_vectors = {name: _vector(outcome) for name, outcome in by_name.items()}
        return [
            _Ready(
                each,
                _event_title(passage, extraction),
                extraction,
                _vector(of_event),
                _vector(of_chunk),
                name_vectors,
                self.stored.answer_key(passage) if self.stored is not None else None,
                _failure(
                    extraction,
                    [of_event, of_chunk, *(by_name.get(e.name) for e in extraction.entities)],
                ),
            )
            for each, (passage, extraction), of_event, of_chunk in zip(
                chunks, both, embedded[:count], embedded[count : 2 * count], strict=True
            )
        ]

    def _begin(self, document: SourceDocument) -> _Current:
        # Of a source that comes twice, the later content replaces the earlier.
        if document.source in self.batch.sources:
            self._flush()
        return _Current(self.batch.open_document())

    def _add(self, document: SourceDocument, current: _Current, ready: list[_Ready]) -> None:
        self.batch.add_rows(
            "chunk",
            (
                (
                    current.number,
                    each.chunk.ordinal,
                    list(each.chunk.heading_path),
                    each.chunk.content,
                    each.chunk.start_offset,
                    each.chunk.end_offset,
                    each.event_title,
                    each.extraction.event_text,
                    each.event_vector,
                    each.chunk_vector,
                    each.answer_key,
                )
                for each in ready
            ),
        )
        self.batch.add_rows(
            "entity",
            (
                (current.number, each.chunk.ordinal, *row)
                for each in ready
                for row in _entity_rows(each)
            ),
        )
        for each in ready:
            if each.failure is not None:
                message = clean(f"chunk {each.chunk.ordinal}: {each.failure}")
                current.failures.append(
                    Failure(_shown(document.source), message, each.failure.hint)
                )
                current.failed_ordinals.append(each.chunk.ordinal)
        current.chunk_count += len(ready)
        self.progress.chunks += len(ready)
        self.progress.failed_chunks += sum(each.failure is not None for each in ready)

    def _end(self, part: _Part, current: _Current) -> None:
        document = part.pending.document
        error = part.error
        if error is None and current.chunk_count == 0:
            error = LoadError(f"{document.source} holds no text.", "Leave it out, or fill it.")
        if error is not None:
            self.batch.abandon_document()
            self._fail(document.source, error, document.size)
            return
        content_hash = part.pending.content_hash
        if current.failures:
            self.report.failures += current.failures
            self.report.failed_chunks += len(current.failures)
            self.incomplete[document.source] = (
                f"models failed for {len(current.failures)} of {current.chunk_count} chunks;"
                f" {current.failures[0].message}"
            )
            # The same chunks failing again is no change; others are.
            content_hash += repr(current.failed_ordinals).encode()
            content_hash = hashlib.sha256(content_hash).digest()
        self.batch.close_document(
            document.source,
            document.title,
            document.metadata,
            content_hash,
            self.extractor.name,
            current.chunk_count,
            is_complete=not current.failures,
        )
        self._count(document.size)

    def _embed(self, texts: Sequence[str | None]) -> list[_Embedded]:
        """Embed those texts that are there and whose script the model knows."""
        embedded: list[_Embedded] = [None] * len(texts)
        model = self.embedding_model
        if model is None:
            return embedded
        known = {
            no: text for no, text in enumerate(texts) if text is not None and model.knows(text)
        }
        for no, outcome in zip(known, self._try_to_embed(model, [*known.values()]), strict=True):
            embedded[no] = outcome
        return embedded

    def _try_to_embed(self, model: EmbeddingModel, texts: list[str]) -> Sequence[_Embedded]:
        """Embed texts; those for which the model fails get its error."""
        if not texts:
            return []
        embedded: Sequence[_Embedded]
        try:
            embedded = _embed_accepted(model, texts)
        except (BudgetExhaustedError, EndpointRefusedError):
            raise
        except ModelError as error:
            embedded = [error] * len(texts)
        failures = [outcome for outcome in embedded if isinstance(outcome, ModelError)]
        # Of a model that refuses every text it is no text that is at fault.
        if len(failures) < len(texts):
            self.embedding_failures = 0
            return embedded
        self.embedding_failures += 1
        if self.embedding_failures == _MOST_EMBEDDING_FAILURES:
            last = failures[-1]
            raise EndpointDownError(
                f"The embedding model {model.name} failed for {_MOST_EMBEDDING_FAILURES} groups of"
                f" chunks in a row, the last time because: {last}",
                last.hint,
            ) from last
        return embedded

    def _names(self, extractions: Iterable[Extraction]) -> dict[str, None]:
        """The names to embed, each once and in order."""
        if not self.embed_entities:
            return {}
        return dict.fromkeys(
            entity.name for extraction in extractions for entity in extraction.entities
        )

    def _flush(self) -> None:
        """Merge the batch; where the database refuses it, each of its documents alone."""
        self.merged_at = time.monotonic()
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
        self.incomplete.clear()
        self.notify(self.progress)

    def _merge(self, only: int | None) -> None:
        for attempt in range(1, _MERGE_TRIES + 1):
            try:
                with self.connection.transaction():
                    merged = self.batch.merge(self.connection, self.collection, only)
                    self._record(
                        [
                            (
                                each.source,
                                each.state,
                                each.chunk_count,
                                self.incomplete.get(each.source),
                            )
                            for each in merged
                        ]
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


def _embed_accepted(model: EmbeddingModel, texts: list[str]) -> list[_Embedded]:
    """Embed texts; where the model refuses some, the others without them."""
    try:
        return list(map(HalfVector, model.embed_passages(texts)))
    except InputRejectedError as error:
        if len(texts) == 1:
            return [error]
    middle = len(texts) // 2
    return [*_embed_accepted(model, texts[:middle]), *_embed_accepted(model, texts[middle:])]


def _vector(embedded: _Embedded) -> HalfVector | None:
    return embedded if isinstance(embedded, HalfVector) else None


def _failure(extraction: Extraction, embedded: Iterable[_Embedded]) -> ModelError | None:
    """How a model failed for a chunk, by what became of it and of its texts."""
    if extraction.failure is not None:
        return ModelError(extraction.failure)
    for outcome in embedded:
        if isinstance(outcome, ModelError):
            return ModelError(f"not embedded: {outcome}", outcome.hint)
    return None


def _entity_rows(ready: _Ready) -> Iterator[tuple[Any, ...]]:
    """Rows of the table "entity" after document and ordinal: each entity, then its aliases."""
    for entity in ready.extraction.entities:
        vector = ready.name_vectors.get(entity.name)
        yield (entity.name, entity.type, entity.is_subject, entity.role, None, vector)
        for alias in entity.aliases:
            yield (alias, entity.type, False, None, entity.name, None)


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
