"""What a language model once extracted from a data set's passages, kept beside them.

`extraction.jsonl` has a line for each passage of `corpus.jsonl`: `id`, `entities` and `triples`, a
list of [subject, predicate, object]. It allows an ingest with a model's output, without a model.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from sag_pg.dataset import Dataset, read_records, read_text
from sag_pg.errors import LoadError, ModelError
from sag_pg.models.base import ExtractedEntity, Extraction, Passage

Triple: TypeAlias = tuple[str, str, str]

# The recording has no types.
ENTITY_TYPE: Final = "tag"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was extracted from one passage: names of entities, and triples of their relations."""

    entities: tuple[str, ...]
    triples: tuple[Triple, ...]


@dataclass(frozen=True, slots=True)
class RecordedSet:
    """What was extracted from a data set.

    Attributes:
        passages: By the passage's id, in the order of the corpus.
        digest: SHA-256 of the recording, in hexadecimal.
    """

    passages: dict[str, Recorded]
    digest: str


def load_recorded(dataset: Dataset) -> RecordedSet:
    """Read the recorded extraction of a data set.

    Raises:
        LoadError: The data set has none, it leaves out a passage, or a line is wrong; the message
            names file and line.
    """
    path = dataset.corpus.with_name("extraction.jsonl")
    if not path.is_file():
        raise LoadError(
            f"Data set {dataset.name} has no recorded extraction: {path} does not exist.",
            "Take a data set with extraction.jsonl, which has the entities and triples of each"
            " passage, or another extractor.",
        )
    found = {}
    for number, record in read_records(path):
        found[read_text(record, "id", path, number)] = Recorded(
            tuple(_texts(record.get("entities"), "entities", path, number)),
            tuple(_triples(record.get("triples"), path, number)),
        )
    passages = {}
    for number, record in read_records(dataset.corpus):
        id_ = read_text(record, "id", dataset.corpus, number)
        if id_ not in found:
            raise LoadError(f"{path} leaves out passage {id_}.", "Give a line for each passage.")
        passages[id_] = found[id_]
    return RecordedSet(passages, hashlib.sha256(path.read_bytes()).hexdigest())


def _texts(value: Any, key: str, path: Path, number: int) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise LoadError(f"{path}:{number}: {key} is not a list of texts.", "Mend the line.")
    return [each for each in value if each.strip()]


def _triples(value: Any, path: Path, number: int) -> list[Triple]:
    """Each triple once; those without subject or object say nothing."""
    triples: dict[Triple, None] = {}
    for each in value if isinstance(value, list) else [None]:
        if not (
            isinstance(each, list) and len(each) == 3 and all(isinstance(t, str) for t in each)
        ):
            raise LoadError(
                f"{path}:{number}: triples is not a list of [subject, predicate, object].",
                "Mend the line.",
            )
        subject, predicate, object_ = (" ".join(part.split()) for part in each)
        if subject and object_:
            triples[subject, predicate, object_] = None
    return list(triples)


class RecordedExtractor:
    """Gives each passage the entities that were recorded for it; its text is its event.

    An entity whose name is the passage's title is its subject, in whatever case.
    """

    def __init__(self, dataset: Dataset, recorded: RecordedSet) -> None:
        self.name = f"recorded {_VERSION} {recorded.digest[:12]}"
        self._entities = {
            _key(read_text(record, "text", dataset.corpus, number)): recorded.passages[
                record["id"]
            ].entities
            for number, record in read_records(dataset.corpus)
        }

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """Look passages up by their texts.

        Raises:
            ModelError: A text is not one of the data set.
        """
        return [self._extract(passage) for passage in passages]

    def _extract(self, passage: Passage) -> Extraction:
        names = self._entities.get(_key(passage.text))
        if names is None:
            raise ModelError(
                f"Nothing is recorded for the passage {passage.title!r}.",
                "A recording serves the data set that it stands beside, and no other.",
            )
        title = passage.title.casefold()
        return Extraction(
            tuple(
                ExtractedEntity(name, ENTITY_TYPE, is_subject=name.casefold() == title)
                for name in names
            )
        )


def _key(text: str) -> str:
    return " ".join(text.split())
