"""Requests to an OpenAI-compatible HTTP endpoint: limits, counts and errors in one place.

What differs between the servers (OpenAI, vLLM, Ollama, LiteLLM, DeepSeek, Qwen, TEI, ...) in the
form of their errors and their counts of tokens is evened out here.
"""

import asyncio
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from sag_pg.errors import (
    ConfigurationError,
    EndpointRefusedError,
    InputRejectedError,
    ModelError,
)
from sag_pg.models.budget import Usage, estimate_tokens
from sag_pg.models.settings import (
    DEFAULT_INTERACTIVE_RETRIES,
    DEFAULT_RETRIES,
    OPENAI_BASE_URL,
    EndpointKind,
    ModelSettings,
    redact_url,
)
from sag_pg.text import in_one_line

if TYPE_CHECKING:
    import httpx2
    import openai

INSTALL_HINT = "pip install 'sag-pg[openai]'"

_UNKNOWN_MODEL = re.compile(
    r"model_not_found|\b(invalid|unknown) model\b"
    r"|\bmodel\b.{0,200}\b(does not exist|not exist|not found|not a valid model)",
    re.IGNORECASE | re.DOTALL,
)
# What servers say with 403 of a text that they will not read, which is no fault of the key.
_MODERATION = re.compile(r"moderat|flagged|content.?(filter|policy)|safety", re.IGNORECASE)

# So long a piece of the request in a server's words is an echo, not a coincidence.
_ECHO_CHARACTERS = 24
_MAX_SERVER_WORDS = 200
# What is read of them to find out what they mean.
_MAX_READ_WORDS = 2000

# Bytes of an answer. The longest of a language model, 128,000 tokens, has less than one MB as
# UTF-8, and what a reranker repeats of its documents is not more. 64 vectors of 4096 numbers take
# 6 MB; an answer of 32 MB takes some hundred as Python's objects.
_MOST_BYTES: Mapping[EndpointKind, int] = {
    "chat": 4 * 1024 * 1024,
    "embedding": 32 * 1024 * 1024,
    "rerank": 4 * 1024 * 1024,
}

# No request has so many; of an answer that says so the count is made here.
_MAX_TOKENS = 10**9


class RequestRejectedError(InputRejectedError):
    """The endpoint refused this one request, for what it holds or what it asks for.

    Attributes:
        status: The HTTP status.
        server_words: What the server said, without the key. May repeat the request: not for
            display.
    """

    def __init__(self, message: str, status: int, server_words: str) -> None:
        super().__init__(message)
        self.status = status
        self.server_words = server_words


