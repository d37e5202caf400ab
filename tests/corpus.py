"""Small corpora for the tests of the SQL functions, and the way into the database for them."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from pytest_postgresql.janitor import DatabaseJanitor

Connection = psycopg.Connection[Any]
Vector = Sequence[float]


@contextmanager
def fresh_database(server: Any, name: str) -> Iterator[Connection]:
    """A migrated database of its own, for a module whose tests only read it.

    Args:
        server: What the fixture `postgresql_noproc` gives.
        name: Name of the database.
    """
    with (
        DatabaseJanitor(
            host=server.host,
            port=server.port,
            user=server.user,
            dbname=name,
            template_dbname=server.template_dbname,
        ),
        psycopg.connect(
            host=server.host, port=server.port, user=server.user, dbname=name
        ) as connection,
    ):
        yield connection


@dataclass(frozen=True)
class Entity:
    """An entity as extraction gives it; with `alias_of`, a further name of another one."""

    name: str
    type: str = "tag"
    is_subject: bool = False
    role: str | None = None
    alias_of: str | None = None
    embedding: Vector | None = None


@dataclass(frozen=True)
class Chunk:
    """A chunk with its event; with `statement`, the event has a text of its own."""

    content: str
    entities: Sequence[Entity] = ()
    title: str = ""
    statement: str | None = None
    embedding: Vector | None = None
    chunk_embedding: Vector | None = None
    # Where the model's answer that it was made of is stored.
    answer_key: bytes | None = None


@dataclass(frozen=True)
class Document:
    source: str
    chunks: Sequence[Chunk]
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    extractor: str | None = None
    # Its task, where it is from the queue.
    task_id: int | None = None
    # Ordinal of each chunk for which a model failed, how, and what would be right.
    failures: Sequence[tuple[int, str, str | None]] = ()

    @property
    def content_hash(self) -> bytes:
        content = repr(replace(self, task_id=None, failures=[no for no, _, _ in self.failures]))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()


def passage(
    source: str,
    content: str,
    *names: str,
    about: str | None = None,
    embedding: Vector | None = None,
    **metadata: Any,
) -> Document:
    """A document of one chunk that carries `names`, and `about` as its subject and title."""
    entities = [Entity(name) for name in names]
    if about is not None:
        entities.append(Entity(about, "subject", is_subject=True))
    chunk = Chunk(content, entities, title=about or "", embedding=embedding)
    return Document(source, [chunk], title=about or "", metadata=metadata)


def literal(vector: Vector | None) -> str | None:
    """A vector as pgvector reads it."""
    return None if vector is None else "[" + ",".join(f"{x:.6g}" for x in vector) + "]"


def fill_batch(connection: Connection, documents: Iterable[Document]) -> None:
    """sag.begin_batch() and the four COPYs. Needs an open transaction."""
    documents = list(documents)
    cursor = connection.cursor()
    cursor.execute("SELECT sag.begin_batch()")
    with cursor.copy(
        "COPY pg_temp.sag_batch_document (document_no, source, title, metadata, content_hash,"
        " extractor, task_id) FROM STDIN"
    ) as copy:
        for no, document in enumerate(documents):
            copy.write_row(
                (
                    no,
                    document.source,
                    document.title,
                    Jsonb(document.metadata),
                    document.content_hash,
                    document.extractor,
                    document.task_id,
                )
            )
    with cursor.copy(
        "COPY pg_temp.sag_batch_chunk (document_no, ordinal, heading_path, content, start_offset,"
        " end_offset, chunk_embedding, event_title, event_content, event_embedding,"
        " answer_key) FROM STDIN"
    ) as copy:
        for no, document in enumerate(documents):
            offset = 0
            for ordinal, chunk in enumerate(document.chunks):
                copy.write_row(
                    (
                        no,
                        ordinal,
                        [],
                        chunk.content,
                        offset,
                        offset + len(chunk.content),
                        literal(chunk.chunk_embedding),
                        chunk.title,
                        chunk.statement,
                        literal(chunk.embedding),
                        chunk.answer_key,
                    )
                )
                offset += len(chunk.content)
    with cursor.copy("COPY pg_temp.sag_batch_entity FROM STDIN") as copy:
        for no, document in enumerate(documents):
            for ordinal, chunk in enumerate(document.chunks):
                for entity in chunk.entities:
                    copy.write_row(
                        (
                            no,
                            ordinal,
                            entity.name,
                            entity.type,
                            entity.is_subject,
                            entity.role,
                            entity.alias_of,
                            literal(entity.embedding),
                        )
                    )
    with cursor.copy("COPY pg_temp.sag_batch_failure FROM STDIN") as copy:
        for no, document in enumerate(documents):
            for failure in document.failures:
                copy.write_row((no, *failure))


def merge(
    connection: Connection,
    documents: Iterable[Document],
    collection: str = "default",
    worker: int | None = None,
) -> dict[str, str]:
    """Merges documents in one transaction.

    Returns:
        What became of each source: added, replaced, unchanged or superseded.
    """
    with connection.transaction():
        fill_batch(connection, documents)
        rows = connection.execute(
            "SELECT source, state FROM sag.merge_batch(%s, %s)", (collection, worker)
        ).fetchall()
    return dict(rows)


def delete(connection: Connection, sources: Sequence[str], collection: str = "default") -> set[str]:
    """Deletes documents; returns the sources that were there."""
    rows = connection.execute(
        "SELECT source FROM sag.delete_documents(%s, %s)", (collection, list(sources))
    )
    return {row[0] for row in rows}


def column(connection: Connection, query: str, *values: Any) -> list[Any]:
    """The first column of a query's rows."""
    return [row[0] for row in connection.execute(query.encode(), values)]


