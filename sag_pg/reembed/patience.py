"""Locks that are asked for again and again, so that nobody queues up behind them for long."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
from psycopg import errors

from sag_pg.database import explain_error

T = TypeVar("T")

# How the database says that a lock was not to be had.
LOCKED: Final = (errors.LockNotAvailable, errors.DeadlockDetected)
_FIRST_MILLISECONDS: Final = 200
_MOST_MILLISECONDS: Final = 3200


class Patience:
    """For how long retrieval may be kept waiting by a lock that is asked for again and again.

    It grows, so that the lock is got where retrieval is slow, and so do the pauses between.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.milliseconds = _FIRST_MILLISECONDS
        self._notify = notify
        self._is_told = False

    def wait(self, error: psycopg.Error) -> None:
        """Pause after a try that ended in `error`."""
        if self.milliseconds == _MOST_MILLISECONDS and not self._is_told:
            self._notify(f"Waiting, because {explain_error(error)[0]}")
            self._is_told = True
        time.sleep(3 * self.milliseconds / 1000)
        self.milliseconds = min(2 * self.milliseconds, _MOST_MILLISECONDS)


def when_unlocked(action: Callable[[int], T], notify: Callable[[str], None]) -> T:
    """Do what soon gives up waiting for a lock, until it succeeds; it gets the patience."""
    patience = Patience(notify)
    while True:
        try:
            return action(patience.milliseconds)
        except LOCKED as error:
            patience.wait(error)
