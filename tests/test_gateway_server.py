"""The gateway as clients meet it: over real sockets, in good order and in bad."""

import asyncio
import contextlib
import gc
import ipaddress
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID
from model_server import EMBEDDING_MODEL, GOOD, ModelServer, silence
from pygwire.messages import DataRow
from running_gateway import (
    PASSWORD,
    USER,
    RunningGateway,
    ask,
    captured_log,
    language_models,
    message,
    messages_in,
    packet,
    read_to_end,
    sqlstates,
    startup_message,
    state,
    statement,
    wait_until,
)

from sag_pg import cli
from sag_pg.errors import ConfigurationError
from sag_pg.gateway.calls import Models
from sag_pg.gateway.limits import Limits
from sag_pg.gateway.listening import Listening, load_tls
from sag_pg.models.local_embedding import bge_small_en
from sag_pg.models.threaded_embedding import ThreadedEmbedding

SSL_REQUEST = packet(struct.pack("!I", 80877103))
EVERYWHERE = "0.0.0.0"  # noqa: S104
CANDIDATES = [{"title": "", "text": "One"}, {"title": "", "text": "Two"}]
CHOICE = {"question": "Which?", "candidates": CANDIDATES, "limit": 1}


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with RunningGateway(Models(ThreadedEmbedding(bge_small_en()))) as gateway:
        yield gateway


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def plain(connection: psycopg.Connection[Any]) -> socket.socket:
    """The socket of a connection, to send what libpq never would."""
    raw = socket.socket(fileno=os.dup(connection.fileno()))
    raw.settimeout(20)
    return raw


# What is served, and to whom


@pytest.mark.parametrize("version", ["3.0", "3.2", "latest"])
def test_a_client_of_each_version_is_served(gateway: RunningGateway, version: str) -> None:
    with gateway.connect(max_protocol_version=version) as connection:
        answer = ask(connection, "understand", question="Who's there? \\ 'yes'")
        assert len(answer["embedding"]) == answer["dimensions"] == 384
        assert connection.info.parameter_status("standard_conforming_strings") == "on"
        assert connection.info.encoding == "utf-8"
        assert connection.info.server_version >= 160000


@pytest.mark.parametrize(
    "who",
    [{"password": "wrong"}, {"user": "postgres"}, {"user": "postgres", "password": "wrong"}],
)
def test_a_wrong_name_or_password_is_refused(gateway: RunningGateway, who: dict[str, str]) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        gateway.connect(**who)


def test_a_missing_password_lets_nobody_in(gateway: RunningGateway) -> None:
    gateway.password = None
    try:
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            gateway.connect()
    finally:
        gateway.password = PASSWORD


def test_a_changed_password_counts_at_once(gateway: RunningGateway) -> None:
    with gateway.connect() as early:
        gateway.password = other = "another"
        try:
            gateway.connect(password=other).close()
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                gateway.connect()
        finally:
            gateway.password = PASSWORD
        assert state(early)["version"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("SELECT 1", psycopg.errors.FeatureNotSupported),
        ("BEGIN", psycopg.errors.FeatureNotSupported),
        ("SELECT status(); SELECT status()", psycopg.errors.FeatureNotSupported),
        ("SELECT pg_sleep('1')", psycopg.errors.UndefinedFunction),
        ("SELECT understand('')", psycopg.errors.InvalidParameterValue),
        ("SELECT choose('{}')", psycopg.errors.InvalidParameterValue),
    ],
)
def test_a_refused_statement_leaves_the_connection_whole(
    gateway: RunningGateway, text: str, error: type[Exception]
) -> None:
    with gateway.connect() as connection:
        with pytest.raises(error):
            connection.execute(text)
        assert state(connection)["version"]


def test_the_extended_protocol_is_refused_and_the_connection_goes_on(
    gateway: RunningGateway,
) -> None:
    with gateway.connect() as connection:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="extended query protocol"):
            connection.execute("SELECT status(%s)", ["x"])
        assert state(connection)["version"]


def test_a_statement_that_is_too_long_leaves_the_connection_whole(gateway: RunningGateway) -> None:
    with gateway.connect() as connection:
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="longer than 1048576 bytes"):
            ask(connection, "embed", texts=["x" * 5_000_000])
        # The longest that fits.
        text = statement("embed", texts=[""])
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="above 32768"):
            connection.execute(text.replace(b'""', b'"' + b"x" * (1024 * 1024 - len(text)) + b'"'))
        assert state(connection)["version"]


