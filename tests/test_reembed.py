"""The change of the embedding model: whole, resumable, and never in the way of a question."""

import hashlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner
from conftest import Server
from corpus import (
    Chunk,
    Connection,
    Document,
    Entity,
    assert_counts_exact,
    column,
    delete,
    merge,
    passage,
    value,
)
from psycopg import errors

from sag_pg import cli
from sag_pg.database import register_types
from sag_pg.errors import (
    BudgetExhaustedError,
    DatabaseError,
    EndpointRefusedError,
    InputRejectedError,
    ModelError,
)
from sag_pg.ingest.document import text_document
from sag_pg.ingest.job import ingest
from sag_pg.models.base import ExtractedEntity, Extraction, Passage, Vector
from sag_pg.reembed import Report, cancel, reembed

HOLDERS = ("event", "chunk", "entity")


class HashedModel:
    """Vectors made of a text's hash: every text has its own, and always the same.

    Args:
        name: Name and seed.
        dimensions: Length of the vectors.
        before: Called with the texts of each batch, to fail or to tarry.
    """

    def __init__(
        self,
        name: str,
        dimensions: int,
        before: Callable[[Sequence[str]], None] = lambda texts: None,
    ) -> None:
        self.name = name
        self.dimensions = dimensions
        self.before = before
        self.seen: list[str] = []

    def knows(self, text: str) -> bool:
        return "漢" not in text

    def embed_passages(self, texts: Sequence[str]) -> Vector:
        self.before(texts)
        self.seen += texts
        return np.stack([self.embed_question(text) for text in texts])

    def embed_question(self, text: str) -> Vector:
        seed = hashlib.sha256(f"{self.name} {text}".encode()).digest()
        vector = np.random.default_rng(list(seed)).normal(size=self.dimensions)
        unit: Vector = (vector / np.linalg.norm(vector)).astype(np.float32)
        return unit


def old_model() -> HashedModel:
    return HashedModel("old", 16)


def new_model(before: Callable[[Sequence[str]], None] = lambda texts: None) -> HashedModel:
    return HashedModel("new", 24, before)


