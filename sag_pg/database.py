"""Connections to the database, wherever it is."""

import os
from collections.abc import Callable
from typing import Any

import psycopg
from pgvector.psycopg.halfvec import register_halfvec_info
from psycopg import conninfo as libpq
from psycopg import sql
from psycopg.rows import TupleRow
from psycopg.types import TypeInfo

from sag_pg import embedded
from sag_pg.config import ConnectionTarget
from sag_pg.errors import DatabaseError

_CONNECT_SECONDS = 10


def conninfo(target: ConnectionTarget) -> str:
    """Return the connection string of a target; starts the embedded server when it is that.

    The string may hold a password. It is empty where libpq is to read its own variables.

    Raises:
        ConfigurationError: The embedded server cannot be used here.
        DatabaseError: The embedded server does not start.
    """
    if target.data_dir is not None:
        return embedded.get_uri(target.data_dir)
    return target.conninfo


def connect(target: ConnectionTarget) -> psycopg.Connection[TupleRow]:
    """Open a connection in autocommit mode, in UTF-8, that a transaction pooler can carry.

    Raises:
        ConfigurationError: The embedded server cannot be used here.
        DatabaseError: The server cannot be reached or refuses the connection. The message
            never holds the password.
    """
    try:
        return _open(conninfo(target))
    except psycopg.Error as error:
        raise DatabaseError(f"No connection to {target}: {error}", _hint(target)) from error


def reopener(connection: psycopg.Connection[Any]) -> Callable[[], psycopg.Connection[TupleRow]]:
    """Return what opens further connections to the same database as the same user.

    They are as `connect` makes them, with the vector types. Opening raises psycopg.Error where the
    server cannot be reached.

    Args:
        connection: An open connection. It may be lost by the time that another one is opened.
    """
    # Of a closed connection nothing can be asked any more.
    given = libpq.conninfo_to_dict(connection.info.dsn)
    if connection.info.password:
        given["password"] = connection.info.password
    string = libpq.make_conninfo("", **given)

    def reopen() -> psycopg.Connection[TupleRow]:
        opened = _open(string)
        try:
            register_types(opened)
        except BaseException:
            opened.close()
            raise
        return opened

    return reopen


def _open(string: str) -> psycopg.Connection[TupleRow]:
    given = libpq.conninfo_to_dict(string)
    if "connect_timeout" not in given and "PGCONNECT_TIMEOUT" not in os.environ:
        given["connect_timeout"] = _CONNECT_SECONDS
    return psycopg.connect(
        libpq.make_conninfo("", **given),
        autocommit=True,
        client_encoding="UTF8",
        # As a fallback it leaves application_name and PGAPPNAME to the user.
        fallback_application_name="sag-pg",
        # A pooler may send the next statement to a session that never prepared it.
        prepare_threshold=None,
    )


def register_types(connection: psycopg.Connection[Any]) -> bool:
    """Let a connection send and receive `pgvector.HalfVector`.

    Finds the type where the extension put it, whatever the search_path.

    Returns:
        False where the extension is not installed yet; the connection is then unchanged.
    """
    row = connection.execute(
        "SELECT n.nspname FROM pg_catalog.pg_extension AS x"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = x.extnamespace"
        " WHERE x.extname = 'vector'"
    ).fetchone()
    if row is None:
        return False
    info = TypeInfo.fetch(connection, sql.Identifier(row[0], "halfvec"))
    if info is None:
        return False
    register_halfvec_info(connection, info)
    return True


def explain_error(error: psycopg.Error) -> tuple[str, str | None]:
    """Return the server's message with its detail and SQLSTATE, and its hint."""
    if error.diag.message_primary is None:
        return str(error), None
    message = f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})"
    if error.diag.message_detail is not None:
        message += f"\nDETAIL: {error.diag.message_detail}"
    hint = error.diag.message_hint
    if hint is None and message.startswith("permission denied for function"):
        hint = "Only the owner of sag-pg's schema may do this: connect as that role."
    elif hint is None and message.startswith("permission denied for"):
        hint = (
            "Ask the owner for membership in sag_reader, to retrieve, or in sag_writer, to ingest."
        )
    return message, hint


def _hint(target: ConnectionTarget) -> str:
    if target.is_embedded:
        return "Run sag-pg stop and try again; the server's log is postgres/log in that directory."
    return (
        f"The database is named by {target.source}. Check that its server runs, that it is"
        " reachable from here, and that database, user and password are right."
    )
