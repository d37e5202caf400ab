"""The client that a command works with."""

import contextlib
from collections.abc import Iterator

import psycopg

from sag_pg.cli.application import Application, message
from sag_pg.client import Client
from sag_pg.models.base import EmbeddingModel


@contextlib.contextmanager
def open_client(
    application: Application,
    collection: str,
    model: EmbeddingModel | None = None,
    *,
    gateway: bool = False,
) -> Iterator[Client]:
    """Open a client for the length of a command; what the server has to say goes to stderr.

    Args:
        application: Knows the database.
        collection: Collection for all calls.
        model: Embeds questions; None searches lexically, unless the gateway does.
        gateway: Leave it to the database to have questions embedded, by its model gateway.

    Raises:
        SagError: The database cannot be used.
    """
    with application.connect_ready() as connection:
        connection.add_notice_handler(_show_notice)
        yield Client(connection, collection=collection, embedding_model=model, gateway=gateway)


def _show_notice(notice: psycopg.errors.Diagnostic) -> None:
    message(f"{(notice.severity or 'Notice').capitalize()}: {notice.message_primary}")
    if notice.message_hint is not None:
        message(f"Hint: {notice.message_hint}")
