"""Files of JSON lines, read one by one with errors that name the line."""

import contextlib
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from sag_pg.errors import LoadError
from sag_pg.transfer.shape import Field, check_shape

COPY_AGAIN: Final = "Copy the whole directory again, or export the collection anew."


class Lines:
    """The objects of a file; a context manager.

    Args:
        path: The file.
        shape: What each object must have.
        exact: Whether fractions that a float does not hold come as Decimal.

    Attributes:
        path: The file.
        number: Number of the line that was taken last, from 1; 0 before the first one.
        text: That line as it stands in the file.

    Raises:
        LoadError: The file cannot be read, or its first line is wrong.
    """

    def __init__(self, path: Path, shape: Mapping[str, Field], *, exact: bool = False) -> None:
        self.path = path
        self.number = 0
        self.text = ""
        self._shape = shape
        self._parse_float = _number if exact else None
        self._head_text = ""
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise LoadError(
                f"{path} cannot be read: {error.strerror or error}", COPY_AGAIN
            ) from error
        try:
            self._head = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def head(self) -> dict[str, Any] | None:
        """The next object, which stays; None at the end of the file."""
        return self._head

    def take(self) -> dict[str, Any]:
        """Take the next object.

        Raises:
            LoadError: The line after it is wrong.
        """
        taken = self._head
        assert taken is not None  # noqa: S101
        self.number += 1
        self.text = self._head_text
        self._head = self._read()
        return taken

    def error(self, problem: str) -> LoadError:
        """Make the error for the object that was taken last."""
        return LoadError(f"{self.path}, line {self.number}: {problem}", COPY_AGAIN)

    def refuse_head(self, problem: str) -> NoReturn:
        """Raise the error for the next object, or for its absence at the end of the file."""
        if self._head is None:
            raise LoadError(
                f"{self.path}: after its last line, {self.number}, {problem}", COPY_AGAIN
            )
        raise LoadError(f"{self.path}, line {self.number + 1}: {problem}", COPY_AGAIN)

    def _read(self) -> dict[str, Any] | None:
        try:
            line = self._file.readline()
            if not line:
                return None
            if not line.endswith(b"\n"):
                raise ValueError("the line is cut off")
            self._head_text = line.decode("utf-8")
            value = json.loads(
                self._head_text,
                parse_float=self._parse_float,
                parse_int=_whole_number,
                parse_constant=_refuse_constant,
            )
            return check_shape(value, self._shape)
        except OSError as error:
            raise LoadError(f"{self.path} cannot be read: {error}", COPY_AGAIN) from error
        except (ValueError, RecursionError) as error:
            raise LoadError(f"{self.path}, line {self.number + 1}: {error}", COPY_AGAIN) from error


def exact_json(value: Any) -> str:
    """Return the JSON of a value that may hold Decimal.

    Raises:
        RecursionError: It holds Decimal and is nested too deeply.
    """
    # As deep as json reads, where it can.
    with contextlib.suppress(TypeError):
        return json.dumps(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{exact_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(exact_json, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def _number(text: str) -> float | Decimal:
    number = float(text)
    return number if repr(number) == text else Decimal(text)


def _whole_number(text: str) -> int | float:
    # Vectors have a zero with a sign.
    return int(text) if text != "-0" else -0.0


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
