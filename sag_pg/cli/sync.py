"""The command that makes a collection equal to a directory."""

import json
from dataclasses import asdict
from typing import Any

import click

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.crew import run_ingest, share_budget
from sag_pg.cli.ingest import attempts_option, report_failures, text_search_option, workers_option
from sag_pg.cli.options import collection_option, json_option, metadata_option
from sag_pg.cli.processing import ProcessingOptions, processing_options
from sag_pg.client import Client
from sag_pg.ingest.document import SourceDocument, with_metadata
from sag_pg.ingest.loaders import list_sources, load_paths
from sag_pg.ingest.report import Report
from sag_pg.ingest.sync import Seen, check_deletion, delete_sources, missing_sources
from sag_pg.models.budget import Usage


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@collection_option
@metadata_option
@workers_option
@attempts_option
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and change nothing.")
@click.option("--force", is_flag=True, help="Delete even most of the collection.")
@text_search_option
@json_option
@processing_options
@pass_application
def sync(
    application: Application,
    directory: str,
    collection: str,
    metadata: dict[str, Any],
    workers: int,
    max_attempts: int,
    dry_run: bool,
    force: bool,
    text_search_configuration: str,
    as_json: bool,
    processing: ProcessingOptions,
) -> None:
    """Make a collection equal to DIRECTORY: adds, replaces, and deletes what is not there.

    It deletes all else of the collection, wherever it came from; where that is all of it, or more
    than half and more than ten documents, only with --force. A file that is there and cannot be
    read stays as it was ingested before. A document is known by its path as it was given: under
    another path to DIRECTORY all are deleted and added anew.
    """
    own = share_budget(processing, workers)
    usage = Usage(own.settings.max_tokens, own.settings.max_requests)
    seen = Seen()
    documents = seen.watch(with_metadata(load_paths([directory]), metadata))
    with application.connect_ready() as connection:
        client = Client(connection, collection=collection)
        if dry_run:
            found = sum(isinstance(document, SourceDocument) for document in documents)
            _look(client, found, seen, force, as_json)
            return
        before = _document_count(client)
        if before and not force:
            # Before anything is added, too: the next time, that would seem to belong there.
            _find_missing(client, Seen.of(list_sources(directory)), before, force)
        loaded = own.load(connection, usage)
        client.create_collection(collection, text_search_configuration)
        report = run_ingest(
            application,
            connection,
            documents,
            paths=[directory],
            collection=collection,
            options=own,
            processing=loaded,
            usage=usage,
            workers=workers,
            max_attempts=max_attempts,
        )
        # After the additions, so that what was only renamed costs no answer of a model again.
        deleted = []
        kept = _why_nothing_goes(seen, report)
        if kept is None:
            missing, after = missing_sources(connection, collection, seen)
            if not force:
                check_deletion(len(missing), before, after, collection)
            deleted = list(delete_sources(connection, collection, missing))
    if as_json:
        click.echo(json.dumps({**asdict(report), "deleted": deleted}, ensure_ascii=False))
    else:
        click.echo(f"{report.summary()}; {len(deleted)} deleted")
    report_failures(report)
    if kept is not None:
        message(kept)
    if not report.complete:
        click.get_current_context().exit(1)


def _why_nothing_goes(seen: Seen, report: Report | None = None) -> str | None:
    """Say why nothing must be deleted; None where something may be."""
    if seen.unclear:
        return (
            "Nothing is deleted: it is not known which documents failed.\n"
            "Hint: Mend what failed, and sync again."
        )
    if report is not None and (report.stopped or report.waiting or report.cancelled):
        # What was only renamed may not be in yet, and its answers would go with the old name.
        return (
            "Nothing is deleted: not all of the directory is in.\n"
            "Hint: Run the same command again to go on."
        )
    return None


def _document_count(client: Client) -> int:
    """How many documents the collection has; 0 where there is none."""
    return sum(
        held.documents for held in client.collections() if held.collection == client.collection
    )


def _find_missing(client: Client, seen: Seen, before: int, force: bool) -> list[str]:
    """Return what would be deleted; raise SagError where only --force allows it."""
    if seen.unclear:
        return []
    missing, _ = missing_sources(client.connection, client.collection, seen)
    if not force:
        check_deletion(len(missing), before, len(missing) + len(seen.digests), client.collection)
    return missing


def _look(client: Client, documents: int, seen: Seen, force: bool, as_json: bool) -> None:
    """Print what a sync would delete."""
    before = _document_count(client)
    missing = _find_missing(client, seen, before, force) if before else []
    if as_json:
        click.echo(json.dumps({"documents": documents, "delete": missing}))
        return
    for source in missing:
        click.echo(source)
    message(f"{documents} documents in the directory; {len(missing)} would be deleted.")
    kept = _why_nothing_goes(seen)
    if kept is not None:
        message(kept)
