"""The statements that the gateway understands.

`SELECT call('json')` and `SELECT status()`, with white space and one semicolon where SQL allows
them. The literal is one that quote_literal makes: quotes doubled, or with the prefix E also
backslashes. Nothing is evaluated, and every other statement is refused.
"""

import re
from dataclasses import dataclass
from typing import Final

from sag_pg.gateway.refusal import RefusedError, SqlState

CALLS: Final = ("understand", "choose", "embed", "status")

# Possessive quantifiers: the time is linear in the statement's length, whatever it holds.
_STATEMENT: Final = re.compile(
    r"""
    \s*+ select \s++ (?P<call>[a-z_][a-z0-9_]{0,62}+) \s*+
    \( \s*+
    (?:
        '(?P<plain>(?:[^']++|'')*+)'
        | e'(?P<escaped>(?:[^'\\]++|''|\\\\)*+)'
    )?+
    \s*+ \) \s*+ ;?+ \s*+
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Call:
    """A statement, read.

    Attributes:
        name: One of `CALLS`.
        argument: The literal's text; None for `status`, which has none.
    """

    name: str
    argument: str | None


def parse_statement(statement: str) -> Call:
    """Read a statement.

    Args:
        statement: SQL as the client sent it.

    Raises:
        RefusedError: The call is unknown (42883), or this is no call (0A000).
    """
    match = _STATEMENT.fullmatch(statement)
    if match is None:
        raise RefusedError(
            SqlState.UNSUPPORTED,
            "the gateway answers only its own calls and evaluates no SQL",
            f"Write SELECT call('json') with one of {', '.join(CALLS)}; the SQL functions of"
            " sag-pg do this.",
        )
    name = match["call"].lower()
    argument = _argument(match)
    if name not in CALLS or (argument is None) != (name == "status"):
        written = f"{name}(unknown)" if argument is not None else f"{name}()"
        raise RefusedError(
            SqlState.NO_SUCH_CALL,
            f"function {written} does not exist",
            f"There are {', '.join(f'{call}(json)' for call in CALLS[:-1])} and {CALLS[-1]}().",
        )
    return Call(name, argument)


def _argument(match: re.Match[str]) -> str | None:
    plain, escaped = match["plain"], match["escaped"]
    if plain is not None:
        return str(plain).replace("''", "'")
    if escaped is not None:
        return str(escaped).replace("''", "'").replace("\\\\", "\\")
    return None
