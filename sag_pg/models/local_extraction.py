"""The extractor that needs no language model: the event is the passage, its entities are read.

Each passage goes to the engine for its script: spaCy for Latin letters, jieba for Chinese, rules
for all other scripts and wherever an engine is not installed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sag_pg.errors import ConfigurationError
from sag_pg.models import chinese_extraction, spacy_extraction
from sag_pg.models.base import ExtractedEntity, Extraction, Extractor, Passage
from sag_pg.models.entity_names import clean_name, is_name, name_key, subjects
from sag_pg.models.rule_extraction import Mention, rule_mentions
from sag_pg.models.scripts import CJK, LATIN, count_scripts, main_script

# A change of what is extracted needs another version, so that documents are extracted anew.
_VERSION = "local-1"

_MOST_ENTITIES = 64

# Chunks are far shorter. The statistical models take memory in proportion to the text, and the
# first entities fill the list anyway.
_LONGEST_TEXT = 20_000

_CJK_RUN = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af々·]{2,20}")
_SENTENCE_END = re.compile(r"(?<=[。！？\n])|(?<=[.!?])(?=\s)")


class Engine(Protocol):
    """Finds the mentions of entities in texts of the scripts it is made for."""

    def mentions(self, texts: Sequence[str]) -> list[list[Mention]]:
        """Find the mentions of each text, in the order of the text."""


class RuleEngine:
    """The rules as an engine. They serve every script."""

    def mentions(self, texts: Sequence[str]) -> list[list[Mention]]:
        """Find the mentions of each text, in the order of the text."""
        return [rule_mentions(text) for text in texts]


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of a passage for one engine: the passage's index, where it starts, its text."""

    passage: int
    offset: int
    text: str
    script: str | None


class LocalExtractor:
    """Extracts entities without a language model. Threads may share one.

    Args:
        name: Name and version, part of a document's hash.
        latin: The engine for text in Latin letters; None for rules.
        cjk: The engine for Chinese, Japanese and Korean; None for rules.
    """

    def __init__(self, name: str, latin: Engine | None = None, cjk: Engine | None = None) -> None:
        self._name = name
        self._rules = RuleEngine()
        self._engines: dict[str | None, Engine] = {
            script: engine for script, engine in ((LATIN, latin), (CJK, cjk)) if engine is not None
        }

    @property
    def name(self) -> str:
        """Name, version and engines: with another engine documents are extracted anew."""
        return self._name

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """Extract the entities of passages.

        Args:
            passages: Any number; their whole result is held in memory, so give a batch.

        Returns:
            As many extractions, in the same order: subjects first, then the other entities in
            the order of the text, at most 64 in all. The event is the passage's own text.

        Raises:
            ModelError: If an installed engine cannot be loaded.
        """
        parts = [
            part
            for index, passage in enumerate(passages)
            for part in _parts(index, passage.text[:_LONGEST_TEXT])
        ]
        mentions: list[list[Mention]] = [[] for _ in passages]
        for script in {part.script for part in parts}:
            engine = self._engines.get(script, self._rules)
            own = [part for part in parts if part.script == script]
            for part, found in zip(own, engine.mentions([p.text for p in own]), strict=True):
                if script == LATIN:
                    found.extend(_cjk_terms(part.text))
                mentions[part.passage].extend(mention.shifted(part.offset) for mention in found)
        return [
            Extraction(tuple(_entities(passage, found)))
            for passage, found in zip(passages, mentions, strict=True)
        ]


def load_extractor(spec: str = "local") -> Extractor:
    """Make the extractor that a setting names.

    Args:
        spec: "local" for the engines that are installed, "rules" for rules alone.

    Returns:
        The extractor. Engines load their models at the first passage.

    Raises:
        ConfigurationError: If the setting names nothing that exists.
    """
    if spec == "rules":
        return LocalExtractor(f"{_VERSION}+rules")
    if spec != "local":
        raise ConfigurationError(
            f"There is no extractor {spec!r}.", "Say local, rules, openai or openai:MODEL."
        )
    spacy = spacy_extraction.is_installed()
    jieba = chinese_extraction.is_installed()
    engines = [name for name, there in (("spacy", spacy), ("jieba", jieba)) if there]
    return LocalExtractor(
        "+".join([_VERSION, *(engines or ["rules"])]),
        latin=spacy_extraction.SpacyEngine() if spacy else None,
        cjk=chinese_extraction.ChineseEngine() if jieba else None,
    )


def _parts(passage: int, text: str) -> Iterator[_Part]:
    """Cut a text that mixes Latin letters and CJK into stretches of one kind of sentence."""
    counts = count_scripts(text)
    if not (counts[CJK] and counts[LATIN]):
        yield _Part(passage, 0, text, main_script(text))
        return
    start = end = 0
    script: str | None = None
    for sentence in _SENTENCE_END.split(text):
        following = main_script(sentence)
        if following is not None and script is not None and following != script:
            yield _Part(passage, start, text[start:end], script)
            start = end
        script = following or script
        end += len(sentence)
    yield _Part(passage, start, text[start:end], script)


def _cjk_terms(text: str) -> Iterator[Mention]:
    """Yield the runs of CJK in Latin text, where they are terms: "Qiming (启明科技)"."""
    for run in _CJK_RUN.finditer(text):
        yield Mention(run.start(), run.end(), run.group(), "tag")


def _entities(passage: Passage, mentions: Iterable[Mention]) -> Iterator[ExtractedEntity]:
    seen: set[str] = set()
    in_order = sorted(mentions, key=lambda mention: (mention.start, -mention.end))
    candidates = [
        *((name, "subject") for name in subjects(passage)),
        *((mention.name, mention.type) for mention in in_order),
    ]
    for raw, kind in candidates:
        name = clean_name(raw)
        key = name_key(name)
        if key in seen or not is_name(name):
            continue
        seen.add(key)
        yield ExtractedEntity(name, kind, is_subject=kind == "subject")
        if len(seen) == _MOST_ENTITIES:
            return
