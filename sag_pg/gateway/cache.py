"""Answers of models, kept in memory: the database side must not write."""

import hashlib
from collections.abc import Hashable
from typing import Any, Final

from cachetools import LRUCache

# What an entry costs beside its value: key, links and the value's own header.
_OVERHEAD_BYTES: Final = 400


class AnswerCache:
    """Keeps the answers used last within a limit of bytes. Keys hold no contents, but digests.

    Args:
        max_bytes: Memory for keys and values, about; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._entries: LRUCache[bytes, tuple[Any, int]] = LRUCache(
            max_bytes, getsizeof=lambda entry: entry[1] + _OVERHEAD_BYTES
        )

    @property
    def bytes_used(self) -> int:
        """Memory in use, about."""
        return int(self._entries.currsize)

    def get(self, *key: Hashable) -> Any | None:
        """Return what was kept under a key; None where nothing is."""
        entry = self._entries.get(_digest(key))
        return None if entry is None else entry[0]

    def put(self, value: Any, size: int, *key: Hashable) -> None:
        """Keep a value of so many bytes, unless it alone would be more than the limit.

        The key is made of strings, numbers and tuples of them: the kind of question, the name of
        the model and all that it was given.
        """
        if size + _OVERHEAD_BYTES <= self._entries.maxsize:
            self._entries[_digest(key)] = (value, size)


def _digest(key: tuple[Hashable, ...]) -> bytes:
    return hashlib.sha256(repr(key).encode("utf-8", "surrogatepass")).digest()
