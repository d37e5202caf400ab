"""Entities by rules alone: capitalised phrases, titles in quotes, dates and years.

They need no package, serve every script that has capitals, and find in the others what is
quoted or dated.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mention:
    """A stretch of a text that names an entity.

    Attributes:
        start: Offset of its first character in the text.
        end: Offset after its last character.
        name: The name, which may be shorter than the stretch (quotes are left out).
        type: One of the names in `sag.entity_type`.
    """

    start: int
    end: int
    name: str
    type: str

    def shifted(self, offset: int) -> "Mention":
        """The same mention in a text that has `offset` more characters in front."""
        return Mention(self.start + offset, self.end + offset, self.name, self.type)


_MONTHS = (
    "January|February|March|April|May|June|July|August|September|October|November|December"
    "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"
)
_DATE = re.compile(
    rf"""
      \b\d{{1,2}}(?:st|nd|rd|th)?\ (?:of\ )?(?:{_MONTHS})\b\.?(?:,?\ \d{{3,4}}\b)?  # 3 May 1999
    | \b(?:{_MONTHS})\b\.?\ \d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\ \d{{4}}\b)?           # May 3, 1999
    | \b(?:{_MONTHS})\b\.?,?\ \d{{4}}\b                                             # May 1999
    | \b\d{{4}}-\d{{2}}-\d{{2}}\b
    | \b(?:1\d|20)\d{{2}}s?\b                                                       # 1999, 1990s
    | (?:公元前?)?[0-9〇零一二三四五六七八九]{{2,4}}\s?年
      (?:\s?[0-9一二三四五六七八九十]{{1,3}}\s?月(?:\s?[0-9一二三四五六七八九十]{{1,3}}\s?[日号])?)?
    | [0-9]{{3,4}}年代
    """,
    re.VERBOSE,
)

# A work stands between 《》 in Chinese; other quotes hold works, products and nicknames alike.
_CJK_WORK = re.compile(r"《([^《》\n]{1,100})》|〈([^〈〉\n]{1,100})〉|『([^『』\n]{1,100})』")
_CJK_QUOTE = re.compile(r"「([^「」\n]{2,30})」")
_QUOTE = re.compile(
    r"“([^“”\n]{2,100})”"
    r"|„([^„“”\n]{2,100})[“”]"
    r"|«\s?([^«»\n]{2,100}?)\s?»"
    # Some corpora have a space on the inside of a straight quote, or none outside.
    r"|\"\s?([^\"\n]{2,100}?)\s?\""
)
_CJK_CHARACTER = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
_SENTENCE_PUNCTUATION = re.compile(r"[，。；！？：,;!?]")

_WORD = re.compile(r"[^\W_]+(?:[.'’&+-](?=\w)[^\W_]+)*\+*")
# What may stand between two words of one name; a full stop only after an initial or a title.
_GAP = re.compile(r"[ \t]{0,2}(?:[-–&/][ \t]?)?")
_INITIAL = re.compile(r"(?:[^\W\d_]|Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Inc|Ltd|Co|No|vs|Mt|Ft|Lt|Gen|Col)")

# Small words inside a name. "and", "in" or "for" join two names as often as they belong to one.
_CONNECTORS = frozenset(
    """
    of the de del della di da do dos das du des la le les el los von van der den zu zum zur af av
    bin ibn al ben
    """.split()  # noqa: SIM905
)
_LEADING_CONNECTORS = frozenset({"de", "von", "van", "al", "el", "bin", "ibn"})

# Words that begin an English sentence with a capital and name nothing.
_FUNCTION_WORDS = frozenset(
    """
    a about above according additionally after afterwards again against all along already also
    although among an and another any are around as at back based be because been before
    behind being below besides between beyond both but by can could currently despite did do
    does due during each early either eventually every everyone except few finally first
    following for former formerly from further furthermore had has have having he hence her here
    hers herself him himself his how however i if in including indeed initially inside instead
    into is it its itself just last late later latter least less like likewise many may maybe me
    meanwhile might mine more moreover most much must my near nearly neither never nevertheless
    next no nobody none nor not nothing now of off often on once one only onto or originally
    other others otherwise our ours out outside over own per perhaps prior rather recently
    regarding several she should similarly since so some someone something sometimes soon still
    such than that the their theirs them then there therefore these they this those though
    three through throughout thus to together too toward towards two under unlike until unless
    up upon us usually various very via was we were what whatever when whenever where whereas
    whether which while who whom whose why will with within without would yet you your yours
    based best born directed produced written
    """.split()  # noqa: SIM905
)
# Articles and the like of other languages begin names as well, as in Los Angeles and Die Zeit, so
# that they are left out only where they stand alone.
_FOREIGN_FUNCTION_WORDS = frozenset(
    """
    der die das und ein eine im am er sie es mit von für auf bei aus nach dem den des auch le la
    les un une et il elle dans pour sur avec par en el los las una y del al se con por para
    """.split()  # noqa: SIM905
)


def rule_mentions(text: str) -> list[Mention]:
    """Find the entities of one text.

    Args:
        text: Any text, in any script.

    Returns:
        Mentions in the order of the text. They may overlap: a title in quotes and a name in it
        are two.
    """
    dates = list(date_mentions(text))
    mentions = [*dates, *quoted_mentions(text), *_capitalised(text, dates)]
    return sorted(mentions, key=lambda mention: (mention.start, -mention.end))


def date_mentions(text: str) -> Iterator[Mention]:
    """Yield dates and years, English and Chinese."""
    for match in _DATE.finditer(text):
        yield Mention(match.start(), match.end(), match.group(), "time")


def quoted_mentions(text: str) -> Iterator[Mention]:
    """Yield what stands in quotes or brackets as a name does.

    《》 and 『』 hold works. 「」 and, in Chinese, “” hold names of products and projects. Latin
    text in quotes is a work if it begins with a capital or a digit; the rest is direct speech.
    """
    for match in _CJK_WORK.finditer(text):
        yield Mention(match.start(), match.end(), _inside(match), "work")
    for match in _CJK_QUOTE.finditer(text):
        if not _SENTENCE_PUNCTUATION.search(_inside(match)):
            yield Mention(match.start(), match.end(), _inside(match), "product")
    for match in _QUOTE.finditer(text):
        name = _inside(match).strip(" ,.;")
        if not name:
            continue
        if _CJK_CHARACTER.search(name):
            if len(name) <= 20 and not _SENTENCE_PUNCTUATION.search(name):
                yield Mention(match.start(), match.end(), name, "product")
        elif (name[0].isupper() or name[0].isdigit()) and len(name.split()) <= 12:
            yield Mention(match.start(), match.end(), name, "work")


def _inside(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()


def _capitalised(text: str, dates: Sequence[Mention]) -> Iterator[Mention]:
    """Yield phrases of capitalised words, with the small words that belong to them."""
    words = list(_WORD.finditer(text))
    lower_words = {word.group() for word in words if word.group().islower()}
    in_date = {position for date in dates for position in range(date.start, date.end)}
    position = 0
    while position < len(words):
        if not _is_capital(words[position]) or words[position].start() in in_date:
            position += 1
            continue
        last = _end_of_phrase(text, words, position, in_date)
        first = _start_of_name(text, words, position, last, lower_words)
        if first is not None:
            start, end = words[first].start(), words[last].end()
            name = text[start:end].removesuffix("'s").removesuffix("’s")
            yield Mention(start, start + len(name), name, "tag")
        position = last + 1


def _is_capital(word: re.Match[str]) -> bool:
    # Capitals further in, as in iPhone and eBay, name something too.
    return any(letter.isupper() for letter in word.group()[:3])


def _joined(text: str, left: re.Match[str], right: re.Match[str]) -> bool:
    gap = text[left.end() : right.start()]
    if gap.startswith(".") and _INITIAL.fullmatch(left.group()):
        gap = gap[1:]
    return _GAP.fullmatch(gap) is not None


def _end_of_phrase(text: str, words: Sequence[re.Match[str]], first: int, in_date: set[int]) -> int:
    """Return the index of the last word of the phrase that begins at `first`."""
    last = first
    while True:
        following = last + 1
        # At most two small words in a row: "University of the West".
        while (
            following < min(len(words), last + 3)
            and words[following].group() in _CONNECTORS
            and _joined(text, words[following - 1], words[following])
        ):
            following += 1
        if (
            following >= len(words)
            or not _joined(text, words[following - 1], words[following])
            or words[following].start() in in_date
        ):
            return last
        # "Apollo 11", but not "University of 11".
        numbered = following == last + 1 and words[following].group().isdecimal()
        if not numbered and not _is_capital(words[following]):
            return last
        last = following


def _start_of_name(
    text: str, words: Sequence[re.Match[str]], first: int, last: int, lower_words: set[str]
) -> int | None:
    """Return the index of the first word that belongs to the name; None if there is no name."""
    start = first
    while start <= last and (
        words[start].group().lower() in _FUNCTION_WORDS or not _is_capital(words[start])
    ):
        start += 1
    if start > last:
        return None
    if start == last:
        only = words[start].group()
        # A single word that the text also writes small has its capital from its place.
        from_place = only.lower() in lower_words and not only.isupper()
        if from_place or only.lower() in _FOREIGN_FUNCTION_WORDS:
            return None
    if (
        start == first
        and start > 0
        and words[start - 1].group() in _LEADING_CONNECTORS
        and _joined(text, words[start - 1], words[start])
    ):
        return start - 1
    return start
