"""One connection of the gateway, from its first byte to its last."""

import asyncio
import contextlib
import secrets
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol

from pygwire.messages import (
    AuthenticationOk,
    AuthenticationSASL,
    AuthenticationSASLContinue,
    AuthenticationSASLFinal,
    BackendKeyData,
    CancelRequest,
    CommandComplete,
    DataRow,
    EmptyQueryResponse,
    FieldDescription,
    Flush,
    FunctionCall,
    GSSEncRequest,
    GSSResponse,
    NegotiateProtocolVersion,
    ParameterStatus,
    PGMessage,
    Query,
    ReadyForQuery,
    RowDescription,
    SASLInitialResponse,
    SASLResponse,
    SSLRequest,
    SSLResponse,
    StartupMessage,
    Sync,
)

from sag_pg import __version__
from sag_pg.gateway import log
from sag_pg.gateway.calls import Calls
from sag_pg.gateway.limits import Limits
from sag_pg.gateway.protocol import (
    AUTHENTICATION_LIMIT,
    Codec,
    Frame,
    StartupFrame,
    error_response,
    read_frame,
    read_startup_frame,
)
from sag_pg.gateway.refusal import ProtocolViolationError, RefusedError, SqlState
from sag_pg.gateway.scram import (
    MECHANISM,
    MECHANISM_WITH_BINDING,
    AuthenticationFailedError,
    Exchange,
    unknown_keys,
)
from sag_pg.gateway.secret import Secret
from sag_pg.gateway.statement import parse_statement

USER: Final = "sag_gateway"

# What clients read, so that they neither ask for it nor doubt it.
_PARAMETERS: Final = {
    "server_version": f"18.0 (sag-pg {__version__})",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "on",
    "in_hot_standby": "off",
    "is_superuser": "off",
}

_TEXT_TYPE: Final = 25
_ANSWER_COLUMN: Final = RowDescription(
    fields=[FieldDescription("answer", 0, 0, _TEXT_TYPE, -1, -1, 0)]
)

_PROTOCOL_3_2: Final = 0x00030002

# After an error that ends a connection, what still comes is read for so long: closing at once
# would make the system throw away the error before the client reads it.
_LINGER_SECONDS: Final = 1

# Messages that are kept for later while a call runs. A client that sends more of them gets no
# attention until the call has ended.
_MOST_EARLY: Final = 100


class _ClientLeftError(Exception):
    """The client said goodbye."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Encryption of connections.

    Attributes:
        context: With the server's certificate and key.
        certificate: The certificate as PEM where channel binding is defined for it, else None.
    """

    context: ssl.SSLContext
    certificate: str | None


class Registry(Protocol):
    """What a session needs to know of the others."""

    def admit(self, session: "Session") -> None:
        """Count a session that has logged in.

        Raises:
            RefusedError: There are too many, or the server is shutting down.
        """

    def cancel(self, process_id: int, key: bytes) -> None:
        """End the call of the session that has this key, if there is one."""

    def release(self, session: "Session") -> None:
        """Count a session no more, of which nothing but the end of its connection is to come."""


@dataclass(frozen=True, slots=True)
class Service:
    """What all sessions share."""

    calls: Calls
    secret: Secret
    limits: Limits
    registry: Registry
    tls: Tls | None = None


