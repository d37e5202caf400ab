"""Reads UTF-8 text in pieces, and says why it cannot."""

import codecs
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final

from sag_pg.errors import LoadError
from sag_pg.text import clean

# Bytes of a file, and characters of a text, that are handled at a time.
PIECE: Final = 65_536
# Stray ones are cleaned or do no harm; more than both of these in the head of a file, and it is no
# text. Backspaces and those that change the character set are in some.
_HEAD: Final = 8192
_CONTROLS: Final = bytes({*range(0x20)} - {*b"\b\t\n\v\f\r\x0e\x0f\x1b"})
_STRAY_CONTROLS: Final = 8
_STRAY_CONTROLS_PER_BYTE: Final = 0.03

_UTF8_HINT = "Convert it to UTF-8 text first, for example with iconv."

Open = Callable[[], BinaryIO]


def read_text(open_file: Open, name: str, start: int = 0) -> Iterator[str]:
    """Yield a text in clean pieces, without its byte order mark.

    Args:
        open_file: Opens the bytes.
        name: What messages call the text.
        start: Bytes that are skipped.

    Raises:
        LoadError: A byte is not UTF-8, or the file can no longer be read.
    """
    # surrogatepass: encoded surrogates are characters that `clean` knows how to replace.
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogatepass")
    end = start
    try:
        with open_file() as file:
            file.seek(start)
            while True:
                block = file.read(PIECE)
                if end == start:
                    refuse_binary(block, name)
                end += len(block)
                text = decoder.decode(block, final=not block)
                if text:
                    yield clean(text)
                if not block:
                    return
    except UnicodeDecodeError as error:
        # The decoder also holds the end of the block before, so positions count from the end.
        raise not_utf8(name, end - len(error.object) + error.start, error.reason) from error
    except OSError as error:
        raise unreadable(name, error) from error


def regroup(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the same text in pieces of at most 64 Ki characters, all but the last of just that."""
    parts: list[str] = []
    length = 0
    for piece in pieces:
        parts.append(piece)
        length += len(piece)
        if length >= PIECE:
            text = "".join(parts)
            whole = length - length % PIECE
            for begin in range(0, whole, PIECE):
                yield text[begin : begin + PIECE]
            parts = [text[whole:]]
            length -= whole
    if length:
        yield "".join(parts)


def refuse_binary(block: bytes, name: str) -> None:
    """Raise LoadError where the first bytes of a file are no text."""
    head = block[:_HEAD]
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if controls > max(_STRAY_CONTROLS, _STRAY_CONTROLS_PER_BYTE * len(head)):
        first = next(place for place, byte in enumerate(head) if byte in _CONTROLS)
        what = "a NUL byte" if head[first] == 0 else "a control character"
        raise not_utf8(name, first, what)


def not_utf8(name: str, offset: int, reason: str) -> LoadError:
    """Make the error for a byte that is not UTF-8."""
    return LoadError(f"{name}: not UTF-8 text: {reason} at byte {offset}", _UTF8_HINT)


def unreadable(name: str, error: OSError) -> LoadError:
    """Make the error for a file that the system does not give."""
    return LoadError(
        f"{name}: cannot be read: {error.strerror or error}",
        "Check that it exists and that you may read it.",
    )