def test_a_length_beyond_all_reason_ends_the_connection(gateway: RunningGateway) -> None:
    with gateway.connect() as connection, plain(connection) as raw:
        raw.sendall(b"Q" + struct.pack("!I", 2**30))
        assert sqlstates(read_to_end(raw)) == ["08P01"]


# Noise


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\0\0\x08\xff\xff\xff\xff",
        struct.pack("!I", 2**31) + b"x" * 100,
        startup_message() + message(b"p", b"x" * 70_000),
        startup_message() + message(b"Q", b"SELECT status()\0"),
        startup_message() + message(b"p", b"PLAIN\0\xff\xff\xff\xff"),
        startup_message() + message(b"p", b"\xff"),
        startup_message() + b"p\0\0\0\0",
        packet(struct.pack("!I", 0x30000) + b"user\0"),
        SSL_REQUEST + SSL_REQUEST,
        os.urandom(5000),
    ],
    ids=range(12),
)
def test_noise_before_login_is_refused(gateway: RunningGateway, noise: bytes) -> None:
    with gateway.socket() as raw:
        raw.sendall(noise)
        answer = read_to_end(raw)
    assert sqlstates(answer.lstrip(b"N")) in (["08P01"], ["28P01"])
    with gateway.connect() as connection:
        assert state(connection)["version"]


def test_half_a_message_holds_nobody_up(gateway: RunningGateway) -> None:
    with gateway.socket() as raw, gateway.connect() as half:
        raw.sendall(startup_message()[:20])
        os.write(half.fileno(), message(b"Q", b"SELECT status()\0")[:10])
        with gateway.connect() as connection:
            assert state(connection)["version"]


def test_who_is_slow_to_log_in_is_dropped() -> None:
    with (
        RunningGateway(limits=Limits(authentication_seconds=4)) as gateway,
        captured_log() as lines,
        gateway.socket() as silent,
        gateway.socket() as slow,
        gateway.socket() as stuck,
        gateway.socket() as half_way,
    ):
        stuck.sendall(startup_message())
        half_way.sendall(SSL_REQUEST)
        for byte in startup_message()[:6]:
            slow.sendall(bytes([byte]))
            time.sleep(0.05)
        for raw in (silent, slow, stuck, half_way):
            assert b"E" not in [kind for kind, _ in messages_in(read_to_end(raw).lstrip(b"N"))]
        wait_until(lambda: len(lines()) >= 4)
        assert {line["event"] for line in lines()} == {"authentication_timeout"}


def test_a_message_that_never_ends_is_given_up() -> None:
    with (
        RunningGateway(limits=Limits(transfer_seconds=0.3)) as gateway,
        gateway.connect() as connection,
        plain(connection) as raw,
    ):
        raw.sendall(message(b"Q", b"SELECT status()\0")[:9])
        assert sqlstates(read_to_end(raw)) == ["08P01"]


def test_a_client_that_does_not_read_is_dropped() -> None:
    embedding = ThreadedEmbedding(bge_small_en())
    with (
        RunningGateway(Models(embedding), limits=Limits(transfer_seconds=0.3)) as gateway,
        gateway.connect() as connection,
        gateway.connect() as other,
    ):
        texts = [f"word {number}" for number in range(40)]
        ask(other, "embed", texts=texts)
        # Its answers together are more than any buffer of the system.
        os.set_blocking(connection.fileno(), False)
        request = message(b"Q", statement("embed", texts=texts * 6) + b"\0")
        until = time.monotonic() + 30
        while state(other)["connections"] > 1:
            assert time.monotonic() < until
            with contextlib.suppress(BlockingIOError, ConnectionError):
                os.write(connection.fileno(), request)


def test_a_crowd_of_silent_clients_keeps_nobody_out(gateway: RunningGateway) -> None:
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(gateway.socket()) for _ in range(1000)]
        for raw in crowd[::2]:
            with contextlib.suppress(ConnectionError):
                raw.sendall(startup_message())
        with gateway.connect() as connection:
            assert state(connection)["version"]
            # No more are kept waiting than may log in.
            wait_until(lambda: sum(map(is_closed, crowd)) >= 500)
            assert state(connection)["connections"] == 1


