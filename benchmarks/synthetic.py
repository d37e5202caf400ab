"""Documents for measurements: as many as wanted, the same ones each time."""

import hashlib
import json
import random
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pgvector import HalfVector

DIMENSIONS = 384
ENTITIES = 6

_CHARACTERS = 600
# Names that there are in the world; the first one is in every 14th link, the last ones in hardly
# any.
_NAMES = 1_000_000
_TOPICS = 400
_SYLLABLES = [
    "ba",
    "co",
    "di",
    "fu",
    "ga",
    "he",
    "jo",
    "ki",
    "lu",
    "ma",
    "ne",
    "or",
    "pa",
    "qui",
    "ra",
    "so",
    "ti",
    "ul",
    "va",
    "wen",
    "xi",
    "yo",
    "ze",
    "ar",
    "in",
]
_TYPES = ("person", "location", "organization", "work", "time", "tag")


@lru_cache(maxsize=200_000)
def entity_name(rank: int) -> str:
    """The name of that rank, counted from 0: two or three capitalised words."""
    digits = []
    rest = rank * 7919 % 999_983 + rank // 999_983
    while rest or len(digits) < 4:
        rest, digit = divmod(rest, len(_SYLLABLES))
        digits.append(_SYLLABLES[digit])
    words = ["".join(digits[start : start + 2]) for start in range(0, len(digits), 2)]
    return " ".join(word.capitalize() for word in words)


def read_sentences(corpora: list[Path]) -> list[str]:
    """Sentences of corpora in the format of `sag-pg eval`; without any, of invented words."""
    if corpora:
        texts = (json.loads(line)["text"] for path in corpora for line in path.open())
        return [s for text in texts for s in re.split(r"(?<=[.!?]) +", text) if len(s) > 20]
    chance = random.Random(1)
    words = [
        "".join(chance.choices(_SYLLABLES, k=chance.choice((1, 2, 2, 3)))) for _ in range(30_000)
    ]
    return [
        " ".join(words[_zipf(chance, len(words))] for _ in range(chance.randint(8, 25))) + "."
        for _ in range(20_000)
    ]


def _zipf(chance: random.Random, size: int) -> int:
    """A rank below `size`, the n-th with a probability of about 1/n."""
    return int(size ** chance.random()) - 1


class Corpus:
    """Documents of one chunk with `ENTITIES` entities and a vector of `DIMENSIONS` numbers.

    Args:
        sentences: What their texts are made of.
        vectors: What has vectors: "none", "events" or "all", which is events and entities.
    """

    def __init__(self, sentences: list[str], *, vectors: str = "events") -> None:
        self._sentences = sentences
        self._vectors = vectors
        self._topics = np.random.default_rng(1).normal(size=(_TOPICS, DIMENSIONS))

    def documents(self, start: int, count: int) -> Iterator[dict[str, Any]]:
        """Yield documents: number `start` and those after it.

        Yields:
            source, title and hash of the document, the row of its chunk and those of its entities,
            as `Batch.add_rows` takes them without the document's number.
        """
        for number in range(start, start + count):
            chance = random.Random(number)
            texts = []
            while sum(map(len, texts)) < _CHARACTERS:
                texts.append(chance.choice(self._sentences))
            content = " ".join(texts)[:_CHARACTERS]
            title = f"{entity_name(_zipf(chance, _NAMES))} {number}"
            names = {title: None}
            while len(names) < ENTITIES:
                names[entity_name(_zipf(chance, _NAMES))] = None
            yield {
                "source": f"document {number}",
                "title": title,
                "content_hash": number.to_bytes(32),
                "chunk": (
                    *(0, [], content, 0, len(content), title, None),
                    *(self._vector(number, "events", "all"), None, None),
                ),
                "entities": [
                    (0, name, _TYPES[no], no == 0, None, None, self._vector(_hash(name), "all"))
                    for no, name in enumerate(names)
                ],
            }

    def _vector(self, seed: int, *kinds: str) -> HalfVector | None:
        if self._vectors not in kinds:
            return None
        generator = np.random.default_rng(seed)
        topic = self._topics[generator.integers(_TOPICS)]
        vector = topic + generator.normal(size=DIMENSIONS)
        return HalfVector((vector / np.linalg.norm(vector)).astype(np.float16))


def _hash(name: str) -> int:
    """A number for a name, the same in each process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
