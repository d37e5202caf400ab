"""A connection that comes back: what a worker asks of the database, whatever becomes of it."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus, TransactionStatus

from sag_pg.database import explain_error, reopener
from sag_pg.errors import DatabaseError

T = TypeVar("T")
Connection = psycopg.Connection[Any]

_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 5.0
# Somebody else's statements may lock in another order than sag's functions.
_CONFLICTS: Final = (
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.LockNotAvailable,
)
_CONFLICT_TRIES: Final = 5
_CANCEL_SECONDS: Final = 5.0


class Session:
    """Runs statements and transactions, again where the connection was lost on the way.

    What is run may thus happen twice, if only the server's answer was lost. A session is one
    thread's.

    Args:
        connection: The first connection, in autocommit mode with the vector types registered. It
            stays the caller's.
        patience: Seconds for which a lost server is waited for; None for as long as it takes.
        ended: Set when nobody is to wait for a lost server any more.

    Attributes:
        connection: The connection at present.
        seconds: Time spent on waiting for the database so far.
        on_return: Called after a lost connection was replaced.
        reopen: Opens a further connection to the same database.
    """

    def __init__(
        self,
        connection: Connection,
        patience: float | None = 300,
        ended: threading.Event | None = None,
    ) -> None:
        self.connection = connection
        self.seconds = 0.0
        self.on_return: Callable[[], None] = lambda: None
        self._given = connection
        self._patience = patience
        self._ended = ended or threading.Event()
        self.reopen = reopener(connection)

    def close(self) -> None:
        """Close the connection, unless it is the one that was given."""
        if self.connection is not self._given:
            self.connection.close()

    def call(self, query: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement, again where it lost a conflict, and return its rows.

        Raises:
            DatabaseError: The server was lost and did not come back in time.
            psycopg.Error: The database refused the statement.
        """

        def run(connection: Connection) -> list[tuple[Any, ...]]:
            with _ending_what_is_interrupted(connection):
                cursor = connection.execute(query.encode(), arguments)
                return cursor.fetchall() if cursor.description is not None else []

        return self._persist(run)

    def transact(self, action: Callable[[Connection], T]) -> T:
        """Run an action in a transaction, and again where it lost a conflict or its connection.

        Args:
            action: Gets the connection; what it does besides must bear repetition.

        Raises:
            DatabaseError: The server was lost and did not come back in time.
            psycopg.Error: The database refused the action.
        """

        def run(connection: Connection) -> T:
            with connection.transaction(), _ending_what_is_interrupted(connection):
                # Whatever database or role have as default: who waits for a collection is to see
                # what the one before did to it, not to lose a conflict with it.
                connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                connection.execute("SELECT FROM sag.lift_time_limits(TRUE)")
                return action(connection)

        return self._persist(run)

    def _persist(self, action: Callable[[Connection], T]) -> T:
        started = time.perf_counter()
        try:
            while True:
                try:
                    return _resolve(partial(action, self.connection))
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    if not (self.connection.broken or self.connection.closed):
                        raise
                    self._return(error)
        finally:
            self.seconds += time.perf_counter() - started

    def _return(self, error: psycopg.Error) -> None:
        """Replace a lost connection, however long it takes and is allowed to take."""
        lost_at = time.monotonic()
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                connection = self.reopen()
                break
            except psycopg.OperationalError as latest:
                waited = time.monotonic() - lost_at
                if self._ended.is_set() or (self._patience is not None and waited > self._patience):
                    raise DatabaseError(
                        "The connection to the database was lost and it did not come back within"
                        f" {waited:.0f} s: {explain_error(latest)[0]}",
                        "Nothing is half written. Run the same command again; it goes on from"
                        " there.",
                    ) from error
            # Ends early where nobody waits any more, for a last try.
            self._ended.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self.close()
        self.connection = connection
        self.on_return()


def _resolve(action: Callable[[], T]) -> T:
    """Run what is a transaction of its own, again where it lost a conflict."""
    for attempt in range(1, _CONFLICT_TRIES + 1):
        try:
            return action()
        except _CONFLICTS:
            if attempt == _CONFLICT_TRIES:
                raise
            time.sleep(0.1 * 2**attempt)
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _ending_what_is_interrupted(connection: Connection) -> Iterator[None]:
    """Leave a connection that can be used where Ctrl-C comes in the middle of a statement.

    psycopg cancels the statement only where the interruption finds it waiting for the server.
    Tasks and the job could not be given back after that.
    """
    try:
        yield
    except BaseException:
        if connection.info.transaction_status == TransactionStatus.ACTIVE:
            _end_statement(connection)
        raise


def _end_statement(connection: Connection) -> None:
    with contextlib.suppress(psycopg.Error):
        connection.cancel_safe(timeout=_CANCEL_SECONDS)
    while (result := connection.pgconn.get_result()) is not None:
        if result.status in (ExecStatus.COPY_IN, ExecStatus.COPY_OUT):
            connection.close()
            return
