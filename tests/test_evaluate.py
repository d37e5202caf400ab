"""Evaluation: its arithmetic on a small set, and exact figures on a slice of real data."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from conftest import TEST_DATA
from gateway_process import GatewayProcess
from model_server import ModelServer

from sag_pg import config, migrate
from sag_pg.cli import main
from sag_pg.client import Client
from sag_pg.dataset import load_dataset
from sag_pg.errors import LoadError
from sag_pg.ingest.job import ingest
from sag_pg.ingest.loaders import load_paths
from sag_pg.models.local_embedding import load_embedding_model
from sag_pg.models.local_extraction import load_extractor


def write_dataset(directory: Path, corpus: list[Any], questions: list[Any]) -> Path:
    directory.mkdir()
    for name, records in (("corpus", corpus), ("questions", questions)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (directory / f"{name}.jsonl").write_text(lines)
    return directory


@pytest.fixture
def small_set(tmp_path: Path) -> Path:
    corpus = [
        {"id": "a", "title": "Alpha Corp", "text": "Alpha Corp was bought by Gamma Group."},
        {"id": "b", "title": "Gamma Group", "text": "Gamma Group is led by Nora Quist."},
        {"id": "c", "title": "Nora Quist", "text": "Nora Quist was born in Oslo."},
        {"id": "d", "title": "Zebra", "text": "A zebra has stripes."},
    ]
    questions = [
        {
            "id": "1",
            "question": "Who leads the group that bought Alpha Corp?",
            "supporting": ["a", "b"],
        },
        {"id": "2", "question": "What has stripes?", "supporting": ["d"]},
    ]
    return write_dataset(tmp_path / "small", corpus, questions)


def run_eval(database_url: str, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(
        main, ["--database-url", database_url, "eval", *arguments, "--json"]
    )
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    assert isinstance(outcome, dict)
    return outcome


def test_shape_and_figures(database_url: str, small_set: Path) -> None:
    arguments = (str(small_set), "--embedding", "none", "--extractor", "rules")
    outcome = run_eval(database_url, *arguments)
    assert (outcome["dataset"], outcome["questions"]) == ("small", 2)
    sag = outcome["methods"]["sag"]
    assert set(outcome["methods"]) == {"lexical", "sag"}
    assert set(sag["recall"]) == {"1", "2", "5", "10"}
    assert set(sag["all_gold"]) == {"5", "10"}
    assert set(sag["coverage"]) == {"20", "50", "100"}
    assert {"p50", "p95", "floor_p50"} <= set(sag["latency_ms"])
    assert sag["recall"]["1"] == 75.0
    assert sag["recall"]["10"] == sag["all_gold"]["10"] == 100.0
    assert (sag["model_calls"], sag["tokens"]) == (0, 0)
    # The second run finds the collection ready.
    assert run_eval(database_url, *arguments, "--limit", "1")["questions"] == 1


def test_an_interrupted_ingest_is_completed(database_url: str, small_set: Path) -> None:
    """The passages are all there without embeddings, and some with: that is not done yet."""
    pytest.importorskip("fastembed", reason="needs the extra [local]")
    plain = ("--extractor", "rules", "--embedding", "none")
    run_eval(database_url, str(small_set), *plain)
    with psycopg.connect(database_url, autocommit=True) as connection:
        (name,) = connection.execute(
            "SELECT name FROM sag.collection WHERE name LIKE 'eval%'"
        ).fetchone() or ("",)
    model = load_embedding_model("local")
    with migrate.connect_migrated(config.resolve(database_url, None)) as connection:
        ingest(
            connection,
            islice(load_paths([str(small_set / "corpus.jsonl")]), 2),
            collection=name,
            extractor=load_extractor("rules"),
            embedding_model=model,
            max_characters=None,
        )
        run_eval(database_url, str(small_set), "--extractor", "rules")
        held = {held.collection: held for held in Client(connection).collections()}[name]
        assert held.embeddings == held.events == 4


def test_a_budget_that_ends_the_ingest_ends_the_evaluation(
    database_url: str, small_set: Path
) -> None:
    with ModelServer() as server:
        arguments = ("--embedding", "none", "--extractor", "openai:m", "--base-url", server.url)
        command = ["--database-url", database_url, "eval", str(small_set), *arguments]
        stopped = CliRunner().invoke(main, [*command, "--max-requests", "3"])
        assert stopped.exit_code == 1
        assert "The limit of 3 requests is reached." in stopped.stderr
        assert "0 passages were ingested" in stopped.stderr
        assert "Run the same command again" in stopped.stderr
        done = run_eval(database_url, str(small_set), *arguments, "--max-requests", "1")
        assert done["ingest"]["added"] == server.count() == 4


def test_options_reach_the_database(database_url: str, small_set: Path) -> None:
    arguments = ["--embedding", "none", "--extractor", "rules", "--method", "sag"]
    outcome = run_eval(
        database_url, str(small_set), *arguments, "--hops", "0", "--set", "output_limit=1"
    )
    assert outcome["options"] == {"hops": 0, "output_limit": 1}
    assert outcome["methods"]["sag"]["recall"]["10"] == 75.0
    result = CliRunner().invoke(
        main,
        ["--database-url", database_url, "eval", str(small_set), *arguments, "--set", "hop=1"],
    )
    assert result.exit_code == 1
    assert "hops" in result.stderr


def test_gateway_is_sag_with_the_question_alone(
    database_url: str, small_set: Path, tmp_path: Path
) -> None:
    methods = ("--method", "sag", "--method", "gateway")
    arguments = ["--database-url", database_url, "eval", str(small_set), *methods]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 2
    assert "sag-pg serve" in refused.stderr
    gateway = GatewayProcess(database_url, tmp_path / "log")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SELECT sag.install_gateway('127.0.0.1', %s)", [gateway.port])
    gateway.start()
    try:
        found = run_eval(database_url, str(small_set), *methods)["methods"]
        shown = CliRunner().invoke(main, arguments)
    finally:
        gateway.end()
    assert found["gateway"]["recall"] == found["sag"]["recall"]
    assert found["gateway"]["stages"] == found["sag"]["stages"]
    assert (found["sag"]["cached"], found["gateway"]["cached"]) == (0, 0)
    assert "answers to gateway that the gateway remembered: 2" in shown.stdout


def test_embedding_is_needed_for_vectors(database_url: str, small_set: Path) -> None:
    result = CliRunner().invoke(
        main,
        [
            "--database-url",
            database_url,
            "eval",
            str(small_set),
            "--embedding",
            "none",
            "--method",
            "vector",
        ],
    )
    assert result.exit_code == 2
    assert "embedding" in result.stderr


RECORDING = [
    {
        "id": "a",
        "entities": ["alpha corp", "gamma group"],
        "triples": [["alpha corp", "was bought by", "gamma group"]]
        + [["alpha corp", f"made part {no} for", "gamma group"] for no in range(60)],
    },
    {
        "id": "b",
        "entities": ["gamma group", "nora quist"],
        "triples": [["gamma group", "is led by", "nora quist"]],
    },
    {
        "id": "c",
        "entities": ["nora quist", "oslo"],
        "triples": [["nora quist", "was born in", "oslo"]],
    },
    {"id": "d", "entities": [], "triples": []},
]


def test_events_and_triples_of_one_recording(database_url: str, small_set: Path) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in RECORDING)
    (small_set / "extraction.jsonl").write_text(lines)
    arguments = (str(small_set), "--embedding", "none")
    events = run_eval(database_url, *arguments, "--extractor", "recorded")
    assert (events["extractor"], events["triples"], events["ingest"]["added"]) == (
        "recorded",
        None,
        4,
    )
    triples = run_eval(database_url, *arguments, "--index", "triples")
    assert (triples["extractor"], triples["triples"], triples["ingest"]["added"]) == (
        "recorded",
        63,
        63,
    )
    assert events["methods"]["sag"]["recall"]["10"] == 100.0
    # Of the passages a, b and d the last has no triple. The 61 triples of a count as one passage,
    # so that b is among the first two.
    sag = triples["methods"]["sag"]
    assert sag["recall"]["2"] == sag["recall"]["10"] == 50.0
    assert sag["stages"]["merge_chunks"] == sag["coverage"]["20"] == 50.0
    assert triples["methods"]["lexical"]["recall"]["10"] == 50.0
    # Both stay as they are, each in a collection of its own.
    for index in ("events", "triples"):
        again = run_eval(
            database_url, *arguments, "--extractor", "recorded", "--index", index, "--limit", "1"
        )
        assert again["ingest"] is None
    with psycopg.connect(database_url, autocommit=True) as connection:
        held = {held.collection: held for held in Client(connection).collections()}
    documents = {
        name.startswith("eval small triples"): held[name].documents
        for name in held
        if name != "default"
    }
    assert documents == {False: 4, True: 63}


def test_triples_are_recorded_ones(database_url: str, small_set: Path) -> None:
    command = ["--database-url", database_url, "eval", str(small_set), "--embedding", "none"]
    missing = CliRunner().invoke(main, [*command, "--index", "triples"])
    assert missing.exit_code == 1
    assert "extraction.jsonl does not exist" in missing.stderr
    other = CliRunner().invoke(main, [*command, "--index", "triples", "--extractor", "rules"])
    assert other.exit_code == 2
    assert "Triples are not extracted by rules" in other.stderr


@pytest.mark.parametrize(
    ("corpus", "questions", "message"),
    [
        ([{"id": "a"}], [], "holds no question"),
        ([{"title": "a"}], [], r"corpus.jsonl:1: id"),
        ([{"id": "a"}], [{"id": "1", "question": "?"}], r"questions.jsonl:1: supporting"),
        (
            [{"id": "a"}],
            [{"id": "1", "question": "?", "supporting": ["b"]}],
            "b is no id of corpus.jsonl",
        ),
    ],
)
def test_bad_datasets(tmp_path: Path, corpus: Any, questions: Any, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        load_dataset(write_dataset(tmp_path / "bad", corpus, questions))


def test_missing_dataset(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"corpus\.jsonl does not exist"):
        load_dataset(tmp_path)


@pytest.fixture
def real_slice(tmp_path: Path) -> Path:
    """The evidence of 40 questions of MuSiQue among 600 passages."""
    source = TEST_DATA / "musique_train"
    if not source.is_dir():
        pytest.skip(f"evaluation data is not at {source}; SAG_PG_TEST_DATA names its directory")
    with (source / "questions.jsonl").open() as file:
        questions = [json.loads(line) for line in file][:40]
    gold = {id_ for question in questions for id_ in question["supporting"]}
    with (source / "corpus.jsonl").open() as file:
        passages = [json.loads(line) for line in file]
    chosen = [p for no, p in enumerate(passages) if p["id"] in gold or no >= len(passages) - 500]
    return write_dataset(tmp_path / "slice", chosen[:600], questions)


def test_real_data_without_models(database_url: str, real_slice: Path) -> None:
    """Rules and lexemes depend on no model, so these figures are the same everywhere."""
    outcome = run_eval(database_url, str(real_slice), "--embedding", "none", "--extractor", "rules")
    assert outcome["methods"]["sag"]["recall"] == {"1": 40.8, "2": 71.7, "5": 85.2, "10": 91.7}
    assert outcome["methods"]["lexical"]["recall"] == {
        "1": 37.5,
        "2": 58.3,
        "5": 70.8,
        "10": 79.2,
    }


def test_real_data_with_local_models(database_url: str, real_slice: Path) -> None:
    pytest.importorskip("fastembed", reason="needs the extra [local]")
    pytest.importorskip("spacy", reason="needs the extra [local]")
    outcome = run_eval(database_url, str(real_slice))
    assert outcome["methods"]["sag"]["recall"] == {"1": 41.7, "2": 72.5, "5": 90.2, "10": 95.6}
    assert outcome["methods"]["vector"]["recall"] == {
        "1": 42.9,
        "2": 71.0,
        "5": 86.2,
        "10": 91.2,
    }
