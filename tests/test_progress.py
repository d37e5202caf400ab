"""The line that shows how far an ingest is."""

import io

import pytest

from sag_pg.cli.progress import ProgressLine
from sag_pg.ingest.job import Progress


class Terminal(io.StringIO):
    """Standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_line_renews_itself_while_no_document_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a slow model's answers takes a while: chunks, tokens and failures show before."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with ProgressLine(0) as line:
        progress = Progress(is_queueing=False, total=10)
        line.show(progress)
        progress.chunks, progress.tokens, progress.failed_chunks = 3, 543, 2
        line.show(progress)
    assert "0 documents, 3 chunks" in terminal.getvalue()
    assert "543 tokens, 2 chunks failed" in terminal.getvalue()
