"""What the loaders hand to the ingest."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
            once and yields the same text each time. Offsets of chunks count its characters:
            front matter is no part of it, and where a file was converted it is the Markdown that
            came out. NUL characters and lone surrogates come as U+FFFD, one for one.
        size: Size in bytes for progress; None where it is not known.
        markdown: Whether the text is Markdown, so that its headings count.
        title_stated: Whether somebody gave the title; False where it is just the file's name, so
            that copies of a file under other names are one text to a language model.
        warning: What is wrong with it although it can be read; empty where nothing is.
    """

    source: str
    title: str
    read: Callable[[], Iterator[str]]
    metadata: dict[str, Any] = field(default_factory=dict)
    size: int | None = None
    markdown: bool = False
    title_stated: bool = True
    warning: str = ""


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A document that could not be loaded; the others go on.

    Attributes:
        source: The source that the document would have; with `file`, a name for messages only.
        error: Why it could not be loaded.
        file: Where it cannot be told which documents failed, what they are in: a .jsonl file, of
            which a line or all is broken, or a directory that cannot be listed.
    """

    source: str
    error: LoadError
    file: str | None = None


def with_metadata(
    documents: Iterable[SourceDocument | LoadFailure], metadata: Mapping[str, Any]
) -> Iterator[SourceDocument | LoadFailure]:
    """Give documents further metadata.

    Args:
        documents: What `load_paths` yields.
        metadata: What filters can ask for of all of them, as JSON has it. It goes over a
            document's own where both have the same key.

    Yields:
        The documents, and the failures as they are.
    """
    added = clean_json(dict(metadata))
    for document in documents:
        if added and isinstance(document, SourceDocument):
            document = replace(document, metadata={**document.metadata, **added})
        yield document


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
