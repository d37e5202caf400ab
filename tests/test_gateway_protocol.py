"""The gateway's reading of bytes: statements, messages, authentication, and noise."""

import asyncio
import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest
import scramp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_gateway import (
    PASSWORD,
    USER,
    captured_log,
    message,
    messages_in,
    packet,
    sqlstates,
    startup_message,
    statement,
)

from sag_pg.gateway.calls import Calls, Models
from sag_pg.gateway.limits import Limits
from sag_pg.gateway.protocol import (
    AUTHENTICATION_LIMIT,
    SKIP_LIMIT,
    STARTUP_LIMIT,
    Codec,
    read_frame,
    read_startup_frame,
)
from sag_pg.gateway.refusal import ProtocolViolationError, RefusedError
from sag_pg.gateway.scram import AuthenticationFailedError, Exchange, derive_keys, unknown_keys
from sag_pg.gateway.secret import Secret
from sag_pg.gateway.session import Service, Session
from sag_pg.gateway.statement import Call, parse_statement
from sag_pg.models.budget import Usage

SSL_REQUEST = packet(struct.pack("!I", 80877103))
GSS_REQUEST = packet(struct.pack("!I", 80877104))

# Statements


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("""SELECT understand('{"question": "x"}')""", Call("understand", '{"question": "x"}')),
        ("select CHOOSE ( 'it''s' ) ; ", Call("choose", "it's")),
        ("\n\tSELECT\nembed(\n''\n)", Call("embed", "")),
        (r"SELECT embed(E'a\\u0041 ''b''')", Call("embed", r"a\u0041 'b'")),
        (r"SELECT embed( e'\\\\')", Call("embed", r"\\")),
        (r"SELECT embed('C:\dir\')", Call("embed", "C:\\dir\\")),
        ("SELECT embed('); DROP TABLE x; --')", Call("embed", "); DROP TABLE x; --")),
        ("SELECT status();", Call("status", None)),
    ],
)
def test_statements_that_are_calls(text: str, call: Call) -> None:
    assert parse_statement(text) == call


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "BEGIN",
        "SELECT understand('a'), understand('b')",
        "SELECT understand('a'); SELECT understand('b')",
        "SELECT understand('a');;",
        "SELECT understand('a'",
        "SELECT understand('a)",
        "SELECT understand('a' 'b')",
        "SELECT understand($1)",
        "SELECT understand($$a$$)",
        "SELECT understand(U&'a')",
        "SELECT understand('a'::text)",
        "SELECT understand('a') FROM pg_class",
        "SELECT sag.understand('a')",
        r"SELECT understand(E'\n')",
        r"SELECT understand(E'a\')",
        r"SELECT understand(E'a\'')",
        "/* */ SELECT understand('a')",
        "SELECT\u00a0understand('a')",
        "SELECTunderstand('a')",
        "SELECT status() WITH",
    ],
)
def test_every_other_statement_is_refused(text: str) -> None:
    with pytest.raises(RefusedError) as refused:
        parse_statement(text)
    assert refused.value.sqlstate == "0A000"


@pytest.mark.parametrize(
    "text", ["SELECT version()", "SELECT sleep('1')", "SELECT status('x')", "SELECT understand()"]
)
def test_unknown_calls_are_named(text: str) -> None:
    with pytest.raises(RefusedError, match=r"function \w+\((unknown)?\) does not exist") as refused:
        parse_statement(text)
    assert refused.value.sqlstate == "42883"
    assert refused.value.hint is not None and "understand(json)" in refused.value.hint


def test_reading_a_statement_takes_linear_time() -> None:
    started = time.monotonic()
    for hostile in ("''" * 500_000, "\\\\" * 500_000, "' " * 500_000, " " * 1_000_000):
        for prefix in ("SELECT embed('", "SELECT embed(E'", "SELECT embed", "SELECT"):
            with contextlib.suppress(RefusedError):
                parse_statement(prefix + hostile)
    # Quadratic time would be hours.
    assert time.monotonic() - started < 20


