"""The arguments and options that several commands share."""

import json
import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sag_pg.cli.application import message
from sag_pg.errors import ModelError

if TYPE_CHECKING:
    from sag_pg.models.base import EmbeddingModel

NO_EMBEDDING = "none"


def _json_or_text(text: str) -> Any:
    try:
        value = json.loads(text)
        # NaN and Infinity are Python's, not JSON's.
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def _assignments(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """Read `name=value`; the database knows which names and values there are."""
    options = {}
    for assignment in given:
        name, _, value = (part.strip() for part in assignment.partition("="))
        if not (name and value):
            raise click.BadParameter(f"{assignment!r} is not of the form name=value.", ctx, param)
        options[name] = _json_or_text(value)
    return options


def _read_question(ctx: click.Context, param: click.Parameter, question: str) -> str:
    if question != "-":
        return question
    return sys.stdin.buffer.read().decode(errors="replace").strip()


question_argument = click.argument("question", callback=_read_question)

collection_option = click.option(
    "--collection",
    "-c",
    default="default",
    show_default=True,
    metavar="NAME",
    help="The collection to work on.",
)

embedding_option = click.option(
    "--embedding",
    default="local",
    show_default=True,
    metavar="SPEC",
    envvar="SAG_PG_EMBEDDING",
    show_envvar=True,
    help="The embedding model: local, fastembed:NAME, the directory of an ONNX model, or none to"
    " search by words alone.",
)

set_option = click.option(
    "--set",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_assignments,
    help="A retrieval parameter, such as --set hops=2; the value is JSON or text. Repeatable. The"
    " table sag.parameter lists them.",
)

filter_option = click.option(
    "--filter",
    "filter_",
    metavar="JSONPATH",
    help="Only documents whose metadata match, such as '$.year >= 2020'.",
)

extractor_option = click.option(
    "--extractor",
    type=click.Choice(["local", "rules"]),
    default="local",
    show_default=True,
    help="Who finds the entities: the local models, or rules alone.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def merge_parameters(options: dict[str, Any], **own: Any) -> dict[str, Any]:
    """Join `--set` with the parameters that have options of their own, which go first.

    Args:
        options: What `set_option` gives.
        own: Values by parameter; None where the option was not used.
    """
    return {**options, **{name: value for name, value in own.items() if value is not None}}


def load_embedding(spec: str) -> "EmbeddingModel | None":
    """Load what `embedding_option` of the running command names; None for no embedding.

    Where nobody asked for the default model and it is not installed, there is a message and no
    embedding.

    Raises:
        ConfigurationError: There is no such model.
        ModelError: The model that was asked for is not installed.
    """
    if spec == NO_EMBEDDING:
        return None
    from sag_pg.models.local_embedding import load_embedding_model

    try:
        return load_embedding_model(spec)
    except ModelError as error:
        source = click.get_current_context().get_parameter_source("embedding")
        if source is not ParameterSource.DEFAULT:
            raise
        message(f"Warning: {error} Going on without embeddings, by words alone.")
        if error.hint is not None:
            message(f"Hint: {error.hint}")
        return None
