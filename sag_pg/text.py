"""Cleaning of text that PostgreSQL could not store, or that is not fit for a message.

A text value in PostgreSQL holds no NUL, and UTF-8 has no surrogates. Each such character becomes
one U+FFFD, so that offsets count the same before and after; nothing else is touched, newlines
included. No character depends on its neighbours, so a text may be cleaned piece by piece.
"""

import re
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# Control characters, and those that turn the direction of what follows or break lines.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def clean(text: str) -> str:
    """Replace NULs and lone surrogates by U+FFFD.

    Args:
        text: A whole text or a piece of one.

    Returns:
        A text of the same length in characters.
    """
    if text.isascii():
        return text.replace("\x00", REPLACEMENT)
    return _UNSTORABLE.sub(REPLACEMENT, text)


def clean_json(value: Any) -> Any:
    """Clean every string of a JSON value, the keys of its objects included.

    Args:
        value: What `json.loads` gives: dict, list, str, int, float, bool or None.

    Returns:
        A value of the same shape. Of keys that become equal the last one stays.

    Raises:
        RecursionError: The value is nested too deeply.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    return value


def in_one_line(text: str) -> str:
    """Make words that others said fit to stand in a message.

    Args:
        text: Any text.

    Returns:
        One line with single spaces, without what could steer a terminal or not be stored.
    """
    return clean(" ".join(_STEERING.sub(" ", text).split()))
