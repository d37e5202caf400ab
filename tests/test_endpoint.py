"""Requests to an endpoint that answers well, badly, late or not at all."""

import asyncio
import contextlib
import gzip
import json
import logging
import re
import socket
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from model_server import (
    CHAT_MODEL,
    NO_USAGE,
    RESET,
    RESET_IN_BODY,
    WEB_PAGE,
    Behaviour,
    ModelServer,
    body,
    drip,
    encoded,
    flood,
    http_date,
    rate_limited,
    raw,
    silence,
    status,
)

from sag_pg.errors import (
    BudgetExhaustedError,
    EndpointRefusedError,
    ModelError,
)
from sag_pg.models.base import Candidate
from sag_pg.models.budget import Usage
from sag_pg.models.endpoint import Endpoint, RequestRejectedError
from sag_pg.models.load import load_chooser, load_embedding_model, load_question_reader
from sag_pg.models.settings import ModelSettings

T = TypeVar("T")

KEY = "sk-canary-4711"
TEXT = "The secret recipe of the house calls for forty-two eggs."
CHAT = "/chat/completions"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def settings_of(server: ModelServer, **changes: Any) -> ModelSettings:
    return ModelSettings(**{"base_url": server.url, "model_retries": 1, **changes})


def use(
    server: ModelServer,
    work: Callable[[Endpoint], Awaitable[T]],
    usage: Usage | None = None,
    *,
    interactive: bool = False,
    **changes: Any,
) -> T:
    """Run a coroutine with an endpoint, on an event loop of its own."""

    async def run() -> T:
        settings = settings_of(server, **changes)
        endpoint = Endpoint(
            settings, "chat", usage or Usage(), {"OPENAI_API_KEY": KEY}, interactive=interactive
        )
        try:
            return await work(endpoint)
        finally:
            await endpoint.aclose()

    return asyncio.run(run())


def ask(endpoint: Endpoint, text: str = TEXT) -> Awaitable[Any]:
    request = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": text}]}
    return endpoint.post(CHAT, request, CHAT_MODEL)


def test_good_answer_is_counted(server: ModelServer) -> None:
    usage = Usage()
    answer = use(server, ask, usage)
    assert answer["choices"][0]["message"]["content"] == '{"answer": 42}'
    assert usage.requests == 1
    assert usage.prompt_tokens == answer["usage"]["prompt_tokens"] > 0
    assert usage.completion_tokens == answer["usage"]["completion_tokens"] > 0
    assert usage.as_dict()["models"][CHAT_MODEL]["estimated_tokens"] == 0


def test_tokens_are_estimated_where_the_server_does_not_say(server: ModelServer) -> None:
    server.script("chat", NO_USAGE)
    usage = Usage()
    use(server, ask, usage)
    assert len(TEXT) // 4 <= usage.prompt_tokens <= len(TEXT) // 2
    assert usage.completion_tokens > 0
    assert usage.total.estimated_tokens == usage.tokens


def test_key_is_sent_as_bearer_token_and_nowhere_else(server: ModelServer) -> None:
    server.key = KEY
    use(server, ask)
    (request,) = server.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    others = {name: value for name, value in request.headers.items() if name != "authorization"}
    assert KEY not in f"{others} {request.path} {request.body}"


def test_without_a_key_no_token_is_sent(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of these the package would help itself.
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ADMIN_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-canary")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-canary")

    async def run() -> None:
        settings = settings_of(server, api_key_env="MY_KEY")
        endpoint = Endpoint(settings, "chat", Usage())
        await ask(endpoint)
        await endpoint.aclose()

    asyncio.run(run())
    headers = str(server.requests[0].headers)
    assert "authorization" not in headers
    assert "canary" not in headers


