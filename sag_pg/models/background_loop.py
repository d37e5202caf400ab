"""An event loop in a thread of its own, for callers that wait.

What ingest and evaluation ask of an endpoint comes from ordinary functions, in any thread, even in
one that runs an event loop. Here it all runs on one loop, so that connections are kept between
calls.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines for any number of threads. The loop starts with the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for it.

        When the wait is interrupted, as by Ctrl-C, the coroutine is cancelled.

        Returns:
            Its result. What it raises is raised here.

        Raises:
            RuntimeError: Called on the loop itself, which would wait for ever.
        """
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine that another thread is going to wait for; the rest is as in `run`."""
        loop = self._started()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("the loop cannot wait for itself")
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # A forked process has the loop, but not its thread.
            if self._loop is None or self._process != os.getpid():
                self._process = os.getpid()
                self._loop = asyncio.new_event_loop()
                # As a daemon it ends with the process, which nothing else would tell it to.
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="sag-pg models", daemon=True
                )
                self._thread.start()
            return self._loop


# One thread for all models that are not awaited, however many are made.
background_loop: Final = BackgroundLoop()