@settings(database=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))))
def test_what_the_database_quotes_is_what_is_read(text: str) -> None:
    quoted = "'" + text.replace("'", "''") + "'"
    if "\\" in text:
        quoted = "E" + quoted.replace("\\", "\\\\")
    assert parse_statement(f"SELECT embed({quoted})") == Call("embed", text)


# Frames


def read(data: bytes, read_one: Callable[[asyncio.StreamReader], Awaitable[Any]]) -> Any:
    """Read from a stream that holds the data and does not end."""

    async def run() -> Any:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        async with asyncio.timeout(5):
            return await read_one(reader)

    return asyncio.run(run())


@pytest.mark.parametrize("length", [0, 3, 4, 7, STARTUP_LIMIT + 1, 2**31, 2**32 - 1])
def test_startup_packets_of_a_wrong_length_are_refused_unread(length: int) -> None:
    with pytest.raises(ProtocolViolationError, match="length"):
        read(struct.pack("!I", length), read_startup_frame)


@pytest.mark.parametrize("code", [0, 0x00020000, 0x00040000, 80877105, 2**32 - 1])
def test_other_protocols_are_refused(code: int) -> None:
    with pytest.raises(ProtocolViolationError, match=r"3\.0 and 3\.2"):
        read(packet(struct.pack("!I", code) + b"\0"), read_startup_frame)


@pytest.mark.parametrize(
    ("asked", "offered"),
    [(0x30000, None), (0x30001, 0x30000), (0x30002, None), (0x30003, 0x30002), (0x3FFFF, 0x30002)],
)
def test_other_versions_of_the_protocol_are_negotiated(asked: int, offered: int | None) -> None:
    frame = read(startup_message(version=asked), read_startup_frame)
    assert frame.newest_version == offered
    decoded: Any = Codec().decode(frame.content)
    assert decoded.params["user"] == USER


@pytest.mark.parametrize("length", [0, 3, 101 + 4, 2**31, 2**32 - 1])
def test_messages_of_a_wrong_length_are_refused_unread(length: int) -> None:
    with pytest.raises(ProtocolViolationError):
        read(b"p" + struct.pack("!I", length), lambda reader: read_frame(reader, 100, 5))


def test_a_query_that_is_too_long_is_read_past() -> None:
    async def both(reader: asyncio.StreamReader) -> tuple[Any, Any]:
        return await read_frame(reader, 100, 5), await read_frame(reader, 100, 5)

    first, second = read(message(b"Q", b"x" * 300_000) + message(b"X"), both)
    assert first.is_oversized and len(first.content) == 6
    assert second.is_terminate
    with pytest.raises(ProtocolViolationError):
        read(b"Q" + struct.pack("!I", SKIP_LIMIT + 5), lambda reader: read_frame(reader, 100, 5))


def test_a_message_that_does_not_end_is_given_up() -> None:
    with pytest.raises(ProtocolViolationError, match="in time"):
        read(b"Q\0\0\0\x10SEL", lambda reader: read_frame(reader, 100, 0.05))


@pytest.mark.parametrize(
    "garbage",
    [
        message(b"Q", b"SELECT 1"),
        message(b"Q", b"SELECT 1\0 and more\0"),
        message(b"Q", b"\xff\xfe\0"),
        message(b"Q"),
        message(b"P", b"\0\0\xff\xff"),
        message(b"B", b"\0\0\0\x01"),
        message(b"D"),
        message(b"?"),
        message(b"p", b"x\0"),
    ],
)
def test_malformed_messages_are_violations(garbage: bytes) -> None:
    codec = Codec()
    codec.decode(startup_message())
    with pytest.raises(ProtocolViolationError) as refused:
        codec.decode(garbage)
    # A trace would show what the client sent.
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


# Authentication


