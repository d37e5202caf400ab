"""The HTTP client of an endpoint: the openai package with this project's limits.

Apart from `endpoint`, because importing the package takes most of a second and it is an extra.
"""

import asyncio
import email.utils
import math
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx2
import openai

from sag_pg.models.settings import OPENAI_BASE_URL, is_loopback

# Of an error only the words count.
_MOST_ERROR_BYTES = 256 * 1024

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


class AnswerTooLargeError(Exception):
    """An answer went on beyond the bytes that one may have. The rest of it was not read."""


def requested_wait(response: httpx2.Response) -> float | None:
    """Seconds that a server asks to wait before the next try; None where it does not say."""
    for header, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(response.headers.get(header, "")) * unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) else None
    try:
        date = email.utils.parsedate_to_datetime(response.headers.get("retry-after", ""))
        return date.timestamp() - time.time()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


class _LimitedClient(openai.DefaultAsyncHttpxClient):
    """Asks before each try whether it is allowed, and bounds it in time and size.

    httpx's timeouts are for one read. A server that sends a blank now and then while the request
    waits in its queue, as DeepSeek's does, would hold a client for ever. And what it reads it
    keeps, however much that is.
    """

    def __init__(
        self,
        before_try: Callable[[str], None],
        seconds: float,
        longest_wait: float,
        most_bytes: int,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._before_try = before_try
        self._seconds = seconds
        self._longest_wait = longest_wait
        self._most_bytes = most_bytes

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        self._before_try(_model.get())
        try:
            async with asyncio.timeout(self._seconds):
                arriving = await super().send(request, **{**options, "stream": True})
                try:
                    response = await _read(arriving, self._most_bytes)
                finally:
                    await arriving.aclose()
        except TimeoutError as error:
            raise httpx2.ReadTimeout("The answer took too long.", request=request) from error
        if _is_final(response) or (requested_wait(response) or 0) > self._longest_wait:
            response.headers["x-should-retry"] = "false"
        return response


async def _read(arriving: httpx2.Response, most_bytes: int) -> httpx2.Response:
    """Read an answer to its end; one that is an error is cut where it becomes too long.

    Raises:
        AnswerTooLargeError: It has more than `most_bytes` bytes, as sent or decoded.
        httpx2.DecodingError: It is not encoded as it says.
    """
    is_error = not arriving.is_success
    most = min(most_bytes, _MOST_ERROR_BYTES) if is_error else most_bytes
    encoding = arriving.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip"):
        message = "It is encoded in a way that was not asked for."
        raise httpx2.DecodingError(message, request=arriving.request)
    # httpx's own decoders need not stop: a thousandth of what they make of it was sent.
    decoder = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS) if encoding == "gzip" else None
    content = bytearray()
    received = 0
    async for piece in arriving.aiter_raw():
        received += len(piece)
        room = most - len(content) + 1
        try:
            content += decoder.decompress(piece, room) if decoder else piece[:room]
        except zlib.error as error:
            raise httpx2.DecodingError(str(error), request=arriving.request) from error
        if len(content) > most or received > most:
            if not is_error:
                raise AnswerTooLargeError
            del content[most:]
            break
    else:
        if decoder is not None and received and not decoder.eof:
            raise httpx2.DecodingError("It is cut off.", request=arriving.request)
    # These are of how it was sent.
    sent_only = (b"content-encoding", b"content-length", b"transfer-encoding")
    headers = [header for header in arriving.headers.raw if header[0].lower() not in sent_only]
    return httpx2.Response(
        arriving.status_code, headers=headers, content=bytes(content), request=arriving.request
    )


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
    connect_timeout: float,
    retries: int,
    longest_wait: float,
    most_bytes: int,
    before_try: Callable[[str], None],
) -> openai.AsyncOpenAI:
    """Make a client for the running event loop.

    Args:
        url: The base URL; user and password in it are sent as basic authentication.
        key: Sent as bearer token; None to send none.
        timeout: Seconds for one try, from its first byte to the answer's last.
        connect_timeout: Seconds of it in which the server has to accept the connection.
        retries: Further tries. The package waits between them as long as `Retry-After` says, or
            else 0.5 s doubled each time up to 8 s.
        longest_wait: Seconds, at most 120, which is as long as the package waits. Where
            `Retry-After` says more, there is no further try.
        most_bytes: Bytes that an answer may have, as sent and decoded. One that has more raises
            `AnswerTooLargeError`, without a further try.
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
        timeout=httpx2.Timeout(timeout, connect=min(timeout, connect_timeout)),
        default_headers={name: openai.Omit() for name in omitted},  # type: ignore[misc]
        http_client=_LimitedClient(
            before_try,
            timeout,
            longest_wait,
            most_bytes,
            auth=credentials,
            headers={"Accept-Encoding": "gzip"},
            # The text is for the one endpoint that was named.
            follow_redirects=False,
            # A proxy set in the environment does not know this machine's own servers.
            trust_env=not is_loopback(url),
        ),
    )
