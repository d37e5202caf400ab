"""Loads .csv files, row by row."""

import codecs
import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import BinaryIO, Final

from sag_pg.errors import LoadError
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.loaders.reading import PIECE, Open, refuse_binary, regroup, unreadable
from sag_pg.ingest.records import record_text
from sag_pg.text import clean

# Characters. Rows are held whole; a quotation mark that is never closed makes one of all the rest.
_ROW_LIMIT: Final = 16 * 2**20
_DELIMITERS: Final = ",;\t|"
_SAMPLE_ROWS: Final = 50
# Bytes of lines that are not ASCII, from which an encoding other than UTF-8 is guessed.
_ENCODING_SAMPLE: Final = 65_536

# Newer versions of csv raise ValueError for what cannot separate.
_SEPARATOR_LINE = re.compile(r'"?sep=([^"\r\n])"?\s*', re.IGNORECASE)
_ENCODING_HINT = (
    "Save it as UTF-8, or convert it with iconv. To have encodings guessed: pip install"
    " 'sag-pg[files]'"
)


def load_table(
    open_file: Open, source: str, *, stem: str, size: int
) -> SourceDocument | LoadFailure:
    """Make a document of a .csv file.

    Its delimiter (comma, semicolon, tab or bar) and, where it is not UTF-8, its encoding are
    guessed from its content.

    Args:
        open_file: Opens it.
        source: The document's source, and what messages call it.
        stem: Its title, the file's name.
        size: Bytes.
    """
    try:
        encoding = _encoding(open_file, source)
        delimiter, skipped = _delimiter(open_file, encoding, source)
        read = partial(_read, open_file, encoding, delimiter, skipped, source)
        if all(piece.isspace() for piece in read()):
            raise LoadError(
                f"{source}: there are no rows in it",
                "The first line names the columns, and rows stand below it.",
            )
    except LoadError as error:
        return LoadFailure(source, error)
    except OSError as error:
        return LoadFailure(source, unreadable(source, error))
    return SourceDocument(source, stem, read, size=size, title_stated=False)


def _read(open_file: Open, encoding: str, delimiter: str, skipped: int, name: str) -> Iterator[str]:
    try:
        with open_file() as file:
            rows = itertools.islice(_rows(file, encoding, delimiter, name), skipped, None)
            for piece in regroup(record_text(rows)):
                yield clean(piece)
    except OSError as error:
        raise unreadable(name, error) from error


def _rows(file: BinaryIO, encoding: str, delimiter: str, name: str) -> Iterator[Sequence[str]]:
    csv.field_size_limit(max(csv.field_size_limit(), _ROW_LIMIT))
    lines = _Lines(file, encoding, name)
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter != " ")
    try:
        for row in reader:
            yield row
            lines.row_length = 0
    except csv.Error as error:
        raise LoadError(
            f"{name}:{reader.line_num}: not a table: {error}", "Check its quotation marks."
        ) from error
    except UnicodeError as error:
        raise LoadError(
            f"{name}:{reader.line_num + 1}: not {encoding} text as the rest is", _ENCODING_HINT
        ) from error


class _Lines:
    """The lines of a file, as long as no row of them gets too long.

    Attributes:
        row_length: Characters since it was set to 0.
    """

    def __init__(self, file: BinaryIO, encoding: str, name: str) -> None:
        # Encoded surrogates are replaced later, as in other texts.
        errors = "surrogatepass" if encoding.startswith("utf") else "strict"
        self._text = io.TextIOWrapper(file, encoding, errors=errors, newline="")
        self._name = name
        self.row_length = 0

    def __iter__(self) -> Iterator[str]:
        for number in itertools.count(1):
            line = self._text.readline(_ROW_LIMIT + 1)
            if not line:
                return
            self.row_length += len(line)
            if self.row_length > _ROW_LIMIT:
                raise LoadError(
                    f"{self._name}:{number}: a row is longer than {_ROW_LIMIT // 2**20} million"
                    " characters",
                    "Is a quotation mark open, or is this no table?",
                )
            yield line


def _encoding(open_file: Open, name: str) -> str:
    """Find out how a file is encoded; of UTF-8 all of it is checked."""
    with open_file() as file:
        head = file.read(PIECE)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        refuse_binary(head, name)
        decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        try:
            block = head
            while block:
                decoder.decode(block)
                block = file.read(PIECE)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return _guess(open_file, name)
    return "utf-8-sig"


def _guess(open_file: Open, name: str) -> str:
    try:
        from charset_normalizer import from_bytes
    except ImportError as error:
        raise LoadError(f"{name}: not UTF-8 text", _ENCODING_HINT) from error
    sample = bytearray()
    with open_file() as file:
        while len(sample) < _ENCODING_SAMPLE and (line := file.readline(PIECE)):
            if not line.isascii():
                sample += line
    best = from_bytes(bytes(sample)).best()
    if best is None:
        raise LoadError(f"{name}: not text in any encoding that is known", _ENCODING_HINT)
    return best.encoding


def _delimiter(open_file: Open, encoding: str, name: str) -> tuple[str, int]:
    """Find the delimiter that cuts most rows alike, and how many lines are to be skipped."""
    with open_file() as file:
        lines = list(itertools.islice(_Lines(file, encoding, name), _SAMPLE_ROWS))
    if lines and (stated := _SEPARATOR_LINE.fullmatch(lines[0])):
        return stated[1], 1
    best = (0, 0)
    found = ","
    for delimiter in _DELIMITERS:
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        try:
            widths = Counter(len(row) for row in reader if len(row) > 1)
        except csv.Error:
            continue
        if widths:
            width, rows = widths.most_common(1)[0]
            if (rows, width) > best:
                best = (rows, width)
                found = delimiter
    return found, 0
