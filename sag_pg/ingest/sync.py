"""Deletes from a collection what its directory does not have any more."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self

import psycopg

from sag_pg.errors import SagError
from sag_pg.ingest.document import LoadFailure, SourceDocument

_PAGE: Final = 1000
_DELETED_AT_ONCE: Final = 200
# A directory that is not mounted, or the wrong one, must not empty a collection.
_MOST_DELETED_SHARE: Final = 0.5
_FEW: Final = 10


@dataclass(slots=True)
class Seen:
    """Which documents a directory has; digests, for there may be millions.

    Attributes:
        digests: Of the sources.
        unclear: Failures that do not tell which documents they stand for, such as a line of a
            .jsonl that is no JSON.
    """

    digests: set[bytes] = field(default_factory=set)
    unclear: list[LoadFailure] = field(default_factory=list)

    def watch(
        self, documents: Iterable[SourceDocument | LoadFailure]
    ) -> Iterator[SourceDocument | LoadFailure]:
        """Pass documents on, and remember them.

        Args:
            documents: What `load_paths` yields.
        """
        for document in documents:
            if isinstance(document, SourceDocument) or document.file is None:
                self.digests.add(_digest(document.source))
            else:
                self.unclear.append(document)
            yield document

    @classmethod
    def of(cls, sources: Iterable[str | LoadFailure]) -> Self:
        """Remember documents without loading them.

        Args:
            sources: What `list_sources` yields.
        """
        seen = cls()
        for source in sources:
            if isinstance(source, LoadFailure):
                seen.unclear.append(source)
            else:
                seen.digests.add(_digest(source))
        return seen


def missing_sources(
    connection: psycopg.Connection[Any], collection: str, seen: Seen
) -> tuple[list[str], int]:
    """Find the documents of a collection, and of its queue, that a directory does not have.

    Returns:
        Their sources, and the number of all documents of the collection.
    """
    missing: list[str] = []
    total = 0
    after = ""
    while True:
        page = [
            row[0]
            for row in connection.execute(
                "SELECT source FROM sag.document_sources(%s, %s, %s)", [collection, after, _PAGE]
            )
        ]
        if not page:
            return missing, total
        total += len(page)
        after = page[-1]
        missing += [source for source in page if _digest(source) not in seen.digests]


def check_deletion(missing: int, before: int, after: int, collection: str) -> None:
    """Refuse to delete all or most of a collection.

    Args:
        missing: Documents that the directory does not have.
        before: Documents of the collection before those of the directory were added. Against
            these, a wrong directory that is larger than the right one does not look like it.
        after: Documents of the collection with them.
        collection: Its name.

    Raises:
        SagError: It is every document, or more than half of them and more than a few.
    """
    if missing and (missing == after or missing > max(_FEW, _MOST_DELETED_SHARE * before)):
        raise SagError(
            f"{missing} documents of collection {collection!r}, which had {before}, are not in the"
            " directory and would be deleted.",
            "Is it the right directory, by the same path as before, and the right collection?"
            " If so, say --force.",
        )


def delete_sources(
    connection: psycopg.Connection[Any], collection: str, sources: list[str]
) -> Iterator[str]:
    """Delete documents, some at a time, and yield what was deleted."""
    for start in range(0, len(sources), _DELETED_AT_ONCE):
        rows = connection.execute(
            "SELECT source FROM sag.delete_documents(%s, %s)",
            [collection, sources[start : start + _DELETED_AT_ONCE]],
        )
        for row in rows.fetchall():
            yield row[0]


def _digest(source: str) -> bytes:
    return hashlib.blake2b(source.encode(), digest_size=16).digest()
