"""Multi-hop question sets, as `sag-pg eval` reads them.

A data set is a directory with `corpus.jsonl`, one passage a line (`id`, `title`, `text`), and
`questions.jsonl` (`id`, `question`, `supporting`: ids of the gold passages).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sag_pg.errors import LoadError


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the ids of the passages that hold its evidence."""

    id: str
    question: str
    supporting: frozenset[str]


@dataclass(frozen=True, slots=True)
class Dataset:
    """A question set.

    Attributes:
        name: Name of its directory.
        corpus: The passages' file.
        questions: The questions.
        passages: Number of passages.
        digest: SHA-256 of the passages' file, in hexadecimal.
    """

    name: str
    corpus: Path
    questions: tuple[Question, ...]
    passages: int
    digest: str


def load_dataset(directory: Path, limit: int | None = None) -> Dataset:
    """Read a data set.

    Args:
        directory: Where `corpus.jsonl` and `questions.jsonl` are.
        limit: Number of questions to take, the first ones; all by default.

    Raises:
        LoadError: A file is missing or a line is wrong; the message names file and line.
    """
    corpus, questions = directory / "corpus.jsonl", directory / "questions.jsonl"
    for path in (corpus, questions):
        if not path.is_file():
            raise LoadError(
                f"{path} does not exist.",
                "A data set is a directory with corpus.jsonl and questions.jsonl.",
            )
    digest = hashlib.sha256()
    ids = set()
    for number, record in read_records(corpus):
        ids.add(read_text(record, "id", corpus, number))
        digest.update(json.dumps(record, sort_keys=True).encode())
    chosen: list[Question] = []
    for number, record in read_records(questions):
        if limit is not None and len(chosen) >= limit:
            break
        supporting = record.get("supporting")
        if not isinstance(supporting, list) or not supporting:
            raise LoadError(
                f"{questions}:{number}: supporting is not a list of ids.",
                "Give the ids of the passages that hold the evidence.",
            )
        if unknown := set(map(str, supporting)) - ids:
            raise LoadError(
                f"{questions}:{number}: {min(unknown)} is no id of {corpus.name}.",
                "Every supporting id must be that of a passage.",
            )
        chosen.append(
            Question(
                read_text(record, "id", questions, number),
                read_text(record, "question", questions, number),
                frozenset(map(str, supporting)),
            )
        )
    if not chosen:
        raise LoadError(f"{questions} holds no question.", "Give at least one.")
    return Dataset(directory.resolve().name, corpus, tuple(chosen), len(ids), digest.hexdigest())


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a file of JSON objects, one a line.

    Yields:
        The line's number, from 1, and its object. Empty lines are left out.

    Raises:
        LoadError: A line is no JSON object.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise LoadError(f"{path}:{number}: not JSON: {error}", "Mend the line.") from error
            if not isinstance(record, dict):
                raise LoadError(f"{path}:{number}: not a JSON object.", "Mend the line.")
            yield number, record


def read_text(record: Mapping[str, Any], key: str, path: Path, number: int) -> str:
    """Return a text of a record.

    Args:
        record: What `read_records` yields.
        key: The text's key.
        path: The record's file, for the message.
        number: The record's line, for the message.

    Raises:
        LoadError: There is no text of that key, or an empty one.
    """
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise LoadError(f"{path}:{number}: {key} is not a text.", f"Give {key} as a string.")
    return value
