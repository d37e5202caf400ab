"""What every provider of models implements, be it local or behind an HTTP endpoint."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Passage:
    """One chunk of a document, as the models see it.

    Attributes:
        title: Title of the document; empty where it has none.
        heading_path: Headings from the outermost to the one that the chunk stands under.
        text: The chunk's own text.
    """

    title: str
    text: str
    heading_path: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """Title and headings in one line; empty where there are none.

        A document often begins with its title as the first heading; that is said once.
        """
        return ". ".join(dict.fromkeys(part for part in (self.title, *self.heading_path) if part))

    @property
    def titled_text(self) -> str:
        """The text under its title and headings, which is what gets embedded."""
        return f"{self.head}. {self.text}" if self.head else self.text


@dataclass(frozen=True, slots=True)
class ExtractedEntity:
    """An index point of an event.

    Attributes:
        name: The name as it stands in the text; the database normalises it.
        type: One of the names in `sag.entity_type`.
        is_subject: Whether the event is about this entity.
        role: What the entity does in the event, in a few words; None where it is not known.
        aliases: Further names of the entity that the text gives.
    """

    name: str
    type: str
    is_subject: bool = False
    role: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extraction:
    """The event and the entities of one passage.

    Attributes:
        entities: The index points, in the order of the text.
        event_title: A short name of the event; None where the passage's title serves.
        event_text: A statement that keeps the passage's whole meaning; None where the passage's
            own text is the event (all local extractors).
        failure: Why the model gave no usable answer, where these are but what could be read
            without it; None where all is well.
    """

    entities: tuple[ExtractedEntity, ...] = field(default=())
    event_title: str | None = None
    event_text: str | None = None
    failure: str | None = None


# What a model gets to see of a candidate. The rest would cost more than it tells.
CANDIDATE_TITLE_CHARACTERS: Final = 200
CANDIDATE_TEXT_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class Candidate:
    """An event that may be chosen as evidence.

    Attributes:
        title: Title of the event; empty where it has none. At most 200 characters are shown.
        text: The event's statement or the chunk's text. At most 500 characters are shown.
    """

    title: str
    text: str


class EmbeddingModel(Protocol):
    """Turns text into unit vectors whose cosine is their nearness in meaning."""

    @property
    def name(self) -> str:
        """The name that the database keeps, so that vectors of two models never mix."""

    @property
    def dimensions(self) -> int:
        """The length of each vector."""

    def knows(self, text: str) -> bool:
        """Whether the text is mainly in a script that the model was trained on."""

    def embed_passages(self, texts: Sequence[str]) -> Vector:
        """Embed texts to be found.

        Returns:
            Float32 array of shape (len(texts), dimensions), rows of length 1. A row depends on
            its text alone, not on the batch it came in.
        """

    def embed_question(self, text: str) -> Vector:
        """Embed a question. Returns a float32 array of shape (dimensions,) and length 1."""


class Extractor(Protocol):
    """Finds the event and the entities of passages."""

    @property
    def name(self) -> str:
        """Name and version. Part of a document's hash, so that a change extracts anew."""

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """Extract one event per passage. Returns as many extractions, in the same order."""


@runtime_checkable
class CostlyExtractor(Extractor, Protocol):
    """An extractor whose answers cost something, so that each is worth keeping once it is here."""

    def extract_each(
        self, passages: Sequence[Passage]
    ) -> Generator[tuple[int, Extraction], None, None]:
        """Extract one event per passage, as `Extractor.extract`, and give each as it arrives.

        Yields:
            Index of the passage and its extraction, in any order.

        Raises:
            ModelError: What ends the run. All that was asked for before was yielded.
        """

    def expected_tokens(self, passage: Passage) -> tuple[int, int]:
        """Estimate the tokens of the question about a passage and of its answer, asking nothing."""


class AsyncEmbeddingModel(Protocol):
    """An embedding model that can be awaited, and whose work stops when the task is cancelled."""

    @property
    def name(self) -> str:
        """As in `EmbeddingModel`."""

    @property
    def dimensions(self) -> int:
        """As in `EmbeddingModel`."""

    def knows(self, text: str) -> bool:
        """As in `EmbeddingModel`."""

    async def embed_passages_async(self, texts: Sequence[str]) -> Vector:
        """Embed texts to be found; as `EmbeddingModel.embed_passages`."""

    async def embed_questions_async(self, texts: Sequence[str]) -> Vector:
        """Embed questions. Returns a float32 array of shape (len(texts), dimensions)."""


class QuestionReader(Protocol):
    """Reads the entities off a question (the model's part of `understand`)."""

    @property
    def name(self) -> str:
        """Model and version of the prompt; part of what answers are cached by."""

    async def read_question(self, question: str) -> tuple[str, ...]:
        """Return the names of the entities that the question is about, at most 20.

        Raises:
            ModelError: The model gave no usable answer.
        """


class Chooser(Protocol):
    """Makes the final choice among candidates (the model's part of `choose`)."""

    @property
    def name(self) -> str:
        """Model and version of the prompt; part of what answers are cached by."""

    async def choose(
        self, question: str, candidates: Sequence[Candidate], limit: int
    ) -> tuple[int, ...]:
        """Choose the candidates that hold the evidence for a question.

        Returns:
            Indices into `candidates`, best first, at least one, at most `limit`, none twice.

        Raises:
            ModelError: The model gave no usable answer.
        """
