"""Which database a command works on, and where that was said.

The order is that of the command line's manual: a flag beats every environment variable, the
program's own variable beats the general one, and libpq's variables come last before the
embedded server.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import platformdirs
import psycopg
from psycopg import conninfo as libpq
from psycopg import pq

from sag_pg.errors import ConfigurationError

URL_VARIABLES: Final = ("SAG_PG_DATABASE_URL", "DATABASE_URL")
DATA_DIR_VARIABLE: Final = "SAG_PG_DATA_DIR"

# Those that name a server, a database or a role. Variables that only refine a connection
# (PGSSLMODE, PGAPPNAME, PGPASSWORD, ...) do not say that there is one.
LIBPQ_VARIABLES: Final = (
    "PGSERVICE",
    "PGHOST",
    "PGHOSTADDR",
    "PGPORT",
    "PGDATABASE",
    "PGUSER",
)


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """A database to connect to. Its text forms never hold a password.

    Attributes:
        source: The flag or the variable that named the database, for messages.
        conninfo: Connection string or URL for libpq; empty to let libpq read its own variables.
            Not used for the embedded server.
        data_dir: Absolute directory of the embedded server; None for any other database.
    """

    source: str
    conninfo: str = field(default="", repr=False)
    data_dir: Path | None = None

    @property
    def is_embedded(self) -> bool:
        """Whether the program itself runs the server."""
        return self.data_dir is not None

    def __str__(self) -> str:
        if self.data_dir is not None:
            return f"embedded server in {self.data_dir}"
        if not self.conninfo:
            return f"database named by {self.source}"
        return redact(self.conninfo)


def resolve(
    database_url: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ConnectionTarget:
    """Find the database to work on.

    Args:
        database_url: What the flag `--database-url` says; None where it is absent.
        data_dir: What the flag `--data-dir` says; None where it is absent.
        environ: The environment. A variable that is set to nothing counts as unset.

    Raises:
        ConfigurationError: Both flags are given, or the connection string does not parse.
    """
    if database_url is not None and data_dir is not None:
        raise ConfigurationError(
            "--database-url and --data-dir exclude each other.",
            "--data-dir is the place of the embedded server, which is used without a URL.",
        )
    if database_url is not None:
        return _server("--database-url", database_url)
    if data_dir is not None:
        return _embedded("--data-dir", data_dir)
    for variable in URL_VARIABLES:
        if url := environ.get(variable):
            return _server(variable, url)
    if named := [variable for variable in LIBPQ_VARIABLES if environ.get(variable)]:
        return ConnectionTarget(source=", ".join(named))
    if directory := environ.get(DATA_DIR_VARIABLE):
        return _embedded(DATA_DIR_VARIABLE, directory)
    return _embedded("default", platformdirs.user_data_path("sag-pg", appauthor=False))


def redact(conninfo: str) -> str:
    """Rewrite a connection string as `key=value` pairs without its secrets.

    A string that libpq cannot parse is not repeated at all: where its password stands is
    unknown.
    """
    try:
        options = pq.Conninfo.parse(conninfo.encode())
    except psycopg.OperationalError:
        return "(unreadable connection string)"
    # libpq marks what must not be displayed with "*".
    shown = {
        option.keyword.decode(): option.val.decode()
        for option in options
        if option.val is not None and option.dispchar != b"*"
    }
    return libpq.make_conninfo("", **shown)


def _server(source: str, url: str) -> ConnectionTarget:
    if not url.strip():
        raise ConfigurationError(f"{source} is empty.", "Write postgresql://HOST/DATABASE.")
    # The message of libpq is not passed on: it repeats the string, and with it the password.
    try:
        options = libpq.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        options = None
    if options is None or _is_misread(options):
        scheme, separator, _ = url.partition("://")
        if separator and scheme not in ("postgresql", "postgres"):
            message = f"{source} has the scheme {scheme!r}, which is not PostgreSQL's."
        else:
            message = f"{source} is not a connection string that PostgreSQL's client can read."
        hint = "Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, special characters as %XX."
        if source == "DATABASE_URL":
            hint += " SAG_PG_DATABASE_URL and --database-url go before DATABASE_URL."
        raise ConfigurationError(message, hint)
    return ConnectionTarget(source=source, conninfo=url)


def _is_misread(options: Mapping[str, Any]) -> bool:
    """Whether a password's unescaped `/`, `?` or `@` made libpq take a part of it for another."""
    hosts = str(options.get("host", "")).split(",")
    ports = str(options.get("port", "")).split(",")
    # Directories of sockets start with "/", abstract sockets with "@".
    return any("@" in host[1:] and host[0] != "/" for host in hosts) or not all(
        port.isdecimal() for port in ports if port
    )


def _embedded(source: str, directory: str | os.PathLike[str]) -> ConnectionTarget:
    if not os.fspath(directory):
        raise ConfigurationError(f"{source} is empty.", "Name a directory.")
    return ConnectionTarget(source=source, data_dir=Path(directory).expanduser().absolute())
