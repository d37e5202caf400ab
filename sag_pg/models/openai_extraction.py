"""Events and entities by a language model behind an OpenAI-compatible endpoint."""

import asyncio
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue
from typing import Any, Final

from sag_pg.errors import (
    BudgetExhaustedError,
    EndpointDownError,
    EndpointRefusedError,
    ModelError,
)
from sag_pg.models.background_loop import background_loop
from sag_pg.models.base import ExtractedEntity, Extraction, Passage
from sag_pg.models.budget import estimate_tokens
from sag_pg.models.endpoint import Endpoint
from sag_pg.models.entity_names import (
    clean_name,
    distinct_names,
    is_name,
    name_key,
    subjects,
    without_control,
)
from sag_pg.models.local_extraction import load_extractor
from sag_pg.models.prompted_model import PromptedModel

# The paper's, as a new database has them in sag.entity_type.
ENTITY_TYPES: Final[Mapping[str, str]] = {
    "time": "Dates, years, periods and times of day",
    "location": "Places: countries, cities, regions, rivers, buildings, addresses",
    "person": "People by name",
    "organization": "Companies, institutions, agencies, parties, teams",
    "group": "Peoples, nationalities, religions, communities, families",
    "subject": "What a document or a section is about; fields of knowledge, topics",
    "work": "Books, films, songs, paintings, laws, articles",
    "product": "Goods, devices, software, vehicles, brands",
    "action": "Happenings and deeds by name: wars, awards, acquisitions, conferences",
    "metric": "Named quantities and measures",
    "tag": "Whatever else serves as an index point",
}
MOST_ENTITIES: Final = 20
# Name, type, role and the words around them.
_TOKENS_PER_ENTITY: Final = 40

_OTHER_TYPE: Final = "tag"
_SYNONYMS: Final = {
    "city": "location",
    "company": "organization",
    "country": "location",
    "date": "time",
    "event": "action",
    "institution": "organization",
    "number": "metric",
    "org": "organization",
    "people": "group",
    "place": "location",
    "quantity": "metric",
    "topic": "subject",
    "year": "time",
}

# A chunk is far shorter. Of a longer one the model reads the beginning, and since its statement
# would leave the rest out, the chunk's own text is the event then.
_LONGEST_TEXT: Final = 20_000
# A statement keeps a passage's meaning and writes pronouns out; one much longer than the passage
# was made up.
_LONGEST_CONTENT: Final = 1000
_LONGEST_TITLE: Final = 300
_LONGEST_ROLE: Final = 200
_MOST_ALIASES: Final = 10
# An endpoint that answers nothing usable so many times in a row is down or not what was meant.
_MOST_FAILURES_IN_A_ROW: Final = 20

_CJK = "\u1100-\u11ff\u3005-\u3007\u3040-\u30ff\u3131-\u318e\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_CJK_RUN = re.compile(f"[{_CJK}]+")
_WORD = re.compile(rf"[^\W{_CJK}]+")