def test_the_log_counts_a_crowd_once_a_second() -> None:
    limits = Limits(max_connections=2)
    with (
        RunningGateway(limits=limits) as gateway,
        captured_log() as lines,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(100):
            stack.enter_context(gateway.socket())
        # Another server of this process may have had a crowd too.
        wait_until(lambda: sum(line.get("connections", 0) for line in lines()) >= 98)
        crowded = [line for line in lines() if line["event"] == "crowded_out"]
        assert len(crowded) < 20


def test_who_has_been_refused_takes_nobodys_place() -> None:
    with (
        RunningGateway(limits=Limits(max_connections=2)) as gateway,
        contextlib.ExitStack() as stack,
    ):
        early = stack.enter_context(gateway.socket())
        early.sendall(startup_message()[:10])
        for _ in range(20):
            noisy = stack.enter_context(gateway.socket())
            noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
            # Refused; the connection stays for a moment, so that this is not lost.
            assert noisy.recv(1) == b"E"
        early.sendall(startup_message()[10:])
        assert early.recv(1) == b"R"


def test_an_answer_that_waits_for_its_reader_is_in_memory_once() -> None:
    texts = [f"word {number}" for number in range(256)]
    query = message(b"Q", statement("embed", texts=texts) + b"\0")
    count = 8
    with (
        RunningGateway(Models(ThreadedEmbedding(bge_small_en()))) as gateway,
        gateway.connect() as reading,
        contextlib.ExitStack() as stack,
    ):
        size = len(json.dumps(ask(reading, "embed", texts=texts)))
        writers = []
        for _ in range(count):
            client = stack.enter_context(gateway.connect())
            # The system takes some of the first answers; the next one waits.
            os.set_blocking(client.fileno(), False)
            with contextlib.suppress(BlockingIOError):
                os.write(client.fileno(), query * 40)
            writers.append(gateway.server._admitted[client.info.backend_pid].writer)
        waiting = [writer.transport.get_write_buffer_size for writer in writers]
        wait_until(lambda: all(waits() > 0 for waits in waiting), 60)
        held = [item for item in gc.get_objects() if isinstance(item, DataRow) and item.columns]
        assert held == []
        assert all(waits() <= size * 2 for waits in waiting)
        assert state(reading)["connections"] == count + 1


def is_closed(raw: socket.socket) -> bool:
    """Whether the server has closed a connection."""
    raw.setblocking(False)
    try:
        return raw.recv(65_536) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_there_are_no_more_connections_than_allowed() -> None:
    with RunningGateway(limits=Limits(max_connections=3)) as gateway:
        connections = [gateway.connect() for _ in range(3)]
        with pytest.raises(psycopg.OperationalError, match="has its 3 connections"):
            gateway.connect()
        with gateway.socket():
            assert state(connections[0])["connections"] == 3
        connections.pop().close()
        wait_until(lambda: state(connections[0])["connections"] == 2)
        gateway.connect().close()
        for connection in connections:
            connection.close()


# The end of a call


@contextlib.contextmanager
def running_choice(connection: psycopg.Connection[Any], server: ModelServer) -> Iterator[Any]:
    """Begin a call that takes the model half a minute; yields the future of its answer."""
    server.script("choice", silence(30))
    before = server.count("choice")
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(ask, connection, "choose", **CHOICE)
        wait_until(lambda: server.count("choice") > before)
        yield future


@pytest.mark.parametrize("version", ["3.0", "3.2"])
def test_to_cancel_the_query_is_to_cancel_the_call(model_server: ModelServer, version: str) -> None:
    with (
        RunningGateway(language_models(model_server.url)) as gateway,
        gateway.connect(max_protocol_version=version) as connection,
    ):
        with running_choice(connection, model_server) as future:
            assert not future.done()
            connection.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                future.result(timeout=15)
        wait_until(lambda: model_server.aborted == 1)
        facts = state(connection)
        assert (facts["running"], facts["calls"]["choose"]["errors"]) == (0, 1)
        # The next call on the same connection is a call like any other.
        connection.cancel_safe()
        assert ask(connection, "choose", **CHOICE)["chosen"]


def test_only_the_key_cancels(model_server: ModelServer) -> None:
    with (
        RunningGateway(language_models(model_server.url)) as gateway,
        gateway.connect() as connection,
    ):
        number = connection.info.backend_pid
        with running_choice(connection, model_server) as future:
            for key in (b"", b"\0\0\0\0", b"\0" * 32, b"\xff" * 200):
                with gateway.socket() as raw:
                    raw.sendall(packet(struct.pack("!II", 80877102, number) + key))
                    assert read_to_end(raw) == b""
            assert not future.done()
            connection.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                future.result(timeout=15)


@pytest.mark.parametrize("farewell", [message(b"X"), b"", b"Q\0", b"Q\0\0\0\0"])
def test_when_the_client_leaves_the_call_ends(model_server: ModelServer, farewell: bytes) -> None:
    model_server.script("choice", silence(30))
    with RunningGateway(language_models(model_server.url)) as gateway:
        connection = gateway.connect()
        os.write(connection.fileno(), message(b"Q", statement("choose", **CHOICE) + b"\0"))
        wait_until(lambda: model_server.count("choice") == 1)
        os.write(connection.fileno(), farewell)
        if farewell != b"Q\0\0\0\0":
            with plain(connection) as raw:
                raw.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: model_server.aborted == 1)
        connection.close()
        with gateway.connect() as other:
            wait_until(lambda: state(other)["connections"] == 1)
            assert state(other)["running"] == 0


