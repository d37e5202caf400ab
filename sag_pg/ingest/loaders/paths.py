"""Finds documents by the paths that are given."""

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from sag_pg.errors import LoadError
from sag_pg.ingest.conversion.process import Converter
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.loaders.converted import CONVERTED_SUFFIXES, load_converted
from sag_pg.ingest.loaders.lines import begins_with_object, load_lines
from sag_pg.ingest.loaders.reading import unreadable
from sag_pg.ingest.loaders.spool import Spool
from sag_pg.ingest.loaders.table import load_table
from sag_pg.ingest.loaders.text import load_text
from sag_pg.text import clean

_LINES_SUFFIX: Final = ".jsonl"
SUPPORTED_SUFFIXES: Final = (".txt", ".md", *CONVERTED_SUFFIXES, ".csv", _LINES_SUFFIX)
STDIN: Final = "-"

# Hidden files, and those that an office program has beside a document that is open in it.
_PASSED_OVER: Final = (".", "~$")


def load_paths(
    paths: Sequence[str], *, stdin: BinaryIO | None = None
) -> Iterator[SourceDocument | LoadFailure]:
    """Find the documents in files and directories.

    A file is one document, whose source is its path: as given, or joined with the path below the
    given directory. Only a .jsonl file has one document a line, with the fields `id` or `source`,
    `text`, and optionally `title` and `metadata`; other fields are ignored. The title is the one
    that the document states (front matter, properties, first heading, subject), else the file's
    name. Directories are searched in sorted order; in them hidden files, files of other types and
    links to directories are passed over.

    .html, .pdf, .docx, .pptx, .xlsx and .eml files are converted to Markdown by a process of its
    own, within limits of time and memory. It ends when the iterator does.

    Args:
        paths: Files and directories; `-` is standard input, taken as .jsonl when its first line
            is a JSON object and as text otherwise.
        stdin: What `-` reads, in place of the process's standard input.

    Yields:
        Each document, or why it could not be loaded. A text is opened here, but read to its end
        only by `SourceDocument.read`, which raises LoadError when it meets a byte that is not
        UTF-8 or a file that can no longer be read.
    """
    with Converter() as converter:
        for path in paths:
            if path == STDIN:
                yield from _load_stdin(stdin)
            else:
                yield from _load_path(path, converter)


def list_sources(directory: str) -> Iterator[str | LoadFailure]:
    """Find the sources of the documents in a directory, without converting any.

    Yields:
        What `load_paths` would call each document, be it readable or not, or a failure with `file`
        set.
    """
    # It starts nothing as long as nothing is converted.
    with Converter() as converter:
        for found in _find_files(Path(directory)):
            if isinstance(found, LoadFailure):
                yield found
            elif _is_lines(found):
                for document in _load_file(found, converter):
                    if isinstance(document, LoadFailure) and document.file is not None:
                        yield document
                    else:
                        yield document.source
            else:
                yield _name(found)


def measure_paths(paths: Sequence[str]) -> int:
    """Return the size in bytes of what `load_paths` would load, for progress.

    Standard input and what cannot be read count as nothing.
    """
    total = 0
    waiting = [Path(path) for path in paths if path not in ("", STDIN)]
    while waiting:
        path = waiting.pop()
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                waiting.extend(entry for entry, _ in _entries(path))
            elif path.suffix.lower() in SUPPORTED_SUFFIXES:
                total += status.st_size
        except (OSError, ValueError):
            continue
    return total


