"""Loads .jsonl files: a document a line."""

import codecs
import hashlib
import itertools
import json
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, Final, NoReturn

from sag_pg.errors import LoadError
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.loaders.reading import (
    PIECE,
    Open,
    not_utf8,
    refuse_binary,
    regroup,
    unreadable,
)
from sag_pg.text import clean_json

# A line is held whole, several times over while it is parsed.
_LINE_LIMIT: Final = 64 * 1024 * 1024

_LINE_HINT = (
    'Each line is an object such as {"id": "a1", "title": "Title", "text": "Text", '
    '"metadata": {"year": 2024}}; id (or source) and text are required.'
)


def begins_with_object(open_file: Open) -> bool:
    """Tell whether the first line that is not blank is a JSON object."""
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


def load_lines(open_file: Open, name: str) -> Iterator[SourceDocument | LoadFailure]:
    """Make a document of each line of a .jsonl file.

    Args:
        open_file: Opens it.
        name: What messages call the file; failures carry it as their `file`.
    """
    # Digests, since the sources themselves may be long and there may be millions of them.
    seen: set[bytes] = set()
    is_empty = True
    try:
        with open_file() as file:
            for number, offset, raw in _raw_lines(file, name):
                is_empty = False
                yield _load_line(raw, name, number, offset, seen)
        if is_empty:
            raise LoadError(f"{name}: the file is empty", _LINE_HINT)
    except LoadError as error:
        yield LoadFailure(name, error, file=name)
    except OSError as error:
        yield LoadFailure(name, unreadable(name, error), file=name)


def _raw_lines(file: BinaryIO, name: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, byte offset and bytes of each line that is not blank."""
    offset = 0
    for number in itertools.count(1):
        raw = file.readline(_LINE_LIMIT + 1)
        if not raw:
            return
        if offset == 0:
            refuse_binary(raw, name)
        begin = offset
        offset += len(raw)
        rest = raw
        while len(rest) > 0 and not rest.endswith(b"\n"):
            rest = file.readline(PIECE)
            offset += len(rest)
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            raw = raw[len(codecs.BOM_UTF8) :]
            begin += len(codecs.BOM_UTF8)
        if raw.strip():
            yield number, begin, raw


def _load_line(
    raw: bytes, name: str, number: int, offset: int, seen: set[bytes]
) -> SourceDocument | LoadFailure:
    label = f"{name}:{number}"
    try:
        document = _line_document(raw, label, offset)
        digest = hashlib.blake2b(document.source.encode(), digest_size=16).digest()
        if digest in seen:
            raise LoadError(
                f"{label}: an earlier line has the source {document.source!r} too",
                "Each document of a file needs an id or source of its own.",
            )
    except LoadError as error:
        return LoadFailure(label, error, file=name)
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
        raise not_utf8(label, offset + error.start, error.reason) from error
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
        partial(regroup, [text]),
        metadata=_field(record, "metadata", dict, "an object", label) or {},
        size=len(raw),
    )


def _field(record: dict[str, Any], key: str, type_: type, article: str, label: str) -> Any:
    """Get an optional field of a line; JSON's null counts as missing."""
    value = record.get(key)
    if value is not None and not isinstance(value, type_):
        raise LoadError(f"{label}: {key} must be {article}", _LINE_HINT)
    return value


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
