"""The command that brings documents in."""

import json
import sys
import time
from dataclasses import asdict
from typing import Final

import click

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.options import (
    collection_option,
    embedding_option,
    extractor_option,
    ingest_model_options,
    json_option,
    load_embedding,
)
from sag_pg.client import Client
from sag_pg.ingest.job import Progress, Report
from sag_pg.ingest.job import ingest as run_ingest
from sag_pg.ingest.loaders import load_paths, measure_paths
from sag_pg.models.budget import Usage
from sag_pg.models.settings import ModelSettings

_MOST_FAILURES: Final = 20


@click.command()
@click.argument("paths", nargs=-1, required=True)
@collection_option
@embedding_option
@extractor_option
@click.option(
    "--chunk-size",
    type=click.IntRange(min=0),
    default=1200,
    show_default=True,
    metavar="CHARACTERS",
    help="Longest chunk; 0 makes each document one chunk.",
)
@click.option(
    "--embed-entities",
    is_flag=True,
    help="Embed the entities' names too, so that names link to their neighbours by vector.",
)
@click.option(
    "--text-search-configuration",
    default="pg_catalog.english",
    show_default=True,
    metavar="NAME",
    help="For the lexemes of a collection that is made now; one that exists keeps its own.",
)
@json_option
@ingest_model_options
@pass_application
def ingest(
    application: Application,
    paths: tuple[str, ...],
    collection: str,
    embedding: str,
    extractor: str,
    chunk_size: int,
    embed_entities: bool,
    text_search_configuration: str,
    settings: ModelSettings,
    as_json: bool,
) -> None:
    """Ingest documents: .txt, .md and .jsonl files, directories of them, or - for standard input.

    What is in the collection already with the same content costs nothing; what has changed is
    replaced. A document that cannot be read does not stop the others, nor does a chunk for which
    a model fails, whose document the next run tries again; the exit code is 1 then. It is also 1
    where --max-tokens, --max-requests or a model that is down ended the run. The same command goes
    on from there: what a language model has answered is not asked for again.
    """
    from sag_pg.models.load import load_extractor

    usage = Usage(settings.max_tokens, settings.max_requests)
    model = load_embedding(embedding, settings, usage)
    with application.connect_ready() as connection:
        client = Client(connection)
        finder = load_extractor(extractor, settings, usage, client.entity_types())
        client.create_collection(collection, text_search_configuration)
        with ProgressLine(measure_paths(paths)) as line:
            report = run_ingest(
                connection,
                load_paths(paths),
                collection=collection,
                extractor=finder,
                embedding_model=model,
                max_characters=chunk_size or None,
                embed_entities=embed_entities,
                usage=usage,
                progress=line.show,
            )
    _print(report, as_json)
    if not report.complete:
        click.get_current_context().exit(1)


class ProgressLine:
    """Progress on standard error: a line that renews itself, where that is a terminal."""

    def __init__(self, total_bytes: int) -> None:
        self._started = time.monotonic()
        self._bar = click.progressbar(
            length=max(total_bytes, 1),
            label="Ingesting",
            file=sys.stderr,
            show_eta=total_bytes > 0,
            show_percent=total_bytes > 0,
            item_show_func=lambda item: item,
        )
        self._bytes = 0

    def __enter__(self) -> "ProgressLine":
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(None, None, None)

    def show(self, progress: Progress) -> None:
        """Show how far the run is."""
        rate = progress.chunks / max(time.monotonic() - self._started, 1e-9)
        text = f"{progress.documents} documents, {progress.chunks} chunks, {rate:.0f} chunks/s"
        if progress.tokens:
            text += f", {progress.tokens} tokens"
        if progress.failed:
            text += f", {progress.failed} failed"
        if progress.failed_chunks:
            text += f", {progress.failed_chunks} chunks failed"
        self._bar.update(progress.bytes - self._bytes, text)
        self._bytes = progress.bytes


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(report), ensure_ascii=False))
    else:
        click.echo(report.summary())
    for failure in report.failures[:_MOST_FAILURES]:
        message(f"Failed: {failure}")
    if len(report.failures) > _MOST_FAILURES:
        message(f"… and {len(report.failures) - _MOST_FAILURES} more; all are in sag.ingest_task.")
    for hint in dict.fromkeys(failure.hint for failure in report.failures if failure.hint):
        message(f"Hint: {hint}")
    if report.stopped is not None:
        message(f"Stopped: {report.stopped}")
        message(
            "Hint: Run the same command again to go on; with a higher limit, if nothing was added."
            " What is in costs nothing, nor do answers of the language model that are stored."
        )
    elif not (report.added or report.replaced or report.unchanged or report.failed):
        message("Nothing to ingest: there is no .txt, .md or .jsonl file.")
