"""sql/ingest: the queue, its workers, and what SQL clients do with it."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from corpus import (
    Document,
    assert_counts_exact,
    call,
    collection_id,
    column,
    merge,
    passage,
    value,
)
from psycopg import errors, sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

Connection = psycopg.Connection[Any]
Connect = Callable[[], Connection]
Row = dict[str, Any]

SETTINGS = {"extractor": "openai:test"}


@pytest.fixture
def connect(database_url: str) -> Iterator[Connect]:
    """Opens sessions in autocommit mode that would rather fail than wait for each other."""
    with ExitStack() as exits:
        yield lambda: exits.enter_context(
            psycopg.connect(database_url, autocommit=True, options="-c lock_timeout=5s")
        )


@pytest.fixture
def connection(connect: Connect) -> Connection:
    return connect()


@pytest.fixture
def old_server(connection: Connection) -> None:
    """Nobody lapses in the first seconds after a start of the server."""
    connection.execute("SELECT pg_sleep_until(pg_postmaster_start_time() + interval '15.5 s')")


def register(connection: Connection, name: str = "here:1") -> int:
    return int(value(connection, "SELECT sag.register_worker(%s)", name))


def lapse(connection: Connection, worker: int) -> None:
    """As if the worker had not been heard of for long."""
    connection.execute(
        "UPDATE sag.ingest_worker SET heartbeat_at = now() - interval '31 s' WHERE worker_id = %s",
        [worker],
    )


def start_job(
    connection: Connection, collection: str = "default", worker: int | None = None
) -> int:
    return int(
        value(
            connection,
            "SELECT sag.start_job(%s, %s, %s)",
            collection,
            register(connection) if worker is None else worker,
            Jsonb(SETTINGS),
        )
    )


def document(source: str, content: str | None = None) -> Document:
    return passage(source, content or f"{source} is made by Acme.", "Acme", source)


def queue(
    connection: Connection,
    job: int,
    *documents: Document,
    collection: str = "default",
    max_attempts: int = 1,
    contents: Sequence[str | None] | None = None,
) -> list[tuple[int | None, str]]:
    """Queue documents; the key and the outcome of each."""
    texts = contents or [document.chunks[0].content for document in documents]
    rows = call(
        connection,
        "queue_documents",
        collection=collection,
        job=job,
        sources=[document.source for document in documents],
        titles=[document.title for document in documents],
        title_stated=[True for _ in documents],
        markdown=[False for _ in documents],
        metadata=[Jsonb(document.metadata) for document in documents],
        content_hashes=[document.content_hash for document in documents],
        contents=list(texts),
        character_counts=[len(text or "") for text in texts],
        max_attempts=max_attempts,
    )
    assert [row["place"] for row in rows] == list(range(1, len(documents) + 1))
    return [(row["task_id"], row["outcome"]) for row in rows]


def ids(queued: list[tuple[int | None, str]]) -> list[int]:
    return [task_id for task_id, _ in queued if task_id is not None]


def take(
    connection: Connection,
    worker: int,
    documents: int = 64,
    characters: int = 10**6,
    *,
    collection: str | None = None,
    job: int | None = None,
    settings: Row = SETTINGS,
) -> list[Row]:
    return call(
        connection,
        "take_tasks",
        worker=worker,
        settings=Jsonb(settings),
        only_collection=collection,
        only_job=job,
        document_limit=documents,
        character_limit=characters,
    )


def sources(taken: list[Row]) -> list[str]:
    return [row["source"] for row in taken]


def states(connection: Connection) -> list[tuple[str, str]]:
    """Source and state of all tasks, oldest first."""
    return connection.execute(
        "SELECT source, state FROM sag.ingest_task ORDER BY task_id"
    ).fetchall()


def task(connection: Connection, task_id: int) -> Row:
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            "SELECT * FROM sag.task_status WHERE task_id = %s", [task_id]
        ).fetchall()
    return rows[0]


def job_status(connection: Connection, job: int) -> Row:
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute("SELECT * FROM sag.job_status WHERE job_id = %s", [job]).fetchall()
    return rows[0]


def sql_job(connection: Connection) -> int:
    return int(value(connection, "SELECT job_id FROM sag.ingest_job WHERE origin = 'sql'"))


def piece_count(connection: Connection) -> int:
    return int(value(connection, "SELECT count(*) FROM sag.ingest_piece"))


def make_available(connection: Connection) -> None:
    """As if the pauses between the attempts were over."""
    connection.execute("UPDATE sag.ingest_task SET available_at = now()")


# Taking tasks.


def test_two_takers_never_get_the_same_task(connect: Connect, connection: Connection) -> None:
    job = start_job(connection)
    queued = ids(queue(connection, job, *(document(f"d{number}") for number in range(300))))
    taken: list[list[int]] = [[] for _ in range(4)]
    start = threading.Barrier(4)

    def take_all(mine: list[int]) -> None:
        own = connect()
        worker = register(own)
        start.wait()
        while rows := take(own, worker, 7):
            assert [row["task_id"] for row in rows] == sorted(row["task_id"] for row in rows)
            mine += [row["task_id"] for row in rows]

    threads = [threading.Thread(target=take_all, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(task_id for mine in taken for task_id in mine) == queued
    assert value(connection, "SELECT count(DISTINCT worker_id) FROM sag.ingest_task") == sum(
        bool(mine) for mine in taken
    )


def test_a_taker_does_not_wait_for_another(connect: Connect, connection: Connection) -> None:
    queue(connection, start_job(connection), *(document(f"d{number}") for number in range(4)))
    other = connect()
    first, second = register(connection), register(connection)
    with connection.transaction():
        assert sources(take(connection, first, 2)) == ["d0", "d1"]
        assert sources(take(other, second)) == ["d2", "d3"]


def test_limits_of_a_take(connection: Connection) -> None:
    worker = register(connection)
    texts = ["x" * 100, "y" * 10, "z" * 10, "u" * 10]
    given = [document(f"d{number}", text) for number, text in enumerate(texts)]
    queue(connection, start_job(connection), *given)
    # At least one, however long.
    assert sources(take(connection, worker, characters=25)) == ["d0"]
    assert sources(take(connection, worker, characters=25)) == ["d1", "d2"]
    assert sources(take(connection, worker, 1)) == ["d3"]
    assert take(connection, worker) == []


def test_what_a_take_tells_of_a_document(connection: Connection) -> None:
    job = start_job(connection)
    given = passage("a", "Alice founded Acme.", "Alice", about="Acme", year=1999)
    ((task_id, outcome),) = queue(connection, job, given)
    assert outcome == "queued"
    (row,) = take(connection, register(connection))
    assert row == {
        "task_id": task_id,
        "collection_id": collection_id(connection),
        "collection": "default",
        "job_id": job,
        "source": "a",
        "title": "Acme",
        "title_stated": True,
        "markdown": False,
        "metadata": {"year": 1999},
        "content_hash": given.content_hash,
        "character_count": 19,
        "lapses": 0,
    }


def test_which_jobs_are_taken_from(connection: Connection) -> None:
    connection.execute("SELECT sag.create_collection('other')")
    worker = register(connection)
    first, second = start_job(connection), start_job(connection)
    third = start_job(connection, "other")
    queue(connection, second, document("b"))
    queue(connection, first, document("a"))
    queue(connection, third, document("c"), collection="other")
    assert take(connection, worker, settings={"extractor": "another"}) == []
    # One job at a time, the oldest first.
    assert sources(take(connection, worker)) == ["a"]
    assert sources(take(connection, worker, collection="other")) == ["c"]
    assert take(connection, worker, job=first) == []
    assert sources(take(connection, worker, job=second)) == ["b"]
    # What SQL clients queue anybody takes.
    connection.execute("SELECT sag_ingest('d', 'Text.')")
    assert sources(take(connection, worker, settings={"extractor": "another"})) == ["d"]


def test_a_source_that_changed_often_is_taken_once(connection: Connection) -> None:
    for number in range(200):
        connection.execute("SELECT sag_ingest('a', %s)", [f"Version {number}."])
    connection.execute("SELECT sag_ingest('b', 'Text.')")
    worker = register(connection)
    assert [row["source"] for row in take(connection, worker, 10)] == ["a"]
    assert value(
        connection,
        "SELECT array_agg(content) FROM sag.ingest_piece JOIN sag.ingest_task USING (task_id)"
        " WHERE source = 'a'",
    ) == ["Version 199."]
    assert sources(take(connection, worker, 10)) == ["b"]
    assert job_status(connection, sql_job(connection))["superseded"] == 199


def test_a_take_reads_no_more_of_a_long_queue_than_it_takes(connection: Connection) -> None:
    """Be it right after the documents were queued, before ANALYZE has seen them."""
    job, worker = start_job(connection), register(connection)
    connection.execute("ALTER TABLE sag.ingest_task SET (autovacuum_enabled = off)")
    connection.execute(
        "INSERT INTO sag.ingest_task (collection_id, job_id, source, state)"
        " SELECT sag.collection_key('default'), %s, s.state || n, s.state"
        " FROM (VALUES ('added'), ('queued')) AS s (state), generate_series(1, 20000) AS n",
        [job],
    )
    for _ in range(2):
        with connection.transaction():
            assert len(take(connection, worker, 64)) == 64
            read = value(
                connection,
                "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables"
                " WHERE relid = 'sag.ingest_task'::regclass",
            )
        assert read < 1000
        connection.execute("ANALYZE sag.ingest_task")


def test_release(connection: Connection) -> None:
    worker = register(connection)
    queued = ids(queue(connection, start_job(connection), *map(document, "abc")))
    take(connection, worker)
    assert value(connection, "SELECT sag.release_tasks(%s, %s)", worker, queued[:1]) == 2
    assert states(connection) == [("a", "running"), ("b", "queued"), ("c", "queued")]
    connection.execute("SELECT sag.retire_worker(%s)", [worker])
    assert {state for _, state in states(connection)} == {"queued"}
    assert value(connection, "SELECT max(lapses) FROM sag.ingest_task") == 0
    assert value(connection, "SELECT sag.heartbeat(%s)", worker) is False


# Workers that die.


@pytest.mark.usefixtures("old_server")
def test_tasks_of_a_dead_worker_come_back(connection: Connection) -> None:
    dead, alive = register(connection, "there:1"), register(connection)
    job = start_job(connection)
    (task_id,) = ids(queue(connection, job, document("a")))
    connection.execute("SELECT sag.seal_job(%s)", [job])
    take(connection, dead)
    assert task(connection, task_id)["worker"] == "there:1"
    assert not task(connection, task_id)["lease_lapsed"]
    assert take(connection, alive) == []
    lapse(connection, dead)
    assert task(connection, task_id)["lease_lapsed"]
    (row,) = take(connection, alive)
    assert (row["task_id"], row["lapses"]) == (task_id, 1)
    # It was only slow, and comes too late.
    late = replace(document("a", "Too late."), task_id=task_id)
    assert merge(connection, [late], worker=dead) == {"a": "superseded"}
    assert merge(connection, [replace(document("a"), task_id=task_id)], worker=alive) == {
        "a": "added"
    }
    assert column(connection, "SELECT content FROM sag.chunk") == ["a is made by Acme."]


@pytest.mark.usefixtures("old_server")
def test_how_a_worker_is_known_to_be_dead(connect: Connect, connection: Connection) -> None:
    def is_dead(seconds: float) -> bool:
        connection.execute(
            "UPDATE sag.ingest_worker SET heartbeat_at = now() - %s * interval '1 s'", [seconds]
        )
        return bool(value(connection, "SELECT sag.worker_lapsed(%s)", worker))

    worker = register(connection)
    assert [is_dead(seconds) for seconds in (0, 29, 31)] == [False, False, True]
    session = connect()
    assert value(session, "SELECT sag.heartbeat(%s)", worker) is True
    assert [is_dead(seconds) for seconds in (7, 29, 31)] == [False, False, True]
    # Without its session it is not waited for that long.
    pid = session.info.backend_pid
    session.close()
    while value(connection, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid):
        pass
    assert [is_dead(seconds) for seconds in (0, 5, 7)] == [False, False, True]
    connection.execute("SELECT sag.retire_worker(%s)", [worker])
    assert value(connection, "SELECT sag.worker_lapsed(%s)", worker) is True


@pytest.mark.usefixtures("old_server")
def test_of_many_documents_the_one_that_kills_workers_fails(connection: Connection) -> None:
    job = start_job(connection)
    names = ["a", "b", "poison", "c", "d"]
    queue(connection, job, *map(document, names))
    deaths = 0
    while True:
        worker = register(connection)
        while taken := take(connection, worker):
            if "poison" in sources(taken):
                assert len(taken) == (5 if deaths < 2 else 1)
                lapse(connection, worker)
                deaths += 1
                break
            done = [replace(document(row["source"]), task_id=row["task_id"]) for row in taken]
            merge(connection, done, worker=worker)
        else:
            break
        assert deaths < 9
    assert deaths == 5
    assert dict(states(connection)) == {
        **dict.fromkeys(("a", "b", "c", "d"), "added"),
        "poison": "failed",
    }
    failures = call(connection, "job_failures", job=job)
    assert [(row["source"], row["message"]) for row in failures] == [
        ("poison", "its worker died 5 times while it had this document")
    ]
    assert failures[0]["hint"]
    # Somebody gave the workers more memory.
    assert value(connection, "SELECT sag.retry_job(%s)", job) == 1
    assert sources(take(connection, register(connection))) == ["poison"]


@pytest.mark.usefixtures("old_server")
def test_workers_that_were_killed_are_forgotten_in_the_end(connection: Connection) -> None:
    dead = register(connection, "there:1")
    claim(connection, dead, b"a", b"b")
    store(connection, dead, b"a", {"n": 1})
    connection.execute("UPDATE sag.ingest_worker SET heartbeat_at = now() - interval '59 minutes'")
    claim(connection, register(connection, "here:1"), b"c")
    connection.execute("UPDATE sag.ingest_worker SET heartbeat_at = heartbeat_at - interval '2 m'")
    register(connection, "here:2")
    assert column(connection, "SELECT name FROM sag.ingest_worker ORDER BY 1") == [
        "here:1",
        "here:2",
    ]
    # What it was asking for goes with it; what was answered stays.
    keys = column(connection, "SELECT answer_key FROM sag.model_answer ORDER BY 1")
    assert [bytes(key) for key in keys] == [b"a", b"c"]


# Queueing.


def test_what_is_there_already_is_no_task(connection: Connection) -> None:
    merge(connection, [document("a"), document("b")])
    job = start_job(connection)
    queued = queue(connection, job, document("a"), document("b", "New."), document("c"))
    assert [outcome for _, outcome in queued] == ["unchanged", "queued", "queued"]
    assert queue(connection, job, document("a")) == [(None, "unchanged")]
    assert job_status(connection, job)["unchanged"] == 2
    assert [source for source, _ in states(connection)] == ["b", "c"]


def test_newer_content_supersedes_what_waits(connection: Connection) -> None:
    old, new = start_job(connection), start_job(connection)
    queue(connection, old, document("a", "Old."), document("b"))
    queue(connection, new, document("a", "New."))
    assert states(connection) == [("a", "superseded"), ("b", "queued"), ("a", "queued")]
    assert sorted(column(connection, "SELECT content FROM sag.ingest_piece")) == [
        "New.",
        "b is made by Acme.",
    ]
    assert job_status(connection, old)["superseded"] == 1


@pytest.mark.parametrize("first", ["old", "new"])
def test_newer_content_wins_whoever_comes_first(connection: Connection, first: str) -> None:
    slow, fast = register(connection), register(connection)
    job = start_job(connection)
    versions = {"old": document("a", "Old."), "new": document("a", "New.")}
    workers = {"old": slow, "new": fast}
    for name, version in versions.items():
        (task_id,) = ids(queue(connection, job, version))
        assert len(take(connection, workers[name])) == 1
        versions[name] = replace(version, task_id=task_id)
    order = ["old", "new"] if first == "old" else ["new", "old"]
    outcomes = [merge(connection, [versions[name]], worker=workers[name])["a"] for name in order]
    assert outcomes == (["added", "replaced"] if first == "old" else ["added", "superseded"])
    assert column(connection, "SELECT content FROM sag.chunk") == ["New."]
    assert_counts_exact(connection)
    # One that came too late is not processed time and again.
    connection.execute("SELECT sag.release_tasks(%s)", [slow])
    assert take(connection, fast) == []
    expected = ["added", "replaced"] if first == "old" else ["superseded", "added"]
    assert [state for _, state in states(connection)] == expected
    assert piece_count(connection) == 0


def test_what_waits_already_is_adopted(connection: Connection) -> None:
    stopped, job = start_job(connection), start_job(connection)
    worker = register(connection)
    (first, second) = ids(queue(connection, stopped, document("a"), document("b")))
    take(connection, worker, 1)
    connection.execute("SELECT sag.fail_task(%s, %s, 'busy', NULL)", [worker, first])
    connection.execute(
        "UPDATE sag.ingest_task SET state = 'queued', lapses = 4, finished_at = NULL"
        " WHERE task_id = %s",
        [first],
    )
    connection.execute("SELECT sag.stop_job(%s, 'enough')", [stopped])
    assert take(connection, worker) == []
    assert queue(connection, job, document("a"), document("b"), max_attempts=3) == [
        (first, "adopted"),
        (second, "adopted"),
    ]
    assert piece_count(connection) == 2
    row = task(connection, first)
    assert (row["job_id"], row["attempts"], row["max_attempts"]) == (job, 0, 3)
    # It stays suspect, with some further tries.
    assert row["lapses"] == 2
    assert sources(take(connection, worker)) == ["b"]
    assert sources(take(connection, worker)) == ["a"]


def test_what_a_worker_has_is_adopted_too(connection: Connection) -> None:
    old, new = start_job(connection), start_job(connection)
    worker = register(connection)
    queued = queue(connection, old, document("a"))
    (task_id,) = ids(queued)
    take(connection, worker)
    assert queue(connection, new, document("a")) == [(task_id, "adopted")]
    assert job_status(connection, new)["running"] == 1
    assert merge(connection, [replace(document("a"), task_id=task_id)], worker=worker) == {
        "a": "added"
    }
    assert job_status(connection, new)["added"] == 1
    assert job_status(connection, old)["added"] == 0


def test_a_source_twice_in_a_call(connection: Connection) -> None:
    merge(connection, [document("a", "Old.")])
    job = start_job(connection)
    versions = [document("a", "New."), document("b"), document("a", "Old.")]
    queued = queue(connection, job, *versions)
    assert [outcome for _, outcome in queued] == ["queued"] * 3
    worker = register(connection)
    taken = take(connection, worker)
    assert [row["task_id"] for row in taken] == ids(queued)[1:]
    assert states(connection)[0] == ("a", "superseded")
    done = [replace(version, task_id=row["task_id"]) for version, row in
            zip(versions[1:], taken, strict=True)]  # fmt: skip
    assert merge(connection, done, worker=worker) == {"b": "added", "a": "unchanged"}
    assert column(connection, "SELECT content FROM sag.chunk ORDER BY 1") == [
        "Old.",
        "b is made by Acme.",
    ]


def test_texts_in_pieces(connection: Connection) -> None:
    long, short = document("long"), document("short", "Short.")
    target, worker = collection_id(connection), register(connection)
    with connection.transaction():
        queued = queue(connection, start_job(connection), long, short, contents=[None, "Short."])
        with connection.cursor().copy("COPY sag.ingest_piece FROM STDIN") as copy:
            for number, piece in enumerate(("One. ", "Two. ", "Three.")):
                copy.write_row((target, queued[0][0], number, piece))
    rows = call(connection, "task_text", tasks=ids(queued), collection=target)
    texts: dict[int, str] = {}
    for row in sorted(rows, key=lambda row: row["piece_no"]):
        texts[row["task_id"]] = texts.get(row["task_id"], "") + row["content"]
    assert [texts[task_id] for task_id in ids(queued)] == ["One. Two. Three.", "Short."]
    pieces = [
        value(connection, "SELECT sag.task_piece(%s, %s, %s)", target, queued[0][0], number)
        for number in range(4)
    ]
    assert pieces == ["One. ", "Two. ", "Three.", None]
    taken = take(connection, worker)
    done = [replace(version, task_id=row["task_id"]) for version, row in
            zip((long, short), taken, strict=True)]  # fmt: skip
    merge(connection, done, worker=worker)
    assert piece_count(connection) == 0


def test_the_same_documents_queued_twice_at_once(connect: Connect, connection: Connection) -> None:
    queue(connection, start_job(connection), *(document(f"d{number}") for number in range(100)))
    failed: list[BaseException] = []

    def queue_again(step: int) -> None:
        try:
            own = connect()
            for _ in range(10):
                given = [document(f"d{number}") for number in range(100)][::step]
                outcomes = [outcome for _, outcome in queue(own, start_job(own), *given)]
                assert set(outcomes) == {"adopted"}
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=queue_again, args=(step,)) for step in (1, -1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert value(connection, "SELECT count(*) FROM sag.ingest_task") == 100


# Failures.


def test_pauses_between_attempts(connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection)
    (task_id,) = ids(queue(connection, job, document("a"), max_attempts=3))
    tried = replace(document("a"), task_id=task_id, failures=[(0, "busy", "wait")])
    for attempt, (least, most) in enumerate(((8, 12), (32, 48)), 1):
        take(connection, worker)
        merge(connection, [tried], worker=worker)
        row = task(connection, task_id)
        assert (row["state"], row["attempts"], row["hint"]) == ("queued", attempt, "wait")
        pause = value(
            connection,
            "SELECT extract(epoch FROM available_at - now())::float FROM sag.ingest_task",
        )
        assert least - 1 < pause < most
        assert take(connection, worker) == []
        assert job_status(connection, job)["waiting"] == 1
        make_available(connection)


def test_a_document_that_cannot_be_ingested_is_not_tried_again(connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection)
    (task_id,) = ids(queue(connection, job, document("a"), max_attempts=3))
    # Only its worker can say so.
    take(connection, worker)
    connection.execute("SELECT sag.fail_task(%s, %s, 'no', NULL)", [register(connection), task_id])
    assert task(connection, task_id)["state"] == "running"
    connection.execute("SELECT sag.fail_task(%s, %s, 'broken', 'mend it')", [worker, task_id])
    row = task(connection, task_id)
    assert (row["state"], row["attempts"], row["error"], row["hint"]) == (
        "failed",
        1,
        "broken",
        "mend it",
    )
    assert row["finished_at"] is not None
    # For sag.retry_job().
    assert piece_count(connection) == 1


def test_the_longest_pause_is_about_an_hour(connection: Connection) -> None:
    pauses = column(
        connection,
        "SELECT extract(epoch FROM sag.retry_delay(a))::float FROM generate_series(1, 30) AS a",
    )
    for attempt, pause in enumerate(pauses, 1):
        expected = min(10 * 4 ** (attempt - 1), 3600)
        assert 0.8 * expected <= pause <= 1.2 * expected
    assert len(set(pauses)) == 30


def test_a_chunk_that_fails_is_tried_again(connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection)
    given = document("a")
    (task_id,) = ids(queue(connection, job, given, max_attempts=2))
    for attempt, state in enumerate(("queued", "incomplete"), 1):
        take(connection, worker)
        tried = replace(given, task_id=task_id, failures=[(0, f"busy {attempt}", "wait")])
        merge(connection, [tried], worker=worker)
        row = task(connection, task_id)
        assert (row["state"], row["attempts"], row["failed_chunk_count"]) == (state, attempt, 1)
        assert row["error"] == f"models failed for 1 of 1 chunks; busy {attempt}"
        assert call(connection, "job_failures", job=job) == [
            {
                "source": "a",
                "ordinal": 0,
                "attempts": attempt,
                "message": f"busy {attempt}",
                "hint": "wait",
            }
        ]
        make_available(connection)
    assert piece_count(connection) == 1
    assert value(connection, "SELECT sag.retry_job(%s)", job) == 1
    take(connection, worker)
    merge(connection, [replace(given, task_id=task_id)], worker=worker)
    row = task(connection, task_id)
    assert (row["state"], row["failed_chunk_count"], row["error"]) == ("replaced", 0, None)
    assert piece_count(connection) == 0
    assert call(connection, "job_failures", job=job) == []


def test_failures_of_what_is_superseded_go(connection: Connection) -> None:
    worker = register(connection)
    for supersede in ("command", "client"):
        given = document(supersede)
        job = start_job(connection)
        (task_id,) = ids(queue(connection, job, given, max_attempts=2))
        take(connection, worker, job=job)
        tried = replace(given, task_id=task_id, failures=[(0, "busy", None)])
        merge(connection, [tried], worker=worker)
        make_available(connection)
        assert job_status(connection, job)["failed_chunk_count"] == 1
        if supersede == "command":
            queue(connection, start_job(connection), document(supersede, "New."))
        else:
            connection.execute("SELECT sag_ingest(%s, 'New.')", [supersede])
            take(connection, worker, job=job)
        row = job_status(connection, job)
        assert (row["superseded"], row["failed_chunk_count"]) == (1, 0)


# What people do with jobs.


def test_retry_leaves_out_what_newer_content_came_for(connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection)
    names = ("failed", "merged since", "queued since", "unreadable")
    queued = ids(queue(connection, job, *map(document, names[:3])))
    take(connection, worker)
    for task_id in queued:
        connection.execute("SELECT sag.fail_task(%s, %s, 'broken', NULL)", [worker, task_id])
    connection.execute(
        "SELECT sag.record_failure('default', %s, %s, 'no PDF', NULL)", [job, names[3]]
    )
    later = start_job(connection)
    since = document("merged since", "New.")
    (task_id,) = ids(queue(connection, later, since))
    take(connection, worker)
    merge(connection, [replace(since, task_id=task_id)], worker=worker)
    queue(connection, later, document("queued since", "New."))
    assert value(connection, "SELECT sag.retry_job(%s)", job) == 1
    assert sources(take(connection, worker, job=job)) == ["failed"]
    status = job_status(connection, job)
    assert (status["failed"], status["superseded"]) == (2, 1)


def test_cancel(connect: Connect, connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection)
    done, held, waiting = ids(queue(connection, job, *map(document, "abc")))
    take(connection, worker, 2)
    merge(connection, [replace(document("a"), task_id=done)], worker=worker)
    assert value(connection, "SELECT sag.cancel_job(%s)", job) == 2
    # The worker that has one of them comes too late.
    assert merge(connection, [replace(document("b"), task_id=held)], worker=worker) == {
        "b": "superseded"
    }
    connection.execute("SELECT sag.fail_task(%s, %s, 'broken', NULL)", [worker, held])
    assert [task(connection, each)["state"] for each in (done, held, waiting)] == [
        "added",
        "cancelled",
        "cancelled",
    ]
    assert column(connection, "SELECT source FROM sag.document") == ["a"]
    assert piece_count(connection) == 0
    assert take(connection, worker) == []
    assert job_status(connection, job)["state"] == "cancelled"
    assert value(connection, "SELECT sag.cancel_job(%s)", job) == 0
    assert value(connection, "SELECT sag.retry_job(%s)", job) == 0


def test_a_job_that_has_ended_is_not_cancelled(connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection)
    (task_id,) = ids(queue(connection, job, document("a")))
    connection.execute("SELECT sag.seal_job(%s)", [job])
    take(connection, worker)
    merge(connection, [replace(document("a"), task_id=task_id)], worker=worker)
    before = job_status(connection, job)
    assert before["state"] == "finished"
    assert value(connection, "SELECT sag.cancel_job(%s)", job) == 0
    assert job_status(connection, job) == before


def test_the_job_of_sql_clients_goes_on_after_a_cancel(connection: Connection) -> None:
    connection.execute("SELECT sag_ingest('a', 'Text.')")
    assert value(connection, "SELECT sag.cancel_job(%s)", sql_job(connection)) == 1
    connection.execute("SELECT sag_ingest('b', 'Text.')")
    assert sources(take(connection, register(connection))) == ["b"]


def test_stop_and_retry(connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection, worker=worker)
    queue(connection, job, *map(document, "ab"))
    connection.execute("SELECT sag.seal_job(%s)", [job])
    connection.execute("SELECT sag.stop_job(%s, 'no money')", [job])
    row = job_status(connection, job)
    assert (row["state"], row["stopped"]) == ("stopped", "no money")
    assert take(connection, worker) == []
    assert value(connection, "SELECT sag.retry_job(%s)", job) == 2
    assert job_status(connection, job)["state"] == "queued"
    assert sources(take(connection, worker)) == ["a", "b"]


@pytest.mark.parametrize("function", ["retry_job", "cancel_job"])
def test_an_unknown_job(connection: Connection, function: str) -> None:
    with pytest.raises(errors.NoDataFound, match="job 99999 does not exist") as caught:
        call(connection, function, job=99999)
    assert caught.value.diag.message_hint == "The view sag.job_status lists them."


@pytest.mark.usefixtures("old_server")
def test_states_of_a_job(connection: Connection) -> None:
    def state() -> str:
        return str(job_status(connection, job)["state"])

    loader = register(connection)
    job = start_job(connection, worker=loader)
    assert state() == "loading"
    lapse(connection, loader)
    assert state() == "interrupted"
    connection.execute("SELECT sag.heartbeat(%s)", [loader])
    good, bad = ids(queue(connection, job, *map(document, "ab")))
    connection.execute("SELECT sag.seal_job(%s)", [job])
    assert state() == "queued"
    assert job_status(connection, job)["finished_at"] is None
    take(connection, loader)
    assert state() == "running"
    merge(connection, [replace(document("a"), task_id=good)], worker=loader)
    connection.execute("SELECT sag.fail_task(%s, %s, 'broken', NULL)", [loader, bad])
    assert state() == "failed"
    row = job_status(connection, job)
    assert row["finished_at"] is not None
    assert (row["added"], row["failed"], row["chunk_count"]) == (1, 1, 1)
    connection.execute("SELECT sag.retry_job(%s)", [job])
    assert state() == "queued"
    take(connection, loader)
    merge(connection, [replace(document("b"), task_id=bad)], worker=loader)
    assert state() == "finished"
    assert job_status(connection, sql_job(connection))["state"] == "open"


def test_usage_of_models_adds_up(connection: Connection) -> None:
    job = start_job(connection)
    for _ in range(2):
        connection.execute(
            "SELECT sag.add_usage('default', %s, %s, %s, %s, %s, %s)",
            [job, ["b", "a"], [1, 2], [10, 20], [3, 4], [0, 5]],
        )
    row = job_status(connection, job)
    names = ("requests", "prompt_tokens", "completion_tokens", "estimated_tokens")
    assert [row[name] for name in names] == [6, 60, 14, 10]


# Answers of models.


def claim(connection: Connection, worker: int, *keys: bytes) -> dict[bytes, tuple[Any, bool]]:
    rows = connection.execute(
        "SELECT * FROM sag.claim_answers('default', %s, 'openai:test', %s)", [worker, list(keys)]
    )
    return {bytes(key): (answer, is_mine) for key, answer, is_mine in rows}


def store(connection: Connection, worker: int, key: bytes, answer: Any) -> None:
    connection.execute(
        "SELECT sag.store_answer('default', %s, %s, 'openai:test', %s)",
        [worker, key, Jsonb(answer)],
    )


def test_an_answer_is_asked_for_by_one_worker(connection: Connection) -> None:
    first, second = register(connection), register(connection)
    assert claim(connection, first, b"a", b"b", b"a") == {b"a": (None, True), b"b": (None, True)}
    assert claim(connection, second, b"b", b"c") == {b"b": (None, False), b"c": (None, True)}
    store(connection, first, b"b", {"n": 1})
    assert claim(connection, second, b"b", b"a") == {b"b": ({"n": 1}, False), b"a": (None, False)}
    connection.execute("SELECT sag.release_answers('default', %s, %s)", [first, [b"a", b"b", b"c"]])
    assert claim(connection, second, b"a", b"b", b"c") == {
        b"a": (None, True),
        b"b": ({"n": 1}, False),
        b"c": (None, True),
    }
    # What is asked for is no answer yet.
    assert call(connection, "known_answers", collection="default", answer_keys=[b"a", b"b"]) == [
        {"answer_key": b"b"}
    ]
    connection.execute("SELECT sag.retire_worker(%s)", [second])
    assert claim(connection, first, b"c") == {b"c": (None, True)}


@pytest.mark.usefixtures("old_server")
def test_what_a_dead_worker_asked_for_another_asks_for(connection: Connection) -> None:
    dead, alive = register(connection), register(connection)
    claim(connection, dead, b"a", b"b")
    lapse(connection, dead)
    assert claim(connection, alive, b"a") == {b"a": (None, True)}
    # It was only slow: the first answer stands.
    store(connection, dead, b"a", {"n": 1})
    store(connection, alive, b"a", {"n": 2})
    assert claim(connection, alive, b"a") == {b"a": ({"n": 1}, False)}


def test_workers_that_claim_the_same_do_not_deadlock(
    connect: Connect, connection: Connection
) -> None:
    claimed: list[list[bytes]] = [[] for _ in range(3)]
    failed: list[BaseException] = []
    keys = [hashlib.sha256(str(number).encode()).digest() for number in range(300)]

    def claim_all(mine: list[bytes], step: int) -> None:
        try:
            own = connect()
            worker = register(own)
            for start in range(0, 300, 20):
                wanted = keys[::step][start : start + 60]
                mine += [k for k, (_, is_mine) in claim(own, worker, *wanted).items() if is_mine]
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=claim_all, args=(mine, step))
        for mine, step in zip(claimed, (1, -1, 1), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    everyone = [set(mine) for mine in claimed]
    assert sum(map(len, everyone)) == len(set.union(*everyone)) == 300


# SQL clients.


def test_a_trigger_keeps_the_collection_like_a_table(
    connect: Connect, connection: Connection
) -> None:
    connection.execute(
        """
        CREATE TABLE note (id integer PRIMARY KEY, title text, body text, tags jsonb);
        CREATE FUNCTION note_to_sag() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF tg_op = 'DELETE' THEN
                PERFORM sag_delete('note/' || old.id);
                RETURN old;
            END IF;
            PERFORM sag_ingest('note/' || new.id, new.body, new.title, new.tags);
            RETURN new;
        END
        $$;
        CREATE TRIGGER note_to_sag AFTER INSERT OR UPDATE OR DELETE ON note
        FOR EACH ROW EXECUTE FUNCTION note_to_sag();
        """
    )
    listener = connect()
    listener.execute("LISTEN sag_ingest")
    worker = register(connection)
    with connection.transaction():
        connection.execute("INSERT INTO note VALUES (1, 'T', 'Alice founded Acme.', '{\"y\": 1}')")
        # Nothing is seen of it before the commit.
        assert take(listener, worker) == []
    assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1
    with pytest.raises(errors.DivisionByZero), connection.transaction():
        connection.execute("INSERT INTO note VALUES (2, 'T', 'Never.', NULL)")
        connection.execute("SELECT 1 / 0")
    (row,) = take(listener, worker)
    assert (row["source"], row["title"], row["metadata"]) == ("note/1", "T", {"y": 1})
    assert (row["content_hash"], row["character_count"]) == (None, 19)
    given = replace(document("note/1"), task_id=row["task_id"])
    assert merge(connection, [given], worker=worker) == {"note/1": "added"}
    # One change waits, another one is in a worker's hands, when the row goes.
    for text in ("Second.", "Third."):
        connection.execute("UPDATE note SET body = %s", [text])
        if text == "Second.":
            (held,) = take(connection, worker)
    connection.execute("DELETE FROM note")
    assert value(connection, "SELECT count(*) FROM sag.document") == 0
    late = replace(document("note/1", "Second."), task_id=held["task_id"])
    assert merge(connection, [late], worker=worker) == {"note/1": "superseded"}
    assert take(connection, worker) == []
    assert piece_count(connection) == 0
    assert [state for _, state in states(connection)] == ["added", "superseded", "superseded"]
    assert_counts_exact(connection)


def test_sag_delete(connection: Connection) -> None:
    merge(connection, [document("a"), document("b")])
    assert value(connection, "SELECT sag_delete('a')") is True
    assert value(connection, "SELECT sag_delete('a')") is False
    connection.execute("SELECT sag_ingest('c', 'Text.')")
    # One that only waits is there too.
    assert value(connection, "SELECT sag_delete(source => 'c')") is True
    with connection.transaction(force_rollback=True):
        assert value(connection, "SELECT sag_delete('b')") is True
    assert column(connection, "SELECT source FROM sag.document") == ["b"]
    assert_counts_exact(connection)


def test_what_is_deleted_is_not_brought_back_by_the_queue(connection: Connection) -> None:
    worker = register(connection)
    merge(connection, [document("a"), document("b")])
    for source in ("a", "b", "c"):
        connection.execute("SELECT sag_ingest(%s, 'Other text.')", [source])
    (held,) = take(connection, worker, 1)
    assert held["source"] == "a"
    deleted = "SELECT source FROM sag.delete_documents('default', '{a,a,c,d}') ORDER BY source"
    assert column(connection, deleted) == ["a", "c"]
    assert column(connection, deleted) == []
    late = replace(document("a", "Other text."), task_id=held["task_id"])
    assert merge(connection, [late], worker=worker) == {"a": "superseded"}
    assert sources(take(connection, worker)) == ["b"]
    assert column(connection, "SELECT source FROM sag.document") == ["b"]
    assert_counts_exact(connection)


def test_long_transactions_of_clients_wait_for_nobody(
    connect: Connect, connection: Connection
) -> None:
    """Not for each other, even at the first call, nor for workers."""
    connection.execute("SELECT sag.create_collection('new')")
    clients = [connect(), connect()]
    worker, job = register(connection), start_job(connection, "new")
    queue(connection, job, document("x"), collection="new")
    for client in clients:
        client.autocommit = False
        client.execute("SELECT sag_ingest('a', 'Text.', collection => 'new')")
    assert sources(take(connection, worker)) == ["x"]
    with connection.transaction():
        # As a merge does.
        connection.execute("SELECT sag.lock_collection('new')")
        clients[0].execute("SELECT sag_ingest('b', 'Text.', collection => 'new')")
    for client in clients:
        client.commit()
    assert sources(take(connection, worker)) == ["a", "b"]


def test_what_sag_ingest_keeps_of_a_document(connection: Connection) -> None:
    text = "Ünïcode 漢字 🎉 \\ % $$ '\n" * 40_000
    task_id = value(
        connection,
        "SELECT sag_ingest('a', %s, metadata => NULL, markdown => TRUE, title => 'T')",
        text,
    )
    assert task(connection, task_id)["max_attempts"] == 3
    (row,) = take(connection, register(connection))
    assert (row["markdown"], row["title"], row["metadata"]) == (True, "T", {})
    assert row["character_count"] == len(text)
    pieces = column(connection, "SELECT content FROM sag.ingest_piece ORDER BY piece_no")
    assert len(pieces) > 1
    assert max(map(len, pieces)) <= 2**18
    assert "".join(pieces) == text


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "message", "hint"),
    [
        ("'', 'Text.'", "22023", "the source is 0 bytes long", "2000 bytes"),
        ("NULL, 'Text.'", "22023", "the source is NULL", "2000 bytes"),
        ("repeat('ä', 1001), 'Text.'", "22023", "the source is 2002 bytes long", "2000 bytes"),
        ("'a', E' \\n\\t'", "22023", "the content of 'a' is empty", "sag_delete"),
        ("'a', NULL", "22023", "the content of 'a' is empty", "sag_delete"),
        ("'a', 'Text.', metadata => '[1]'", "22023", "are no object but of type array", "object"),
        (
            "'a', 'Text.', metadata => (repeat('{\"a\":', 100) || 1 || repeat('}', 100))::jsonb",
            "22023",
            "are nested too deeply",
            "100 levels",
        ),
        (
            "'a', 'Text.', metadata => '{\"a\": [1e5000]}'",
            "22023",
            "a number in the metadata of 'a' is too large",
            "1e308",
        ),
        (
            "'a', 'Text.', metadata => '{\"a\": -1e309}'",
            "22023",
            "a number in the metadata of 'a' is too large",
            "1e308",
        ),
        ("'a', 'Text.', collection => 'nowhere'", "42704", "nowhere", "collection"),
    ],
)
def test_what_sag_ingest_refuses(
    connection: Connection, arguments: str, sqlstate: str, message: str, hint: str
) -> None:
    with pytest.raises(psycopg.Error, match=message) as caught:
        connection.execute(f"SELECT sag_ingest({arguments})".encode())
    assert caught.value.sqlstate == sqlstate
    assert hint in (caught.value.diag.message_hint or "")
    assert states(connection) == []


def test_sag_delete_in_an_unknown_collection(connection: Connection) -> None:
    with pytest.raises(errors.UndefinedObject, match="nowhere") as caught:
        connection.execute("SELECT sag_delete('a', 'nowhere')")
    assert caught.value.diag.message_hint


def test_rights(connection: Connection) -> None:
    """A writer may do all of it, a reader may look."""
    for role in ("writer", "reader"):
        with connection.transaction(force_rollback=True):
            connection.execute(
                sql.SQL("CREATE ROLE {} IN ROLE {}").format(
                    sql.Identifier(f"queue_{role}"), sql.Identifier(f"sag_{role}")
                )
            )
            connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(f"queue_{role}")))
            if role == "writer":
                worker, job = register(connection), start_job(connection)
                connection.execute("SELECT sag.heartbeat(%s)", [worker])
                (task_id,) = ids(queue(connection, job, document("a")))
                connection.execute("SELECT sag_ingest('b', 'Text.')")
                assert len(take(connection, worker, job=job)) == 1
                claim(connection, worker, b"k")
                store(connection, worker, b"k", {})
                merge(connection, [replace(document("a"), task_id=task_id)], worker=worker)
                connection.execute("SELECT sag.seal_job(%s)", [job])
                assert value(connection, "SELECT sag_delete('a')") is True
                connection.execute("SELECT sag.cancel_job(%s)", [job])
                connection.execute("SELECT sag.retry_job(%s)", [job])
                connection.execute("SELECT sag.retire_worker(%s)", [worker])
            else:
                assert value(connection, "SELECT count(*) FROM sag.task_status") == 0
                assert value(connection, "SELECT count(*) FROM sag.job_status") == 1
                for query in ("SELECT sag_ingest('a', 'Text.')", "SELECT sag_delete('a')"):
                    with (
                        pytest.raises(errors.InsufficientPrivilege),
                        connection.transaction(),
                    ):
                        connection.execute(query.encode())


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_with_either_kind_of_plan(connection: Connection, mode: str) -> None:
    connection.execute(f"SET plan_cache_mode = {mode}".encode())
    worker = register(connection)
    for turn in range(7):
        job = start_job(connection, worker=worker)
        given = [document(f"d{number}", f"Turn {turn}.") for number in range(20)]
        queued = queue(connection, job, *given)
        assert {outcome for _, outcome in queued} == {"queued"}
        again = queue(connection, job, *given[:5])
        assert {outcome for _, outcome in again} == {"adopted"}
        connection.execute("SELECT sag_ingest('s', %s)", [f"Turn {turn}."])
        taken = take(connection, worker, 12, job=job)
        assert len(taken) == 12
        assert value(connection, "SELECT sag.release_tasks(%s, '{}')", worker) == 12
        taken = take(connection, worker, job=job)
        by_source = {each.source: each for each in given}
        done = [replace(by_source[row["source"]], task_id=row["task_id"]) for row in taken]
        state = "added" if turn == 0 else "replaced"
        assert set(merge(connection, done, worker=worker).values()) == {state}
        (other,) = take(connection, worker)
        merge(
            connection,
            [replace(document("s", f"Turn {turn}."), task_id=other["task_id"])],
            worker=worker,
        )
        connection.execute("SELECT sag.seal_job(%s)", [job])
        row = job_status(connection, job)
        assert (row["state"], row[state]) == ("finished", 20)
    assert value(connection, "SELECT sag_delete('s')") is True
    assert_counts_exact(connection)


def test_purge(connection: Connection) -> None:
    worker = register(connection)
    old, failed, recent = (start_job(connection, worker=worker) for _ in range(3))
    tasks = {}
    for job, source in ((old, "old"), (failed, "failed"), (recent, "recent")):
        (tasks[source],) = ids(queue(connection, job, document(source)))
        take(connection, worker)
        if source == "failed":
            connection.execute("SELECT sag.fail_task(%s, %s, 'no', NULL)", [worker, tasks[source]])
        else:
            given = replace(document(source), task_id=tasks[source])
            merge(connection, [given], worker=worker)
    queue(connection, old, document("waits"))
    for key in (b"old", b"recent"):
        store(connection, worker, key, {})
    connection.execute(
        "UPDATE sag.ingest_task SET created_at = created_at - interval '31 days',"
        " finished_at = finished_at - interval '31 days' WHERE job_id <> %s",
        [recent],
    )
    connection.execute(
        "UPDATE sag.ingest_job SET started_at = started_at - interval '31 days' WHERE job_id <> %s",
        [recent],
    )
    connection.execute(
        "UPDATE sag.model_answer SET created_at = created_at - interval '31 days'"
        " WHERE answer_key = %s",
        [b"old"],
    )
    connection.execute("SELECT sag.purge_queue()")
    # What waits is not purged, nor its job, nor that of SQL clients.
    assert [source for source, _ in states(connection)] == ["recent", "waits"]
    assert column(connection, "SELECT job_id FROM sag.ingest_job ORDER BY 1") == sorted(
        [sql_job(connection), old, recent]
    )
    assert column(connection, "SELECT answer_key FROM sag.model_answer") == [b"recent"]
    assert piece_count(connection) == 1
    assert value(connection, "SELECT count(*) FROM sag.document") == 2
