"""The password of the gateway, which the database keeps: read anew for each connection.

So that a changed password counts at once, without a word to the gateway. What stays in memory are
the keys derived of it, and they serve while the database cannot be reached or says nothing.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg

from sag_pg.gateway import log
from sag_pg.gateway.scram import Keys, derive_keys

PasswordReader = Callable[[], Awaitable[str | None]]

_Connection = psycopg.AsyncConnection[Any]
_Reading = asyncio.Task[tuple[_Connection, str | None]]

# Two readings, one after the other, end before a login must have ended.
_READ_SECONDS: Final = 4

# How long a login waits for the password as it is now, when there are keys of what it was: while
# the database answers, and when it has not answered.
_PATIENCE_SECONDS: Final = 1
_SHORT_PATIENCE_SECONDS: Final = 0.3


class Secret:
    """The keys to log in with.

    Any number of connections may ask at once: while one reading is under way, all that come wait
    for one more, because what is being read may be older than they are.

    Args:
        read_password: Reads the password where it is kept; None where there is none.
    """

    def __init__(self, read_password: PasswordReader) -> None:
        self._read_password = read_password
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._keys: Keys | None = None
        self._is_answered = True

    async def keys(self) -> Keys | None:
        """Return the keys of the password as it is now, or as it was known last.

        What is known serves when the reading takes long; the reading goes on, for those who come
        later.

        Returns:
            None where there is no password.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._running))
        patience = None
        if self._keys is not None:
            patience = _PATIENCE_SECONDS if self._is_answered else _SHORT_PATIENCE_SECONDS
        # Never cancels the task, which is not this connection's alone.
        _, unread = await asyncio.wait([self._next], timeout=patience)
        if unread:
            self._is_answered = False
        return self._keys

    async def _read_after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        try:
            async with asyncio.timeout(_READ_SECONDS):
                password = await self._read_password()
            self._keys = None if password is None else derive_keys(password)
            self._is_answered = True
        # Whatever it is, it must neither lock everyone out nor end up in a trace with the password.
        except Exception as error:
            self._is_answered = False
            log.warning("secret_unreadable", error=type(error).__name__)


class DatabasePassword:
    """Reads the password from the database that the gateway belongs to.

    Keeps one connection, and opens another one when it is lost.

    Args:
        conninfo: Connection string of the foreign server's owner.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: _Connection | None = None
        self._abandoned: set[_Reading] = set()

    async def __call__(self) -> str | None:
        """Read it.

        Returns:
            None where the gateway is not installed in the database.

        Raises:
            psycopg.Error: The database cannot be reached or refuses.
        """
        # Handed back only by a conversation that came to its end: half a one cannot be gone on
        # with.
        kept, self._connection = self._connection, None
        reading = asyncio.create_task(self._converse(kept))
        try:
            self._connection, password = await asyncio.shield(reading)
        except asyncio.CancelledError:
            # psycopg goes on to cancel the statement and waits for that, before version 3.3 without
            # a limit; to cancel it again ends that too. Here nobody waits.
            reading.cancel()
            asyncio.get_running_loop().call_later(_READ_SECONDS, reading.cancel)
            self._abandoned.add(reading)
            reading.add_done_callback(self._bury)
            raise
        return password

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _converse(self, kept: _Connection | None) -> tuple[_Connection, str | None]:
        if kept is not None:
            with contextlib.suppress(psycopg.OperationalError):
                return kept, await _read(kept)
        new = await psycopg.AsyncConnection.connect(
            self._conninfo,
            autocommit=True,
            fallback_application_name="sag-pg serve",
            prepare_threshold=None,
        )
        return new, await _read(new)

    def _bury(self, reading: _Reading) -> None:
        self._abandoned.discard(reading)
        # Otherwise it has closed the connection itself.
        if not reading.cancelled() and reading.exception() is None:
            connection, _ = reading.result()
            connection.pgconn.finish()


async def _read(connection: _Connection) -> str | None:
    """Read the password; where that fails, the connection is closed."""
    try:
        cursor = await connection.execute("SELECT password FROM sag.gateway_secret()")
        row = await cursor.fetchone()
    except psycopg.errors.ObjectNotInPrerequisiteState:
        return None
    except BaseException:
        await connection.close()
        raise
    return None if row is None else row[0]
