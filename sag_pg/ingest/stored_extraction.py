"""Answers of a model that costs something, kept in the database from the moment they arrive.

What is asked for together is merged together, often with much else, and until then a run may end
for many reasons. The run that goes on finds the answers, and so does every other document that
holds the same passage. Workers that come upon the same passage at the same time ask once: the
first claims it, the others wait for its answer.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any, Final

from psycopg.types.json import Jsonb

from sag_pg.models.base import CostlyExtractor, ExtractedEntity, Extraction, Passage

# A stored answer of another form must not be found.
_FORM: Final = 2
_WAIT_SECONDS: Final = 0.25


def answer_key(extractor: str, passage: Passage) -> bytes:
    """Return the key under which an extractor's answer for a passage is stored.

    Args:
        extractor: The extractor's name: the model and the version of the prompt.
        passage: The passage as the model is shown it.
    """
    asked = [_FORM, extractor, passage.title, passage.heading_path, passage.text]
    return hashlib.sha256(json.dumps(asked).encode()).digest()


class StoredExtractor:
    """An extractor that asks another one for what the database does not know yet.

    Args:
        extractor: The one that costs something.
        collection: The collection that is ingested into.
        worker_id: The worker that asks.
        call: Runs a query with its arguments, in a transaction of its own, and returns the rows.
    """

    def __init__(
        self,
        extractor: CostlyExtractor,
        collection: str,
        worker_id: int,
        call: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]],
    ) -> None:
        self._extractor = extractor
        self._collection = collection
        self._worker_id = worker_id
        self._call = call

    @property
    def name(self) -> str:
        """The other one's."""
        return self._extractor.name

    def extract(self, passages: Sequence[Passage]) -> list[tuple[bytes, Extraction]]:
        """Extract one event per passage; of equal passages one is asked for.

        Args:
            passages: Any number.

        Returns:
            As many extractions, in the same order, each with the key of its stored answer. Those
            with a `failure` are not stored.

        Raises:
            ModelError: What ends the run. All answers that arrived are stored.
        """
        keys = [answer_key(self.name, passage) for passage in passages]
        passage_of = dict(zip(keys, passages, strict=True))
        extractions: dict[bytes, Extraction] = {}
        while unknown := [key for key in passage_of if key not in extractions]:
            known, mine = self._claim(unknown)
            extractions |= known
            if mine:
                extractions |= self._ask({key: passage_of[key] for key in mine})
            elif not known:
                time.sleep(_WAIT_SECONDS)
        return [(key, extractions[key]) for key in keys]

    def _ask(self, passage_of: Mapping[bytes, Passage]) -> dict[bytes, Extraction]:
        """Ask for claimed passages, and give back the claims to those that got no answer."""
        keys = list(passage_of)
        extractions: dict[bytes, Extraction] = {}
        answered = set()
        try:
            with closing(self._extractor.extract_each(list(passage_of.values()))) as arriving:
                for index, extraction in arriving:
                    extractions[keys[index]] = extraction
                    if extraction.failure is None:
                        self._store(keys[index], extraction)
                        answered.add(keys[index])
        finally:
            if without := [key for key in keys if key not in answered]:
                self._call(
                    "SELECT FROM sag.release_answers(%s, %s, %s)",
                    [self._collection, self._worker_id, without],
                )
        return extractions

    def _claim(self, keys: list[bytes]) -> tuple[dict[bytes, Extraction], list[bytes]]:
        """Return the answers that are known, and the keys that are this worker's to ask for."""
        rows = self._call(
            "SELECT answer_key, answer, is_mine FROM sag.claim_answers(%s, %s, %s, %s)",
            [self._collection, self._worker_id, self.name, keys],
        )
        known = {key: _read(answer) for key, answer, _ in rows if answer is not None}
        mine = {key for key, answer, is_mine in rows if answer is None and is_mine}
        return known, [key for key in keys if key in mine]

    def _store(self, key: bytes, extraction: Extraction) -> None:
        self._call(
            "SELECT FROM sag.store_answer(%s, %s, %s, %s, %s)",
            [self._collection, self._worker_id, key, self.name, Jsonb(asdict(extraction))],
        )


def _read(answer: Mapping[str, Any]) -> Extraction:
    entities: Iterable[ExtractedEntity] = (
        ExtractedEntity(**{**entity, "aliases": tuple(entity["aliases"])})
        for entity in answer["entities"]
    )
    return Extraction(**{**answer, "entities": tuple(entities)})
