"""The thread that tells the database that a worker is alive, and the worker that there is work."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import psycopg

# A third of what makes the database think that the worker's session is gone for good.
_BEAT_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.5
# Well within the 30 seconds after which the others take a worker for dead.
_LATE_SECONDS: Final = 8.0


class Heartbeat:
    """Beats over a connection of its own, for a worker may be busy for long.

    As a context manager it beats from entry to exit.

    Args:
        connect: Opens a connection.
        worker_id: The worker.

    Attributes:
        work: Set when documents were queued, or may have been.
        forgotten: Set when the database does not know the worker any more.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], worker_id: int) -> None:
        self.worker_id = worker_id
        self.work = threading.Event()
        self.forgotten = threading.Event()
        self._connect = connect
        self._ended = threading.Event()
        self._beaten_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def is_late(self) -> bool:
        """Whether the database has not heard of the worker for a while."""
        return time.monotonic() - self._beaten_at > _LATE_SECONDS

    def beat(self, call: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]) -> None:
        """Tell the database that the worker is alive.

        Args:
            call: Runs a query with its arguments, and returns the rows.
        """
        rows = call("SELECT known FROM sag.heartbeat(%s) AS known", [self.worker_id])
        self._beaten_at = time.monotonic()
        if not rows[0][0]:
            self.forgotten.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with self._connect() as connection:
                    connection.execute("LISTEN sag_ingest")
                    self._beat_on(connection)
            except psycopg.Error:
                # The worker itself notices what is wrong with the database, and says so.
                self._ended.wait(_RETRY_SECONDS)

    def _beat_on(self, connection: psycopg.Connection[Any]) -> None:
        # At once: what is known of the session before it is wrong by now.
        self.beat(partial(_run_on, connection))
        while not self._ended.is_set():
            if time.monotonic() - self._beaten_at >= _BEAT_SECONDS:
                self.beat(partial(_run_on, connection))
            # Short, so that the end is not waited for; a notice ends the wait at once.
            for _ in connection.notifies(timeout=0.2, stop_after=1):
                self.work.set()


def _run_on(
    connection: psycopg.Connection[Any], query: str, arguments: Sequence[Any]
) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode(), arguments).fetchall()
