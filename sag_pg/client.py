"""The Python client: one method per public SQL function.

Everything that decides about the result happens in the database; the client embeds the question,
unless the database is to have that done by its gateway, and turns rows into objects.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import psycopg
from pgvector import HalfVector
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from sag_pg import config, migrate
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.job import ingest
from sag_pg.ingest.report import Report
from sag_pg.ingest.status import JobFailure, JobStatus, JobUsage
from sag_pg.models.base import EmbeddingModel, Extractor
from sag_pg.models.budget import Usage
from sag_pg.text import clean, clean_json

# In place of an embedding model's name: the database's gateway embeds.
GATEWAY: Final = "gateway"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A chunk that `sag_retrieve` returns.

    Attributes:
        rank: Place in the result, from 1.
        chunk_id: Key of the chunk in its collection.
        source: The document's source.
        title: The document's title.
        content: The chunk's text, which is `document[start_offset:end_offset]`.
        heading_path: Headings above the chunk, outermost first.
        start_offset: First character in the document, from 0.
        end_offset: Character after the last one.
        score: Score of the event in the ranking; None for a direct chunk that was not ranked.
        found_by: "event", "direct" or "both".
        event: The statement of the event, its title where the chunk's own text is the statement.
        hop: Hops from the question's seeds, 0 for a seed; None for a chunk found directly.
        via: Entities that led there, in order.
        metadata: The document's metadata.
        mode: "vector", "vector and lexical" where some events have no embedding, or "lexical",
            with the reason in brackets where it was a fallback.
    """

    rank: int
    chunk_id: int
    source: str
    title: str
    content: str
    heading_path: list[str]
    start_offset: int
    end_offset: int
    score: float | None
    found_by: str
    event: str
    hop: int | None
    via: list[str]
    metadata: dict[str, Any]
    mode: str


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A row of `sag_trace`; rank 0 of a stage says how many rows it had and what time it took.

    Attributes:
        stage: Name of the pipeline's stage.
        rank: Place within the stage, from 1; 0 for the stage itself.
        method: How the row was found or linked.
        name: The entity's name, the event's title, or what the stage did.
        entity: Entities that led there; for candidates, the entity of the best bridge.
        hop: Hops from the seeds.
        score: Similarity or score, by stage.
        entity_id: Key of the entity.
        event_id: Key of the event.
        chunk_id: Key of the chunk.
        source: The document's source.
        elapsed_ms: Milliseconds of the stage, on its row of rank 0.
        mode: As in `Evidence`.
    """

    stage: str
    rank: int
    method: str | None
    name: str | None
    entity: str | None
    hop: int | None
    score: float | None
    entity_id: int | None
    event_id: int | None
    chunk_id: int | None
    source: str | None
    elapsed_ms: float | None
    mode: str


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A chunk that `sag_search` returns; the attributes are those of `Evidence`."""

    rank: int
    chunk_id: int
    source: str
    title: str
    content: str
    score: float


@dataclass(frozen=True, slots=True)
class CollectionStatistics:
    """What a collection holds: numbers of documents, events, embeddings and entities."""

    collection: str
    documents: int
    events: int
    embeddings: int
    entities: int


Row = TypeVar(
    "Row",
    Evidence,
    TraceRow,
    SearchHit,
    CollectionStatistics,
    JobStatus,
    JobFailure,
    JobUsage,
)


