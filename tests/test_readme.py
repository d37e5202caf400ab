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

from sag_pg.cli import COMMANDS, main

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.M | re.S)


@pytest.fixture
def demo_url(database_url: str) -> Iterator[str]:
    arguments = ["--database-url", database_url, "demo", "--question", "Who?"]
    result = CliRunner().invoke(main, [*arguments, "--embedding", "none"])
    assert result.exit_code == 0, result.output
    yield database_url


def test_sql_examples(demo_url: str) -> None:
    examples = blocks("sql")
    assert len(examples) == 3
    with psycopg.connect(demo_url) as connection:
        for example in examples:
            assert connection.execute(example).fetchall(), example  # type: ignore[arg-type]


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