def test_password_in_the_url_is_sent_but_not_logged(
    server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = server.url.replace("http://", "http://user:pass-canary@")
    use(server, ask, base_url=url)
    assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert server.url in caplog.text
    assert "canary" not in caplog.text


def test_proxy_of_the_environment_is_not_asked_for_this_machine(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    use(server, ask)
    assert server.count() == 1


@pytest.mark.parametrize(
    "behaviour",
    [
        rate_limited("0.1"),
        rate_limited(),
        status(500),
        status(503, "Overloaded", Retry_After="0.1"),
        RESET,
        RESET_IN_BODY,
        silence(30),
        drip(30),
    ],
    ids=lambda behaviour: behaviour.name,
)
def test_what_passes_is_tried_again(server: ModelServer, behaviour: Behaviour) -> None:
    server.script("chat", behaviour)
    usage = Usage()
    # Too short for the silence, long enough for an answer on a busy machine.
    assert use(server, ask, usage, model_timeout=2.0)["choices"]
    assert server.count("chat") == usage.requests == 2
    first, second = server.bodies("chat")
    assert first == second


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_obeyed(server: ModelServer, as_date: bool) -> None:
    server.script("chat", rate_limited(http_date(3) if as_date else "1.5"))
    began = time.monotonic()
    use(server, ask)
    # By itself the client would have waited at most half a second.
    assert time.monotonic() - began > 1.4
    assert server.count() == 2


@pytest.mark.parametrize("wait", ["121", "86400", http_date(3600)], ids=["soon", "day", "date"])
def test_wait_that_is_too_long_is_told_and_not_waited(server: ModelServer, wait: str) -> None:
    server.always("chat", rate_limited(wait))
    with pytest.raises(ModelError, match=r"HTTP 429: .* asks to wait \d+ s before") as caught:
        use(server, ask)
    assert caught.value.hint
    assert server.count() == 1


def test_where_somebody_waits_there_is_one_further_try(server: ModelServer) -> None:
    server.always("chat", status(503, "Overloaded", Retry_After="0.01"))
    with pytest.raises(ModelError, match=r"Overloaded.* in 2 tries"):
        use(server, ask, interactive=True, model_retries=None)
    with pytest.raises(ModelError, match=r"Overloaded.* in 6 tries"):
        use(server, ask, model_retries=None)
    # Who says how many gets as many.
    with pytest.raises(ModelError, match=r"Overloaded.* in 4 tries"):
        use(server, ask, interactive=True, model_retries=3)


def test_what_answers_questions_does_not_wait_long(server: ModelServer) -> None:
    settings = ModelSettings(
        base_url=server.url, chat_model=CHAT_MODEL, embedding_model="test-embedding"
    )
    reader, by_model = load_question_reader(settings), load_chooser(settings)
    by_rank = load_chooser(replace(settings, rerank_model="test-rerank"))
    embedding = load_embedding_model("openai", settings, interactive=True)
    assert reader
    assert by_model
    assert by_rank
    candidates = [Candidate("One", "one"), Candidate("Two", "two")]
    calls: dict[str, Callable[[], Any]] = {
        "question_entities": lambda: asyncio.run(reader.read_question("Who met Ann Lee?")),
        "choice": lambda: asyncio.run(by_model.choose("Who?", candidates, 1)),
        "rerank": lambda: asyncio.run(by_rank.choose("Who?", candidates, 1)),
        "embedding": lambda: embedding.embed_question("Who?"),
    }
    for kind, call in calls.items():
        server.always(kind, rate_limited("20"))
        with pytest.raises(ModelError, match="asks to wait 20 s"):
            call()
        assert server.count(kind) == 1


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (rate_limited("0.1"), "HTTP 429: Rate limit reached for requests) in 2 tries"),
        (status(500), "HTTP 500"),
        (status(503, "Überlastet"), "HTTP 503: Überlastet"),
        (RESET, "could not be reached or broke the connection"),
        (silence(30), "did not answer within 0.5 s in 2 tries"),
    ],
    ids=["429", "500", "503", "reset", "silence"],
)
def test_what_does_not_pass_is_an_error(
    server: ModelServer, behaviour: Behaviour, words: str
) -> None:
    server.always("chat", behaviour)
    with pytest.raises(ModelError, match=re.escape(words)) as caught:
        use(server, ask, model_timeout=0.5)
    assert server.url in str(caught.value)
    assert not isinstance(caught.value, EndpointRefusedError | RequestRejectedError)
    assert server.count() == 2


def test_endpoint_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        settings = ModelSettings(base_url=url, model_retries=0)
        with pytest.raises(ModelError, match="could not be reached"):
            asyncio.run(ask(Endpoint(settings, "chat", Usage(), {})))


UNKNOWN_MODEL = {
    "openai": status(
        404,
        {
            "message": "The model `test-chat` does not exist or you do not have access to it.",
            "type": "invalid_request_error",
            "param": None,
            "code": "model_not_found",
        },
    ),
    "vllm": Behaviour(
        "status",
        (404, {"object": "error", "message": "The model `test-chat` does not exist."}, {}),
    ),
    "deepseek": status(400, "Model Not Exist"),
    "ollama": status(404, 'model "test-chat" not found, try pulling it first'),
    "litellm": status(
        400,
        {
            "message": "Invalid model name passed in model=test-chat. Call `/v1/models`",
            "code": "400",
        },
    ),
}


