"""The commands that tell the database where its model gateway is."""

import contextlib
import ipaddress
import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from sag_pg.cli.application import Application, Connection, message, pass_application
from sag_pg.gateway import DEFAULT_PORT


@click.group()
def gateway() -> None:
    """Let the database call the model gateway, which sag-pg serve runs."""


@gateway.command()
@click.option(
    "--host",
    show_default="127.0.0.1",
    help="Where the gateway listens, as the database server reaches it.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), show_default=str(DEFAULT_PORT), help="Its port."
)
@click.option(
    "--socket-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the gateway's Unix socket, in place of a host.",
)
@click.option(
    "--sslmode",
    type=click.Choice(["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]),
    help="How the connection is encrypted. Needed where it leaves the machine: verify-full, or"
    " disable where nobody can listen in.",
)
@click.option(
    "--sslrootcert",
    metavar="PATH",
    help="Certificate that vouches for the gateway's: a file on the database server. An empty PATH"
    " takes it back.",
)
@pass_application
def install(
    application: Application,
    host: str | None,
    port: int | None,
    socket_dir: Path | None,
    sslmode: str | None,
    sslrootcert: str | None,
) -> None:
    """Tell the database where its gateway listens, with a new random password.

    Creates the extension dblink, the foreign server sag_gateway and its user mapping, and lets
    sag_reader and sag_writer use it. The password is made in the database and stays there. Done
    again, it changes what is given, and keeps the rest and the password.
    """
    address = host if socket_dir is None else str(socket_dir.absolute())
    given = {"sslmode": sslmode, "sslrootcert": sslrootcert}
    options = {name: value or None for name, value in given.items() if value is not None}
    with application.connect_ready() as connection:
        ((is_new,),) = connection.execute(
            "SELECT is_new FROM sag.install_gateway(%s, %s, %s::jsonb) AS r (is_new)",
            (address, port, json.dumps(options)),
        ).fetchall()
        place = installed_options(connection)
    done = "is installed" if is_new else "was installed; its address is now set"
    message(
        f"The gateway {done}: the database looks for it at {place['host']}, port {place['port']}."
    )
    message(f"Run it with: {_serve_command(place)}")


def installed_options(connection: Connection) -> dict[str, str]:
    """What the foreign server is told to give libpq, host and port among it."""
    return dict(
        connection.execute(
            "SELECT o.option_name, o.option_value"
            " FROM pg_foreign_server, pg_options_to_table(srvoptions) AS o"
            " WHERE srvname = 'sag_gateway'"
        ).fetchall()
    )


def _serve_command(place: Mapping[str, str]) -> str:
    """The command for a gateway where the database looks for it.

    Args:
        place: Options of the foreign server, host and port among them.
    """
    command = ["sag-pg", "serve"]
    # There may be several, which libpq tries in order; a gateway is at one.
    host, port = (place[name].split(",")[0] for name in ("host", "port"))
    if host.startswith("/"):
        command += ["--socket-dir", host]
    elif host != "127.0.0.1":
        command += ["--host", host]
    if port != str(DEFAULT_PORT):
        command += ["--port", port]
    if not host.startswith("/") and not _is_loopback(host):
        is_plain = place.get("sslmode") == "disable"
        command += ["--insecure"] if is_plain else ["--tls-cert", "FILE", "--tls-key", "FILE"]
    return shlex.join(command)


def _is_loopback(host: str) -> bool:
    """Whether a host in the options of the foreign server is the database's own machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


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
