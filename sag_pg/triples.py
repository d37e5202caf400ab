"""Triples in place of events, to compare with: the ablation of SAG's paper, for `eval` only.

Each (subject, predicate, object) of a passage becomes a document, a chunk and an event of its own,
whose text is the three in a row and whose entities are subject and object. Everything else, from
linking to ranking, is the same, so that what differs is the hyperedge: how much of a passage's
meaning, and how many of its entities, hang together.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from sag_pg.errors import ModelError
from sag_pg.ingest.document import SourceDocument, text_document
from sag_pg.models.base import ExtractedEntity, Extraction, Passage
from sag_pg.recorded_extraction import ENTITY_TYPE, RecordedSet, Triple

_VERSION: Final = 1


def passage_of(source: str) -> str:
    """Return the id of the passage that a triple's document comes from."""
    return source.rpartition("#")[0]


class Triples:
    """The triples of a data set: their documents, and the extractor that knows them again."""

    def __init__(self, recorded: RecordedSet) -> None:
        self.name = f"triples {_VERSION} {recorded.digest[:12]}"
        self._passages = recorded.passages
        # The rare text that can be split in two ways counts as the first.
        self._by_text: dict[str, Triple] = {}
        for passage in recorded.passages.values():
            for triple in passage.triples:
                self._by_text.setdefault(_text(triple), triple)

    def __len__(self) -> int:
        return sum(len(passage.triples) for passage in self._passages.values())

    @property
    def size(self) -> int:
        """Size of the documents in bytes."""
        return sum(document.size or 0 for document in self.documents())

    def documents(self) -> Iterator[SourceDocument]:
        """Yield a document for each triple, named by its passage's id and a number."""
        for id_, passage in self._passages.items():
            for number, triple in enumerate(passage.triples, 1):
                yield text_document(f"{id_}#{number}", _text(triple))

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """Give each triple its subject and object.

        Raises:
            ModelError: A text is no triple of the data set.
        """
        return [self._extract(passage.text) for passage in passages]

    def _extract(self, text: str) -> Extraction:
        triple = self._by_text.get(text)
        if triple is None:
            raise ModelError(
                f"No triple is recorded as {text!r}.",
                "A recording serves the data set that it stands beside, and no other.",
            )
        subject, _, object_ = triple
        entities = [ExtractedEntity(subject, ENTITY_TYPE, is_subject=True)]
        if object_ != subject:
            entities.append(ExtractedEntity(object_, ENTITY_TYPE))
        return Extraction(tuple(entities))


def _text(triple: Triple) -> str:
    return " ".join(part for part in triple if part)