def value(connection: Connection, query: str, *values: Any) -> Any:
    """The one value of a query."""
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return row[0]


def call(connection: Connection, function: str, **arguments: Any) -> list[dict[str, Any]]:
    """The rows of a function of schema sag, called with named arguments."""
    notation = sql.SQL(", ").join(
        sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name))
        for name in arguments
    )
    query = sql.SQL("SELECT * FROM sag.{}({})").format(sql.Identifier(function), notation)
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, arguments).fetchall()


def collection_id(connection: Connection, collection: str = "default") -> int:
    return int(value(connection, "SELECT sag.collection_key(%s)", collection))


def event_ids(connection: Connection, collection: str = "default") -> dict[str, int]:
    """Event by source, for documents of one chunk."""
    rows = connection.execute(
        "SELECT d.source, e.event_id FROM sag.event AS e"
        " INNER JOIN sag.document AS d USING (collection_id, document_id)"
        " WHERE collection_id = sag.collection_key(%s)",
        (collection,),
    )
    return dict(rows.fetchall())


def entity_ids(connection: Connection, collection: str = "default") -> dict[str, int]:
    """Entity by normalised name."""
    rows = connection.execute(
        "SELECT normalized_name, entity_id FROM sag.entity"
        " WHERE collection_id = sag.collection_key(%s)",
        (collection,),
    )
    return dict(rows.fetchall())


def assert_counts_exact(connection: Connection) -> None:
    """Every kept count equals a recount, and nothing is orphaned."""
    assert (
        column(
            connection,
            """
            SELECT n.normalized_name FROM sag.entity AS n
            WHERE n.event_count <> (
                SELECT count(*) FROM sag.event_entity AS l
                WHERE l.collection_id = n.collection_id AND l.entity_id = n.entity_id
            )
            """,
        )
        == []
    ), "event_count differs from the links"
    assert (
        column(
            connection,
            """
            SELECT n.normalized_name FROM sag.entity AS n
            WHERE n.event_count = 0 AND NOT EXISTS (
                SELECT FROM sag.entity_alias AS a
                WHERE a.collection_id = n.collection_id AND a.entity_id = n.entity_id
                    AND a.origin = 'person'
            )
            """,
        )
        == []
    ), "orphaned entities"
    kept = connection.execute(
        """
        SELECT collection_id, event_total, lexeme_total, embedding_total, statement_total
        FROM sag.collection_statistic ORDER BY 1
        """
    ).fetchall()
    counted = connection.execute(
        """
        SELECT
            c.collection_id, count(e.event_id), coalesce(sum(length(e.lexemes)), 0)::bigint,
            count(e.embedding), count(e.content)
        FROM sag.collection AS c LEFT JOIN sag.event AS e ON e.collection_id = c.collection_id
        GROUP BY c.collection_id ORDER BY 1
        """
    ).fetchall()
    assert kept == counted, "collection_statistic differs from the events"
    assert value(connection, "SELECT count(*) FROM sag.chunk") == value(
        connection, "SELECT count(*) FROM sag.event"
    ), "chunks and events are not one to one"