@pytest.mark.parametrize("name", ["", "*", "sag_gateway", "=2C=3D"])
def test_a_client_may_leave_its_name_out(name: str) -> None:
    client = scramp.ScramClient(["SCRAM-SHA-256"], "any", PASSWORD)
    exchange = Exchange("SCRAM-SHA-256", derive_keys(PASSWORD), None)
    first = client.get_client_first().replace("n=any,", f"n={name},")
    client.client_first_bare = first.removeprefix("n,,")
    client.set_server_first(exchange.first(first.encode()).decode())
    client.set_server_final(exchange.final(client.get_client_final().encode()).decode())


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=",
        b"n,,n=,",
        b"n,,n=,r=",
        b"y,,r=abc",
        b"p=tls-unique,,n=,r=abc",
        b"\xff",
    ],
)
def test_a_malformed_first_message_fails(first: bytes) -> None:
    with pytest.raises(AuthenticationFailedError):
        Exchange("SCRAM-SHA-256", derive_keys(PASSWORD), None).first(first)


def test_a_wrong_proof_fails_and_keys_show_nothing() -> None:
    keys = derive_keys(PASSWORD)
    for known, password in ((keys, "other"), (unknown_keys(), PASSWORD)):
        client = scramp.ScramClient(["SCRAM-SHA-256"], "any", password)
        exchange = Exchange("SCRAM-SHA-256", known, None)
        client.set_server_first(exchange.first(client.get_client_first().encode()).decode())
        with pytest.raises(AuthenticationFailedError):
            exchange.final(client.get_client_final().encode())
    assert repr(keys) == "Keys(iterations=4096)"
    for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "PLAIN", ""):
        with pytest.raises(AuthenticationFailedError):
            Exchange(mechanism, keys, None)


def test_the_secret_is_read_once_for_all_that_come_meanwhile() -> None:
    async def run() -> None:
        readings = 0
        password = "first"
        gate = asyncio.Event()

        async def read_password() -> str:
            nonlocal readings
            readings += 1
            seen = password
            await gate.wait()
            return seen

        secret = Secret(read_password)
        early = asyncio.create_task(secret.keys())
        await asyncio.sleep(0.01)
        password = "second"
        late = [asyncio.create_task(secret.keys()) for _ in range(50)]
        await asyncio.sleep(0.01)
        late[0].cancel()
        gate.set()
        await early
        # What came after the change must not get what was read before it.
        newest = set(await asyncio.gather(*late[1:]))
        assert readings == 2
        assert len(newest) == 1
        (keys,) = newest
        assert keys is not None
        _log_in(Exchange("SCRAM-SHA-256", keys, None), "second")

    asyncio.run(run())


def test_the_last_known_keys_serve_while_the_database_is_away() -> None:
    async def run() -> None:
        answers: list[Any] = [PASSWORD, OSError(f"not {PASSWORD}"), None]

        async def read_password() -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        secret = Secret(read_password)
        known = await secret.keys()
        assert known is not None
        assert await secret.keys() == known
        assert await secret.keys() is None

    with captured_log() as lines:
        asyncio.run(run())
    (line,) = lines()
    assert (line["event"], line["error"]) == ("secret_unreadable", "OSError")
    assert PASSWORD not in str(line)


def test_a_database_that_says_nothing_holds_no_login_up() -> None:
    async def run() -> None:
        answers = asyncio.Event()
        password = PASSWORD

        async def read_password() -> str:
            await answers.wait()
            return password

        secret = Secret(read_password)
        answers.set()
        known = await secret.keys()
        answers.clear()
        started = time.monotonic()
        # What is known serves, for one and for many, long before the reading is given up.
        assert await secret.keys() is known
        assert set(await asyncio.gather(*(secret.keys() for _ in range(20)))) == {known}
        assert time.monotonic() - started < 3
        # It was not given up, so that an answer that comes late counts.
        password = "another"
        answers.set()
        keys = await secret.keys()
        assert keys is not None
        _log_in(Exchange("SCRAM-SHA-256", keys, None), password)

    asyncio.run(run())


def _log_in(exchange: Exchange, password: str) -> None:
    client = scramp.ScramClient(["SCRAM-SHA-256"], "any", password)
    client.set_server_first(exchange.first(client.get_client_first().encode()).decode())
    client.set_server_final(exchange.final(client.get_client_final().encode()).decode())


# Noise

