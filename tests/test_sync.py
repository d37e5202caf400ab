"""`sag-pg sync`: the collection equals the directory, and what failed costs nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from corpus import assert_counts_exact, column
from model_server import ModelServer

from sag_pg import config, migrate
from sag_pg.cli import main


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with migrate.connect_migrated(config.resolve(database_url, None)) as connection:
        yield connection


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    docs = tmp_path / "docs"
    docs.mkdir()
    for number in range(6):
        (docs / f"n{number}.txt").write_text(f"Plant{number} stands in Oslo.")
    return docs


def sync(url: str, server: ModelServer, *options: str) -> Result:
    arguments = ["sync", "docs", "--embedding", "none", "--extractor", "openai:m", *options]
    return CliRunner().invoke(main, ["--database-url", url, *arguments, "--base-url", server.url])


def sources(connection: psycopg.Connection[Any]) -> list[str]:
    return column(connection, 'SELECT source FROM sag.document ORDER BY source COLLATE "C"')


def test_the_collection_equals_the_directory(
    database_url: str,
    connection: psycopg.Connection[Any],
    server: ModelServer,
    directory: Path,
) -> None:
    assert sync(database_url, server).exit_code == 0
    assert sources(connection) == [f"docs/n{no}.txt" for no in range(6)]
    (directory / "n0.txt").unlink()
    (directory / "n1.txt").rename(directory / "renamed.txt")
    (directory / "n2.txt").write_text("Plant2 has moved to Bergen.")
    looked = sync(database_url, server, "--dry-run")
    assert looked.stdout.split() == ["docs/n0.txt", "docs/n1.txt"]
    assert sources(connection) == [f"docs/n{no}.txt" for no in range(6)]
    result = sync(database_url, server, "--json")
    report = json.loads(result.stdout)
    assert (report["added"], report["replaced"], report["unchanged"]) == (1, 1, 3)
    assert sorted(report["deleted"]) == ["docs/n0.txt", "docs/n1.txt"]
    assert sources(connection) == [*(f"docs/n{no}.txt" for no in range(2, 6)), "docs/renamed.txt"]
    # The name of a file is no part of the question.
    assert server.count("extraction") == 6 + 1
    assert_counts_exact(connection)


def test_what_cannot_be_read_stays(
    database_url: str,
    connection: psycopg.Connection[Any],
    server: ModelServer,
    directory: Path,
) -> None:
    (directory / "lines.jsonl").write_text(json.dumps({"id": "line", "text": "A line in Oslo."}))
    assert sync(database_url, server).exit_code == 0
    (directory / "n0.txt").write_bytes(b"\xff\xfe broken")
    assert sync(database_url, server).exit_code == 1
    assert "docs/n0.txt" in sources(connection)
    # A line that is no JSON may be any document, so that none is deleted then.
    (directory / "lines.jsonl").write_text("{")
    (directory / "n1.txt").unlink()
    looked = sync(database_url, server, "--dry-run")
    assert looked.stdout == ""
    assert "4 documents in the directory; 0 would" in looked.stderr
    result = sync(database_url, server)
    assert result.exit_code == 1
    assert "Nothing is deleted" in result.stderr
    assert {"line", "docs/n0.txt", "docs/n1.txt"} <= set(sources(connection))


def test_a_directory_that_lost_its_files_empties_nothing(
    database_url: str,
    connection: psycopg.Connection[Any],
    server: ModelServer,
    directory: Path,
) -> None:
    assert sync(database_url, server).exit_code == 0
    for path in directory.iterdir():
        path.unlink()
    result = sync(database_url, server)
    assert result.exit_code == 1
    assert "6 documents of collection 'default', which had 6, are not in" in result.stderr
    assert len(sources(connection)) == 6
    assert sync(database_url, server, "--force").exit_code == 0
    assert sources(connection) == []


def test_a_run_that_stopped_deletes_nothing(
    database_url: str,
    connection: psycopg.Connection[Any],
    server: ModelServer,
    directory: Path,
) -> None:
    assert sync(database_url, server).exit_code == 0
    for number in range(7, 10):
        (directory / f"n{number}.txt").write_text(f"Plant{number} stands in Oslo.")
    (directory / "n0.txt").rename(directory / "renamed.txt")
    result = sync(database_url, server, "--max-tokens", "1", "--model-concurrency", "1")
    assert result.exit_code == 1
    assert "Nothing is deleted" in result.stderr
    assert "docs/n0.txt" in sources(connection)
    assert sync(database_url, server).exit_code == 0
    assert "docs/n0.txt" not in sources(connection)
    # That of the renamed one was kept.
    assert server.count("extraction") == 6 + 3


def test_what_an_earlier_run_left_in_the_queue_goes_too(
    database_url: str,
    connection: psycopg.Connection[Any],
    server: ModelServer,
    directory: Path,
) -> None:
    assert sync(database_url, server).exit_code == 0
    (directory / "n0.txt").write_text("Plant0 has moved to Bergen.")
    (directory / "n9.txt").write_text("Plant9 stands in Oslo.")
    # As where it was killed.
    assert sync(database_url, server, "--max-tokens", "1").exit_code == 1
    (directory / "n0.txt").unlink()
    (directory / "n9.txt").unlink()
    assert sync(database_url, server).exit_code == 0
    live = "SELECT source FROM sag.ingest_task WHERE state IN ('queued', 'running')"
    assert column(connection, live) == []
    assert sources(connection) == [f"docs/n{no}.txt" for no in range(1, 6)]


def test_a_wrong_directory_that_is_larger_takes_nobodys_place(
    database_url: str,
    connection: psycopg.Connection[Any],
    server: ModelServer,
    directory: Path,
) -> None:
    for number in range(6, 12):
        (directory / f"n{number}.txt").write_text(f"Plant{number} stands in Oslo.")
    assert sync(database_url, server).exit_code == 0
    directory.rename(directory.with_name("moved"))
    directory.mkdir()
    for number in range(20):
        (directory / f"w{number}.txt").write_text(f"Plant{number} stands in Oslo.")
    asked = server.count("extraction")
    # However often somebody tries.
    for options in (["--dry-run"], [], []):
        result = sync(database_url, server, *options)
        assert result.exit_code == 1
        assert "12 documents of collection 'default', which had 12" in result.stderr
    assert set(sources(connection)) == {f"docs/n{no}.txt" for no in range(12)}
    assert server.count("extraction") == asked
