"""What may be asked: the JSON of each call, checked strictly before any work is done."""

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from sag_pg.gateway.refusal import RefusedError, SqlState
from sag_pg.models.base import (
    CANDIDATE_TEXT_CHARACTERS,
    CANDIDATE_TITLE_CHARACTERS,
    Candidate,
)
from sag_pg.text import clean

InputType = Literal["question", "passage"]

MAX_TEXT_CHARACTERS: Final = 32_768
MAX_TEXTS: Final = 256
MAX_CANDIDATES: Final = 200

_MAX_TIMEOUT_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class UnderstandRequest:
    """Read a question.

    Attributes:
        question: The question, not blank.
        embed: Whether its vector is wanted.
        entities: Whether a language model's reading is wanted.
        timeout_ms: The caller's time limit; None for the gateway's own.
    """

    question: str
    embed: bool
    entities: bool
    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class ChooseRequest:
    """Choose among candidates.

    Attributes:
        question: The question, not blank.
        candidates: At least one.
        limit: Most that may be chosen, from 1.
        timeout_ms: The caller's time limit; None for the gateway's own.
    """

    question: str
    candidates: tuple[Candidate, ...]
    limit: int
    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """Embed texts.

    Attributes:
        texts: At least one.
        input_type: Whether they are to find or to be found.
        timeout_ms: The caller's time limit; None for the gateway's own.
    """

    texts: tuple[str, ...]
    input_type: InputType
    timeout_ms: int | None


def read_understand(argument: str) -> UnderstandRequest:
    """Read the argument of `understand`.

    Raises:
        RefusedError: It is not what it should be (22023), or too much of it (54000).
    """
    fields = _Fields(argument)
    request = UnderstandRequest(
        question=fields.question(),
        embed=fields.boolean("embed", default=True),
        entities=fields.boolean("entities", default=False),
        timeout_ms=fields.timeout_ms(),
    )
    fields.finish()
    if not (request.embed or request.entities):
        raise _wrong("nothing is asked for", 'Set "embed" or "entities" to true.')
    return request


def read_choose(argument: str) -> ChooseRequest:
    """Read the argument of `choose`.

    Raises:
        RefusedError: It is not what it should be (22023), or too much of it (54000).
    """
    fields = _Fields(argument)
    request = ChooseRequest(
        question=fields.question(),
        candidates=tuple(
            _candidate(item) for item in fields.items("candidates", most=MAX_CANDIDATES)
        ),
        limit=fields.integer("limit", MAX_CANDIDATES),
        timeout_ms=fields.timeout_ms(),
    )
    fields.finish()
    return request


def read_embed(argument: str) -> EmbedRequest:
    """Read the argument of `embed`.

    Raises:
        RefusedError: It is not what it should be (22023), or too much of it (54000).
    """
    fields = _Fields(argument)
    texts = fields.items("texts", most=MAX_TEXTS)
    if not all(isinstance(text, str) for text in texts):
        raise _wrong('"texts" must be strings')
    texts = [_checked("texts", text) for text in texts]
    input_type = fields.take("input_type", "question")
    if input_type not in ("question", "passage"):
        raise _wrong('"input_type" must be "question" or "passage"')
    request = EmbedRequest(tuple(texts), input_type, fields.timeout_ms())
    fields.finish()
    return request


_REQUIRED: Final = object()


class _Fields:
    """The members of a JSON object, taken one by one until none is left."""

    def __init__(self, argument: str) -> None:
        try:
            value = json.loads(argument, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise _wrong("the argument is not valid JSON") from None
        if not isinstance(value, dict):
            raise _wrong("the argument is not a JSON object")
        self._left = value
        self._known: list[str] = []

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        self._known.append(name)
        value = self._left.pop(name, default)
        if value is _REQUIRED:
            raise _wrong(f'"{name}" is missing')
        return value

    def question(self) -> str:
        question = self.take("question")
        if not isinstance(question, str) or not question.strip():
            raise _wrong('"question" must be a string that is not blank')
        return _checked("question", question)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise _wrong(f'"{name}" must be true or false')
        return value

    def integer(self, name: str, most: int, default: Any = _REQUIRED) -> int:
        value = self.take(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise _wrong(f'"{name}" must be an integer from 1 to {most}')
        return value

    def items(self, name: str, *, most: int) -> list[Any]:
        value = self.take(name)
        if not isinstance(value, list) or not value:
            raise _wrong(f'"{name}" must be an array that is not empty')
        if len(value) > most:
            raise RefusedError(
                SqlState.TOO_LARGE, f'"{name}" has {len(value)} elements, above {most}'
            )
        return value

    def timeout_ms(self) -> int | None:
        if self._left.get("timeout_ms") is None:
            self.take("timeout_ms", None)
            return None
        return self.integer("timeout_ms", _MAX_TIMEOUT_MS)

    def finish(self) -> None:
        if self._left:
            raise _wrong(
                f"unknown field {json.dumps(next(iter(self._left))[:60])}",
                f"The fields are {', '.join(self._known)}.",
            )


def _candidate(item: Any) -> Candidate:
    if not isinstance(item, dict) or item.keys() - {"title", "text"} or "text" not in item:
        raise _wrong('"candidates" must be objects with "title" and "text"')
    title, text = item.get("title") or "", item["text"]
    if not isinstance(title, str) or not isinstance(text, str):
        raise _wrong('"title" and "text" of candidates must be strings')
    return Candidate(
        clean(title[:CANDIDATE_TITLE_CHARACTERS]), clean(text[:CANDIDATE_TEXT_CHARACTERS])
    )


def _checked(name: str, text: str) -> str:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise RefusedError(
            SqlState.TOO_LARGE,
            f'"{name}" has a text of {len(text)} characters, above {MAX_TEXT_CHARACTERS}',
        )
    return clean(text)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _wrong(message: str, hint: str | None = None) -> RefusedError:
    return RefusedError(SqlState.INVALID_REQUEST, message, hint)
