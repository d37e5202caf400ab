"""The commands retrieve, trace, search, collections and delete, run as a user runs them."""

import json
import sys
from collections.abc import Iterator
from dataclasses import fields

import pytest
from click.testing import CliRunner, Result

from sag_pg import cli, config, migrate
from sag_pg.cli.layout import columns_of, cut, pad, printable, wrap
from sag_pg.client import Client, Evidence, SearchHit, TraceRow
from sag_pg.ingest.document import SourceDocument
from sag_pg.ingest.job import ingest
from sag_pg.models.local_extraction import load_extractor

QUESTION = "Who leads the firm that bought Alder Works?"
STAGES = [
    "understand",
    "link_entities",
    "seed_events",
    "expand_events",
    "rank_events",
    "choose_events",
    "direct_chunks",
    "merge_chunks",
]


def document(source: str, title: str, text: str, year: int = 2020) -> SourceDocument:
    return SourceDocument(source, title, lambda: iter([text]), metadata={"year": year})


DOCUMENTS = [
    document(
        "notes/alder.md",
        "Alder Works",
        "Alder Works makes looms. In 2019 the firm Birch Holding bought Alder Works. " * 4,
        2019,
    ),
    document("https://example.org//birch", "Birch Holding", "Its head is Cora Dale.", 2021),
    document("cedar", "Cedar Mill", "Cedar Mill bought a firm that leads nowhere.", 2022),
    document("zh/1", "星纹陶", "星纹陶是一种深蓝色釉陶，釉面布满细小的银色斑点，如同夜空。" * 5),
    document("evil", "Red\x1b[31m title", "Elm\x07 Yard bought \x1b]0;owned\x07 nothing."),
]


@pytest.fixture
def runner(database_url: str) -> Iterator[CliRunner]:
    """Runs commands on a database that holds `DOCUMENTS` in its default collection."""
    with migrate.connect_migrated(config.resolve(database_url)) as connection:
        report = ingest(
            connection,
            DOCUMENTS,
            collection="default",
            extractor=load_extractor("rules"),
            embedding_model=None,
        )
    assert (report.added, report.failures) == (len(DOCUMENTS), [])
    return CliRunner(
        env={"DATABASE_URL": database_url, "SAG_PG_EMBEDDING": "none", "COLUMNS": "80"}
    )


def run(runner: CliRunner, *arguments: str, exit_code: int = 0, stdin: str = "") -> Result:
    result = runner.invoke(cli.main, arguments, input=stdin)
    assert result.exit_code == exit_code, result.output
    return result


def sources(result: Result) -> list[str]:
    return [row["source"] for row in json.loads(result.stdout)]


def test_retrieve_prints_evidence_for_people(runner: CliRunner) -> None:
    result = run(runner, "retrieve", QUESTION)
    blocks = [block.splitlines() for block in result.stdout.strip("\n").split("\n\n")]
    best = blocks[0]
    assert best[0] == " 1  Alder Works"
    facts = " ".join(best[1:-3])
    assert "notes/alder.md · event and direct · hop 0 · " in facts
    assert "via Alder Works > Birch" in facts
    assert best[-3].startswith("    Alder Works makes looms. In 2019 the firm Birch Holding")
    assert best[-1].endswith("…")
    bridged = next(block for block in blocks if block[0].endswith("  Birch Holding"))
    assert bridged[1].startswith("    https://example.org//birch · event · hop 1 · ")
    assert max(columns_of(line) for block in blocks for line in block) <= 80
    assert result.stderr == f"{len(blocks)} chunks, mode: lexical\n"


def test_full_prints_whole_chunks(runner: CliRunner) -> None:
    text = "".join(DOCUMENTS[0].read()).strip()
    assert text not in run(runner, "retrieve", QUESTION).stdout
    assert f"    {text}\n" in run(runner, "retrieve", QUESTION, "--full").stdout


def test_json_has_what_the_client_returns(runner: CliRunner, database_url: str) -> None:
    with Client(migrate.connect_migrated(config.resolve(database_url))) as client:
        evidence = client.retrieve(QUESTION)
        hits = client.search(QUESTION, method="lexical")
    retrieved = json.loads(run(runner, "retrieve", QUESTION, "--json").stdout)
    assert [Evidence(**row) for row in retrieved] == evidence
    searched = json.loads(run(runner, "search", QUESTION, "--json").stdout)
    assert [SearchHit(**row) for row in searched] == hits
    traced = json.loads(run(runner, "trace", QUESTION, "--json").stdout)
    assert {tuple(row) for row in traced} == {tuple(field.name for field in fields(TraceRow))}
    assert list(dict.fromkeys(row["stage"] for row in traced)) == STAGES


