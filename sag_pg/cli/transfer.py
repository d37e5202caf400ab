"""The commands that move a collection between databases: export and import."""

import dataclasses
import json
import sys
from pathlib import Path

import click

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.options import collection_option, json_option
from sag_pg.transfer import ExportedSet, Transfer, export_collection, import_collection


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@collection_option
@click.option("--force", is_flag=True, help="Replace an earlier export in DIRECTORY.")
@json_option
@pass_application
def export(
    application: Application, directory: Path, collection: str, force: bool, as_json: bool
) -> None:
    """Write a collection into DIRECTORY, as .jsonl files and a manifest.

    Documents, chunks, events, entities, the links between them and the answers of language models,
    as they are at one moment. sag-pg import brings them into another database without any model.
    """
    with (
        application.connect_ready() as connection,
        click.progressbar(
            length=0, label="Exporting", file=sys.stderr, show_percent=False,
            item_show_func=lambda item: item,
        ) as bar,
    ):  # fmt: skip
        transfer = export_collection(
            connection,
            collection,
            directory,
            overwrite=force,
            progress=lambda lines: bar.update(0, f"{lines} lines") if lines % 1000 == 0 else None,
        )
    _print(transfer, as_json)


@click.command(name="import")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--collection", "-c", metavar="NAME", help="Its name here. Else the one that it had.")
@click.option(
    "--without-embeddings", is_flag=True, help="Leave the vectors out, and search by words."
)
@json_option
@pass_application
def import_(
    application: Application,
    directory: Path,
    collection: str | None,
    without_embeddings: bool,
    as_json: bool,
) -> None:
    """Bring the collection that sag-pg export wrote into DIRECTORY into this database.

    No model is asked. Documents that are there as they are cost nothing, so that an import that
    was ended is continued by the same command; others of the collection are left alone.
    """
    exported = ExportedSet(directory)
    total = exported.facts["files"]["documents.jsonl"]["lines"]
    with (
        application.connect_ready() as connection,
        click.progressbar(length=max(total, 1), label="Importing", file=sys.stderr) as bar,
    ):
        transfer = import_collection(
            connection,
            exported,
            collection,
            embeddings=not without_embeddings,
            progress=lambda documents: bar.update(documents - bar.pos),
        )
    _print(transfer, as_json)
    message(
        f"{transfer.added} documents added, {transfer.replaced} replaced,"
        f" {transfer.unchanged} unchanged."
    )


def _print(transfer: Transfer, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(transfer), ensure_ascii=False))
        return
    click.echo(
        f"{transfer.collection}: {transfer.documents} documents, {transfer.chunks} chunks,"
        f" {transfer.entities} entities, {transfer.answers} answers of models"
    )