class OpenAIExtractor(PromptedModel):
    """Asks a language model for the event and the entities of each passage.

    Passages are asked for concurrently, as far as the endpoint's settings allow. Threads may
    share one.

    Args:
        endpoint: The chat endpoint.
        model: Name of the model there.
        entity_types: The types to choose from and what belongs to each, as `sag.entity_type` has
            them; "tag" among them.
    """

    prompt = "extraction-1"

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        entity_types: Mapping[str, str] = ENTITY_TYPES,
    ) -> None:
        super().__init__(endpoint, model)
        self._types = dict(entity_types)
        self._rules = load_extractor("rules")
        self._failures_in_a_row = 0

    @property
    def name(self) -> str:
        """The model, the version of the prompt, and what tells other types than the usual ones."""
        name = super().name
        if self._types == ENTITY_TYPES:
            return name
        types = json.dumps(self._types, sort_keys=True).encode()
        return f"{name}+types-{hashlib.sha256(types).hexdigest()[:8]}"

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """Extract one event per passage.

        A passage whose answers stay unusable gets what the rules read in it, and the reason as
        its `failure`.

        Args:
            passages: Any number; more than the endpoint's concurrency keeps it busy.

        Returns:
            As many extractions, in the same order: the title and the last heading as subjects,
            then at most 20 entities of the model's.

        Raises:
            EndpointRefusedError: The key, the URL or the model's name is wrong.
            BudgetExhaustedError: The tokens or requests of the run are used up.
            EndpointDownError: Twenty passages in a row got no usable answer.
        """
        extractions = dict(self.extract_each(passages))
        return [extractions[index] for index in range(len(passages))]

    def extract_each(
        self, passages: Sequence[Passage]
    ) -> Generator[tuple[int, Extraction], None, None]:
        """As `extract`, one by one as the answers arrive.

        Before an error is raised, the answers to all that was asked are waited for and given.

        Yields:
            Index of the passage and its extraction.
        """
        arrived: SimpleQueue[tuple[int, Extraction] | None] = SimpleQueue()
        asking = background_loop.start(self._ask_all(passages, arrived.put))
        asking.add_done_callback(lambda _: arrived.put(None))
        try:
            while (each := arrived.get()) is not None:
                yield each
            asking.result()
        finally:
            asking.cancel()

    async def _ask_all(
        self, passages: Sequence[Passage], give: Callable[[tuple[int, Extraction]], None]
    ) -> None:
        """Extract, as many at once as the endpoint takes, until all is done or one raises."""
        waiting = iter(enumerate(passages))
        errors: list[Exception] = []

        async def ask() -> None:
            while not errors and (following := next(waiting, None)) is not None:
                index, passage = following
                try:
                    give((index, await self._extract(passage)))
                except Exception as error:
                    errors.append(error)

        at_once = min(len(passages), self.endpoint.settings.model_concurrency)
        await asyncio.gather(*(ask() for _ in range(at_once)))
        if errors:
            raise errors[0]

    def expected_tokens(self, passage: Passage) -> tuple[int, int]:
        """Estimate the tokens of the question about a passage and of its answer.

        The answer restates the passage and describes entities of it, about one per forty
        characters in English prose and at most twenty.
        """
        asked = self._question(passage)
        messages = self.messages(asked, text=asked["text"])
        prompt = sum(estimate_tokens(message["content"]) for message in messages)
        own = estimate_tokens(asked["text"])
        entities = min(own // 10 + 1, MOST_ENTITIES)
        return prompt, own + entities * _TOKENS_PER_ENTITY

    def _question(self, passage: Passage) -> dict[str, Any]:
        return {
            "title": passage.title,
            "headings": passage.heading_path,
            "text": passage.text[:_LONGEST_TEXT],
            "entity_types": self._types,
        }

    async def _extract(self, passage: Passage) -> Extraction:
        asked = self._question(passage)
        text = asked["text"]
        try:
            extraction = await self.ask(
                asked,
                _schema(list(self._types)),
                lambda answer: _read_answer(answer, passage, list(self._types)),
                text=text,
            )
        except (EndpointRefusedError, BudgetExhaustedError):
            raise
        except ModelError as error:
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= _MOST_FAILURES_IN_A_ROW:
                self._failures_in_a_row = 0
                raise EndpointDownError(
                    f"{self.model} gave no usable answer for {_MOST_FAILURES_IN_A_ROW}"
                    f" passages in a row, the last time because: {error}",
                    error.hint,
                ) from error
            return replace(self._rules.extract([passage])[0], failure=str(error))
        self._failures_in_a_row = 0
        if len(passage.text) > len(text):
            return replace(extraction, event_title=None, event_text=None)
        return extraction


def _schema(types: Sequence[str]) -> dict[str, Any]:
    entity = {
        "name": {"type": "string"},
        "type": {"type": "string", "enum": list(types)},
        "subject": {"type": "boolean"},
        "role": {"type": ["string", "null"]},
        "aliases": {"type": "array", "items": {"type": "string"}},
    }
    answer = {
        "title": {"type": "string"},
        "content": {"type": "string"},
        "entities": {"type": "array", "items": _object(entity)},
    }
    return _object(answer)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _read_answer(answer: Any, passage: Passage, types: Sequence[str]) -> Extraction:
    """Make an extraction of a model's answer; what is harmless to lack may be missing.

    Raises:
        ValueError: The answer is not usable; the message tells the model why.
    """
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")
    if "entities" not in answer:
        raise ValueError('the answer has no "entities"')
    records = answer["entities"] or []
    if not isinstance(records, list):
        raise ValueError('"entities" is not a list')
    if records and not any(isinstance(_name_of(record), str) for record in records):
        raise ValueError('no entity has a "name"')
    title = _statement(answer.get("title"))
    content = _statement(answer.get("content"))
    if len(content) > _LONGEST_CONTENT + 2 * len(passage.text):
        content = ""
    stated = list(_stated_entities(records, _stems(f"{passage.head}\n{passage.text}"), types))
    # Models that do not keep to the form answer about something else, or with an example.
    if not stated and any(map(_is_named, records)):
        raise ValueError("none of the entities stands in the passage")
    return Extraction(
        tuple(_entities(stated, passage)),
        event_title=title[:_LONGEST_TITLE] if title and content else None,
        event_text=content or None,
    )


def _entities(
    stated_entities: Iterable[ExtractedEntity], passage: Passage
) -> Iterator[ExtractedEntity]:
    """Yield the subjects by title and heading, then the model's entities, each name once."""
    by_model: dict[str, ExtractedEntity] = {}
    for entity in stated_entities:
        by_model.setdefault(name_key(entity.name), entity)
    seen: set[str] = set()
    for name in map(clean_name, subjects(passage)):
        key = name_key(name)
        if key not in seen and is_name(name):
            seen.add(key)
            stated = by_model.get(key)
            # What the model says of it stands, but that the passage is about it is certain.
            yield (
                replace(stated, is_subject=True)
                if stated
                else ExtractedEntity(name, "subject", is_subject=True)
            )
    for key, entity in islice(by_model.items(), MOST_ENTITIES):
        if key not in seen:
            yield entity


def _stated_entities(
    records: Iterable[Any], stems: Set[str], types: Sequence[str]
) -> Iterator[ExtractedEntity]:
    for record in records:
        stated = _name_of(record)
        if not isinstance(stated, str):
            continue
        name = clean_name(stated)
        if not is_name(name) or not _stands_in(name, stems):
            continue
        fields = record if isinstance(record, dict) else {}
        aliases = fields.get("aliases")
        yield ExtractedEntity(
            name,
            _nearest_type(fields.get("type"), types),
            is_subject=fields.get("subject") is True,
            role=_statement(fields.get("role"))[:_LONGEST_ROLE] or None,
            aliases=tuple(
                alias
                for alias in distinct_names(aliases if isinstance(aliases, list) else [])
                if name_key(alias) != name_key(name) and _stands_in(alias, stems)
            )[:_MOST_ALIASES],
        )


def _is_named(record: Any) -> bool:
    name = _name_of(record)
    return isinstance(name, str) and is_name(clean_name(name))


def _name_of(record: Any) -> Any:
    """The name in an entity, which some models give without anything else."""
    return record.get("name") if isinstance(record, dict) else record


def _nearest_type(stated: Any, types: Sequence[str]) -> str:
    """The type that is meant: models write "Organisation", "company" or nothing at all."""
    plain = stated.strip().casefold() if isinstance(stated, str) else ""
    plain = _SYNONYMS.get(plain, plain)
    close = difflib.get_close_matches(plain, types, n=1, cutoff=0.7)
    return close[0] if close else _OTHER_TYPE


def _stands_in(name: str, stems: Set[str]) -> bool:
    """Whether at least half of a name stands in the text of these stems, however inflected.

    What does not was made up, or comes from an instruction that the model took the passage for.
    """
    own = _stems(name)
    return 2 * len(own & stems) >= len(own)


def _stems(text: str) -> set[str]:
    """The beginnings of the words of a text, and the pairs of its CJK characters."""
    text = text.casefold()
    stems = {word[:4] for word in _WORD.findall(text)}
    for run in _CJK_RUN.findall(text):
        stems.update(run[start : start + 2] for start in range(max(1, len(run) - 1)))
    return stems


def _statement(value: Any) -> str:
    return without_control(value).strip() if isinstance(value, str) else ""
