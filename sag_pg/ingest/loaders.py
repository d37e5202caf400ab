"""Finds documents in files, directories and standard input.

Nothing is held whole but a single line of a .jsonl file: texts are read in pieces, files are
found one directory at a time. What cannot be loaded is reported beside what can.
"""

import codecs
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from sag_pg.errors import LoadError
from sag_pg.ingest.chunking import first_heading
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.text import clean, clean_json

SUPPORTED_SUFFIXES = (".txt", ".md", ".jsonl")
STDIN = "-"

# Bytes of a file, and characters of a text, that are handled at a time.
_PIECE = 65_536
# A line of .jsonl is held whole, several times over while it is parsed.
_LINE_LIMIT = 64 * 1024 * 1024
# A heading further down a Markdown file, in pieces, is not its title.
_TITLE_PIECES = 16
# Stray NULs are cleaned; more than both of these in the head of a file, and it is no text.
_HEAD = 8192
_STRAY_NULS = 8
_STRAY_NULS_PER_BYTE = 0.03

_LINE_HINT = (
    'Each line is an object such as {"id": "a1", "title": "Title", "text": "Text", '
    '"metadata": {"year": 2024}}; id (or source) and text are required.'
)
_UTF8_HINT = "Convert it to UTF-8 text first, for example with iconv."

_Open = Callable[[], BinaryIO]


def load_paths(
    paths: Sequence[str], *, stdin: BinaryIO | None = None
) -> Iterator[SourceDocument | LoadFailure]:
    """Find the documents in files and directories.

    A .txt or .md file is one document, whose source is its path: as given, or joined with the
    path below the given directory. A .jsonl file has one document a line, with the fields `id`
    or `source`, `text`, and optionally `title` and `metadata`; other fields are ignored.
    Directories are searched in sorted order; in them hidden files, files of other types and
    links to directories are passed over.

    Args:
        paths: Files and directories; `-` is standard input, taken as .jsonl when its first line
            is a JSON object and as text otherwise.
        stdin: What `-` reads, in place of the process's standard input.

    Yields:
        Each document, or why it could not be loaded. A text is opened here, but read to its end
        only by `SourceDocument.read`, which raises LoadError when it meets a byte that is not
        UTF-8 or a file that can no longer be read.
    """
    for path in paths:
        if path == STDIN:
            yield from _load_stdin(sys.stdin.buffer if stdin is None else stdin)
        else:
            yield from _load_path(path)


def measure_paths(paths: Sequence[str]) -> int:
    """Return the size in bytes of what `load_paths` would load, for progress.

    Standard input and what cannot be read count as nothing.
    """
    total = 0
    waiting = [Path(path) for path in paths if path not in ("", STDIN)]
    while waiting:
        path = waiting.pop()
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                waiting.extend(entry for entry, _ in _entries(path))
            elif path.suffix.lower() in SUPPORTED_SUFFIXES:
                total += status.st_size
        except (OSError, ValueError):
            continue
    return total


def _load_path(given: str) -> Iterator[SourceDocument | LoadFailure]:
    path = Path(given)
    name = _name(path)
    try:
        if not given:
            raise LoadError("A path is empty", "Name a file, a directory or - for standard input.")
        is_directory = stat.S_ISDIR(_status(path, name).st_mode)
        if not is_directory and path.suffix.lower() not in SUPPORTED_SUFFIXES:
            raise LoadError(
                f"{name}: file type {clean(path.suffix) or 'without extension'} is not supported; "
                f"supported are {', '.join(SUPPORTED_SUFFIXES)}",
                "Convert it to one of these types, or pass its text through standard input (-).",
            )
    except LoadError as error:
        yield LoadFailure(name, error)
        return
    yield from _load_directory(path) if is_directory else _load_file(path)


def _name(path: Path) -> str:
    """Return a path as text; bytes of it that are no UTF-8 as %XX, so that no two become one."""
    return clean(
        re.sub(
            "[\udc80-\udcff]",
            lambda match: f"%{ord(match[0]) - 0xDC00:02X}",
            path.as_posix(),
        )
    )


def _status(path: Path, name: str) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise _unreadable(name, error) from error
    except ValueError as error:
        raise LoadError(
            f"{name}: no file can have this name: {error}", "Check the path's characters."
        ) from error


def _unreadable(name: str, error: OSError) -> LoadError:
    return LoadError(
        f"{name}: cannot be read: {error.strerror or error}",
        "Check that it exists and that you may read it.",
    )


