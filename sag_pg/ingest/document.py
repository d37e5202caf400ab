"""What the loaders hand to the ingest."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sag_pg.errors import LoadError
from sag_pg.text import clean, clean_json


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document that has not been read yet.

    Attributes:
        source: The document's key, unique in its collection: a path, a URI or the caller's id.
        title: Title, empty where the document has none.
        metadata: What filters can ask for; must be serialisable as JSON.
        read: Opens the text and yields it in pieces of bounded size; may be called more than
            once and yields the same text each time. NUL characters and lone surrogates come as
            U+FFFD, so that offsets count the characters of the original.
        size: Size in bytes for progress; None where it is not known.
        markdown: Whether the text is Markdown, so that its headings count.
    """

    source: str
    title: str
    read: Callable[[], Iterator[str]]
    metadata: dict[str, Any] = field(default_factory=dict)
    size: int | None = None
    markdown: bool = False


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A document that could not be loaded; the others go on."""

    source: str
    error: LoadError


def text_document(
    source: str, text: str, *, title: str = "", metadata: dict[str, Any] | None = None
) -> SourceDocument:
    """Make a document of a text that is at hand.

    Args:
        source: The document's key, unique in its collection.
        text: The text.
        title: Title, empty where there is none.
        metadata: What filters can ask for.
    """
    return SourceDocument(
        clean(source),
        clean(title),
        lambda: iter([clean(text)]),
        clean_json(metadata or {}),
        size=len(text.encode("utf-8", "replace")),
    )
