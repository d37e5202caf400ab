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
from sag_pg.ingest.document import with_metadata
from sag_pg.ingest.loaders import load_paths
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
            _look(client, sum(1 for _ in documents), seen, force, as_json)
            return
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
        if not seen.unclear:
            missing, total = missing_sources(connection, collection, seen)
            if not force:
                check_deletion(len(missing), total, collection)
            deleted = list(delete_sources(connection, collection, missing))
    if as_json:
        click.echo(json.dumps({**asdict(report), "deleted": deleted}, ensure_ascii=False))
    else:
        click.echo(f"{report.summary()}; {len(deleted)} deleted")
    report_failures(report)
    if seen.unclear:
        message(
            "Nothing was deleted: it is not known which documents failed.\n"
            "Hint: Mend what failed, and sync again."
        )
    if not report.complete:
        click.get_current_context().exit(1)


def _look(client: Client, documents: int, seen: Seen, force: bool, as_json: bool) -> None:
    """Print what a sync would delete."""
    names = [held.collection for held in client.collections()]
    missing: list[str] = []
    if client.collection in names:
        missing, _ = missing_sources(client.connection, client.collection, seen)
        if not force:
            # As it would be after the additions.
            check_deletion(len(missing), len(missing) + documents, client.collection)
    if as_json:
        click.echo(json.dumps({"documents": documents, "delete": missing}))
        return
    for source in missing:
        click.echo(source)
    message(f"{documents} documents in the directory; {len(missing)} would be deleted.")
