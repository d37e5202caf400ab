"""What failed, and what is only wrong, on standard error."""

from collections.abc import Sequence
from typing import Final, Protocol

from sag_pg.cli.application import message

# More would drive what else there is to say off the screen.
MOST_SHOWN: Final = 20


class Failure(Protocol):
    """Something that failed, as its text says, and perhaps what would be right."""

    @property
    def hint(self) -> str | None:
        """What would be right."""


def show_failures(failures: Sequence[Failure], rest: str) -> None:
    """Name the first failures, and give each hint once.

    Args:
        failures: In order.
        rest: What is said of further ones, where there are more than are shown.
    """
    for failure in failures[:MOST_SHOWN]:
        message(f"Failed: {failure}")
    if len(failures) > MOST_SHOWN:
        message(f"… and {rest}")
    for hint in dict.fromkeys(failure.hint for failure in failures if failure.hint):
        message(f"Hint: {hint}")


def show_warnings(warnings: Sequence[str]) -> None:
    """Say what is wrong with documents that are in nevertheless."""
    for warning in warnings[:MOST_SHOWN]:
        message(f"Warning: {warning}")
    if len(warnings) > MOST_SHOWN:
        message(f"… and more warnings: --json has {len(warnings)}.")
