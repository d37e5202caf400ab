"""Tables as text that can be cut anywhere and still says what each value is."""

import re
from collections.abc import Iterable, Iterator, Sequence

_NUMBER = re.compile(r"[-+]?[\d.,\s]*\d[\d.,\s]*(?:[eE][-+]?\d+)?%?")


def record_text(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Write each row as a paragraph of its own, with a line `column: value` per value.

    The first row with two values or more names the columns, unless it is all numbers; rows with
    one value before it, such as a caption, stand as they are. Values come in one line, empty ones
    are left out.

    Args:
        rows: The table, cell by cell.

    Yields:
        Paragraphs, each with its blank line.
    """
    names: list[str] | None = None
    for row in rows:
        values = [" ".join(value.split()) for value in row]
        filled = [value for value in values if value]
        if not filled:
            continue
        if names is None:
            if len(filled) == 1:
                yield filled[0] + "\n\n"
                continue
            is_header = not all(map(_NUMBER.fullmatch, filled))
            names = values if is_header else []
            if is_header:
                continue
        yield (
            "".join(
                f"{_name(names, number)}: {value}\n" for number, value in enumerate(values) if value
            )
            + "\n"
        )


def _name(names: Sequence[str], number: int) -> str:
    name = names[number] if number < len(names) else ""
    return name or f"column {number + 1}"
