"""What the lines of each file have in them."""

from typing import Any, Final

from sag_pg.transfer.shape import (
    Field,
    big_number,
    check_shape,
    texts,
    vector,
    whole_number,
)

_NONE: Final = type(None)
_ORIGINS: Final = ("person", "extraction")


def _aliases(values: list[Any]) -> list[dict[str, Any]]:
    return [check_shape(value, _ALIAS) for value in values]


def _origin(value: str) -> str:
    if value not in _ORIGINS:
        raise ValueError(f"it is not {' or '.join(_ORIGINS)}")
    return value


_ALIAS: Final = {"name": Field(str), "origin": Field(str, convert=_origin)}
_PLACE: Final = {"source": Field(str), "ordinal": Field(int, convert=whole_number)}
_EMBEDDING: Final = {"embedding": Field(list, _NONE, convert=vector)}

# By the name of the file, in the order in which the files are written.
SHAPES: Final = {
    "documents": {
        "source": Field(str),
        "title": Field(str),
        "metadata": Field(dict),
        "extractor": Field(str, _NONE),
        "content_hash": Field(str, convert=bytes.fromhex),
    },
    "chunks": {
        **_PLACE,
        "heading_path": Field(list, convert=texts),
        "content": Field(str),
        "start_offset": Field(int, convert=big_number),
        "end_offset": Field(int, convert=big_number),
        "answer_key": Field(str, _NONE, convert=bytes.fromhex),
        **_EMBEDDING,
    },
    "events": {**_PLACE, "title": Field(str), "content": Field(str, _NONE), **_EMBEDDING},
    "links": {
        **_PLACE,
        "entity": Field(str),
        "type": Field(str),
        "is_subject": Field(bool),
        "role": Field(str, _NONE),
        "aliases": Field(list, convert=texts),
    },
    "entities": {"name": Field(str), "aliases": Field(list, convert=_aliases), **_EMBEDDING},
    "answers": {
        "answer_key": Field(str, convert=bytes.fromhex),
        "extractor": Field(str),
        "answer": Field(dict, list, str, int, float, bool),
    },
}
