"""The commands that move a collection between databases: export and import."""

import dataclasses
import json
from pathlib import Path

import click

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.layout import one_line
from sag_pg.cli.options import collection_option, json_option
from sag_pg.cli.progress import progress_bar
from sag_pg.cli.session import open_client
from sag_pg.transfer import Exported, Imported, export_collection, import_collection


@click.command()
@click.argument("directory", metavar="DIRECTORY", type=click.Path(path_type=Path))
@collection_option
@click.option("--force", is_flag=True, help="Replace an earlier export in DIRECTORY.")
@json_option
@pass_application
def export(
    application: Application, directory: Path, collection: str, force: bool, as_json: bool
) -> None:
    """Write a collection into DIRECTORY, as .jsonl files and a manifest.

    Documents, chunks, events, entities, the links between them and the answers of language models,
    as they are at one moment. DIRECTORY appears when all is written. Two exports of the same
    content are the same bytes. sag-pg import brings it into another database without any model.
    """
    with (
        open_client(application, collection) as client,
        progress_bar("Exporting", 0) as bar,
    ):
        exported = export_collection(
            client.connection,
            collection,
            directory,
            overwrite=force,
            progress=lambda lines: bar.update(lines - bar.pos, f"{lines} lines"),
        )
    _print(exported, as_json)


@click.command(name="import")
@click.argument(
    "directory", metavar="DIRECTORY", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--collection", "-c", metavar="NAME", help="Its name here; else the one that it had.")
@click.option(
    "--without-embeddings",
    is_flag=True,
    help="Leave the vectors out, where the database is for those of another model. sag-pg reembed"
    " makes them later.",
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
    """Bring what sag-pg export wrote into DIRECTORY into this database.

    No model is asked. Documents that are there already cost nothing, so that an import that was
    ended is continued by the same command; others of the collection are left alone. A collection
    that is not there, or is empty and without settings, gets those of the exported one.
    """
    with (
        open_client(application, collection or "") as client,
        progress_bar("Importing", 1) as bar,
    ):

        def show(documents: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(documents - bar.pos, f"{documents} documents")

        imported = import_collection(
            client.connection,
            directory,
            collection,
            embeddings=not without_embeddings,
            progress=show,
        )
    _print(imported, as_json)
    if without_embeddings:
        message("They have no vectors: sag-pg reembed makes them.")


def _print(counts: Exported | Imported, as_json: bool) -> None:
    facts = dataclasses.asdict(counts)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    for name, value in facts.items():
        click.echo(f"{name:<11} {one_line(str(value))}")