@pytest.mark.parametrize("words_of", UNKNOWN_MODEL)
def test_unknown_model_is_final(server: ModelServer, words_of: str) -> None:
    server.always("chat", UNKNOWN_MODEL[words_of])
    with pytest.raises(EndpointRefusedError, match="does not know the model test-chat") as caught:
        use(server, ask)
    assert "--chat-model" in str(caught.value.hint)
    assert server.count() == 1


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (status(403, "Your account is not active"), "refused the key"),
        (status(402, "Insufficient Balance"), "no credit left"),
        (
            status(429, {"message": "You exceeded your quota", "code": "insufficient_quota"}),
            "no credit left",
        ),
        (status(404, "Not Found"), "has nothing at /chat/completions"),
    ],
    ids=["403", "402", "quota", "404"],
)
def test_refusal_is_final(server: ModelServer, behaviour: Behaviour, words: str) -> None:
    server.always("chat", behaviour)
    with pytest.raises(EndpointRefusedError, match=words):
        use(server, ask)
    assert server.count() == 1


@pytest.mark.parametrize(
    "behaviour", [status(403), status(404), UNKNOWN_MODEL["openai"], UNKNOWN_MODEL["ollama"]]
)
def test_what_an_endpoint_that_has_answered_refuses_is_one_request(
    server: ModelServer, behaviour: Behaviour
) -> None:
    async def ask_twice(endpoint: Endpoint) -> None:
        await ask(endpoint)
        server.script("chat", behaviour)
        with pytest.raises(RequestRejectedError):
            await ask(endpoint)
        await ask(endpoint)
        # Of another model nothing is known.
        server.script("chat", behaviour)
        request = {"model": "other", "messages": [{"role": "user", "content": TEXT}]}
        with pytest.raises(EndpointRefusedError):
            await endpoint.post(CHAT, request, "other")
        # A key can be revoked, and credit end, at any time.
        for last in (status(401), status(402)):
            server.script("chat", last)
            with pytest.raises(EndpointRefusedError):
                await ask(endpoint)

    use(server, ask_twice)


@pytest.mark.parametrize(
    "number",
    [10**400, 10**12, 1.5, float("nan"), True, "12", -1, None, {}],
    ids=lambda value: str(value)[:6],
)
def test_counts_that_cannot_be_are_made_here(server: ModelServer, number: Any) -> None:
    usage_stated = {"prompt_tokens": number, "completion_tokens": number, "total_tokens": number}
    answer = {"choices": [{"message": {"content": "yes"}}], "usage": usage_stated}
    server.script("chat", body(answer))
    usage = Usage()
    use(server, ask, usage)
    assert 0 < usage.tokens == usage.total.estimated_tokens < 100


@pytest.mark.parametrize("depth", [100, 500, 900, 980, 5000, 100_000])
def test_no_depth_of_an_answer_is_too_much(server: ModelServer, depth: int) -> None:
    deep = "[" * depth + '"a text"' + "]" * depth
    for text in (f'{{"choices": {deep}}}', deep, f'{{"usage": {deep}}}'):
        server.script("chat", raw(text))
        with contextlib.suppress(ModelError):
            use(server, ask)
    server.always(
        "chat", Behaviour("status", (400, {"error": json.loads("[" * 90 + "]" * 90)}, {}))
    )
    with pytest.raises(RequestRejectedError):
        use(server, ask)


