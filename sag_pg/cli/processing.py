"""The options that say how documents are processed, for all commands that do it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sag_pg.cli.options import (
    embedding_option,
    extractor_option,
    ingest_model_options,
    load_embedding,
)

if TYPE_CHECKING:
    import psycopg

    from sag_pg.ingest.processing import Processing
    from sag_pg.models.budget import Usage
    from sag_pg.models.settings import ModelSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessingOptions:
    """What the options of `processing_options` say.

    Attributes:
        extractor: Spec of the extractor.
        embedding: Spec of the embedding model.
        chunk_size: Longest chunk; 0 makes each document one chunk.
        embed_entities: Whether to embed the entities' names.
        settings: Where endpoints are, and the budget.
    """

    extractor: str
    embedding: str
    chunk_size: int
    embed_entities: bool
    settings: ModelSettings

    def load(self, connection: psycopg.Connection[Any], usage: Usage) -> Processing:
        """Load the models.

        Args:
            connection: Knows the types that a language model may give entities.
            usage: Counts what the models are asked.

        Raises:
            ConfigurationError: There is no such model.
            ModelError: A model is not installed.
        """
        from sag_pg.client import Client
        from sag_pg.ingest.processing import Processing
        from sag_pg.models.load import load_extractor

        model = load_embedding(self.embedding, self.settings, usage)
        types = Client(connection).entity_types()
        extractor = load_extractor(self.extractor, self.settings, usage, types)
        return Processing(extractor, model, self.chunk_size or None, self.embed_entities)

    def arguments(self) -> list[str]:
        """The same options as arguments, for another process; without the settings."""
        return [
            *("--extractor", self.extractor),
            *("--embedding", self.embedding),
            *("--chunk-size", str(self.chunk_size)),
            *(["--embed-entities"] if self.embed_entities else []),
        ]


def processing_options(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command `processing: ProcessingOptions`."""

    @functools.wraps(command)
    def with_processing(
        *args: Any,
        extractor: str,
        embedding: str,
        chunk_size: int,
        embed_entities: bool,
        settings: ModelSettings,
        **kwargs: Any,
    ) -> T:
        processing = ProcessingOptions(extractor, embedding, chunk_size, embed_entities, settings)
        return command(*args, processing=processing, **kwargs)

    for decorate in reversed(
        (
            embedding_option,
            extractor_option,
            click.option(
                "--chunk-size",
                type=click.IntRange(min=0),
                default=1200,
                show_default=True,
                metavar="CHARACTERS",
                help="Longest chunk; 0 makes each document one chunk.",
            ),
            click.option(
                "--embed-entities",
                is_flag=True,
                help="Embed the entities' names too, so that names link to their neighbours by"
                " vector.",
            ),
            ingest_model_options,
        )
    ):
        with_processing = decorate(with_processing)
    return with_processing
