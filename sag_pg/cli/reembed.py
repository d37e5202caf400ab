"""The command that changes the embedding model."""

import json
import sys
import time
from dataclasses import asdict

import click

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.failures import MOST_SHOWN, show_failures
from sag_pg.cli.options import (
    EMBEDDING_VARIABLE,
    ingest_model_options,
    json_option,
    load_embedding,
)
from sag_pg.cli.session import open_client
from sag_pg.models.budget import Usage
from sag_pg.models.settings import ModelSettings
from sag_pg.reembed import Progress, Report, cancel
from sag_pg.reembed import reembed as run_reembed


@click.command()
@click.option(
    "--embedding",
    metavar="SPEC",
    envvar=EMBEDDING_VARIABLE,
    show_envvar=True,
    help="The model to change to: local, openai or openai:MODEL for one behind an endpoint,"
    " fastembed:NAME, or the directory of an ONNX model.",
)
@click.option(
    "--cancel", "is_cancel", is_flag=True, help="Give up the change that is under way instead."
)
@json_option
@ingest_model_options
@pass_application
def reembed(
    application: Application,
    embedding: str | None,
    is_cancel: bool,
    settings: ModelSettings,
    as_json: bool,
) -> None:
    """Change the embedding model while the database goes on answering.

    The vectors of the new model are made beside those in use, of all collections, and take their
    place at the end in one moment. Until then questions and ingest go by the model in use; after
    it name the new one to all commands and restart sag-pg serve with it. A run that was stopped,
    by --max-tokens or a kill, goes on where it was; sag-pg status shows how far it is.

    With the model in use, rows that have no vector get one. The exit code is 1 where something is
    left to do.
    """
    if is_cancel:
        with application.connect_ready() as connection:
            was_under_way = cancel(connection, message)
        if as_json:
            click.echo(json.dumps({"cancelled": was_under_way}))
        else:
            message("Given up." if was_under_way else "No change of the model is under way.")
        return
    if embedding is None:
        raise click.UsageError("Name the model with --embedding, or say --cancel.")
    usage = Usage(settings.max_tokens, settings.max_requests)
    model = load_embedding(embedding, settings, usage)
    if model is None:
        raise click.UsageError("There are no vectors without a model: name one with --embedding.")
    # Its notices count: pgvector says so where maintenance_work_mem is too small for an index.
    with open_client(application, "default") as client, ProgressLine() as line:
        report = run_reembed(
            client.connection, model, usage=usage, progress=line.show, notify=line.tell
        )
    _print(report, as_json)
    if not report.complete:
        click.get_current_context().exit(1)


class ProgressLine:
    """A line on standard error that renews itself, where that is a terminal."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown = 0
        self._bar = click.progressbar(
            length=1, label="Reembedding", file=sys.stderr, item_show_func=lambda item: item
        )

    def __enter__(self) -> "ProgressLine":
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(None, None, None)

    def show(self, progress: Progress) -> None:
        """Show how far the run is."""
        rate = progress.rows / max(time.monotonic() - self._started, 1e-9)
        text = f"{progress.rows} of {progress.total} rows, {rate:.0f} rows/s"
        if progress.tokens:
            text += f", {progress.tokens} tokens"
        if progress.failed:
            text += f", {progress.failed} failed"
        self._bar.length = max(progress.total, 1)
        self._bar.update(progress.rows - self._shown, text)
        self._shown = progress.rows

    def tell(self, text: str) -> None:
        """Say something below the line."""
        if sys.stderr.isatty():
            click.echo(err=True)
        message(text)


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(report), ensure_ascii=False))
    else:
        click.echo(report.summary())
    show_failures(report.failures, f"{report.failed - MOST_SHOWN} more.")
    if report.failed:
        message("Hint: The same command again tries those rows anew.")
    if report.stopped is not None:
        message(f"Stopped: {report.stopped}")
        message("Hint: Run the same command again to go on, or give up with --cancel.")
