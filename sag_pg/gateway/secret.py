"""The password of the gateway, which the database keeps: read anew for each connection.

So that a changed password counts at once, without a word to the gateway. What stays in memory are
the keys derived of it, and they serve when the database cannot be reached.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg

from sag_pg.gateway import log
from sag_pg.gateway.scram import Keys, derive_keys

PasswordReader = Callable[[], Awaitable[str | None]]

_READ_SECONDS: Final = 5


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

    async def keys(self) -> Keys | None:
        """Return the keys of the password as it is now, or as it was known last.

        Returns:
            None where there is no password.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._running))
        # The task is not this connection's alone.
        await asyncio.shield(self._next)
        return self._keys

    async def _read_after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        try:
            async with asyncio.timeout(_READ_SECONDS):
                password = await self._read_password()
            self._keys = None if password is None else derive_keys(password)
        # Whatever it is, it must neither lock everyone out nor end up in a trace with the password.
        except Exception as error:
            log.warning("secret_unreadable", error=type(error).__name__)


class DatabasePassword:
    """Reads the password from the database that the gateway belongs to.

    Keeps one connection, and opens another one when it is lost.

    Args:
        conninfo: Connection string of the foreign server's owner.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def __call__(self) -> str | None:
        """Read it.

        Returns:
            None where the gateway is not installed in the database.

        Raises:
            psycopg.Error: The database cannot be reached or refuses.
        """
        if self._connection is not None:
            try:
                return await self._read(self._connection)
            except psycopg.OperationalError:
                await self.close()
            except asyncio.CancelledError:
                # Half a conversation cannot be gone on with.
                await self.close()
                raise
        self._connection = await psycopg.AsyncConnection.connect(
            self._conninfo,
            autocommit=True,
            fallback_application_name="sag-pg serve",
            prepare_threshold=None,
        )
        return await self._read(self._connection)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _read(self, connection: psycopg.AsyncConnection[Any]) -> str | None:
        try:
            cursor = await connection.execute("SELECT password FROM sag.gateway_secret()")
        except psycopg.errors.ObjectNotInPrerequisiteState:
            return None
        row = await cursor.fetchone()
        return None if row is None else row[0]