GOOD_STARTS = st.sampled_from(
    [
        startup_message(),
        startup_message(version=0x30002),
        startup_message(version=0x30009, **{"_pq_.future": "1"}),
        startup_message(user="postgres"),
        SSL_REQUEST,
        GSS_REQUEST,
        packet(struct.pack("!III", 80877102, 1, 7)),
    ]
)
CLIENT_FIRST = b"n,,n=,r=abcdefghijklmnop"
GOOD_MESSAGES = st.sampled_from(
    [
        message(b"p", b"SCRAM-SHA-256\0" + packet(CLIENT_FIRST)[4:]),
        message(b"p", b"SCRAM-SHA-256\0" + struct.pack("!I", len(CLIENT_FIRST)) + CLIENT_FIRST),
        message(b"p", b"c=biws,r=abc,p=AAAA"),
        message(b"p", b"password\0"),
        message(b"Q", b"SELECT status()\0"),
        message(b"Q", statement("embed", texts=["x"]) + b"\0"),
        message(
            b"Q", statement("choose", question="x", candidates=[{"text": "y"}], limit=1) + b"\0"
        ),
        message(b"Q", b"SELECT 1\0"),
        message(b"Q", b"\0"),
        message(b"P", b"\0SELECT 1\0\0\0"),
        message(b"B", b"\0\0\0\0\0\0\0\0"),
        message(b"D", b"P\0"),
        message(b"E", b"\0\0\0\0\0"),
        message(b"C", b"S\0"),
        message(b"S"),
        message(b"H"),
        message(b"F", struct.pack("!IHHH", 1, 0, 0, 0)),
        message(b"d", b"data"),
        message(b"c"),
        message(b"f", b"no\0"),
        message(b"X"),
        message(b"Q", b"x" * 3000),
        message(b"p", b"x" * (AUTHENTICATION_LIMIT + 1)),
    ]
)
LIES = st.builds(
    lambda kind, length, body: kind + struct.pack("!I", length) + body,
    st.binary(min_size=0, max_size=1),
    st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1)),
    st.binary(max_size=40),
)
NOISE = st.one_of(GOOD_MESSAGES, GOOD_MESSAGES, LIES, st.binary(max_size=60))


@st.composite
def byte_streams(draw: st.DrawFn) -> bytes:
    """Valid conversations, spoilt in places."""
    stream = draw(st.one_of(GOOD_STARTS, GOOD_STARTS, LIES, st.just(b"")))
    stream += b"".join(draw(st.lists(st.one_of(GOOD_STARTS, NOISE, NOISE), max_size=8)))
    for position, value in draw(
        st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=3)
    ):
        if stream:
            at = position % len(stream)
            stream = stream[:at] + bytes([value]) + stream[at + 1 :]
    cut = draw(st.one_of(st.none(), st.integers(0, len(stream))))
    return stream[:cut]


class OneService:
    """What a session needs, without a server around."""

    def __init__(self) -> None:
        limits = Limits(max_request_bytes=2000, authentication_seconds=5, transfer_seconds=5)
        self.service = Service(
            Calls(Models(), limits, Usage()), Secret(self._read_password), limits, self
        )
        # Derived once: that takes long on purpose.
        self._keys = derive_keys(PASSWORD)
        self.service.secret.keys = self._known_keys  # type: ignore[method-assign]

    async def _read_password(self) -> str:
        return PASSWORD

    async def _known_keys(self) -> Any:
        return self._keys

    def admit(self, session: Session) -> None:
        pass

    def cancel(self, process_id: int, key: bytes) -> None:
        pass

    def release(self, session: Session) -> None:
        pass

    async def converse(self, stream: bytes, *, logs_in: bool) -> bytes:
        """Send bytes to a session, and return what it has to say until it ends."""
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        session = Session(1, reader, writer, self.service, needs_tls=False)
        running = asyncio.create_task(session.run())
        our_reader, our_writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(20):
                if logs_in:
                    await log_in(our_reader, our_writer)
                our_writer.write(stream)
                our_writer.write_eof()
                answer = b""
                with contextlib.suppress(ConnectionError):
                    answer = await our_reader.read(-1)
                await running
        finally:
            our_writer.close()
        return answer


