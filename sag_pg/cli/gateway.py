"""The commands that tell the database where its model gateway is."""

import json
from pathlib import Path

import click

from sag_pg.cli.application import Application, message, pass_application


@click.group()
def gateway() -> None:
    """Let the database call the model gateway, which sag-pg serve runs."""


@gateway.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where the gateway listens, as the database server reaches it.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=5454, show_default=True, help="Its port."
)
@click.option(
    "--socket-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the gateway's Unix socket, in place of a host.",
)
@click.option(
    "--sslmode",
    type=click.Choice(["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]),
    help="How the connection is encrypted; verify-full where it leaves the machine.",
)
@click.option(
    "--sslrootcert",
    metavar="PATH",
    help="Certificate that vouches for the gateway's: a file on the database server.",
)
@pass_application
def install(
    application: Application,
    host: str,
    port: int,
    socket_dir: Path | None,
    sslmode: str | None,
    sslrootcert: str | None,
) -> None:
    """Tell the database where its gateway listens, with a new random password.

    Creates the extension dblink, the foreign server sag_gateway and its user mapping, and lets
    sag_reader and sag_writer use it. The password is made in the database and stays there. To do
    it again changes the address and keeps the password.
    """
    address = host if socket_dir is None else str(socket_dir.absolute())
    given = {"sslmode": sslmode, "sslrootcert": sslrootcert}
    options = json.dumps({name: value for name, value in given.items() if value is not None})
    with application.connect_ready() as connection:
        row = connection.execute(
            "SELECT is_new FROM sag.install_gateway(%s, %s, %s::jsonb) AS r (is_new)",
            (address, port, options),
        ).fetchone()
    done = "is installed" if row is not None and row[0] else "was installed; its address is now set"
    message(f"The gateway {done}: the database looks for it at {address}, port {port}.")
    message("Run it with: sag-pg serve")


@gateway.command()
@pass_application
def rotate(application: Application) -> None:
    """Give the gateway a new random password.

    Nothing has to be restarted: the gateway asks the database for it at each new connection.
    """
    with application.connect_ready() as connection:
        connection.execute("SELECT FROM sag.rotate_gateway()")
    message("The gateway has a new password. New connections use it; open ones go on.")


@gateway.command()
@pass_application
def remove(application: Application) -> None:
    """Take the gateway out of the database. Retrieval goes on without a model."""
    with application.connect_ready() as connection:
        row = connection.execute(
            "SELECT was_there FROM sag.remove_gateway() AS r (was_there)"
        ).fetchone()
    if row is not None and row[0]:
        message("The gateway is removed. The extension dblink stays.")
    else:
        message("No gateway is installed.")
