"""The command that shows every setting and where it comes from."""

import difflib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
from click.core import ParameterSource

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.layout import columns_of, one_line, pad
from sag_pg.cli.options import (
    DEFAULT_EMBEDDING,
    EMBEDDING_VARIABLE,
    json_option,
    model_options,
)
from sag_pg.cli.serve import serve
from sag_pg.config import DATA_DIR_VARIABLE, URL_VARIABLES
from sag_pg.models.settings import SETTINGS, EndpointKind, ModelSettings, Setting

_PREFIX = "SAG_PG_"

# What the container's entry point reads.
CONTAINER_VARIABLES = (
    "SAG_PG_WAIT_SECONDS",
    "SAG_PG_GATEWAY_SOCKET_DIR",
    "SAG_PG_GATEWAY_HOST",
    "SAG_PG_GATEWAY_PORT",
    "SAG_PG_GATEWAY_TLS_CERT",
    "SAG_PG_GATEWAY_TLS_KEY",
    "SAG_PG_GATEWAY_SSLROOTCERT",
)

_DEFAULT = "default"
_KINDS: tuple[EndpointKind, ...] = ("chat", "embedding", "rerank")


@dataclass(frozen=True, slots=True)
class _Row:
    """A setting: its value, what set it, the option and variables that could, what it means."""

    name: str
    value: Any
    source: str
    option: str | None
    variables: list[str]
    meaning: str


@click.command()
@json_option
@model_options
@pass_application
def config(application: Application, settings: ModelSettings, as_json: bool) -> None:
    """List the database and every setting of the models, with the place that each comes from.

    Keys are never shown, only whether they are set. Variables that begin with SAG_PG_ and that
    nothing reads are named on standard error.
    """
    rows = [*_general(application), *_model_settings(settings), *_keys(settings)]
    _warn_of_unread({variable for row in rows for variable in row.variables})
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], ensure_ascii=False))
        return
    shown = [
        (row.name, "-" if row.value is None else one_line(str(row.value)), row.source)
        for row in rows
    ]
    heading = ("setting", "value", "from")
    widths = [max(map(columns_of, column)) + 2 for column in zip(heading, *shown, strict=True)]
    click.secho(_line(heading, widths) + "meaning", bold=True)
    for cells, row in zip(shown, rows, strict=True):
        click.echo(_line(cells, widths) + row.meaning)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "".join(pad(cell, width) for cell, width in zip(cells, widths, strict=True))


def _general(application: Application) -> Iterator[_Row]:
    target = application.target
    yield _Row(
        "database",
        str(target),
        target.source,
        "--database-url",
        list(URL_VARIABLES),
        "The database to work on.",
    )
    embedding = os.environ.get(EMBEDDING_VARIABLE)
    yield _Row(
        "embedding",
        embedding or DEFAULT_EMBEDDING,
        EMBEDDING_VARIABLE if embedding else _DEFAULT,
        "--embedding",
        [EMBEDDING_VARIABLE],
        "The embedding model that commands use.",
    )


def _model_settings(settings: ModelSettings) -> Iterator[_Row]:
    values = settings.shown()
    for setting in SETTINGS:
        yield _Row(
            setting.name,
            values[setting.name],
            _source(setting),
            setting.option,
            list(setting.variables),
            setting.meaning,
        )


def _source(setting: Setting) -> str:
    context = click.get_current_context()
    if context.get_parameter_source(setting.name) is ParameterSource.COMMANDLINE:
        return setting.option
    return next((name for name in setting.variables if os.environ.get(name)), _DEFAULT)


def _keys(settings: ModelSettings) -> Iterator[_Row]:
    """One row for each variable that holds a key, which may serve several endpoints."""
    kinds: dict[str, list[str]] = {}
    for kind in _KINDS:
        kinds.setdefault(settings.key_variable_of(kind), []).append(kind)
    for variable, served in kinds.items():
        yield _Row(
            f"key for {', '.join(served)}",
            "set" if os.environ.get(variable) else "not set",
            variable,
            None,
            [variable],
            "The key, which is only ever read from this variable.",
        )


def _variables_of(command: click.Command) -> Iterator[str]:
    """The variables that the options of a command are read from."""
    for parameter in command.params:
        if isinstance(parameter.envvar, str):
            yield parameter.envvar


def _warn_of_unread(listed: Iterable[str]) -> None:
    """Name variables that look like settings. Never their values: one may be a key."""
    read = {*listed, DATA_DIR_VARIABLE, *CONTAINER_VARIABLES, *_variables_of(serve)}
    for variable in sorted(os.environ):
        # As for those that are read, set to nothing is not set.
        if not variable.upper().startswith(_PREFIX) or variable in read or not os.environ[variable]:
            continue
        likely = difflib.get_close_matches(variable.upper(), sorted(read), n=1, cutoff=0.8)
        question = f" Did you mean {likely[0]}?" if likely else ""
        message(f"Warning: Nothing reads the environment variable {variable}.{question}")
