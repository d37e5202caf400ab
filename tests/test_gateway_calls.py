"""The gateway's calls: what they take, what they answer, and what bounds them."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from model_server import EMBEDDING_MODEL, GOOD, INVALID_JSON, ModelServer, answer, silence, status
from running_gateway import captured_log, language_models

from sag_pg.gateway.cache import AnswerCache
from sag_pg.gateway.calls import Calls, Models
from sag_pg.gateway.limits import Limits
from sag_pg.gateway.metrics import CallMetrics
from sag_pg.gateway.refusal import RefusedError
from sag_pg.gateway.statement import Call
from sag_pg.models.budget import Usage
from sag_pg.models.load import load_embedding_model
from sag_pg.models.local_embedding import bge_small_en
from sag_pg.models.settings import ModelSettings
from sag_pg.models.threaded_embedding import ThreadedEmbedding

QUESTION = "Who directed the film Alpha Beta?"
CANDIDATES = [{"title": f"Title {n}", "text": f"Text {n}"} for n in range(5)]


@pytest.fixture(scope="module")
def embedding() -> ThreadedEmbedding:
    return ThreadedEmbedding(bge_small_en())


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def endpoint_embedding(server: ModelServer) -> Any:
    """The real provider of embeddings, which has not asked its endpoint for anything yet."""
    settings = ModelSettings.from_environment({}, base_url=server.url, model_retries=0)
    return load_embedding_model(f"openai:{EMBEDDING_MODEL}", settings)


class Session:
    """Calls, each run to its end."""

    def __init__(self, models: Models, limits: Limits | None = None, **options: Any) -> None:
        self.usage = options.pop("usage", Usage())
        self.calls = Calls(models, limits or Limits(), self.usage)

    def ask(self, *requests: tuple[str, Any]) -> list[Any]:
        """Make calls one after the other in one event loop; refusals are returned."""

        async def run() -> list[Any]:
            return [await self.outcome(name, request) for name, request in requests]

        return asyncio.run(run())

    def ask_at_once(self, *requests: tuple[str, Any]) -> list[Any]:
        """Make calls at the same time."""

        async def run() -> list[Any]:
            return await asyncio.gather(*(self.outcome(*request) for request in requests))

        return asyncio.run(run())

    async def outcome(self, name: str, request: Any) -> Any:
        argument = request if isinstance(request, str | None) else json.dumps(request)
        try:
            return json.loads(await self.calls.answer(Call(name, argument), 1))
        except RefusedError as refused:
            return refused

    def status(self) -> Any:
        return self.ask(("status", None))[0]


def understand(question: str = QUESTION, **options: Any) -> tuple[str, Any]:
    return "understand", {"question": question, **options}


def choose(candidates: Sequence[Any] = tuple(CANDIDATES), **options: Any) -> tuple[str, Any]:
    return "choose", {"question": QUESTION, "candidates": candidates, "limit": 3, **options}


def embed(*texts: str, **options: Any) -> tuple[str, Any]:
    return "embed", {"texts": texts, **options}


@pytest.mark.parametrize(
    ("request_", "sqlstate", "message"),
    [
        (("understand", "{"), "22023", "not valid JSON"),
        (("understand", "[]"), "22023", "not a JSON object"),
        (("understand", '{"question": NaN}'), "22023", "not valid JSON"),
        (("understand", "[" * 100_000), "22023", "not valid JSON"),
        (("understand", {}), "22023", '"question" is missing'),
        (understand(" \n"), "22023", "not blank"),
        (("understand", {"question": 7}), "22023", '"question" must be a string'),
        (understand("x" * 32_769), "54000", "above 32768"),
        (understand(embed=1), "22023", '"embed" must be true or false'),
        (understand(embed=False), "22023", "nothing is asked for"),
        (understand(timeout_ms=0), "22023", "integer from 1"),
        (understand(timeout_ms=True), "22023", "integer from 1"),
        (understand(timeout_ms=1.5), "22023", "integer from 1"),
        (understand(verbose=True), "22023", 'unknown field "verbose"'),
        (choose([]), "22023", "not empty"),
        (choose([{"text": "x"}] * 201), "54000", "above 200"),
        (choose([{"title": "x"}]), "22023", '"candidates" must be objects'),
        (choose(["x"]), "22023", '"candidates" must be objects'),
        (choose([{"text": 1}]), "22023", "must be strings"),
        (choose(limit=0), "22023", '"limit" must be an integer'),
        (("choose", {"question": "x", "candidates": CANDIDATES}), "22023", '"limit" is missing'),
        (embed(), "22023", "not empty"),
        (("embed", {"texts": "x"}), "22023", "must be an array"),
        (("embed", {"texts": [None]}), "22023", '"texts" must be strings'),
        (embed(*"x" * 257), "54000", "above 256"),
        (embed("x" * 32_769), "54000", "above 32768"),
        (embed("x", input_type="answer"), "22023", '"input_type" must be'),
    ],
)
def test_requests_are_checked_before_any_work(
    request_: tuple[str, Any], sqlstate: str, message: str
) -> None:
    (refused,) = Session(Models()).ask(request_)
    assert isinstance(refused, RefusedError)
    assert refused.sqlstate == sqlstate
    assert message in str(refused)


def test_without_models_each_call_says_what_is_missing() -> None:
    session = Session(Models())
    found, entities, chosen, embedded = session.ask(
        understand(), understand(embed=False, entities=True), choose(), embed("x")
    )
    assert found == {
        "model": None,
        "dimensions": None,
        "embedding": None,
        "embedding_reason": "no embedding model",
        "entities": [],
        "warnings": [],
    }
    for refused in (entities, chosen, embedded):
        assert refused.sqlstate == "55000"
        assert refused.hint.startswith("Start sag-pg serve with ")


def test_embeddings_are_those_of_the_model(embedding: ThreadedEmbedding) -> None:
    model = bge_small_en()
    understood, questions, passages = Session(Models(embedding=embedding)).ask(
        understand(),
        embed(QUESTION, "two", QUESTION, input_type="question"),
        embed(QUESTION, "", "谁是导演？", input_type="passage"),
    )
    assert (understood["model"], understood["dimensions"]) == (model.name, 384)
    assert understood["embedding_reason"] is None
    assert np.allclose(understood["embedding"], model.embed_question(QUESTION), atol=1e-6)
    assert questions["embeddings"][0] == questions["embeddings"][2] == understood["embedding"]
    expected = model.embed_passages([QUESTION])[0]
    assert np.allclose(passages["embeddings"][0], expected, atol=1e-6)
    assert passages["embeddings"][1:] == [None, None]


def test_a_question_in_an_unknown_script_has_no_embedding(embedding: ThreadedEmbedding) -> None:
    (understood,) = Session(Models(embedding=embedding)).ask(understand("这部电影的导演是谁？"))
    assert understood["embedding"] is None
    assert understood["embedding_reason"] == "script"


def test_many_texts_are_embedded_in_order(embedding: ThreadedEmbedding) -> None:
    texts = [f"Text number {number}." for number in range(20)]
    session = Session(Models(embedding=embedding))
    (all_at_once,) = session.ask(embed(*texts, input_type="passage"))
    expected = bge_small_en().embed_passages(texts)
    assert np.allclose(all_at_once["embeddings"], expected, atol=1e-6)


def test_entities_of_a_language_model_come_with_embeddings(
    server: ModelServer, embedding: ThreadedEmbedding
) -> None:
    models = language_models(server.url)
    models = Models(embedding, models.reader, models.chooser)
    server.script("question_entities", answer({"entities": ["Alpha Beta", "导演"]}))
    both, names_only = Session(models).ask(
        understand(entities=True), understand("Where is Rome?", embed=False, entities=True)
    )
    assert [entity["name"] for entity in both["entities"]] == ["Alpha Beta", "导演"]
    # As names are embedded when they are ingested.
    expected = bge_small_en().embed_passages(["Alpha Beta"])[0]
    assert np.allclose(both["entities"][0]["embedding"], expected, atol=1e-6)
    assert both["entities"][1]["embedding"] is None
    assert both["embedding"] is not None and both["warnings"] == []
    assert names_only["embedding"] is None
    assert all(entity["embedding"] is None for entity in names_only["entities"])
    assert names_only["entities"]


def test_a_failed_half_is_a_warning_and_is_tried_again(
    server: ModelServer, embedding: ThreadedEmbedding
) -> None:
    models = Models(embedding, language_models(server.url).reader)
    server.script("question_entities", INVALID_JSON, INVALID_JSON, GOOD)
    session = Session(models)
    with captured_log() as lines:
        first, second, status = session.ask(
            understand(entities=True), understand(entities=True), ("status", None)
        )
    assert first["embedding"] is not None
    assert first["entities"] == []
    # It counts as an error, and the log says of which part.
    assert status["calls"]["understand"]["errors"] == 1
    failed, whole = [line for line in lines() if line["event"] == "call"][:2]
    assert failed["failed_parts"] == [
        {"part": "entities", "sqlstate": "58000", "reason": "ModelError"}
    ]
    assert "failed_parts" not in whole
    (warning,) = first["warnings"]
    assert (warning["part"], warning["sqlstate"]) == ("entities", "58000")
    assert "no usable answer" in warning["message"] and warning["hint"]
    assert second["entities"] and second["warnings"] == []


def test_names_that_cannot_be_embedded_come_without_vectors(server: ModelServer) -> None:
    server.always("embedding", status(500))
    models = Models(endpoint_embedding(server), language_models(server.url).reader)
    (understood,) = Session(models).ask(understand(entities=True))
    assert understood["entities"]
    assert {entity["embedding"] for entity in understood["entities"]} == {None}
    assert understood["embedding"] is understood["embedding_reason"] is None
    parts = [warning.pop("part") for warning in understood["warnings"]]
    assert parts == ["entity_embeddings", "embedding"]
    for warning in understood["warnings"]:
        assert warning.keys() == {"sqlstate", "message", "hint"}
        assert warning["sqlstate"] == "58000"


def test_when_all_halves_fail_both_say_why(server: ModelServer) -> None:
    server.always("embedding", status(500))
    session = Session(Models(endpoint_embedding(server)))
    with captured_log() as lines:
        (refused,) = session.ask(understand(entities=True))
    # Of the two, that of the embedding, which the retrieval misses more.
    assert refused.sqlstate == "58000"
    assert "500" in str(refused) and "no language model" in str(refused)
    assert lines()[-1]["reason"] == "ModelError"


def test_the_length_of_vectors_is_not_asked_for_beforehand(server: ModelServer) -> None:
    server.always("embedding", status(500))
    language = language_models(server.url)
    models = Models(endpoint_embedding(server), language.reader, language.chooser)
    session = Session(models)
    assert session.status()["dimensions"] is None
    assert server.count() == 0
    understood, chosen = session.ask(understand(entities=True), choose())
    assert understood["entities"] and understood["dimensions"] is None
    assert chosen["chosen"]
    server.always("embedding", GOOD)
    (understood,) = session.ask(understand(entities=True))
    assert understood["dimensions"] == len(understood["embedding"]) == server.dimensions
    assert session.status()["dimensions"] == server.dimensions
    # Where it is known otherwise, it is told at once.
    assert Session(Models(models.embedding, dimensions=7)).status()["dimensions"] == 7


def test_when_all_halves_fail_the_call_fails(server: ModelServer) -> None:
    server.always("question_entities", status(500))
    (refused,) = Session(language_models(server.url)).ask(understand(embed=False, entities=True))
    assert refused.sqlstate == "58000"


def test_a_slow_language_model_costs_its_half_only(
    server: ModelServer, embedding: ThreadedEmbedding
) -> None:
    server.always("question_entities", silence(30))
    models = Models(embedding, language_models(server.url).reader)
    session = Session(models, Limits(call_seconds=20))
    (understood,) = session.ask(understand(entities=True, timeout_ms=500))
    assert understood["embedding"] is not None
    assert "in time" in understood["warnings"][0]["message"]
    assert "gateway_timeout" in understood["warnings"][0]["hint"]


@pytest.mark.parametrize(("seconds", "timeout_ms"), [(0.2, 25_000), (25, 200)])
def test_the_shorter_time_limit_holds(server: ModelServer, seconds: float, timeout_ms: int) -> None:
    server.always("choice", silence(30))
    session = Session(language_models(server.url), Limits(call_seconds=seconds))
    (refused,) = session.ask(choose(timeout_ms=timeout_ms))
    assert refused.sqlstate == "58000"
    assert "in time" in str(refused)
    assert session.status()["running"] == 0


def test_choices_are_numbers_from_one(server: ModelServer) -> None:
    server.script("choice", answer({"chosen": [4, 2]}))
    session = Session(language_models(server.url))
    chosen, single = session.ask(choose(), choose(CANDIDATES[:1]))
    assert chosen["chosen"] == [4, 2]
    assert single["chosen"] == [1]
    assert server.count("choice") == 1
    # One that needs no choice is no answer out of the cache.
    calls = session.status()["calls"]["choose"]
    assert (calls["count"], calls["cache_hits"]) == (2, 0)


def test_a_model_sees_no_more_than_the_beginning_of_a_candidate(server: ModelServer) -> None:
    long = {"title": "t" * 5000, "text": "x" * 5000}
    (chosen,) = Session(language_models(server.url)).ask(choose([long, *CANDIDATES]))
    assert chosen["chosen"]
    assert len(json.dumps(server.bodies("choice")[0])) < 5000


def test_answers_are_remembered(server: ModelServer, embedding: ThreadedEmbedding) -> None:
    models = language_models(server.url)
    session = Session(Models(embedding, models.reader, models.chooser))
    requests = [understand(entities=True), choose(), embed("a", "b")]
    first, second = session.ask(*requests), session.ask(*requests)
    assert first == second
    assert server.count() == 2
    calls = session.status()["calls"]
    assert [calls[name]["cache_hits"] for name in ("understand", "choose", "embed")] == [1, 1, 1]
    assert session.status()["cache_bytes"] > 0
    # Another question, another order and another limit are other questions.
    session.ask(understand("Who is Gamma?", entities=True), choose(CANDIDATES[::-1]))
    session.ask(choose(limit=2))
    assert server.count() == 5


def test_without_memory_nothing_is_remembered(server: ModelServer) -> None:
    session = Session(language_models(server.url), Limits(cache_bytes=0))
    session.ask(choose(), choose())
    assert server.count("choice") == 2
    assert session.status()["calls"]["choose"]["cache_hits"] == 0


def test_the_cache_forgets_what_was_used_least() -> None:
    cache = AnswerCache(3000)
    for number in range(100):
        cache.put(number, 500, "question", "model", str(number))
        assert cache.get("question", "model", "0") == 0 or number > 3
        assert cache.bytes_used <= 3000
    assert cache.get("question", "model", "99") == 99
    assert cache.get("question", "model", "50") is None
    assert cache.get("passage", "model", "99") is None
    cache.put("too much", 3000, "x")
    assert cache.get("x") is None


def test_no_more_calls_run_than_allowed_and_no_more_wait(server: ModelServer) -> None:
    server.delay = 0.3
    session = Session(language_models(server.url), Limits(max_calls=2, max_queue=3))
    outcomes = session.ask_at_once(*(choose(limit=limit) for limit in range(1, 9)))
    refused = [outcome for outcome in outcomes if isinstance(outcome, RefusedError)]
    assert server.peak == 2
    assert len(refused) == 3
    assert {refusal.sqlstate for refusal in refused} == {"53300"}
    assert session.status()["queued"] == session.status()["running"] == 0
    # The slots are free again.
    assert session.ask(choose(limit=8))[0]["chosen"]


def test_embeddings_do_not_wait_for_language_models(
    server: ModelServer, embedding: ThreadedEmbedding
) -> None:
    server.always("choice", silence(30))
    models = Models(embedding, chooser=language_models(server.url).chooser)

    async def run() -> Any:
        session = Session(models, Limits(max_calls=1, max_queue=1))
        slow = [asyncio.create_task(session.outcome(*choose(limit=n))) for n in (1, 2)]
        await asyncio.sleep(0.2)
        status_meanwhile = await session.outcome("status", None)
        understood = await session.outcome(*understand())
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return status_meanwhile, understood, await session.outcome("status", None)

    meanwhile, understood, after = asyncio.run(run())
    assert (meanwhile["running"], meanwhile["queued"]) == (1, 1)
    assert understood["embedding"] is not None
    assert (after["running"], after["queued"]) == (0, 0)
    assert after["calls"]["choose"]["errors"] == 2


def test_a_spent_budget_has_a_code_of_its_own(server: ModelServer) -> None:
    usage = Usage(max_requests=1)
    session = Session(language_models(server.url, usage), usage=usage)
    first, second = session.ask(choose(), choose(limit=1))
    assert first["chosen"]
    assert second.sqlstate == "53400"
    facts = session.status()
    assert facts["usage"]["requests"] == 1
    assert facts["budget"] == {"max_tokens": None, "max_requests": 1}


def test_answers_can_be_stored_whatever_the_model_says(server: ModelServer) -> None:
    server.script("question_entities", answer({"entities": ["a\0b", "\ud800", "C"]}))
    session = Session(language_models(server.url))
    text = asyncio.run(
        session.calls.answer(Call("understand", json.dumps(understand("x", entities=True)[1])), 1)
    )
    assert "\\u0000" not in text
    text.encode("utf-8")


def test_the_log_tells_all_but_contents(server: ModelServer) -> None:
    canary = "Zanzibar canary"
    server.script("choice", GOOD, status(400, f"Bad input: {canary}"))
    session = Session(language_models(server.url))
    with captured_log() as lines:
        session.ask(
            choose(CANDIDATES, question=canary),
            choose([{"text": canary}, {"text": "x"}]),
            ("choose", canary),
            understand(canary, nonsense=canary),
        )
    assert [line["sqlstate"] for line in lines() if "sqlstate" in line] == [
        "58000",
        "22023",
        "22023",
    ]
    assert all(line.keys() >= {"time", "level", "event", "connection", "call"} for line in lines())
    assert "Zanzibar" not in json.dumps(lines())


def test_a_fault_of_the_program_is_logged_without_its_words() -> None:
    class Faulty:
        name = "faulty"

        async def read_question(self, question: str) -> tuple[str, ...]:
            raise RuntimeError(question)

        async def choose(self, question: str, candidates: Any, limit: int) -> tuple[int, ...]:
            raise RuntimeError(question)

    session = Session(Models(reader=Faulty(), chooser=Faulty()))
    with captured_log() as lines:
        chosen, understood = session.ask(choose(), understand(embed=False, entities=True))
    assert chosen.sqlstate == understood.sqlstate == "XX000"
    assert chosen.__suppress_context__
    faults = [line for line in lines() if line["event"] == "internal_error"]
    assert [fault["error"] for fault in faults] == ["RuntimeError", "RuntimeError"]
    assert all(any("test_gateway_calls.py" in place for place in fault["at"]) for fault in faults)
    assert QUESTION not in json.dumps(lines())


def test_what_waits_for_a_local_model_is_dropped_when_it_is_cancelled() -> None:
    class Slow:
        name, dimensions = "slow", 2

        def __init__(self) -> None:
            self.begun: list[str] = []
            self.gate = threading.Event()

        def knows(self, text: str) -> bool:
            return True

        def embed_passages(self, texts: Sequence[str]) -> Any:
            return np.stack([self.embed_question(text) for text in texts])

        def embed_question(self, text: str) -> Any:
            self.begun.append(text)
            self.gate.wait(20)
            return np.array([1, 0], np.float32)

    async def run() -> list[str]:
        model = Slow()
        embedding = ThreadedEmbedding(model)
        first = asyncio.create_task(embedding.embed_questions_async(["first"]))
        second = asyncio.create_task(embedding.embed_questions_async(["second"]))
        third = asyncio.create_task(embedding.embed_passages_async(["third"]))
        while not model.begun:
            await asyncio.sleep(0.01)
        for task in (first, second):
            task.cancel()
        # Nobody waits for what cannot be stopped.
        await asyncio.wait([first, second], timeout=10)
        assert first.cancelled() and second.cancelled()
        model.gate.set()
        assert (await third).shape == (1, 2)
        assert (await embedding.embed_passages_async([])).shape == (0, 2)
        return model.begun

    assert asyncio.run(run()) == ["first", "third"]


def test_percentiles_are_over_the_last_calls() -> None:
    metrics = CallMetrics()
    assert metrics.as_json()["p50_ms"] is None
    for _ in range(5000):
        metrics.record(1e6, is_error=True, is_cached=False)
    for milliseconds in range(1, 1001):
        metrics.record(milliseconds, is_error=False, is_cached=True)
    assert metrics.as_json() == {
        "count": 6000,
        "errors": 5000,
        "cache_hits": 1000,
        "p50_ms": 500,
        "p95_ms": 950,
        "p99_ms": 990,
    }
