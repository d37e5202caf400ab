"""Loads files that are converted to Markdown."""

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Final

from sag_pg.errors import LoadError
from sag_pg.ingest.conversion.process import Converter
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.loaders.reading import read_text
from sag_pg.ingest.loaders.spool import Spool
from sag_pg.text import clean, clean_json, in_one_line

CONVERTED_SUFFIXES: Final = (".html", ".htm", ".pdf", ".docx", ".pptx", ".xlsx", ".eml")

# Converters hold a file whole.
_SIZE_LIMIT: Final = 200 * 2**20
# Characters. A title that is longer was not meant as one.
_TITLE_LIMIT: Final = 300
_EMPTY_HINTS: Final = {".pdf": "A scan has to go through text recognition (OCR) first."}


def load_converted(
    path: Path, source: str, *, stem: str, size: int, converter: Converter
) -> SourceDocument | LoadFailure:
    """Make a document of a file that has to be converted; its text is kept to be read again.

    Args:
        path: The file.
        source: The document's source, and what messages call it.
        stem: Title where it has none: the file's name.
        size: Bytes.
        converter: Converts it.
    """
    spool = Spool()
    suffix = path.suffix.lower()
    try:
        if size == 0:
            raise LoadError("the file is empty", "A document needs some text.")
        if size > _SIZE_LIMIT:
            raise LoadError(
                f"the file has {size // 2**20} MiB; up to {_SIZE_LIMIT // 2**20} MiB of a"
                f" {suffix} file can be converted",
                "Split it, or convert it to .txt or .md, which are read in pieces.",
            )
        is_blank = True
        # Against the working directory, which the converter's process may not share.
        conversion = converter.convert(os.path.abspath(path), suffix, size)  # noqa: PTH100
        with contextlib.closing(conversion.pieces) as pieces:
            for piece in pieces:
                text = clean(piece)
                is_blank = is_blank and text.isspace()
                spool.write(text.encode())
        if is_blank:
            hint = _EMPTY_HINTS.get(suffix, "A document needs some text.")
            raise LoadError("there is no text in it", hint)
        about = conversion.about
    except LoadError as error:
        return LoadFailure(source, LoadError(f"{source}: {error}", error.hint))
    except OSError as error:
        message = f"{source}: its text cannot be kept: {error.strerror or error}"
        return LoadFailure(source, LoadError(message, "Is there room for temporary files?"))
    title = in_one_line(about.title)[:_TITLE_LIMIT]
    return SourceDocument(
        source,
        title or stem,
        partial(read_text, spool.open, source),
        clean_json(about.metadata),
        size=size,
        markdown=about.markdown,
        title_stated=bool(title),
    )
