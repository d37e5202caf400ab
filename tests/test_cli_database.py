"""The commands migrate, status, psql and stop, run as a user runs them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import psycopg
import pytest
from click.testing import CliRunner
from conftest import Server
from psycopg import conninfo as libpq

from sag_pg import __version__, cli, embedded, scripts
from sag_pg.migrate import LOCK_KEY


def sag_pg(
    *arguments: str, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", "from sag_pg.cli import main; main()", *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory whose server is stopped after the test."""
    directory = tmp_path / "data"
    yield directory
    embedded.stop(directory)


def test_every_registered_command_can_be_imported() -> None:
    context = click.Context(cli.main)
    for name in cli.main.list_commands(context):
        command = cli.main.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(), f"{name} has no help"


def test_version_and_unknown_command() -> None:
    runner = CliRunner()
    assert runner.invoke(cli.main, ["--version"]).output == f"sag-pg, version {__version__}\n"
    result = runner.invoke(cli.main, ["migrat"])
    assert result.exit_code == 2
    assert "No such command" in result.stderr


def test_database_goes_from_empty_to_current(empty_database_url: str) -> None:
    runner = CliRunner(env={"DATABASE_URL": empty_database_url})
    total = len(scripts.load_program().migrations)

    result = runner.invoke(cli.main, ["status"])
    assert result.exit_code == 3
    assert result.stdout.count("\npending ") == total
    assert result.stderr == "Run: sag-pg migrate\n"

    result = runner.invoke(cli.main, ["migrate", "--dry-run"])
    assert result.exit_code == 0
    assert result.stdout.count("would be applied") == total + 1
    assert runner.invoke(cli.main, ["status"]).exit_code == 3

    result = runner.invoke(cli.main, ["migrate", "--json"])
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["migrations"]) == total

    result = runner.invoke(cli.main, ["migrate"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "Nothing to do" in result.stderr

    result = runner.invoke(cli.main, ["status", "--json"])
    assert result.exit_code == 0
    status = json.loads(result.stdout)
    assert status["source"] == "DATABASE_URL"
    assert sorted(status["extensions"]) == ["pg_trgm", "vector"]
    assert len(status["applied"]) == total
    assert status["pending"] == status["drifted"] == status["sources_drifted"] == []


def test_status_of_a_drifted_and_of_a_newer_database(empty_database_url: str) -> None:
    runner = CliRunner(env={"DATABASE_URL": empty_database_url})
    assert runner.invoke(cli.main, ["migrate"]).exit_code == 0
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE sag.applied_source SET sha256 = 'x' WHERE path = 'search_path.sql'"
        )
        result = runner.invoke(cli.main, ["status"])
        assert result.exit_code == 3
        assert "drifted     sql/search_path.sql\n" in result.stdout

        connection.execute(
            "INSERT INTO sag.migration (version, name, sha256, program_version)"
            " VALUES (9999, '9999_future.sql', 'x', '9.9')"
        )
        result = runner.invoke(cli.main, ["status"])
        assert result.exit_code == 4
        assert "unknown     9999_future.sql\n" in result.stdout
        result = runner.invoke(cli.main, ["migrate"])
        assert result.exit_code == 4
        assert "Error: A newer sag-pg" in result.stderr
        assert "Hint: Upgrade" in result.stderr


def test_flags_beat_the_environment(empty_database_url: str) -> None:
    runner = CliRunner(
        env={
            "SAG_PG_DATABASE_URL": "postgresql://127.0.0.1:1/own",
            "DATABASE_URL": "postgresql://127.0.0.1:1/general",
            "PGHOST": "127.0.0.1",
            "SAG_PG_DATA_DIR": "/nowhere",
        }
    )
    result = runner.invoke(cli.main, ["--database-url", empty_database_url, "status", "--json"])
    assert json.loads(result.stdout)["source"] == "--database-url"


def test_errors_are_messages_with_hints() -> None:
    runner = CliRunner()
    result = runner.invoke(
        cli.main, ["--database-url", "postgresql://me:hunter2@127.0.0.1:1/db", "status"]
    )
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: No connection to user=me dbname=db host=127.0.0.1")
    assert "\nHint: " in result.stderr
    assert "hunter2" not in result.output

    result = runner.invoke(cli.main, ["--database-url", "x", "--data-dir", "y", "status"])
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr

    result = runner.invoke(cli.main, ["--database-url", "dbname=x", "stop"])
    assert result.exit_code == 2
    assert "not the embedded one" in result.stderr


def test_embedded_server_survives_commands_until_stop(data_dir: Path) -> None:
    here = {"SAG_PG_DATA_DIR": str(data_dir)}
    assert sag_pg("migrate", environment=here).returncode == 0
    pid = (data_dir / "postgres" / "postmaster.pid").read_text()
    result = sag_pg("psql", "-Atc", "SELECT count(*) > 0 FROM sag.migration", environment=here)
    assert (result.stdout, result.stderr, result.returncode) == ("t\n", "", 0)
    assert (data_dir / "postgres" / "postmaster.pid").read_text() == pid

    result = sag_pg("stop", environment=here)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == f"Stopped the embedded server in {data_dir}.\n"
    result = sag_pg("stop", environment=here)
    assert result.returncode == 0
    assert result.stderr == f"No embedded server is running in {data_dir}.\n"


def test_embedded_server_is_not_led_astray_by_libpqs_variables(data_dir: Path) -> None:
    result = sag_pg(
        "--data-dir",
        str(data_dir),
        "psql",
        "-Atc",
        "SELECT current_database()",
        environment={
            "PGHOST": "192.0.2.1",
            "PGHOSTADDR": "192.0.2.1",
            "PGPORT": "1",
            "PGDATABASE": "other",
            "PGUSER": "other",
        },
    )
    assert (result.stdout, result.stderr) == ("sag\n", "")


def test_psql_gets_the_connection_by_its_environment(tmp_path: Path) -> None:
    # Stands in for psql on the PATH and shows what it was given.
    fake = tmp_path / "psql"
    fake.write_text(
        '#!/bin/sh\necho "$PGPASSWORD $PGUSER $PGHOST $PGDATABASE $PGSSLMODE"\n'
        'printf "%s\\n" "$@"\n'
    )
    fake.chmod(0o755)
    result = sag_pg(
        "--database-url",
        "postgresql://me:hunter%202@db/app?sslmode=require&keepalives_idle=7",
        "psql",
        "-c",
        "SELECT 1",
        "-h",
        environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert result.stdout.splitlines() == [
        "hunter 2 me db app require",
        "--dbname=keepalives_idle=7",
        "--set=SHOW_CONTEXT=never",
        "-c",
        "SELECT 1",
        "-h",
    ]


def test_a_service_in_the_environment_leads_psql_nowhere_else(
    database_url: str, embedded_server: Server, tmp_path: Path
) -> None:
    services = tmp_path / "services.conf"
    services.write_text(
        f"[other]\nhost={embedded_server.host}\nport={embedded_server.port}\n"
        f"user={embedded_server.user}\ndbname=postgres\n"
    )
    ask = ("psql", "-XAtc", "SELECT current_database()")
    environment = {"PGSERVICEFILE": str(services), "PGSERVICE": "other"}
    result = sag_pg("--database-url", database_url, *ask, environment=environment)
    assert result.stdout.strip() == libpq.conninfo_to_dict(database_url)["dbname"]
    assert sag_pg(*ask, environment=environment).stdout == "postgres\n"
    del environment["PGSERVICE"]
    result = sag_pg("--database-url", "service=other", *ask, environment=environment)
    assert result.stdout == "postgres\n"


def test_psqls_own_options_go_first(embedded_server: Server) -> None:
    for option, value, shown in (("-U", "nobody_at_all", "role"), ("-d", "no such", "database")):
        result = sag_pg(
            *("--database-url", embedded_server.url("postgres")),
            *("psql", "-X", option, value, "-c", "SELECT 1"),
        )
        assert result.returncode == 2
        assert f'{shown} "{value}" does not exist' in result.stderr
    result = sag_pg(
        "--database-url", embedded_server.url("postgres"), "psql", "-Xc", "SELECT sag.none()"
    )
    assert "CONTEXT" not in result.stderr


def test_psql_reads_libpqs_variables_itself(embedded_server: Server) -> None:
    result = sag_pg(
        "psql",
        "-XAtc",
        "SELECT current_database()",
        environment={
            "PGHOST": embedded_server.host,
            "PGPORT": str(embedded_server.port),
            "PGUSER": embedded_server.user,
            "PGDATABASE": "postgres",
        },
    )
    assert (result.stdout, result.returncode) == ("postgres\n", 0), result.stderr


def test_interrupt_ends_a_waiting_migration(empty_database_url: str) -> None:

    with psycopg.connect(empty_database_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (LOCK_KEY,))
        process = subprocess.Popen(
            [sys.executable, "-c", "from sag_pg.cli import main; main()", "migrate"],
            env={**os.environ, "DATABASE_URL": empty_database_url},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert process.stderr.readline() == "Waiting for another sag-pg migrate\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert process.stderr.read() == "Interrupted\n"


def test_closed_pipe_is_no_error(database_url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from sag_pg.cli import main; main()", "status"],
        env={**os.environ, "DATABASE_URL": database_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.wait(timeout=20)
    assert process.stderr.read() == ""


def test_a_role_that_could_shadow_functions_is_named(empty_database_url: str) -> None:
    runner = CliRunner(env={"DATABASE_URL": empty_database_url})
    assert "Warning" not in runner.invoke(cli.main, ["migrate"]).stderr
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    for command in ("migrate", "status"):
        result = runner.invoke(cli.main, [command])
        assert result.exit_code == 0
        assert "Warning: PUBLIC may create functions in schema public" in result.stderr
        assert "REVOKE CREATE ON SCHEMA public FROM PUBLIC" in result.stderr
