"""The HTTP client of an endpoint: the openai package with this project's limits.

Apart from `endpoint`, because importing the package takes most of a second and it is an extra.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx2
import openai

from sag_pg.models.settings import OPENAI_BASE_URL, is_loopback

_CONNECT_TIMEOUT = 10.0

# Headers with which the package names an account at OpenAI, read from its own variables.
_ACCOUNT_HEADERS = ("OpenAI-Organization", "OpenAI-Project")


_model: ContextVar[str] = ContextVar("_model")


@contextmanager
def counted_as(model: str) -> Iterator[None]:
    """Name the model that the requests of this context are for."""
    token = _model.set(model)
    try:
        yield
    finally:
        _model.reset(token)


def request_headers(*, with_key: bool) -> dict[str, str | openai.Omit]:
    """The headers of a request whose body is JSON."""
    headers: dict[str, str | openai.Omit] = {"Content-Type": "application/json"}
    # The package refuses to go without a key unless each request says so.
    return headers if with_key else {**headers, "Authorization": openai.Omit()}


class _LimitedClient(openai.DefaultAsyncHttpxClient):
    """Asks before each try whether it is allowed, and bounds it as a whole.

    httpx's timeouts are for one read. A server that sends a blank now and then while the request
    waits in its queue, as DeepSeek's does, would hold a client for ever.
    """

    def __init__(self, before_try: Callable[[str], None], seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._before_try = before_try
        self._seconds = seconds

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        self._before_try(_model.get())
        try:
            async with asyncio.timeout(self._seconds):
                response = await super().send(request, **options)
        except TimeoutError as error:
            raise httpx2.ReadTimeout("The answer took too long.", request=request) from error
        if _is_final(response):
            response.headers["x-should-retry"] = "false"
        return response


def _is_final(response: httpx2.Response) -> bool:
    """Whether another try is useless, though the status is one of those that pass."""
    if response.status_code == 501:
        return True
    return response.status_code == 429 and b"insufficient_quota" in response.content


def open_client(
    url: str,
    key: str | None,
    *,
    timeout: float,
    retries: int,
    before_try: Callable[[str], None],
) -> openai.AsyncOpenAI:
    """Make a client for the running event loop.

    Args:
        url: The base URL; user and password in it are sent as basic authentication.
        key: Sent as bearer token; None to send none.
        timeout: Seconds for one try, from its first byte to the answer's last.
        retries: Further tries. The package waits between them as long as `Retry-After` says, if
            that is at most two minutes, else 0.5 s doubled each time up to 8 s.
        before_try: Called with the model's name before each try; what it raises is raised by the
            request.
    """
    parts = urlsplit(url)
    # In the URL they would stand in every line that httpx logs.
    credentials = (
        (unquote(parts.username or ""), unquote(parts.password or ""))
        if parts.username or parts.password
        else None
    )
    plain_url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    omitted = () if url == OPENAI_BASE_URL else _ACCOUNT_HEADERS
    return openai.AsyncOpenAI(
        base_url=plain_url,
        # Without one the package would look into its own variable.
        api_key=key or "none",
        max_retries=retries,
        timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECT_TIMEOUT)),
        default_headers={name: openai.Omit() for name in omitted},  # type: ignore[misc]
        http_client=_LimitedClient(
            before_try,
            timeout,
            auth=credentials,
            # A proxy set in the environment does not know this machine's own servers.
            trust_env=not is_loopback(url),
        ),
    )
