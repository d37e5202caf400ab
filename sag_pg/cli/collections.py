"""The commands on what is stored: collections, delete, drop."""

import dataclasses
import json
from pathlib import Path

import click

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.layout import columns_of, one_line, pad
from sag_pg.cli.options import collection_option, json_option
from sag_pg.cli.session import open_client
from sag_pg.errors import SagError
from sag_pg.text import clean


@click.command()
@json_option
@pass_application
def collections(application: Application, as_json: bool) -> None:
    """List the collections and what they hold."""
    with open_client(application, "default") as client:
        found = [dataclasses.asdict(row) for row in client.collections()]
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    names = [one_line(row["collection"]) for row in found]
    width = max(map(columns_of, ("collection", *names)))
    counts = ("documents", "events", "embeddings", "entities")
    click.secho(pad("collection", width) + "".join(f"{name:>12}" for name in counts), bold=True)
    for name, row in zip(names, found, strict=True):
        click.echo(pad(name, width) + "".join(f"{row[count]:>12}" for count in counts))


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@collection_option
@pass_application
def delete(application: Application, sources: tuple[str, ...], collection: str) -> None:
    """Delete documents with all that was made of them.

    SOURCE is the document's id, its URI, or its path as it was given to ingest. Prints what was
    deleted. The exit code is 1 where a document is not there; the others are deleted all the
    same.
    """
    wanted = list(dict.fromkeys(map(clean, sources)))
    with open_client(application, collection) as client, client.connection.transaction():
        deleted = client.delete(wanted)
        missing = [source for source in wanted if source not in deleted]
        # An id may look like a path, so that the spelling as given comes first.
        spellings = {source: _as_path(source) for source in missing}
        deleted += client.delete(list(spellings.values()))
    for source in deleted:
        click.echo(source)
    missing = [source for source in missing if spellings[source] not in deleted]
    if missing:
        raise SagError(
            f"Not in collection {collection!r}: {', '.join(missing)}.",
            "Name a source as sag-pg retrieve shows it, and its collection with --collection.",
        )


def _as_path(source: str) -> str:
    """Spell a path as the loaders do; anything else stays as it is."""
    return source if "://" in source else Path(source).as_posix()


@click.command()
@click.argument("collection")
@click.confirmation_option(prompt="Delete the collection with all that it holds?")
@pass_application
def drop(application: Application, collection: str) -> None:
    """Delete COLLECTION with all that it holds."""
    with open_client(application, collection) as client:
        client.drop_collection(collection)
    message(f"Dropped collection {collection!r}.")
