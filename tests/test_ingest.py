"""The ingest job: what becomes of documents, whatever happens on the way."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner
from corpus import assert_counts_exact
from psycopg import conninfo

from sag_pg import config, migrate
from sag_pg.cli import main
from sag_pg.client import Client
from sag_pg.errors import LoadError
from sag_pg.ingest import heartbeat, worker
from sag_pg.ingest.document import SourceDocument, text_document
from sag_pg.ingest.job import Progress, Report, ingest, queue
from sag_pg.ingest.loaders import load_paths
from sag_pg.ingest.processing import Processing
from sag_pg.ingest.session import Session
from sag_pg.models.base import EmbeddingModel, ExtractedEntity, Extraction, Passage, Vector
from sag_pg.models.budget import Usage
from sag_pg.models.local_extraction import load_extractor


class CountingExtractor:
    """Counts what it is asked, so that a test sees what an ingest would have paid for."""

    name = "counting-1"

    def __init__(self) -> None:
        self.passages: list[str] = []

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        self.passages += [passage.text for passage in passages]
        return [
            Extraction(
                tuple(
                    ExtractedEntity(word, "tag", is_subject=False)
                    for word in passage.text.split()
                    if word.istitle()
                )
            )
            for passage in passages
        ]


class SmallModel:
    """Three dimensions, which is all that these tests need of a vector."""

    name = "small"
    dimensions = 3

    def knows(self, text: str) -> bool:
        return True

    def embed_passages(self, texts: Sequence[str]) -> Vector:
        return np.array([self.embed_question(text) for text in texts], dtype=np.float32)

    def embed_question(self, text: str) -> Vector:
        vector = np.array([1, len(text) % 7, len(text) % 5], dtype=np.float32)
        return vector / np.linalg.norm(vector)


@pytest.fixture
def small_model() -> EmbeddingModel:
    return SmallModel()


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with migrate.connect_migrated(config.resolve(database_url, None)) as connection:
        yield connection


def document(source: str, text: str, **metadata: Any) -> SourceDocument:
    return SourceDocument(source, source.title(), lambda: iter([text]), metadata)


def run(
    connection: psycopg.Connection[Any], documents: Any, extractor: Any = None, **options: Any
) -> Report:
    return ingest(
        connection,
        documents,
        collection="default",
        extractor=extractor or CountingExtractor(),
        embedding_model=None,
        **options,
    )


def contents(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT d.source, c.ordinal, c.content, c.start_offset, c.end_offset,"
        " (SELECT array_agg(n.name ORDER BY n.name) FROM sag.event_entity l"
        "  JOIN sag.entity n USING (collection_id, entity_id)"
        "  WHERE l.collection_id = e.collection_id AND l.event_id = e.event_id)"
        " FROM sag.document d JOIN sag.chunk c USING (collection_id, document_id)"
        " JOIN sag.event e USING (collection_id, chunk_id) ORDER BY d.source, c.ordinal"
    ).fetchall()


def test_offsets_give_the_chunk_back(connection: psycopg.Connection[Any]) -> None:
    text = "  Ærø is an island. 東京は首都です。\n\n" + "Emoji 👩‍👩‍👧 and more. " * 200
    report = run(connection, [document("a", text)], max_characters=300)
    rows = contents(connection)
    assert report.chunks == len(rows) > 5
    for _, _, content, start, end, _ in rows:
        assert text[start:end] == content


def test_same_content_costs_nothing(connection: psycopg.Connection[Any]) -> None:
    documents = [document("a", "Paris met Berlin."), document("b", "Rome waits.", year=2020)]
    assert run(connection, documents).added == 2
    again = CountingExtractor()
    report = run(connection, documents, again)
    assert (report.added, report.replaced, report.unchanged) == (0, 0, 2)
    assert again.passages == []


@pytest.mark.parametrize(
    "changed",
    [document("a", "Rome met Berlin."), document("a", "Paris met Berlin.", year=2021)],
    ids=["text", "metadata"],
)
def test_changed_document_is_replaced(
    connection: psycopg.Connection[Any], changed: SourceDocument
) -> None:
    run(connection, [document("a", "Paris met Berlin."), document("b", "Berlin sleeps.")])
    report = run(connection, [changed])
    assert (report.added, report.replaced) == (0, 1)
    assert len(contents(connection)) == 2
    assert Client(connection).retrieve("Berlin")


def test_another_extractor_extracts_anew(connection: psycopg.Connection[Any]) -> None:
    run(connection, [document("a", "Paris met Berlin.")])
    assert run(connection, [document("a", "Paris met Berlin.")], load_extractor("rules")).replaced


def test_a_source_that_comes_twice_keeps_the_later(connection: psycopg.Connection[Any]) -> None:
    report = run(connection, [document("a", "Paris."), document("a", "Rome.")])
    assert (report.added, report.superseded) == (1, 1)
    assert [row[2] for row in contents(connection)] == ["Rome."]


def test_a_failure_does_not_stop_the_others(
    connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    lines = [json.dumps({"id": f"d{no}", "text": f"Paris number {no}."}) for no in range(5)]
    lines[2] = "{"
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n ")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "long.jsonl").write_text(json.dumps({"id": "x" * 3000, "text": "Rome."}))
    report = run(connection, load_paths([str(tmp_path)]))
    assert report.added == 4
    assert report.failed == len(report.failures) == 5
    reasons = " ".join(map(str, report.failures))
    for part in ("d.jsonl:3", "empty.txt", "blank.txt", "UTF-8", "3000 bytes"):
        assert part in reasons
    recorded = connection.execute(
        "SELECT count(*) FROM sag.ingest_task WHERE state = 'failed' AND error IS NOT NULL"
    ).fetchone()
    assert recorded == (5,)


@pytest.mark.parametrize(
    "text",
    [
        "NUL \0 and lone \ud800 surrogate in Paris",
        "quotes ' \" $$ $tag$ back\\slash %s % {} 😀 \u202emirror\u202c e\u0301",
        "a" * 100_000,
    ],
    ids=["unstorable", "quoting", "long word"],
)
def test_odd_text_everywhere(
    connection: psycopg.Connection[Any], tmp_path: Path, text: str
) -> None:
    record = {"id": text[:400], "title": text[:400], "text": text, "metadata": {text[:50]: text}}
    (tmp_path / "odd.jsonl").write_text(json.dumps(record))
    report = run(connection, load_paths([str(tmp_path)]), load_extractor("rules"))
    assert report.failures == []
    assert report.added == 1
    Client(connection).retrieve(text)
    assert Client(connection).delete([row[0] for row in contents(connection)]), (
        "found by the source it was stored under"
    )


def test_database_lost_in_the_middle(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    documents = [document(f"d{no}", f"Paris met Number{no}. " * 40) for no in range(300)]
    cuts: list[int] = []

    def cut(progress: Progress) -> None:
        if len(cuts) < 5 and not progress.is_queueing:
            with psycopg.connect(database_url, autocommit=True) as other:
                row = other.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                ).fetchone()
                cuts.append(row[0] if row else 0)

    extractor = CountingExtractor()
    report = run(connection, documents, extractor, max_characters=200, progress=cut)
    assert cuts[0] >= 2
    assert (report.added, report.complete) == (300, True)
    assert connection.broken
    with migrate.connect_migrated(config.resolve(database_url, None)) as connection:
        assert len(contents(connection)) == report.chunks
        assert_counts_exact(connection)
        # No worker is left behind, nor anything that one held.
        assert connection.execute(
            "SELECT (SELECT count(*) FROM sag.ingest_worker),"
            " (SELECT count(*) FROM sag.ingest_piece)"
        ).fetchone() == (0, 0)


@pytest.mark.parametrize("in_transaction", [False, True])
def test_an_interruption_in_the_middle_of_a_statement(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, in_transaction: bool
) -> None:
    """The connection can still give back what the worker has."""
    session = Session(connection)

    def interrupt(self: psycopg.Connection[Any], generator: Any, *_: Any, **__: Any) -> None:
        monkeypatch.undo()
        next(generator)
        raise KeyboardInterrupt

    def ask(asked: psycopg.Connection[Any]) -> None:
        asked.execute("CREATE TABLE half (n integer)")
        monkeypatch.setattr(psycopg.Connection, "wait", interrupt)
        asked.execute("SELECT pg_sleep(60)")

    with pytest.raises(KeyboardInterrupt):
        if in_transaction:
            session.transact(ask)
        else:
            monkeypatch.setattr(psycopg.Connection, "wait", interrupt)
            session.call("SELECT pg_sleep(60)")
    assert session.call("SELECT to_regclass('half')::text") == [(None,)]
    assert session.connection is connection
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    assert session.call(sleeping) == [(0,)]


def test_a_worker_without_a_connection_for_its_heartbeat_is_heard_of(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_LATE_SECONDS", 0.2)
    beats: list[Any] = []
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("CREATE ROLE lonely_writer LOGIN CONNECTION LIMIT 1 IN ROLE sag_writer")

        class SlowExtractor(CountingExtractor):
            def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
                time.sleep(0.5)
                rows = owner.execute("SELECT heartbeat_at, backend_pid FROM sag.ingest_worker")
                beats.extend(rows.fetchall())
                return super().extract(passages)

        url = conninfo.make_conninfo(database_url, user="lonely_writer")
        try:
            with migrate.connect_migrated(config.resolve(url, None)) as connection:
                documents = [document(f"d{no}", f"Paris {no}.") for no in range(256)]
                assert run(connection, documents, SlowExtractor()).added == 256
                assert beats[-1][1] == connection.info.backend_pid
            assert len(set(beats)) >= 3
        finally:
            owner.execute("DROP ROLE lonely_writer")


def test_what_a_slow_model_made_is_merged_soon(
    connection: psycopg.Connection[Any], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_BATCH_SECONDS", 0.0)
    merged: list[int] = []
    with psycopg.connect(database_url, autocommit=True) as other:

        def look(progress: Progress) -> None:
            row = other.execute("SELECT count(*) FROM sag.document").fetchone()
            merged.append(row[0] if row else 0)

        run(connection, [document(f"d{no}", "Paris.") for no in range(200)], progress=look)
    # Far less than a full batch, and each time all documents of a group.
    assert set(merged) == {0, 64, 128, 192, 200}


def test_progress_shows_what_others_do(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    """Another worker has all documents: how far it is shows meanwhile, and in the end all of it."""
    begun, waited_for = threading.Event(), threading.Event()
    patience = 30.0

    class Extractor(CountingExtractor):
        def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
            begun.set()
            assert waited_for.wait(patience)
            return super().extract(passages)

    processing = Processing(Extractor(), None, 1200)
    failures: list[BaseException] = []

    def help_out() -> None:
        try:
            with (
                migrate.connect_migrated(config.resolve(database_url, None)) as other,
                worker.Worker(Session(other), processing, Usage()) as helper,
            ):
                helper.work(is_done=lambda: True)
        except BaseException as error:
            failures.append(error)

    helper = threading.Thread(target=help_out)
    done: list[int] = []

    def look(progress: Progress) -> None:
        if progress.is_queueing:
            return
        done.append(progress.documents)
        if len(done) == 1:
            helper.start()
            assert begun.wait(patience)
        else:
            waited_for.set()

    report = run(connection, [document(f"d{no}", "Paris.") for no in range(5)], progress=look)
    helper.join(patience)
    assert failures == []
    assert report.added == 5
    assert (done[0], done[-1]) == (0, 5)


def test_documents_share_calls_of_the_extractor(connection: psycopg.Connection[Any]) -> None:
    sizes: list[int] = []

    class Extractor(CountingExtractor):
        def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
            sizes.append(len(passages))
            return super().extract(passages)

    texts = ["Rome waits. " * 30 * number for number in (1, 40, 1, 1, 150, 1)]
    documents = [document(f"d{no}", text) for no, text in enumerate(texts)]
    run(connection, documents, Extractor(), max_characters=400)
    assert sizes[:-1] == [64] * (len(sizes) - 1)
    rows = contents(connection)
    assert sum(sizes) == len(rows) > 128
    for no, text in enumerate(texts):
        own = [row for row in rows if row[0] == f"d{no}"]
        assert [row[1] for row in own] == list(range(len(own)))
        assert all(text[row[3] : row[4]] == row[2] for row in own)
        assert " ".join(row[2] for row in own).split() == text.split()


def test_a_slow_model_is_given_no_more_than_it_is_asked_at_once(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    """The rest is for other workers."""
    held: list[int] = []
    with psycopg.connect(database_url, autocommit=True) as other:

        class SlowExtractor(CountingExtractor):
            def extract_each(
                self, passages: Sequence[Passage]
            ) -> Generator[tuple[int, Extraction], None, None]:
                running = "SELECT count(*) FROM sag.ingest_task WHERE state = 'running'"
                held.extend(other.execute(running).fetchone() or ())
                yield from enumerate(self.extract(passages))

            def expected_tokens(self, passage: Passage) -> tuple[int, int]:
                return 1, 1

        text = "Paris is a city.\n\n" * 100
        documents = [document(f"d{no}", f"{no}. {text}") for no in range(60)]
        report = run(connection, documents, SlowExtractor(), max_characters=100)
    assert report.added == 60
    assert 0 < held[0] < 10


def test_time_limits_are_not_for_merges(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    """Nor for what others hold the collection for."""
    limits = ("statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
    for name in limits:
        connection.execute(f"SET {name} = '500ms'".encode())
    with psycopg.connect(database_url) as other:
        other.execute("SELECT sag_delete('elsewhere')")
        rolling_back = threading.Timer(1.5, other.rollback)
        rolling_back.start()
        assert run(connection, [document("a", "Paris is a city.")]).added == 1
        rolling_back.join()
    shown = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in limits]
    assert shown == [("500ms",)] * 3


def test_an_unreadable_end_drops_the_whole_document(connection: psycopg.Connection[Any]) -> None:
    def read() -> Iterator[str]:
        yield "Rome waits. " * 10_000
        if reads:
            raise LoadError("bad.txt is cut off.", "Mend it.")
        reads.append(1)

    # Once for the hash, then for its chunks; it is too long to be kept.
    reads: list[int] = []
    monster = SourceDocument("bad.txt", "", lambda: chain(read(), ["x" * 2**20]))
    given = [document("a", "Paris."), monster, document("b", "Oslo.")]
    report = run(connection, given, max_characters=400)
    assert (report.added, report.failed) == (2, 1)
    assert [row[0] for row in contents(connection)] == ["a", "b"]


def test_a_long_text_that_changes_between_its_hash_and_its_copy_fails(
    connection: psycopg.Connection[Any],
) -> None:
    # Longer texts than are kept are read twice.
    texts = ["Oslo is first. " * 100_000, "Rome is next. " * 100_000]
    changing = SourceDocument("a", "", lambda: iter([texts.pop(0)]))
    report = run(connection, [changing, document("b", "Rome stays.")])
    assert [str(failure) for failure in report.failures] == ["a changed while it was read."]
    assert [row[0] for row in contents(connection)] == ["b"]


def test_an_ingest_whose_documents_another_one_takes_over(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    documents = [document(f"d{no}", f"Paris {no}.") for no in range(100)]
    others: list[Report] = []

    def again(progress: Progress) -> None:
        if progress.is_queueing or others:
            return
        with migrate.connect_migrated(config.resolve(database_url, None)) as other:
            processing = Processing(CountingExtractor(), None)
            others.append(queue(other, documents, "default", processing))

    # One comes twice, which is no matter of the other one.
    report = run(connection, [*documents, *documents[:1]], progress=again)
    assert (others[0].waiting, others[0].adopted) == (100, 0)
    assert (report.documents, report.added, report.is_empty) == (101, 0, False)
    assert report.adopted >= 99
    assert "adopted by another ingest" in report.summary()
    assert run(connection, documents).added == 100
    assert run(connection, []).is_empty


def test_two_ingests_at_once(database_url: str) -> None:
    documents = [
        document(f"d{no}", " ".join(f"Hub{(no * step) % 7}" for step in range(1, 8)) + f" Own{no}")
        for no in range(120)
    ]
    reports: list[Report] = []
    failures: list[BaseException] = []

    def work(order: Sequence[SourceDocument]) -> None:
        try:
            with migrate.connect_migrated(config.resolve(database_url, None)) as connection:
                for start in range(0, len(order), 10):
                    reports.append(run(connection, order[start : start + 10]))
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(order,))
        for order in (documents, documents[::-1], documents[60:] + documents[:60])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert sum(report.added for report in reports) == 120
    with psycopg.connect(database_url) as connection:
        wrong = connection.execute(
            "SELECT name FROM sag.entity n WHERE event_count <> (SELECT count(*)"
            " FROM sag.event_entity l WHERE l.entity_id = n.entity_id)"
        ).fetchall()
        assert wrong == []
        assert len(contents(connection)) == 120


def test_memory_does_not_grow_with_the_document(database_url: str, tmp_path: Path) -> None:
    sentence = "The quick Brown fox of Paris jumps over the lazy dog of Berlin. "
    peaks = []
    for megabytes in (1, 8):
        path = tmp_path / f"{megabytes}.txt"
        path.write_text(sentence * (megabytes * 2**20 // len(sentence)))
        # The spool's part in memory is bounded too, but larger than these documents.
        program = (
            "from sag_pg.cli import main; from sag_pg.ingest import batch;"
            " batch._IN_MEMORY_BYTES = 2**20; main()"
        )
        arguments = ["--database-url", database_url, "ingest", "--embedding", "none"]
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments, "--extractor", "rules", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        peaks.append(usage.ru_maxrss / 1024)
    # The text alone is 7 MB more; as chunks, entities and rows it would be many times that.
    assert peaks[1] - peaks[0] < 20


def test_command_line(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Alpha\n\nAlpha Corp bought Beta Ltd.\n")
    arguments = ["--database-url", database_url, "ingest", "--embedding", "none", "--json"]
    runner = CliRunner()
    result = runner.invoke(main, [*arguments, "-c", "new", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["added"] == 1
    result = runner.invoke(main, [*arguments, "-c", "new", str(tmp_path), str(tmp_path / "no.txt")])
    assert result.exit_code == 1
    outcome = json.loads(result.stdout)
    assert (outcome["unchanged"], outcome["failed"]) == (1, 1)
    assert "no.txt" in result.stderr


def test_a_document_too_large_for_the_database_fails_alone(
    connection: psycopg.Connection[Any],
) -> None:
    words = " ".join(f"w{number:07d}x" for number in range(150_000))
    documents = [document("a", "Paris."), document("b", words), document("c", "Rome.")]
    report = run(connection, documents, max_characters=None)
    assert (report.added, report.failed) == (2, 1)
    assert "tsvector" in str(report.failures[0])
    assert [row[0] for row in contents(connection)] == ["a", "c"]


def test_a_writer_ingests_with_vectors(database_url: str, small_model: EmbeddingModel) -> None:
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("SELECT sag.set_embedding_space('small', 3)")
        owner.execute("CREATE ROLE ingest_writer LOGIN IN ROLE sag_writer")
    url = conninfo.make_conninfo(database_url, user="ingest_writer")
    try:
        with migrate.connect_migrated(config.resolve(url, None)) as connection:
            report = ingest(
                connection,
                [document("a", "Paris.")],
                collection="default",
                extractor=CountingExtractor(),
                embedding_model=small_model,
            )
            assert report.added == 1
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="only the owner"):
                connection.execute("SELECT sag.set_embedding_space('other', 4)")
    finally:
        with psycopg.connect(database_url, autocommit=True) as owner:
            owner.execute("DROP ROLE ingest_writer")


def test_the_client_ingests_texts(connection: psycopg.Connection[Any]) -> None:
    client = Client(connection, collection="texts")
    report = client.ingest(
        [text_document("a", "Alpha Corp bought Beta Ltd.", title="Alpha \0", metadata={"n": 1})],
        extractor=load_extractor("rules"),
    )
    assert report.added == 1
    (evidence,) = client.retrieve("Who bought Beta Ltd?", filter="$.n == 1")
    assert (evidence.source, evidence.title) == ("a", "Alpha \ufffd")
    client.drop_collection("texts")
    assert [held.collection for held in client.collections()] == ["default"]
