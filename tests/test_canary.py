"""A key and passwords that are put in everywhere come out nowhere."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from conftest import Server
from gateway_process import GatewayProcess
from model_server import CHAT_MODEL, EMBEDDING_MODEL, EMPTY, GOOD, ModelServer, status
from psycopg import conninfo, sql

from sag_pg import embedded

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("openai", "pygwire", "scramp")),
    reason="needs the extras [openai] and [gateway]",
)

KEY = "sk-canary-key-0123456789abcdef"
URL_PASSWORD = "canary-endpoint-password"
DATABASE_PASSWORD = "canary-database-password"
# An endpoint that repeats what it was sent, as some proxies do.
TELLTALE = status(401, f"Incorrect API key provided: {KEY}.")


def test_secrets_are_nowhere(database_url: str, embedded_server: Server, tmp_path: Path) -> None:
    given = conninfo.conninfo_to_dict(database_url)
    owner = "canary owner"
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}").format(
                sql.Identifier(owner), DATABASE_PASSWORD
            )
        )
        for setting, value in (
            ("log_statement", "all"),
            ("log_min_duration_statement", "0"),
            ("log_min_messages", "debug1"),
        ):
            admin.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                    sql.Identifier(given["dbname"]), sql.Identifier(setting), value
                )
            )
        log = Path(admin.execute("SHOW data_directory").fetchone()[0], "log")  # type: ignore[index]
        # What stands in the log so far is the statement above, and other tests'.
        log_start = log.stat().st_size
        try:
            said = run_everything(
                conninfo.make_conninfo(database_url, user=owner, password=DATABASE_PASSWORD),
                admin,
                tmp_path,
            )
        finally:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [owner]
            )
            admin.execute(
                sql.SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(sql.Identifier(owner))
            )
            admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(owner)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(owner)))
    with log.open("rb") as lines:
        lines.seek(log_start)
        said["server log"] = lines.read().decode(errors="replace")
    assert "sag_retrieve" in said["server log"]
    for place, text in said.items():
        for secret in (KEY, URL_PASSWORD, DATABASE_PASSWORD):
            assert secret not in text, place


def run_everything(url: str, admin: psycopg.Connection, tmp_path: Path) -> dict[str, str]:
    """Run the commands that touch a secret, well and badly; return all that they left behind."""
    said: dict[str, str] = {}
    with ModelServer() as models:
        environment = os.environ | {
            "DATABASE_URL": url,
            "CANARY_KEY": KEY,
            "SAG_PG_API_KEY_ENV": "CANARY_KEY",
            "SAG_PG_BASE_URL": models.url.replace("://", f"://user:{URL_PASSWORD}@"),
            "SAG_PG_CHAT_MODEL": CHAT_MODEL,
            "SAG_PG_EMBEDDING_MODEL": EMBEDDING_MODEL,
            "SAG_PG_EMBEDDING": "openai",
            "SAG_PG_MODEL_RETRIES": "0",
        }
        document = tmp_path / "acme.txt"
        document.write_text("Acme Corporation was founded by Alice Smith in Lisbon.")

        def run(*arguments: str, exit_code: int = 0) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "sag_pg", *arguments],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            said[" ".join(arguments)] = done.stdout + done.stderr
            assert done.returncode == exit_code, done.stderr
            return done.stdout + done.stderr

        ingest = ("ingest", str(document), "--extractor", "openai")
        models.always("extraction", TELLTALE)
        assert "refused the key" in run(*ingest, exit_code=1)
        models.always("extraction", EMPTY)
        run(*ingest, "--json", exit_code=1)
        models.always("extraction", GOOD)
        run(*ingest)
        run("config")
        run("config", "--json")
        gateway = GatewayProcess(
            url, tmp_path / "gateway.log", embedding="openai", environment=environment
        )
        run("gateway", "install", "--port", str(gateway.port))
        gateway.start()
        try:
            run("retrieve", "Who founded Acme Corporation?", "--embedding", "gateway")
            models.always("embedding", TELLTALE)
            run("retrieve", "Who founded it?", "--embedding", "gateway")
            run("retrieve", "Who founded it?", "--embedding", "openai", exit_code=1)
            run("gateway", "rotate")
            run("status", "--json")
            processes = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
            said["ps"] = b"\n".join(processes).decode(errors="replace")
            rows = admin.execute("SELECT * FROM pg_stat_activity").fetchall()
            said["pg_stat_activity"] = str(rows)
        finally:
            gateway.end()
        said["gateway log"] = gateway.log.read_text()
        assert models.count() > 5
    dump = subprocess.run(
        [embedded.bin_dir() / "pg_dump", "--dbname", url],
        capture_output=True,
        text=True,
        check=True,
    )
    said["dump"] = dump.stdout
    assert "Acme Corporation" in said["dump"]
    return said