def _load_directory(top: Path) -> Iterator[SourceDocument | LoadFailure]:
    # Links to directories are not followed, so this ends whatever they point to.
    waiting = [(top, True)]
    while waiting:
        path, is_directory = waiting.pop()
        if not is_directory:
            yield from _load_file(path)
            continue
        try:
            entries = _entries(path)
        except OSError as error:
            name = _name(path)
            yield LoadFailure(name, _unreadable(name, error))
            continue
        waiting.extend(reversed(entries))


def _entries(directory: Path) -> list[tuple[Path, bool]]:
    """List what is to be loaded from a directory: path, and whether it is a directory."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            is_directory = entry.is_dir(follow_symlinks=False)
            supported = Path(entry.name).suffix.lower() in SUPPORTED_SUFFIXES
            if not entry.name.startswith(".") and (is_directory or supported):
                found.append((entry.name + "/" * is_directory, directory / entry.name))
    found.sort()
    return [(path, key.endswith("/")) for key, path in found]


def _load_file(path: Path) -> Iterator[SourceDocument | LoadFailure]:
    name = _name(path)
    try:
        status = _status(path, name)
        if not stat.S_ISREG(status.st_mode):
            raise LoadError(f"{name}: not a regular file", "Pass its text through stdin (-).")
    except LoadError as error:
        yield LoadFailure(name, error)
        return
    open_file = partial(_open, path)
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        yield from _load_lines(open_file, name)
    else:
        yield _load_text(
            open_file, name, title=clean(path.stem), size=status.st_size, markdown=suffix == ".md"
        )


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _load_stdin(stream: BinaryIO) -> Iterator[SourceDocument | LoadFailure]:
    try:
        spool = _Spool(stream)
        is_jsonl = _begins_with_object(spool.open)
    except OSError as error:
        yield LoadFailure(STDIN, _unreadable("standard input", error))
        return
    if is_jsonl:
        yield from _load_lines(spool.open, "<stdin>")
    else:
        yield _load_text(
            spool.open, STDIN, title="", size=spool.size, markdown=False, label="<stdin>"
        )


class _Spool:
    """A stream that was copied to a temporary file, so that it can be read again.

    The file has no name and goes with the last reader.
    """

    def __init__(self, stream: BinaryIO) -> None:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object
        weakref.finalize(self, file.close)
        shutil.copyfileobj(stream, file)
        self.size = file.tell()
        self._file = file
        self._lock = threading.Lock()

    def open(self) -> BinaryIO:
        return io.BufferedReader(_SpoolReader(self))

    def read_at(self, position: int, size: int) -> bytes:
        with self._lock:
            self._file.seek(position)
            return self._file.read(size)


class _SpoolReader(io.RawIOBase):
    """Reads a spool from a position of its own."""

    def __init__(self, spool: _Spool) -> None:
        self._spool = spool
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._spool.read_at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def _begins_with_object(open_file: _Open) -> bool:
    with open_file() as file:
        while raw := file.readline(_LINE_LIMIT + 1):
            line = raw.removeprefix(codecs.BOM_UTF8).strip()
            if not line:
                continue
            try:
                return line.startswith(b"{") and isinstance(_parse_json(line), dict)
            except (ValueError, RecursionError):
                return False
    return False


def _load_text(
    open_file: _Open,
    source: str,
    *,
    title: str,
    size: int,
    markdown: bool,
    label: str | None = None,
) -> SourceDocument | LoadFailure:
    name = label or source
    read = partial(_read_text, open_file, name)
    try:
        if all(piece.isspace() for piece in read()):
            raise LoadError(f"{name}: the file is empty", "A document needs some text.")
        if markdown:
            title = first_heading(itertools.islice(read(), _TITLE_PIECES)) or title
    except LoadError as error:
        return LoadFailure(source, error)
    return SourceDocument(source, title, read, size=size, markdown=markdown)


def _read_text(open_file: _Open, name: str) -> Iterator[str]:
    """Yield a file's text in clean pieces, without its byte order mark."""
    # surrogatepass: encoded surrogates are characters that `clean` knows how to replace.
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogatepass")
    end = 0
    try:
        with open_file() as file:
            while True:
                block = file.read(_PIECE)
                if end == 0:
                    _refuse_binary(block, name)
                end += len(block)
                text = decoder.decode(block, final=not block)
                if text:
                    yield clean(text)
                if not block:
                    return
    except UnicodeDecodeError as error:
        # The decoder also holds the end of the block before, so positions count from the end.
        raise _not_utf8(name, end - len(error.object) + error.start, error.reason) from error
    except OSError as error:
        raise _unreadable(name, error) from error


def _refuse_binary(block: bytes, name: str) -> None:
    head = block[:_HEAD]
    if head.count(0) > max(_STRAY_NULS, _STRAY_NULS_PER_BYTE * len(head)):
        raise _not_utf8(name, head.index(0), "NUL bytes")


