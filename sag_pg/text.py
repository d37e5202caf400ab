"""Cleaning of text that PostgreSQL could not store.

A text value in PostgreSQL holds no NUL, and UTF-8 has no surrogates. Each such character becomes
one U+FFFD, so that offsets count the same before and after; nothing else is touched, newlines
included. No character depends on its neighbours, so a text may be cleaned piece by piece.
"""

import re
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


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
