"""How documents are processed: by which models, in which chunks."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sag_pg.models.base import EmbeddingModel, Extractor

_VERSION: Final = 2


class Described(Protocol):
    """What of a document, beside its text, makes it another one when it changes."""

    @property
    def title(self) -> str:
        """Title, empty where there is none."""

    @property
    def title_stated(self) -> bool:
        """Whether somebody gave the title."""

    @property
    def markdown(self) -> bool:
        """Whether headings in the text count."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What filters ask for."""


class Digest(Protocol):
    """A hash that is fed piece by piece, as hashlib makes it."""

    def update(self, data: bytes, /) -> None:
        """Take more."""

    def digest(self) -> bytes:
        """Return the hash of all that was taken."""


@dataclass(frozen=True, slots=True)
class Processing:
    """How documents are processed.

    Attributes:
        extractor: Finds events and entities.
        embedding_model: Embeds events; None leaves them to lexical retrieval.
        max_characters: Longest chunk; None makes each document one chunk.
        embed_entities: Whether to embed the entities' names too.
    """

    extractor: Extractor
    embedding_model: EmbeddingModel | None
    max_characters: int | None = 1200
    embed_entities: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What a job keeps of it: workers take the tasks of jobs with the same settings."""
        model = self.embedding_model
        return {
            "extractor": self.extractor.name,
            "embedding": None if model is None else model.name,
            "chunk_size": self.max_characters or 0,
            "embed_entities": self.embed_entities and model is not None,
        }

    def begin_hash(self, document: Described) -> Digest:
        """Begin the hash of a document, to be fed its text in UTF-8.

        Which embedding model it is does not count: a change of it is made for all documents at
        once, and extracts nothing anew.
        """
        settings = self.settings
        settings["embedding"] = settings["embedding"] is not None
        head = [
            _VERSION,
            settings,
            document.title,
            document.title_stated,
            document.markdown,
            document.metadata,
        ]
        return hashlib.sha256(json.dumps(head, sort_keys=True).encode())
