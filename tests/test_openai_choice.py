"""The choice among candidates by a language model."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import model_server
import pytest
from model_server import ModelServer

from sag_pg.errors import ModelError
from sag_pg.models.base import Candidate
from sag_pg.models.load import load_chooser
from sag_pg.models.prompts import load_prompt
from sag_pg.models.settings import ModelSettings

CANDIDATES = [Candidate(f"Title {number}", f"Text {number}") for number in range(1, 9)]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def choose(
    server: ModelServer,
    candidates: Sequence[Candidate] = CANDIDATES,
    limit: int = 5,
    question: str = "Who?",
) -> tuple[int, ...]:
    settings = ModelSettings.from_environment(
        {}, base_url=server.url, chat_model="test-chat", model_retries=0
    )
    chooser = load_chooser(settings)
    assert chooser is not None
    assert chooser.name == "openai:test-chat+choice-1"
    return asyncio.run(chooser.choose(question, candidates, limit))


def test_what_is_asked(server: ModelServer) -> None:
    long = Candidate("t" * 1000, "x" * 499 + "yz\x00")
    assert choose(server, [long, *CANDIDATES], limit=3) == (0, 1, 2)
    (body,) = server.bodies("choice")
    system, user = body["messages"]
    assert system["content"] == load_prompt("choice-1", "en")
    asked = json.loads(user["content"])
    assert set(asked) == {"question", "candidates", "limit"}
    assert asked["candidates"][0] == {"number": 1, "title": "t" * 200, "text": "x" * 499 + "y"}
    assert [entry["number"] for entry in asked["candidates"]] == list(range(1, 10))
    # No room for a chain of thought, nor for anything else.
    schema = body["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == schema["required"] == ["chosen"]


def test_chinese_is_asked_in_chinese(server: ModelServer) -> None:
    choose(server, question="首席技术官是谁？")
    (body,) = server.bodies("choice")
    assert body["messages"][0]["content"] == load_prompt("choice-1", "zh")


def test_one_candidate_needs_no_call(server: ModelServer) -> None:
    assert choose(server, CANDIDATES[:1]) == (0,)
    assert choose(server, []) == ()
    assert server.count() == 0


@pytest.mark.parametrize(
    ("stated", "chosen"),
    [
        ([7, 2, 5], (6, 1, 4)),
        ([3, 3, 0, -1, 9, 10**30, 8, 3], (2, 7)),
        (["4", " 2 ", "two", 1.0, 1.5, True, None, [6], {"number": 6}], (3, 1, 0, 5)),
        ([8, 7, 6, 5, 4, 3, 2, 1], (7, 6, 5, 4, 3)),
    ],
)
def test_inventions_and_duplicates_are_dropped(
    server: ModelServer, stated: Any, chosen: tuple[int, ...]
) -> None:
    server.script("choice", model_server.answer({"chosen": stated}))
    assert choose(server) == chosen
    assert server.count() == 1


def test_wrong_ids_among_good_ones(server: ModelServer) -> None:
    server.script("choice", model_server.WRONG_IDS)
    assert choose(server, limit=2) == (0, 1)


@pytest.mark.parametrize(
    "answer", [{"chosen": []}, {"chosen": [99]}, {"chosen": None}, {"best": [1]}, {"chosen": "1"}]
)
def test_a_choice_of_nothing_is_repaired_once(server: ModelServer, answer: Any) -> None:
    server.script("choice", model_server.answer(answer))
    assert choose(server, limit=1) == (0,)
    assert server.count() == 2
    server.always("choice", model_server.answer(answer))
    with pytest.raises(ModelError):
        choose(server)
    assert server.count() == 4


def test_a_reranker_goes_before_a_language_model(server: ModelServer) -> None:
    settings = ModelSettings.from_environment(
        {}, base_url=server.url, chat_model="test-chat", rerank_model="test-rerank"
    )
    chooser = load_chooser(settings)
    assert chooser is not None
    candidates = [Candidate("", "nothing"), Candidate("Quiet Margin", "a ship")]
    assert asyncio.run(chooser.choose("Which ship is Quiet?", candidates, 1)) == (1,)
    assert (server.count("rerank"), server.count("choice")) == (1, 0)
    assert load_chooser(ModelSettings.from_environment({})) is None
