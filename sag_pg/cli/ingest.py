"""The command that brings documents in."""

import json
from dataclasses import asdict
from typing import Any

import click

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.crew import run_ingest, share_budget
from sag_pg.cli.failures import MOST_SHOWN, show_failures, show_warnings
from sag_pg.cli.options import collection_option, json_option, metadata_option
from sag_pg.cli.processing import ProcessingOptions, processing_options
from sag_pg.cli.progress import ProgressLine
from sag_pg.client import Client
from sag_pg.ingest import job
from sag_pg.ingest.document import with_metadata
from sag_pg.ingest.estimate import Estimate, estimate
from sag_pg.ingest.loaders import SUPPORTED_SUFFIXES, load_paths, measure_paths
from sag_pg.ingest.report import Report
from sag_pg.models.budget import Usage

text_search_option = click.option(
    "--text-search-configuration",
    default="pg_catalog.english",
    show_default=True,
    metavar="NAME",
    help="For the lexemes of a collection that is made now; one that exists keeps its own.",
)
workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes that work on it. More help where a model's answers are waited for.",
)
attempts_option = click.option(
    "--attempts",
    "max_attempts",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How often a document is tried for which a model fails, with growing pauses.",
)


@click.command()
@click.argument("paths", nargs=-1, required=True)
@collection_option
@metadata_option
@workers_option
@attempts_option
@click.option(
    "--queue", "queue_only", is_flag=True, help="Only queue the documents, for sag-pg work."
)
@click.option(
    "--estimate",
    "is_estimate",
    is_flag=True,
    help="Count chunks, tokens and calls of models, and call none.",
)
@text_search_option
@json_option
@processing_options
@pass_application
def ingest(
    application: Application,
    paths: tuple[str, ...],
    collection: str,
    metadata: dict[str, Any],
    workers: int,
    max_attempts: int,
    queue_only: bool,
    is_estimate: bool,
    text_search_configuration: str,
    as_json: bool,
    processing: ProcessingOptions,
) -> None:
    """Ingest documents: files, directories of them, or - for standard input.

    Knows .txt, .md, .html, .pdf, .docx, .pptx, .xlsx, .csv, .eml, and .jsonl with a document a
    line. What is in the collection already with the same content costs nothing; what has changed
    is replaced. A document that cannot be read does not stop the others, nor does a chunk for which
    a model fails, whose document the next run tries again; the exit code is 1 then. It is also 1
    where --max-tokens, --max-requests or a model that is down ended the run. The same command goes
    on from there, and after a kill: what a language model has answered is not asked for again.
    """
    own = share_budget(processing, workers)
    usage = Usage(own.settings.max_tokens, own.settings.max_requests)
    documents = with_metadata(load_paths(paths), metadata)
    with application.connect_ready() as connection:
        loaded = own.load(connection, usage)
        if is_estimate:
            with ProgressLine(measure_paths(paths)) as line:
                found = estimate(connection, documents, collection, loaded, line.show)
            _print_estimate(found, as_json)
            return
        Client(connection).create_collection(collection, text_search_configuration)
        if queue_only:
            with ProgressLine(measure_paths(paths)) as line:
                report = job.queue(
                    connection, documents, collection, loaded, max_attempts, line.show
                )
        else:
            report = run_ingest(
                application,
                connection,
                documents,
                paths=paths,
                collection=collection,
                options=own,
                processing=loaded,
                usage=usage,
                workers=workers,
                max_attempts=max_attempts,
            )
    print_report(report, as_json)
    if queue_only and report.waiting:
        message(
            f"They wait for a worker: sag-pg work --job {report.job_id}, with the same options."
        )
    if report.failed or not (queue_only or report.complete):
        click.get_current_context().exit(1)


def print_report(report: Report, as_json: bool) -> None:
    """Print what became of a job; failures go to standard error."""
    if as_json:
        click.echo(json.dumps(asdict(report), ensure_ascii=False))
    else:
        click.echo(report.summary())
    report_failures(report)


def report_failures(report: Report) -> None:
    """Say on standard error what failed, why a job stopped, and what would be right."""
    show_warnings(report.warnings)
    count = report.failed + report.failed_chunks
    show_failures(
        report.failures,
        f"{count - MOST_SHOWN} more: sag-pg jobs show {report.job_id} --failures {count}",
    )
    if report.stopped is not None:
        message(f"Stopped: {report.stopped}")
        message(
            "Hint: Run the same command again to go on; with a higher limit, if nothing was added."
            " What is in costs nothing, nor do answers of the language model that are stored."
        )
    elif report.is_empty:
        types = ", ".join(SUPPORTED_SUFFIXES)
        message(f"Nothing to ingest: there is no file of a type that is known ({types}).")
    if report.adopted:
        message(
            "The same documents were ingested again meanwhile: sag-pg jobs shows how far it is."
        )


def _print_estimate(found: Estimate, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(found), ensure_ascii=False))
    else:
        click.echo(found.summary())
    show_warnings(found.warnings)
    show_failures(found.failures, f"{found.failed - MOST_SHOWN} more.")
