"""The command line `sag-pg`.

Data goes to standard output, messages to standard error. Exit codes: 0 done, 1 failed, 2 wrong
usage or configuration, 3 migrations pending or objects drifted, 4 database newer than the
program, 130 interrupted.
"""

import importlib
import keyword
import os
from pathlib import Path

# numpy's linear algebra would start a thread for each core, and on vectors as small as these they
# hold each other up: entity extraction takes twice as long. It has to stand before numpy is
# imported, which the connection does, and is left alone where the user has set it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click

from sag_pg import __version__
from sag_pg.cli.application import Application, reporting_errors

# Where each command is: a click command of that name in the module, dashes as underscores, with
# another one behind it where the name is a keyword of Python.
# Modules are imported when their command is asked for, so that no command waits for the models
# that another one needs.
COMMANDS = {
    "ingest": "sag_pg.cli.ingest",
    "collections": "sag_pg.cli.collections",
    "config": "sag_pg.cli.config",
    "delete": "sag_pg.cli.collections",
    "demo": "sag_pg.cli.demo",
    "drop": "sag_pg.cli.collections",
    "eval": "sag_pg.cli.evaluate",
    "export": "sag_pg.cli.transfer",
    "gateway": "sag_pg.cli.gateway",
    "import": "sag_pg.cli.transfer",
    "jobs": "sag_pg.cli.jobs",
    "migrate": "sag_pg.cli.database",
    "psql": "sag_pg.cli.database",
    "reembed": "sag_pg.cli.reembed",
    "retrieve": "sag_pg.cli.retrieve",
    "search": "sag_pg.cli.retrieve",
    "serve": "sag_pg.cli.serve",
    "status": "sag_pg.cli.database",
    "stop": "sag_pg.cli.database",
    "sync": "sag_pg.cli.sync",
    "trace": "sag_pg.cli.retrieve",
    "work": "sag_pg.cli.work",
}


class CommandGroup(click.Group):
    """Finds the commands of `COMMANDS` and turns errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in alphabetical order."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        name = cmd_name.replace("-", "_")
        command = getattr(module, f"{name}_" if keyword.iskeyword(name) else name)
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was asked for."""
        with reporting_errors(ctx):
            return super().invoke(ctx)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--database-url",
    metavar="URL",
    help="PostgreSQL to work on: postgresql://USER@HOST/DATABASE or KEY=VALUE pairs. Goes before"
    " SAG_PG_DATABASE_URL, DATABASE_URL and libpq's PGHOST and so on. Keep the password in"
    " PGPASSWORD or ~/.pgpass: arguments can be seen by other users.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Work on the embedded server in this directory. Goes before all variables; without a"
    " database in any of them, SAG_PG_DATA_DIR or the user's data directory is it.",
)
@click.version_option(__version__, prog_name="sag-pg")
@click.pass_context
def main(ctx: click.Context, database_url: str | None, data_dir: Path | None) -> None:
    """Multi-hop retrieval inside PostgreSQL.

    Without any database named, sag-pg runs an embedded PostgreSQL in your data directory; it
    goes on running between commands until sag-pg stop.
    """
    ctx.obj = Application(database_url=database_url, data_dir=data_dir)
