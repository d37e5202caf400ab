"""Jobs and tasks as the views of the database show them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A row of `sag.job_status`.

    Attributes:
        collection: The collection it ingests into.
        job_id: Key of the job.
        origin: "command", or "sql" for what SQL clients queue.
        state: loading, queued, running, finished, failed, stopped, cancelled, interrupted or open.
        started_at: When it was made.
        finished_at: When its last document was dealt with; None while there are others.
        stopped: Why its documents wait.
        settings: How its documents are processed; None where any worker may.
        loader: The worker that queues, or queued, its documents.
        queued: Documents ready to be taken.
        running: Documents that workers have.
        waiting: Documents to be tried again later.
        added: Documents that are new.
        replaced: Documents whose content had changed.
        unchanged: Documents that were there already.
        incomplete: Documents for some of whose chunks a model failed.
        failed: Documents that failed.
        superseded: Documents that newer content or a deletion took the place of.
        cancelled: Documents that were cancelled.
        chunk_count: Chunks of the documents that are in.
        failed_chunk_count: Chunks for which a model failed.
        requests: Requests to models, each try counted.
        prompt_tokens: Tokens of the questions.
        completion_tokens: Tokens of the answers.
        estimated_tokens: How many of both are estimates.
    """

    collection: str
    job_id: int
    origin: str
    state: str
    started_at: datetime
    finished_at: datetime | None
    stopped: str | None
    settings: dict[str, Any] | None
    loader: str | None
    queued: int
    running: int
    waiting: int
    added: int
    replaced: int
    unchanged: int
    incomplete: int
    failed: int
    superseded: int
    cancelled: int
    chunk_count: int
    failed_chunk_count: int
    requests: int
    prompt_tokens: int
    completion_tokens: int
    estimated_tokens: int

    @property
    def live(self) -> int:
        """Documents that are not dealt with yet."""
        return self.queued + self.running + self.waiting

    @property
    def documents(self) -> int:
        """All documents, whatever became of them."""
        return (
            self.live
            + self.added
            + self.replaced
            + self.unchanged
            + self.incomplete
            + self.failed
            + self.superseded
            + self.cancelled
        )


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A row of `sag.job_failures`: a document, or a chunk of one, that failed.

    Attributes:
        source: The document's source.
        ordinal: Place of the chunk in the document, from 0; None for the whole document.
        attempts: How often it failed.
        message: How it failed the last time.
        hint: What would be right, where it is known.
    """

    source: str
    ordinal: int | None
    attempts: int
    message: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class JobUsage:
    """A row of `sag.ingest_usage`: what a job asked of one model."""

    model: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    estimated_tokens: int