def test_when_the_client_leaves_the_call_ends_whatever_came_meanwhile(
    model_server: ModelServer,
) -> None:
    model_server.script("choice", silence(30))
    with RunningGateway(language_models(model_server.url)) as gateway:
        connection = gateway.connect()
        os.write(connection.fileno(), message(b"Q", statement("choose", **CHOICE) + b"\0"))
        wait_until(lambda: model_server.count("choice") == 1)
        os.write(connection.fileno(), message(b"Q", b"SELECT status()\0") * 3 + message(b"X"))
        connection.close()
        wait_until(lambda: model_server.aborted == 1)
        with gateway.connect() as other:
            wait_until(lambda: state(other)["connections"] == 1)


def test_what_comes_too_early_is_bounded(model_server: ModelServer) -> None:
    model_server.script("choice", silence(30))
    with (
        RunningGateway(language_models(model_server.url)) as gateway,
        gateway.connect() as connection,
        plain(connection) as raw,
        gateway.connect() as other,
    ):
        raw.sendall(message(b"Q", statement("choose", **CHOICE) + b"\0"))
        wait_until(lambda: model_server.count("choice") == 1)
        flood = message(b"Q", b"SELECT 1\0") * 1000
        raw.setblocking(False)
        sent, until = 0, time.monotonic() + 2
        while sent < 50_000_000 and time.monotonic() < until:
            with contextlib.suppress(BlockingIOError):
                sent += raw.send(flood)
        # The system's buffers are full, and the gateway takes no more.
        assert sent < 50_000_000
        (session,) = (s for s in gateway.server._admitted.values() if s.is_busy)
        assert len(session._early) == 100
        assert state(other)["running"] == 1


def test_a_query_that_comes_too_early_waits_for_its_turn(model_server: ModelServer) -> None:
    model_server.delay = 0.3
    with (
        RunningGateway(language_models(model_server.url)) as gateway,
        gateway.connect() as connection,
        plain(connection) as raw,
    ):
        queries = [statement("choose", **CHOICE), b"SELECT status()", b"SELECT 1"]
        raw.sendall(b"".join(message(b"Q", query + b"\0") for query in queries) + message(b"X"))
        answer = read_to_end(raw)
    assert b"".join(kind for kind, _ in messages_in(answer)) == b"TDCZTDCZEZ"


def test_the_queue_is_bounded_and_says_so(model_server: ModelServer) -> None:
    limits = Limits(max_calls=1, max_queue=1)
    with (
        RunningGateway(language_models(model_server.url), limits=limits) as gateway,
        gateway.connect() as first,
        gateway.connect() as second,
        gateway.connect() as third,
        running_choice(first, model_server) as running,
        ThreadPoolExecutor(1) as executor,
    ):
        waiting = executor.submit(ask, second, "choose", **CHOICE)
        wait_until(lambda: state(third)["queued"] == 1)
        with pytest.raises(psycopg.errors.TooManyConnections, match="queue of 1") as refused:
            ask(third, "choose", **CHOICE)
        assert refused.value.sqlstate == "53300"
        first.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            running.result(timeout=15)
        assert waiting.result(timeout=15)["chosen"] == [1]
    assert model_server.peak == 1


def test_a_slow_model_is_no_cancelled_query(model_server: ModelServer) -> None:
    model_server.script("choice", silence(30))
    with (
        RunningGateway(language_models(model_server.url)) as gateway,
        gateway.connect() as connection,
    ):
        with pytest.raises(psycopg.errors.SystemError, match="in time") as failed:
            ask(connection, "choose", **CHOICE, timeout_ms=300)
        assert failed.value.diag.message_hint is not None
        wait_until(lambda: model_server.aborted == 1)
        assert ask(connection, "choose", **CHOICE, timeout_ms=10_000)["chosen"]


