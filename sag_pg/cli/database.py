"""The commands that look after the database: migrate, status, psql, stop."""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from psycopg import conninfo as libpq
from psycopg import pq

from sag_pg import __version__, database, embedded
from sag_pg import migrate as migrations
from sag_pg.cli.application import Application, Connection, message, pass_application
from sag_pg.errors import ConfigurationError, DatabaseNewerError, MigrationsPendingError
from sag_pg.requirements import installed_extensions


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be done and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@pass_application
def migrate(application: Application, dry_run: bool, as_json: bool) -> None:
    """Bring the database to the state this program needs.

    Pending migrations run once; functions and views are created anew each time. All of it is one
    transaction. Any number of processes may do this at once.
    """
    with application.connect() as connection:
        outcome = migrations.migrate(connection, dry_run=dry_run, notify=message)
        if not dry_run:
            _warn_of_creators(connection)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(outcome)))
        return
    would = "would be " if dry_run else ""
    for extension in outcome.extensions:
        click.echo(f"extension {extension}: {would}created")
    for name in outcome.migrations:
        click.echo(f"migrations/{name}: {would}applied")
    if len(outcome.sources_changed) == outcome.sources:
        click.echo(f"sql/: {outcome.sources} files {would}applied")
    else:
        for name in outcome.sources_changed:
            click.echo(f"sql/{name}: {would}replaced")
    if not (outcome.extensions or outcome.migrations or outcome.sources_changed):
        message("Nothing to do: the database is up to date.")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_application
def status(application: Application, as_json: bool) -> None:
    """Show the connection, what is applied, pending and drifted, the gateway, and a reembedding.

    The exit code is 3 where something is pending or drifted, and 4 where the database is newer
    than this program.
    """
    with application.connect() as connection:
        state = migrations.inspect(connection)
        server_version = connection.info.parameter_status("server_version")
        extensions = installed_extensions(connection)
        gateway = reembedding = None
        if state.is_current:
            _warn_of_creators(connection)
            row = connection.execute("SELECT facts FROM sag.gateway_status() AS r (facts)")
            gateway = row.fetchall()[0][0]
            row = connection.execute("SELECT facts FROM sag.reembedding_status() AS r (facts)")
            reembedding = row.fetchall()[0][0]
    if as_json:
        facts = {
            "connection": str(application.target),
            "source": application.target.source,
            "program_version": __version__,
            "server_version": server_version,
            "extensions": extensions,
            **dataclasses.asdict(state),
            "gateway": gateway,
            "reembedding": reembedding,
        }
        click.echo(json.dumps(facts))
    else:
        shown = ", ".join(f"{name} {version}" for name, version in extensions.items())
        click.echo(f"connection  {application.target} ({application.target.source})")
        click.echo(f"program     sag-pg {__version__}")
        click.echo(f"server      PostgreSQL {server_version}")
        click.echo(f"extensions  {shown or 'none'}")
        for label, names in (
            ("applied", [migration.name for migration in state.applied]),
            ("pending", state.pending),
            ("drifted", state.drifted),
            # Before the first migration there is nothing that could have drifted.
            ("drifted", [f"sql/{name}" for name in state.sources_drifted if state.applied]),
            ("unknown", state.unknown),
        ):
            for name in names:
                click.echo(f"{label:<11} {name}")
        if gateway is not None:
            for label, text in _gateway_lines(gateway):
                click.echo(f"{label:<11} {text}")
        if reembedding is not None:
            click.echo(f"{'reembed':<11} {_describe_reembedding(reembedding)}")
    if state.database_newer:
        click.get_current_context().exit(DatabaseNewerError.exit_code)
    if not state.is_current:
        if state.pending or state.sources_drifted:
            message("Run: sag-pg migrate")
        click.get_current_context().exit(MigrationsPendingError.exit_code)


