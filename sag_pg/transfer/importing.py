"""The import: a set of files becomes a collection, without any model."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import psycopg
from pgvector import HalfVector
from psycopg.types.json import Jsonb, set_json_dumps

from sag_pg.database import explain_error
from sag_pg.errors import LoadError
from sag_pg.ingest.batch import Batch, hold_embedding_space
from sag_pg.ingest.session import Session
from sag_pg.text import clean
from sag_pg.transfer.lines import Lines, exact_json
from sag_pg.transfer.manifest import Manifest, path_of
from sag_pg.transfer.records import SHAPES

Connection = psycopg.Connection[Any]
Record = dict[str, Any]

_BATCH_CHUNKS: Final = 1000
_BATCH_DOCUMENTS: Final = 1000
_WINDOW_DOCUMENTS: Final = 256
_SPOOLED_ROWS: Final = 256
_SENT_LINES: Final = 500
_SENT_CHARACTERS: Final = 2**20
# What the database, or the way there, has against a line.
_REFUSALS: Final = (psycopg.DataError, psycopg.IntegrityError, UnicodeError, RecursionError)


@dataclass(slots=True)
class Imported:
    """What was read, and what became of the documents.

    Attributes:
        collection: Name of the collection that they are in now.
        documents: Documents of the set.
        chunks: Chunks of those that were added or replaced.
        entities: Entities of the set.
        answers: Answers of language models in the set.
        added: Documents that were not there.
        replaced: Documents that were there with other content.
        unchanged: Documents that were there already.
    """

    collection: str
    documents: int = 0
    chunks: int = 0
    entities: int = 0
    answers: int = 0
    added: int = 0
    replaced: int = 0
    unchanged: int = 0


def import_collection(
    connection: Connection,
    directory: Path,
    collection: str | None = None,
    *,
    embeddings: bool = True,
    progress: Callable[[int, int], None] = lambda documents, total: None,
) -> Imported:
    """Bring an exported collection into a database.

    Documents that are there with the same content stay as they are, so that an import that ended
    early is continued by the same call; others of the collection are left alone. The files are
    checked before anything is written.

    Args:
        connection: A connection in autocommit mode with the vector types registered. Membership in
            sag_writer suffices, but where the embedding space or types of entities are missing.
        directory: The files.
        collection: Name of the collection, which may be there; None for that of the exported one.
        embeddings: Whether to take the vectors. Documents that came without are not given them by
            a second import, but by `sag_pg.reembed.reembed`.
        progress: Told the number of documents so far, and of all.

    Raises:
        LoadError: The files are not what was exported; the message names file and line.
        DatabaseError: The database was lost and did not come back.
        psycopg.Error: The database refused the import, such as for vectors of another model.
    """
    manifest = Manifest.read(directory)
    manifest.verify(directory)
    session = Session(connection)
    try:
        run = _Import(session, directory, manifest, collection, embeddings, progress)
        return run.run()
    finally:
        session.close()


class _Import:
    def __init__(
        self,
        session: Session,
        directory: Path,
        manifest: Manifest,
        collection: str | None,
        embeddings: bool,
        progress: Callable[[int, int], None],
    ) -> None:
        self._session = session
        self._directory = directory
        self._manifest = manifest
        self._collection = clean(manifest.collection if collection is None else collection)
        self._space = manifest.embedding_space if embeddings else None
        self._embeddings = embeddings
        self._progress = progress
        self._imported = Imported(self._collection)

    def run(self) -> Imported:
        self._session.call(
            "SELECT FROM sag.import_collection(%s, %s, %s)",
            [self._collection, Jsonb(self._manifest.facts), self._embeddings],
        )
        # First, so that an ingest of the same documents that runs meanwhile pays for none.
        self._imported.answers = self._send("answers")
        self._import_documents()
        self._imported.entities = self._send("entities", self._space is not None)
        return self._imported

    def _open(self, kind: str) -> Lines:
        return Lines(path_of(self._directory, kind), SHAPES[kind], exact=kind == "documents")

    def _import_documents(self) -> None:
        with contextlib.ExitStack() as stack:
            documents, chunks, events, links = (
                stack.enter_context(self._open(kind))
                for kind in ("documents", "chunks", "events", "links")
            )
            batch = stack.enter_context(contextlib.closing(Batch()))
            first = 1
            for document, is_known in self._documents(documents):
                source = document["source"]
                if is_known:
                    for lines in (chunks, events, links):
                        for _ in _of_document(lines, source):
                            pass
                    self._imported.unchanged += 1
                else:
                    self._add(batch, document, chunks, events, links)
                self._imported.documents += 1
                if batch.chunk_count >= _BATCH_CHUNKS or len(batch) >= _BATCH_DOCUMENTS:
                    self._merge(batch, documents.path, first)
                    first = self._imported.documents + 1
            if len(batch):
                self._merge(batch, documents.path, first)
            self._progress(self._imported.documents, self._manifest.files["documents"].lines)
            for lines in (chunks, events, links):
                if lines.head is not None:
                    lines.refuse_head(f"no document has the source {lines.head['source']!r}")

    def _documents(self, lines: Lines) -> Iterator[tuple[Record, bool]]:
        """Yield the documents in order, and whether each is there already."""
        last = ""
        while lines.head is not None:
            window: list[Record] = []
            while lines.head is not None and len(window) < _WINDOW_DOCUMENTS:
                if lines.head["source"] <= last:
                    lines.refuse_head(f"the source {lines.head['source']!r} is out of order")
                window.append(lines.take())
                last = window[-1]["source"]
            rows = self._session.call(
                "SELECT source FROM sag.unchanged_sources(%s, %s, %s)",
                [
                    self._collection,
                    [document["source"] for document in window],
                    [document["content_hash"] for document in window],
                ],
            )
            known = {source for (source,) in rows}
            for document in window:
                yield document, document["source"] in known

    def _add(
        self, batch: Batch, document: Record, chunks: Lines, events: Lines, links: Lines
    ) -> None:
        source = document["source"]
        number = batch.open_document()
        ordinals: set[int] = set()
        for kind, rows in (
            ("chunk", self._chunk_rows(number, source, chunks, events, ordinals)),
            ("entity", _entity_rows(number, source, links, ordinals)),
        ):
            while some := list(islice(rows, _SPOOLED_ROWS)):
                batch.add_rows(kind, some)
        batch.close_document(
            source,
            document["title"],
            Jsonb(document["metadata"]),
            document["content_hash"],
            document["extractor"],
            len(ordinals),
        )

    def _chunk_rows(
        self, number: int, source: str, chunks: Lines, events: Lines, ordinals: set[int]
    ) -> Iterator[tuple[Any, ...]]:
        last = -1
        for chunk in _of_document(chunks, source):
            ordinal = chunk["ordinal"]
            if ordinal <= last:
                raise chunks.error(f"chunk {ordinal} of {source!r} is out of order")
            last = ordinal
            ordinals.add(ordinal)
            head = events.head
            if head is None or (head["source"], head["ordinal"]) != (source, ordinal):
                events.refuse_head(f"the event of chunk {ordinal} of {source!r} belongs here")
            event = events.take()
            yield (
                number,
                ordinal,
                chunk["heading_path"],
                chunk["content"],
                chunk["start_offset"],
                chunk["end_offset"],
                event["title"],
                event["content"],
                self._vector(events, event["embedding"]),
                self._vector(chunks, chunk["embedding"]),
                chunk["answer_key"],
            )

    def _vector(self, lines: Lines, vector: HalfVector | None) -> HalfVector | None:
        if vector is None or not self._embeddings:
            return None
        if self._space is None:
            raise lines.error("there is a vector, and the manifest names no model")
        if vector.dimensions() != self._space[1]:
            raise lines.error(
                f"the vector has {vector.dimensions()} dimensions, and those of the manifest's"
                f" model have {self._space[1]}"
            )
        return vector

    def _merge(self, batch: Batch, path: Path, first: int) -> None:
        def merge(connection: Connection) -> None:
            self._hold(connection)
            set_json_dumps(exact_json, connection)
            for merged in batch.merge(connection, self._collection):
                states.append((merged.state, merged.chunk_count))

        states: list[tuple[str, int]] = []
        with _naming(path, first, self._imported.documents):
            self._session.transact(merge)
        for state, chunk_count in states:
            setattr(self._imported, state, getattr(self._imported, state) + 1)
            self._imported.chunks += chunk_count if state != "unchanged" else 0
        batch.clear()
        self._progress(self._imported.documents, self._manifest.files["documents"].lines)

    def _hold(self, connection: Connection) -> None:
        """Keep the database from changing its model until the transaction ends."""
        if self._space is not None:
            hold_embedding_space(connection, self._collection, *self._space)

    def _send(self, kind: str, *options: bool) -> int:
        """Hand the lines of a file to its function of the database, some at a time."""
        places = ", ".join(["%s"] * (2 + len(options)))
        query = f"SELECT FROM sag.import_{kind}({places})".encode()

        def send(texts: list[str], connection: Connection) -> None:
            if any(options):
                self._hold(connection)
            # As they stand in the file, so that no number changes on the way.
            array = "[" + ",".join(texts) + "]"
            connection.execute(query, [self._collection, array, *options])

        with self._open(kind) as lines:
            while lines.head is not None:
                first = lines.number + 1
                texts: list[str] = []
                characters = 0
                while (
                    lines.head is not None
                    and len(texts) < _SENT_LINES
                    and characters < _SENT_CHARACTERS
                ):
                    record = lines.take()
                    self._vector(lines, record.get("embedding"))
                    texts.append(lines.text)
                    characters += len(lines.text)
                with _naming(lines.path, first, lines.number):
                    self._session.transact(partial(send, texts))
            return lines.number


def _of_document(lines: Lines, source: str) -> Iterator[Record]:
    """Take the lines of a document, which are the next ones."""
    while lines.head is not None and lines.head["source"] <= source:
        if lines.head["source"] != source:
            lines.refuse_head(
                f"the source {lines.head['source']!r} is out of order, or no document has it"
            )
        yield lines.take()


def _entity_rows(
    number: int, source: str, links: Lines, ordinals: set[int]
) -> Iterator[tuple[Any, ...]]:
    for link in _of_document(links, source):
        ordinal, entity, kind = link["ordinal"], link["entity"], link["type"]
        if ordinal not in ordinals:
            raise links.error(f"{source!r} has no chunk {ordinal}")
        yield number, ordinal, entity, kind, link["is_subject"], link["role"], None, None
        for alias in link["aliases"]:
            yield number, ordinal, alias, kind, False, None, entity, None


@contextlib.contextmanager
def _naming(path: Path, first: int, last: int) -> Iterator[None]:
    """Say which lines the database refused."""
    try:
        yield
    except _REFUSALS as error:
        text, hint = (
            explain_error(error) if isinstance(error, psycopg.Error) else (str(error), None)
        )
        raise LoadError(
            f"{path}, one of the lines {first} to {last}: {text}",
            hint or "What was imported before stays. Mend or leave out the line in the export.",
        ) from error
