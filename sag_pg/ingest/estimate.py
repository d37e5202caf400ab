"""What an ingest would cost, before it costs anything."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from sag_pg.errors import SagError
from sag_pg.ingest.chunking import Chunk, chunk
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.job import Progress
from sag_pg.ingest.processing import Processing
from sag_pg.ingest.queue import shown
from sag_pg.ingest.report import Failure
from sag_pg.ingest.stored_extraction import answer_key
from sag_pg.models.base import CostlyExtractor, Passage
from sag_pg.models.budget import estimate_tokens

_WINDOW_CHUNKS: Final = 512
_WINDOW_DOCUMENTS: Final = 256
# Documents of a .jsonl hold their text.
_WINDOW_BYTES: Final = 4 * 2**20
_MOST_FAILURES: Final = 1000


@dataclass(slots=True)
class Estimate:
    """What would be asked of models behind endpoints. Local models cost nothing.

    Tokens are estimates: about four bytes each, and for the answers what the prompt asks for.

    Attributes:
        documents: Documents that would be processed.
        unchanged: Documents that are there already.
        failed: Documents that cannot be read.
        chunks: Chunks of the documents that would be processed.
        stored_answers: Chunks whose answer is stored already, or asked for by another chunk.
        extraction_calls: Requests to the language model, without further tries.
        extraction_prompt_tokens: Tokens of these.
        extraction_completion_tokens: Tokens of its answers.
        embedding_texts: Texts to embed behind an endpoint.
        embedding_tokens: Tokens of these.
        failures: What cannot be read; the first thousand.
        warnings: What is wrong with documents that can be read; the first thousand.
    """

    documents: int = 0
    unchanged: int = 0
    failed: int = 0
    chunks: int = 0
    stored_answers: int = 0
    extraction_calls: int = 0
    extraction_prompt_tokens: int = 0
    extraction_completion_tokens: int = 0
    embedding_texts: int = 0
    embedding_tokens: int = 0
    failures: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """All tokens together."""
        return (
            self.extraction_prompt_tokens
            + self.extraction_completion_tokens
            + self.embedding_tokens
        )

    def summary(self) -> str:
        """Return the estimate in a few lines."""
        return "\n".join(
            (
                f"{self.documents} documents to process, {self.unchanged} unchanged,"
                f" {self.failed} unreadable; {self.chunks} chunks,"
                f" {self.stored_answers} of them answered already",
                f"language model: {self.extraction_calls} calls, about"
                f" {self.extraction_prompt_tokens} tokens in and"
                f" {self.extraction_completion_tokens} out",
                f"embedding endpoint: {self.embedding_texts} texts, about"
                f" {self.embedding_tokens} tokens",
            )
        )


def estimate(
    connection: psycopg.Connection[Any],
    documents: Iterable[SourceDocument | LoadFailure],
    collection: str,
    processing: Processing,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Estimate:
    """Count what the ingest of documents would ask of models, and ask nothing.

    Args:
        connection: The database, which knows what is there; nothing is written.
        documents: What `load_paths` yields.
        collection: Name of the collection; it need not exist.
        processing: How they would be processed.
        progress: Called for each document read.
    """
    counter = _Counter(connection, collection, processing)
    state = Progress()
    for document in documents:
        counter.add(document)
        state.documents += 1
        state.failed = counter.found.failed
        if isinstance(document, SourceDocument):
            state.bytes += document.size or 0
        progress(state)
    counter.finish()
    return counter.found


class _Counter:
    def __init__(
        self, connection: psycopg.Connection[Any], collection: str, processing: Processing
    ) -> None:
        self.found = Estimate()
        self._connection = connection
        self._collection = collection
        self._processing = processing
        self._exists = bool(
            connection.execute(
                "SELECT FROM sag.collection_statistics() AS c WHERE c.collection = %s", [collection]
            ).fetchall()
        )
        extractor = processing.extractor
        self._extractor = extractor if isinstance(extractor, CostlyExtractor) else None
        model = processing.embedding_model
        self._embeds = model if model is not None and model.name.startswith("openai:") else None
        # Documents by source, with their hashes, that may be there already.
        self._hashed: dict[str, tuple[SourceDocument, bytes]] = {}
        self._hashed_bytes = 0
        # Chunks with the same passage are asked for once.
        self._asked: set[bytes] = set()
        self._window: dict[bytes, Passage] = {}

    def add(self, document: SourceDocument | LoadFailure) -> None:
        if isinstance(document, LoadFailure):
            self._fail(document.source, document.error)
            return
        try:
            content_hash = self._hash(document)
        except SagError as error:
            self._fail(document.source, error)
            return
        if document.warning and len(self.found.warnings) < _MOST_FAILURES:
            self.found.warnings.append(document.warning)
        if document.source in self._hashed:
            self._count_changed()
        self._hashed[document.source] = (document, content_hash)
        self._hashed_bytes += document.size or 0
        if len(self._hashed) >= _WINDOW_DOCUMENTS or self._hashed_bytes >= _WINDOW_BYTES:
            self._count_changed()

    def finish(self) -> None:
        """Count what was kept, so as to ask the database for much at once."""
        self._count_changed()
        self._count_asked()

    def _count_changed(self) -> None:
        """Count those documents that are not there as they are."""
        known = self._unchanged()
        for document, _ in self._hashed.values():
            if document.source in known:
                self.found.unchanged += 1
                continue
            before = self.found.chunks
            try:
                for each in self._chunks(document):
                    self._add_chunk(document, each)
            except SagError as error:
                self._fail(document.source, error)
            else:
                self.found.documents += self.found.chunks > before
        self._hashed.clear()
        self._hashed_bytes = 0

    def _count_asked(self) -> None:
        """Find which passages of the window have an answer; the others would be asked for."""
        if not self._window or self._extractor is None:
            return
        known = set()
        if self._exists:
            rows = self._connection.execute(
                "SELECT answer_key FROM sag.known_answers(%s, %s)",
                [self._collection, list(self._window)],
            )
            known = {row[0] for row in rows}
        self.found.stored_answers += len(known)
        for key, passage in self._window.items():
            if key not in known:
                prompt, completion = self._extractor.expected_tokens(passage)
                self.found.extraction_calls += 1
                self.found.extraction_prompt_tokens += prompt
                self.found.extraction_completion_tokens += completion
        self._window.clear()

    def _hash(self, document: SourceDocument) -> bytes:
        digest = self._processing.begin_hash(document)
        for piece in document.read():
            digest.update(piece.encode())
        return digest.digest()

    def _unchanged(self) -> set[str]:
        """Return the sources of those documents that are there as they are."""
        if not (self._exists and self._hashed):
            return set()
        hashes = [content_hash for _, content_hash in self._hashed.values()]
        rows = self._connection.execute(
            "SELECT source FROM sag.unchanged_sources(%s, %s, %s)",
            [self._collection, list(self._hashed), hashes],
        )
        return {row[0] for row in rows}

    def _chunks(self, document: SourceDocument) -> Iterator[Chunk]:
        return chunk(
            document.read(),
            markdown=document.markdown,
            max_characters=self._processing.max_characters,
        )

    def _add_chunk(self, document: SourceDocument, each: Chunk) -> None:
        self.found.chunks += 1
        passage = Passage(document.title, each.content, each.heading_path)
        if self._embeds is not None and self._embeds.knows(passage.titled_text):
            # With a language model the event has a text of its own, about as long.
            texts = 2 if self._extractor is not None else 1
            self.found.embedding_texts += texts
            self.found.embedding_tokens += texts * estimate_tokens(passage.titled_text)
        if self._extractor is None:
            return
        shown_title = document.title if document.title_stated else ""
        asked = Passage(shown_title, each.content, each.heading_path)
        key = answer_key(self._extractor.name, asked)
        if key in self._asked:
            self.found.stored_answers += 1
            return
        self._asked.add(key)
        self._window[key] = asked
        if len(self._window) >= _WINDOW_CHUNKS:
            self._count_asked()

    def _fail(self, source: str, error: SagError) -> None:
        self.found.failed += 1
        if len(self.found.failures) < _MOST_FAILURES:
            self.found.failures.append(Failure(shown(source), str(error), error.hint))