def _not_utf8(name: str, offset: int, reason: str) -> LoadError:
    return LoadError(f"{name}: not UTF-8 text: {reason} at byte {offset}", _UTF8_HINT)


def _load_lines(open_file: _Open, name: str) -> Iterator[SourceDocument | LoadFailure]:
    # Digests, since the sources themselves may be long and there may be millions of them.
    seen: set[bytes] = set()
    is_empty = True
    try:
        with open_file() as file:
            for number, offset, raw in _raw_lines(file, name):
                is_empty = False
                yield _load_line(raw, f"{name}:{number}", offset, seen)
        if is_empty:
            raise LoadError(f"{name}: the file is empty", _LINE_HINT)
    except LoadError as error:
        yield LoadFailure(name, error)
    except OSError as error:
        yield LoadFailure(name, _unreadable(name, error))


def _raw_lines(file: BinaryIO, name: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, byte offset and bytes of each line that is not blank."""
    offset = 0
    for number in itertools.count(1):
        raw = file.readline(_LINE_LIMIT + 1)
        if not raw:
            return
        if offset == 0:
            _refuse_binary(raw, name)
        begin = offset
        offset += len(raw)
        rest = raw
        while len(rest) > 0 and not rest.endswith(b"\n"):
            rest = file.readline(_PIECE)
            offset += len(rest)
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            raw = raw[len(codecs.BOM_UTF8) :]
            begin += len(codecs.BOM_UTF8)
        if raw.strip():
            yield number, begin, raw


def _load_line(
    raw: bytes, label: str, offset: int, seen: set[bytes]
) -> SourceDocument | LoadFailure:
    try:
        document = _line_document(raw, label, offset)
        digest = hashlib.blake2b(document.source.encode(), digest_size=16).digest()
        if digest in seen:
            raise LoadError(
                f"{label}: an earlier line has the source {document.source!r} too",
                "Each document of a file needs an id or source of its own.",
            )
    except LoadError as error:
        return LoadFailure(label, error)
    seen.add(digest)
    return document


def _line_document(raw: bytes, label: str, offset: int) -> SourceDocument:
    if len(raw) > _LINE_LIMIT:
        raise LoadError(
            f"{label}: the line is longer than {_LINE_LIMIT // 1024**2} MiB",
            "Put so long a text into a .txt or .md file of its own, which is read in pieces.",
        )
    try:
        record = clean_json(_parse_json(raw))
    except UnicodeDecodeError as error:
        raise _not_utf8(label, offset + error.start, error.reason) from error
    except json.JSONDecodeError as error:
        message = f"{label}: invalid JSON: {error.msg} at column {error.colno}"
        raise LoadError(message, _LINE_HINT) from error
    except ValueError as error:
        raise LoadError(f"{label}: invalid JSON: {error}", _LINE_HINT) from error
    except RecursionError as error:
        raise LoadError(f"{label}: the JSON is nested too deeply", _LINE_HINT) from error
    if not isinstance(record, dict):
        raise LoadError(f"{label}: the line is not a JSON object", _LINE_HINT)

    source = record.get("source")
    if source is None:
        source = record.get("id")
    if source is None:
        raise LoadError(f"{label}: the field id (or source) is missing", _LINE_HINT)
    if isinstance(source, bool) or not isinstance(source, str | int | float):
        raise LoadError(f"{label}: id (or source) must be a string or a number", _LINE_HINT)
    source = str(source)
    if not source.strip():
        raise LoadError(f"{label}: the id (or source) is empty", _LINE_HINT)
    text = _field(record, "text", str, "a string", label)
    if text is None:
        raise LoadError(f"{label}: the field text is missing", _LINE_HINT)
    if not text.strip():
        raise LoadError(f"{label}: the text is empty", "A document needs some text.")
    return SourceDocument(
        source,
        _field(record, "title", str, "a string", label) or "",
        partial(_pieces, text),
        metadata=_field(record, "metadata", dict, "an object", label) or {},
        size=len(raw),
    )


def _field(record: dict[str, Any], key: str, type_: type, article: str, label: str) -> Any:
    """Get an optional field of a line; JSON's null counts as missing."""
    value = record.get(key)
    if value is not None and not isinstance(value, type_):
        raise LoadError(f"{label}: {key} must be {article}", _LINE_HINT)
    return value


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits:.20} is too large")
    return value


# Control characters in strings are let through, for they can be stored or are cleaned; numbers
# are not that jsonb would refuse.
_DECODER = json.JSONDecoder(
    strict=False, parse_constant=_refuse_constant, parse_float=_finite_float
)


def _parse_json(line: bytes) -> Any:
    return _DECODER.decode(line.decode("utf-8", "surrogatepass"))
