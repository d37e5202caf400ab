"""The command that runs the model gateway."""

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from sag_pg import database
from sag_pg.cli.application import Application, Connection, pass_application
from sag_pg.cli.gateway import installed_options
from sag_pg.cli.options import embedding_option, load_embedding, model_options
from sag_pg.errors import ConfigurationError
from sag_pg.gateway import DEFAULT_PORT
from sag_pg.gateway.limits import Limits
from sag_pg.models.base import AsyncEmbeddingModel, EmbeddingModel
from sag_pg.models.budget import Usage
from sag_pg.models.settings import ModelSettings

if TYPE_CHECKING:
    from sag_pg.gateway.calls import Models
    from sag_pg.gateway.listening import Listening
    from sag_pg.gateway.secret import DatabasePassword
    from sag_pg.gateway.server import GatewayServer

Command = TypeVar("Command", bound=Callable[..., Any])

_MEBIBYTE = 1024 * 1024
_DEFAULTS = Limits()


def _limit_option(name: str, **attributes: Any) -> Callable[[Command], Command]:
    """An option that the environment can give too, for a gateway whose command line is fixed."""
    variable = "SAG_PG_SERVE" + name.removeprefix("-").upper().replace("-", "_")
    return click.option(name, envvar=variable, show_envvar=True, show_default=True, **attributes)


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Address to listen on; an empty one for none. Others than this machine's own need"
    " --tls-cert or --insecure.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 takes any free one.",
)
@click.option(
    "--socket-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Listen on a Unix socket in this directory too.",
)
@click.option(
    "--tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Certificate in PEM format, with those between it and the root.",
)
@click.option(
    "--tls-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Key of the certificate, in PEM format and without a passphrase.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Let other machines connect without encryption: nobody can listen in on this network.",
)
@embedding_option
@_limit_option(
    "--max-connections",
    type=click.IntRange(min=1),
    default=_DEFAULTS.max_connections,
    help="Connections at once. A database session that uses models keeps one.",
)
@_limit_option(
    "--max-calls",
    type=click.IntRange(min=1),
    default=_DEFAULTS.max_calls,
    help="Embedding calls at once, and as many calls of language models.",
)
@_limit_option(
    "--max-queue",
    type=click.IntRange(min=0),
    default=_DEFAULTS.max_queue,
    help="Calls of each kind that wait for their turn.",
)
@_limit_option(
    "--max-request-size",
    type=click.IntRange(min=1024),
    default=_DEFAULTS.max_request_bytes,
    metavar="BYTES",
    help="Longest request.",
)
@_limit_option(
    "--call-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=_DEFAULTS.call_seconds,
    metavar="SECONDS",
    help="Longest time for one call, waiting included; gateway_timeout goes before it if shorter.",
)
@_limit_option(
    "--cache-size",
    type=click.IntRange(min=0),
    default=_DEFAULTS.cache_bytes // _MEBIBYTE,
    metavar="MIB",
    help="Memory for answers of the models.",
)
@model_options
@pass_application
def serve(
    application: Application,
    host: str,
    port: int,
    socket_dir: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    embedding: str,
    max_connections: int,
    max_calls: int,
    max_queue: int,
    max_request_size: int,
    call_timeout: float,
    cache_size: int,
    settings: ModelSettings,
) -> None:
    """Run the gateway, by which the database asks models.

    The database calls it as sag-pg gateway install has told it; both keep one password, which is
    made there and read from the database here. SIGTERM and SIGINT end it once the calls that run
    have ended. The log goes to standard error, one JSON object a line, without questions,
    answers, keys and passwords.
    """
    if importlib.util.find_spec("pygwire") is None or importlib.util.find_spec("scramp") is None:
        raise ConfigurationError(
            "The gateway's packages are not installed.", "Run pip install 'sag-pg[gateway]'."
        )
    from sag_pg.gateway import log
    from sag_pg.gateway.secret import DatabasePassword
    from sag_pg.gateway.server import GatewayServer

    listening = _listening(host, port, socket_dir, tls_cert, tls_key, insecure)
    listening.check()
    usage = Usage(settings.max_tokens, settings.max_requests)
    with application.connect_ready() as connection:
        # Says what to do where the gateway is not installed, or is another role's.
        connection.execute("SELECT FROM sag.gateway_secret()")
        model = load_embedding(embedding, settings, usage, interactive=True)
        log.configure(sys.stderr)
        _warn_of_address(connection, listening)
        models = _models(model, _dimensions(connection, model, settings), settings, usage)
    password = DatabasePassword(database.conninfo(application.target))
    server = GatewayServer(
        models,
        password,
        listening,
        Limits(
            max_connections=max_connections,
            max_calls=max_calls,
            max_queue=max_queue,
            max_request_bytes=max_request_size,
            call_seconds=call_timeout,
            cache_bytes=cache_size * _MEBIBYTE,
        ),
        usage,
    )
    asyncio.run(_run(server, password))


