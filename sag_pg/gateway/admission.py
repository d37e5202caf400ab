"""How many calls run at once, and how many may wait."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from sag_pg.gateway.refusal import RefusedError, SqlState


class Admission:
    """Lets so many calls run, so many more wait in order, and turns the others away.

    Args:
        max_running: Calls at once.
        max_queued: Calls that wait.

    Attributes:
        running: Calls that run.
        queued: Calls that wait.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        self._slots = asyncio.Semaphore(max_running)
        self._max_queued = max_queued
        self.running = 0
        self.queued = 0

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot for the length of a call.

        Raises:
            RefusedError: The queue is full.
        """
        if self._slots.locked() and self.queued >= self._max_queued:
            raise RefusedError(
                SqlState.TOO_MANY,
                f"the gateway's queue of {self._max_queued} calls is full",
                "Try again later, or start the gateway with a higher --max-calls or --max-queue.",
            )
        self.queued += 1
        try:
            await self._slots.acquire()
        finally:
            self.queued -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()
