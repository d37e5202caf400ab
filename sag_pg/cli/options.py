"""The arguments and options that several commands share."""

import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from sag_pg.cli.application import message
from sag_pg.client import GATEWAY
from sag_pg.errors import ConfigurationError, ModelError
from sag_pg.models.settings import SETTINGS, ModelSettings, Setting
from sag_pg.text import clean_json

if TYPE_CHECKING:
    from sag_pg.models.base import EmbeddingModel
    from sag_pg.models.budget import Usage

P = ParamSpec("P")
T = TypeVar("T")

NO_EMBEDDING = "none"
DEFAULT_EMBEDDING = "local"
EMBEDDING_VARIABLE = "SAG_PG_EMBEDDING"

# What takes part in embedding a question, and no more.
_QUESTION_SETTINGS = (
    "base_url",
    "embedding_base_url",
    "embedding_model",
    "embedding_dimensions",
    "api_key_env",
    "embedding_api_key_env",
    "model_timeout",
    "model_retries",
)


def _json_or_text(text: str) -> Any:
    try:
        value = json.loads(text)
        # NaN and Infinity are Python's, not JSON's.
        json.dumps(value, allow_nan=False)
        # Which goes less deep.
        clean_json(value)
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
    if sys.stdin is None:
        raise click.UsageError("Standard input is closed, from which the question is to be read.")
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


