"""The choice by a reranking model behind `/rerank`."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from model_server import RERANK_MODEL, WRONG_IDS, ModelServer, body, rate_limited, status

from sag_pg.errors import EndpointRefusedError, ModelError
from sag_pg.models.base import Candidate
from sag_pg.models.budget import Usage
from sag_pg.models.endpoint import Endpoint
from sag_pg.models.openai_rerank import OpenAIRerank
from sag_pg.models.settings import ModelSettings

KIND = "rerank"
QUESTION = "who wrote the red book"
CANDIDATES = [
    Candidate("Cooking", "Boil an egg."),
    Candidate("", "Who wrote it?"),
    Candidate("The Red Book", "Carl Jung wrote the red book."),
    Candidate("Red", "A colour."),
]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def choose(
    server: ModelServer, limit: int = 3, candidates: Sequence[Candidate] = CANDIDATES
) -> tuple[int, ...]:
    async def run() -> tuple[int, ...]:
        settings = ModelSettings(base_url="http://unused", rerank_base_url=server.url)
        endpoint = Endpoint(settings, "rerank", Usage(), {"OPENAI_API_KEY": "sk-canary"})
        try:
            return await OpenAIRerank(endpoint, RERANK_MODEL).choose(QUESTION, candidates, limit)
        finally:
            await endpoint.aclose()

    return asyncio.run(run())


def test_best_come_first(server: ModelServer) -> None:
    assert choose(server) == (2, 1, 3)
    assert server.bodies(KIND) == [
        {
            "model": RERANK_MODEL,
            "query": QUESTION,
            "documents": [
                "Cooking\nBoil an egg.",
                "Who wrote it?",
                "The Red Book\nCarl Jung wrote the red book.",
                "Red\nA colour.",
            ],
            "top_n": 3,
        }
    ]
    assert server.requests[0].headers["authorization"] == "Bearer sk-canary"


def test_limit_beyond_the_candidates(server: ModelServer) -> None:
    assert sorted(choose(server, limit=50)) == [0, 1, 2, 3]
    assert server.bodies(KIND)[0]["top_n"] == 4


def test_one_candidate_needs_no_request(server: ModelServer) -> None:
    assert choose(server, candidates=CANDIDATES[:1]) == (0,)
    assert choose(server, candidates=[]) == ()
    assert server.count() == 0


def test_inventions_and_duplicates_are_dropped(server: ModelServer) -> None:
    server.script(KIND, WRONG_IDS)
    assert choose(server) == (2, 1, 3)


@pytest.mark.parametrize(
    ("results", "chosen"),
    [
        # Not in the order of the scores, more than asked for, and equal scores.
        ([(3, 0.1), (0, 0.9), (2, 0.9), (1, 0.5)], (0, 2, 1)),
        # Logits, as some servers give them.
        ([(1, -7.5), (2, 3.25)], (2, 1)),
        ([(1, None), (2, "0.5"), (3, 0.2)], (3,)),
        ([(True, 0.9), (0, 0.1), (1, float("nan"))], (0,)),
        ([(0, float("inf")), (1, -float("inf")), (3, 0.2), (2, True)], (3,)),
        ([(0, -(10**400)), (1, 10**400), (3, 0.2), (10**400, 0.3)], (1, 3, 0)),
    ],
)
def test_scores_decide(
    server: ModelServer, results: list[tuple[int, float]], chosen: tuple[int, ...]
) -> None:
    stated = [{"index": index, "relevance_score": score} for index, score in results]
    server.script(KIND, body({"results": stated}))
    assert choose(server) == chosen


@pytest.mark.parametrize(
    "useless", [{}, [], None, {"results": None}, {"results": []}, {"results": ["a"]}]
)
def test_useless_answer_is_asked_for_once_more(server: ModelServer, useless: object) -> None:
    server.script(KIND, body(useless))
    assert choose(server) == (2, 1, 3)
    assert server.count() == 2
    server.always(KIND, body(useless))
    with pytest.raises(ModelError, match="scored none of the candidates"):
        choose(server)


def test_busy_server_is_waited_for(server: ModelServer) -> None:
    server.script(KIND, rate_limited("0.1"))
    assert choose(server) == (2, 1, 3)


def test_server_without_rerank(server: ModelServer) -> None:
    server.script(KIND, status(404, "Not Found"))
    with pytest.raises(EndpointRefusedError, match="has nothing at /rerank"):
        choose(server)
