"""Requests to an endpoint that answers well, badly, late or not at all."""

import asyncio
import logging
import re
import socket
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
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
    http_date,
    rate_limited,
    silence,
    status,
)

from sag_pg.errors import (
    BudgetExhaustedError,
    EndpointRefusedError,
    ModelError,
)
from sag_pg.models.budget import Usage
from sag_pg.models.endpoint import Endpoint, RequestRejectedError
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
    **changes: Any,
) -> T:
    """Run a coroutine with an endpoint, on an event loop of its own."""

    async def run() -> T:
        settings = settings_of(server, **changes)
        endpoint = Endpoint(settings, "chat", usage or Usage(), {"OPENAI_API_KEY": KEY})
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
