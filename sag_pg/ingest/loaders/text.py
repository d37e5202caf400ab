"""Loads plain text and Markdown."""

import itertools
from functools import partial
from typing import Final

from sag_pg.errors import LoadError
from sag_pg.ingest.chunking import first_heading
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.loaders.front_matter import FrontMatter, read_front_matter
from sag_pg.ingest.loaders.reading import Open, read_text, unreadable

# A heading further down a Markdown file, in pieces, is not its title.
_TITLE_PIECES: Final = 16


def load_text(
    open_file: Open,
    source: str,
    *,
    stem: str,
    size: int,
    markdown: bool,
    label: str | None = None,
) -> SourceDocument | LoadFailure:
    """Make a document of UTF-8 text.

    Args:
        open_file: Opens it.
        source: The document's source.
        stem: Title where the text has none: the file's name, or nothing.
        size: Bytes.
        markdown: Whether it is Markdown: with front matter, headings, and so a title.
        label: What messages call it, where that is not its source.
    """
    name = label or source
    title = ""
    front_matter = FrontMatter()
    try:
        if markdown:
            with open_file() as file:
                front_matter = read_front_matter(file)
        read = partial(read_text, open_file, name, front_matter.size)
        if all(piece.isspace() for piece in read()):
            what = "there is nothing below the front matter" if front_matter.size else "empty"
            message = f"{name}: {what}" if front_matter.size else f"{name}: the file is {what}"
            raise LoadError(message, "A document needs some text.")
        if markdown:
            pieces = itertools.islice(read(), _TITLE_PIECES)
            title = front_matter.title or first_heading(pieces) or ""
    except LoadError as error:
        return LoadFailure(source, error)
    except OSError as error:
        return LoadFailure(source, unreadable(name, error))
    return SourceDocument(
        source,
        title or stem,
        read,
        front_matter.metadata,
        size=size,
        markdown=markdown,
        title_stated=bool(title),
        warning=(
            f"{name}: its front matter is broken and was left in the text: {front_matter.problem}"
            if front_matter.problem
            else ""
        ),
    )