def test_wrong_key_is_final_and_not_repeated(
    server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    # The server shows the key that came in its error.
    server.key = "another"
    with pytest.raises(EndpointRefusedError, match="refused the key") as caught:
        use(server, ask)
    assert "Incorrect API key provided: ***" in str(caught.value)
    assert "OPENAI_API_KEY" in str(caught.value.hint)
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in f"{shown} {caught.value.hint} {caplog.text}"
    assert server.count() == 1


@pytest.mark.parametrize("code", [400, 403, 413, 422, 501])
def test_rejected_request_is_not_the_end_of_a_run(server: ModelServer, code: int) -> None:
    server.script("chat", status(code, "It was flagged by moderation."))
    with pytest.raises(RequestRejectedError, match=f"HTTP {code}: It was flagged") as caught:
        use(server, ask)
    assert not isinstance(caught.value, EndpointRefusedError)
    assert server.count() == 1


@pytest.mark.parametrize("code", [400, 422, 500])
def test_text_of_the_request_is_not_in_the_error(
    server: ModelServer, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.always("chat", status(code, f"Input should be shorter, input={TEXT!r}"))
    with pytest.raises(ModelError, match=f"HTTP {code}") as caught:
        use(server, ask)
    shown = "".join(traceback.format_exception(caught.value))
    assert "recipe" not in shown + caplog.text


@pytest.mark.parametrize(
    "behaviour",
    [
        flood(64),
        # Sixty-four megabytes in as many kilobytes.
        encoded("gzip", gzip.compress(bytes(64 * 1024 * 1024))),
        encoded("gzip", gzip.compress(b"{}"), megabytes=64),
    ],
    ids=["as it is", "compressed", "after the end of what is compressed"],
)
def test_answer_without_end_is_broken_off(server: ModelServer, behaviour: Behaviour) -> None:
    server.always("chat", behaviour)
    with pytest.raises(ModelError, match="an answer of more than 4 MB") as caught:
        use(server, ask, model_timeout=60)
    assert server.url in str(caught.value)
    assert caught.value.hint
    assert server.count() == 1


def test_error_without_end_keeps_its_status(server: ModelServer) -> None:
    server.script("chat", flood(64, 500))
    assert use(server, ask)["choices"]
    assert server.count() == 2
    server.script("chat", flood(64, 422))
    with pytest.raises(RequestRejectedError, match="HTTP 422"):
        use(server, ask)


def test_vectors_may_take_more_than_words(server: ModelServer) -> None:
    async def embed() -> Any:
        endpoint = Endpoint(settings_of(server), "embedding", Usage(), {})
        try:
            return await endpoint.post("/embeddings", {"model": "m", "input": ["a"]}, "m")
        finally:
            await endpoint.aclose()

    whole = b'{"data": []}'
    server.script("embedding", encoded("identity", whole, megabytes=20))
    assert asyncio.run(embed()) == {"data": []}
    server.script("embedding", encoded("identity", whole, megabytes=40))
    with pytest.raises(ModelError, match="more than 32 MB") as caught:
        asyncio.run(embed())
    assert "--embedding-batch" in str(caught.value.hint)


def test_compressed_answer_is_read(server: ModelServer) -> None:
    server.script("chat", encoded("gzip", gzip.compress(b'{"choices": []}')))
    assert use(server, ask) == {"choices": []}
    assert server.requests[0].headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("encoding", "whole"),
    [
        ("gzip", b'{"choices": []}'),
        ("gzip", gzip.compress(b'{"choices": []}')[:-9]),
        ("gzip, gzip", gzip.compress(gzip.compress(b'{"choices": []}'))),
        ("br", b"anything"),
    ],
    # What gzip makes holds the time, and the processes of a test run have to agree on names.
    ids=["not at all", "cut off", "twice", "not offered"],
)
def test_wrongly_compressed_answer_is_tried_again(
    server: ModelServer, encoding: str, whole: bytes
) -> None:
    server.script("chat", encoded(encoding, whole))
    assert use(server, ask)["choices"]
    server.always("chat", encoded(encoding, whole))
    with pytest.raises(ModelError, match="DecodingError"):
        use(server, ask)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirect_is_told_and_not_followed(server: ModelServer, code: int) -> None:
    with ModelServer() as other:
        target = other.url.replace("://", "://user:canary@") + f"{CHAT}?token=canary&key={KEY}"
        server.always("chat", status(code, "Moved", Location=target))
        with pytest.raises(EndpointRefusedError, match=f"redirects to {other.url} ") as caught:
            use(server, ask)
        assert "set the base URL" in str(caught.value.hint)
        shown = "".join(traceback.format_exception(caught.value))
        assert "canary" not in f"{shown} {caught.value.hint}"
        assert (server.count(), other.count()) == (1, 0)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/v2/chat/completions", "/v2 (HTTP 308)"),
        ("//else.example/\x9b31m", "http://else.example/"),
        ("http://[::1", "a place that is no URL (HTTP 308)"),
        ("http://a\N{ACCOUNT OF}b/".encode().decode("latin-1"), "HTTP 308"),
        ("", "HTTP 308"),
    ],
)
def test_redirect_to_any_place_is_told(server: ModelServer, location: str, shown: str) -> None:
    server.always("chat", status(308, "Moved", Location=location))
    with pytest.raises(ModelError) as caught:
        use(server, ask, model_retries=0)
    assert shown in str(caught.value)
    assert str(caught.value).isprintable()
    assert server.count() == 1


def test_redirect_of_an_endpoint_that_has_answered_may_pass(server: ModelServer) -> None:
    async def ask_twice(endpoint: Endpoint) -> None:
        await ask(endpoint)
        server.script("chat", status(302, "", Location="http://else.example/maintenance"))
        with pytest.raises(ModelError, match=r"redirects to http://else\.example") as caught:
            await ask(endpoint)
        assert not isinstance(caught.value, EndpointRefusedError)

    use(server, ask_twice)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 429, 500])
