"""Cuts a document into chunks that follow its headings, paragraphs and sentences.

The document streams through: what is held at any time is a few chunks' worth of text, whatever
the document's length and however it is cut into pieces. Which chunks come out depends on the
text alone, not on the pieces.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sag_pg.errors import ConfigurationError

# Text is gathered to this many characters before it is cut, to save work per line.
_BATCH = 65_536
# How far behind a full chunk the end of its section is looked for. White space beyond that
# counts as more text to come, so that blank stretches of any length need no buffer.
_BLANK_LOOKAHEAD = 1024
# A longer line is no heading and no code fence, so that lines of any length can stream.
_LINE_LIMIT = 1000
# A longer run of joined characters is no cluster that anyone could read.
_CLUSTER_LIMIT = 32

_NON_BLANK = re.compile(r"\S")
_PARAGRAPH_END = re.compile(r"(?>\r\n?|\n)[^\S\r\n]*[\r\n]")
# A full stop ends no sentence after an initial, a title or the number of a list item, nor
# before a small letter; the CJK marks need no white space after them.
_SENTENCE_END = re.compile(
    r"""[.!?…؟۔।。！？｡]
    (?: (?<=[。！？｡]) [。！？｡"'”’」』）】》〉]*
      | (?<!\b[A-Z]\.) (?<![\r\n]\d\.) (?<![\r\n]\d\d\.)
        (?<!\b(?:Mr|Ms|Dr|St|No|Jr|Lt|vs)\.) (?<!\b(?:Mrs|Gen|Col|Fig|Vol|Rev|Sen|Gov)\.)
        (?<!\b(?:Prof|Capt)\.)
        ["'”’»)\]]* (?=\s) (?!\s[a-z])
    )""",
    re.VERBOSE,
)
_LAST_WORD_END = re.compile(r"(?s:.*)(?:(?=\s)|(?<=[，、；：]))")

_ATX_MARK = re.compile(r" {0,3}(#{1,6})(?=\s|$)")
_SETEXT_UNDERLINE = re.compile(r" {0,3}(={3,}|-{3,})\s*")
# A line that CommonMark takes for something else than a paragraph cannot be underlined.
_SETEXT_TITLE = re.compile(r" {0,3}(?![>|<]|[-+*]\s|[-*_=]{3}|\d+[.)]\s)\S")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")

_ZERO_WIDTH_JOINER = "\u200d"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a document.

    Attributes:
        ordinal: Position among the document's chunks, from 0.
        heading_path: Headings from the outermost to the one that the chunk stands under.
        content: The text: `document[start_offset:end_offset]`, never blank, no white space at
            either end.
        start_offset: Characters of the document before the chunk.
        end_offset: Characters of the document up to and with the chunk.
    """

    ordinal: int
    heading_path: tuple[str, ...]
    content: str
    start_offset: int
    end_offset: int


class _Heading(NamedTuple):
    level: int
    title: str


def chunk(
    pieces: Iterable[str],
    *,
    markdown: bool,
    max_characters: int | None = 1200,
    min_characters: int = 200,
) -> Iterator[Chunk]:
    """Cut a document into chunks.

    Whole paragraphs are packed into a chunk, then whole sentences. A longer sentence is cut at
    white space, and where there is none, between two characters. In Markdown a chunk never goes
    on past a heading: the line of a heading begins the chunk of the text below it, and headings
    with nothing but deeper headings below them go along.

    Args:
        pieces: The document in pieces of any size; their concatenation is the document.
        markdown: Whether headings (`# one`, or underlined with `===` or `---`) count. They do
            not inside of fenced code.
        max_characters: Largest chunk, in characters; None makes the whole document one chunk
            without headings, which is then held in memory. Only a last part shorter than
            `min_characters` may stretch the chunk before it, to 1.25 of this.
        min_characters: How much a chunk should have before the end of a paragraph or sentence
            closes it. At most half of `max_characters` is asked for.

    Returns:
        The chunks in the order of the text. All characters outside of chunks are white space.

    Raises:
        ConfigurationError: `max_characters` or `min_characters` is out of range.
    """
    if max_characters is not None and max_characters < 1:
        raise ConfigurationError(
            f"A chunk cannot have at most {max_characters} characters",
            "max_characters is 1 or more, or None for one chunk per document.",
        )
    if min_characters < 0:
        raise ConfigurationError(
            f"A chunk cannot have at least {min_characters} characters",
            "min_characters is 0 or more.",
        )
    if max_characters is None:
        return _whole(pieces)
    packer = _Packer(max_characters, min_characters)
    return _sections(pieces, packer) if markdown else _plain(pieces, packer)


def first_heading(pieces: Iterable[str]) -> str | None:
    """Find the first level-1 heading of a Markdown text that has words in it.

    Args:
        pieces: The text in pieces of any size; no more of them are taken than it needs.

    Returns:
        The heading's text without its marks, or None where there is none.
    """
    for _, heading in _markdown_fragments(pieces):
        if heading is not None and heading.level == 1 and heading.title:
            return heading.title
    return None


def _whole(pieces: Iterable[str]) -> Iterator[Chunk]:
    document = "".join(pieces)
    content = document.strip()
    if content:
        start = len(document) - len(document.lstrip())
        yield Chunk(0, (), content, start, start + len(content))


def _plain(pieces: Iterable[str], packer: "_Packer") -> Iterator[Chunk]:
    for piece in pieces:
        yield from packer.add(piece)
    yield from packer.finish()


def _sections(pieces: Iterable[str], packer: "_Packer") -> Iterator[Chunk]:
    path: list[_Heading] = []
    has_body = False
    for text, heading in _markdown_fragments(pieces):
        if heading is None:
            has_body = has_body or not text.isspace()
        else:
            goes_along = (
                not has_body
                and (not path or heading.level > path[-1].level)
                and packer.section_length <= packer.lookahead
            )
            if not goes_along:
                yield from packer.finish()
            while path and path[-1].level >= heading.level:
                path.pop()
            path.append(heading)
            packer.heading_path = tuple(step.title for step in path if step.title)
            has_body = False
        yield from packer.add(text)
    yield from packer.finish()


class _Packer:
    """Gathers the text of one section after the other and cuts it into chunks.

    Attributes:
        heading_path: Headings of the section at hand.
        section_length: Characters of the section so far.
        lookahead: Characters from a chunk's start that decide where it ends.
    """

    def __init__(self, max_characters: int, min_characters: int) -> None:
        self.heading_path: tuple[str, ...] = ()
        self.section_length = 0
        self._limit = max_characters
        self._minimum = min_characters
        self._floor = max(1, min(min_characters, max_characters // 2))
        self._stretched_limit = max_characters + max_characters // 4
        self.lookahead = self._stretched_limit + _BLANK_LOOKAHEAD
        self._batch = max(_BATCH, 2 * self.lookahead)
        self._parts: list[str] = []
        self._buffered = 0
        self._offset = 0
        self._ordinal = 0

    def add(self, text: str) -> Iterator[Chunk]:
        """Take more text of the section and yield the chunks that are complete."""
        self._parts.append(text)
        self._buffered += len(text)
        self.section_length += len(text)
        if self._buffered >= self._batch:
            yield from self._cut(final=False)

    def finish(self) -> Iterator[Chunk]:
        """End the section and yield the rest of its chunks."""
        yield from self._cut(final=True)
        self.section_length = 0

    def _cut(self, *, final: bool) -> Iterator[Chunk]:
        text = "".join(self._parts)
        position = 0
        while (begin := _NON_BLANK.search(text, position)) is not None:
            position = begin.start()
            ends = len(text) - position <= self.lookahead
            if ends and not final:
                break
            window = text[position : position + self.lookahead]
            length = self._chunk_length(window, ends=ends)
            content = window[:length].rstrip()
            start = self._offset + position
            yield Chunk(self._ordinal, self.heading_path, content, start, start + len(content))
            self._ordinal += 1
            position += length
        else:
            position = len(text)
        rest = text[position:]
        self._parts = [rest]
        self._buffered = len(rest)
        self._offset += position

    def _chunk_length(self, window: str, *, ends: bool) -> int:
        """Find where the chunk at the window's start ends; `ends` says if the section does."""
        rest = len(window.rstrip())
        if ends and rest <= self._limit:
            return rest
        length = _break_position(window, self._floor, self._limit)
        if ends and rest <= self._stretched_limit:
            tail = window[length:].strip()
            if len(tail) < self._minimum:
                return rest
        return length


def _break_position(window: str, floor: int, limit: int) -> int:
    """Find the best place to end a chunk, at least `floor` and at most `limit` characters in."""
    position = 0
    for match in _PARAGRAPH_END.finditer(window, floor):
        if match.start() > limit:
            break
        position = match.start()
    if position:
        return position

    position = max(window.rfind("\n", floor, limit + 1), window.rfind("\r", floor, limit + 1), 0)
    for match in _SENTENCE_END.finditer(window, floor - 1):
        if match.end() > limit:
            break
        position = max(position, match.end())
    if position:
        return position

    word_end = _LAST_WORD_END.match(window[: limit + 1])
    if word_end is not None and floor <= word_end.end() <= limit:
        return word_end.end()

    for position in range(limit, max(floor, limit - _CLUSTER_LIMIT) - 1, -1):
        if not _joins(window, position):
            return position
    return limit


def _joins(text: str, position: int) -> bool:
    """Tell whether the characters on both sides of a position are seen as one."""
    before, after = text[position - 1], text[position]
    if _ZERO_WIDTH_JOINER in (before, after):
        return True
    if unicodedata.category(after) in ("Mn", "Mc", "Me"):
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return True  # skin tones and the letters of flags such as Scotland's
    if _is_regional_indicator(after):
        # Two make a flag, so the parity of the run before tells which of the two this is.
        run = 0
        longest = min(position, _CLUSTER_LIMIT)
        while run < longest and _is_regional_indicator(text[position - 1 - run]):
            run += 1
        return run % 2 == 1
    return False


def _is_regional_indicator(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _markdown_fragments(pieces: Iterable[str]) -> Iterator[tuple[str, _Heading | None]]:
    """Yield the text line by line (or less), each heading with its level and title."""
    fence = ""
    held = ""  # a line that the next one may underline
    after_break = True  # the document's start, a blank line or a heading comes before
    for line, whole in _lines(pieces):
        if held:
            underline = _SETEXT_UNDERLINE.fullmatch(line) if whole else None
            if underline is not None:
                yield held + line, _Heading(1 if underline[1][0] == "=" else 2, held.strip())
                held = ""
                after_break = True
                continue
            yield held, None
            held = ""

        heading = None
        breaks = False
        mark = _FENCE.match(line) if whole else None
        if fence:
            if mark is not None and mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
        elif mark is not None:
            fence = mark[1]
        elif whole:
            heading = _atx_heading(line)
            breaks = heading is not None or line.isspace()
            if after_break and not breaks and _SETEXT_TITLE.match(line):
                held = line
        after_break = breaks
        if not held:
            yield line, heading
    if held:
        yield held, None


def _atx_heading(line: str) -> _Heading | None:
    mark = _ATX_MARK.match(line)
    if mark is None:
        return None
    title = line[mark.end() :].strip()
    without_closing = title.rstrip("#")
    if not without_closing or without_closing[-1].isspace():
        title = without_closing.rstrip()
    return _Heading(len(mark[1]), title)


def _lines(pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield lines with their ends, and whether each is a whole line of reasonable length."""
    rest = ""
    continued = False
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            yield f"{line}\n", not continued and len(line) < _LINE_LIMIT
            continued = False
        if len(rest) >= _LINE_LIMIT:
            yield rest, False
            rest = ""
            continued = True
    if rest:
        yield rest, not continued and len(rest) < _LINE_LIMIT
