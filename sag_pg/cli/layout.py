"""Text measured in columns of a terminal, where a Chinese character takes two."""

import re
import shutil
import unicodedata
from collections.abc import Iterator

_DEFAULT_COLUMNS = 100
# Longer lines are hard to read, and no shorter ones leave room for an excerpt.
_MOST_COLUMNS = 120
_LEAST_COLUMNS = 40

# What a line is broken between: white space, runs of narrow characters, and single wide ones
# with the punctuation that must not begin a line.
_PIECE = re.compile(r"\s+|[^\s\u1100-\uffef]+|[\u1100-\uffef][，。、；：？！）》〉」』】”’]*")


def terminal_columns() -> int:
    """The width to write in: that of the terminal, or COLUMNS, within what is readable."""
    columns = shutil.get_terminal_size((_DEFAULT_COLUMNS, 24)).columns
    return max(_LEAST_COLUMNS, min(_MOST_COLUMNS, columns))


def printable(text: str) -> str:
    """Replace what could steer the terminal: all control characters but line breaks and tabs."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(character) == "Cc" and character not in "\n\t"
        else character
        for character in text
    )


def one_line(text: str) -> str:
    """Return the text without control characters, its white space as single spaces."""
    return printable(" ".join(text.split()))


def columns_of(text: str) -> int:
    """The number of columns that a line of text takes."""
    return sum(map(_width, text))


def pad(text: str, columns: int) -> str:
    """Fill a line of text with spaces up to a number of columns."""
    return text + " " * (columns - columns_of(text))


def shorten(text: str, columns: int) -> str:
    """Make one line of a text, cut to a number of columns."""
    return cut(one_line(text), columns)


def cut(line: str, columns: int) -> str:
    """Cut a line to a number of columns; it ends with "…" if something is missing."""
    if columns_of(line) <= columns:
        return line
    return _beginning(line, columns - 1).rstrip() + "…"


def wrap(text: str, columns: int, most_lines: int | None = None) -> list[str]:
    """Break a text into lines of at most so many columns.

    Args:
        text: Any text; its own line breaks count as spaces.
        columns: Width of the lines; at least 2.
        most_lines: Where the text is longer, it is cut there, and ends with "…".
    """
    lines: list[str] = []
    for line in _lines(one_line(text), columns):
        if most_lines is not None and len(lines) == most_lines:
            lines[-1] = shorten(f"{lines[-1]} …", columns)
            break
        lines.append(line)
    return lines


def _width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _beginning(line: str, columns: int) -> str:
    """The longest beginning that takes no more columns."""
    taken = 0
    for position, character in enumerate(line):
        taken += _width(character)
        if taken > columns:
            return line[:position]
    return line


def _lines(text: str, columns: int) -> Iterator[str]:
    line, taken = "", 0
    for piece in _PIECE.findall(text):
        if line and taken + columns_of(piece) > columns:
            yield line.rstrip()
            line, taken = "", 0
        # A word may be longer than a whole line.
        while columns_of(piece) > columns:
            beginning = _beginning(piece, columns)
            yield beginning
            piece = piece[len(beginning) :]
        if line or not piece.isspace():
            line, taken = line + piece, taken + columns_of(piece)
    if line.strip():
        yield line.rstrip()