class Client:
    """Retrieval over a connection to a migrated database.

    Args:
        connection: An open connection with the vector types registered, as `connect` and
            `sag_pg.migrate.connect_migrated` give it. The client never commits, so it works within
            the caller's transaction.
        collection: Collection for all calls that name none.
        embedding_model: Embeds questions. Without one, and for questions in a script that it does
            not know, retrieval is lexical: the option `understand` is `sql` unless the call sets
            it.
        gateway: Leave it to the database to have questions embedded, by its model gateway.

    Raises:
        ValueError: Both a model and the gateway are to embed questions.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        *,
        collection: str = "default",
        embedding_model: EmbeddingModel | None = None,
        gateway: bool = False,
    ) -> None:
        if gateway and embedding_model is not None:
            raise ValueError("either the gateway embeds questions or a model of the client's own")
        self.connection = connection
        self.collection = collection
        self._gateway = gateway
        self._embedding_model = embedding_model

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def retrieve(
        self,
        question: str,
        *,
        collection: str | None = None,
        entities: Sequence[str] | None = None,
        filter: str | None = None,
        where: str | None = None,
        options: Mapping[str, Any] | None = None,
        embedding: HalfVector | Sequence[float] | None = None,
    ) -> list[Evidence]:
        """Return the evidence for a question, best first (`sag_retrieve`).

        Args:
            question: The question in words.
            collection: Collection to search.
            entities: Entities of the question, in addition to those that SQL reads from it.
            filter: A jsonpath predicate on document metadata, such as `$.year >= 2020`.
            where: A condition on document metadata in SQL's words, such as
                `year >= 2020 AND lang IN ('en', 'zh')`; see `sag_pg.filters.translate_where`.
                With `filter`, both must hold.
            options: Retrieval parameters by name; the table sag.parameter has them all.
            embedding: The question's vector; by default the client's model or the gateway embeds
                it, where the model knows the question's script.

        Raises:
            ConfigurationError: The `where` is not allowed.
            psycopg.Error: The database refused the call; its message says what would be right.
        """
        return self._rows(
            Evidence,
            "SELECT {columns} FROM public.sag_retrieve(%s::text, %s::text, embedding => %s,"
            " entities => %s, filter => %s::jsonpath, options => %s)",
            self._arguments(
                question, collection, entities, _joined(filter, where), options, embedding
            ),
        )

    def trace(
        self,
        question: str,
        *,
        collection: str | None = None,
        entities: Sequence[str] | None = None,
        filter: str | None = None,
        where: str | None = None,
        options: Mapping[str, Any] | None = None,
        embedding: HalfVector | Sequence[float] | None = None,
    ) -> list[TraceRow]:
        """Return every stage's rows for a question (`sag_trace`); arguments as in `retrieve`."""
        return self._rows(
            TraceRow,
            "SELECT {columns} FROM public.sag_trace(%s::text, %s::text, embedding => %s,"
            " entities => %s, filter => %s::jsonpath, options => %s)",
            self._arguments(
                question, collection, entities, _joined(filter, where), options, embedding
            ),
        )

    def search(
        self,
        question: str,
        *,
        method: str | None = None,
        collection: str | None = None,
        filter: str | None = None,
        where: str | None = None,
        limit: int = 10,
        embedding: HalfVector | Sequence[float] | None = None,
    ) -> list[SearchHit]:
        """Search plainly, to compare with (`sag_search`).

        Args:
            question: The question in words.
            method: "vector", "lexical" or "hybrid"; by default "hybrid", or "lexical" where there
                is no embedding. The gateway is not asked here: see `sag_embed`.
            collection: Collection to search.
            filter: A jsonpath predicate on document metadata.
            where: A condition on document metadata in SQL's words, as in `retrieve`.
            limit: Number of chunks.
            embedding: The question's vector; by default the client's model embeds it.
        """
        filter = _joined(filter, where)
        vector = _vector(embedding) if embedding is not None else None
        if vector is None and method != "lexical":
            vector = self.embed(question)
        return self._rows(
            SearchHit,
            "SELECT {columns} FROM public.sag_search(%s::text, %s::text, %s, %s, %s::jsonpath, %s)",
            [
                clean(question),
                self._name(collection),
                method,
                vector,
                clean(filter) if filter is not None else None,
                limit,
            ],
        )

    def embed(self, question: str) -> HalfVector | None:
        """Embed a question.

        Returns:
            None without a model of the client's own, where the model does not know the question's
            script, and where the database holds no vectors.

        Raises:
            psycopg.Error: The database holds vectors of another model.
        """
        model = self._embedding_model
        if model is None or not question.strip() or not model.knows(question):
            return None
        # Each time, for the database may change its model while this client lives.
        row = self.connection.execute(
            "SELECT fits FROM sag.check_embedding_space(%s, %s) AS fits",
            [model.name, model.dimensions],
        ).fetchone()
        return HalfVector(model.embed_question(question)) if row and row[0] else None

    def sag_embed(
        self, content: str, input_type: Literal["question", "passage"] = "question"
    ) -> HalfVector:
        """Embed a text by the model behind the database's gateway (`sag_embed`).

        Args:
            content: The text.
            input_type: "question" for what is looked for, "passage" for what is to be found.

        Raises:
            psycopg.Error: There is no gateway, or it gave no vector; the message says why.
        """
        row = self.connection.execute(
            "SELECT embedding FROM public.sag_embed(%s, %s) AS embedding",
            [clean(content), input_type],
        ).fetchone()
        assert row is not None  # noqa: S101
        vector: HalfVector = row[0]
        return vector

    def gateway_status(self) -> dict[str, Any]:
        """Return whether there is a gateway, and how it is (`sag.gateway_status`).

        Returns:
            `installed` and `answering`; where it answers, `status` with its models, calls and
            what they used.
        """
        row = self.connection.execute("SELECT facts FROM sag.gateway_status() AS facts").fetchone()
        assert row is not None  # noqa: S101
        facts: dict[str, Any] = row[0]
        return facts

    def create_collection(
        self, name: str, text_search_configuration: str = "pg_catalog.english"
    ) -> None:
        """Make a collection; an existing one stays as it is (`sag.create_collection`)."""
        self.connection.execute(
            "SELECT FROM sag.create_collection(%s, %s)",
            [clean(name), clean(text_search_configuration)],
        )

    def drop_collection(self, name: str) -> None:
        """Delete a collection with all that it holds (`sag.drop_collection`)."""
        self.connection.execute("SELECT FROM sag.drop_collection(%s)", [clean(name)])

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Make sure that retrieval parameters exist and fit (`sag.check_parameters`).

        Raises:
            psycopg.Error: The first that does not; its message says what would be right.
        """
        self.connection.execute(
            "SELECT FROM sag.check_parameters(%s)", [Jsonb(clean_json(dict(options)))]
        )

    def entity_types(self) -> dict[str, str]:
        """Return the types of entities by name, with what belongs to each (`sag.entity_types`)."""
        rows = self.connection.execute("SELECT name, description FROM sag.entity_types()")
        return dict(rows.fetchall())

    def collections(self) -> list[CollectionStatistics]:
        """Return what each collection holds (`sag.collection_statistics`)."""
        return self._rows(
            CollectionStatistics, "SELECT {columns} FROM sag.collection_statistics()", []
        )

    def ingest(
        self,
        documents: Iterable[SourceDocument | LoadFailure],
        *,
        extractor: Extractor,
        collection: str | None = None,
        max_characters: int | None = 1200,
        usage: Usage | None = None,
    ) -> Report:
        """Bring documents into a collection, which is made where there is none of that name.

        Args:
            documents: Documents, as `sag_pg.ingest.loaders.load_paths` finds them in files or
                `sag_pg.ingest.document.text_document` makes them of texts.
            extractor: Finds events and entities, as
                `sag_pg.models.load.load_extractor` makes one.
            collection: Collection to ingest into.
            max_characters: Longest chunk; None makes each document one chunk.
            usage: What the extractor and the client's model count with, for the report.

        Returns:
            What was done. The client's embedding model embeds the events.
        """
        self.create_collection(self._name(collection))
        return ingest(
            self.connection,
            documents,
            collection=self._name(collection),
            extractor=extractor,
            embedding_model=self._embedding_model,
            max_characters=max_characters,
            usage=usage,
        )

    def queue(
        self,
        source: str,
        content: str,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        collection: str | None = None,
        markdown: bool = False,
    ) -> int:
        """Queue a document for the workers, as `sag-pg work` runs them (`sag_ingest`).

        Args:
            source: The document's key, unique in its collection.
            content: The text.
            title: Title, None where there is none.
            metadata: What filters can ask for.
            collection: An existing collection.
            markdown: Whether headings in the text count.

        Returns:
            Key of the task.
        """
        row = self.connection.execute(
            "SELECT task FROM public.sag_ingest(%s, %s, %s, %s, %s, %s) AS task",
            [
                clean(source),
                clean(content),
                clean(title) if title is not None else None,
                Jsonb(clean_json(dict(metadata or {}))),
                self._name(collection),
                markdown,
            ],
        ).fetchone()
        assert row is not None  # noqa: S101
        return int(row[0])

    def jobs(self, collection: str | None = None) -> list[JobStatus]:
        """Return how far the jobs of all collections, or of one, are, newest first."""
        return self._rows(
            JobStatus,
            "SELECT {columns} FROM sag.job_status AS j WHERE %s::text IS NULL OR j.collection = %s"
            " ORDER BY j.job_id DESC",
            [collection, collection],
        )

    def job(self, job_id: int) -> JobStatus | None:
        """Return how far a job is; None where there is none of that key."""
        rows = self._rows(
            JobStatus, "SELECT {columns} FROM sag.job_status AS j WHERE j.job_id = %s", [job_id]
        )
        return rows[0] if rows else None

    def job_failures(self, job_id: int, limit: int = 1000) -> list[JobFailure]:
        """Return documents and chunks of a job that failed, in order (`sag.job_failures`)."""
        return self._rows(
            JobFailure, "SELECT {columns} FROM sag.job_failures(%s, %s)", [job_id, limit]
        )

    def job_usage(self, job_id: int) -> list[JobUsage]:
        """Return what a job asked of each model, by the model's name."""
        return self._rows(
            JobUsage,
            "SELECT {columns} FROM sag.ingest_usage AS u WHERE u.job_id = %s ORDER BY u.model",
            [job_id],
        )

    def retry_job(self, job_id: int) -> int:
        """Queue what failed or stopped of a job again (`sag.retry_job`).

        Returns:
            The number of documents that wait for a worker now.
        """
        return self._number("SELECT count FROM sag.retry_job(%s) AS count", job_id)

    def cancel_job(self, job_id: int) -> int:
        """Give up what is left of a job (`sag.cancel_job`).

        Returns:
            The number of documents that will not be ingested.
        """
        return self._number("SELECT count FROM sag.cancel_job(%s) AS count", job_id)

    def delete(self, sources: Sequence[str], *, collection: str | None = None) -> list[str]:
        """Delete documents with all that hangs on them (`sag.delete_documents`).

        Returns:
            The sources that were there.
        """
        return [
            row[0]
            for row in self.connection.execute(
                "SELECT source FROM sag.delete_documents(%s, %s)",
                [self._name(collection), [clean(source) for source in sources]],
            )
        ]

    def _arguments(
        self,
        question: str,
        collection: str | None,
        entities: Sequence[str] | None,
        filter: str | None,
        options: Mapping[str, Any] | None,
        embedding: HalfVector | Sequence[float] | None,
    ) -> list[Any]:
        vector = _vector(embedding) if embedding is not None else self.embed(question)
        parameters = dict(options or {})
        if vector is None and not self._gateway:
            parameters.setdefault("understand", "sql")
        return [
            clean(question),
            self._name(collection),
            vector,
            [clean(entity) for entity in entities] if entities is not None else None,
            clean(filter) if filter is not None else None,
            Jsonb(clean_json(parameters)),
        ]

    def _number(self, query: str, *arguments: Any) -> int:
        row = self.connection.execute(query.encode(), arguments).fetchone()
        assert row is not None  # noqa: S101
        return int(row[0])

    def _name(self, collection: str | None) -> str:
        return clean(self.collection if collection is None else collection)

    def _rows(self, row: type[Row], query: str, arguments: Sequence[Any]) -> list[Row]:
        columns = ", ".join(field.name for field in fields(row))
        with self.connection.cursor(row_factory=class_row(row)) as cursor:
            cursor.execute(query.format(columns=columns), arguments)
            return cursor.fetchall()


