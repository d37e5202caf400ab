"""The settings of models behind HTTP endpoints: their names, defaults and meanings in one table.

The command line makes its options from the table, `sag-pg config` prints it, and
`ModelSettings.from_environment` reads it. A key is no setting: what is set is the name of the
environment variable that holds it.
"""

import ipaddress
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit, urlunsplit

from sag_pg.errors import ConfigurationError

EndpointKind = Literal["chat", "embedding", "rerank"]
SettingValue = str | int | float | None

OPENAI_BASE_URL: Final = "https://api.openai.com/v1"

DEFAULT_RETRIES: Final = 5
DEFAULT_INTERACTIVE_RETRIES: Final = 1

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table.

    Attributes:
        name: The attribute of `ModelSettings`.
        type: `str`, `int` or `float`; what the command line converts to.
        default: The value where nothing is said; None for "not set".
        meaning: One sentence for `--help` and `sag-pg config`.
        fallback_variable: A further environment variable, read where `variable` is not set.
        minimum: The smallest value of a number.
    """

    name: str
    type: type[str] | type[int] | type[float]
    default: SettingValue
    meaning: str
    fallback_variable: str | None = None
    minimum: float = 1

    @property
    def variable(self) -> str:
        """The environment variable, for example "SAG_PG_BASE_URL"."""
        return f"SAG_PG_{self.name.upper()}"

    @property
    def option(self) -> str:
        """The option on the command line, for example "--base-url"."""
        return "--" + self.name.replace("_", "-")

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it, the first that is set wins."""
        return (self.variable, *([self.fallback_variable] if self.fallback_variable else []))

    def parse(self, raw: Any, source: str) -> SettingValue:
        """Convert and check a value.

        Args:
            raw: A text from the environment, or what the command line made of one.
            source: The variable or the option, for messages.

        Raises:
            ConfigurationError: It is not of the type, too small, no URL or no variable's name.
        """
        if self.type is str:
            return self._parse_text(str(raw).strip(), source)
        try:
            number = int(raw) if self.type is int else float(raw)
        except (ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number) or number < self.minimum:
            kind = "a whole number" if self.type is int else "a number"
            raise ConfigurationError(
                f"{source} is {raw!r}.", f"Give {kind} that is at least {self.minimum}."
            )
        return number

    def _parse_text(self, text: str, source: str) -> str:
        if not text:
            raise ConfigurationError(f"{source} is empty.", f"It is: {self.meaning}")
        # It would stand in messages and in what is stored of a run.
        if not text.isprintable():
            raise ConfigurationError(
                f"{source} has characters that cannot be shown.", "Was it pasted with line breaks?"
            )
        # Neither value is repeated: a URL can hold a password, and a key may have come in place
        # of a variable's name.
        if self.name.endswith("base_url"):
            return _checked_url(text, source)
        if self.name.endswith("api_key_env") and not _VARIABLE_NAME.fullmatch(text):
            raise ConfigurationError(
                f"{source} is not the name of an environment variable.",
                "Name the variable that holds the key, not the key, for example OPENAI_API_KEY.",
            )
        return text


