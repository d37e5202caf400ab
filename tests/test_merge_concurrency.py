"""Merges, deletions, workers and people at the same collection at the same time."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from corpus import (
    Chunk,
    Document,
    Entity,
    assert_counts_exact,
    call,
    column,
    delete,
    entity_ids,
    fill_batch,
    merge,
    passage,
    value,
)
from psycopg import errors

Connection = psycopg.Connection[Any]
Step = Callable[[], object]

# In every document; what all writers meet at.
HUBS = [f"Hub {no}" for no in range(10)]


@contextmanager
def sessions(database_url: str) -> Iterator[Callable[[], Connection]]:
    """Opens sessions that notice a deadlock at once, and closes them."""
    opened: list[Connection] = []

    def connect() -> Connection:
        connection = psycopg.connect(database_url, autocommit=True)
        opened.append(connection)
        connection.execute("SET deadlock_timeout = '50ms'")
        return connection

    try:
        yield connect
    finally:
        for connection in opened:
            connection.close()


def run_at_once(steps: Iterable[Step], seconds: float) -> None:
    """Repeats each step in a thread of its own, until the time is over or one fails."""
    failures: list[BaseException] = []
    deadline = time.monotonic() + seconds

    def repeat(step: Step) -> None:
        try:
            while time.monotonic() < deadline and not failures:
                step()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=repeat, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads)


def assert_all_exact(connection: Connection) -> None:
    """Counts are exact, and no alias of extraction is without an event that gave it."""
    assert_counts_exact(connection)
    assert (
        column(
            connection,
            """
            SELECT a.name FROM sag.entity_alias AS a
            WHERE a.origin = 'extraction' AND NOT EXISTS (
                SELECT FROM sag.event_alias AS g
                WHERE g.collection_id = a.collection_id AND g.entity_id = a.entity_id
                    AND g.normalized_name = a.normalized_name
            )
            """,
        )
        == []
    ), "aliases that nobody gives"


class Writer:
    """Makes one random change after the other to documents that others change too.

    Args:
        connection: A session of its own.
        seed: Of its random choices.
        sources: The documents.
    """

    def __init__(self, connection: Connection, seed: int, sources: list[str]) -> None:
        self.connection = connection
        self._chance = random.Random(seed)  # noqa: S311
        self._sources = sources

    def document(self, source: str, task_id: int | None = None) -> Document:
        """A new version of a document: all hubs, some names that others have too, one alias."""
        chance = self._chance
        chunks = [
            Chunk(
                f"{chance.random()}",
                [
                    *map(Entity, chance.sample(HUBS, k=len(HUBS))),
                    Entity(f"Rare {chance.randrange(30)}", is_subject=True),
                    Entity(f"Own {source}"),
                    Entity(f"Alias {chance.randrange(3)}", alias_of=chance.choice(HUBS)),
                ],
                statement="a statement" if chance.random() < 0.3 else None,
                embedding=[chance.random() + 0.1, 1, 0] if chance.random() < 0.5 else None,
            )
            for _ in range(chance.randint(0, 3))
        ]
        return Document(source, chunks, task_id=task_id)

    def some_sources(self) -> list[str]:
        return self._chance.sample(self._sources, k=self._chance.randint(1, 5))

    def merge(self) -> None:
        merge(self.connection, [self.document(source) for source in self.some_sources()])

    def delete(self) -> None:
        delete(self.connection, self.some_sources())

    def several_in_one_transaction(self) -> None:
        """What an application does: one thing after the other, and sometimes all of it undone."""
        with self.connection.transaction(force_rollback=self._chance.random() < 0.3):
            for _ in range(3):
                self._chance.choice([self.delete, self.merge])()

    def change(self) -> None:
        self._chance.choice([self.merge, self.delete, self.several_in_one_transaction])()


class QueueWorker(Writer):
    """Takes documents out of the queue, and merges what of them it still has."""

    def __init__(self, connection: Connection, seed: int, sources: list[str]) -> None:
        super().__init__(connection, seed, sources)
        self.worker = value(connection, "SELECT sag.register_worker('test')")

    def change(self) -> None:
        for source in self.some_sources():
            self.connection.execute("SELECT sag_ingest(%s, 'some text')", [source])
        taken = call(
            self.connection,
            "take_tasks",
            worker=self.worker,
            settings="{}",
            only_collection=None,
            only_job=None,
            document_limit=5,
            character_limit=1000,
        )
        documents = [self.document(row["source"], row["task_id"]) for row in taken]
        # In the meantime somebody takes them away.
        if self._chance.random() < 0.3:
            self.connection.execute("SELECT sag.release_tasks(%s)", [self.worker])
        states = merge(self.connection, documents, worker=self.worker)
        assert set(states.values()) <= {"added", "replaced", "unchanged", "superseded"}


class Canceller(Writer):
    """Takes documents away from the workers."""

    def change(self) -> None:
        if self._chance.random() < 0.5:
            self.connection.execute(
                "SELECT sag.cancel_job(job_id) FROM sag.ingest_job WHERE origin = 'sql'"
            )
        else:
            with self.connection.transaction():
                for source in self.some_sources():
                    self.connection.execute("SELECT sag_delete(%s)", [source])


class Loader(Writer):
    """Queues files that may be in the queue already, and thinks better of some."""

    def change(self) -> None:
        sources = self.some_sources()
        job = value(self.connection, "SELECT sag.start_job('default', NULL, '{}')")
        call(
            self.connection,
            "queue_documents",
            collection="default",
            job=job,
            sources=sources,
            titles=sources,
            title_stated=[True] * len(sources),
            markdown=[False] * len(sources),
            metadata=["{}"] * len(sources),
            content_hashes=[self._chance.choice([b"one", b"two"]) for _ in sources],
            contents=sources,
            character_counts=[len(source) for source in sources],
            max_attempts=2,
        )
        after = self._chance.choice(["cancel_job", "retry_job", "seal_job"])
        self.connection.execute(f"SELECT sag.{after}(%s)".encode(), [job])


class Editor(Writer):
    """A person who gives aliases, and deletes documents in the same transaction."""

    def change(self) -> None:
        try:
            with self.connection.transaction(force_rollback=self._chance.random() < 0.3):
                self.connection.execute(
                    "INSERT INTO sag.entity_alias (collection_id, entity_id, name)"
                    " SELECT collection_id, entity_id, 'By hand ' || name FROM sag.entity"
                    " WHERE name LIKE 'Own %' ORDER BY random() LIMIT 2"
                    " ON CONFLICT DO NOTHING"
                )
                self.delete()
        except errors.ForeignKeyViolation:
            # The entity went with its last document.
            return
        self.connection.execute("DELETE FROM sag.entity_alias WHERE origin = 'person'")


def observer(connection: Connection) -> Step:
    """Recounts in one snapshot of what the writers are at."""
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    def step() -> None:
        with connection.transaction():
            assert_all_exact(connection)

    return step


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_counts_are_exact_at_all_times(
    postgresql: Connection, database_url: str, seed: int
) -> None:
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    postgresql.commit()
    sources = [f"source {no}" for no in range(12)]
    with sessions(database_url) as connect:
        kinds = [Writer, Writer, QueueWorker, QueueWorker, Canceller, Loader, Loader]
        writers = [kind(connect(), 10 * seed + no, sources) for no, kind in enumerate(kinds)]
        run_at_once([*(writer.change for writer in writers), observer(connect())], 4)
    assert_all_exact(postgresql)
    delete(postgresql, sources)
    assert column(postgresql, "SELECT name FROM sag.entity") == []
    assert column(postgresql, "SELECT name FROM sag.entity_alias") == []


def test_nobody_waits_for_tasks_while_others_want_more_of_them(
    postgresql: Connection, database_url: str
) -> None:
    """A transaction takes documents out of the queue one by one, in whatever order."""
    postgresql.autocommit = True
    postgresql.execute("SET lock_timeout = '5s'")
    worker = value(postgresql, "SELECT sag.register_worker('test')")
    for source in "abc":
        postgresql.execute("SELECT sag_ingest(%s, 'some text')", [source])
    taken = call(
        postgresql,
        "take_tasks",
        worker=worker,
        settings="{}",
        only_collection=None,
        only_job=None,
        document_limit=5,
        character_limit=1000,
    )
    assert len(taken) == 3
    with psycopg.connect(database_url) as user:
        assert value(user, "SELECT sag_delete('c')") is True
        assert value(postgresql, "SELECT sag.release_tasks(%s)", worker) == 2
        assert value(user, "SELECT sag_delete('a')") is True
        user.rollback()
    states = "SELECT state FROM sag.ingest_task ORDER BY task_id"
    assert column(postgresql, states) == ["queued", "queued", "running"]
    # What was left to the worker after all it gives back the next time.
    assert value(postgresql, "SELECT sag.release_tasks(%s)", worker) == 1


def test_people_who_give_aliases_do_not_deadlock_with_writers(
    postgresql: Connection, database_url: str
) -> None:
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    postgresql.commit()
    sources = [f"source {no}" for no in range(12)]
    with sessions(database_url) as connect:
        kinds = [Writer, Writer, Editor]
        run_at_once([kind(connect(), no, sources).change for no, kind in enumerate(kinds)], 3)
    # An alias that was taken back, or never was, may have kept its entity from going.
    kept = value(
        postgresql,
        "SELECT count(*) FROM sag.entity AS n WHERE event_count <> (SELECT count(*)"
        " FROM sag.event_entity AS l WHERE l.entity_id = n.entity_id)",
    )
    assert kept == 0


def test_an_alias_that_comes_meanwhile_keeps_its_entity(
    postgresql: Connection, database_url: str
) -> None:
    merge(postgresql, [passage("a", "x", "Acme"), passage("b", "y", "Bob")])
    postgresql.commit()
    with sessions(database_url) as connect:
        person, remover = connect(), connect()
        with person.transaction():
            person.execute(
                "INSERT INTO sag.entity_alias (collection_id, entity_id, name)"
                " SELECT collection_id, entity_id, 'The Firm' FROM sag.entity WHERE name = 'Acme'"
            )
            # It does not wait for the person, who may be waiting for it next.
            remover.execute("SET statement_timeout = '20s'")
            assert delete(remover, ["a"]) == {"a"}
            assert delete(person, ["b"]) == {"b"}
    assert set(entity_ids(postgresql)) == {"acme"}
    assert_counts_exact(postgresql)


@pytest.mark.parametrize("shared_documents", [True, False])
def test_writers_in_opposite_orders_do_not_deadlock(
    postgresql: Connection, database_url: str, shared_documents: bool
) -> None:
    """All writers meet at the same hubs; at the same documents, or each at documents of its own."""

    def sources(seed: int) -> list[str]:
        return [f"{0 if shared_documents else seed} source {no}" for no in range(10)]

    def documents(seed: int, chance: random.Random) -> list[Document]:
        return [
            passage(source, str(chance.random()), *chance.sample(HUBS, k=8))
            for source in chance.sample(sources(seed), k=chance.randint(2, 8))
        ]

    def writer(connection: Connection, seed: int) -> Step:
        chance = random.Random(seed)  # noqa: S311
        return lambda: merge(connection, documents(seed, chance))

    def remover(connection: Connection, seed: int) -> Step:
        """Deletes one by one, in any order, in one transaction."""
        chance = random.Random(seed)  # noqa: S311

        def step() -> None:
            with connection.transaction():
                for source in chance.sample(sources(seed), k=4):
                    delete(connection, [source])
            merge(connection, documents(seed, chance))

        return step

    with sessions(database_url) as connect:
        run_at_once(
            [
                *(writer(connect(), seed) for seed in range(1, 5)),
                *(remover(connect(), seed) for seed in range(5, 8)),
            ],
            3,
        )
    assert_counts_exact(postgresql)


def test_two_writers_of_the_same_new_document(postgresql: Connection, database_url: str) -> None:
    document = passage("a", "one", "Acme")
    with psycopg.connect(database_url) as first, psycopg.connect(database_url) as second:
        fill_batch(first, [document])
        first.execute("SELECT sag.merge_batch('default')")
        states: list[Any] = []
        waiting = threading.Thread(target=lambda: states.append(merge(second, [document])))
        waiting.start()
        waiting.join(timeout=0.3)
        assert waiting.is_alive(), "the second writer does not wait for the first"
        first.commit()
        waiting.join(timeout=20)
        second.commit()
    assert states == [{"a": "unchanged"}]
    assert column(postgresql, "SELECT event_count FROM sag.entity") == [1]
    assert_counts_exact(postgresql)


def test_dropping_a_collection_that_is_written_does_not_deadlock(
    postgresql: Connection, database_url: str
) -> None:
    sources = [f"source {no}" for no in range(8)]

    def writer(connection: Connection, seed: int) -> Step:
        chance = random.Random(seed)  # noqa: S311

        def step() -> None:
            chosen = chance.sample(sources, k=5)
            documents = [passage(s, str(chance.random()), "Hub", f"Own {s}") for s in chosen]
            try:
                merge(connection, documents, "busy")
                delete(connection, chance.sample(sources, k=2), "busy")
            except errors.UndefinedObject:
                time.sleep(0.01)

        return step

    def dropper(connection: Connection) -> Step:
        def step() -> None:
            connection.execute("SELECT sag.create_collection('busy')")
            time.sleep(0.05)
            connection.execute("SELECT sag.drop_collection('busy')")

        return step

    with sessions(database_url) as connect:
        run_at_once([writer(connect(), 1), writer(connect(), 2), dropper(connect())], 3)
    assert_counts_exact(postgresql)


def test_retrieval_sees_each_document_whole_or_not_at_all(
    postgresql: Connection, database_url: str
) -> None:
    sources = [f"source {no}" for no in range(6)]

    def documents(version: int) -> list[Document]:
        return [
            passage(source, f"needle version{version}", "Acme Corporation", version=version)
            for source in sources
        ]

    merge(postgresql, documents(0))
    postgresql.commit()
    versions = iter(range(1, 1_000_000))

    def writer(connection: Connection) -> Step:
        def step() -> None:
            merge(connection, documents(next(versions)))
            delete(connection, sources)

        return step

    def reader(connection: Connection) -> Step:
        def step() -> None:
            rows = connection.execute(
                "SELECT source, content, metadata FROM sag_retrieve('needle of Acme Corporation')"
            ).fetchall()
            assert len(rows) in (0, len(sources))
            assert len({content for _, content, _ in rows}) <= 1
            for _, content, metadata in rows:
                assert content == f"needle version{metadata['version']}"
            connection.execute("SELECT count(*) FROM sag_trace('needle of Acme Corporation')")

        return step

    with sessions(database_url) as connect:
        run_at_once([writer(connect()), reader(connect())], 2)
    assert_counts_exact(postgresql)