def test_words_of_a_server_steer_no_terminal(server: ModelServer, code: int) -> None:
    steering = "\x1b[2J \x9b31m \x07\r\n\0 \u202egnp.exe\u2066 \u2028 \x7f done"
    server.always("chat", status(code, steering))
    with pytest.raises(ModelError, match="done") as caught:
        use(server, ask, model_retries=0)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("begin", [0, 1, 11, 12, 23])
def test_any_piece_of_the_request_is_an_echo(server: ModelServer, begin: int) -> None:
    server.always("chat", status(400, "x" * begin + TEXT[7 : 7 + 24] + " and so on"))
    with pytest.raises(ModelError) as caught:
        use(server, ask)
    assert "recipe" not in str(caught.value)


def test_web_page_is_an_error(server: ModelServer) -> None:
    server.script("chat", WEB_PAGE)
    with pytest.raises(ModelError, match="did not answer in JSON") as caught:
        use(server, ask)
    assert "/v1" in str(caught.value.hint)


def test_requests_stop_at_their_limit(server: ModelServer) -> None:
    async def ask_many(endpoint: Endpoint) -> list[Any]:
        return await asyncio.gather(*(ask(endpoint) for _ in range(10)), return_exceptions=True)

    server.delay = 0.05
    outcomes = use(server, ask_many, Usage(max_requests=4))
    refused = [outcome for outcome in outcomes if isinstance(outcome, BudgetExhaustedError)]
    assert len(refused) == 6
    assert "--max-requests" in str(refused[0].hint)
    assert server.count() == 4


def test_further_tries_count_as_requests(server: ModelServer) -> None:
    server.always("chat", rate_limited("0.01"))
    with pytest.raises(BudgetExhaustedError, match="limit of 2 requests"):
        use(server, ask, Usage(max_requests=2), model_retries=5)
    assert server.count() == 2


def test_tokens_stop_at_their_limit(server: ModelServer) -> None:
    usage = Usage(max_tokens=30)

    async def ask_on(endpoint: Endpoint) -> None:
        for _ in range(10):
            await ask(endpoint)

    with pytest.raises(BudgetExhaustedError, match="limit of 30 tokens") as caught:
        use(server, ask_on, usage)
    assert "--max-tokens" in str(caught.value.hint)
    assert server.count() == usage.requests < 10
    # By no more than the last answer.
    assert 30 <= usage.tokens < 30 + 2 * usage.tokens / usage.requests


def test_concurrency_is_bounded(server: ModelServer) -> None:
    async def ask_many(endpoint: Endpoint) -> None:
        await asyncio.gather(*(ask(endpoint) for _ in range(12)))

    server.delay = 0.1
    use(server, ask_many, model_concurrency=3)
    assert server.count() == 12
    assert server.peak == 3


def test_cancelled_request_is_broken_off(server: ModelServer) -> None:
    server.script("chat", silence(30))
    usage = Usage()

    async def ask_and_leave(endpoint: Endpoint) -> Any:
        task = asyncio.ensure_future(ask(endpoint))
        while not server.count():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Its place is free again.
        return await ask(endpoint)

    assert use(server, ask_and_leave, usage, model_concurrency=1)["choices"]
    until = time.monotonic() + 10
    while not server.aborted and time.monotonic() < until:
        time.sleep(0.02)
    assert server.aborted == 1
    assert usage.requests == 2


def test_one_endpoint_serves_several_event_loops(server: ModelServer) -> None:
    endpoint = Endpoint(settings_of(server), "chat", Usage(), {})

    async def ask_and_close() -> None:
        await asyncio.gather(ask(endpoint), ask(endpoint))
        await endpoint.aclose()
        await ask(endpoint)
        await endpoint.aclose()

    for _ in range(3):
        asyncio.run(ask_and_close())
    # Connections of a loop that ended without closing them are left behind.
    asyncio.run(ask(endpoint))
    asyncio.run(ask(endpoint))
    assert server.count() == 11


def test_lone_surrogates_do_not_stop_a_request(server: ModelServer) -> None:
    use(server, lambda endpoint: ask(endpoint, "caf\udce9 \0 'quoted' \\ 漢字"))
    assert server.bodies("chat")[0]["messages"][0]["content"] == "caf? \0 'quoted' \\ 漢字"


def test_error_with_status_200_is_passed_on(server: ModelServer) -> None:
    server.script("chat", body([1, 2]))
    assert use(server, ask) == [1, 2]
