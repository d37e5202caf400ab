"""A small invented world to try retrieval on, shipped with the package.

Companies, people, projects, ships and towns around a strait that is on no map, in English and
Chinese. Every question takes two or three documents to answer, and the later ones share names
with the document before them rather than words with the question. Others share the question's
words and answer nothing.

Both files are traversables; where a file on disk is needed, open them with
`importlib.resources.as_file`.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

CORPUS: Final[Traversable] = files(__name__) / "corpus.jsonl"
"""One document a line: `id`, `title`, `text` and `metadata` with `lang`, `year` and `kind`."""

QUESTIONS: Final[Traversable] = files(__name__) / "questions.jsonl"
"""One question a line: `id`, `question`, `answer`, `hops` and `supporting`, the ids of the
documents that answer it, in the order in which one leads to the next."""
