"""What an object of JSON must have in it, and what its values are turned into."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pgvector import HalfVector

_NAMES: Final = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


class Field:
    """A value of an object.

    Args:
        types: What Python types it may have.
        convert: Makes what is wanted of it, unless it is null; raises ValueError.
    """

    def __init__(self, *types: type, convert: Callable[[Any], Any] | None = None) -> None:
        self.types = types
        self.convert = convert


def check_shape(value: Any, shape: Mapping[str, Field]) -> dict[str, Any]:
    """Return the fields of an object as they are wanted, and no others.

    Args:
        value: What was read from JSON.
        shape: The fields.

    Raises:
        ValueError: It is no object, or a field is missing or wrong.
    """
    if not isinstance(value, dict):
        raise ValueError(f"an object belongs here, not {_name(value)}")
    fields = {}
    for key, field in shape.items():
        if key not in value:
            raise ValueError(f'"{key}" is missing')
        given = value[key]
        # Python takes true for a number.
        if type(given) not in field.types:
            wanted = " or ".join(_NAMES[each] for each in field.types)
            raise ValueError(f'"{key}" is {_name(given)}, not {wanted}')
        if field.convert is not None and given is not None:
            try:
                given = field.convert(given)
            except (ValueError, OverflowError) as error:
                raise ValueError(f'"{key}" is wrong: {error}') from error
        fields[key] = given
    return fields


def whole_number(value: int) -> int:
    """Return a number that the database can hold and that is not negative."""
    if not 0 <= value < 2**31:
        raise ValueError(f"{value} is not from 0 to {2**31 - 1}")
    return value


def big_number(value: int) -> int:
    """Return a number that the database can hold as bigint and that is not negative."""
    if not 0 <= value < 2**63:
        raise ValueError(f"{value} is not from 0 to {2**63 - 1}")
    return value


def texts(values: Iterable[Any]) -> list[str]:
    """Return texts."""
    found = list(values)
    for value in found:
        if not isinstance(value, str):
            raise ValueError(f"there is {_name(value)} among the texts")
    return found


def texts_by_name(values: dict[str, Any]) -> dict[str, str]:
    """Return an object of texts."""
    return dict(zip(values, texts(values.values()), strict=True))


def vector(values: list[Any]) -> HalfVector:
    """Return the vector that an array of numbers stands for."""
    return HalfVector(values)


def _name(value: Any) -> str:
    return _NAMES.get(type(value), "a number")
