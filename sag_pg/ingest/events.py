"""Makes events of chunks: what the models find in them, and the vectors of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from pgvector import HalfVector

from sag_pg.errors import (
    BudgetExhaustedError,
    EndpointDownError,
    EndpointRefusedError,
    InputRejectedError,
    ModelError,
)
from sag_pg.ingest.chunking import Chunk
from sag_pg.ingest.processing import Processing
from sag_pg.ingest.stored_extraction import StoredExtractor
from sag_pg.models.base import EmbeddingModel, Extraction, Passage

# An embedding model that gives no vector for so many groups in a row is down.
_MOST_EMBEDDING_FAILURES: Final = 3

# What became of a text to be embedded; None where there is none, or none that the model knows.
_Embedded: TypeAlias = HalfVector | ModelError | None


@dataclass(frozen=True, slots=True)
class TitledChunk:
    """A chunk and the title of its document.

    Attributes:
        chunk: The chunk.
        title: The document's title.
        title_stated: Whether the title is more than the name of a file.
    """

    chunk: Chunk
    title: str
    title_stated: bool

    @property
    def passage(self) -> Passage:
        """The chunk as the models see it."""
        return Passage(self.title, self.chunk.content, self.chunk.heading_path)


@dataclass(frozen=True, slots=True)
class Event:
    """A chunk with what the models made of it.

    Attributes:
        chunk: The chunk.
        title: Title of the event.
        extraction: Its event and entities.
        vector: Of the event's text.
        chunk_vector: Of the chunk's own text, where the event has another one.
        name_vectors: Of the entities' names, where they are embedded.
        answer_key: Where the model's answer is stored, under which key.
        failure: Where a model failed for the chunk, how.
    """

    chunk: Chunk
    title: str
    extraction: Extraction
    vector: HalfVector | None
    chunk_vector: HalfVector | None
    name_vectors: Mapping[str, HalfVector | None]
    answer_key: bytes | None
    failure: ModelError | None

    def chunk_row(self) -> tuple[Any, ...]:
        """The row for `Batch.add_rows("chunk", …)` after the document's number."""
        return (
            self.chunk.ordinal,
            list(self.chunk.heading_path),
            self.chunk.content,
            self.chunk.start_offset,
            self.chunk.end_offset,
            self.title,
            self.extraction.event_text,
            self.vector,
            self.chunk_vector,
            self.answer_key,
        )

    def entity_rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows for `Batch.add_rows("entity", …)`: each entity, then its aliases."""
        ordinal = self.chunk.ordinal
        for entity in self.extraction.entities:
            vector = self.name_vectors.get(entity.name)
            yield (ordinal, entity.name, entity.type, entity.is_subject, entity.role, None, vector)
            for alias in entity.aliases:
                yield (ordinal, alias, entity.type, False, None, entity.name, None)


class EventMaker:
    """Asks the models about chunks, many at a time.

    Args:
        processing: The models.
        stored: The extractor's answers in the database, where they cost something.
    """

    def __init__(self, processing: Processing, stored: StoredExtractor | None) -> None:
        self._processing = processing
        self._stored = stored
        self._embedding_failures = 0

    def make(self, chunks: Sequence[TitledChunk]) -> list[Event]:
        """Make an event of each chunk.

        Returns:
            As many events, in the same order. Where a model failed for a chunk the event is what
            could be had without it.

        Raises:
            ModelError: What no later chunk can mend: a budget, a refused key, a model that is
                down.
        """
        if not chunks:
            return []
        passages = [each.passage for each in chunks]
        keys: Sequence[bytes | None] = [None] * len(chunks)
        if self._stored is not None:
            shown = [
                passage if each.title_stated else replace(passage, title="")
                for passage, each in zip(passages, chunks, strict=True)
            ]
            answered = self._stored.extract(shown)
            keys = [key for key, _ in answered]
            extractions = [extraction for _, extraction in answered]
        else:
            extractions = self._processing.extractor.extract(passages)
        both = list(zip(passages, extractions, strict=True))
        names = list(self._names(extractions))
        embedded = self._embed(
            [
                *(event_text(passage, extraction) for passage, extraction in both),
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
            Event(
                each.chunk,
                _event_title(passage, extraction),
                extraction,
                _vector(of_event),
                _vector(of_chunk),
                name_vectors,
                # What failed has no answer that could be kept.
                key if extraction.failure is None else None,
                _failure(
                    extraction,
                    [of_event, of_chunk, *(by_name.get(e.name) for e in extraction.entities)],
                ),
            )
            for each, key, (passage, extraction), of_event, of_chunk in zip(
                chunks, keys, both, embedded[:count], embedded[count : 2 * count], strict=True
            )
        ]

    def _names(self, extractions: Iterable[Extraction]) -> dict[str, None]:
        """The names to embed, each once and in order."""
        if not self._processing.embed_entities:
            return {}
        return dict.fromkeys(
            entity.name for extraction in extractions for entity in extraction.entities
        )

    def _embed(self, texts: Sequence[str | None]) -> list[_Embedded]:
        """Embed those texts that are there and whose script the model knows."""
        embedded: list[_Embedded] = [None] * len(texts)
        model = self._processing.embedding_model
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
            embedded = embed_accepted(model, texts)
        except (BudgetExhaustedError, EndpointRefusedError):
            raise
        except ModelError as error:
            embedded = [error] * len(texts)
        failures = [outcome for outcome in embedded if isinstance(outcome, ModelError)]
        # Of a model that refuses every text it is no text that is at fault.
        if len(failures) < len(texts):
            self._embedding_failures = 0
            return embedded
        self._embedding_failures += 1
        if self._embedding_failures == _MOST_EMBEDDING_FAILURES:
            self._embedding_failures = 0
            last = failures[-1]
            raise EndpointDownError(
                f"The embedding model {model.name} failed for {_MOST_EMBEDDING_FAILURES} groups of"
                f" chunks in a row, the last time because: {last}",
                last.hint,
            ) from last
        return embedded


def embed_accepted(
    model: EmbeddingModel, texts: list[str]
) -> list[HalfVector | InputRejectedError]:
    """Embed texts; where the model refuses some, the others without them.

    Returns:
        For each text its vector, or the model's refusal of just this text.

    Raises:
        ModelError: The model failed for all of them.
    """
    try:
        return list(map(HalfVector, model.embed_passages(texts)))
    except InputRejectedError as error:
        if len(texts) == 1:
            return [error]
    middle = len(texts) // 2
    return [*embed_accepted(model, texts[:middle]), *embed_accepted(model, texts[middle:])]


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


def event_text(passage: Passage, extraction: Extraction) -> str:
    """Return what is embedded of an event: its statement, or the passage where there is none."""
    if extraction.event_text is None:
        return passage.titled_text
    return f"{_event_title(passage, extraction)}. {extraction.event_text}"


def _event_title(passage: Passage, extraction: Extraction) -> str:
    if extraction.event_title is not None:
        return extraction.event_title
    return passage.head
