"""What a converter makes of a file."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Converted:
    """A file's text, and what the file says about itself.

    Attributes:
        pieces: The text in pieces, each of a size that can be held.
        title: Title, empty where the file has none.
        markdown: Whether the text is Markdown.
        metadata: What filters can ask for, as JSON has it.
    """

    pieces: Iterable[str]
    title: str = ""
    markdown: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)
