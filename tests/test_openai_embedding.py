"""Embeddings from an endpoint, whatever comes in place of vectors."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from model_server import (
    EMBEDDING_MODEL,
    NO_USAGE,
    NOT_A_NUMBER,
    NULL_IN_VECTOR,
    REPEATED_INDEX,
    RESET,
    SHUFFLED,
    TOO_FEW_VECTORS,
    WITHOUT_INDEX,
    WRONG_DIMENSION,
    ZERO_VECTOR,
    Behaviour,
    ModelServer,
    body,
    hashed_vector,
    rate_limited,
    silence,
    status,
)

from sag_pg.errors import (
    BudgetExhaustedError,
    EndpointRefusedError,
    InputRejectedError,
    ModelError,
)
from sag_pg.models.budget import Usage
from sag_pg.models.endpoint import Endpoint
from sag_pg.models.openai_embedding import OpenAIEmbedding
from sag_pg.models.prefixes import prefixes_of
from sag_pg.models.settings import ModelSettings

KIND = "embedding"
TEXTS = [f"Passage {number} tells of {name}." for number, name in enumerate("ABCDEFGHIJ")]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def embedding(
    server: ModelServer, name: str = EMBEDDING_MODEL, usage: Usage | None = None, **changes: Any
) -> OpenAIEmbedding:
    settings = ModelSettings(**{"base_url": server.url, "model_retries": 1, **changes})
    return OpenAIEmbedding(Endpoint(settings, "embedding", usage or Usage(), {}), name)


def expected(texts: list[str], dimensions: int = 32) -> np.ndarray:
    vectors = np.array([hashed_vector(text, dimensions) for text in texts])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def inputs(server: ModelServer) -> list[list[str]]:
    return [request["input"] for request in server.bodies(KIND)]


def test_vectors_are_of_length_one_and_in_order(server: ModelServer) -> None:
    model = embedding(server, embedding_batch=4)
    vectors = model.embed_passages(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected(TEXTS), atol=1e-6)
    assert model.name == f"openai:{EMBEDDING_MODEL}"
    assert model.dimensions == 32
    assert sorted(map(len, inputs(server))) == [2, 4, 4]
    question = model.embed_question(TEXTS[0])
    assert question.shape == (32,)
    np.testing.assert_array_equal(question, vectors[0])


def test_only_what_every_server_knows_is_sent(server: ModelServer) -> None:
    embedding(server).embed_passages(TEXTS)
    assert server.bodies(KIND) == [{"model": EMBEDDING_MODEL, "input": TEXTS}]


def test_dimensions_are_asked_for_where_they_are_set(server: ModelServer) -> None:
    model = embedding(server, embedding_dimensions=8)
    assert model.dimensions == 8
    assert server.count() == 0
    np.testing.assert_allclose(model.embed_passages(TEXTS), expected(TEXTS, 8), atol=1e-6)
    assert server.bodies(KIND)[0]["dimensions"] == 8


def test_dimensions_are_found_out_once(server: ModelServer) -> None:
    model = embedding(server)
    assert (model.dimensions, model.dimensions) == (32, 32)
    assert server.count() == 1
    assert model.embed_passages([]).shape == (0, 32)
    assert server.count() == 1


@pytest.mark.parametrize("words_of", ["openai", "vllm", "litellm"])
def test_refused_dimensions_end_the_run(server: ModelServer, words_of: str) -> None:
    server.refuse("dimensions", words_of)
    with pytest.raises(EndpointRefusedError, match="length 8 that was asked for") as caught:
        embedding(server, embedding_dimensions=8).embed_passages(TEXTS)
    assert "SAG_PG_EMBEDDING_DIMENSIONS" in str(caught.value.hint)
    assert server.count() == 1


@pytest.mark.parametrize("behaviour", [SHUFFLED, WITHOUT_INDEX, NO_USAGE])
def test_harmless_differences(server: ModelServer, behaviour: Behaviour) -> None:
    server.script(KIND, behaviour)
    usage = Usage()
    vectors = embedding(server, usage=usage).embed_passages(TEXTS)
    np.testing.assert_allclose(vectors, expected(TEXTS), atol=1e-6)
    assert server.count() == usage.requests == 1
    assert usage.prompt_tokens > 0
    assert usage.completion_tokens == 0


USELESS = {
    "too few": (TOO_FEW_VECTORS, "9 came for 10 texts"),
    "none": (body({"data": []}), "0 came for 10 texts"),
    "repeated index": (REPEATED_INDEX, "no known order"),
    "not a number": (NOT_A_NUMBER, "zero or not a number"),
    "null": (NULL_IN_VECTOR, "zero or not a number"),
    "zero": (ZERO_VECTOR, "zero or not a number"),
    "no data": (body({"error": {"message": "Upstream failed"}}), "as it should"),
    "null data": (body({"data": None}), "as it should"),
    "no vector": (body({"data": [{"index": 0}]}), "as it should"),
    "text": (body({"data": [{"index": 0, "embedding": "AAAAAA=="}]}), "as it should"),
    "long integer": (body({"data": [{"index": 0, "embedding": [10**400]}]}), "as it should"),
    "infinite": (
        body({"data": [{"index": i, "embedding": [float("inf")] * 32} for i in range(10)]}),
        "zero or not a number",
    ),
    "index of no place": (
        body({"data": [{"index": i / 0.3, "embedding": [1.0] * 32} for i in range(10)]}),
        "no known order",
    ),
    "endless index": (
        body({"data": [{"index": float("inf"), "embedding": [1.0] * 32}] * 10}),
        "as it should",
    ),
    "deep": (
        body({"data": [{"index": i, "embedding": json.loads("[" * 200 + "]" * 200)} for i in [0]]}),
        "as it should",
    ),
    "wrong length": (WRONG_DIMENSION, "length 31, not 32"),
    "ragged": (
        body({"data": [{"index": i, "embedding": [1.0] * (i + 1)} for i in range(10)]}),
        "differ in their length",
    ),
    "nested": (
        body({"data": [{"index": i, "embedding": [[1.0], [2.0]]} for i in range(10)]}),
        "differ in their length",
    ),
}


@pytest.mark.parametrize("name", USELESS)
def test_useless_vectors_are_asked_for_once_more(server: ModelServer, name: str) -> None:
    model = embedding(server)
    assert model.dimensions == 32
    server.script(KIND, USELESS[name][0])
    np.testing.assert_allclose(model.embed_passages(TEXTS), expected(TEXTS), atol=1e-6)
    assert inputs(server)[1:] == [TEXTS, TEXTS]


@pytest.mark.parametrize("name", USELESS)
def test_useless_vectors_twice_are_an_error(server: ModelServer, name: str) -> None:
    behaviour, fault = USELESS[name]
    model = embedding(server)
    assert model.dimensions == 32
    server.always(KIND, behaviour)
    with pytest.raises(ModelError, match="asked twice") as caught:
        model.embed_passages(TEXTS)
    assert fault in str(caught.value)
    assert server.count() == 3


def test_other_length_than_asked_for_is_an_error(server: ModelServer) -> None:
    # Some servers do not refuse `dimensions`, but ignore it.
    server.always(KIND, WRONG_DIMENSION)
    with pytest.raises(ModelError, match="length 31, not 32"):
        embedding(server, embedding_dimensions=32).embed_passages(TEXTS)


@pytest.mark.parametrize("behaviour", [rate_limited("0.1"), status(503), RESET, silence(30)])
def test_batch_stays_a_batch_when_it_is_sent_again(
    server: ModelServer, behaviour: Behaviour
) -> None:
    server.script(KIND, behaviour, behaviour)
    model = embedding(server, model_retries=2, model_timeout=1.0)
    np.testing.assert_allclose(model.embed_passages(TEXTS), expected(TEXTS), atol=1e-6)
    assert inputs(server) == [TEXTS] * 3


def test_texts_are_cut(server: ModelServer) -> None:
    embedding(server, embedding_max_characters=10).embed_passages(["0123456789abc", "漢" * 11])
    assert inputs(server) == [["0123456789", "漢" * 10]]


@pytest.mark.parametrize("blank", ["", " \n\t", "\u3000"])
def test_blank_text_is_refused_before_anything_is_sent(server: ModelServer, blank: str) -> None:
    with pytest.raises(ModelError, match="Text 2 of 3 is blank"):
        embedding(server).embed_passages(["a", blank, "b"])
    with pytest.raises(ModelError, match="Text 1 of 1 is blank"):
        embedding(server).embed_question(blank)
    assert server.count() == 0


class LimitedServer(ModelServer):
    """Refuses more texts, or longer ones, than it was told."""

    most_texts = 100
    longest_text = 10**6
    words = "Batch size is invalid, it should not be larger than the maximum"

    def _refusal(self, request: Any) -> Behaviour | None:
        texts = request.body["input"]
        if len(texts) > self.most_texts:
            return status(400, self.words)
        if max(map(len, texts)) > self.longest_text:
            return status(400, "This model's maximum context length is 512 tokens, you sent more")
        return super()._refusal(request)


def test_batch_too_large_for_the_server_is_halved_and_that_is_remembered() -> None:
    with LimitedServer() as server:
        server.most_texts = 3
        model = embedding(server, embedding_batch=8, model_concurrency=1)
        np.testing.assert_allclose(model.embed_passages(TEXTS), expected(TEXTS), atol=1e-6)
        before = server.count()
        model.embed_passages(TEXTS)
        assert [len(texts) for texts in inputs(server)[before:]] == [2] * 5


def test_single_text_too_long_for_the_server_is_cut_alone() -> None:
    with LimitedServer() as server:
        server.longest_text = 600
        texts = [*TEXTS, "word " * 400]
        vectors = embedding(server).embed_passages(texts)
        np.testing.assert_allclose(vectors[:-1], expected(TEXTS), atol=1e-6)
        # The same alone as in company.
        np.testing.assert_array_equal(vectors[-1:], embedding(server).embed_passages(texts[-1:]))


def test_text_that_is_refused_however_short_is_an_error() -> None:
    with LimitedServer() as server:
        server.longest_text = 10
        with pytest.raises(ModelError, match="maximum context length"):
            embedding(server).embed_passages(TEXTS)
        assert server.count() < len(TEXTS)


def test_other_refusal_is_not_halved(server: ModelServer) -> None:
    server.script(KIND, status(400, "The input was filtered"))
    with pytest.raises(ModelError, match="The input was filtered"):
        embedding(server).embed_passages(TEXTS)
    assert server.count() == 1


def test_first_error_ends_the_other_batches(server: ModelServer) -> None:
    server.script(KIND, status(401, "Invalid key"))
    server.always(KIND, silence(30))
    with pytest.raises(EndpointRefusedError):
        embedding(server, embedding_batch=1, model_concurrency=2).embed_passages(TEXTS)
    assert server.count() <= 3


def test_what_one_text_is_at_fault_for_is_told_apart(server: ModelServer) -> None:
    model = embedding(server, model_retries=0)
    model.embed_passages(TEXTS)
    refusals = [
        status(400, "The input was filtered"),
        # The key has worked before.
        status(403, "Forbidden"),
        status(404, "Not Found"),
        ZERO_VECTOR,
        NOT_A_NUMBER,
    ]
    for behaviour in refusals:
        server.script(KIND, behaviour, behaviour)
        with pytest.raises(InputRejectedError):
            model.embed_passages(TEXTS)
        # One who asks twice is given what is left of the script.
        with contextlib.suppress(InputRejectedError):
            model.embed_passages(TEXTS)
    for behaviour in (WRONG_DIMENSION, status(500)):
        server.always(KIND, behaviour)
        with pytest.raises(ModelError) as caught:
            model.embed_passages(TEXTS)
        assert not isinstance(caught.value, InputRejectedError)


def test_any_number_of_models_shares_one_thread(server: ModelServer) -> None:
    for _ in range(5):
        embedding(server).embed_passages(TEXTS)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("sag-pg models") == 1


def test_budget_stops_it(server: ModelServer) -> None:
    usage = Usage(max_requests=3)
    with pytest.raises(BudgetExhaustedError, match="3 requests"):
        embedding(server, usage=usage, embedding_batch=1, model_concurrency=1).embed_passages(TEXTS)
    assert server.count() == 3


def test_threads_and_running_loops_may_share_one(server: ModelServer) -> None:
    server.delay = 0.05
    model = embedding(server, embedding_batch=1)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(model.embed_passages, [TEXTS] * 4))
    for vectors in rows:
        np.testing.assert_allclose(vectors, expected(TEXTS), atol=1e-6)
    assert 1 < server.peak <= 8

    async def inside() -> None:
        np.testing.assert_array_equal(model.embed_passages(TEXTS), rows[0])
        np.testing.assert_array_equal(await model.embed_passages_async(TEXTS), rows[0])
        np.testing.assert_array_equal(await model.embed_questions_async(TEXTS), rows[0])

    asyncio.run(inside())


@pytest.mark.parametrize(
    ("name", "question", "passage"),
    [
        ("text-embedding-3-small", "", ""),
        ("BAAI/bge-m3", "", ""),
        ("bge-m3:latest", "", ""),
        ("BAAI/bge-large-en-v1.5", "Represent this sentence", ""),
        ("BAAI/bge-large-zh-v1.5", "为这个句子", ""),
        ("nomic-embed-text:latest", "search_query: ", "search_document: "),
        ("intfloat/multilingual-e5-large", "query: ", "passage: "),
        ("intfloat/multilingual-e5-large-instruct", "Instruct: ", ""),
        ("snowflake-arctic-embed2", "query: ", ""),
        ("Qwen/Qwen3-Embedding-0.6B", "Instruct: ", ""),
    ],
)
def test_prefixes_of_known_families(
    server: ModelServer, name: str, question: str, passage: str
) -> None:
    question_prefix, passage_prefix = prefixes_of(name)
    assert question_prefix.startswith(question)
    assert bool(question_prefix) == bool(question)
    assert passage_prefix == passage
    model = embedding(server, name)
    model.embed_question("Who?")
    model.embed_passages(["He."])
    assert inputs(server) == [[f"{question_prefix}Who?"], [f"{passage_prefix}He."]]


@pytest.mark.parametrize(
    ("name", "knows_chinese"),
    [
        ("text-embedding-3-small", True),
        ("BAAI/bge-m3", True),
        ("BAAI/bge-small-en-v1.5", False),
        ("jina-embeddings-v2-base-en", False),
        ("Alibaba-NLP/gte-multilingual-base", True),
    ],
)
def test_models_that_say_that_they_are_english(
    server: ModelServer, name: str, knows_chinese: bool
) -> None:
    model = embedding(server, name)
    assert model.knows("Who is it?")
    assert model.knows("他是谁？") is knows_chinese
