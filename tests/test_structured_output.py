"""Data out of a language model's answer, whatever the model and the server make of it."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import model_server
import pytest
from model_server import (
    CHAT_MODEL,
    CONTENT_PARTS,
    EMPTY,
    ERROR_IN_200,
    FENCED,
    GOOD,
    INVALID_JSON,
    NO_CHOICES,
    NULL_CONTENT,
    PROSE_AROUND,
    PROSE_ONLY,
    REFUSAL,
    THINKING,
    THINKING_UNOPENED,
    TRUNCATED,
    Behaviour,
    Flavour,
    ModelServer,
    answer,
    body,
    content,
    refused,
    silence,
    status,
)

from sag_pg.errors import EndpointRefusedError, ModelError
from sag_pg.models.budget import Usage
from sag_pg.models.endpoint import Endpoint
from sag_pg.models.settings import ModelSettings
from sag_pg.models.structured_output import complete_json

SCHEMA = {
    "type": "object",
    "properties": {"entities": {"type": "array", "items": {"type": "string"}}},
    "required": ["entities"],
    "additionalProperties": False,
}
QUESTION = "Where did Alan Turing meet Claude Shannon?"
MESSAGES = [
    {"role": "system", "content": "Name the entities."},
    {"role": "user", "content": f'{{"question": "{QUESTION}"}}'},
]
ENTITIES = ("Where", "Alan Turing", "Claude Shannon")
KIND = "question_entities"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def read_entities(value: Any) -> tuple[str, ...]:
    if not isinstance(value.get("entities"), list):
        raise ValueError('"entities" is not a list.')
    return tuple(value["entities"])


def complete(server: ModelServer, times: int = 1, model: str = CHAT_MODEL) -> list[tuple[str, ...]]:
    """Ask one after the other at one endpoint."""

    async def run() -> list[tuple[str, ...]]:
        settings = ModelSettings(base_url=server.url, model_retries=0)
        endpoint = Endpoint(settings, "chat", Usage(), {})
        try:
            return [
                await complete_json(endpoint, model, MESSAGES, KIND, SCHEMA, read_entities)
                for _ in range(times)
            ]
        finally:
            await endpoint.aclose()

    return asyncio.run(run())


def forms(server: ModelServer) -> list[str]:
    return [
        request.body.get("response_format", {"type": "text"})["type"] for request in server.requests
    ]


@pytest.mark.parametrize(
    "behaviour",
    [GOOD, PROSE_AROUND, FENCED, THINKING, THINKING_UNOPENED, CONTENT_PARTS],
    ids=["plain", "prose", "fence", "thoughts", "thoughts without a beginning", "parts"],
)
def test_json_is_found_in_the_answer(server: ModelServer, behaviour: Behaviour) -> None:
    server.script(KIND, behaviour)
    assert complete(server) == [ENTITIES]
    assert server.count() == 1


@pytest.mark.parametrize(
    "text",
    [
        '```json {"entities": ["A"]} ```',
        '```json\n{"entities": ["A"]}',
        'Not ```{"x": 1}``` but\n```JSON\r\n\n{"entities": ["A"]}\n```\nas you said.',
        '{"entities": ["A"]}' + "\n" * 200_000,
        "<think>" + "Hm. " * 100_000 + '</think>{"entities": ["A"]}',
    ],
    ids=["in one line", "without an end", "the second", "long tail", "long thoughts"],
)
def test_json_is_found_wherever_it_is(server: ModelServer, text: str) -> None:
    server.script(KIND, content(text))
    assert complete(server) == [("A",)]


@pytest.mark.parametrize(
    "text",
    [
        "```json" + "\n" * 300_000,
        "```json\n" * 100_000,
        '{"a":[1,' * 50 + "1," * 1_500_000,
        "{ " * 1_000_000,
        "```{}" * 500_000,
        "</think>" * 300_000,
    ],
    ids=["line breaks", "fences", "open objects", "braces", "objects in fences", "thoughts"],
)
def test_no_answer_takes_long_to_read(text: str) -> None:
    from sag_pg.models.structured_output import _read_objects

    began = time.monotonic()
    assert len(list(_read_objects(text, only_whole=False))) <= 100
    # Milliseconds it is; what was not linear took seconds up to hours.
    assert time.monotonic() - began < 2


def test_complete_answer_counts_though_it_ran_into_the_limit(server: ModelServer) -> None:
    # Some models go on with white space until they are stopped.
    choice = {"message": {"content": '{"entities": ["A"]}\n\n\n'}, "finish_reason": "length"}
    server.script(KIND, body({"choices": [choice]}))
    assert complete(server) == [("A",)]


BROKEN = {
    "empty": (EMPTY, "empty"),
    "null": (NULL_CONTENT, "empty"),
    "no choices": (NO_CHOICES, "empty"),
    "error in 200": (ERROR_IN_200, "empty"),
    "no object": (body([1]), "empty"),
    "invalid": (INVALID_JSON, "no JSON object"),
    "prose": (PROSE_ONLY, "no JSON object"),
    "a list": (answer(["A"]), "no JSON object"),
    "truncated": (TRUNCATED, "cut off"),
    "truncated silently": (content('{"entities": [{"name": "A"}, {"name"'), "none of the keys"),
    "only thoughts": (content('<think>{"entities": ["A"]}, or'), "no JSON object"),
    "refusal": (REFUSAL, "refused to answer"),
    "other keys": (answer({"error": "no"}), "none of the keys entities"),
    "invalid value": (answer({"entities": None}), '"entities" is not a list'),
    "braces": (content("{" * 5000), "no JSON object"),
    "deep": (content('{"entities": ' + "[" * 100_000), "no JSON object"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_useless_answer_is_repaired_once(server: ModelServer, name: str) -> None:
    behaviour, fault = BROKEN[name]
    server.script(KIND, behaviour)
    assert complete(server) == [ENTITIES]
    first, second = server.bodies(KIND)
    assert second["messages"][: len(MESSAGES)] == first["messages"] == MESSAGES
    *shown, request = second["messages"][len(MESSAGES) :]
    assert fault in request["content"]
    assert '"entities"' in request["content"]
    # The model sees what it said, but not all of it.
    assert [message["role"] for message in shown] == ["assistant"] * bool(shown)
    assert all(len(message["content"]) <= 2000 for message in shown)


@pytest.mark.parametrize("name", BROKEN)
def test_useless_answer_to_the_repair_is_an_error(server: ModelServer, name: str) -> None:
    behaviour, fault = BROKEN[name]
    server.always(KIND, behaviour)
    with pytest.raises(ModelError, match="asked twice") as caught:
        complete(server)
    assert fault in str(caught.value)
    assert QUESTION not in str(caught.value)
    assert caught.value.hint
    assert server.count() == 2


@pytest.mark.parametrize(
    ("flavour", "form"),
    [
        ("openai", "json_schema"),
        ("vllm", "json_schema"),
        ("deepseek", "json_object"),
        ("plain", "text"),
    ],
)
def test_strictest_form_that_the_server_knows_is_found_once(
    server: ModelServer, flavour: Flavour, form: str
) -> None:
    server.flavour = flavour
    assert complete(server, times=3) == [ENTITIES] * 3
    tried = ["json_schema", "json_object", "text"]
    assert forms(server) == [*tried[: tried.index(form)], form, form, form]
    last = server.requests[-1].body
    if form == "json_schema":
        assert last["response_format"]["json_schema"] == {
            "name": KIND,
            "strict": True,
            "schema": SCHEMA,
        }
    else:
        assert last["messages"][1:] == MESSAGES[1:]
        assert last["messages"][0]["content"].startswith(MESSAGES[0]["content"])
        assert '"required": ["entities"]' in last["messages"][0]["content"]


WORDS = [
    words_of for words_of, parameter in model_server.REFUSALS if parameter == "response_format"
]


@pytest.mark.parametrize("words_of", WORDS)
def test_refused_response_format_is_left_out(server: ModelServer, words_of: str) -> None:
    server.refuse("response_format", words_of)
    assert complete(server, times=2) == [ENTITIES] * 2
    assert forms(server) == ["json_schema", "json_object", "text", "text"]


@pytest.mark.parametrize("words_of", ["openai", "litellm"])
def test_refused_temperature_is_left_out(server: ModelServer, words_of: str) -> None:
    server.refuse("temperature", words_of)
    assert complete(server, times=2) == [ENTITIES] * 2
    assert ["temperature" in request.body for request in server.requests] == [True, False, False]
    assert forms(server) == ["json_schema"] * 3


def test_temperature_and_format_are_refused(server: ModelServer) -> None:
    server.flavour = "deepseek"
    server.refuse("temperature", "openai")
    assert complete(server, times=2) == [ENTITIES] * 2
    assert forms(server) == ["json_schema", "json_schema", "json_object", "json_object"]


def test_refusal_of_a_text_weakens_nothing(server: ModelServer) -> None:
    server.script(KIND, GOOD, status(400, "The prompt was filtered"), GOOD)
    with pytest.raises(ModelError, match="The prompt was filtered"):
        complete(server, times=2)
    assert forms(server) == ["json_schema", "json_schema"]


def test_text_that_is_refused_in_each_form(server: ModelServer) -> None:
    server.always(KIND, status(400, "The prompt was filtered"))
    with pytest.raises(ModelError, match="The prompt was filtered"):
        complete(server)
    assert forms(server) == ["json_schema", "json_object", "text"]


def test_what_one_model_refuses_another_may_know(server: ModelServer) -> None:
    async def run() -> None:
        settings = ModelSettings(base_url=server.url, model_retries=0)
        endpoint = Endpoint(settings, "chat", Usage(), {})
        for model in ("old", "new"):
            await complete_json(endpoint, model, MESSAGES, KIND, SCHEMA, read_entities)
        await endpoint.aclose()

    server.script(KIND, refused("response_format", "openai"))
    asyncio.run(run())
    assert forms(server) == ["json_schema", "json_object", "json_schema"]


def test_wrong_key_and_address_stay_final(server: ModelServer) -> None:
    server.always(KIND, status(401, "Invalid key"))
    with pytest.raises(EndpointRefusedError, match="Invalid key"):
        complete(server)
    assert server.count() == 1
    server.always(KIND, status(404, "Not Found"))
    with pytest.raises(EndpointRefusedError, match="has nothing at"):
        complete(server)


def test_many_at_once_find_the_form_together(server: ModelServer) -> None:
    async def run() -> list[tuple[str, ...]]:
        settings = ModelSettings(base_url=server.url, model_retries=0)
        endpoint = Endpoint(settings, "chat", Usage(), {})
        try:
            return await asyncio.gather(
                *(
                    complete_json(endpoint, CHAT_MODEL, MESSAGES, KIND, SCHEMA, read_entities)
                    for _ in range(20)
                )
            )
        finally:
            await endpoint.aclose()

    server.flavour = "plain"
    server.delay = 0.1
    assert asyncio.run(run()) == [ENTITIES] * 20
    # One finds it out, and the others know it.
    assert server.count() == 3 + 19
    assert server.peak > 1


def test_dead_server_is_not_asked_one_at_a_time(server: ModelServer) -> None:
    async def run() -> list[Any]:
        settings = ModelSettings(base_url=server.url, model_retries=0, model_timeout=0.5)
        endpoint = Endpoint(settings, "chat", Usage(), {})
        ask = [
            complete_json(endpoint, CHAT_MODEL, MESSAGES, KIND, SCHEMA, read_entities)
            for _ in range(6)
        ]
        try:
            return await asyncio.gather(*ask, return_exceptions=True)
        finally:
            await endpoint.aclose()

    server.always(KIND, silence(30))
    outcomes = asyncio.run(run())
    assert all(isinstance(outcome, ModelError) for outcome in outcomes)
    assert server.peak > 1
