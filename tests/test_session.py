"""The session of a worker, in conflict with others."""

import threading
import time
from typing import Any

import psycopg
import pytest
from corpus import value

from sag_pg.ingest.session import Session


@pytest.fixture
def connection(database_url: str) -> Any:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def test_a_statement_that_lost_a_conflict_runs_again(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    connection.execute("SET lock_timeout = '10ms'")
    session = Session(connection)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM sag.lock_collection('default')")

        def end() -> None:
            time.sleep(0.5)
            other.rollback()

        thread = threading.Thread(target=end)
        thread.start()
        assert session.call("SELECT sag.lock_collection(%s) IS NOT NULL", ["default"]) == [(True,)]
        thread.join()


def test_a_lock_that_nobody_gives_back_is_an_error_in_the_end(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    connection.execute("SET lock_timeout = '10ms'")
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM sag.lock_collection('default')")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            Session(connection).call("SELECT sag.lock_collection(%s)", ["default"])


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_transactions_see_what_others_did_meanwhile(
    connection: psycopg.Connection[Any], level: str
) -> None:
    connection.execute("SELECT set_config('default_transaction_isolation', %s, FALSE)", [level])
    query = "SELECT current_setting('transaction_isolation')"
    assert Session(connection).transact(lambda c: value(c, query)) == "read committed"
