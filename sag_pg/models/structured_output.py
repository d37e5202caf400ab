"""A language model's answer as checked data, whatever form the endpoint can be held to.

Endpoints differ in what they can promise: an answer that fits a JSON schema, an answer in JSON,
or text. Asking for more than an endpoint knows is refused, in as many words as there are servers,
so that it is tried: from the strictest form down, once per model, and remembered.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from sag_pg.errors import ModelError
from sag_pg.models.endpoint import Endpoint, NotFoundError, RequestRejectedError

T = TypeVar("T")

Message = Mapping[str, str]
AnswerForm = Literal["json_schema", "json_object", "text"]

_WEAKER: Mapping[AnswerForm, AnswerForm] = {"json_schema": "json_object", "json_object": "text"}

_PATH = "/chat/completions"

# Of an answer that is not JSON as a whole, so much is searched for some. An object is looked for
# up to the end from many a brace, while others wait for this thread.
_MOST_SEARCHED = 100_000
# As much of a useless answer as the model needs to see what was wrong with it.
_SHOWN_ANSWER = 2000
# Prose holds few braces and fences; an answer that is nothing but those is given up.
_MAX_OBJECT_STARTS = 50


@dataclass(slots=True)
class _Ability:
    """What is known of a model at an endpoint.

    Attributes:
        form: The strictest form of answer that is still to be tried or is known to work.
        is_sure: Whether an answer came in that form, so that no refusal is blamed on it again.
        takes_temperature: Whether it lets its temperature be set.
        is_tried: Whether a first request has ended, well or not.
    """

    form: AnswerForm = "json_schema"
    is_sure: bool = False
    takes_temperature: bool = True
    is_tried: bool = False
    _turn: asyncio.Lock | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def turn(self) -> asyncio.Lock:
        """The lock of the running event loop, which the first request holds."""
        loop = asyncio.get_running_loop()
        if self._turn is None or self._loop is not loop:
            self._turn, self._loop = asyncio.Lock(), loop
        return self._turn


_abilities: WeakKeyDictionary[Endpoint, dict[str, _Ability]] = WeakKeyDictionary()


class _UnusableAnswerError(ValueError):
    """Why an answer cannot be used, and the answer."""

    def __init__(self, fault: str, answer: str) -> None:
        super().__init__(fault)
        self.fault = fault
        self.answer = answer


async def complete_json(
    endpoint: Endpoint,
    model: str,
    messages: Sequence[Message],
    schema_name: str,
    schema: Mapping[str, Any],
    validate: Callable[[Any], T],
) -> T:
    """Ask a language model for data in a given form.

    An answer that cannot be used (refused, empty, cut off, not JSON, not valid) is asked for once
    more, with the answer and its fault shown to the model.

    Args:
        endpoint: Where the model is.
        model: Its name there.
        messages: The conversation, `{"role", "content"}` each, instructions first. The schema is
            added to the first where the endpoint is not held to it.
        schema_name: Name of the form, letters and underscores.
        schema: JSON schema of an object; OpenAI's strict mode wants each property required and
            `additionalProperties` false.
        validate: Makes the result of the decoded JSON object, which need not fit the schema;
            raises ValueError with a short reason, which is shown to the model and stands in the
            error: it should hold nothing of the text.

    Returns:
        What `validate` returns.

    Raises:
        EndpointRefusedError, BudgetExhaustedError: As `Endpoint.post`.
        ModelError: No answer, or none that can be used.
    """
    form = {"name": schema_name, "strict": True, "schema": schema}
    try:
        return _use(await _ask(endpoint, model, messages, form), schema, validate)
    except _UnusableAnswerError as error:
        fault = error
    repair: list[Message] = [*messages]
    if fault.answer:
        repair.append({"role": "assistant", "content": fault.answer[:_SHOWN_ANSWER]})
    repair.append(
        {
            "role": "user",
            "content": f"This answer cannot be used: {fault.fault}. Answer again. "
            + _describe(schema),
        }
    )
    try:
        return _use(await _ask(endpoint, model, repair, form), schema, validate)
    except _UnusableAnswerError as error:
        failure = ModelError(
            f"The model {model} gave no usable answer, asked twice: {error.fault}.",
            "Another model may do better.",
        )
    raise failure


async def _ask(
    endpoint: Endpoint, model: str, messages: Sequence[Message], form: Mapping[str, Any]
) -> Any:
    """Send a request in the strictest form that the model is not known to refuse.

    All others wait for the first one to end, so that not each of many finds out for itself.
    """
    ability = _abilities.setdefault(endpoint, {}).setdefault(model, _Ability())
    if not ability.is_tried:
        async with ability.turn():
            if not ability.is_tried:
                try:
                    return await _descend(endpoint, model, messages, form, ability)
                finally:
                    ability.is_tried = True
    return await _descend(endpoint, model, messages, form, ability)


async def _descend(
    endpoint: Endpoint,
    model: str,
    messages: Sequence[Message],
    form: Mapping[str, Any],
    ability: _Ability,
) -> Any:
    """Send a request, and again in a weaker form as long as it is refused."""
    form_sent, with_temperature = ability.form, ability.takes_temperature
    while True:
        body = _body(model, messages, form, form_sent, with_temperature)
        try:
            answer = await endpoint.post(_PATH, body, model)
        except (RequestRejectedError, NotFoundError) as error:
            words = error.server_words if isinstance(error, RequestRejectedError) else ""
            if with_temperature and "temperature" in words.lower():
                with_temperature = False
                continue
            # Once a form has worked, it is the text that is refused.
            if form_sent == "text" or (ability.is_sure and ability.form == form_sent):
                raise
            form_sent = _WEAKER[form_sent]
        else:
            # A request beside this one may have found out meanwhile that more is possible.
            if not ability.is_sure:
                ability.form, ability.is_sure = form_sent, True
            ability.takes_temperature = with_temperature
            return answer


def _body(
    model: str,
    messages: Sequence[Message],
    form: Mapping[str, Any],
    form_sent: AnswerForm,
    with_temperature: bool,
) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "messages": list(messages)}
    # The same passage should give the same entities. No limit of tokens is sent: the parameter
    # has two names, and each is refused by some server.
    if with_temperature:
        body["temperature"] = 0
    if form_sent == "json_schema":
        body["response_format"] = {"type": "json_schema", "json_schema": dict(form)}
        return body
    if form_sent == "json_object":
        body["response_format"] = {"type": "json_object"}
    # JSON mode is refused by OpenAI and DeepSeek unless the conversation says "JSON".
    first, *others = messages
    content = f"{first['content']}\n\n{_describe(form['schema'])}"
    body["messages"] = [{**first, "content": content}, *others]
    return body


def _describe(schema: Mapping[str, Any]) -> str:
    return (
        "Answer with one JSON object and nothing else. It must fit this JSON schema: "
        + json.dumps(schema, ensure_ascii=False)
    )


def _use(answer: Any, schema: Mapping[str, Any], validate: Callable[[Any], T]) -> T:
    text, is_cut_off = _read_text(answer)
    properties = schema.get("properties", {}).keys()
    fault = "it was cut off, be shorter" if is_cut_off else "it holds no JSON object"
    for value in _read_objects(text, only_whole=is_cut_off):
        # A part of a broken answer, such as a single entity, is a JSON object as well.
        if not properties & value.keys():
            fault = "the JSON object has none of the keys " + ", ".join(sorted(properties))
            continue
        try:
            return validate(value)
        except ValueError as error:
            fault = str(error).rstrip(".")
    raise _UnusableAnswerError(fault, text) from None


def _read_text(answer: Any) -> tuple[str, bool]:
    """Take the text out of a chat answer. Returns it and whether it was cut off."""
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _UnusableAnswerError("it is empty", "") from None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    reason = choice.get("finish_reason")
    if refusal and not content:
        raise _UnusableAnswerError("the model refused to answer", "")
    if not isinstance(content, str) or not content.strip():
        fault = (
            "the answer was withheld by a content filter"
            if reason == "content_filter"
            else ("it was cut off before it began" if reason == "length" else "it is empty")
        )
        raise _UnusableAnswerError(fault, "")
    return content, reason == "length"


def _read_objects(text: str, *, only_whole: bool) -> Iterator[dict[str, Any]]:
    """Find the JSON objects in a text: the whole of it, in fences, within prose."""
    # Some servers leave the thoughts in the answer, and some leave out where they begin.
    text = text.rpartition("</think>")[2].strip()
    if text.startswith("<think>"):
        return
    searched = text[:_MOST_SEARCHED]
    # Behind the marks of a fence stands the language, if any.
    pieces = searched.split("```", _MAX_OBJECT_STARTS)[1:]
    fenced = (piece.lstrip(ascii_letters) for piece in pieces)
    for candidate in (text, *fenced):
        value = _decode(candidate)
        if isinstance(value, dict):
            yield value
    if not only_whole:
        yield from _scan_objects(searched)


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _scan_objects(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    start = text.find("{")
    for _ in range(_MAX_OBJECT_STARTS):
        if start < 0:
            return
        try:
            value, end = decoder.raw_decode(text, start)
        except RecursionError:
            return
        except ValueError:
            end = start + 1
        else:
            yield value
        start = text.find("{", end)
