"""The command that shows every setting."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sag_pg.cli import main
from sag_pg.cli.config import CONTAINER_VARIABLES
from sag_pg.models.settings import SETTINGS

CANARY = "sk-canary-0123456789"
ROOT = Path(__file__).parents[1]
URL = "postgresql://user:pgcanary@db.example/sag"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("SAG_PG_") or variable in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
            monkeypatch.delenv(variable)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["--database-url", URL, "config", *arguments], env=environment)


def rows(*arguments: str, **environment: str) -> dict[str, dict[str, Any]]:
    result = run("--json", *arguments, **environment)
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)}


def test_lists_every_setting_with_its_source() -> None:
    found = rows(
        "--max-tokens",
        "5000",
        SAG_PG_CHAT_MODEL="some-model",
        OPENAI_BASE_URL="https://llm.example/v1",
        SAG_PG_MAX_TOKENS="7",
    )
    assert {setting.name for setting in SETTINGS} < set(found)
    told = {name: (row["value"], row["source"]) for name, row in found.items()}
    assert told["max_tokens"] == (5000, "--max-tokens")
    assert told["chat_model"] == ("some-model", "SAG_PG_CHAT_MODEL")
    assert told["base_url"] == ("https://llm.example/v1", "OPENAI_BASE_URL")
    assert told["model_concurrency"] == (8, "default")
    assert told["embedding"] == ("local", "default")
    assert told["database"][1] == "--database-url"
    assert "db.example" in told["database"][0]
    assert all(row["meaning"] for row in found.values())


def test_no_secret_is_shown() -> None:
    environment = {
        "OPENAI_API_KEY": CANARY,
        "MY_KEY": CANARY,
        "SAG_PG_EMBEDDING_API_KEY_ENV": "MY_KEY",
        "SAG_PG_RERANK_API_KEY_ENV": "NO_SUCH_KEY",
        "SAG_PG_BASE_URL": f"https://user:{CANARY}@llm.example/v1",
    }
    found = rows(**environment)
    assert found["key for chat"]["value"] == "set"
    assert (found["key for embedding"]["value"], found["key for embedding"]["source"]) == (
        "set",
        "MY_KEY",
    )
    assert found["key for rerank"]["value"] == "not set"
    for arguments in ((), ("--json",)):
        output = run(*arguments, **environment).output
        assert CANARY not in output
        assert "pgcanary" not in output


def test_table() -> None:
    lines = run(SAG_PG_EMBEDDING="openai").stdout.splitlines()
    assert lines[0].split() == ["setting", "value", "from", "meaning"]
    assert any(line.split()[:3] == ["embedding", "openai", "SAG_PG_EMBEDDING"] for line in lines)
    assert any(line.split()[:3] == ["chat_model", "-", "default"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ((), {"SAG_PG_MODEL_CONCURRENCY": "many"}, "SAG_PG_MODEL_CONCURRENCY"),
        (("--max-requests", "0"), {}, "--max-requests"),
        (("--api-key-env", CANARY), {}, "--api-key-env"),
        (("--base-url", "ftp://x"), {}, "--base-url"),
    ],
)
def test_a_bad_value_is_named(
    arguments: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    result = run(*arguments, **environment)
    assert result.exit_code == 2
    assert said in result.stderr
    assert CANARY not in result.output


@pytest.mark.parametrize("command", ["ingest", "eval", "retrieve", "trace", "search", "config"])
def test_options_name_their_variables_and_no_key_is_one(command: str) -> None:
    shown = " ".join(CliRunner().invoke(main, [command, "--help"]).output.split())
    assert "--base-url" in shown
    assert "SAG_PG_BASE_URL" in shown
    assert "--api-key " not in shown
    assert ("--max-tokens" in shown) == (command in ("ingest", "eval", "config"))


def test_misspelt_variables_are_named_and_their_values_are_not() -> None:
    environment = {
        "SAG_PG_CHATMODEL": CANARY,
        "SAG_PG_WHATEVER_IT_IS": CANARY,
        "sag_pg_base_url": CANARY,
        "SAG_PG_\x1b[2J": "1",
    }
    for arguments in ((), ("--json",)):
        result = run(*arguments, **environment)
        lines = result.stderr.splitlines()
        assert [line for line in lines if "CHATMODEL" in line] == [
            "Warning: Nothing reads the environment variable SAG_PG_CHATMODEL."
            " Did you mean SAG_PG_CHAT_MODEL?"
        ]
        assert any(line.endswith("variable SAG_PG_WHATEVER_IT_IS.") for line in lines)
        assert any(line.endswith("Did you mean SAG_PG_BASE_URL?") for line in lines)
        assert all(line.isprintable() for line in lines)
        assert len(lines) == len(environment)
        assert CANARY not in result.output
        assert "Warning" not in result.stdout


def test_variables_that_something_reads_are_not_named() -> None:
    entry_point = (ROOT / "docker" / "entrypoint.sh").read_text(encoding="utf-8")
    of_the_container = set(re.findall(r"SAG_PG_(?:GATEWAY|WAIT)_[A-Z_]+", entry_point))
    assert of_the_container == set(CONTAINER_VARIABLES)
    environment = {
        **dict.fromkeys(CONTAINER_VARIABLES, "1"),
        "SAG_PG_DATABASE_URL": URL,
        "SAG_PG_DATA_DIR": "here",
        "SAG_PG_EMBEDDING": "local",
        "SAG_PG_MODEL_RETRIES": "3",
        "SAG_PG_SERVE_MAX_CALLS": "4",
        "SAG_PG_API_KEY_ENV": "SAG_PG_OWN_KEY",
        "SAG_PG_OWN_KEY": CANARY,
        "SAG_PG_CHATMODEL": "",
    }
    result = run(**environment)
    assert result.exit_code == 0
    assert result.stderr == ""
