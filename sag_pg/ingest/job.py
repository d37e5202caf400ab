"""The ingest of given documents: they are queued as a job, and the job is worked off."""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import psycopg
from psycopg.types.json import Jsonb

from sag_pg.database import explain_error
from sag_pg.errors import BudgetExhaustedError, EndpointDownError, SagError
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.processing import Processing
from sag_pg.ingest.queue import Queue, Queued
from sag_pg.ingest.report import Report, read_report, read_status
from sag_pg.ingest.session import Session
from sag_pg.ingest.status import JobStatus
from sag_pg.ingest.worker import Worked, Worker
from sag_pg.models.base import EmbeddingModel, Extractor
from sag_pg.models.budget import Usage

# States of a job in which there is, or will be, something to take.
LIVE_STATES: Final = ("loading", "queued", "running")
_POLL_SECONDS: Final = 1.0
# At most one part in so many of the time goes into asking.
_POLL_SHARE: Final = 50


@dataclass(slots=True)
class Progress:
    """How far a run is; one object that changes while it runs.

    Attributes:
        is_queueing: Whether documents are still being read and queued.
        documents: Documents dealt with in this phase, whatever became of them.
        total: Documents in this phase; None while they are being found.
        chunks: Chunks extracted and embedded.
        failed: Documents that failed.
        failed_chunks: Chunks of other documents for which a model failed.
        tokens: Tokens used so far, of questions to models and of their answers.
        bytes: Size of the documents read and queued, as far as it is known.
    """

    is_queueing: bool = True
    documents: int = 0
    total: int | None = None
    chunks: int = 0
    failed: int = 0
    failed_chunks: int = 0
    tokens: int = 0
    bytes: int = 0