@dataclass(slots=True, eq=False)
class Session:
    """One connection.

    Attributes:
        number: Its number, by which it goes in the log and in cancel requests.
        reader: What the client sends.
        writer: What goes to the client.
        service: What all sessions share.
        needs_tls: Whether the client has to encrypt.
        key: Secret by which the client can cancel its call; empty before it has logged in.
    """

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    service: Service
    needs_tls: bool
    key: bytes = field(default=b"", init=False, repr=False)
    _codec: Codec = field(default_factory=Codec, init=False)
    _call: "asyncio.Task[str] | None" = field(default=None, init=False)
    _is_encrypted: bool = field(default=False, init=False)
    _is_ending: bool = field(default=False, init=False)
    # The message that is being read, and those that came before it while a call ran.
    _reading: "asyncio.Task[Frame] | None" = field(default=None, init=False)
    _early: deque[Frame] = field(default_factory=deque, init=False)

    async def run(self) -> None:
        """Serve the client until it leaves or breaks the rules. Raises nothing."""
        try:
            try:
                async with asyncio.timeout(self.service.limits.authentication_seconds) as limit:
                    if not await self._start():
                        return
            except TimeoutError:
                # The system has one of its own for connections.
                if not limit.expired():
                    raise
                log.info("authentication_timeout", connection=self.number)
                return
            log.info("connected", connection=self.number, tls=self._is_encrypted)
            await self._serve()
        except _ClientLeftError:
            log.info("disconnected", connection=self.number)
        # Of the system's errors any may end a connection, of which ConnectionError has only some.
        except (asyncio.IncompleteReadError, OSError) as error:
            # Between two messages it is as good an end as any: dblink says no goodbye when its
            # session ends.
            is_orderly = isinstance(error, asyncio.IncompleteReadError) and not error.partial
            log.info("disconnected" if is_orderly else "connection_lost", connection=self.number)
        except RefusedError as refusal:
            log.info("connection_ended", connection=self.number, sqlstate=refusal.sqlstate)
            self.service.registry.release(self)
            await self._say_farewell(refusal)
        except Exception as error:
            log.fault("internal_error", error, connection=self.number)
        finally:
            self.service.registry.release(self)
            self.writer.close()
            try:
                # A client that does not read its answer would keep it in memory for ever.
                async with asyncio.timeout(_LINGER_SECONDS):
                    await self.writer.wait_closed()
            except (OSError, TimeoutError):
                self.abort()

    @property
    def is_busy(self) -> bool:
        """Whether a call runs."""
        return self._call is not None

    def abort(self) -> None:
        """Drop the connection at once."""
        self.writer.transport.abort()

    def cancel_call(self) -> None:
        """End the call that runs, if one does, as the client asked for."""
        if self._call is not None:
            self._call.cancel()

    def end(self, *, now: bool) -> None:
        """End the session: between calls, or now with the call that runs."""
        self._is_ending = True
        if self._call is None:
            if self._reading is not None:
                self._reading.cancel()
        elif now:
            self._call.cancel()

    # Getting in

    async def _start(self) -> bool:
        """Bring the connection to its first query. Returns False where there will be none."""
        startup = await self._negotiate()
        if startup is None:
            return False
        message, frame = startup
        if self.needs_tls and not self._is_encrypted:
            raise RefusedError(
                SqlState.INVALID_AUTHORIZATION,
                "the gateway takes unencrypted connections from its own machine only",
                "Set sslmode=verify-full and sslrootcert in the options of the foreign server.",
            )
        version = frame.newest_version or message.protocol_version
        unknown = [name for name in message.params if name.startswith("_pq_.")]
        if unknown or frame.newest_version is not None:
            await self._send(NegotiateProtocolVersion(newest_minor=version, unrecognized=unknown))
        await self._authenticate(message.params.get("user", ""))
        self.service.registry.admit(self)
        # Protocol 3.0 has room for four bytes.
        self.key = secrets.token_bytes(32 if version >= _PROTOCOL_3_2 else 4)
        await self._send(
            AuthenticationOk(),
            *(ParameterStatus(name=name, value=value) for name, value in _PARAMETERS.items()),
            BackendKeyData(process_id=self.number, secret_key=self.key),
            ReadyForQuery(),
        )
        return True

    async def _negotiate(self) -> tuple[StartupMessage, StartupFrame] | None:
        """Read startup packets up to the startup message; None after a cancel request."""
        asked: set[type[PGMessage]] = set()
        while True:
            frame = await read_startup_frame(self.reader)
            message = self._codec.decode(frame.content)
            if isinstance(message, StartupMessage):
                return message, frame
            if isinstance(message, CancelRequest):
                self.service.registry.cancel(message.process_id, message.secret_key)
                return None
            if type(message) in asked:
                raise ProtocolViolationError("the same encryption was asked for twice")
            asked.add(type(message))
            if isinstance(message, GSSEncRequest):
                await self._send(GSSResponse(accepted=False))
            elif isinstance(message, SSLRequest):
                await self._encrypt()

    async def _encrypt(self) -> None:
        tls = self.service.tls
        if tls is None or self._is_encrypted:
            await self._send(SSLResponse(accepted=False))
            return
        # What was sent before encryption must not pass for encrypted (CVE-2021-23214).
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                if await self.reader.read(1):
                    raise ProtocolViolationError("unencrypted data after the request to encrypt")
        await self._send(SSLResponse(accepted=True))
        await self.writer.start_tls(tls.context)
        self._is_encrypted = True

    async def _authenticate(self, user: str) -> None:
        certificate = None
        if self._is_encrypted and self.service.tls is not None:
            certificate = self.service.tls.certificate
        mechanisms = [MECHANISM] if certificate is None else [MECHANISM_WITH_BINDING, MECHANISM]
        await self._send(AuthenticationSASL(mechanisms=mechanisms))
        initial = await self._receive_authentication()
        # A name that is not the gateway's fails like a wrong password, and costs as little.
        keys = await self.service.secret.keys() if user == USER else None
        try:
            if not isinstance(initial, SASLInitialResponse):
                raise AuthenticationFailedError
            exchange = Exchange(initial.mechanism, keys or unknown_keys(), certificate)
            await self._send(AuthenticationSASLContinue(data=exchange.first(initial.data)))
            final = await self._receive_authentication()
            if not isinstance(final, SASLResponse):
                raise AuthenticationFailedError
            proof = exchange.final(final.data)
        except AuthenticationFailedError:
            raise RefusedError(
                SqlState.INVALID_PASSWORD,
                "password authentication failed for the user of the gateway",
                "What answers there must be the gateway of this very database.",
            ) from None
        await self._send(AuthenticationSASLFinal(data=proof))

    async def _receive_authentication(self) -> PGMessage:
        frame = await read_frame(
            self.reader, AUTHENTICATION_LIMIT, self.service.limits.authentication_seconds
        )
        if frame.is_oversized:
            raise ProtocolViolationError("message is longer than allowed")
        return self._codec.decode(frame.content)

    # Queries

    async def _serve(self) -> None:
        skips_to_sync = False
        try:
            while (frame := await self._next_frame()) is not None:
                if frame.is_terminate:
                    raise _ClientLeftError
                message = self._codec.decode(frame.content)
                if isinstance(message, Query):
                    await self._answer(message, frame)
                elif isinstance(message, Sync):
                    skips_to_sync = False
                    await self._send(ReadyForQuery())
                elif isinstance(message, FunctionCall):
                    await self._send(error_response(_unsupported("function calls")))
                    await self._send(ReadyForQuery())
                elif not skips_to_sync and not isinstance(message, Flush):
                    skips_to_sync = True
                    await self._send(error_response(_unsupported("the extended query protocol")))
        finally:
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.gather(self._reading, return_exceptions=True)
        raise RefusedError(
            SqlState.ADMIN_SHUTDOWN, "terminating connection: the gateway is shutting down"
        )

    async def _next_frame(self) -> Frame | None:
        """Wait for the message whose turn it is; None where the session ends instead."""
        if self._is_ending:
            return None
        if self._early:
            return self._early.popleft()
        try:
            return await self._read_on()
        except asyncio.CancelledError:
            if not self._is_ending:
                raise
            return None
        finally:
            self._reading = None

    def _read_on(self) -> "asyncio.Task[Frame]":
        """The reading of the next message, begun where it is not under way."""
        if self._reading is None:
            limits = self.service.limits
            self._reading = asyncio.create_task(
                # The statement's end is one byte more.
                read_frame(self.reader, limits.max_request_bytes + 1, limits.transfer_seconds)
            )
        return self._reading

    async def _answer(self, query: Query, frame: Frame) -> None:
        """Answer a query, unless the client leaves meanwhile."""
        try:
            if frame.is_oversized:
                raise RefusedError(
                    SqlState.TOO_LARGE,
                    f"the request is longer than {self.service.limits.max_request_bytes} bytes",
                    "Ask for less at once, or start the gateway with a higher --max-request-size.",
                )
            if not query.query_string.strip(" \t\r\n\f\v;"):
                await self._send(EmptyQueryResponse(), ReadyForQuery())
                return
            call = parse_statement(query.query_string)
            self._call = asyncio.create_task(self.service.calls.answer(call, self.number))
            row = DataRow(columns=[(await self._await_call(self._call)).encode()])
        except ProtocolViolationError:
            raise
        except RefusedError as refusal:
            await self._send(error_response(refusal), ReadyForQuery())
            return
        finally:
            self._call = None
        encoded = self._codec.encode(
            (_ANSWER_COLUMN, row, CommandComplete(tag="SELECT 1"), ReadyForQuery())
        )
        self.writer.write(encoded)
        # While the client takes its time, there is one copy in memory: what the transport has left.
        del row, encoded
        await self._drain()

    async def _await_call(self, call: "asyncio.Task[str]") -> str:
        """Wait for a call's answer; when the client leaves, the call ends."""
        try:
            while not call.done():
                # That it has left shows only behind all that it has sent.
                watched = {self._read_on()} if self._may_read_ahead else set()
                await asyncio.wait({call, *watched}, return_when=asyncio.FIRST_COMPLETED)
                if not call.done():
                    # Raises where the connection is lost.
                    frame = self._read_on().result()
                    self._reading = None
                    # After queries that wait for their turn, a goodbye waits too.
                    if frame.is_terminate and not self._early:
                        raise _ClientLeftError
                    self._early.append(frame)
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait([call])
        if call.cancelled():
            if self._is_ending:
                raise RefusedError(SqlState.ADMIN_SHUTDOWN, "the gateway is shutting down")
            raise RefusedError(SqlState.QUERY_CANCELED, "canceling statement due to user request")
        return call.result()

    @property
    def _may_read_ahead(self) -> bool:
        bytes_early = sum(len(frame.content) for frame in self._early)
        return (
            len(self._early) < _MOST_EARLY and bytes_early <= self.service.limits.max_request_bytes
        )

    # Sending

    async def _send(self, *messages: PGMessage) -> None:
        self.writer.write(self._codec.encode(messages))
        await self._drain()

    async def _drain(self) -> None:
        async with asyncio.timeout(self.service.limits.transfer_seconds):
            await self.writer.drain()

    async def _say_farewell(self, refusal: RefusedError) -> None:
        """Tell the client why the connection ends, if it can still be told."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                self.writer.write(error_response(refusal, fatal=True).to_wire())
                await self.writer.drain()
                if self.writer.can_write_eof():
                    self.writer.write_eof()
                while await self.reader.read(65_536):
                    pass


def _unsupported(what: str) -> RefusedError:
    return RefusedError(
        SqlState.UNSUPPORTED,
        f"the gateway does not know {what}",
        "Send the statement as a simple query, without parameters.",
    )
