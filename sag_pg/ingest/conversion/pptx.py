"""Converts presentations of PowerPoint."""

import re
from pathlib import Path
from typing import Final

from markitdown import StreamInfo
from markitdown.converters import PptxConverter

from sag_pg.ingest.conversion.html import MARKDOWN_OPTIONS
from sag_pg.ingest.conversion.office import check_package, stated_title
from sag_pg.ingest.conversion.result import Converted
from sag_pg.ingest.conversion.tidying import tidy

_SLIDE = re.compile(r"^<!-- Slide number: \d+ -->\n?", re.MULTILINE)
_TITLE = re.compile(r"^# (.+)\n?", re.MULTILINE)
_NOTES = re.compile(r"^### Notes:\n", re.MULTILINE)
# A longer line is no title.
_TITLE_LIMIT: Final = 120
# What PowerPoint calls every presentation.
_NO_TITLES: Final = ("", "powerpoint presentation")


def convert(path: Path) -> Converted:
    """Convert a .pptx file: each slide is a section under its title, the first names all."""
    check_package(path, "ppt", "a presentation of PowerPoint")
    import pptx  # noqa: F401 - the converter's own message would not name our extra

    with path.open("rb") as file:
        # Line breaks inside of a title come as vertical tabs.
        whole = (
            PptxConverter()
            .convert(file, StreamInfo(extension=".pptx"), **MARKDOWN_OPTIONS)
            .markdown.replace("\x0b", " ")
        )
    slides = [_slide(slide) for slide in _SLIDE.split(whole) if slide.strip()]
    first = _TITLE.match(slides[0]) if slides else None
    title = first[1] if first is not None else stated_title(path)
    if title.lower() in _NO_TITLES:
        title = ""
    return Converted([tidy("\n\n".join(slides))], title)


def _slide(text: str) -> str:
    """Begin a slide with its title, so that all of it is under it."""
    text = _NOTES.sub("Notes: ", text.strip())
    title = _TITLE.search(text)
    if title is not None:
        return f"# {title[1]}\n\n{text[: title.start()]}{text[title.end() :]}"
    line, _, rest = text.partition("\n")
    if rest.strip() and len(line) <= _TITLE_LIMIT and not line.startswith(("|", "!", "#")):
        return f"# {line}\n\n{rest}"
    return text
