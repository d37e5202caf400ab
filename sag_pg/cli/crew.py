"""The run of an ingest, with further processes that work on its job."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from sag_pg.cli.application import Application, Connection, message
from sag_pg.cli.processing import ProcessingOptions
from sag_pg.cli.progress import ProgressLine
from sag_pg.config import URL_VARIABLES
from sag_pg.ingest import job
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.loaders import measure_paths
from sag_pg.ingest.processing import Processing
from sag_pg.ingest.report import Report
from sag_pg.models.budget import Usage
from sag_pg.models.settings import SETTINGS, ModelSettings

# A worker that is told to end finishes what it has asked the models.
_END_SECONDS: Final = 120


def share_budget(options: ProcessingOptions, processes: int) -> ProcessingOptions:
    """Return the options for one of several processes, so that they keep to the budget together."""
    settings = options.settings
    tokens, requests = settings.max_tokens, settings.max_requests
    return replace(
        options,
        settings=replace(
            settings,
            max_tokens=None if tokens is None else max(tokens // processes, 1),
            max_requests=None if requests is None else max(requests // processes, 1),
        ),
    )


def run_ingest(
    application: Application,
    connection: Connection,
    documents: Iterable[SourceDocument | LoadFailure],
    *,
    paths: Sequence[str],
    collection: str,
    options: ProcessingOptions,
    processing: Processing,
    usage: Usage,
    workers: int,
    max_attempts: int,
) -> Report:
    """Ingest documents in several processes, of which this is one, and show how far it is.

    Args:
        application: Knows the database.
        connection: A connection to it.
        documents: What to ingest.
        paths: Where it is from, for its size.
        collection: Name of an existing collection.
        options: How documents are processed, with the budget of one process.
        processing: The models that the options name.
        usage: Counts what these are asked.
        workers: Number of processes.
        max_attempts: As in `sag_pg.ingest.job.ingest`.

    Returns:
        What was done by all of them.
    """
    try:
        with ProgressLine(measure_paths(paths)) as line:
            return job.ingest(
                connection,
                documents,
                collection=collection,
                extractor=processing.extractor,
                embedding_model=processing.embedding_model,
                max_characters=processing.max_characters,
                embed_entities=processing.embed_entities,
                max_attempts=max_attempts,
                usage=usage,
                helpers=partial(_crew, application, options, workers - 1),
                progress=line.show,
            )
    except KeyboardInterrupt:
        message("What is in stays; the same command goes on from there.")
        raise


@contextlib.contextmanager
def _crew(
    application: Application, options: ProcessingOptions, count: int, job_id: int
) -> Iterator[None]:
    """Start workers on a job, and await their end.

    Where the block ends by an error, or this process is killed, they are told to end soon: they
    give back what they have.

    Args:
        application: Knows the database.
        options: How they process documents, with the budget of one process.
        count: Number of processes.
        job_id: The job.
    """
    command = [
        *(sys.executable, "-m", "sag_pg"),
        *(["--data-dir", str(application.data_dir)] if application.data_dir is not None else []),
        *("work", "--job", str(job_id), "--until-done", "--until-input-ends"),
        *options.arguments(),
    ]
    environment = _environment(application, options.settings)
    with contextlib.ExitStack() as exits:
        processes = [
            exits.enter_context(
                # Nothing is written to it: it ends when this process does, however it ends.
                subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)  # noqa: S603
            )
            for _ in range(count)
        ]
        try:
            yield
        except BaseException:
            _end(processes)
            raise
        for process in processes:
            if process.wait() != 0:
                message(f"Warning: a worker ended with exit code {process.returncode}.")


def _environment(application: Application, settings: ModelSettings) -> dict[str, str]:
    """Settings and database as variables: other users can see arguments."""
    environment = dict(os.environ)
    if application.database_url is not None:
        environment[URL_VARIABLES[0]] = application.database_url
    values: Mapping[str, object] = {
        setting.variables[0]: getattr(settings, setting.name) for setting in SETTINGS
    }
    for variable, value in values.items():
        environment.pop(variable, None)
        if value is not None:
            environment[variable] = str(value)
    return environment


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        process.kill()
