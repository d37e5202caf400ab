"""What the README shows works, on the corpus that it shows it with."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from corpus import column
from gateway_process import GatewayProcess
from model_server import ModelServer

from sag_pg.cli import COMMANDS, main

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.M | re.S)


@pytest.fixture
def demo_url(database_url: str) -> str:
    result = CliRunner().invoke(
        main, ["--database-url", database_url, "demo", "--question", "Who?"]
    )
    assert result.exit_code == 0, result.output
    return database_url


@pytest.fixture
def gateway(demo_url: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    with ModelServer() as models:
        process = GatewayProcess(demo_url, tmp_path / "log", models)
        with psycopg.connect(demo_url, autocommit=True) as connection:
            connection.execute("SELECT sag.install_gateway('127.0.0.1', %s)", [process.port])
        process.start()
        try:
            yield process
        finally:
            process.end()


def test_sql_examples(demo_url: str, gateway: GatewayProcess) -> None:
    examples = blocks("sql")
    assert len(examples) == 5
    warnings: list[str | None] = []
    with psycopg.connect(demo_url, autocommit=True) as connection:
        connection.add_notice_handler(lambda said: warnings.append(said.message_primary))
        for example in examples:
            for statement in example.split(";\n"):
                if statement.strip():
                    assert connection.execute(statement).fetchall(), statement  # type: ignore[arg-type]
        modes = connection.execute("SELECT mode FROM sag_retrieve('Who built the ship?', 'demo')")
        assert {row[0] for row in modes} == {"vector and lexical, model choice"}
    assert warnings == []


def test_trigger_example(database_url: str) -> None:
    (example,) = blocks("plpgsql")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(example.encode())
        connection.execute(
            "INSERT INTO note VALUES (1, 'Plants', 'Ostby Yard built the ship.', 'en'),"
            " (2, NULL, 'A second note.', NULL)"
        )
        connection.execute("UPDATE note SET body = 'A changed note.' WHERE id = 2")
        connection.execute("DELETE FROM note WHERE id = 1")
        tasks = connection.execute(
            "SELECT t.source, t.state, t.metadata FROM sag.ingest_task AS t ORDER BY t.task_id"
        ).fetchall()
        assert tasks == [
            ("note/1", "superseded", {"lang": "en"}),
            ("note/2", "queued", {"lang": None}),
            ("note/2", "queued", {"lang": None}),
        ]
        done = CliRunner().invoke(
            main,
            ["--database-url", database_url, "work", "--until-done", "--embedding", "none"],
        )
        assert done.exit_code == 0, done.output
        texts = connection.execute("SELECT source, title, content FROM sag_retrieve('note')")
        assert texts.fetchall() == [("note/2", "", "A changed note.")]
        # Under another key it is another document.
        connection.execute("UPDATE note SET id = 3 WHERE id = 2")
        assert column(connection, "SELECT source FROM sag.document") == []
        queued = "SELECT source FROM sag.ingest_task WHERE state = 'queued'"
        assert column(connection, queued) == ["note/3"]


def test_python_example(demo_url: str) -> None:
    (example,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", example],
        env=os.environ | {"DATABASE_URL": demo_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Quiet Margin" in done.stdout


def test_commands_exist() -> None:
    named = set(re.findall(r"sag-pg(?: --\S+ \S+)? ([a-z]+)", "".join(blocks("sh"))))
    assert named <= set(COMMANDS)
    assert {"ingest", "retrieve", "demo"} <= named


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http|#)([^)]+)\)", README.read_text()):
        assert (README.parent / link).exists(), link