def _vector(embedding: HalfVector | Sequence[float]) -> HalfVector:
    return embedding if isinstance(embedding, HalfVector) else HalfVector(list(embedding))


def _joined(filter: str | None, where: str | None) -> str | None:
    if where is None:
        return filter
    # sqlglot takes a tenth of a second to load.
    from sag_pg.filters import join_filters

    return join_filters(filter, where)


def connect(
    database_url: str | None = None,
    *,
    data_dir: Path | None = None,
    collection: str = "default",
    embedding: str | None = "local",
) -> Client:
    """Open a client.

    Args:
        database_url: The database; without it SAG_PG_DATABASE_URL, DATABASE_URL, libpq's own
            variables and the embedded server are tried in this order.
        data_dir: Directory of the embedded server, which is used then.
        collection: Collection for all calls that name none.
        embedding: Embedding model as in `sag_pg.models.load.load_embedding_model`, "gateway" to
            leave it to the database's gateway, or None for none.

    Raises:
        SagError: The database cannot be reached or is not migrated, or the model is not installed.
    """
    from sag_pg.models.load import load_embedding_model

    gateway = embedding == GATEWAY
    model = load_embedding_model(embedding) if embedding is not None and not gateway else None
    connection = migrate.connect_migrated(config.resolve(database_url, data_dir))
    return Client(connection, collection=collection, embedding_model=model, gateway=gateway)
