"""Converts documents of Word."""

from pathlib import Path
from typing import Final

from markitdown import StreamInfo
from markitdown.converters import DocxConverter

from sag_pg.ingest.chunking import first_heading
from sag_pg.ingest.conversion.html import MARKDOWN_OPTIONS
from sag_pg.ingest.conversion.office import check_package, stated_title
from sag_pg.ingest.conversion.result import Converted
from sag_pg.ingest.conversion.tidying import tidy

# Without this a document's title is a paragraph as any other.
_STYLES: Final = "p[style-name='Title'] => h1:fresh"


def convert(path: Path) -> Converted:
    """Convert a .docx file: the title among its properties, else its first title or heading."""
    check_package(path, "word", "a document of Word")
    import mammoth  # noqa: F401 - the converter's own message would not name our extra

    with path.open("rb") as file:
        text = DocxConverter().convert(
            file, StreamInfo(extension=".docx"), style_map=_STYLES, **MARKDOWN_OPTIONS
        )
    markdown = tidy(text.markdown)
    return Converted([markdown], stated_title(path) or first_heading([markdown]) or "")