def ingest(
    connection: psycopg.Connection[Any],
    documents: Iterable[SourceDocument | LoadFailure],
    *,
    collection: str,
    extractor: Extractor,
    embedding_model: EmbeddingModel | None,
    max_characters: int | None = 1200,
    embed_entities: bool = False,
    max_attempts: int = 1,
    usage: Usage | None = None,
    helpers: Callable[[int], AbstractContextManager[object]] = nullcontext,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Report:
    """Bring documents into a collection.

    A document that is there with the same content, processed in the same way, costs nothing but
    a hash; one with other content is replaced in one transaction. A document that fails is
    recorded and the others go on; a chunk for which a model fails keeps its text. Where a budget
    is used up or a model is down, what is ready is merged and the report says that the run
    stopped. A server that goes away is waited for.

    Args:
        connection: A connection in autocommit mode with the vector types registered. A second one
            is opened to the same database.
        documents: What `load_paths` yields.
        collection: Name of an existing collection.
        extractor: Finds events and entities. The answers of a `CostlyExtractor` are stored as they
            arrive.
        embedding_model: Embeds events; None leaves them to lexical retrieval.
        max_characters: Longest chunk; None makes each document one chunk.
        embed_entities: Whether to embed the entities' names too, so that names link to their
            neighbours by vector. It takes about as long again as embedding the events.
        max_attempts: How often a document is tried for which a model fails, with pauses of ten
            seconds and more, before it counts as incomplete.
        usage: What the models count their requests and tokens with; None where they count none.
        helpers: Given the job's key, makes what starts further workers on it and awaits their end.
        progress: Called whenever something got done, and while others' work is awaited.

    Returns:
        What was done.

    Raises:
        DatabaseError: The connection was lost and did not come back. What was merged stays, and
            the same call goes on from there.
        EndpointRefusedError: An endpoint does not take the key, does not know the model or wants
            money. What was ready is merged.
        ModelError: A model cannot be used at all. What was ready is merged.
        psycopg.Error: The database refused the run as a whole, such as an unknown collection or
            another embedding model.
    """
    started = time.perf_counter()
    processing = Processing(extractor, embedding_model, max_characters, embed_entities)
    session = Session(connection)
    meter = _Meter(progress)
    set_embedding_space(session, embedding_model)
    try:
        with Worker(session, processing, usage or Usage(), meter.worked) as worker:
            with Job(session, collection, processing, worker.worker_id) as job, helpers(job.job_id):
                meter.job = job
                queued = Queue(
                    session, collection, job.job_id, processing, max_attempts, meter.queued
                ).add(documents)
                job.seal()
                meter.begin_work()
                try:
                    worker.work(job_id=job.job_id, is_done=lambda: not job.is_live())
                except (BudgetExhaustedError, EndpointDownError) as error:
                    job.stop(" ".join(filter(None, (str(error), error.hint))))
            meter.end(worker.worked)
            worker.maintain()
        return _timed_report(session, job, queued, started)
    finally:
        session.close()


def queue(
    connection: psycopg.Connection[Any],
    documents: Iterable[SourceDocument | LoadFailure],
    collection: str,
    processing: Processing,
    max_attempts: int = 3,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Report:
    """Queue documents for workers with the same processing, and leave them to these.

    Arguments, result and errors are as in `ingest`.
    """
    started = time.perf_counter()
    session = Session(connection)
    meter = _Meter(progress)
    try:
        with (
            Worker(session, processing, Usage()) as worker,
            Job(session, collection, processing, worker.worker_id) as job,
        ):
            queued = Queue(
                session, collection, job.job_id, processing, max_attempts, meter.queued
            ).add(documents)
            job.seal()
        return _timed_report(session, job, queued, started)
    finally:
        session.close()


def set_embedding_space(session: Session, model: EmbeddingModel | None) -> None:
    """Make sure that a model's vectors can go into the database (`sag.set_embedding_space`).

    Raises:
        psycopg.Error: The database holds vectors of another model.
    """
    if model is not None:
        session.call("SELECT FROM sag.set_embedding_space(%s, %s)", [model.name, model.dimensions])


class Job:
    """Documents that are queued together; as a context manager, until they are worked off.

    Where an error or an interruption ends it, its documents wait in the queue: for the same
    ingest, which takes them over, or for `sag-pg jobs retry`.

    Args:
        session: The database.
        collection: Name of an existing collection.
        processing: How the documents are to be processed.
        worker_id: The worker that queues them.
    """

    def __init__(
        self, session: Session, collection: str, processing: Processing, worker_id: int
    ) -> None:
        self._session = session
        rows = session.call(
            "SELECT job FROM sag.start_job(%s, %s, %s) AS job",
            [collection, worker_id, Jsonb(processing.settings)],
        )
        self.job_id: int = rows[0][0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._session.connection.broken or self._session.connection.closed:
            return
        if isinstance(error, psycopg.Error):
            # Where the job is gone with its collection, the first error says more.
            with suppress(psycopg.Error):
                self.stop(explain_error(error)[0])
        else:
            self.stop(str(error) if isinstance(error, SagError) else "It was interrupted.")

    def seal(self) -> None:
        """Say that there are no more documents to come."""
        self._session.call("SELECT FROM sag.seal_job(%s)", [self.job_id])

    def stop(self, reason: str) -> None:
        """Keep workers from taking what is left."""
        self._session.call("SELECT FROM sag.stop_job(%s, %s)", [self.job_id, reason])

    def is_live(self) -> bool:
        """Whether anything is left to be done now."""
        return self.status().state in LIVE_STATES

    def status(self) -> JobStatus:
        """The job's row of sag.job_status."""
        return read_status(self._session, self.job_id)


def _timed_report(session: Session, job: Job, queued: Queued, started: float) -> Report:
    report = read_report(session, job.job_id, queued)
    report.seconds = time.perf_counter() - started
    report.database_seconds = session.seconds
    return report


class _Meter:
    """Turns what queue and worker tell of themselves into the progress of the run."""

    def __init__(self, notify: Callable[[Progress], None]) -> None:
        self.job: Job | None = None
        self._notify = notify
        self._progress = Progress()
        self._ask_at = 0.0

    def queued(self, queued: Queued) -> None:
        progress = self._progress
        progress.documents, progress.total = queued.documents, queued.waiting
        progress.failed = queued.failed
        progress.bytes = queued.bytes
        self._notify(progress)

    def begin_work(self) -> None:
        self._progress.is_queueing = False
        self._progress.documents = 0
        self._notify(self._progress)

    def end(self, worked: Worked) -> None:
        """Show what the others did last, too."""
        self._ask_at = 0.0
        self.worked(worked)

    def worked(self, worked: Worked) -> None:
        """Other workers may be at the same job, so the database is asked now and then."""
        progress = self._progress
        now = time.monotonic()
        if self.job is not None and now >= self._ask_at:
            status = self.job.status()
            # Counting the tasks of a large job takes a while.
            asked = time.monotonic()
            self._ask_at = asked + max(_POLL_SECONDS, _POLL_SHARE * (asked - now))
            progress.documents = max((progress.total or 0) - status.live, 0)
            progress.chunks = status.chunk_count
            progress.failed = status.failed
            progress.failed_chunks = status.failed_chunk_count
            progress.tokens = status.prompt_tokens + status.completion_tokens
        # Those of other workers show when they are merged.
        progress.documents = max(progress.documents, worked.documents)
        progress.chunks = max(progress.chunks, worked.chunks)
        progress.failed_chunks = max(progress.failed_chunks, worked.failed_chunks)
        progress.tokens = max(progress.tokens, worked.tokens)
        self._notify(progress)