class NotFoundError(EndpointRefusedError):
    """The endpoint has nothing there; or, as routers say it, no server for such a request."""


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long to keep on trying.

    Attributes:
        retries: Further tries where the settings do not say.
        longest_wait: Seconds to wait before one where the server asks for it.
        connect_timeout: Seconds in which the server has to accept a connection.
    """

    retries: int
    longest_wait: float
    connect_timeout: float


# What runs for long outlasts a restart of the server: the waits add up to a quarter of a minute.
_FOR_A_RUN = _Patience(DEFAULT_RETRIES, longest_wait=120, connect_timeout=10)
# Somebody waits, and a call of the gateway has ten seconds. What went wrong is to be known by then.
_FOR_SOMEBODY = _Patience(DEFAULT_INTERACTIVE_RETRIES, longest_wait=2, connect_timeout=3)


@dataclass(frozen=True, slots=True)
class _Attachment:
    """What belongs to one event loop."""

    client: "openai.AsyncOpenAI"
    slots: asyncio.Semaphore


class Endpoint:
    """One endpoint of a kind. May be used on several event loops, each has its connections.

    The key is read once, here, and is in no text form, message or log.

    Args:
        settings: Where the endpoint is and the limits of its use.
        kind: What it is used for, which decides the URL and the key.
        usage: What all endpoints of the run count into.
        environ: Where the key is read from; None for the process's environment.
        interactive: Whether somebody waits for the answers. Then there is one further try instead
            of five, unless the settings say how many, and no long wait before it.

    Raises:
        ModelError: The package openai is not installed.
        ConfigurationError: OpenAI's own URL without a key, or a key that cannot be sent.
    """

    def __init__(
        self,
        settings: ModelSettings,
        kind: EndpointKind,
        usage: Usage,
        environ: Mapping[str, str] | None = None,
        *,
        interactive: bool = False,
    ) -> None:
        if importlib.util.find_spec("openai") is None:
            raise ModelError("Models behind an endpoint need the package openai.", INSTALL_HINT)
        # Now, because it takes long, and the first request may stand in an event loop.
        importlib.import_module("sag_pg.models.openai_client")
        self.settings = settings
        self.kind = kind
        self.usage = usage
        self._patience = _FOR_SOMEBODY if interactive else _FOR_A_RUN
        self._url = settings.url_of(kind)
        self._key_variable = settings.key_variable_of(kind)
        self._key = _read_key(
            os.environ if environ is None else environ, self._key_variable, self._url
        )
        self._attachments: dict[asyncio.AbstractEventLoop, _Attachment] = {}
        # Models that have answered here, with this key.
        self._answering: set[str] = set()

    def __repr__(self) -> str:
        return f"Endpoint({self.kind!r}, {self.url!r})"

    @property
    def url(self) -> str:
        """The base URL without user and password."""
        return redact_url(self._url)

    async def post(self, path: str, body: Mapping[str, Any], model: str) -> Any:
        """Send a request and wait for its answer, with further tries where they can help.

        Args:
            path: What follows the base URL, for example "/chat/completions".
            body: The request. Lone surrogates in it become question marks.
            model: The model's name, for counts and messages.

        Returns:
            The answer, decoded from JSON.

        Raises:
            EndpointRefusedError: The endpoint does not know the key, the model or the path, or
                there is no credit left.
            RequestRejectedError: The endpoint refuses this request, others it may answer.
            BudgetExhaustedError: A limit of the run is reached. The request was not sent.
            ModelError: No answer after all tries, one that is too large, or none in JSON.
        """
        import httpx2
        import openai

        from sag_pg.models import openai_client

        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        attachment = self._attach()
        async with attachment.slots:
            try:
                with openai_client.counted_as(model):
                    response = await attachment.client.post(
                        path,
                        cast_to=httpx2.Response,
                        content=content,
                        options={
                            "headers": openai_client.request_headers(
                                with_key=self._key is not None
                            ),
                            "security": {"bearer_auth": True},
                        },
                    )
                return self._read_answer(response, body, model)
            except openai_client.AnswerTooLargeError:
                failure = ModelError(
                    f"{self._who} sent an answer of more than"
                    f" {_MOST_BYTES[self.kind] // 1024**2} MB, which was not read to its end.",
                    "Give it fewer texts at once: --embedding-batch."
                    if self.kind == "embedding"
                    else "No model says so much. See what serves this URL.",
                )
            except openai.APIStatusError as error:
                failure = self._status_failure(error, path, body, model)
            except openai.APITimeoutError as error:
                if isinstance(error.__cause__, httpx2.ConnectTimeout):
                    failure = ModelError(
                        f"{self._who} took no connection{_after_tries(error.request)}.",
                        "See whether it runs, and whether a firewall is between.",
                    )
                else:
                    failure = ModelError(
                        f"{self._who} did not answer within {self.settings.model_timeout:g} s"
                        f"{_after_tries(error.request)}.",
                        "See whether it is overloaded, or raise --model-timeout.",
                    )
            except openai.APIConnectionError as error:
                cause = type(error.__cause__ or error).__name__
                failure = ModelError(
                    f"{self._who} could not be reached or broke the connection ({cause})"
                    f"{_after_tries(error.request)}.",
                    "See whether it runs and whether the URL is right.",
                )
        # Outside of the handlers, so that no traceback leads to what the server said.
        raise failure

    async def aclose(self) -> None:
        """Close the connections of the running event loop. A further request opens new ones."""
        attachment = self._attachments.pop(asyncio.get_running_loop(), None)
        if attachment is not None:
            await attachment.client.close()

    @property
    def _who(self) -> str:
        return f"The {self.kind} endpoint {self.url}"

    def _attach(self) -> _Attachment:
        from sag_pg.models import openai_client

        loop = asyncio.get_running_loop()
        attachment = self._attachments.get(loop)
        if attachment is None:
            for other in list(self._attachments):
                if other.is_closed():
                    self._attachments.pop(other, None)
            retries = self.settings.model_retries
            attachment = _Attachment(
                openai_client.open_client(
                    self._url,
                    self._key,
                    timeout=self.settings.model_timeout,
                    connect_timeout=self._patience.connect_timeout,
                    retries=self._patience.retries if retries is None else retries,
                    longest_wait=self._patience.longest_wait,
                    most_bytes=_MOST_BYTES[self.kind],
                    before_try=self.usage.begin_request,
                ),
                asyncio.Semaphore(self.settings.model_concurrency),
            )
            self._attachments[loop] = attachment
        return attachment

    def _read_answer(self, response: "httpx2.Response", body: Mapping[str, Any], model: str) -> Any:
        try:
            answer = json.loads(response.content)
        except (ValueError, RecursionError):
            raise ModelError(
                f"{self._who} did not answer in JSON.",
                "A base URL usually ends in /v1; without it some servers answer with a web page.",
            ) from None
        self._answering.add(model)
        self._count_tokens(model, body, answer)
        return answer

    def _count_tokens(self, model: str, body: Mapping[str, Any], answer: Any) -> None:
        stated = answer.get("usage") if isinstance(answer, dict) else None
        stated = stated if isinstance(stated, dict) else {}
        prompt = _count(stated.get("prompt_tokens"), stated.get("total_tokens"))
        completion = _count(stated.get("completion_tokens"))
        estimated = 0
        if prompt is None:
            prompt = sum(map(estimate_tokens, _request_texts(body)))
            estimated += prompt
        if completion is None:
            # Only a language model answers in text.
            texts = _texts(answer.get("choices")) if isinstance(answer, dict) else ()
            completion = sum(map(estimate_tokens, texts))
            estimated += completion
        self.usage.add_tokens(model, prompt, completion, estimated=estimated)

    def _status_failure(
        self, error: "openai.APIStatusError", path: str, body: Mapping[str, Any], model: str
    ) -> ModelError:
        from sag_pg.models import openai_client

        status = error.status_code
        words = self._server_words(error)
        if 300 <= status < 400 and "location" in error.response.headers:
            return self._redirect_failure(error.response, path, model)
        shown = "" if _is_echo(words, body) else words[:_MAX_SERVER_WORDS].rstrip(". ")
        said = f"HTTP {status}: {shown}" if shown else f"HTTP {status}"
        # Once the model has answered, these come from a firewall on the way, which dislikes a
        # text, or from a server that is just restarting.
        may_pass = model in self._answering
        if status == 401 or (status == 403 and not may_pass and not _MODERATION.search(words)):
            sent = "the key" if self._key else "a request without a key"
            return EndpointRefusedError(
                f"{self._who} refused {sent} ({said}).",
                f"The key is read from the environment variable {self._key_variable}.",
            )
        # Meant to be a text.
        code = error.code[:_MAX_READ_WORDS] if isinstance(error.code, str) else None
        if status == 402 or code == "insufficient_quota":
            return EndpointRefusedError(
                f"{self._who} says that there is no credit left ({said}).",
                "Add credit to the account behind the key.",
            )
        is_unknown = status in (400, 404, 422) and _UNKNOWN_MODEL.search(f"{code} {words}")
        if is_unknown and not may_pass:
            return EndpointRefusedError(
                f"{self._who} does not know the model {model} ({said}).",
                f"Name one that it serves: --{self.kind}-model.",
            )
        if status == 404 and not may_pass:
            return NotFoundError(
                f"{self._who} has nothing at {path} ({said}).", "A base URL usually ends in /v1."
            )
        if status == 501 or (400 <= status < 500 and status not in (408, 409, 429)):
            return RequestRejectedError(
                f"{self._who} refused a request to {path} ({said}).", status, words
            )
        wait = openai_client.requested_wait(error.response)
        if wait is not None and wait > self._patience.longest_wait:
            return ModelError(
                f"{self._who} could not answer ({said}) and asks to wait {wait:.0f} s before the"
                " next try, which is too long.",
                "Try again then. --model-concurrency asks less of it at once.",
            )
        return ModelError(
            f"{self._who} could not answer ({said}){_after_tries(error.request)}.",
            "It is overloaded or has a fault. --model-concurrency eases it, --model-retries waits "
            "longer.",
        )

    def _server_words(self, error: "openai.APIStatusError") -> str:
        said = error.body
        for key in ("error", "message", "detail"):
            if isinstance(said, dict) and said.get(key):
                said = said[key]
        words = self._fit_to_show(said) if isinstance(said, str) else ""
        # Else it is the web page of some proxy between.
        return "" if words.startswith("<") else words[:_MAX_READ_WORDS]

    def _redirect_failure(self, response: "httpx2.Response", path: str, model: str) -> ModelError:
        """The request was sent nowhere else: its text is for the one endpoint that was named."""
        try:
            target = redact_url(urljoin(str(response.url), response.headers["location"]))
        # Such as a bracket without its pair.
        except ValueError:
            target = ""
        target = self._fit_to_show(target).rstrip("/").removesuffix(path)[:_MAX_SERVER_WORDS]
        # Of one that has answered it is some page for visitors, as long as it is being mended.
        kind = ModelError if model in self._answering else EndpointRefusedError
        return kind(
            f"{self._who} redirects to {target or 'a place that is no URL'}"
            f" (HTTP {response.status_code}); nothing was sent there.",
            "If that is the right place, set the base URL to it.",
        )

    def _fit_to_show(self, said: str) -> str:
        """Words of a server in one line, without the key and what steers a terminal."""
        words = in_one_line(said)
        return words.replace(self._key, "***") if self._key else words


def _read_key(environ: Mapping[str, str], variable: str, url: str) -> str | None:
    key = environ.get(variable, "").strip()
    if not key:
        if url == OPENAI_BASE_URL:
            raise ConfigurationError(
                f"The environment variable {variable} holds no key for {OPENAI_BASE_URL}.",
                "Set it, or set SAG_PG_BASE_URL to an endpoint that needs none.",
            )
        return None
    # httpx would repeat the whole header in its complaint.
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(
            f"The key in the environment variable {variable} has characters that no key has.",
            "It is one line of ASCII without spaces. Was it pasted with something around it?",
        )
    return key


def _after_tries(request: "httpx2.Request") -> str:
    tries = 1 + int(request.headers.get("x-stainless-retry-count", "0"))
    return f" in {tries} tries" if tries > 1 else ""


def _count(*stated: Any) -> int | None:
    """The first that is a number of tokens."""
    return next(
        (
            n
            for n in stated
            if isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _MAX_TOKENS
        ),
        None,
    )


def _request_texts(body: Mapping[str, Any]) -> Iterator[str]:
    """What a request gives a model to read."""
    return _texts([body.get(name) for name in ("messages", "input", "query", "documents")])


def _is_echo(words: str, body: Mapping[str, Any]) -> bool:
    """Whether a piece of the request's own texts stands in a server's words."""
    request = in_one_line("\n".join(_request_texts(body)))
    words = words[:_MAX_SERVER_WORDS]
    # A piece that long has one of these blocks in it. The request may have megabytes, and few
    # searches of it are enough where none of them is found.
    block = _ECHO_CHARACTERS // 2
    places = range(0, len(words) - block + 1, block)
    found = [place for place in places if words[place : place + block] in request]
    starts = {start for place in found for start in range(max(0, place - block + 1), place + 1)}
    return any(
        len(piece := words[start : start + _ECHO_CHARACTERS]) == _ECHO_CHARACTERS
        and piece in request
        for start in starts
    )


def _texts(value: Any) -> Iterator[str]:
    """All texts within a request or an answer, in order."""
    # Not by calling itself: an answer may be nested as deeply as its decoder allows.
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting.extend(reversed([*value.values()]))
        elif isinstance(value, list | tuple):
            waiting.extend(reversed(value))