def _gateway_lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What status shows of sag.gateway_status(): pairs of label and text."""
    if not facts["installed"]:
        yield "gateway", "not installed"
        return
    address = f"{facts['host']}:{facts['port']}"
    if not facts["answering"]:
        reason = facts["detail"] or facts["error"]
        yield "gateway", f"{address}, not answering: {' '.join(reason.split())}"
        return
    status = facts["status"]
    yield (
        "gateway",
        f"{address}, sag-pg {status['version']}, up {status['uptime_s']:.0f} s,"
        f" {status['connections']} connections, {status['running']} running,"
        f" {status['queued']} queued",
    )
    models = {
        "embedding": status["embedding_model"],
        "chat": status["chat_model"],
        "rerank": status["rerank_model"],
    }
    shown = ", ".join(f"{kind} {name}" for kind, name in models.items() if name is not None)
    yield "models", shown or "none"
    if facts["fits"] is False:
        yield "warning", "vectors of this embedding model cannot be compared with the database's"
    for name, call in status["calls"].items():
        if call["count"] == 0:
            continue
        latency = ", ".join(
            f"p{share} {call[f'p{share}_ms']:.1f} ms"
            for share in (50, 95, 99)
            if call[f"p{share}_ms"] is not None
        )
        yield (
            f"  {name}",
            f"{call['count']} calls, {call['errors']} errors, {call['cache_hits']} from the cache"
            + (f", {latency}" if latency else ""),
        )
    usage = status["usage"]
    yield (
        "usage",
        f"{usage['requests']} requests, {usage['prompt_tokens']} tokens in,"
        f" {usage['completion_tokens']} tokens out",
    )


def _describe_reembedding(facts: dict[str, Any]) -> str:
    """What status shows of sag.reembedding_status()."""
    next_model = f"{facts['model']} with {facts['dimensions']} dimensions"
    if (facts["model"], facts["dimensions"]) == (
        facts["present_model"],
        facts["present_dimensions"],
    ):
        text = f"missing vectors of {next_model}"
    else:
        text = f"from {facts['present_model'] or 'none'} to {next_model}"
    if facts["phase"] == "embedding":
        done = facts["total"] - facts["remaining"]
        text += f": {done} of {facts['total']} rows done, {facts['remaining']} remain"
    else:
        text += f": {facts['phase']}"
    return text if facts["at_work"] else f"{text}; nobody is at work, run sag-pg reembed to go on"


def _warn_of_creators(connection: Connection) -> None:
    rows = connection.execute("SELECT schema_name, role_name FROM sag.schema_creators()")
    for schema, role in rows:
        message(
            f"Warning: {role} may create functions in schema {schema}, where an extension is. They"
            " could be run by whoever retrieves.\n"
            f"Hint: REVOKE CREATE ON SCHEMA {schema} FROM {role}; or move the extension elsewhere."
        )


@click.command()
@pass_application
def stop(application: Application) -> None:
    """Stop the embedded server. The next command starts it again."""
    directory = application.target.data_dir
    if directory is None:
        raise ConfigurationError(
            f"The database is not the embedded one: it is named by {application.target.source}.",
            "Name the embedded server's directory with --data-dir.",
        )
    if embedded.stop(directory):
        message(f"Stopped the embedded server in {directory}.")
    else:
        message(f"No embedded server is running in {directory}.")


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_application
def psql(application: Application, arguments: tuple[str, ...]) -> None:
    """Open psql on the database; ARGUMENTS are psql's.

    For example: sag-pg psql -c "SELECT * FROM sag_retrieve('question')"
    """
    program = _find_psql(application)
    environment, rest = _for_psql(database.conninfo(application.target))
    named = [f"--dbname={rest}"] if rest else []
    # psql shows 60 lines of PL/pgSQL below each error otherwise.
    named.append("--set=SHOW_CONTEXT=never")
    # The process becomes psql, so that signals and the terminal are psql's.
    os.execve(program, [str(program), *named, *arguments], environment)  # noqa: S606


def _for_psql(conninfo: str) -> tuple[dict[str, str], str]:
    """Turn a connection string into libpq's variables, and what has none into a string again.

    As variables, they give way to psql's own -U, -d, -h and -p, and a password in the arguments
    could be read by every user of the machine.
    """
    environment = dict(os.environ)
    given = [option for option in pq.Conninfo.parse(conninfo.encode()) if option.val is not None]
    # A service goes before variables, so that beside one that is named they count for nothing.
    is_service = any(option.keyword == b"service" for option in given)
    if given and not is_service:
        environment.pop("PGSERVICE", None)
    rest = {}
    for option in given:
        value = (option.val or b"").decode()
        if option.envvar is not None and (not is_service or option.dispchar == b"*"):
            environment[option.envvar.decode()] = value
        elif option.dispchar == b"*":
            message("psql will ask for the key's passphrase.")
        else:
            rest[option.keyword.decode()] = value
    return environment, libpq.make_conninfo("", **rest)


def _find_psql(application: Application) -> Path:
    """The wheel's psql for its own server, else the machine's, else the wheel's."""
    if not application.target.is_embedded and (found := shutil.which("psql")):
        return Path(found)
    try:
        return embedded.bin_dir() / "psql"
    except ConfigurationError as error:
        if application.target.is_embedded:
            raise
        raise ConfigurationError(
            "No psql is installed.",
            "Install PostgreSQL's client, or run pip install 'sag-pg[embedded]', which has one.",
        ) from error
