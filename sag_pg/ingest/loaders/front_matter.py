"""Front matter: what stands about a Markdown document at its very beginning, in YAML or TOML.

YAML stands between lines of `---`, the last of which may be `...`; TOML between lines of `+++`.
Where it is broken, or is no front matter at all but a rule over a paragraph, the text is left as
it stands: nothing that was written is lost. What is broken is said.
"""

import base64
import datetime
import math
import re
import tomllib
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import yaml

from sag_pg.text import clean, clean_json, in_one_line

# Bytes. What goes on longer is no front matter.
_LIMIT: Final = 65_536
# As in Pandoc, a rule is followed by a blank line and front matter is not.
_BLOCK = re.compile(
    rb"(?:\xef\xbb\xbf)?"
    rb"(?:---[ \t]*\r?\n(?![ \t]*\r?\n)(?P<yaml>(?:.*\n)*?)(?:---|\.\.\.)[ \t]*"
    rb"|\+\+\+[ \t]*\r?\n(?P<toml>(?:.*\n)*?)\+\+\+[ \t]*)"
    rb"(?:\r?\n|\Z)"
)
# A rule over a paragraph does not go on with a key.
_BEGUN = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:---[ \t]*\r?\n[\w-]+:[ \t\r\n]|\+\+\+[ \t]*\r?\n[\w-]+[ \t]*=)"
)
_SHOWN_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """What a document says about itself.

    Attributes:
        size: Bytes from the file's beginning to where the text begins; 0 without front matter.
        title: Title, empty where none is given.
        metadata: All else, as JSON has it: dates as ISO 8601, keys as strings.
        problem: Why something that looks like front matter is none; empty where nothing does.
    """

    size: int = 0
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def read_front_matter(file: BinaryIO) -> FrontMatter:
    """Read the front matter at the beginning of a Markdown file.

    Args:
        file: The file, at its beginning.

    Returns:
        What it says; nothing but the problem, with size 0, where there is none or it is broken.
    """
    head = file.read(_LIMIT + 1)
    match = _BLOCK.match(head)
    if match is None or match.end() > _LIMIT:
        if _BEGUN.match(head) is None:
            return FrontMatter()
        return FrontMatter(problem=f"no line ends it within {_LIMIT // 1024} KiB")
    try:
        # With a line in place of the first, so that problems count lines as the file does.
        if match["yaml"] is not None:
            # The loader parses text without aliases only, so that nothing in it can multiply.
            values = yaml.load("\n" + match["yaml"].decode(), _Loader)  # noqa: S506
        else:
            values = tomllib.loads("\n" + match["toml"].decode().replace("\r\n", "\n"))
        values = _as_json({} if values is None else values)
        if not isinstance(values, dict):
            return FrontMatter()
        metadata = clean_json(values)
    except Exception as error:
        # A value that its tag does not fit raises about anything.
        return FrontMatter(problem=_problem(error))
    title = ""
    if isinstance(metadata.get("title"), str | int | float):
        title = in_one_line(str(metadata.pop("title")))
    return FrontMatter(match.end(), title, metadata)


def _problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        text = f"{error.problem} in line {error.problem_mark.line + 1}"
    elif isinstance(error, yaml.YAMLError | ValueError):
        text = str(error)
    else:
        text = f"a value is not of its type ({type(error).__name__}: {error})"
    return in_one_line(text)[:_SHOWN_CHARACTERS]


class _Loader(yaml.SafeLoader):
    """YAML as its version 1.2 has it: `no` is a word, 12:30 and 007 are no numbers."""

    # Those of SafeLoader, which follows version 1.1, are not inherited.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        return super().compose_node(parent, index)

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        try:
            moment = super().construct_yaml_timestamp(node)
        except (ValueError, OverflowError):
            return node.value
        if isinstance(moment, datetime.datetime) and moment.tzinfo is None:
            # So YAML defines a time without a zone.
            return moment.replace(tzinfo=datetime.UTC)
        return moment


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
    (
        "timestamp",
        r"\d{4}-\d\d-\d\d(?:(?:[Tt]|[ \t]+)\d\d?:\d\d:\d\d(?:\.\d*)?"
        r"(?:[ \t]*(?:Z|[-+]\d\d?(?::\d\d)?))?)?",
        list("0123456789"),
    ),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first
    )
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_timestamp)


def _as_json(value: Any) -> Any:
    """Turn what YAML and TOML know into what JSON knows.

    Raises:
        ValueError: An integer is too long to be written out.
        RecursionError: It is nested too deeply.
    """
    if isinstance(value, dict):
        return {_key(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, set):
        return sorted(map(_key, value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int):
        str(value)
    return value


def _key(key: Any) -> str:
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return clean(str(_as_json(key)))
