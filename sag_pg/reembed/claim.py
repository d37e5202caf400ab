"""The lock that keeps two processes from changing the embedding model at once."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from psycopg.types.json import Jsonb

from sag_pg.errors import DatabaseError
from sag_pg.ingest.session import Session

_CLAIM_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.5


@contextmanager
def claimed(session: Session, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock, and close the session at the end.

    Args:
        session: Has no time limits meanwhile.
        notify: Told what is waited for.

    Raises:
        DatabaseError: Another process holds it.
    """
    settings = _claim(session, notify)
    given = session.connection

    def claim_again() -> None:
        _claim(session, notify)

    session.on_return = claim_again
    try:
        yield
    finally:
        if session.connection is given and not (given.broken or given.closed):
            given.execute("SELECT FROM sag.release_reembedding(%s)", [Jsonb(settings)])
        session.close()


def _claim(session: Session, notify: Callable[[str], None]) -> dict[str, str]:
    """Take the lock, and return the settings of the session before."""
    # The session of a run that was just killed takes a moment to notice.
    deadline = time.monotonic() + _CLAIM_SECONDS
    is_told = False
    while True:
        rows = session.call("SELECT settings FROM sag.claim_reembedding() AS settings")
        if (settings := rows[0][0]) is not None:
            return dict(settings)
        if time.monotonic() > deadline:
            raise DatabaseError(
                "Another process is changing the embedding model of this database.",
                "Let it work, or stop it first. See how far it is: sag-pg status",
            )
        if not is_told:
            notify("Waiting for another sag-pg reembed")
            is_told = True
        time.sleep(_RETRY_SECONDS)
