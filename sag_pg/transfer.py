"""A collection as a set of files: out of one database, and into another without any model.

The set is a directory with `manifest.json`, which has the format's version, what the collection
is, and the SHA-256 and number of lines of each file beside it: `documents.jsonl`, `chunks.jsonl`,
`events.jsonl`, `links.jsonl`, `entities.jsonl` and `answers.jsonl`. Lines are in the order of the
documents' sources, so that a set is read as a stream, and two exports of the same content are the
same bytes. There are no ids and no times in it.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from pgvector import HalfVector
from psycopg.types.json import Jsonb

from sag_pg.errors import ConfigurationError, LoadError
from sag_pg.ingest.batch import Batch
from sag_pg.ingest.session import Session

FORMAT_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
FILES: Final = ("documents", "chunks", "events", "links", "entities", "answers")

_FETCHED: Final = 1000
_BATCH_CHUNKS: Final = 1000
_SENT_LINES: Final = 500


@dataclass(slots=True)
class Transfer:
    """What was written or read: the numbers of lines, and what became of the documents."""

    collection: str
    documents: int = 0
    chunks: int = 0
    entities: int = 0
    answers: int = 0
    added: int = 0
    replaced: int = 0
    unchanged: int = 0


def export_collection(
    connection: psycopg.Connection[Any],
    collection: str,
    directory: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda lines: None,
) -> Transfer:
    """Write a collection into a directory, as it is at this moment.

    Args:
        connection: A connection in autocommit mode.
        collection: Its name.
        directory: Made anew. It appears when it is complete, and not before.
        overwrite: Whether it may take the place of an earlier export.
        progress: Told the number of lines written so far.

    Raises:
        ConfigurationError: The directory is there already.
        psycopg.Error: There is no such collection.
    """
    _check_target(directory, overwrite)
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        files: dict[str, dict[str, Any]] = {}
        written = 0
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            (facts,) = connection.execute(
                "SELECT line FROM sag.export_collection(%s)", [collection]
            ).fetchall()
            for name in FILES:
                path = partial / f"{name}.jsonl"
                lines = 0
                with path.open("wb") as file:
                    for line in _lines(connection, name, collection):
                        file.write(line)
                        lines += 1
                        written += 1
                        progress(written)
                files[path.name] = {"lines": lines, "sha256": _digest(path)}
        manifest = {"format": FORMAT_VERSION, **facts[0], "files": files}
        (partial / MANIFEST).write_text(
            json.dumps(manifest, ensure_ascii=False, indent=2, sort_keys=True) + "\n", "utf-8"
        )
        # mkdtemp makes a directory for its owner alone.
        partial.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    documents, chunks, entities, answers = (
        files[f"{name}.jsonl"]["lines"] for name in ("documents", "chunks", "entities", "answers")
    )
    return Transfer(collection, documents, chunks, entities, answers)


def _check_target(directory: Path, overwrite: bool) -> None:
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not (directory / MANIFEST).is_file():
        raise ConfigurationError(
            f"{directory} is there and no earlier export.", "Name a directory that is not there."
        )
    if not overwrite:
        raise ConfigurationError(
            f"{directory} has an earlier export.", "Say --force to replace it."
        )


def _lines(connection: psycopg.Connection[Any], name: str, collection: str) -> Iterator[bytes]:
    with connection.cursor(name=f"sag_export_{name}") as cursor:
        cursor.itersize = _FETCHED
        query = f"SELECT line::text FROM sag.export_{name}(%s)"  # noqa: S608
        cursor.execute(query.encode(), [collection])
        for (line,) in cursor:
            yield line.encode() + b"\n"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ExportedSet:
    """A set of files that `export_collection` wrote.

    Args:
        directory: Where it is.

    Attributes:
        facts: The manifest.

    Raises:
        LoadError: There is none, it is of a newer version, or a file is not as it was written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        path = directory / MANIFEST
        try:
            facts = json.loads(path.read_text("utf-8"))
            if not isinstance(facts, dict) or "format" not in facts:
                raise ValueError("it has no format")
        except (OSError, ValueError) as error:
            raise LoadError(
                f"{path} is no manifest of an export: {error}", "Name the directory of an export."
            ) from error
        if facts["format"] != FORMAT_VERSION:
            raise LoadError(
                f"{path} is of format {facts['format']}, and known is {FORMAT_VERSION}.",
                "Import it with the version of sag-pg that wrote it, or a newer one.",
            )
        self.facts: dict[str, Any] = facts
        self._check_files()

    def _check_files(self) -> None:
        for name in FILES:
            path = self._directory / f"{name}.jsonl"
            try:
                written = self.facts["files"][path.name]["sha256"]
                is_sound = _digest(path) == written
            except (OSError, KeyError, TypeError) as error:
                raise LoadError(f"{path} cannot be read: {error}", "Export it anew.") from error
            if not is_sound:
                raise LoadError(
                    f"{path} is not as it was exported.",
                    "It was cut off or edited. Copy or export it again.",
                )

    def read(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a file."""
        with (self._directory / f"{name}.jsonl").open("rb") as file:
            for line in file:
                yield json.loads(line)

    def by_document(self, name: str) -> "_ByDocument":
        """Read a file along with the documents."""
        return _ByDocument(self.read(name))


class _ByDocument:
    """Lines in the order of the documents' sources, given document by document."""

    def __init__(self, lines: Iterator[dict[str, Any]]) -> None:
        self._lines = lines
        self._next = next(lines, None)

    def of(self, source: str) -> list[dict[str, Any]]:
        found = []
        while self._next is not None and self._next["source"] == source:
            found.append(self._next)
            self._next = next(self._lines, None)
        return found


def import_collection(
    connection: psycopg.Connection[Any],
    exported: ExportedSet,
    collection: str | None = None,
    *,
    embeddings: bool = True,
    progress: Callable[[int], None] = lambda documents: None,
) -> Transfer:
    """Bring an exported collection into a database.

    Documents that are there with the same content stay as they are, so that an import that ended
    early is continued by the same call; others of the collection are left alone.

    Args:
        connection: A connection in autocommit mode with the vector types registered.
        exported: The files.
        collection: Name of the collection, which may be there; None for the exported one's.
        embeddings: Whether to take the vectors.
        progress: Told the number of documents so far.

    Raises:
        DatabaseError: The database was lost and did not come back.
        psycopg.Error: The database refused it, such as for vectors of another model.
    """
    facts = exported.facts
    name = collection if collection is not None else facts["collection"]
    session = Session(connection)
    space = facts["embedding_space"] if embeddings else None
    if space is not None:
        session.call(
            "SELECT FROM sag.set_embedding_space(%s, %s)", [space["model"], space["dimensions"]]
        )
    session.call("SELECT FROM sag.import_collection(%s, %s)", [name, Jsonb(facts)])
    transfer = Transfer(name)
    try:
        # First, so that an ingest of the same documents that runs meanwhile pays for none.
        transfer.answers = _send(session, exported, "answers", name, embeddings)
        _import_documents(session, exported, transfer, space is not None, progress)
        transfer.entities = _send(session, exported, "entities", name, space is not None)
    finally:
        session.close()
    return transfer


def _import_documents(
    session: Session,
    exported: ExportedSet,
    transfer: Transfer,
    embeddings: bool,
    progress: Callable[[int], None],
) -> None:
    batch = Batch()
    chunks, events, links = map(exported.by_document, ("chunks", "events", "links"))
    try:
        for document in exported.read("documents"):
            source = document["source"]
            number = batch.open_document()
            chunk_lines = chunks.of(source)
            batch.add_rows(
                "chunk",
                (
                    _chunk_row(number, chunk, event, embeddings)
                    for chunk, event in zip(chunk_lines, events.of(source), strict=True)
                ),
            )
            batch.add_rows(
                "entity", (row for link in links.of(source) for row in _entity_rows(number, link))
            )
            batch.close_document(
                source,
                document["title"],
                document["metadata"],
                bytes.fromhex(document["content_hash"]),
                document["extractor"],
                len(chunk_lines),
            )
            transfer.documents += 1
            transfer.chunks += len(chunk_lines)
            if batch.chunk_count >= _BATCH_CHUNKS:
                _merge(session, batch, transfer)
                progress(transfer.documents)
        if len(batch):
            _merge(session, batch, transfer)
            progress(transfer.documents)
    finally:
        batch.close()


def _merge(session: Session, batch: Batch, transfer: Transfer) -> None:
    for merged in session.transact(lambda connection: batch.merge(connection, transfer.collection)):
        setattr(transfer, merged.state, getattr(transfer, merged.state) + 1)
    batch.clear()


def _chunk_row(
    number: int, chunk: dict[str, Any], event: dict[str, Any], embeddings: bool
) -> tuple[Any, ...]:
    key = chunk["answer_key"]
    return (
        number,
        chunk["ordinal"],
        chunk["heading_path"],
        chunk["content"],
        chunk["start_offset"],
        chunk["end_offset"],
        event["title"],
        event["content"],
        _vector(event["embedding"]) if embeddings else None,
        _vector(chunk["embedding"]) if embeddings else None,
        bytes.fromhex(key) if key is not None else None,
    )


def _entity_rows(number: int, link: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    name, type_ = link["entity"], link["type"]
    yield number, link["ordinal"], name, type_, link["is_subject"], link["role"], None, None
    for alias in link["aliases"]:
        yield number, link["ordinal"], alias, type_, False, None, name, None


def _vector(text: str | None) -> HalfVector | None:
    return HalfVector(json.loads(text)) if text is not None else None


def _send(
    session: Session, exported: ExportedSet, name: str, collection: str, embeddings: bool
) -> int:
    """Hand the lines of a file to its function of the database, some at a time."""
    sent = 0
    waiting: list[dict[str, Any]] = []

    def send() -> None:
        session.call(f"SELECT FROM sag.import_{name}(%s, %s)", [collection, Jsonb(waiting)])
        waiting.clear()

    for line in exported.read(name):
        if "embedding" in line and not embeddings:
            line["embedding"] = None
        waiting.append(line)
        sent += 1
        if len(waiting) >= _SENT_LINES:
            send()
    if waiting:
        send()
    return sent
