"""What all commands share: the database they work on and the way errors are shown."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import click
import psycopg

from sag_pg import config, database, migrate
from sag_pg.cli.layout import printable
from sag_pg.errors import SagError

Connection = psycopg.Connection[Any]

_INTERRUPTED = 130


@dataclass
class Application:
    """The object of click's context; get it with `pass_application`.

    Attributes:
        database_url: The flag of that name.
        data_dir: The flag of that name.
    """

    database_url: str | None = None
    data_dir: Path | None = None

    @cached_property
    def target(self) -> config.ConnectionTarget:
        """The database that flags and environment name."""
        return config.resolve(self.database_url, self.data_dir)

    def connect(self) -> Connection:
        """Open a connection to the database in whatever state it is.

        As a context manager, the connection closes itself.
        """
        return database.connect(self.target)

    def connect_ready(self) -> Connection:
        """Open a connection to a migrated database, with the vector types registered.

        The embedded server is this program's own, so it is migrated where that is needed; any
        other database never is.

        Raises:
            MigrationsPendingError: The database has to be migrated.
            DatabaseNewerError: A newer program has migrated it.
        """
        return migrate.connect_migrated(self.target, notify=message)


pass_application = click.make_pass_decorator(Application)


def message(text: str) -> None:
    """Tell the user something that is not the command's data."""
    click.echo(printable(text), err=True)


@contextlib.contextmanager
def reporting_errors(ctx: click.Context) -> Iterator[None]:
    """Turn what a user can act upon into messages and an exit code.

    Faults of the program keep their trace.
    """
    try:
        yield
    except SagError as error:
        _leave(ctx, str(error), error.hint, error.exit_code)
    except psycopg.Error as error:
        _leave(ctx, *database.explain_error(error), SagError.exit_code)
    except KeyboardInterrupt:
        message("Interrupted")
        ctx.exit(_INTERRUPTED)


def _leave(ctx: click.Context, text: str, hint: str | None, exit_code: int) -> NoReturn:
    message(f"Error: {text}")
    if hint is not None:
        message(f"Hint: {hint}")
    ctx.exit(exit_code)