def _load_path(given: str, converter: Converter) -> Iterator[SourceDocument | LoadFailure]:
    path = Path(given)
    name = _name(path)
    try:
        if not given:
            raise LoadError("A path is empty", "Name a file, a directory or - for standard input.")
        is_directory = stat.S_ISDIR(_status(path, name).st_mode)
        if not is_directory and path.suffix.lower() not in SUPPORTED_SUFFIXES:
            raise LoadError(
                f"{name}: file type {clean(path.suffix) or 'without extension'} is not supported; "
                f"supported are {', '.join(SUPPORTED_SUFFIXES)}",
                "Convert it to one of these types, or pass its text through standard input (-).",
            )
    except LoadError as error:
        # What is of no type that is known might have been a directory of documents.
        has_source = path.suffix.lower() in SUPPORTED_SUFFIXES and not _is_lines(path)
        yield LoadFailure(name, error, file=None if has_source else name)
        return
    if not is_directory:
        yield from _load_file(path, converter)
        return
    for found in _find_files(path):
        if isinstance(found, LoadFailure):
            yield found
        else:
            yield from _load_file(found, converter)


def _name(path: Path) -> str:
    """Return a path as text; bytes of it that are no UTF-8 as %XX, so that no two become one."""
    return clean(
        re.sub(
            "[\udc80-\udcff]",
            lambda match: f"%{ord(match[0]) - 0xDC00:02X}",
            path.as_posix(),
        )
    )


def _status(path: Path, name: str) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise unreadable(name, error) from error
    except ValueError as error:
        raise LoadError(
            f"{name}: no file can have this name: {error}", "Check the path's characters."
        ) from error


def _find_files(top: Path) -> Iterator[Path | LoadFailure]:
    # Links to directories are not followed, so this ends whatever they point to.
    waiting = [(top, True)]
    while waiting:
        path, is_directory = waiting.pop()
        if not is_directory:
            yield path
            continue
        try:
            entries = _entries(path)
        except OSError as error:
            name = _name(path)
            yield LoadFailure(name, unreadable(name, error), file=name)
            continue
        waiting.extend(reversed(entries))


def _entries(directory: Path) -> list[tuple[Path, bool]]:
    """List what is to be loaded from a directory: path, and whether it is a directory."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            is_directory = entry.is_dir(follow_symlinks=False)
            is_supported = (
                Path(entry.name).suffix.lower() in SUPPORTED_SUFFIXES
                # Whatever its name: two links to where they are would have no end of paths.
                and not (entry.is_symlink() and os.path.isdir(entry))  # noqa: PTH112
            )
            if not entry.name.startswith(_PASSED_OVER) and (is_directory or is_supported):
                found.append((entry.name + "/" * is_directory, directory / entry.name))
    found.sort()
    return [(path, key.endswith("/")) for key, path in found]


def _load_file(path: Path, converter: Converter) -> Iterator[SourceDocument | LoadFailure]:
    name = _name(path)
    try:
        status = _status(path, name)
        if not stat.S_ISREG(status.st_mode):
            raise LoadError(f"{name}: not a regular file", "Pass its text through stdin (-).")
    except LoadError as error:
        yield LoadFailure(name, error, file=name if _is_lines(path) else None)
        return
    open_file = partial(_open, path)
    stem = clean(path.stem)
    size = status.st_size
    suffix = path.suffix.lower()
    if _is_lines(path):
        yield from load_lines(open_file, name)
    elif suffix == ".csv":
        yield load_table(open_file, name, stem=stem, size=size)
    elif suffix in CONVERTED_SUFFIXES:
        yield load_converted(path, name, stem=stem, size=size, converter=converter)
    else:
        yield load_text(open_file, name, stem=stem, size=size, markdown=suffix == ".md")


def _is_lines(path: Path) -> bool:
    return path.suffix.lower() == _LINES_SUFFIX


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _load_stdin(stream: BinaryIO | None) -> Iterator[SourceDocument | LoadFailure]:
    try:
        if stream is None:
            # None where the process was started without one.
            if sys.stdin is None:
                raise OSError("it is closed")
            stream = sys.stdin.buffer
        spool = Spool.of(stream)
        is_jsonl = begins_with_object(spool.open)
    except OSError as error:
        yield LoadFailure(STDIN, unreadable("standard input", error), file=STDIN)
        return
    if is_jsonl:
        yield from load_lines(spool.open, "<stdin>")
    else:
        yield load_text(
            spool.open, STDIN, stem="", size=spool.size, markdown=False, label="<stdin>"
        )