@contextmanager
def connected(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        register_types(connection)
        yield connection


@pytest.fixture
def connection(postgresql: Connection, database_url: str) -> Iterator[Connection]:
    """A connection in autocommit mode with the vector types, as the program's are."""
    with connected(database_url) as opened:
        yield opened


def embedded_document(number: int, model: HashedModel | None = None) -> Document:
    """A document of two chunks, one of which has a statement; entities are shared."""
    model = model or old_model()
    names = [f"Hub {number % 3}", f"Thing {number}"]

    def vector(text: str) -> list[float]:
        return [float(x) for x in model.embed_question(text)]

    entities = [Entity(name, embedding=vector(name)) for name in names]
    title = f"Title {number}"
    plain = f"{names[1]} was made near {names[0]}."
    told = f"It was found {number} years later."
    statement = f"{names[1]} was found again."
    return Document(
        f"doc-{number}",
        [
            Chunk(plain, entities, title, embedding=vector(f"{title}. {plain}")),
            Chunk(
                told,
                entities,
                f"Finding of {names[1]}",
                statement,
                embedding=vector(f"Finding of {names[1]}. {statement}"),
                chunk_embedding=vector(f"{title}. {told}"),
            ),
        ],
        title,
    )


def fill(connection: Connection, count: int) -> None:
    connection.execute("SELECT sag.set_embedding_space('old', 16)")
    merge(connection, [embedded_document(number) for number in range(count)])


def expected_vectors(
    connection: Connection, model: HashedModel
) -> dict[tuple[str, str], list[Any]]:
    """What `model` makes of each text, as pgvector prints it, by table and text."""
    texts = {
        "event": "SELECT coalesce(e.title || '. ' || e.content, d.title || '. ' || c.content)"
        " FROM sag.event AS e JOIN sag.chunk AS c USING (collection_id, chunk_id)"
        " JOIN sag.document AS d ON d.document_id = e.document_id",
        "chunk": "SELECT d.title || '. ' || c.content FROM sag.chunk AS c"
        " JOIN sag.document AS d USING (collection_id, document_id) WHERE c.lexemes IS NOT NULL",
        "entity": "SELECT name FROM sag.entity",
    }
    return {
        (holder, text): model.embed_question(text).astype(np.float16).tolist()
        for holder, query in texts.items()
        for text in column(connection, query)
        if model.knows(text)
    }


def stored_vectors(connection: Connection) -> dict[tuple[str, str], list[Any]]:
    queries = {
        "event": "SELECT coalesce(e.title || '. ' || e.content, d.title || '. ' || c.content),"
        " e.embedding FROM sag.event AS e JOIN sag.chunk AS c USING (collection_id, chunk_id)"
        " JOIN sag.document AS d ON d.document_id = e.document_id",
        "chunk": "SELECT d.title || '. ' || c.content, c.embedding FROM sag.chunk AS c"
        " JOIN sag.document AS d USING (collection_id, document_id)",
        "entity": "SELECT name, embedding FROM sag.entity",
    }
    return {
        (holder, text): vector.to_list()
        for holder, query in queries.items()
        for text, vector in connection.execute(query)
        if vector is not None
    }


def space(connection: Connection) -> tuple[str, int] | None:
    return connection.execute("SELECT model, dimensions FROM sag.embedding_space").fetchone()


def assert_changed_over(connection: Connection, model: HashedModel) -> None:
    """The database goes by `model`, everywhere and exactly, and nothing of the change is left."""
    assert space(connection) == (model.name, model.dimensions)
    assert stored_vectors(connection) == expected_vectors(connection, model)
    assert_counts_exact(connection)
    assert_nothing_left(connection)
    for holder in HOLDERS:
        definition = value(
            connection,
            "SELECT pg_get_indexdef(indexrelid) FROM pg_index"
            " WHERE indexrelid = to_regclass(%s) AND indisvalid",
            f"sag.{holder}_embedding",
        )
        assert "USING hnsw (embedding" in definition


def assert_nothing_left(connection: Connection) -> None:
    assert value(connection, "SELECT sag.reembedding_status()") is None
    assert value(connection, "SELECT count(*) FROM sag.reembed_task") == 0
    assert value(connection, "SELECT sum(next_embedding_total) FROM sag.collection_statistic") == 0
    columns = connection.execute(
        """
        SELECT attname, format_type(atttypid, atttypmod),
            coalesce(col_description(attrelid, attnum), '') <> ''
        FROM pg_attribute
        WHERE attname LIKE '%embedding' AND attnum > 0
            AND attrelid IN ('sag.event'::regclass, 'sag.chunk'::regclass, 'sag.entity'::regclass)
        ORDER BY 1 DESC
        """
    ).fetchall()
    assert columns[:3] == [("next_embedding", "halfvec", True)] * 3
    assert all(has_comment for _, _, has_comment in columns[3:])
    assert len(columns) == 6
    left_over = """
        SELECT indexrelid::regclass::text FROM pg_index
        WHERE NOT indisvalid OR indexrelid::regclass::text LIKE '%next%'
        """
    assert connection.execute(left_over).fetchall() == []


def vector_objects(connection: Connection) -> list[tuple[Any, ...]]:
    """Type, storage and comment of each vector column and its index."""
    return connection.execute(
        """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attstorage,
            col_description(c.oid, a.attnum),
            obj_description(to_regclass('sag.' || c.relname || '_embedding'), 'pg_class')
        FROM pg_class AS c INNER JOIN pg_attribute AS a ON a.attrelid = c.oid
        WHERE c.relnamespace = 'sag'::regnamespace AND a.attname LIKE '%embedding' AND a.attnum > 0
            AND c.relname IN ('event', 'chunk', 'entity')
        ORDER BY 1, 2
        """
    ).fetchall()


# What comes of it.


def test_all_vectors_are_the_next_models(connection: Connection) -> None:
    fill(connection, 30)
    report = reembed(connection, new_model())
    assert report.complete
    assert (report.embedded, report.without, report.failed) == (60 + 30 + 33, 0, 0)
    assert report.stopped is None
    assert_changed_over(connection, new_model())


def test_columns_and_indexes_are_as_a_fresh_database_has_them(
    connection: Connection, empty_database_url: str
) -> None:
    fill(connection, 3)
    before = vector_objects(connection)
    reembed(connection, HashedModel("wide", 2000))
    assert [row[3] for row in vector_objects(connection) if row[1] == "embedding"] == ["e"] * 3
    reembed(connection, new_model())
    reembed(connection, old_model())
    assert vector_objects(connection) == before
    assert_changed_over(connection, old_model())


def test_a_database_without_vectors_gets_its_first(connection: Connection) -> None:
    documents = [passage(f"doc-{number}", f"Thing {number} is old.") for number in range(5)]
    merge(connection, documents)
    report = reembed(connection, new_model())
    assert (report.embedded, report.complete) == (5, True)
    assert_changed_over_events(connection, new_model())


def assert_changed_over_events(connection: Connection, model: HashedModel) -> None:
    assert space(connection) == (model.name, model.dimensions)
    assert value(connection, "SELECT count(*) FROM sag.event WHERE embedding IS NULL") == 0
    assert_counts_exact(connection)
    assert_nothing_left(connection)


def test_an_empty_database_changes_too(connection: Connection) -> None:
    connection.execute("SELECT sag.set_embedding_space('old', 16)")
    assert reembed(connection, new_model()).complete
    assert_changed_over(connection, new_model())


def test_the_model_in_use_fills_what_is_missing(connection: Connection) -> None:
    fill(connection, 4)
    merge(connection, [passage("words-1", "Plain words."), passage("words-2", "More of them.")])
    before = stored_vectors(connection)
    model = old_model()
    report = reembed(connection, model)
    assert (report.embedded, report.complete) == (2, True)
    assert len(model.seen) == 2
    after = stored_vectors(connection)
    assert {key: after[key] for key in before} == before
    assert len(after) == len(before) + 2
    assert_counts_exact(connection)
    assert_nothing_left(connection)
    assert reembed(connection, old_model()).embedded == 0


def test_what_a_model_does_not_know_has_no_vector_and_no_zero_has_one(
    connection: Connection,
) -> None:
    fill(connection, 2)
    merge(connection, [passage("han", "漢字"), passage("zero", "Nothing at all.")])

    class Zeros(HashedModel):
        def embed_passages(self, texts: Sequence[str]) -> Vector:
            vectors = super().embed_passages(texts)
            vectors[[text == "Nothing at all." for text in texts]] = 0
            return vectors

    report = reembed(connection, Zeros("new", 24))
    assert report.without == 2
    assert value(connection, "SELECT count(*) FROM sag.event WHERE embedding IS NULL") == 2
    assert_counts_exact(connection)
    assert_nothing_left(connection)


def test_names_that_only_the_next_model_knows_are_embedded(connection: Connection) -> None:
    fill(connection, 1)
    merge(connection, [passage("other", "A text.", "No vector yet")])
    connection.execute("SELECT sag.create_collection('names without vectors')")
    merge(connection, [passage("doc", "A text.", "Left alone")], "names without vectors")
    reembed(connection, new_model())
    missing = column(connection, "SELECT name FROM sag.entity WHERE embedding IS NULL")
    assert missing == ["Left alone"]


class HeadlineExtractor:
    """Gives every second passage a statement, and some a title of their own."""

    name = "headline-1"

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        return [self._extract(each) for each in passages]

    def _extract(self, each: Passage) -> Extraction:
        entities = (ExtractedEntity(each.text.split()[0], "tag"), ExtractedEntity("Hub", "tag"))
        if len(each.text) % 3 == 0:
            return Extraction(entities)
        if len(each.text) % 3 == 1:
            return Extraction(entities, event_title="Headline", event_text=f"Said: {each.text}")
        return Extraction(entities, event_text=f"Told: {each.text}")


def test_vectors_equal_those_of_a_fresh_ingest(connection: Connection) -> None:
    texts = [
        f"# Part {number}\n\n{'Word ' * (number + 3)}\n\n## Section\n\n{'x' * (number + 1)} is it."
        for number in range(12)
    ]
    documents = [
        replace(
            text_document(f"doc-{number}", text, title="" if number % 4 == 0 else "Paper"),
            markdown=True,
        )
        for number, text in enumerate(texts)
    ]

    def fresh(model: HashedModel) -> list[tuple[Any, ...]]:
        report = ingest(
            connection,
            documents,
            collection="default",
            extractor=HeadlineExtractor(),
            embedding_model=model,
            max_characters=40,
            embed_entities=True,
        )
        assert report.complete
        return vectors()

    def vectors() -> list[tuple[Any, ...]]:
        return connection.execute(
            """
            SELECT d.source, c.ordinal, e.embedding::text, c.embedding::text,
                (SELECT array_agg(n.name || n.embedding::text ORDER BY n.name)
                FROM sag.event_entity AS l JOIN sag.entity AS n USING (collection_id, entity_id)
                WHERE l.event_id = e.event_id)
            FROM sag.event AS e
            JOIN sag.chunk AS c USING (collection_id, chunk_id)
            JOIN sag.document AS d ON d.document_id = e.document_id
            ORDER BY 1, 2
            """
        ).fetchall()

    fresh(old_model())
    assert reembed(connection, new_model()).complete
    changed_over = vectors()
    assert_counts_exact(connection)
    delete(connection, column(connection, "SELECT source FROM sag.document"))
    assert fresh(new_model()) == changed_over
    assert sum(row[3] is not None for row in changed_over) > 5
    assert sum(row[3] is None for row in changed_over) > 5


# When the model fails.


def test_a_text_that_the_model_refuses_goes_without(connection: Connection) -> None:
    fill(connection, 20)

    def refuse(texts: Sequence[str]) -> None:
        if any("Thing 7 was made" in text for text in texts):
            raise InputRejectedError("not this text", "Take another one.")

    report = reembed(connection, new_model(refuse))
    assert (report.finished, report.complete, report.failed) == (True, False, 1)
    (failure,) = report.failures
    assert (failure.kind, failure.name, failure.message) == ("event", "doc-7", "not this text")
    assert len(stored_vectors(connection)) == 20 * 3 + 23 - 1
    assert_counts_exact(connection)
    # The model in use fills what is missing.
    assert reembed(connection, new_model()).embedded == 1
    assert_changed_over(connection, new_model())


def test_a_text_that_breaks_the_model_does_not_stop_the_others(connection: Connection) -> None:
    fill(connection, 20)

    def fail(texts: Sequence[str]) -> None:
        if any("Thing 7 was made" in text for text in texts):
            raise ModelError("no usable answer")

    report = reembed(connection, new_model(fail))
    assert (report.finished, report.failed) == (True, 1)


def test_a_model_that_is_down_ends_the_run_and_the_next_goes_on(connection: Connection) -> None:
    fill(connection, 100)
    working = [True]

    def stop_after_one(texts: Sequence[str]) -> None:
        if not working[0]:
            raise ModelError("not there")
        working[0] = False

    first = reembed(connection, new_model(stop_after_one))
    assert not first.finished
    assert first.stopped is not None
    assert "12 times in a row" in first.stopped
    assert space(connection) == ("old", 16)
    assert 0 < first.embedded < 335
    status = value(connection, "SELECT sag.reembedding_status()")
    assert status["total"] - status["remaining"] == first.embedded

    model = new_model()
    second = reembed(connection, model)
    assert second.complete
    assert first.embedded + second.embedded == 200 + 100 + 103
    assert len(model.seen) == second.embedded
    assert_changed_over(connection, new_model())


def test_a_budget_ends_the_run_and_a_refusal_is_an_error(connection: Connection) -> None:
    fill(connection, 3)

    def exhaust(texts: Sequence[str]) -> None:
        raise BudgetExhaustedError("used up", "Raise it.")

    def refuse(texts: Sequence[str]) -> None:
        raise EndpointRefusedError("no such key")

    assert reembed(connection, new_model(exhaust)).stopped == "used up Raise it."
    with pytest.raises(EndpointRefusedError):
        reembed(connection, new_model(refuse))
    # Neither keeps the next run out.
    assert reembed(connection, new_model()).complete


# Killed, at any moment.

WORKER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import psycopg
from test_reembed import connected, new_model
import time
from sag_pg.reembed import reembed, run
run._BATCH_ROWS = 16
with connected(sys.argv[2]) as connection:
    print("ready", flush=True)
    reembed(connection, new_model(lambda texts: time.sleep(0.01)))
    print("done", flush=True)
"""


def test_a_run_killed_at_any_moment_goes_on(connection: Connection, database_url: str) -> None:
    fill(connection, 60)
    chance = random.Random(4)  # noqa: S311
    kills = 0
    for attempt in range(40):
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(Path(__file__).parent), database_url],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            # Later ones live longer, so that the run gets to its end.
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 0.1 + 0.02 * attempt))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
            if process.stdout.read() == "done\n":
                break
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        assert_counts_exact(connection)
        # Retrieval has all vectors of one model, at every moment.
        found = value(connection, "SELECT count(embedding) FROM sag.event")
        assert found == 120
        assert space(connection) in (("old", 16), ("new", 24))
    else:
        pytest.fail("it never got to its end")
    assert kills > 3
    assert_changed_over(connection, new_model())


def test_half_built_indexes_are_built_anew(connection: Connection, database_url: str) -> None:
    fill(connection, 5)

    def stop(texts: Sequence[str]) -> None:
        raise BudgetExhaustedError("later")

    reembed(connection, new_model(stop))
    # A reader that holds a snapshot keeps CREATE INDEX CONCURRENTLY waiting, until that is killed.
    with connected(database_url) as reader, connected(database_url) as builder:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT FROM sag.event")
        (statement,) = column(
            builder, "SELECT statement FROM sag.reembedding_indexes() WHERE holder = 'event'"
        )
        builder.execute("SET statement_timeout = '300ms'")
        with pytest.raises(errors.QueryCanceled):
            builder.execute(statement)
        reader.execute("ROLLBACK")
    assert not value(
        connection,
        "SELECT indisvalid FROM pg_index WHERE indexrelid = 'sag.event_next_embedding'::regclass",
    )
    assert reembed(connection, new_model()).complete
    assert_changed_over(connection, new_model())


# In company.


class Askers:
    """Threads that ask all the time, each over one session; what goes wrong is kept.

    They go by words alone, or by the model that the database says it has, in every way in which
    plans may be kept.
    """

    def __init__(self, database_url: str) -> None:
        self.problems: list[str] = []
        self.answers = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guard, args=(ask, database_url, mode))
            for mode in ("auto", "force_generic_plan", "force_custom_plan")
            for ask in (self._by_words, self._by_vector)
        ]

    def __enter__(self) -> "Askers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guard(self, ask: Callable[[Connection], None], url: str, mode: str) -> None:
        try:
            with connected(url) as connection:
                connection.execute(f"SET plan_cache_mode = {mode}")
                ask(connection)
        except Exception as error:
            self.problems.append(f"{ask.__name__}, {mode}: {error}")

    def _by_words(self, connection: Connection) -> None:
        connection.execute(
            "PREPARE ask (text) AS SELECT mode, source FROM sag_retrieve($1,"
            ' options => \'{"understand": "sql"}\')'
        )
        while not self._stop.is_set():
            self._expect(
                connection.execute("EXECUTE ask ('Who made Thing 1 near Hub 1?')"), {"lexical"}
            )

    def _by_vector(self, connection: Connection) -> None:
        connection.execute(
            "PREPARE ask (text, halfvec) AS SELECT mode, source FROM sag_retrieve($1,"
            " embedding => $2)"
        )
        models = {"old": old_model(), "new": new_model()}
        question = "Title 1. Thing 1 was made near Hub 1."
        while not self._stop.is_set():
            (name, _) = space(connection) or ("", 0)
            vector = models[name].embed_question(question)
            literal = "[" + ",".join(map(str, vector.tolist())) + "]"
            try:
                rows = connection.execute(f"EXECUTE ask ('{question}', '{literal}')")
            except errors.DataError:
                # The switch came between the two statements.
                (latest, _) = space(connection) or ("", 0)
                if (name, latest) != ("old", "new"):
                    raise
                continue
            self._expect(rows, {"vector", "vector and lexical"})

    def _expect(self, cursor: psycopg.Cursor[Any], modes: set[str]) -> None:
        rows = cursor.fetchall()
        sources = {source for _, source in rows}
        if "doc-1" not in sources or not {mode for mode, _ in rows} <= modes:
            self.problems.append(f"{rows}")
            self._stop.set()
        self.answers += 1


def test_questions_are_answered_throughout(connection: Connection, database_url: str) -> None:
    fill(connection, 150)
    with Askers(database_url) as askers:
        time.sleep(0.5)
        before = askers.answers
        report = reembed(connection, new_model(lambda texts: time.sleep(0.2)))
        during = askers.answers
        time.sleep(0.5)
        after = askers.answers
    assert askers.problems == []
    assert report.complete
    assert 0 < before < during < after
    assert_changed_over(connection, new_model())


def test_ingest_and_deletion_go_on_meanwhile(connection: Connection, database_url: str) -> None:
    fill(connection, 60)
    stop = threading.Event()
    problems: list[str] = []
    merged = [0]

    def write(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311
        try:
            with connected(database_url) as own:
                while not stop.is_set():
                    number = chance.randrange(2, 90)
                    if chance.random() < 0.4:
                        delete(own, [f"doc-{number}"])
                        continue
                    document = embedded_document(number)
                    if chance.random() < 0.5:
                        document = Document(
                            document.source, document.chunks[:1], document.title, {"run": number}
                        )
                    with own.transaction():
                        own.execute("SELECT sag.lock_collection('default')")
                        if space(own) != ("old", 16):
                            return
                        merge(own, [document])
                    merged[0] += 1
        except Exception as error:
            problems.append(str(error))

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    with Askers(database_url) as askers:
        for writer in writers:
            writer.start()
        report = reembed(connection, new_model(lambda texts: time.sleep(0.1)))
        stop.set()
        for writer in writers:
            writer.join()
    assert problems == []
    assert askers.problems == []
    assert merged[0] > 10
    assert report.complete
    assert_changed_over(connection, new_model())


def test_a_reader_that_rests_delays_the_switch_and_nobody_else(
    connection: Connection, database_url: str
) -> None:
    fill(connection, 20)
    stop_at_end = threading.Event()
    with connected(database_url) as rester, Askers(database_url) as askers:
        told = threading.Event()
        reports: list[Report] = []

        def run() -> None:
            with connected(database_url) as own:
                reports.append(
                    reembed(
                        own,
                        new_model(),
                        notify=lambda text: told.set() if "in use" in text else None,
                    )
                )
            stop_at_end.set()

        def stop(texts: Sequence[str]) -> None:
            raise BudgetExhaustedError("later")

        reembed(connection, new_model(stop))
        rester.execute("BEGIN")
        rester.execute("SELECT FROM sag.event LIMIT 1")
        thread = threading.Thread(target=run)
        thread.start()
        assert told.wait(60)
        before = askers.answers
        merge(connection, [embedded_document(500)])
        assert space(connection) == ("old", 16)
        deadline = time.monotonic() + 30
        while askers.answers < before + 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert askers.answers >= before + 20
        rester.execute("COMMIT")
        thread.join()
    assert askers.problems == []
    assert reports[0].complete
    assert_changed_over(connection, new_model())


def test_one_process_at_a_time(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(connection, 3)
    monkeypatch.setattr("sag_pg.reembed.claim._CLAIM_SECONDS", 0.5)
    with connected(database_url) as other:
        other.execute("SELECT sag.claim_reembedding()")
        with pytest.raises(DatabaseError, match="Another process"):
            reembed(connection, new_model())
        with pytest.raises(DatabaseError, match="Another process"):
            cancel(connection)
        other.execute("SELECT sag.start_reembedding('new', 24)")
        with pytest.raises(errors.ObjectInUse):
            connection.execute("SELECT sag.cancel_reembedding()")
        assert value(connection, "SELECT sag.reembedding_status() -> 'at_work'") is True
    assert reembed(connection, new_model()).complete


def test_the_session_is_as_before(connection: Connection) -> None:
    connection.execute("SET statement_timeout = '7s'")
    # Loads pgvector, which brings settings.
    fill(connection, 1)
    query = "SELECT name, setting FROM pg_settings ORDER BY name"
    before = connection.execute(query).fetchall()
    reembed(connection, new_model())
    assert connection.execute(query).fetchall() == before
    assert value(connection, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_sessions_that_hold_much_watch_their_client_in_one_way(connection: Connection) -> None:
    # Servers on some systems refuse it, for which one function makes up.
    setters = (
        "SELECT proname FROM pg_proc"
        " WHERE strpos(prosrc, '''client_connection_check_interval'', ') > 0"
    )
    assert column(connection, setters) == ["watch_client"]
    query = "SELECT current_setting('client_connection_check_interval')"
    connection.execute("SELECT sag.claim_reembedding()")
    assert value(connection, query) == "2s"
    with connection.transaction():
        connection.execute("SELECT sag.lock_collection('default')")
        assert value(connection, query) == "5s"
    assert value(connection, query) == "2s"


# What is refused, and giving up.


def test_one_change_at_a_time(connection: Connection) -> None:
    fill(connection, 3)
    connection.execute("SELECT sag.start_reembedding('new', 24)")
    connection.execute("SELECT sag.start_reembedding('new', 24)")
    for function, model in (
        ("start_reembedding", "third"),
        ("set_embedding_space", "third"),
        ("set_embedding_space", "new"),
    ):
        with pytest.raises(errors.ObjectNotInPrerequisiteState) as caught:
            connection.execute(f"SELECT sag.{function}(%s, 24)", (model,))
        assert "'new' with 24 dimensions is under way" in str(caught.value)
    connection.execute("SELECT sag.set_embedding_space('old', 16)")


def test_the_old_model_is_refused_afterwards(connection: Connection) -> None:
    fill(connection, 3)
    reembed(connection, new_model())
    with pytest.raises(errors.ObjectNotInPrerequisiteState) as caught:
        connection.execute("SELECT sag.set_embedding_space('old', 16)")
    assert "sag-pg reembed" in (caught.value.diag.message_hint or "")


@pytest.mark.parametrize(("model", "dimensions"), [("", 24), (None, 24), ("new", 0), ("new", 4001)])
def test_impossible_models_are_refused(
    connection: Connection, model: str | None, dimensions: int
) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        connection.execute("SELECT sag.start_reembedding(%s, %s)", (model, dimensions))


def test_a_view_on_the_vectors_is_named_before_anything_is_paid_for(
    connection: Connection,
) -> None:
    fill(connection, 1)
    connection.execute("CREATE VIEW public.mine AS SELECT embedding FROM sag.event")
    with pytest.raises(errors.DependentObjectsStillExist, match="view mine"):
        reembed(connection, new_model())
    assert_nothing_left(connection)


def test_only_the_owner_changes_the_model(connection: Connection, embedded_server: Server) -> None:
    fill(connection, 1)
    connection.execute("DROP ROLE IF EXISTS reembed_writer")
    connection.execute("CREATE ROLE reembed_writer LOGIN IN ROLE sag_writer, sag_reader")
    try:
        url = embedded_server.url(connection.info.dbname, "reembed_writer")
        with connected(url) as writer:
            for action in (lambda: reembed(writer, new_model()), lambda: cancel(writer)):
                with pytest.raises(errors.InsufficientPrivilege) as caught:
                    action()
                assert embedded_server.user in (caught.value.diag.message_hint or "")
            connection.execute("SELECT sag.start_reembedding('new', 24)")
            merge(writer, [embedded_document(9)])
            delete(writer, ["doc-0"])
            assert value(writer, "SELECT sag.reembedding_status() ->> 'model'") == "new"
        assert reembed(connection, new_model()).complete
        assert_changed_over(connection, new_model())
    finally:
        connection.execute("DROP ROLE reembed_writer")


def test_giving_up_leaves_all_as_it_was(connection: Connection) -> None:
    fill(connection, 200)
    before = (stored_vectors(connection), vector_objects(connection))
    working = [True]

    def stop_after_one(texts: Sequence[str]) -> None:
        if not working[0]:
            raise BudgetExhaustedError("later")
        working[0] = False

    assert reembed(connection, new_model(stop_after_one)).embedded > 0
    assert cancel(connection)
    assert (stored_vectors(connection), vector_objects(connection)) == before
    assert_nothing_left(connection)
    assert not cancel(connection)
    assert reembed(connection, HashedModel("third", 8)).complete
    assert_changed_over(connection, HashedModel("third", 8))


def test_a_collection_dropped_meanwhile_is_no_hindrance(connection: Connection) -> None:
    fill(connection, 3)
    connection.execute("SELECT sag.create_collection('gone')")
    merge(connection, [embedded_document(number) for number in range(3)], "gone")
    dropped = []

    def drop(texts: Sequence[str]) -> None:
        if not dropped:
            with psycopg.connect(connection.info.dsn, autocommit=True) as other:
                other.execute("SELECT sag.drop_collection('gone')")
            dropped.append(True)

    assert reembed(connection, new_model(drop)).complete
    assert_changed_over(connection, new_model())


# The command.


def test_the_command_changes_to_the_local_model(connection: Connection, database_url: str) -> None:
    fill(connection, 2)
    runner = CliRunner(env={"DATABASE_URL": database_url, "SAG_PG_EMBEDDING": ""})
    result = runner.invoke(cli.main, ["reembed"])
    assert result.exit_code == 2
    assert "--embedding" in result.stderr
    result = runner.invoke(cli.main, ["reembed", "--embedding", "none"])
    assert result.exit_code == 2

    result = runner.invoke(cli.main, ["reembed", "--embedding", "local", "--json"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["finished"], report["embedded"], report["failed"]) == (True, 10, 0)
    assert space(connection) == ("BAAI/bge-small-en-v1.5", 384) or space(connection) == (
        report["model"],
        384,
    )
    assert_counts_exact(connection)
    assert_nothing_left(connection)

    result = runner.invoke(cli.main, ["reembed", "--embedding", "local"])
    assert result.exit_code == 0
    assert "is in use: 0 rows embedded" in result.stdout


def test_status_and_cancel(connection: Connection, database_url: str) -> None:
    fill(connection, 2)
    runner = CliRunner(env={"DATABASE_URL": database_url})
    assert json.loads(runner.invoke(cli.main, ["status", "--json"]).stdout)["reembedding"] is None

    connection.execute("SELECT sag.start_reembedding('new', 24)")
    assert "to new with 24 dimensions: listing" in runner.invoke(cli.main, ["status"]).stdout
    connection.execute("SELECT sag.list_reembed_tasks()")
    facts = json.loads(runner.invoke(cli.main, ["status", "--json"]).stdout)["reembedding"]
    assert facts.pop("started_at")
    assert facts == {
        "model": "new",
        "dimensions": 24,
        "present_model": "old",
        "present_dimensions": 16,
        "phase": "embedding",
        "total": 10,
        "remaining": 10,
        "at_work": False,
    }
    shown = runner.invoke(cli.main, ["status"]).stdout
    assert "from old to new with 24 dimensions: 0 of 10 rows done, 10 remain; nobody" in shown

    result = runner.invoke(cli.main, ["reembed", "--cancel"])
    assert (result.exit_code, result.stderr) == (0, "Given up.\n")
    result = runner.invoke(cli.main, ["reembed", "--cancel", "--json"])
    assert json.loads(result.stdout) == {"cancelled": False}
    assert_nothing_left(connection)