def _setting(
    type: type[str] | type[int] | type[float],
    default: SettingValue,
    meaning: str,
    *,
    fallback_variable: str | None = None,
    minimum: float = 1,
    is_url: bool = False,
) -> Any:
    # A URL can hold a password, so that it stays out of the text form of the settings.
    metadata = {
        "type": type,
        "meaning": meaning,
        "fallback_variable": fallback_variable,
        "minimum": minimum,
    }
    return field(default=default, repr=not is_url, metadata=metadata)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which models to use where, and within which limits. Holds no key.

    `SETTINGS` says what the attributes mean. Where an endpoint of its own is not set, `url_of`
    and `key_variable_of` fall back to the general one.
    """

    base_url: str = _setting(
        str,
        OPENAI_BASE_URL,
        "URL of the OpenAI-compatible endpoint; it usually ends in /v1.",
        fallback_variable="OPENAI_BASE_URL",
        is_url=True,
    )
    embedding_base_url: str | None = _setting(
        str, None, "Endpoint for embeddings, if not base_url.", is_url=True
    )
    rerank_base_url: str | None = _setting(
        str, None, "Endpoint for reranking, if not base_url.", is_url=True
    )
    chat_model: str | None = _setting(
        str, None, "Language model for extraction, understand and choose."
    )
    embedding_model: str | None = _setting(str, None, "Embedding model at the endpoint.")
    embedding_dimensions: int | None = _setting(
        int, None, "Length of vector to ask the endpoint for; few models know it. Else the model's."
    )
    rerank_model: str | None = _setting(
        str, None, "Reranking model that chooses in place of chat_model."
    )
    api_key_env: str = _setting(
        str, "OPENAI_API_KEY", "Name of the environment variable that holds the key."
    )
    embedding_api_key_env: str | None = _setting(
        str, None, "Name of the variable with the key for embeddings, if not api_key_env."
    )
    rerank_api_key_env: str | None = _setting(
        str, None, "Name of the variable with the key for reranking, if not api_key_env."
    )
    model_concurrency: int = _setting(int, 8, "Requests of one kind that run at once.")
    model_timeout: float = _setting(
        float, 60.0, "Seconds that one request may take.", minimum=0.001
    )
    model_retries: int | None = _setting(
        int,
        None,
        "Further tries where an endpoint is busy, fails or stays silent. Else"
        f" {DEFAULT_RETRIES}, and {DEFAULT_INTERACTIVE_RETRIES} while somebody waits.",
        minimum=0,
    )
    max_tokens: int | None = _setting(
        int,
        None,
        "Tokens that one run may use, in questions and answers; requests on their way then"
        " still end.",
    )
    max_requests: int | None = _setting(
        int, None, "Requests that one run may send, further tries included."
    )
    embedding_batch: int = _setting(int, 64, "Texts in one request for embeddings.")
    embedding_max_characters: int = _setting(
        int, 8000, "Characters at which a text is cut before it is embedded."
    )

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> "ModelSettings":
        """Read the settings.

        Args:
            environ: The environment; None for the process's own. A variable that is set to
                nothing counts as unset.
            overrides: Values by the names in `SETTINGS`, as options give them; None counts as
                not given.

        Raises:
            ConfigurationError: A value does not fit. The message names the variable or option.
        """
        environ = os.environ if environ is None else environ
        unknown = overrides.keys() - {setting.name for setting in SETTINGS}
        if unknown:
            raise TypeError(f"No such setting: {', '.join(sorted(unknown))}")
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            given = overrides.get(setting.name)
            if given is not None:
                values[setting.name] = setting.parse(given, setting.option)
                continue
            variable = next((name for name in setting.variables if environ.get(name)), None)
            if variable is not None:
                values[setting.name] = setting.parse(environ[variable], variable)
        return cls(**values)

    def url_of(self, kind: EndpointKind) -> str:
        """The base URL of an endpoint. It can hold a password: show `redact_url` of it."""
        own = {"embedding": self.embedding_base_url, "rerank": self.rerank_base_url}.get(kind)
        return own or self.base_url

    def key_variable_of(self, kind: EndpointKind) -> str:
        """The name of the environment variable that holds the key of an endpoint."""
        own = {"embedding": self.embedding_api_key_env, "rerank": self.rerank_api_key_env}.get(kind)
        return own or self.api_key_env

    def shown(self) -> dict[str, SettingValue]:
        """All values by name, fit to be printed: URLs without user and password."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {
            name: redact_url(value) if name.endswith("base_url") and value else value
            for name, value in values.items()
        }


SETTINGS: Final[tuple[Setting, ...]] = tuple(
    Setting(name=entry.name, default=cast(SettingValue, entry.default), **entry.metadata)
    for entry in fields(ModelSettings)
)


def redact_url(url: str) -> str:
    """Write a URL without user, password and query, which can hold secrets."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _checked_url(url: str, source: str) -> str:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    # A port that is no number, or a bracket without its pair.
    except ValueError:
        sound = False
    if not sound or not url.isprintable() or " " in url:
        raise ConfigurationError(
            f"{source} is not the URL of an endpoint.",
            "Write http://HOST:PORT/v1 or https://HOST/v1, special characters as %XX.",
        )
    return url.rstrip("/")