def test_at_shutdown_running_calls_end_and_idle_sessions_are_told(
    model_server: ModelServer,
) -> None:
    model_server.script("choice", GOOD)
    model_server.delay = 1
    gateway = RunningGateway(language_models(model_server.url))
    with (
        gateway,
        gateway.connect() as busy,
        gateway.connect() as idle,
        gateway.socket() as pending,
        ThreadPoolExecutor(1) as executor,
    ):
        future = executor.submit(ask, busy, "choose", **CHOICE)
        wait_until(lambda: model_server.count("choice") == 1)
        port = gateway.server.port
        stopping = asyncio.run_coroutine_threadsafe(gateway.server.stop(20), gateway.loop)
        with pytest.raises(psycopg.errors.AdminShutdown):
            wait_for_end(idle)
        assert read_to_end(pending) == b""
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        assert future.result(timeout=15)["chosen"] == [1]
        with pytest.raises(psycopg.OperationalError):
            wait_for_end(busy)
        stopping.result(timeout=15)


def test_at_shutdown_a_call_that_takes_too_long_is_ended(model_server: ModelServer) -> None:
    with (
        RunningGateway(language_models(model_server.url)) as gateway,
        gateway.connect() as connection,
        running_choice(connection, model_server) as future,
    ):
        gateway.wait_for(gateway.server.stop(0.2))
        with pytest.raises(psycopg.errors.AdminShutdown):
            future.result(timeout=15)
        wait_until(lambda: model_server.aborted == 1)


def test_at_shutdown_the_longest_call_may_come_to_its_end() -> None:
    assert Limits().grace_seconds == 30
    assert Limits(call_seconds=120).grace_seconds == 120


def wait_for_end(connection: psycopg.Connection[Any]) -> None:
    while True:
        connection.execute("SELECT status()")
        time.sleep(0.02)


# Where it listens


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return make_certificate(tmp_path, ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())


def make_certificate(directory: Path, key: Any, digest: Any) -> tuple[Path, Path]:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, digest)
    )
    certificate_path, key_path = directory / "gateway.crt", directory / "gateway.key"
    certificate_path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_path, key_path


@pytest.mark.parametrize("binding", ["require", "prefer", "disable"])
def test_connections_are_encrypted_and_bound_to_the_certificate(
    certificate: tuple[Path, Path], binding: str
) -> None:
    tls = load_tls(*certificate)
    assert tls.certificate is not None
    with (
        RunningGateway(listening=Listening(port=0, tls=tls)) as gateway,
        gateway.connect(
            sslmode="verify-full", sslrootcert=str(certificate[0]), channel_binding=binding
        ) as connection,
    ):
        assert connection.pgconn.ssl_in_use
        assert state(connection)["version"]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            gateway.connect(sslmode="require", password=PASSWORD[1:])
        # From this machine, encryption is the client's choice.
        gateway.connect(sslmode="disable").close()


def test_a_certificate_without_a_hash_is_not_bound_to(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, ed25519.Ed25519PrivateKey.generate(), None)
    tls = load_tls(*certificate)
    assert tls.certificate is None
    with RunningGateway(listening=Listening(port=0, tls=tls)) as gateway:
        options = {"sslmode": "verify-full", "sslrootcert": str(certificate[0])}
        with gateway.connect(**options) as connection:
            assert state(connection)["version"]


def test_big_answers_and_cancels_pass_through_encryption(
    certificate: tuple[Path, Path], model_server: ModelServer
) -> None:
    models = language_models(model_server.url)
    models = Models(ThreadedEmbedding(bge_small_en()), models.reader, models.chooser)
    with (
        RunningGateway(models, listening=Listening(port=0, tls=load_tls(*certificate))) as gateway,
        gateway.connect(sslmode="require") as connection,
    ):
        answer = ask(connection, "embed", texts=["one", "two"] * 100)
        assert len(answer["embeddings"]) == 200
        with running_choice(connection, model_server) as future:
            connection.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                future.result(timeout=15)


def test_what_comes_before_encryption_does_not_pass_for_encrypted(
    certificate: tuple[Path, Path],
) -> None:
    listening = Listening(port=0, tls=load_tls(*certificate))
    with RunningGateway(listening=listening) as gateway, gateway.socket() as raw:
        raw.sendall(SSL_REQUEST + startup_message())
        assert sqlstates(read_to_end(raw)) == ["08P01"]


def test_a_broken_handshake_harms_nobody(certificate: tuple[Path, Path]) -> None:
    listening = Listening(port=0, tls=load_tls(*certificate))
    with RunningGateway(listening=listening) as gateway, captured_log() as lines:
        for noise in (b"no handshake at all" * 100, b"", startup_message()):
            with gateway.socket() as raw:
                raw.sendall(SSL_REQUEST)
                assert raw.recv(1) == b"S"
                raw.sendall(noise)
                raw.shutdown(socket.SHUT_WR)
                read_to_end(raw)
        with gateway.socket() as raw:
            raw.sendall(SSL_REQUEST)
            assert raw.recv(1) == b"S"
            with (
                pytest.raises(ssl.SSLError),
                ssl.create_default_context().wrap_socket(raw, server_hostname="localhost"),
            ):
                pass
        with gateway.connect(sslmode="require") as connection:
            assert state(connection)["version"]
        assert [line for line in lines() if line["level"] == "error"] == []


