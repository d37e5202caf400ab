"""Answers of a model that costs something, kept in the database from the moment they arrive.

What is asked for together is merged together, often with much else, and until then a run may end
for many reasons. The run that goes on finds the answers, and the merge forgets them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any, Final

from psycopg.types.json import Jsonb

from sag_pg.models.base import CostlyExtractor, ExtractedEntity, Extraction, Passage

# A stored answer of another form must not be found.
_FORM: Final = 1


class StoredExtractor:
    """An extractor that asks another one for what the database does not know yet.

    Args:
        extractor: The one that costs something.
        collection: The collection that is ingested into.
        call: Runs a query with its arguments, in a transaction of its own, and returns the rows.
    """

    def __init__(
        self,
        extractor: CostlyExtractor,
        collection: str,
        call: Callable[[str, list[Any]], list[tuple[Any, ...]]],
    ) -> None:
        self._extractor = extractor
        self._collection = collection
        self._call = call

    @property
    def name(self) -> str:
        """The other one's."""
        return self._extractor.name

    def answer_key(self, passage: Passage) -> bytes:
        """The key under which the answer for a passage is stored."""
        asked = [_FORM, self.name, passage.title, passage.heading_path, passage.text]
        return hashlib.sha256(json.dumps(asked).encode()).digest()

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """Extract one event per passage; of equal passages one is asked for.

        Args:
            passages: Any number.

        Returns:
            As many extractions, in the same order. Those with a `failure` are not stored.

        Raises:
            ModelError: What ends the run. All answers that arrived are stored.
        """
        keys = [self.answer_key(passage) for passage in passages]
        passage_of = dict(zip(keys, passages, strict=True))
        extractions = self._known(list(passage_of))
        unknown = [key for key in passage_of if key not in extractions]
        asked = [passage_of[key] for key in unknown]
        with closing(self._extractor.extract_each(asked)) as arriving:
            for index, extraction in arriving:
                if extraction.failure is None:
                    self._store(unknown[index], extraction)
                extractions[unknown[index]] = extraction
        return [extractions[key] for key in keys]

    def _known(self, keys: list[bytes]) -> dict[bytes, Extraction]:
        rows = self._call(
            "SELECT answer_key, answer FROM sag.known_answers(%s, %s)", [self._collection, keys]
        )
        return {key: _read(answer) for key, answer in rows}

    def _store(self, key: bytes, extraction: Extraction) -> None:
        self._call(
            "SELECT FROM sag.store_answer(%s, %s, %s, %s)",
            [self._collection, key, self.name, Jsonb(asdict(extraction))],
        )


def _read(answer: Mapping[str, Any]) -> Extraction:
    entities = (
        ExtractedEntity(**{**entity, "aliases": tuple(entity["aliases"])})
        for entity in answer["entities"]
    )
    return Extraction(**{**answer, "entities": tuple(entities)})
