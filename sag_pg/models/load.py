"""Makes the models that settings and options name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sag_pg.errors import ConfigurationError
from sag_pg.models.base import Chooser, EmbeddingModel, Extractor, QuestionReader
from sag_pg.models.budget import Usage
from sag_pg.models.settings import EndpointKind, ModelSettings

if TYPE_CHECKING:
    from sag_pg.models.endpoint import Endpoint

OPENAI: Final = "openai"


def load_embedding_model(
    spec: str = "local",
    settings: ModelSettings | None = None,
    usage: Usage | None = None,
    *,
    interactive: bool = False,
) -> EmbeddingModel:
    """Make the embedding model that a setting names.

    Args:
        spec: "local" for bge-small-en-v1.5 from its wheel, "fastembed:NAME", the directory of an
            ONNX model, "openai" for the endpoint's model that the settings name, or
            "openai:MODEL".
        settings: Where the endpoint is and what its limits are; None for the environment's.
        usage: Counts requests and tokens, and stops at a budget; None for a count of its own.
        interactive: Whether somebody waits for what is embedded, see `Endpoint`.

    Returns:
        The model. An endpoint's is an `AsyncEmbeddingModel` too.

    Raises:
        ConfigurationError: The spec names nothing that exists, or a setting is missing.
        ModelError: A package that the model needs is not installed.
    """
    if not _is_openai(spec):
        from sag_pg.models import local_embedding

        return local_embedding.load_embedding_model(spec)
    settings = settings or ModelSettings.from_environment()
    model = _model_name(spec, settings.embedding_model, "embedding_model")
    from sag_pg.models.openai_embedding import OpenAIEmbedding

    endpoint = _endpoint(settings, "embedding", usage, interactive=interactive)
    return OpenAIEmbedding(endpoint, model)


def load_extractor(
    spec: str = "local",
    settings: ModelSettings | None = None,
    usage: Usage | None = None,
    entity_types: Mapping[str, str] | None = None,
) -> Extractor:
    """Make the extractor that a setting names.

    Args:
        spec: "local" for the installed local models, "rules" for rules alone, "openai" for the
            language model that the settings name, or "openai:MODEL".
        settings: As in `load_embedding_model`.
        usage: As in `load_embedding_model`.
        entity_types: The types that a language model may give entities, and what belongs to each,
            as `Client.entity_types` reads them; None for those of a new database.

    Raises:
        ConfigurationError: The spec names nothing that exists, or a setting is missing.
        ModelError: A package that the model needs is not installed.
    """
    if not _is_openai(spec):
        from sag_pg.models import local_extraction

        return local_extraction.load_extractor(spec)
    settings = settings or ModelSettings.from_environment()
    model = _model_name(spec, settings.chat_model, "chat_model")
    from sag_pg.models.openai_extraction import ENTITY_TYPES, OpenAIExtractor

    endpoint = _endpoint(settings, "chat", usage)
    return OpenAIExtractor(endpoint, model, entity_types or ENTITY_TYPES)


def load_question_reader(
    settings: ModelSettings, usage: Usage | None = None
) -> QuestionReader | None:
    """Make what reads the entities off questions; None where no language model is set.

    Somebody waits for it, so that it soon gives up, see `Endpoint`.

    Raises:
        ConfigurationError: The key is missing.
        ModelError: The package openai is not installed.
    """
    if settings.chat_model is None:
        return None
    from sag_pg.models.openai_question import OpenAIQuestionReader

    endpoint = _endpoint(settings, "chat", usage, interactive=True)
    return OpenAIQuestionReader(endpoint, settings.chat_model)


def load_chooser(settings: ModelSettings, usage: Usage | None = None) -> Chooser | None:
    """Make what chooses among candidates: the reranker where one is set, else the language model.

    Somebody waits for it, so that it soon gives up, see `Endpoint`.

    Returns:
        None where neither is set.

    Raises:
        ConfigurationError: The key is missing.
        ModelError: The package openai is not installed.
    """
    if settings.rerank_model is None and settings.chat_model is None:
        return None
    if settings.rerank_model is not None:
        from sag_pg.models.openai_rerank import OpenAIRerank

        endpoint = _endpoint(settings, "rerank", usage, interactive=True)
        return OpenAIRerank(endpoint, settings.rerank_model)
    assert settings.chat_model is not None  # noqa: S101
    from sag_pg.models.openai_choice import OpenAIChooser

    endpoint = _endpoint(settings, "chat", usage, interactive=True)
    return OpenAIChooser(endpoint, settings.chat_model)


def _is_openai(spec: str) -> bool:
    return spec == OPENAI or spec.startswith(f"{OPENAI}:")


def _model_name(spec: str, setting: str | None, name: str) -> str:
    stated = spec.removeprefix(OPENAI).removeprefix(":").strip()
    if stated:
        if not stated.isprintable():
            raise ConfigurationError(
                f"The model's name {stated!r} has characters that cannot be shown.",
                "Was it pasted with line breaks?",
            )
        return stated
    if setting is None:
        variable = f"SAG_PG_{name.upper()}"
        raise ConfigurationError(
            "No model of the endpoint is named.",
            f"Say openai:MODEL, or set {variable} or --{name.replace('_', '-')}.",
        )
    return setting


def _endpoint(
    settings: ModelSettings, kind: EndpointKind, usage: Usage | None, *, interactive: bool = False
) -> "Endpoint":
    # Apart, because the package that it needs is an extra.
    from sag_pg.models.endpoint import Endpoint

    if usage is None:
        usage = Usage(max_tokens=settings.max_tokens, max_requests=settings.max_requests)
    return Endpoint(settings, kind, usage, interactive=interactive)
