"""Filters that people write: a condition in SQL's words becomes a jsonpath predicate on metadata.

sqlglot reads the condition. What it read is checked node by node against `_PARTS`, the list of
what is allowed, and each node that passed is written as jsonpath, its keys and values quoted. No
SQL comes out of this, and the jsonpath is bound as one parameter.

A column is a key of the metadata, and dots lead into objects. As in SQL, a condition holds, does
not hold, or is unknown, which it is for a key that is missing or null and for a value of another
type than it is compared with; unknown matches nothing, and neither does its negation. An array
stands for its elements: a condition holds where it holds for one of them, and its negation where
the condition holds for none of them and is unknown for none. Text is compared by code points.

jsonpath is of two minds about what is missing, so every negation is moved down to the comparisons,
and what is written there is either true or not.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Literal, NamedTuple, NoReturn

from sqlglot import TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, SqlglotError

from sag_pg.errors import ConfigurationError
from sag_pg.text import clean, in_one_line

_MOST_CHARACTERS: Final = 100_000
_MOST_TERMS: Final = 2000
_MOST_PATTERN_CHARACTERS: Final = 1000
_MOST_DIGITS: Final = 1000
_SHOWN_CHARACTERS: Final = 100

_HINT: Final = (
    "Allowed are columns (keys of the metadata, author.name, \"some key\"), numbers, 'text',"
    " TRUE, FALSE, DATE '…' and TIMESTAMP '…'; =, <>, <, <=, >, >=, [NOT] IN (…), [NOT] BETWEEN,"
    " [NOT] LIKE, [NOT] ILIKE, IS [NOT] NULL, IS [NOT] TRUE, = ANY(column); AND, OR, NOT and"
    " parentheses."
)

# The nodes that may occur and the arguments that may be set in them.
_PARTS: Final[dict[type[exp.Expr], frozenset[str]]] = {
    exp.And: frozenset({"this", "expression"}),
    exp.Or: frozenset({"this", "expression"}),
    exp.Not: frozenset({"this"}),
    exp.Paren: frozenset({"this"}),
    exp.EQ: frozenset({"this", "expression"}),
    exp.NEQ: frozenset({"this", "expression"}),
    exp.LT: frozenset({"this", "expression"}),
    exp.LTE: frozenset({"this", "expression"}),
    exp.GT: frozenset({"this", "expression"}),
    exp.GTE: frozenset({"this", "expression"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.ILike: frozenset({"this", "expression", "negate"}),
    exp.Escape: frozenset({"this", "expression"}),
    exp.Is: frozenset({"this", "expression", "negate"}),
    exp.Any: frozenset({"this"}),
    exp.Column: frozenset({"this", "table", "db", "catalog"}),
    exp.Dot: frozenset({"this", "expression"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Neg: frozenset({"this"}),
    exp.Boolean: frozenset({"this"}),
    exp.Null: frozenset(),
    exp.Cast: frozenset({"this", "to"}),
    exp.DataType: frozenset({"this", "nested"}),
}

_COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "==",
    exp.NEQ: "==",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_MIRRORED: Final = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

# A whole jsonpath in pieces: strings, comments, escaped characters, parentheses, anything else.
_JSONPATH_PIECE: Final = re.compile(
    r"""(?s)"(?:[^"\\]|\\.)*"|/\*.*?\*/|\\.|[()]|[^"\\()/]+|/(?!\*)"""
)
_REGEX_SPECIAL: Final = re.compile(r"[\\^$.|?*+()\[\]{}]")
_JSONPATH_MODE: Final = re.compile(r"\s*(strict|lax)\b", re.IGNORECASE)

# Writes what is asked of a value as jsonpath, given how the value is called.
_Test = Callable[[str], str]


class _Value(NamedTuple):
    """A literal: its JSON type, and how jsonpath writes it."""

    type: Literal["string", "number", "boolean"]
    text: str


def join_filters(filter: str | None, where: str | None) -> str | None:
    """Make one jsonpath predicate of both ways to say a filter; documents must pass both.

    Args:
        filter: A jsonpath predicate, or None.
        where: A condition as for `translate_where`, or None.

    Raises:
        ConfigurationError: `where` is not allowed, or `filter` cannot be joined with it.
    """
    if where is None:
        return filter
    translated = translate_where(where)
    if filter is None:
        return translated
    mode = _JSONPATH_MODE.match(filter)
    if mode is not None and mode[1].lower() == "strict":
        raise ConfigurationError(
            "A filter in strict mode cannot be joined with a where.",
            "Give one of them, or the filter without the word strict.",
        )
    predicate = filter[mode.end() :] if mode is not None else filter
    _check_enclosed(predicate)
    return f"({predicate}) && ({translated})"


def _check_enclosed(predicate: str) -> None:
    """Make sure that parentheses around a jsonpath hold all of it."""
    depth = at = 0
    while at < len(predicate) and depth >= 0:
        piece = _JSONPATH_PIECE.match(predicate, at)
        if piece is None:
            break
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
        at = piece.end()
    if depth != 0 or at < len(predicate):
        raise ConfigurationError(
            "The filter is no jsonpath: its quotes, parentheses or comments do not match.",
            "A filter is a predicate on metadata, such as $.year >= 2020.",
        )


def translate_where(where: str) -> str:
    """Translate a condition on metadata from SQL to jsonpath.

    Args:
        where: What could stand after WHERE, such as `year >= 2020 AND lang IN ('en', 'zh')`. The
            module says what it means, `sag-pg retrieve --help` what it may consist of. Names of
            columns keep their case, quoted or not.

    Returns:
        A jsonpath predicate for `metadata @@ …`, in lax mode. Equality stands in it so that a GIN
        index on the metadata serves it.

    Raises:
        ConfigurationError: The condition cannot be read, or has a part that is not allowed; the
            message names it.
    """
    if clean(where) != where:
        raise ConfigurationError(
            "The where holds a character that no text in PostgreSQL can hold.",
            "Leave out NUL characters and lone surrogates.",
        )
    if len(where) > _MOST_CHARACTERS:
        raise ConfigurationError(
            f"The where has {len(where)} characters; {_MOST_CHARACTERS} are allowed."
        )
    try:
        condition = _parse(where)
        _check(condition)
        return _condition(condition, True)
    except RecursionError:
        raise ConfigurationError(
            "The where is nested too deeply.", "Take away parentheses and NOTs."
        ) from None


def _parse(where: str) -> exp.Expr:
    try:
        tokens = Postgres().tokenize(where)
        for token in tokens:
            if token.comments:
                raise ConfigurationError(
                    f"The where has a comment near character {token.start + 1}.", _HINT
                )
            if token.token_type is TokenType.SEMICOLON:
                raise ConfigurationError(
                    f"The where has a semicolon at character {token.start + 1}.", _HINT
                )
        (condition,) = Postgres().parser().parse_into(exp.Condition, tokens, where)
    except ParseError as error:
        raise _unreadable(where, error) from None
    except SqlglotError:
        raise ConfigurationError(
            f"The where cannot be read: {_cut(where)}", "Are all quotes closed?"
        ) from None
    if condition is None:
        raise ConfigurationError("The where is empty.", "Give a condition, such as year >= 2020.")
    return condition


def _unreadable(where: str, error: ParseError) -> ConfigurationError:
    facts = error.errors[0] if error.errors else {}
    found = facts.get("highlight")
    if not found:
        return ConfigurationError(f"The where cannot be read: {_cut(where)}", _HINT)
    at = len(facts.get("start_context") or "")
    before = _cut(where[:at][-20:]) if at else ""
    place = f"line {facts['line']}, column {facts['col'] - len(found) + 1}"
    after = f", after {before}" if before else ""
    return ConfigurationError(
        f"The where cannot be read at {_cut(found)} ({place}{after}).",
        f'{_HINT} A column named like a word of SQL needs quotes: "from".',
    )


def _check(condition: exp.Expr) -> None:
    """Refuse every node that is not on the list, the outermost first."""
    terms = 0
    for node in condition.walk(bfs=False):
        allowed = _PARTS.get(type(node))
        if allowed is None:
            _refuse(node)
        if unknown := {name for name, value in node.args.items() if value} - allowed:
            _refuse(node, f" ({', '.join(sorted(unknown))})")
        terms += isinstance(node, exp.Literal | exp.Column | exp.Dot)
        if terms > _MOST_TERMS:
            raise ConfigurationError(
                f"The where has more than {_MOST_TERMS} columns and values.",
                "Ask in several calls, or mark the documents in their metadata.",
            )


def _refuse(node: exp.Expr, note: str = "", hint: str = _HINT) -> NoReturn:
    try:
        shown = node.sql("postgres")
    except SqlglotError:
        shown = type(node).__name__
    starts = [start for each in node.walk() if (start := each.meta.get("start")) is not None]
    place = f" near character {min(starts) + 1}" if starts else ""
    raise ConfigurationError(f"The where cannot have {_cut(shown)}{note}{place}.", hint)


def _cut(text: str) -> str:
    line = in_one_line(text)
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…"


def _condition(node: exp.Expr, wanted: bool) -> str:
    """Write a condition so that it is true where the node is true, or false if that is wanted."""
    node = node.unnest()
    if isinstance(node, exp.Not):
        return _condition(node.this, not wanted)
    if isinstance(node, exp.And | exp.Or):
        parts = [_condition(part, wanted) for part in node.flatten()]
        return f"({(' && ' if isinstance(node, exp.And) == wanted else ' || ').join(parts)})"
    if type(node) in _COMPARISONS:
        return _comparison(node, wanted)
    if isinstance(node, exp.In):
        return _in(node, wanted)
    if isinstance(node, exp.Between):
        return _between(node, wanted)
    if isinstance(node, exp.Like | exp.ILike | exp.Escape):
        return _like(node, wanted)
    if isinstance(node, exp.Is):
        return _is(node, wanted)
    return _holds(_path(node), "boolean", lambda value: f"{value} == true", wanted)


def _holds(path: str, type_: str, test: _Test, wanted: bool) -> str:
    if wanted:
        return test(path)
    return f'(exists({path}) && !exists({path} ? (@.type() != "{type_}" || {test("@")})))'


def _comparison(node: exp.Expr, wanted: bool) -> str:
    left, right = node.this.unnest(), node.expression.unnest()
    operator = _COMPARISONS[type(node)]
    if isinstance(node, exp.NEQ):
        wanted = not wanted
    if not _is_column(left) and (_is_column(right) or isinstance(right, exp.Any)):
        left, right, operator = right, left, _MIRRORED[operator]
    if isinstance(left, exp.Any):
        left = left.this.unnest()
        if not (isinstance(node, exp.EQ) and _is_column(left)):
            _refuse(node, hint="ANY is for = and a column: 'x' = ANY(tags), or NOT before it.")
    path, value = _path(left), _value(right)
    return _holds(path, value.type, lambda of: f"{of} {operator} {value.text}", wanted)


def _in(node: exp.In, wanted: bool) -> str:
    path, values = _path(node.this), [_value(each) for each in node.expressions]
    type_ = _common_type(node, values)

    def is_one(of: str) -> str:
        return f"({' || '.join(f'{of} == {value.text}' for value in values)})"

    return _holds(path, type_, is_one, wanted)


def _between(node: exp.Between, wanted: bool) -> str:
    path, low, high = _path(node.this), _value(node.args["low"]), _value(node.args["high"])

    def is_within(of: str) -> str:
        # One element of an array must be within, not one above and another one below.
        return f"exists({of} ? (@ >= {low.text} && @ <= {high.text}))"

    return _holds(path, _common_type(node, [low, high]), is_within, wanted)


def _common_type(node: exp.Expr, values: Sequence[_Value]) -> str:
    types = {value.type for value in values}
    if len(types) != 1:
        reason = f" (values of types {', '.join(sorted(types))})" if types else " (no values)"
        _refuse(node, reason, "Give values of one type.")
    return types.pop()


def _is(node: exp.Is, wanted: bool) -> str:
    path, asked = _path(node.this), node.expression.unnest()
    if node.args.get("negate"):
        wanted = not wanted
    if isinstance(asked, exp.Null):
        # type() does not look into arrays: an empty one is no null.
        is_there = f'{path}.type() != "null"'
        return f"!({is_there})" if wanted else is_there
    if isinstance(asked, exp.Boolean):
        test = f"{path} == {str(asked.this).lower()}"
        return test if wanted else f"!exists({path} ? (@ == {str(asked.this).lower()}))"
    _refuse(node)


def _like(node: exp.Expr, wanted: bool) -> str:
    escape = "\\"
    whole = node
    if isinstance(node, exp.Escape):
        escape = _text_of(node.expression, whole)
        if len(escape) > 1:
            _refuse(whole, " (an escape of several characters)", "Give one character.")
        node = node.this.unnest()
    if not isinstance(node, exp.Like | exp.ILike):
        _refuse(whole)
    if node.args.get("negate"):
        wanted = not wanted
    pattern = _read_pattern(_text_of(node.expression, whole), escape, whole)
    test = _pattern_test(pattern, isinstance(node, exp.ILike))
    return _holds(_path(node.this), "string", lambda of: f"{of} {test}", wanted)


def _text_of(node: exp.Expr, whole: exp.Expr) -> str:
    literal = node.unnest()
    if not (isinstance(literal, exp.Literal) and literal.is_string):
        _refuse(whole, hint="What stands after LIKE and ESCAPE must be a text in quotes.")
    return str(literal.this)


def _read_pattern(text: str, escape: str, node: exp.Expr) -> list[tuple[str, bool]]:
    """Return the pattern's characters, each with whether it is a wildcard."""
    if len(text) > _MOST_PATTERN_CHARACTERS:
        _refuse(node, f" (a pattern of more than {_MOST_PATTERN_CHARACTERS} characters)")
    pattern: list[tuple[str, bool]] = []
    characters = iter(text)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                _refuse(node, " (a pattern that ends with its escape)", "Write it twice.")
            pattern.append((escaped, False))
        # Two % in a row say no more than one.
        elif pattern[-1:] != [("%", True)] or character != "%":
            pattern.append((character, character in "%_"))
    return pattern


