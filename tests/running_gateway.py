"""A gateway for the tests: the real server in a thread of this process."""

import asyncio
import contextlib
import io
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import psycopg

from sag_pg.gateway import log
from sag_pg.gateway.calls import Models
from sag_pg.gateway.limits import Limits
from sag_pg.gateway.listening import Listening
from sag_pg.gateway.server import GatewayServer
from sag_pg.models.budget import Usage
from sag_pg.models.load import load_chooser, load_question_reader
from sag_pg.models.settings import ModelSettings

PASSWORD = "canary-password-4711"
USER = "sag_gateway"


class RunningGateway:
    """A context manager that serves on a free port of the loopback.

    Attributes:
        password: What clients have to know; may be changed.
        server: The server.
    """

    def __init__(
        self,
        models: Models | None = None,
        *,
        listening: Listening | None = None,
        limits: Limits | None = None,
        usage: Usage | None = None,
    ) -> None:
        self.password: str | None = PASSWORD
        self.server = GatewayServer(
            models or Models(),
            self._read_password,
            listening or Listening(port=0),
            limits,
            usage,
        )
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    async def _read_password(self) -> str | None:
        return self.password

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for(self.server.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.wait_for(self.server.stop(grace_seconds=0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
        self.loop.close()

    def wait_for(self, coroutine: Any) -> Any:
        """Run a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=30)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Open a connection that sends simple queries."""
        return psycopg.connect(
            **{
                "host": "127.0.0.1",
                "port": self.server.port,
                "user": USER,
                "password": PASSWORD,
                "connect_timeout": 10,
                **options,
            },
            autocommit=True,
            prepare_threshold=None,
        )

    def socket(self) -> socket.socket:
        """Open a plain connection."""
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=20)


def ask(connection: psycopg.Connection[Any], call: str, **request: Any) -> dict[str, Any]:
    """Make a call and return its answer."""
    row = connection.execute(statement(call, **request)).fetchone()
    assert row is not None
    answer: dict[str, Any] = json.loads(row[0])
    return answer


def statement(call: str, **request: Any) -> bytes:
    """Write a call as the database does it."""
    argument = json.dumps(request).replace("'", "''")
    if "\\" in argument:
        return b"SELECT %s(E'%s')" % (call.encode(), argument.replace("\\", "\\\\").encode())
    return b"SELECT %s('%s')" % (call.encode(), argument.encode())


def state(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Ask for the status."""
    row = connection.execute("SELECT status()").fetchone()
    assert row is not None
    answer: dict[str, Any] = json.loads(row[0])
    return answer


def language_models(url: str, usage: Usage | None = None, **settings: Any) -> Models:
    """The real provider against a server of the tests."""
    known = ModelSettings.from_environment(
        {}, base_url=url, chat_model="test-chat", model_retries=0, **settings
    )
    return Models(
        reader=load_question_reader(known, usage),
        chooser=load_chooser(known, usage),
        chat_model="test-chat",
    )


@contextlib.contextmanager
def captured_log() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Yield a function that gives the lines that were logged meanwhile."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    log.configure(stream)
    try:
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for what happens in another thread or process."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "It did not happen in time"
        time.sleep(0.02)


def startup_message(user: str = USER, version: int = 0x00030000, **options: str) -> bytes:
    """Write the message that begins a connection."""
    pairs = {"user": user, "database": "any", **options}
    body = b"".join(name.encode() + b"\0" + value.encode() + b"\0" for name, value in pairs.items())
    return packet(struct.pack("!I", version) + body + b"\0")


def packet(body: bytes) -> bytes:
    """Put the length before a packet."""
    return struct.pack("!I", len(body) + 4) + body


def message(kind: bytes, body: bytes = b"") -> bytes:
    """Put type and length before a message."""
    return kind + packet(body)


def messages_in(data: bytes) -> list[tuple[bytes, bytes]]:
    """Take apart what a server sent; types and bodies.

    Raises:
        AssertionError: It is no sequence of whole messages.
    """
    found = []
    while data:
        assert len(data) >= 5, data
        (length,) = struct.unpack_from("!I", data, 1)
        assert 4 <= length < len(data), data
        found.append((data[:1], data[5 : 1 + length]))
        data = data[1 + length :]
    return found


def sqlstates(data: bytes) -> list[str]:
    """The codes of the errors that a server sent."""
    return [
        field[1:].decode()
        for kind, body in messages_in(data)
        if kind == b"E"
        for field in body.split(b"\0")
        if field[:1] == b"C"
    ]


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65_536):
            data += chunk
    return data
