"""The commands on jobs of the ingest."""

import dataclasses
import json
from datetime import datetime
from typing import Any

import click

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.layout import columns_of, one_line, pad
from sag_pg.cli.options import json_option
from sag_pg.cli.session import open_client
from sag_pg.client import Client
from sag_pg.errors import SagError
from sag_pg.ingest.report import as_failure
from sag_pg.ingest.status import JobStatus

job_argument = click.argument("job_id", metavar="JOB", type=click.IntRange(min=1))

# Counts that every job has; the others are shown where there are any.
_ALWAYS = ("added", "replaced", "unchanged", "failed")
_COUNTS = (
    *("queued", "running", "waiting"),
    *_ALWAYS,
    *("incomplete", "superseded", "cancelled"),
)


@click.group(invoke_without_command=True)
@click.option("--collection", "-c", metavar="NAME", help="Only jobs of this collection.")
@json_option
@click.pass_context
def jobs(ctx: click.Context, collection: str | None, as_json: bool) -> None:
    r"""List the jobs of the ingest, newest first; the subcommands look after one.

    \b
    States:
      loading      its documents are being read and queued
      queued       they wait for a worker: sag-pg work
      running      workers are at it
      finished     all are in
      failed       at its end, but something failed: jobs show
      stopped      by a limit, an error or Ctrl-C: the same ingest goes on
      interrupted  the ingest that read its documents was killed: likewise
      cancelled    by jobs cancel
      open         for what sag_ingest() queues; one a collection, without an end
    """
    if ctx.invoked_subcommand is not None:
        return
    application = ctx.find_object(Application)
    assert application is not None  # noqa: S101
    with open_client(application, "default") as client:
        # A collection has a job for SQL clients, whether there are any or not.
        found = [job for job in client.jobs(collection) if job.origin != "sql" or _has_any(job)]
    if as_json:
        click.echo(_dump([dataclasses.asdict(job) for job in found]))
        return
    rows = [("job", "collection", "state", "started", "documents")]
    rows += [
        (str(job.job_id), one_line(job.collection), job.state, _time(job.started_at), _counts(job))
        for job in found
    ]
    widths = [max(columns_of(row[column]) for row in rows) + 2 for column in range(4)]
    for number, row in enumerate(rows):
        line = "".join(pad(text, width) for text, width in zip(row, widths, strict=False))
        click.secho(line + row[-1], bold=number == 0)


@jobs.command()
@job_argument
@click.option(
    "--failures", type=click.IntRange(min=0), default=20, show_default=True, metavar="N",
    help="How many of the documents and chunks that failed to list.",
)  # fmt: skip
@json_option
@pass_application
def show(application: Application, job_id: int, failures: int, as_json: bool) -> None:
    """Show how far JOB is, what failed and why, and what the models were asked."""
    with open_client(application, "default") as client:
        job = _find(client, job_id)
        # One more says whether there are more.
        listed = client.job_failures(job_id, failures + 1)
        failed, has_more = listed[:failures], len(listed) > failures
        usage = client.job_usage(job_id)
    if as_json:
        facts: dict[str, Any] = dataclasses.asdict(job)
        facts["failures"] = [dataclasses.asdict(failure) for failure in failed]
        facts["models"] = [dataclasses.asdict(each) for each in usage]
        click.echo(_dump(facts))
        return
    lines = [
        ("job", f"{job.job_id}, {job.origin}"),
        ("collection", one_line(job.collection)),
        ("state", job.state + (f": {one_line(job.stopped)}" if job.stopped else "")),
        ("started", _time(job.started_at)),
        ("finished", _time(job.finished_at) if job.finished_at is not None else "not yet"),
        ("documents", _counts(job)),
        (
            "chunks",
            str(job.chunk_count)
            + (f", models failed for {job.failed_chunk_count}" if job.failed_chunk_count else ""),
        ),
    ]
    if job.settings is not None:
        lines.append(
            ("settings", ", ".join(f"{name} {value}" for name, value in job.settings.items()))
        )
    lines += [
        (
            "model",
            f"{one_line(each.model)}: {each.requests} requests, {each.prompt_tokens} tokens in,"
            f" {each.completion_tokens} out"
            + (f", {each.estimated_tokens} of them estimated" if each.estimated_tokens else ""),
        )
        for each in usage
    ]
    for failure in failed:
        tries = f" ({failure.attempts} attempts)" if failure.attempts > 1 else ""
        lines.append(("failed", one_line(str(as_failure(failure))) + tries))
    if has_more:
        lines.append(("failed", "… and more: --failures N lists N of them"))
    lines += [
        ("hint", one_line(hint))
        for hint in dict.fromkeys(failure.hint for failure in failed if failure.hint)
    ]
    for label, text in lines:
        click.echo(f"{label:<11} {text}")


@jobs.command()
@job_argument
@pass_application
def retry(application: Application, job_id: int) -> None:
    """Queue again what failed in JOB, and what is left of it where it was stopped.

    A worker takes it: sag-pg work, with the options of the ingest. Files that could not be read
    are not in the queue; the same ingest tries them again.
    """
    with open_client(application, "default") as client:
        count = client.retry_job(job_id)
    if count == 0:
        message(
            f"Job {job_id} has nothing to queue again.\n"
            "Hint: What could not be read, was cancelled, or came anew since is tried by an ingest."
        )
        return
    message(
        f"{count} documents of job {job_id} wait for a worker: sag-pg work --job {job_id},"
        " with the options of the ingest."
    )


@jobs.command()
@job_argument
@pass_application
def cancel(application: Application, job_id: int) -> None:
    """Give up what is left of JOB. What is in the collection stays."""
    with open_client(application, "default") as client:
        count = client.cancel_job(job_id)
    message(f"Cancelled {count} documents of job {job_id}.")


def _find(client: Client, job_id: int) -> JobStatus:
    job = client.job(job_id)
    if job is None:
        raise SagError(f"There is no job {job_id}.", "sag-pg jobs lists them.")
    return job


def _has_any(job: JobStatus) -> bool:
    return any(getattr(job, name) for name in _COUNTS)


def _counts(job: JobStatus) -> str:
    return ", ".join(
        f"{getattr(job, name)} {name}" for name in _COUNTS if getattr(job, name) or name in _ALWAYS
    )


def _time(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _dump(facts: Any) -> str:
    return json.dumps(facts, ensure_ascii=False, default=datetime.isoformat)
