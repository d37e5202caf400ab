"""Loads files in tests, and asks what came of them."""

import io
from pathlib import Path

from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.loaders import load_paths


def load(*paths: str, stdin: bytes | None = None) -> list[SourceDocument | LoadFailure]:
    return list(load_paths(paths, stdin=None if stdin is None else io.BytesIO(stdin)))


def load_one(path: str, stdin: bytes | None = None) -> SourceDocument:
    (document,) = load(path, stdin=stdin)
    assert isinstance(document, SourceDocument), document
    return document


def fail_one(path: str, stdin: bytes | None = None) -> LoadFailure:
    (failure,) = load(path, stdin=stdin)
    assert isinstance(failure, LoadFailure), failure
    assert failure.error.hint
    return failure


def text_of(document: SourceDocument) -> str:
    text = "".join(document.read())
    assert "".join(document.read()) == text
    return text


def write(path: str, content: bytes | str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