def _pattern_test(pattern: Sequence[tuple[str, bool]], ignore_case: bool) -> str:
    """Write what comes after the value: an equality, a prefix or a regular expression."""
    text = "".join(character for character, is_wildcard in pattern if not is_wildcard)
    wildcards = [no for no, (_, is_wildcard) in enumerate(pattern) if is_wildcard]
    if not ignore_case and not wildcards:
        return f"== {_quoted(text)}"
    if not ignore_case and wildcards == [len(pattern) - 1] and pattern[-1][0] == "%":
        return f"starts with {_quoted(text)}"
    regex = "".join(
        {"%": ".*", "_": "."}[character]
        if is_wildcard
        else _REGEX_SPECIAL.sub(r"\\\g<0>", character)
        for character, is_wildcard in pattern
    )
    # The dot of flag s takes line ends too, as LIKE's wildcards do.
    return f'like_regex {_quoted(f"^{regex}$")} flag "{"is" if ignore_case else "s"}"'


def _is_column(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column | exp.Dot)


def _path(node: exp.Expr) -> str:
    column = node.unnest()
    if not isinstance(column, exp.Column | exp.Dot):
        _refuse(column, " where a column is wanted")
    keys = column.parts
    if not all(isinstance(key, exp.Identifier) for key in keys):
        _refuse(column)
    return "$" + "".join(f".{_quoted(key.name)}" for key in keys)