async def log_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bring a connection to its first query."""

    async def receive() -> tuple[bytes, bytes]:
        kind = await reader.readexactly(1)
        (length,) = struct.unpack("!I", await reader.readexactly(4))
        return kind, await reader.readexactly(length - 4)

    client = scramp.ScramClient(["SCRAM-SHA-256"], "any", PASSWORD)
    writer.write(startup_message())
    assert (await receive())[0] == b"R"
    first = client.get_client_first().encode()
    writer.write(message(b"p", b"SCRAM-SHA-256\0" + struct.pack("!I", len(first)) + first))
    kind, body = await receive()
    assert kind == b"R", body
    client.set_server_first(body[4:].decode())
    writer.write(message(b"p", client.get_client_final().encode()))
    kind, body = await receive()
    assert kind == b"R", body
    client.set_server_final(body[4:].decode())
    while (await receive())[0] != b"Z":
        pass


def test_noise_is_answered_or_ends_the_connection() -> None:
    seconds = float(os.environ.get("SAG_PG_FUZZ_SECONDS", "4"))
    one = OneService()
    process = psutil.Process()
    with captured_log() as lines, asyncio.Runner() as runner:

        @settings(
            max_examples=150,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(stream=byte_streams(), logs_in=st.booleans())
        def converse(stream: bytes, logs_in: bool) -> None:
            before = len(lines())
            answer = runner.run(one.converse(stream, logs_in=logs_in))
            # Encryption is refused by a byte that is no message.
            for _, body in messages_in(answer.lstrip(b"N")):
                assert PASSWORD.encode() not in body
            assert [line for line in lines()[before:] if line["level"] == "error"] == []

        memory = process.memory_info().rss
        until = time.monotonic() + seconds
        rounds = 0
        while time.monotonic() < until or rounds == 0:
            converse()
            rounds += 1
            good = message(b"Q", b"SELECT status()\0")
            answer = runner.run(one.converse(good, logs_in=True))
            assert [kind for kind, _ in messages_in(answer)] == [b"T", b"D", b"C", b"Z"]
        assert process.memory_info().rss - memory < 200 * 1024 * 1024


@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ENETDOWN])
def test_a_connection_that_the_system_gives_up_is_lost(number: int) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        with ours:
            reader, writer = await asyncio.open_connection(sock=theirs)
            # As the transport does when reading fails.
            reader.set_exception(OSError(number, os.strerror(number)))
            await Session(1, reader, writer, OneService().service, needs_tls=False).run()

    with captured_log() as lines:
        asyncio.run(run())
    assert [line["event"] for line in lines()] == ["connection_lost"]


def test_a_newer_client_is_told_what_is_spoken_here() -> None:
    stream = startup_message(version=0x30007, **{"_pq_.future": "1", "_pq_.other": "2"})
    answer = asyncio.run(OneService().converse(stream, logs_in=False))
    first, second = messages_in(answer)[:2]
    assert first == (b"v", struct.pack("!II", 0x30002, 2) + b"_pq_.future\0_pq_.other\0")
    assert second == (b"R", struct.pack("!I", 10) + b"SCRAM-SHA-256\0\0")


def test_the_extended_protocol_is_refused_up_to_its_sync() -> None:
    one = OneService()
    stream = (
        message(b"P", b"\0SELECT status()\0\0\0")
        + message(b"B", b"\0\0\0\0\0\0\0\0")
        + message(b"E", b"\0\0\0\0\0")
        + message(b"S")
        + message(b"Q", b"SELECT status()\0")
    )
    answer = asyncio.run(one.converse(stream, logs_in=True))
    assert [kind for kind, _ in messages_in(answer)] == [b"E", b"Z", b"T", b"D", b"C", b"Z"]
    assert sqlstates(answer) == ["0A000"]


def test_a_function_call_and_an_empty_query_are_answered() -> None:
    one = OneService()
    stream = message(b"F", struct.pack("!IHHH", 1, 0, 0, 0)) + message(b"Q", b" ;\n\0")
    answer = asyncio.run(one.converse(stream, logs_in=True))
    assert [kind for kind, _ in messages_in(answer)] == [b"E", b"Z", b"I", b"Z"]
