"""sql/ingest: what becomes of a queue when several people and workers are at it at once."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from corpus import call, merge, value
from psycopg import errors
from test_queue_sql import (
    claim,
    connect,  # noqa: F401
    connection,  # noqa: F401
    document,
    ids,
    job_status,
    old_server,  # noqa: F401
    piece_count,
    queue,
    register,
    sources,
    start_job,
    take,
    task,
)

Connection = psycopg.Connection[Any]
Connect = Callable[[], Connection]

# ruff: noqa: F811


def test_fenced_task_is_not_running_for_ever(connection: Connection) -> None:
    slow, fast = register(connection), register(connection)
    job, newer = start_job(connection), start_job(connection)
    (old,) = ids(queue(connection, job, document("a", "Old.")))
    connection.execute("SELECT sag.seal_job(%s)", [job])
    take(connection, slow)
    (new,) = ids(queue(connection, newer, document("a", "New.")))
    take(connection, fast)
    merge(connection, [replace(document("a", "New."), task_id=new)], worker=fast)
    assert merge(connection, [replace(document("a", "Old."), task_id=old)], worker=slow) == {
        "a": "superseded"
    }
    connection.execute("SELECT sag.release_tasks(%s)", [slow])
    assert take(connection, slow, job=job) == []
    assert task(connection, old)["state"] == "superseded"
    assert job_status(connection, job)["state"] == "finished"
    assert piece_count(connection) == 0


def test_old_task_given_back_after_newer_is_in(connection: Connection) -> None:
    slow, fast = register(connection), register(connection)
    job, newer = start_job(connection), start_job(connection)
    queue(connection, job, document("a", "Old."))
    take(connection, slow)
    (new,) = ids(queue(connection, newer, document("a", "New.")))
    take(connection, fast)
    merge(connection, [replace(document("a", "New."), task_id=new)], worker=fast)
    connection.execute("SELECT sag.retire_worker(%s)", [slow])
    assert take(connection, fast) == []


def test_unchanged_confirms(connection: Connection) -> None:
    merge(connection, [document("a", "Old.")])
    slow, fast = register(connection), register(connection)
    (changed,) = ids(queue(connection, start_job(connection), document("a", "New.")))
    take(connection, slow)
    connection.execute("SELECT sag_ingest('a', 'Old.')")
    (row,) = take(connection, fast)
    settled = call(
        connection,
        "settle_unchanged",
        collection="default",
        worker=fast,
        tasks=[row["task_id"]],
        content_hashes=[document("a", "Old.").content_hash],
    )
    assert settled == [{"task_id": row["task_id"]}]
    assert merge(connection, [replace(document("a", "New."), task_id=changed)], worker=slow) == {
        "a": "superseded"
    }


def test_retry_of_a_cancelled_job(connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection)
    (bad, _) = ids(queue(connection, job, document("a"), document("b")))
    take(connection, worker, 1)
    connection.execute("SELECT sag.fail_task(%s, %s, 'broken', NULL)", [worker, bad])
    connection.execute("SELECT sag.cancel_job(%s)", [job])
    assert value(connection, "SELECT sag.retry_job(%s)", job) == 1
    assert sources(take(connection, worker)) == ["a"]


def test_queueing_into_a_cancelled_job(connection: Connection) -> None:
    job = start_job(connection)
    connection.execute("SELECT sag.cancel_job(%s)", [job])
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="cancelled"):
        queue(connection, job, document("a"))


def test_queueing_into_a_job_of_another_collection(connection: Connection) -> None:
    connection.execute("SELECT sag.create_collection('other')")
    with pytest.raises(errors.NoDataFound, match="collection 'other' has no job"):
        queue(connection, start_job(connection), document("a"), collection="other")


def test_retry_while_loading(connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection, worker=worker)
    (bad,) = ids(queue(connection, job, document("a")))
    take(connection, worker)
    connection.execute("SELECT sag.fail_task(%s, %s, 'broken', NULL)", [worker, bad])
    connection.execute("SELECT sag.retry_job(%s)", [job])
    assert job_status(connection, job)["state"] == "loading"


def test_stopped_with_nothing_left(connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection, worker=worker)
    (a,) = ids(queue(connection, job, document("a")))
    connection.execute("SELECT sag.seal_job(%s)", [job])
    take(connection, worker)
    connection.execute("SELECT sag.stop_job(%s, 'Ctrl-C')", [job])
    assert job_status(connection, job)["state"] == "stopped"
    merge(connection, [replace(document("a"), task_id=a)], worker=worker)
    assert job_status(connection, job)["state"] == "finished"


def test_deleted_is_not_retried(connection: Connection) -> None:
    worker = register(connection)
    job = start_job(connection)
    (bad,) = ids(queue(connection, job, document("a")))
    take(connection, worker)
    connection.execute("SELECT sag.fail_task(%s, %s, 'broken', NULL)", [worker, bad])
    connection.execute("SELECT sag_delete('a')")
    assert piece_count(connection) == 0
    assert value(connection, "SELECT sag.retry_job(%s)", job) == 0


@pytest.mark.parametrize("how", ["merged", "unchanged"])
def test_what_failed_is_over_once_newer_content_is_in(connection: Connection, how: str) -> None:
    if how == "unchanged":
        merge(connection, [document("a", "New.")])
    worker = register(connection)
    job = start_job(connection)
    (bad, other) = ids(queue(connection, job, document("a", "Old."), document("b")))
    connection.execute("SELECT sag.seal_job(%s)", [job])
    take(connection, worker)
    for failed in (bad, other):
        connection.execute("SELECT sag.fail_task(%s, %s, 'broken', NULL)", [worker, failed])
    new = value(connection, "SELECT sag_ingest('a', 'New.')")
    take(connection, worker)
    if how == "unchanged":
        call(
            connection,
            "settle_unchanged",
            collection="default",
            worker=worker,
            tasks=[new],
            content_hashes=[document("a", "New.").content_hash],
        )
    else:
        merge(connection, [replace(document("a", "New."), task_id=new)], worker=worker)
    assert task(connection, new)["state"] in ("added", "unchanged")
    assert [task(connection, key)["state"] for key in (bad, other)] == ["superseded", "failed"]
    assert piece_count(connection) == 1
    assert value(connection, "SELECT sag.retry_job(%s)", job) == 1


def test_unknown_collection_and_job(connection: Connection) -> None:
    worker = register(connection)
    with pytest.raises(errors.UndefinedObject):
        take(connection, worker, collection="nowhere")
    with pytest.raises(errors.NoDataFound):
        take(connection, worker, job=999999)


def test_dropping_a_collection_that_workers_take_from_does_not_deadlock(
    connect: Connect, connection: Connection
) -> None:
    failed: list[BaseException] = []
    ended = threading.Event()

    def repeat(step: Callable[[Connection], object]) -> None:
        own = connect()
        try:
            while not ended.is_set():
                try:
                    step(own)
                except (errors.UndefinedObject, errors.NoDataFound):
                    time.sleep(0.01)
        except BaseException as error:
            failed.append(error)
            ended.set()

    def load(own: Connection) -> None:
        worker = register(own)
        job = start_job(own, "busy", worker)
        for turn in range(3):
            given = [document(f"d{number}", f"Turn {turn}.") for number in range(30)]
            queue(own, job, *given, collection="busy")
        own.execute("SELECT sag.cancel_job(%s)", [job])
        own.execute("SELECT sag.retire_worker(%s)", [worker])

    def work(own: Connection) -> None:
        worker = register(own)
        for taken in iter(lambda: take(own, worker, 10), []):
            call(
                own,
                "settle_unchanged",
                collection=taken[0]["collection"],
                worker=worker,
                tasks=[row["task_id"] for row in taken],
                content_hashes=[row["content_hash"] for row in taken],
            )
            for row in taken[:3]:
                own.execute("SELECT sag.fail_task(%s, %s, 'busy', NULL)", [worker, row["task_id"]])
        own.execute("SELECT sag.retire_worker(%s)", [worker])

    steps = (load, load, work, work)
    threads = [threading.Thread(target=repeat, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for _ in range(15):
        connection.execute("SELECT sag.create_collection('busy')")
        ended.wait(0.15)
        connection.execute("SELECT sag.drop_collection('busy')")
    ended.set()
    for thread in threads:
        thread.join(60)
    assert failed == []


@pytest.mark.parametrize("is_analyzed", [True, False])
@pytest.mark.parametrize("mode", ["auto", "force_custom_plan", "force_generic_plan"])
def test_work_does_not_grow_with_the_queue(
    postgresql: Connection, mode: str, is_analyzed: bool
) -> None:
    """Neither with what waits, nor with what is done."""
    done, job = start_job(postgresql), start_job(postgresql)
    postgresql.execute("ALTER TABLE sag.ingest_task SET (autovacuum_enabled = FALSE)")
    postgresql.execute("ALTER TABLE sag.document SET (autovacuum_enabled = FALSE)")
    for key, state in ((done, "added"), (job, "queued")):
        postgresql.execute(
            "INSERT INTO sag.ingest_task (collection_id, job_id, source, state, content_hash)"
            " SELECT sag.collection_key('default'), %s, n::text, %s, sha256(n::text::bytea)"
            " FROM generate_series(1, 20000) AS n",
            [key, state],
        )
        if is_analyzed and state == "added":
            # That much waits is not known.
            postgresql.execute("ANALYZE")
    postgresql.execute(
        "INSERT INTO sag.document (collection_id, source, title, metadata, content_hash)"
        " SELECT collection_id, source, '', '{}', content_hash FROM sag.ingest_task"
        " WHERE state = 'added'"
    )
    worker, other = register(postgresql), register(postgresql)
    take(postgresql, other, 300)
    postgresql.commit()
    postgresql.execute(f"SET plan_cache_mode = {mode}".encode())

    def rows_read(step: Callable[[], object]) -> int:
        """Rows of our tables that a step reads."""
        query = (
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))"
            " FROM pg_stat_xact_user_tables WHERE schemaname = 'sag'"
        )
        before = value(postgresql, query)
        step()
        return int(value(postgresql, query) - before)

    new = [document(f"new {number}") for number in range(20)]
    again = [document(str(number)) for number in range(3000, 3020)]
    # 300 tasks are in the other worker's hands.
    assert rows_read(lambda: take(postgresql, worker, 10)) < 800
    assert rows_read(lambda: take(postgresql, worker, 10, job=job)) < 800
    assert rows_read(lambda: queue(postgresql, job, *new)) < 500
    assert rows_read(lambda: queue(postgresql, job, *again)) < 500
    assert rows_read(lambda: call(postgresql, "job_failures", job=job)) < 100
    delete = "SELECT sag_delete(%s)"
    assert rows_read(lambda: [postgresql.execute(delete, [str(no)]) for no in (7, 15000)]) < 100


@pytest.mark.usefixtures("old_server")
def test_a_worker_is_asked_about_once(connection: Connection) -> None:
    """However many tasks and answers it has in hand."""
    worker, other = register(connection), register(connection)
    job = start_job(connection)
    queue(connection, job, *(document(f"d{number}") for number in range(200)))
    take(connection, other, 199)
    query = (
        "SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions"
        " WHERE funcname = 'worker_lapsed'"
    )
    claim(connection, other, *(b"%d" % number for number in range(200)))
    for mode in ("force_custom_plan", "force_generic_plan"):
        connection.execute(f"SET plan_cache_mode = {mode}".encode())
        connection.execute("SET track_functions = 'all'")
        for step in (
            lambda: take(connection, worker, 1),
            lambda: claim(connection, worker, *(b"%d" % number for number in range(200))),
        ):
            with connection.transaction():
                before = value(connection, query)
                step()
                assert value(connection, query) - before <= 2
