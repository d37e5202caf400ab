"""What became of a job, as the database has it."""

from dataclasses import dataclass, field, fields
from typing import Final

from sag_pg.ingest.queue import Queued, shown
from sag_pg.ingest.session import Session
from sag_pg.ingest.status import JobFailure, JobStatus
from sag_pg.models.budget import ModelUsage

# More are counted, and sag.task_status and sag.chunk_failure have them.
_MOST_FAILURES: Final = 1000


@dataclass(frozen=True, slots=True)
class Failure:
    """A document or chunk that failed: its source, what was wrong, and what would be right."""

    source: str
    message: str
    hint: str | None

    def __str__(self) -> str:
        # The loaders' messages begin with the file, and the line where there is one.
        if self.message.startswith(self.source):
            return self.message
        return f"{self.source}: {self.message}"


@dataclass(slots=True)
class Report:
    """What a job did.

    Attributes:
        job_id: Key of the job, for `sag-pg jobs show`.
        documents: Documents that were given to it.
        added: Documents that are new.
        replaced: Documents whose content had changed.
        unchanged: Documents that were there already.
        incomplete: Documents that are in, but for some of whose chunks a model failed: these are
            found by what could be read without it, and the same ingest, or `sag-pg jobs retry`,
            tries them again.
        failed: Documents that failed; the others are in.
        superseded: Documents that newer content, be it of the same job, took the place of.
        cancelled: Documents of a job that was cancelled.
        waiting: Documents still in the queue.
        adopted: Documents that a later ingest of the same content took over from this one, which
            knows no more of them: `sag-pg jobs` shows that one.
        chunks: Chunks of the documents that are in.
        failed_chunks: Chunks of these for which a model failed.
        failures: Each failure of a document or chunk, in order; the first thousand.
        warnings: What is wrong with documents that are in nevertheless, such as front matter that
            is broken; the first thousand, of those that this process read.
        stopped: Why the run ended before all documents were taken, be it a budget or a model
            that is down; None where it did not. The same ingest goes on from there, and what a
            language model answered is not asked for again.
        usage: What the job's models were asked, by all workers.
        seconds: Time of the whole run.
        database_seconds: Time of that which this process spent waiting for the database.
    """

    job_id: int
    documents: int = 0
    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    incomplete: int = 0
    failed: int = 0
    superseded: int = 0
    cancelled: int = 0
    waiting: int = 0
    adopted: int = 0
    chunks: int = 0
    failed_chunks: int = 0
    failures: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stopped: str | None = None
    usage: ModelUsage = field(default_factory=ModelUsage)
    seconds: float = 0.0
    database_seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether every document was taken and nothing of any failed."""
        return not (
            self.failed or self.incomplete or self.waiting or self.cancelled or self.stopped
        )

    @property
    def is_empty(self) -> bool:
        """Whether there was no document at all."""
        return self.documents == 0

    def summary(self) -> str:
        """Return the run in one line."""
        counts = {
            "added": self.added,
            "replaced": self.replaced,
            "unchanged": self.unchanged,
            "incomplete": self.incomplete,
            "failed": self.failed,
            "superseded": self.superseded,
            "cancelled": self.cancelled,
            # As sag-pg jobs calls them, whose waiting ones wait for another try.
            "queued": self.waiting,
            "adopted by another ingest": self.adopted,
        }
        always = ("added", "replaced", "unchanged", "failed")
        parts = [
            ", ".join(
                f"{count} {name}" for name, count in counts.items() if count or name in always
            ),
            f"{self.chunks} chunks in {self.seconds:.1f} s",
        ]
        if self.failed_chunks:
            parts.append(f"models failed for {self.failed_chunks} chunks")
        if self.usage.requests:
            parts.append(describe_usage(self.usage))
        return "; ".join(parts)


def describe_usage(usage: ModelUsage) -> str:
    """Return what models were asked in a few words."""
    tokens = usage.prompt_tokens + usage.completion_tokens
    estimated = f", {usage.estimated_tokens} of them estimated" if usage.estimated_tokens else ""
    return f"{usage.requests} requests to models, {tokens} tokens{estimated}"


def read_report(session: Session, job_id: int, queued: Queued) -> Report:
    """Read what became of a job (`sag.job_status` and `sag.job_failures`).

    Args:
        session: The database.
        job_id: The job.
        queued: What was given to it.
    """
    status = read_status(session, job_id)
    rows = session.call(
        "SELECT source, ordinal, attempts, message, hint FROM sag.job_failures(%s, %s)",
        [job_id, _MOST_FAILURES],
    )
    return Report(
        job_id=job_id,
        documents=queued.documents,
        added=status.added,
        replaced=status.replaced,
        unchanged=status.unchanged,
        incomplete=status.incomplete,
        failed=status.failed,
        superseded=status.superseded,
        cancelled=status.cancelled,
        waiting=status.live,
        # One that the job took over from itself, for it came twice, is there once.
        adopted=max(queued.documents - queued.adopted - status.documents, 0),
        chunks=status.chunk_count,
        failed_chunks=status.failed_chunk_count,
        failures=[as_failure(JobFailure(*row)) for row in rows],
        warnings=queued.warnings,
        stopped=status.stopped,
        usage=ModelUsage(
            status.requests,
            status.prompt_tokens,
            status.completion_tokens,
            status.estimated_tokens,
        ),
    )


def read_status(session: Session, job_id: int) -> JobStatus:
    """Read a job's row of `sag.job_status`."""
    columns = ", ".join(field.name for field in fields(JobStatus))
    (row,) = session.call(
        f"SELECT {columns} FROM sag.job_status WHERE job_id = %s",  # noqa: S608
        [job_id],
    )
    return JobStatus(*row)


def as_failure(failure: JobFailure) -> Failure:
    """Return a failure as it is told to people."""
    message = failure.message
    if failure.ordinal is not None:
        message = f"chunk {failure.ordinal}: {message}"
    return Failure(shown(failure.source), message, failure.hint)
