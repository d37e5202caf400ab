"""The command that works off the queue."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import click
from psycopg.types.json import Jsonb

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.processing import ProcessingOptions, processing_options
from sag_pg.client import Client
from sag_pg.errors import EndpointDownError
from sag_pg.ingest.job import LIVE_STATES, set_embedding_space
from sag_pg.ingest.processing import Processing
from sag_pg.ingest.report import Failure
from sag_pg.ingest.session import Session
from sag_pg.ingest.worker import Worker
from sag_pg.models.budget import Usage

# How long a model that is down is left alone.
_PAUSE_SECONDS: Final = 60.0


@click.command()
@click.option(
    "--collection", "-c", metavar="NAME", help="Only documents of this collection. Else of all."
)
@click.option("--job", "job_id", type=int, metavar="ID", help="Only documents of this job.")
@click.option("--until-done", is_flag=True, help="End when nothing is left to do.")
@click.option("--until-input-ends", is_flag=True, hidden=True)
@processing_options
@pass_application
def work(
    application: Application,
    collection: str | None,
    job_id: int | None,
    until_done: bool,
    until_input_ends: bool,
    processing: ProcessingOptions,
) -> None:
    """Work off the queue: documents of sag_ingest(), and of ingests that need or left the help.

    Any number of processes may do this at once, on any machine. Goes on until Ctrl-C, and waits
    for a database or a model that is down. What a model was asked is awaited then, unless Ctrl-C
    comes again. Takes documents of jobs that were queued with the same
    --extractor, --embedding, --chunk-size and --embed-entities, and those that SQL clients queued.
    """
    usage = Usage(processing.settings.max_tokens, processing.settings.max_requests)
    ended = threading.Event()
    with application.connect_ready() as connection, ExitStack() as exits:
        loaded = processing.load(connection, usage)
        session = Session(connection, patience=None, ended=ended)
        exits.callback(session.close)
        set_embedding_space(session, loaded.embedding_model)
        end = partial(_end, ended, threading.Event())
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, end)
            exits.callback(signal.signal, number, before)
        if until_input_ends:
            threading.Thread(target=_watch_input, args=[ended], daemon=True).start()
        if not until_done:
            message("Working; Ctrl-C ends it.")
        # The session may have had to replace the connection that was given.
        _tell_of_others(session.connection, loaded, job_id, collection)
        with Worker(session, loaded, usage, failed=_teller(until_input_ends)) as worker:
            while not ended.is_set():
                try:
                    worker.work(
                        collection=collection,
                        job_id=job_id,
                        is_done=lambda: (
                            until_done and not _is_live(session, loaded, job_id, collection)
                        ),
                        is_stopped=ended.is_set,
                    )
                    break
                except EndpointDownError as error:
                    if until_done:
                        raise
                    message(f"Waiting for a minute: {error}")
                    ended.wait(_PAUSE_SECONDS)
            worker.maintain()
    if not until_done:
        message(f"Dealt with {worker.worked.documents} documents.")


def _end(ended: threading.Event, interrupted: threading.Event, number: int, frame: object) -> None:
    ended.set()
    # SIGTERM does not count: an ingest sends it to its helpers, which had the Ctrl-C too.
    if number == signal.SIGINT:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()


def _teller(is_helper: bool) -> Callable[[Failure], None]:
    """Make what says that a document failed; what a helper's did, the ingest reports."""
    hints: set[str] = set()

    def tell(failure: Failure) -> None:
        if is_helper:
            return
        message(f"Failed: {failure}")
        if failure.hint and failure.hint not in hints:
            hints.add(failure.hint)
            message(f"Hint: {failure.hint}")

    return tell


def _watch_input(ended: threading.Event) -> None:
    """End with the process that has the other end of standard input."""
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    ended.set()


def _is_live(
    session: Session, processing: Processing, job_id: int | None, collection: str | None
) -> bool:
    """Whether there is, or will be, something that this worker may take."""
    rows = session.call(
        "SELECT FROM sag.job_status AS j WHERE j.state = ANY(%s)"
        " AND (j.settings IS NULL OR j.settings = %s)"
        " AND (%s::bigint IS NULL OR j.job_id = %s) AND (%s::text IS NULL OR j.collection = %s)"
        " LIMIT 1",
        [
            list(LIVE_STATES),
            Jsonb(processing.settings),
            job_id,
            job_id,
            collection,
            collection,
        ],
    )
    return bool(rows)


def _tell_of_others(
    connection: Any, processing: Processing, job_id: int | None, collection: str | None
) -> None:
    """Name those of the jobs asked for that wait for a worker with other settings."""
    for job in Client(connection).jobs(collection):
        if job_id not in (None, job.job_id):
            continue
        if job.state == "queued" and job.settings not in (None, processing.settings):
            settings = ", ".join(f"{name} {value}" for name, value in job.settings.items())
            message(f"Job {job.job_id} waits for a worker with {settings}.")