def _value(node: exp.Expr) -> _Value:
    value = node.unnest()
    if isinstance(value, exp.Literal):
        return _Value("string", _quoted(value.name)) if value.is_string else _number(value)
    if isinstance(value, exp.Neg) and isinstance(value.this, exp.Literal):
        if not value.this.is_string:
            return _Value("number", f"-{_number(value.this).text}")
    elif isinstance(value, exp.Boolean):
        return _Value("boolean", str(value.this).lower())
    elif isinstance(value, exp.Cast):
        return _time(value)
    elif isinstance(value, exp.Null):
        _refuse(
            value,
            " as a value",
            "Nothing is equal to NULL, nor unequal. Ask by IS NULL or IS NOT NULL.",
        )
    if isinstance(value, exp.Column) and len(value.parts) == 1:
        text = _cut(exp.Literal.string(value.name).sql("postgres"))
        hint = f"Text stands in single quotes: {text}. A column is compared with values only."
        _refuse(value, " where a value is wanted", hint)
    _refuse(value, " where a value is wanted")


def _number(literal: exp.Literal) -> _Value:
    if not re.fullmatch(r"[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?", literal.name):
        _refuse(literal)
    number = Decimal(literal.name)
    if len(literal.name) > _MOST_DIGITS or abs(number.adjusted()) > _MOST_DIGITS:
        _refuse(literal, f" (a number of more than {_MOST_DIGITS} digits)")
    return _Value("number", str(number))


def _time(cast: exp.Cast) -> _Value:
    """A date or time as ISO 8601 writes it, for text is what metadata hold."""
    literal = cast.this.unnest()
    hint = "Give it as in DATE '2024-01-31' or TIMESTAMP '2024-01-31 12:00:00', without a zone."
    if not (isinstance(literal, exp.Literal) and literal.is_string):
        _refuse(cast)
    try:
        if cast.to.is_type(exp.DType.DATE):
            return _Value("string", _quoted(date.fromisoformat(literal.name).isoformat()))
        if cast.to.is_type(exp.DType.TIMESTAMP):
            moment = datetime.fromisoformat(literal.name)
            if moment.tzinfo is None:
                return _Value("string", _quoted(moment.isoformat()))
            _refuse(cast, " (a time zone)", hint)
    except ValueError:
        _refuse(cast, " (no such date or time)", hint)
    _refuse(cast)


def _quoted(text: str) -> str:
    # jsonpath's strings and quoted keys are JSON's.
    return json.dumps(text, ensure_ascii=False)