def test_question_from_standard_input(runner: CliRunner) -> None:
    asked = run(runner, "retrieve", QUESTION, "--json").stdout
    assert run(runner, "retrieve", "-", "--json", stdin=f"{QUESTION}\n").stdout == asked


def test_parameters_have_options_of_their_own(runner: CliRunner) -> None:
    everything = sources(run(runner, "retrieve", QUESTION, "--json"))
    assert "https://example.org//birch" in everything
    seeds = sources(run(runner, "retrieve", QUESTION, "--json", "--hops", "0"))
    assert "https://example.org//birch" not in seeds
    assert seeds == sources(run(runner, "retrieve", QUESTION, "--json", "--set", "hops=0"))
    first = run(runner, "retrieve", QUESTION, "--json", "--limit", "1", "--set", "output_limit=3")
    assert sources(first) == everything[:1]
    ranked = run(runner, "trace", QUESTION, "--json", "--ranking", "similarity")
    methods = {row["method"] for row in json.loads(ranked.stdout) if row["stage"] == "rank_events"}
    assert methods == {"similarity"}


def test_entities_are_added_to_those_of_the_question(runner: CliRunner) -> None:
    result = run(runner, "retrieve", "Who?", "--entity", "Alder Works", "--hops", "0", "--json")
    assert sources(result) == ["notes/alder.md"]


def test_filter_restricts_documents(runner: CliRunner) -> None:
    result = run(runner, "retrieve", QUESTION, "--json", "--filter", "$.year >= 2022")
    assert sources(result) == ["cedar"]
    result = run(runner, "search", QUESTION, "--json", "--filter", "$.year >= 2022")
    assert sources(result) == ["cedar"]


