"""The export: a collection becomes a set of files."""

import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from sag_pg.errors import ConfigurationError, SagError
from sag_pg.text import clean
from sag_pg.transfer.manifest import KINDS, MANIFEST, FileFacts, Manifest, path_of

Connection = psycopg.Connection[Any]

# A line is as long as its chunk, and they are held at once.
_FETCHED: Final = 100
_REPORTED: Final = 1000


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: the numbers of lines."""

    collection: str
    documents: int
    chunks: int
    events: int
    links: int
    entities: int
    answers: int


def export_collection(
    connection: Connection,
    collection: str,
    directory: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda lines: None,
) -> Exported:
    """Write a collection into a directory, as it is at this moment.

    What is ingested meanwhile is left out, and waits for nothing.

    Args:
        connection: A connection in autocommit mode. Membership in sag_reader suffices.
        collection: Name of the collection.
        directory: Where to. It appears when it is complete, and not before.
        overwrite: Whether it may take the place of an earlier export.
        progress: Told the number of lines so far, now and then.

    Raises:
        ConfigurationError: The directory is there already.
        SagError: It cannot be written.
        psycopg.Error: There is no such collection.
    """
    collection = clean(collection)
    directory = directory.resolve()
    _check_target(directory, overwrite)
    partial = directory.with_name(f"{directory.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        partial.mkdir(parents=True)
        try:
            manifest = _write(connection, collection, partial, progress)
            _put_in_place(partial, directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise SagError(
            f"{directory} cannot be written: {error.strerror or error}",
            "Check that there is room, and that you may write there.",
        ) from error
    return Exported(collection, **{kind: manifest.files[kind].lines for kind in KINDS})


def _check_target(directory: Path, overwrite: bool) -> None:
    try:
        present = {path.name for path in directory.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(
            f"{directory} is no directory to write: {error.strerror or error}",
            "Name a directory that is not there yet.",
        ) from error
    if not present:
        return
    # What is not of an export is not this program's to delete.
    others = present - {MANIFEST, *(path_of(directory, kind).name for kind in KINDS)}
    if others or MANIFEST not in present:
        raise ConfigurationError(
            f"{directory} is not empty, and not just an earlier export.",
            "Name a directory that is not there yet.",
        )
    if not overwrite:
        raise ConfigurationError(
            f"{directory} has an earlier export.", "Say --force to replace it, or name another one."
        )


def _write(
    connection: Connection, collection: str, directory: Path, progress: Callable[[int], None]
) -> Manifest:
    files = {}
    written = 0
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        row = connection.execute(
            "SELECT facts FROM sag.export_collection(%s) AS facts", [collection]
        ).fetchone()
        assert row is not None  # noqa: S101
        for kind in KINDS:
            digest = hashlib.sha256()
            lines = 0
            with path_of(directory, kind).open("wb") as file:
                for line in _lines(connection, kind, collection):
                    file.write(line)
                    digest.update(line)
                    lines += 1
                    written += 1
                    if written % _REPORTED == 0:
                        progress(written)
            files[kind] = FileFacts(lines, digest.hexdigest())
    progress(written)
    manifest = Manifest(row[0], files)
    manifest.write(directory)
    return manifest


def _lines(connection: Connection, kind: str, collection: str) -> Iterator[bytes]:
    query = f"SELECT name FROM sag.export_{kind}(%s) AS name"  # noqa: S608
    row = connection.execute(query.encode(), [collection]).fetchone()
    assert row is not None  # noqa: S101
    # The function has opened the cursor.
    with connection.cursor(name=row[0]) as cursor:
        cursor.itersize = _FETCHED
        for (line,) in cursor:
            yield line.encode() + b"\n"


def _put_in_place(partial: Path, directory: Path) -> None:
    if not directory.exists():
        partial.rename(directory)
        return
    # At any moment one of both is whole.
    earlier = partial.with_name(f"{partial.name}-earlier")
    directory.rename(earlier)
    partial.rename(directory)
    shutil.rmtree(earlier, ignore_errors=True)