async def _run(server: "GatewayServer", password: "DatabasePassword") -> None:
    try:
        await server.run()
    finally:
        await password.close()


def _listening(
    host: str,
    port: int,
    socket_dir: Path | None,
    certificate: Path | None,
    key: Path | None,
    is_insecure: bool,
) -> "Listening":
    from sag_pg.gateway.listening import Listening, load_tls

    if (certificate is None) != (key is None):
        raise ConfigurationError("--tls-cert and --tls-key go together.", "Give both or none.")
    tls = load_tls(certificate, key) if certificate is not None and key is not None else None
    return Listening(host or None, port, socket_dir, tls, is_insecure)


def _warn_of_address(connection: Connection, listening: "Listening") -> None:
    """Warn where the database looks for its gateway elsewhere.

    Hosts are not compared: the same one has other names and numbers on the database's machine.
    """
    from sag_pg.gateway import log

    place = installed_options(connection)
    hosts, ports = (place.get(name, "").split(",") for name in ("host", "port"))
    is_port = str(listening.port) in ports
    if is_port and any(
        Path(host) == listening.socket_dir.absolute()
        if host.startswith("/") and listening.socket_dir is not None
        else not host.startswith("/") and listening.host is not None
        for host in hosts
    ):
        return
    log.warning(
        "address_misfit",
        message=f"the database looks for the gateway at {','.join(hosts)}, port"
        f" {','.join(ports)}, and this one is at {listening}",
        hint="Tell it by sag-pg gateway install, or start sag-pg serve with --host, --port and"
        " --socket-dir as it was told.",
    )


def _models(
    model: EmbeddingModel | None, dimensions: int | None, settings: ModelSettings, usage: Usage
) -> "Models":
    """Make the models. What takes long to load is loaded now, not at the first question."""
    from sag_pg.gateway.calls import Models
    from sag_pg.models.load import load_chooser, load_question_reader

    return Models(
        embedding=_awaitable(model) if model is not None else None,
        reader=load_question_reader(settings, usage),
        chooser=load_chooser(settings, usage),
        chat_model=settings.chat_model,
        rerank_model=settings.rerank_model,
        dimensions=dimensions,
    )


def _awaitable(model: EmbeddingModel) -> AsyncEmbeddingModel:
    if _is_endpoint(model):
        return cast("AsyncEmbeddingModel", model)
    from sag_pg.models.threaded_embedding import ThreadedEmbedding

    model.embed_question("ready?")
    return ThreadedEmbedding(model)


def _is_endpoint(model: EmbeddingModel) -> bool:
    # One of an endpoint is awaitable by itself.
    return hasattr(model, "embed_questions_async")


def _dimensions(
    connection: Connection, model: EmbeddingModel | None, settings: ModelSettings
) -> int | None:
    """The length of the embeddings; None where only the endpoint knows, which may be away.

    Warns where the database holds vectors that those of this model cannot be compared with.
    """
    from sag_pg.gateway import log

    if model is None:
        return None
    known = settings.embedding_dimensions if _is_endpoint(model) else model.dimensions
    space = connection.execute("SELECT model, dimensions FROM sag.embedding_space").fetchone()
    if space is None:
        return known
    name, dimensions = space
    if name == model.name and known in (None, dimensions):
        return int(dimensions)
    length = "" if known is None else f" with {known} dimensions"
    log.warning(
        "embedding_model_misfit",
        message=f"the database holds vectors of model {name} with {dimensions} dimensions, which"
        f" those of {model.name}{length} cannot be compared with",
        hint="Start sag-pg serve with the model that made them, by --embedding.",
    )
    return known