@pytest.mark.parametrize("assignment", ["hops", "=1", "hops=", " = "])
def test_assignment_without_name_or_value_is_wrong_usage(assignment: str) -> None:
    result = CliRunner().invoke(cli.main, ["retrieve", "x", "--set", assignment])
    assert result.exit_code == 2
    assert "not of the form name=value" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "hopps=1"], "hopps"),
        (["--set", "hops=NaN"], "hops"),
        (["--hops", "9"], "hops"),
        (["--ranking", "best"], "ranking"),
        (["--filter", "$.year >>> 1"], "jsonpath"),
        (["--collection", "defualt"], "'default'"),
    ],
)
def test_refusals_of_the_database_are_messages(
    runner: CliRunner, arguments: list[str], message: str
) -> None:
    result = run(runner, "retrieve", QUESTION, *arguments, exit_code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr


def test_empty_question_is_refused_and_one_without_evidence_is_not(runner: CliRunner) -> None:
    assert "question is empty" in run(runner, "retrieve", "  ", exit_code=1).stderr
    result = run(runner, "retrieve", "Zyzzyva?")
    assert (result.stdout, result.stderr) == ("", "No evidence found.\n")


def test_text_cannot_steer_the_terminal(runner: CliRunner) -> None:
    for arguments in (["retrieve", "Elm Yard"], ["retrieve", "Elm Yard", "--full"]):
        shown = run(runner, *arguments).stdout
        assert "Red�[31m title" in shown
        assert not {"\x1b", "\x07"} & set(shown)
    # JSON escapes them and keeps the text as it is.
    assert (
        "\x1b[31m" in json.loads(run(runner, "retrieve", "Elm Yard", "--json").stdout)[0]["title"]
    )


def test_trace_shows_each_stage_with_its_time(runner: CliRunner) -> None:
    result = run(runner, "trace", QUESTION)
    headings = [line.split() for line in result.stdout.splitlines() if line[:1].strip()]
    assert [heading[0] for heading in headings] == STAGES
    assert all(float(heading[1]) >= 0 and heading[2] == "ms" for heading in headings)
    assert max(map(columns_of, result.stdout.splitlines())) <= 80
    assert result.stderr.endswith(" ms in all, mode: lexical\n")
    shorter = run(runner, "trace", QUESTION, "--rows", "1").stdout
    assert "more\n" in shorter
    assert len(shorter.splitlines()) < len(result.stdout.splitlines())
    assert "via" not in run(runner, "trace", QUESTION, "--rows", "0").stdout


def test_search_takes_the_method_that_is_possible(runner: CliRunner) -> None:
    result = run(runner, "search", QUESTION)
    assert result.stdout.startswith(" 1  Alder Works\n    notes/alder.md · ")
    assert result.stderr.endswith("method: lexical\n")
    assert (
        "needs an embedding"
        in run(runner, "search", QUESTION, "--method", "vector", exit_code=1).stderr
    )
    assert (
        "Give vector, lexical or hybrid"
        in run(runner, "search", QUESTION, "--method", "fuzzy", exit_code=1).stderr
    )


def test_models_that_are_not_installed(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastembed", None)
    runner.env = {**runner.env, "SAG_PG_EMBEDDING": None}
    result = run(runner, "retrieve", QUESTION)
    assert "Warning: Local embedding needs the package fastembed." in result.stderr
    assert "Hint: pip install 'sag-pg[local]'" in result.stderr
    assert result.stderr.endswith("mode: lexical\n")
    result = run(runner, "retrieve", QUESTION, "--embedding", "local", exit_code=1)
    assert result.stderr.startswith("Error: Local embedding needs the package fastembed.")
    result = run(runner, "retrieve", QUESTION, "--embedding", "loco", exit_code=2)
    assert "There is no embedding model 'loco'" in result.stderr
    assert "model.onnx. Or say gateway or none." in result.stderr


def test_warnings_of_the_server_are_shown(runner: CliRunner, database_url: str) -> None:
    pytest.importorskip("fastembed")
    with migrate.connect_migrated(config.resolve(database_url)) as connection:
        connection.execute("SELECT sag.set_embedding_space('bge-small-en-v1.5', 384)")
    result = run(runner, "retrieve", QUESTION, "--embedding", "local")
    assert "Warning: collection 'default' holds no embeddings" in result.stderr
    assert result.stderr.endswith("mode: lexical (collection without embeddings)\n")
    strict = ["--embedding", "local", "--set", "strict=true"]
    assert "holds no embeddings" in run(runner, "retrieve", QUESTION, *strict, exit_code=1).stderr


def test_collections_are_listed_with_their_counts(runner: CliRunner) -> None:
    [listed] = json.loads(run(runner, "collections", "--json").stdout)
    assert listed["collection"] == "default"
    assert (listed["documents"], listed["events"], listed["embeddings"]) == (5, 5, 0)
    head, row = run(runner, "collections").stdout.splitlines()
    assert head.split() == ["collection", "documents", "events", "embeddings", "entities"]
    assert row.split() == ["default", "5", "5", "0", str(listed["entities"])]


def test_delete_says_what_went_and_what_was_not_there(runner: CliRunner) -> None:
    result = run(runner, "delete", "cedar", "https://example.org/birch", exit_code=1)
    assert result.stdout == "cedar\n"
    assert result.stderr.startswith(
        "Error: Not in collection 'default': https://example.org/birch."
    )
    result = run(runner, "delete", ".//notes/./alder.md", "https://example.org//birch", "zh/1")
    assert sorted(result.stdout.split()) == [
        "https://example.org//birch",
        "notes/alder.md",
        "zh/1",
    ]
    assert json.loads(run(runner, "collections", "--json").stdout)[0]["documents"] == 1
    assert run(runner, "delete", "cedar", exit_code=1).stdout == ""
    assert run(runner, "delete", "evil", "-c", "nowhere", exit_code=1).stdout == ""
    assert run(runner, "delete", exit_code=2).stdout == ""


def test_columns_count_wide_and_combining_characters() -> None:
    assert [columns_of(text) for text in ("abc", "星纹陶", "e\u0301", "\u200fab")] == [3, 6, 1, 2]
    assert pad("星", 4) == "星  "
    assert cut("星纹陶", 6) == "星纹陶"
    assert cut("星纹陶", 5) == "星纹…"
    assert printable("a\x1bb\nc\td\x9b") == "a�b\nc\td�"


@pytest.mark.parametrize(
    "text",
    [
        "Words of a sentence that goes on for more than one line, and then some more of them.",
        "星纹陶是一种深蓝色釉陶，釉面布满细小的银色斑点，如同夜空。1978年，陆守渔烧成了第一件。",
        "word " + "x" * 50 + " word",
        "收购 Company B 的那家公司的 CTO 后来加入了哪个项目？" * 3,
        "",
    ],
)
@pytest.mark.parametrize("columns", [2, 7, 20, 200])
def test_wrapped_lines_hold_the_text_and_fit(text: str, columns: int) -> None:
    lines = wrap(text, columns)
    assert all(columns_of(line) <= columns for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
    shorter = wrap(text, columns, 2)
    assert shorter == lines if len(lines) <= 2 else shorter[-1].endswith("…")
    assert all(columns_of(line) <= columns for line in shorter)
