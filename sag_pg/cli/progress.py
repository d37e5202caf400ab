"""Progress of an ingest on standard error."""

import sys
import time
from types import TracebackType
from typing import Any, Self

import click

from sag_pg.ingest.job import Progress


class ProgressLine:
    """A line that renews itself, where standard error is a terminal; a context manager.

    It shows the reading of the documents, by bytes, and then their way through the models, by
    documents, with rate, time left, tokens and failures.

    Args:
        total_bytes: Size of the documents to read; 0 where it is not known.
    """

    def __init__(self, total_bytes: int) -> None:
        self._bar = progress_bar("Reading", total_bytes)
        self._is_working = False
        self._started = time.monotonic()
        self._done = 0

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.__exit__(None, None, None)

    def show(self, progress: Progress) -> None:
        """Show how far the run is."""
        if not progress.is_queueing and not self._is_working:
            self._begin_work(progress.total or 0)
        done = progress.bytes if progress.is_queueing else progress.documents
        self._bar.update(done - self._done, self._describe(progress))
        self._done = done

    def _begin_work(self, total: int) -> None:
        self._bar.__exit__(None, None, None)
        self._bar = progress_bar("Ingesting", total)
        self._bar.__enter__()
        self._is_working = True
        self._started = time.monotonic()
        self._done = 0

    def _describe(self, progress: Progress) -> str:
        text = f"{progress.documents} documents"
        if not progress.is_queueing:
            rate = progress.chunks / max(time.monotonic() - self._started, 1e-9)
            text += f", {progress.chunks} chunks, {rate:.0f} chunks/s"
        if progress.tokens:
            text += f", {progress.tokens} tokens"
        if progress.failed:
            text += f", {progress.failed} failed"
        if progress.failed_chunks:
            text += f", {progress.failed_chunks} chunks failed"
        return text


def progress_bar(label: str, length: int) -> Any:
    """Make a bar on standard error, with percentage and time left where the length is known.

    Args:
        label: What is going on.
        length: How much there is to do; 0 where it is not known.
    """
    return click.progressbar(
        length=max(length, 1),
        label=label,
        file=sys.stderr,
        show_eta=length > 0,
        show_percent=length > 0,
        item_show_func=lambda item: item,
        # What is said of it may change while no step is done: a slow model's chunks and tokens.
        update_min_steps=0,
    )
