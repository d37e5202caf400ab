"""Converts web pages."""

import io
import re
from pathlib import Path
from typing import Final

from bs4.dammit import EncodingDetector
from markitdown import StreamInfo
from markitdown.converters import HtmlConverter

from sag_pg.errors import LoadError
from sag_pg.ingest.chunking import first_heading
from sag_pg.ingest.conversion.result import Converted
from sag_pg.ingest.conversion.tidying import tidy
from sag_pg.ingest.loaders.reading import refuse_binary

# Addresses are no words of the text; names with a _ are searched for as they are.
MARKDOWN_OPTIONS: Final = {
    "strip": ["a"],
    "escape_asterisks": False,
    "escape_underscores": False,
}
# In these ASCII is valid UTF-8 and means something else.
_SEVEN_BIT = re.compile(r"iso-2022-\w+|hz-gb-2312|utf-7", re.IGNORECASE)
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def convert(path: Path) -> Converted:
    """Convert a .html file: its title, else its first heading, and its body."""
    return convert_html(path.read_bytes())


def convert_html(data: bytes, charset: str | None = None) -> Converted:
    """Convert a web page.

    Args:
        data: The page; where it is no UTF-8, as it says itself or as can be guessed.
        charset: What it is encoded in, where that is known better.
    """
    if charset is None:
        charset = "utf-8"
        if not data.startswith(_UTF_16_MARKS):
            _refuse_binary(data)
        declared = EncodingDetector.find_declared_encoding(data, is_html=True)
        if declared is not None and _SEVEN_BIT.fullmatch(declared):
            charset = declared
    page = HtmlConverter().convert(
        io.BytesIO(data), StreamInfo(extension=".html", charset=charset), **MARKDOWN_OPTIONS
    )
    text = tidy(page.markdown)
    title = (page.title or "").strip() or first_heading([text]) or ""
    return Converted([text], title)


def _refuse_binary(data: bytes) -> None:
    try:
        refuse_binary(data, "")
    except LoadError as error:
        raise LoadError("it is no web page but binary data", error.hint) from error
