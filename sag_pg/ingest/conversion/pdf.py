"""Converts PDF files."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pypdfium2
from markitdown import StreamInfo
from markitdown.converters import PdfConverter

from sag_pg.errors import LoadError
from sag_pg.ingest.conversion.result import Converted
from sag_pg.ingest.conversion.tidying import escape, tidy

_HEAD: Final = 1024
_HEADING_LEVELS: Final = 6
_OUTLINE_LIMIT: Final = 10_000
# Titles that a program wrote and nobody chose: names of files, and placeholders.
_NO_TITLE = re.compile(
    r"(?:microsoft (?:word|powerpoint|excel) - .*|(?:untitled|unknown|document|title)\s*\d*"
    r"|.*\.(?:docx?|pptx?|xlsx?|odt|rtf|pdf|tex|dvi|ps|indd|qxd|html?|txt)|\W*)",
    re.IGNORECASE | re.DOTALL,
)
_NUMBERING = re.compile(r"(?:(?:\d+|[A-Z])(?:\.\d+)*[.):]?|[IVXLC]+[.):])\s+(?=\S)")


class _Entry(NamedTuple):
    """A heading in a file's table of contents."""

    level: int
    title: str
    page: int | None


def convert(path: Path) -> Converted:
    """Convert a .pdf file: its stated title, and its text with the headings of its outline."""
    with path.open("rb") as file:
        if b"%PDF-" not in file.read(_HEAD):
            raise LoadError("it is not a PDF file", "Does its name end as it should?")
    title, outline = _describe(path)
    import pdfplumber  # noqa: F401 - the converter's own message would not name our extra

    with path.open("rb") as file:
        text = PdfConverter().convert(file, StreamInfo(extension=".pdf")).markdown
    pages = escape(text).split("\f")
    return Converted([tidy("\n\n".join(_with_headings(pages, outline)))], title)


def _describe(path: Path) -> tuple[str, list[_Entry]]:
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise LoadError("it is protected by a password", "Save it without one.") from error
        raise LoadError(
            "it is damaged, or not a PDF file", "Open it in a viewer, and save it again."
        ) from error
    try:
        title = document.get_metadata_value("Title").strip()
        outline = []
        for bookmark in document.get_toc(max_depth=_HEADING_LEVELS):
            target = bookmark.get_dest()
            page = None if target is None else target.get_index()
            outline.append(_Entry(bookmark.level + 1, bookmark.get_title(), page))
            if len(outline) == _OUTLINE_LIMIT:
                break
    finally:
        document.close()
    return "" if _NO_TITLE.fullmatch(title) else title, outline


def _with_headings(pages: Iterable[str], outline: Iterable[_Entry]) -> list[str]:
    """Mark the lines that a table of contents names as headings, in the order of both."""
    lines = [page.split("\n") for page in pages]
    places: dict[str, list[tuple[int, int]]] = {}
    for page, page_lines in enumerate(lines):
        for number, line in enumerate(page_lines):
            if key := _key(line):
                places.setdefault(key, []).append((page, number))
    # Where the pages are not told apart, all is one page.
    is_paged = len(lines) > 1
    after = (0, -1)
    for entry in outline:
        if is_paged and entry.page is not None:
            after = max(after, (entry.page, -1))
        for place in places.get(_key(entry.title), ()):
            is_there = not is_paged or entry.page is None or place[0] == entry.page
            if place > after and is_there:
                page, number = place
                heading = " ".join(lines[page][number].split())
                lines[page][number] = f"\n{'#' * entry.level} {heading}\n"
                after = place
                break
    return ["\n".join(page_lines) for page_lines in lines]


def _key(line: str) -> str:
    """Return what is compared of a heading: neither its number nor its spacing."""
    line = " ".join(line.split())
    return "".join(_NUMBERING.sub("", line, count=1).split()).casefold()
