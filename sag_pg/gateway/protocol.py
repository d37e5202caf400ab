"""Messages of PostgreSQL's protocol: read within bounds, decoded and encoded by pygwire.

pygwire takes what it is given and buffers up to 1 GB of a message, so lengths are checked here,
before a body is read. What its decoders raise on malformed bodies is of many kinds; here all of
it is one `ProtocolViolationError`.
"""

import asyncio
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pygwire import BackendConnection, StartupRequestCode
from pygwire.messages import ErrorResponse, PGMessage

from sag_pg.gateway.refusal import ProtocolViolationError, RefusedError
from sag_pg.text import clean

# What PostgreSQL itself allows.
STARTUP_LIMIT: Final = 10_000
AUTHENTICATION_LIMIT: Final = 65_536

# Longer queries than the limit are read past, so that the client gets an error instead of a
# broken connection; what is longer than this ends the connection all the same.
SKIP_LIMIT: Final = 64 * 1024 * 1024

_LENGTH: Final = struct.Struct("!I")
_SKIP_CHUNK: Final = 65_536
_EMPTY_QUERY: Final = b"Q\0\0\0\5\0"

# The request codes of startup packets, beside versions of the protocol.
_REQUESTS: Final = frozenset(
    {
        StartupRequestCode.SSL_REQUEST,
        StartupRequestCode.GSSENC_REQUEST,
        StartupRequestCode.CANCEL_REQUEST,
    }
)
_MAJOR: Final = 3
_NEWEST_MINOR: Final = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """One message as it came over the wire.

    Attributes:
        content: The whole message with type and length.
        is_oversized: Whether it was a query longer than the limit, which has been read past; the
            content is an empty query then.
    """

    content: bytes
    is_oversized: bool = False

    @property
    def is_terminate(self) -> bool:
        """Whether the client says goodbye."""
        return self.content[:1] == b"X"


@dataclass(frozen=True, slots=True)
class StartupFrame:
    """A startup packet as it came over the wire.

    Attributes:
        content: The whole packet with its length, in a version that pygwire knows.
        newest_version: The version to offer where the client asked for one that is not spoken
            here; None where there is nothing to negotiate.
    """

    content: bytes
    newest_version: int | None = None


async def read_startup_frame(reader: asyncio.StreamReader) -> StartupFrame:
    """Read a packet that begins a connection: it has no type.

    Raises:
        ProtocolViolationError: The length or the protocol is not PostgreSQL's.
        asyncio.IncompleteReadError: The client left.
    """
    header = await reader.readexactly(_LENGTH.size)
    (length,) = _LENGTH.unpack(header)
    if not 8 <= length <= STARTUP_LIMIT:
        raise ProtocolViolationError("invalid length of startup packet")
    body = await reader.readexactly(length - _LENGTH.size)
    (code,) = _LENGTH.unpack_from(body)
    if code in _REQUESTS:
        return StartupFrame(header + body)
    major, minor = divmod(code, 1 << 16)
    if major != _MAJOR:
        raise ProtocolViolationError("unsupported frontend protocol; the server speaks 3.0 and 3.2")
    # There is no 3.1.
    spoken = _NEWEST_MINOR if minor >= _NEWEST_MINOR else 0
    version = (_MAJOR << 16) + spoken
    return StartupFrame(
        header + _LENGTH.pack(version) + body[_LENGTH.size :],
        None if spoken == minor else version,
    )


async def read_frame(reader: asyncio.StreamReader, limit: int, seconds: float) -> Frame:
    """Read a message.

    Args:
        reader: The connection.
        limit: The longest body in bytes.
        seconds: Time for the rest of a message once its first byte is there.

    Raises:
        ProtocolViolationError: The length cannot be right, or is above the limit for anything but a
            query, or the message does not come to its end.
        asyncio.IncompleteReadError: The client left.
    """
    kind = await reader.readexactly(1)
    try:
        async with asyncio.timeout(seconds):
            header = await reader.readexactly(_LENGTH.size)
            (length,) = _LENGTH.unpack(header)
            size = length - _LENGTH.size
            if size < 0:
                raise ProtocolViolationError("invalid length of message")
            if size <= limit:
                return Frame(kind + header + await reader.readexactly(size))
            if kind != b"Q" or size > SKIP_LIMIT:
                raise ProtocolViolationError("message is longer than allowed")
            while size > 0:
                skipped = await reader.read(min(size, _SKIP_CHUNK))
                if not skipped:
                    raise asyncio.IncompleteReadError(header, size)
                size -= len(skipped)
            return Frame(_EMPTY_QUERY, is_oversized=True)
    except TimeoutError:
        raise ProtocolViolationError("message did not come to its end in time") from None


class Codec:
    """Decodes and encodes the messages of one connection, and keeps its phase."""

    def __init__(self) -> None:
        self._connection = BackendConnection()

    def decode(self, content: bytes) -> PGMessage:
        """Decode one message.

        Raises:
            ProtocolViolationError: It is malformed, unknown, or does not belong here.
        """
        # A query's text ends with the message; pygwire would drop what comes after a NUL.
        if content[:1] == b"Q" and content.find(b"\0", 5) != len(content) - 1:
            raise ProtocolViolationError("malformed message")
        try:
            (message,) = self._connection.receive(content)
        # struct.error, IndexError, UnicodeDecodeError, ValueError and pygwire's own, so far.
        except Exception:
            # Its cause would hold what the client sent.
            raise ProtocolViolationError("malformed or unexpected message") from None
        return message

    def encode(self, messages: Iterable[PGMessage]) -> bytes:
        """Encode messages to be sent in one go."""
        return b"".join(self._connection.send(message) for message in messages)


def error_response(refusal: RefusedError, *, fatal: bool = False) -> ErrorResponse:
    """Make the message that tells a client of a refusal."""
    severity = "FATAL" if fatal else "ERROR"
    fields = {"S": severity, "V": severity, "C": refusal.sqlstate.value, "M": clean(str(refusal))}
    if refusal.hint is not None:
        fields["H"] = clean(refusal.hint)
    return ErrorResponse(fields=fields)