def _embedding_option(otherwise: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    return click.option(
        "--embedding",
        default=DEFAULT_EMBEDDING,
        show_default=True,
        metavar="SPEC",
        envvar=EMBEDDING_VARIABLE,
        show_envvar=True,
        help="The embedding model: local, openai or openai:MODEL for one behind an endpoint,"
        f" fastembed:NAME, the directory of an ONNX model, {otherwise}.",
    )


embedding_option = _embedding_option("or none to go by words alone")

question_embedding_option = _embedding_option(
    "gateway to leave it to the database, or none to search by words alone"
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


def filter_option(command: Callable[..., T]) -> Callable[..., T]:
    """Add --filter and --where; the command gets both as one jsonpath, `filter_`."""

    @functools.wraps(command)
    def with_filter(*args: Any, filter_: str | None, where: str | None, **kwargs: Any) -> T:
        if where is not None:
            # sqlglot takes a tenth of a second to load.
            from sag_pg.filters import join_filters

            filter_ = join_filters(filter_, where)
        return command(*args, filter_=filter_, **kwargs)

    for decorate in (
        click.option(
            "--where",
            metavar="SQL",
            help="Only documents whose metadata fulfil a condition, such as"
            " \"year >= 2020 AND lang IN ('en', 'zh') AND author.name LIKE 'Wang%'\". Columns are"
            " keys of the metadata in their own upper and lower case, in double quotes where they"
            " are no plain words; text in single quotes is compared by code points, which sorts"
            " ISO dates. Allowed are =, <>, <, <=, >, >=, IN, BETWEEN, LIKE, ILIKE, IS NULL,"
            " IS TRUE, 'x' = ANY(tags), AND, OR, NOT. As in SQL, a key that is missing, null or of"
            " another type matches neither a condition nor its NOT; an array matches by any of its"
            " elements. With --filter, both must hold.",
        ),
        click.option(
            "--filter",
            "filter_",
            metavar="JSONPATH",
            help="Only documents whose metadata match, such as '$.year >= 2020'.",
        ),
    ):
        with_filter = decorate(with_filter)
    return with_filter


metadata_option = click.option(
    "--metadata",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_assignments,
    help="Metadata for all documents, which filters can ask for; the value is JSON or text."
    " Repeatable.",
)

extractor_option = click.option(
    "--extractor",
    default="local",
    show_default=True,
    metavar="SPEC",
    help="Who finds events and entities: local for the local models, rules for rules alone, openai"
    " or openai:MODEL for a language model behind an endpoint.",
)

choose_option = click.option(
    "--choose", metavar="NAME", help="Who makes the final choice: rank, or model by the gateway."
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _settings_options(
    settings: Sequence[Setting],
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(command)
        def with_settings(*args: Any, **kwargs: Any) -> T:
            given = {setting.name: kwargs.pop(setting.name) for setting in settings}
            return command(*args, settings=ModelSettings.from_environment(**given), **kwargs)

        for setting in reversed(settings):
            option = click.option(
                setting.option,
                setting.name,
                metavar=_metavar(setting),
                help=_settings_help(setting),
            )
            with_settings = option(with_settings)
        return with_settings

    return decorate


def _metavar(setting: Setting) -> str:
    if setting.type is not str:
        return "N"
    return "URL" if setting.name.endswith("base_url") else "NAME"


def _settings_help(setting: Setting) -> str:
    """The variables are read with the settings, so that click only has to name them."""
    notes = f"env var: {', '.join(setting.variables)}"
    if setting.default is not None:
        notes += f"; default: {setting.default}"
    return f"{setting.meaning}  [{notes}]"


# Give a command `settings: ModelSettings`, by options and environment: all of them, those that an
# ingest has a use for, and those that the embedding of a question has. A key is no option, for
# arguments can be seen by other users.
model_options = _settings_options(SETTINGS)
ingest_model_options = _settings_options(
    [setting for setting in SETTINGS if not setting.name.startswith("rerank")]
)
question_model_options = _settings_options(
    [setting for setting in SETTINGS if setting.name in _QUESTION_SETTINGS]
)


def merge_parameters(options: dict[str, Any], **own: Any) -> dict[str, Any]:
    """Join `--set` with the parameters that have options of their own, which go first.

    Args:
        options: What `set_option` gives.
        own: Values by parameter; None where the option was not used.
    """
    return {**options, **{name: value for name, value in own.items() if value is not None}}


def load_embedding(
    spec: str,
    settings: ModelSettings | None = None,
    usage: "Usage | None" = None,
    *,
    interactive: bool = False,
) -> "EmbeddingModel | None":
    """Load what `embedding_option` of the running command names; None for no embedding.

    Where nobody asked for the default model and it is not installed, there is a message and no
    embedding.

    Args:
        spec: The option's value.
        settings: Those of the endpoint; None for the environment's.
        usage: Counts the endpoint's requests and tokens; None for a count of its own.
        interactive: Whether somebody waits for each text, so that an endpoint is soon given up.

    Raises:
        ConfigurationError: There is no such model.
        ModelError: The model that was asked for is not installed.
    """
    if spec == NO_EMBEDDING:
        return None
    if spec == GATEWAY:
        raise ConfigurationError(
            "The gateway embeds questions only, and not for itself.",
            "Name the model that the gateway has, with --embedding.",
        )
    return _load_embedding(spec, settings, usage, interactive, also=NO_EMBEDDING)


def _load_embedding(
    spec: str,
    settings: ModelSettings | None,
    usage: "Usage | None",
    interactive: bool,
    also: str,
) -> "EmbeddingModel | None":
    from sag_pg.models.load import load_embedding_model
    from sag_pg.models.local_embedding import UnknownModelError

    try:
        return load_embedding_model(spec, settings, usage, interactive=interactive)
    except UnknownModelError as error:
        # What the option knows beside the models.
        raise ConfigurationError(str(error), f"{error.hint} Or say {also}.") from None
    except ModelError as error:
        source = click.get_current_context().get_parameter_source("embedding")
        if source is not ParameterSource.DEFAULT:
            raise
        message(f"Warning: {error} Going on without embeddings, by words alone.")
        if error.hint is not None:
            message(f"Hint: {error.hint}")
        return None


def load_question_embedding(
    spec: str, settings: ModelSettings | None = None, usage: "Usage | None" = None
) -> "EmbeddingModel | None":
    """Load what `question_embedding_option` names, as `load_embedding`; None for the gateway."""
    if spec in (GATEWAY, NO_EMBEDDING):
        return None
    also = f"{GATEWAY} or {NO_EMBEDDING}"
    return _load_embedding(spec, settings, usage, interactive=True, also=also)