def test_other_machines_have_to_encrypt(certificate: tuple[Path, Path]) -> None:
    for host in (EVERYWHERE, "::", "192.0.2.1"):
        with pytest.raises(ConfigurationError, match="Other machines could reach") as refused:
            Listening(host=host).check()
        assert refused.value.hint is not None and "--tls-cert" in refused.value.hint
        Listening(host=host, is_insecure=True).check()
    for host in ("127.0.0.1", "127.1.2.3", "localhost"):
        Listening(host=host).check()
    encrypted = Listening(host=EVERYWHERE, tls=load_tls(*certificate))
    encrypted.check()
    assert encrypted.needs_tls(("192.0.2.1", 1234))
    assert encrypted.needs_tls(("fe80::1%eth0", 1234, 0, 2))
    assert not encrypted.needs_tls(("127.0.0.1", 1234))
    assert not encrypted.needs_tls(("::1", 1234, 0, 0))
    assert not encrypted.needs_tls("")


def test_an_unencrypted_connection_from_elsewhere_is_told_so(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests have one machine only.
    monkeypatch.setattr(Listening, "needs_tls", lambda self, peer: True)
    with RunningGateway(listening=Listening(port=0, tls=load_tls(*certificate))) as gateway:
        with pytest.raises(psycopg.OperationalError, match="unencrypted"):
            gateway.connect(sslmode="disable")
        gateway.connect(sslmode="require").close()


def test_certificates_that_cannot_be_used_are_named(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    stranger = make_certificate(other, ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    for pair in (
        (tmp_path / "none.crt", certificate[1]),
        (certificate[0], stranger[1]),
        (certificate[1], certificate[1]),
    ):
        with pytest.raises(ConfigurationError, match="cannot be used"):
            load_tls(*pair)


def test_a_unix_socket_is_as_libpq_looks_for_it(tmp_path: Path) -> None:
    listening = Listening(host=None, port=5454, socket_dir=tmp_path)
    path = tmp_path / ".s.PGSQL.5454"
    with RunningGateway(listening=listening) as gateway:
        assert gateway.server.addresses == [str(path)]
        with gateway.connect(host=str(tmp_path), port=5454) as connection:
            assert state(connection)["version"]
        with pytest.raises(ConfigurationError, match="Another server listens"):
            listening.check()
    assert not path.exists()
    # What a killed server leaves behind.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with RunningGateway(listening=listening) as gateway:
        gateway.connect(host=str(tmp_path), port=5454).close()
    path.write_text("")
    with pytest.raises(ConfigurationError, match="no socket"):
        listening.check()


def test_a_port_that_is_taken_is_named(gateway: RunningGateway) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"(?i)address already in use"),
        RunningGateway(listening=Listening(port=gateway.server.port)),
    ):
        pass
    with pytest.raises(ConfigurationError, match="nowhere to listen"):
        Listening(host=None).check()


def test_a_host_that_is_unknown_is_named() -> None:
    with (
        pytest.raises(
            ConfigurationError, match=r"Cannot listen at no such host, port 0: \w"
        ) as caught,
        RunningGateway(listening=Listening("no such host", 0, is_insecure=True)),
    ):
        pass
    assert "Unknown error" not in str(caught.value)


# The command


class Serving:
    """A process `sag-pg serve` with a gateway installed in a database."""

    def __init__(
        self, database_url: str, *arguments: str, installed_port: str = "1", **environment: str
    ) -> None:
        self.database_url = database_url
        self.lines: list[dict[str, Any]] = []
        self.text = ""
        invoke(database_url, "gateway", "install", "--port", installed_port)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sag_pg", "serve", "--port", "0", *arguments],
            env={**os.environ, "DATABASE_URL": database_url, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: bool(self.events("ready")) or self.process.poll() is not None, 60)
        (ready,) = self.events("ready") or [{"message": self.text}]
        assert ready["message"].startswith("listening on 127.0.0.1:"), self.text
        self.port = int(ready["message"].rpartition(":")[2])
        invoke(database_url, "gateway", "install", "--port", str(self.port))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.text += line
            self.lines.append(json.loads(line) if line.startswith("{") else {"event": line})

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("event") == name]

    def wait(self) -> int:
        code = self.process.wait(timeout=30)
        self._reader.join(timeout=10)
        return code

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def invoke(database_url: str, *arguments: str) -> str:
    result = CliRunner().invoke(cli.main, ["--database-url", database_url, *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def password_of(database_url: str) -> str:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT password FROM sag.gateway_secret()").fetchone()
        assert row is not None
        return str(row[0])


def call(connection: psycopg.Connection[Any], name: str, request: Any, timeout: int) -> Any:
    row = connection.execute(
        "SELECT sag.call_gateway(%s, %s::jsonb, %s)", [name, json.dumps(request), timeout]
    ).fetchone()
    assert row is not None
    return row[0]


def test_the_command_serves_a_database_and_ends_in_good_order(
    database_url: str, model_server: ModelServer
) -> None:
    key = "sk-canary-2718"
    model_server.key = key
    canary = "Zanzibar canary"
    with (
        Serving(
            database_url,
            SAG_PG_BASE_URL=model_server.url,
            SAG_PG_CHAT_MODEL="test-chat",
            OPENAI_API_KEY=key,
        ) as serving,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        understood = call(
            connection, "understand", {"question": canary, "embed": True, "entities": True}, 10_000
        )
        assert len(understood["embedding"]) == 384
        assert [entity["name"] for entity in understood["entities"]] == ["Zanzibar"]
        assert call(connection, "status", {}, 5000)["usage"]["requests"] == 1

        old = password_of(database_url)
        invoke(database_url, "gateway", "rotate")
        new = password_of(database_url)
        assert old != new
        where = {"host": "127.0.0.1", "port": serving.port, "user": USER}
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(**where, password=old)
        psycopg.connect(**where, password=new).close()

        arguments = " ".join(psutil.Process(serving.process.pid).cmdline())
        model_server.delay = 1
        with ThreadPoolExecutor(1) as executor:
            request = {"question": canary, "candidates": CANDIDATES, "limit": 1}
            future = executor.submit(call, connection, "choose", request, 10_000)
            wait_until(lambda: model_server.count("choice") == 1)
            serving.process.send_signal(signal.SIGTERM)
            assert future.result(timeout=20)["chosen"] == [1]
        assert serving.wait() == 0
        assert [line["event"] for line in serving.lines[-1:]] == ["stopped"]
        assert serving.events("call")
        for secret in (old, new, key, "Zanzibar", canary):
            assert secret not in serving.text
            assert secret not in arguments


def test_the_command_goes_on_while_its_database_is_away(database_url: str) -> None:
    with (
        Serving(database_url, "--embedding", "none") as serving,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        password = password_of(database_url)
        where = {"host": "127.0.0.1", "port": serving.port, "user": USER}
        psycopg.connect(**where, password=password).close()
        name = connection.info.dbname
        with psycopg.connect(
            psycopg.conninfo.make_conninfo(database_url, dbname="postgres"), autocommit=True
        ) as other:
            other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            try:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'sag-pg serve'"
                )
                psycopg.connect(**where, password=password).close()
            finally:
                other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        assert serving.events("secret_unreadable")
        # A reader again, and the gateway knows what is new.
        invoke(database_url, "gateway", "rotate")
        psycopg.connect(**where, password=password_of(database_url)).close()
        invoke(database_url, "gateway", "remove")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(**where, password=password)


def test_a_frozen_database_lets_clients_in(database_url: str) -> None:
    with (
        Serving(database_url, "--embedding", "none") as serving,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        where = {"host": "127.0.0.1", "port": serving.port, "user": USER}
        password = password_of(database_url)
        psycopg.connect(**where, password=password).close()
        ((backend,),) = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'sag-pg serve'"
        ).fetchall()
        os.kill(backend, signal.SIGSTOP)
        try:
            started = time.monotonic()
            for _ in range(3):
                psycopg.connect(**where, password=password).close()
            # One that waited for the database would have taken 10 s.
            assert time.monotonic() - started < 10
            # The connection is given up, and over a new one the database answers.
            invoke(database_url, "gateway", "rotate")
            new = password_of(database_url)

            def is_known() -> bool:
                try:
                    psycopg.connect(**where, password=new).close()
                except psycopg.OperationalError:
                    return False
                return True

            wait_until(is_known)
            assert serving.events("secret_unreadable")
        finally:
            os.kill(backend, signal.SIGCONT)
        serving.process.send_signal(signal.SIGTERM)
        assert serving.wait() == 0
        assert not serving.events("loop_error") and not serving.events("internal_error")


def test_the_command_starts_while_the_endpoint_of_embeddings_is_away(
    database_url: str, model_server: ModelServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {
        "SAG_PG_BASE_URL": model_server.url,
        "SAG_PG_CHAT_MODEL": "test-chat",
        "SAG_PG_EMBEDDING_BASE_URL": f"http://127.0.0.1:{port}/v1",
        "SAG_PG_EMBEDDING": f"openai:{EMBEDDING_MODEL}",
        "SAG_PG_MODEL_RETRIES": "0",
        "SAG_PG_SERVE_MAX_CALLS": "3",
        "SAG_PG_SERVE_CALL_TIMEOUT": "45.5",
    }
    with (
        Serving(database_url, **environment),
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        status = call(connection, "status", {}, 5000)
        assert status["dimensions"] is None
        assert (status["limits"]["max_calls"], status["limits"]["call_seconds"]) == (3, 45.5)
        question = {"question": "is Alice here?", "embed": True, "entities": True}
        understood = call(connection, "understand", question, 10_000)
        assert [entity["name"] for entity in understood["entities"]] == ["Alice"]
        assert {warning["part"] for warning in understood["warnings"]} == {
            "embedding",
            "entity_embeddings",
        }
        request = {"question": "x", "candidates": CANDIDATES, "limit": 1}
        assert call(connection, "choose", request, 10_000)["chosen"]
        connection.execute("SELECT sag.set_embedding_space(%s, 32)", [f"openai:{EMBEDDING_MODEL}"])
    # Of the vectors that are there, the length is known.
    with (
        Serving(database_url, **environment) as serving,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        assert call(connection, "status", {}, 5000)["dimensions"] == 32
        assert not serving.events("embedding_model_misfit")


@pytest.mark.parametrize(
    ("model", "dimensions"), [("another", "32"), (f"openai:{EMBEDDING_MODEL}", "16")]
)
def test_a_misfit_is_seen_without_the_endpoint(
    database_url: str, model: str, dimensions: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SELECT sag.set_embedding_space(%s, %s)", [model, int(dimensions)])
    with Serving(
        database_url,
        SAG_PG_BASE_URL="http://127.0.0.1:1/v1",
        SAG_PG_EMBEDDING=f"openai:{EMBEDDING_MODEL}",
        SAG_PG_EMBEDDING_DIMENSIONS="32",
    ) as serving:
        (warning,) = serving.events("embedding_model_misfit")
        assert model in warning["message"] and dimensions in warning["message"]
        assert "--embedding" in warning["hint"]


def test_a_second_signal_ends_running_calls(database_url: str, model_server: ModelServer) -> None:
    model_server.script("choice", silence(30))
    with (
        Serving(
            database_url,
            "--embedding",
            "none",
            SAG_PG_BASE_URL=model_server.url,
            SAG_PG_CHAT_MODEL="test-chat",
        ) as serving,
        psycopg.connect(
            host="127.0.0.1",
            port=serving.port,
            user=USER,
            password=password_of(database_url),
            autocommit=True,
        ) as connection,
        ThreadPoolExecutor(1) as executor,
    ):
        future = executor.submit(ask, connection, "choose", **CHOICE)
        wait_until(lambda: model_server.count("choice") == 1)
        serving.process.send_signal(signal.SIGINT)
        wait_until(lambda: bool(serving.events("stopping")))
        assert serving.process.poll() is None
        serving.process.send_signal(signal.SIGINT)
        with pytest.raises(psycopg.errors.AdminShutdown):
            future.result(timeout=20)
        assert serving.wait() == 0


def test_the_command_says_what_is_missing(database_url: str, tmp_path: Path) -> None:
    def refuse(*arguments: str) -> str:
        result = CliRunner().invoke(cli.main, ["--database-url", database_url, *arguments])
        assert result.exit_code in (1, 2)
        return result.stderr

    assert "Hint: Install it with: sag-pg gateway install." in refuse("serve")
    assert "Other machines could reach 0.0.0.0" in refuse("serve", "--host", EVERYWHERE)
    assert "--tls-cert and --tls-key go together" in refuse("serve", "--tls-key", "x")
    assert "There is no directory" in refuse("serve", "--socket-dir", str(tmp_path / "none"))
    assert "nowhere to listen" in refuse("serve", "--host", "")


def test_an_address_that_does_not_fit_is_warned_of(database_url: str) -> None:
    with Serving(database_url) as serving:
        (warning,) = serving.events("address_misfit")
        assert "127.0.0.1, port 1, and" in warning["message"]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    with Serving(database_url, "--port", port, installed_port=port) as serving:
        assert serving.events("address_misfit") == []


def test_a_model_that_does_not_fit_is_warned_of(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SELECT sag.set_embedding_space('another-model', 16)")
    with Serving(database_url) as serving:
        (warning,) = serving.events("embedding_model_misfit")
        assert "another-model" in warning["message"]
