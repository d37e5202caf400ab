"""Which script a text is mainly written in.

A model knows the scripts that it was trained on; a text in another one is better served without
it. What counts is letters: digits, punctuation and symbols belong to every script.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice

LATIN = "Latin"
CJK = "CJK"

# The start of a text tells its script as well as the whole would.
_SAMPLE_LETTERS = 4000

# A Chinese, Japanese or Korean character says about as much as two to three Latin letters, so
# that a Chinese question about an English name still is a Chinese question.
_CJK_WEIGHT = 2.5

_CJK_NAMES = frozenset(
    {"CJK", "IDEOGRAPHIC", "KANGXI", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"}
)


@lru_cache(maxsize=8192)
def script_of(letter: str) -> str | None:
    """Name the script of one letter.

    Args:
        letter: One character.

    Returns:
        "CJK" for Han, Kana, Hangul and Bopomofo, else the first word of the letter's Unicode
        name, such as "Latin", "Cyrillic" or "Arabic"; None for what is no letter or has no name.
    """
    # Full-width, mathematical and superscript letters are those of their plain forms.
    plain = unicodedata.normalize("NFKC", letter)[:1]
    if not plain.isalpha():
        return None
    name = unicodedata.name(plain, "")
    if name.startswith("MODIFIER LETTER"):
        return None
    first = name.replace("-", " ").partition(" ")[0]
    if first in _CJK_NAMES:
        return CJK
    return first.title() or None


def count_scripts(text: str) -> Counter[str]:
    """Count the letters of each script in the first few thousand letters of a text.

    Args:
        text: Any text.

    Returns:
        Letters by script, unweighted; empty where the text has no letter.
    """
    letters = Counter(islice(filter(str.isalpha, text), _SAMPLE_LETTERS))
    counts: Counter[str] = Counter()
    for letter, count in letters.items():
        script = script_of(letter)
        if script is not None:
            counts[script] += count
    return counts


def main_script(text: str) -> str | None:
    """Name the script that most of a text is written in.

    Args:
        text: Any text. Only the first few thousand letters are looked at.

    Returns:
        A name as from `script_of`; None where the text has no letter.
    """
    counts = count_scripts(text)
    if not counts:
        return None
    return max(counts, key=lambda script: counts[script] * (_CJK_WEIGHT if script == CJK else 1.0))


def is_known(text: str, scripts: Iterable[str] | None) -> bool:
    """Tell whether a text is mainly in one of the scripts, or has no letter at all.

    Args:
        text: Any text.
        scripts: The known scripts; None where all are known.

    Returns:
        True if the text can be given to a model that knows these scripts.
    """
    if scripts is None:
        return True
    script = main_script(text)
    return script is None or script in scripts
