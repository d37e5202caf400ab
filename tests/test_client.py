"""The client: who embeds its questions, and what it tells the database of that."""

import warnings
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from sag_pg import config, migrate
from sag_pg.client import Client, connect
from sag_pg.ingest.document import text_document
from sag_pg.models.local_extraction import load_extractor
from sag_pg.models.openai_extraction import ENTITY_TYPES

QUESTION = "Who bought Beta Ltd?"


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with migrate.connect_migrated(config.resolve(database_url, None)) as connection:
        Client(connection).ingest(
            [text_document("a", "Alpha Corp bought Beta Ltd.", title="Alpha Corp")],
            extractor=load_extractor("rules"),
        )
        yield connection


@pytest.fixture
def notices(connection: psycopg.Connection[Any]) -> list[str]:
    said: list[str] = []
    connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    return said


def test_without_a_model_no_gateway_is_asked(
    connection: psycopg.Connection[Any], notices: list[str]
) -> None:
    client = Client(connection)
    connection.execute("SELECT sag.set_parameter('understand', '\"model\"')")
    (evidence,) = client.retrieve(QUESTION)
    assert evidence.mode == "lexical"
    assert client.trace(QUESTION)[0].mode == "lexical"
    assert notices == []
    # What the call says goes before.
    (evidence,) = client.retrieve(QUESTION, options={"understand": "model"})
    assert evidence.mode != "lexical"
    assert notices


def test_with_the_gateway_the_database_decides(
    connection: psycopg.Connection[Any], notices: list[str]
) -> None:
    client = Client(connection, gateway=True)
    connection.execute("SELECT sag.set_parameter('understand', '\"model\"')")
    (evidence,) = client.retrieve(QUESTION)
    assert evidence.mode.startswith("lexical")
    assert notices, "there is no gateway, which the database says"
    notices.clear()
    (evidence,) = client.retrieve(QUESTION, options={"understand": "sql"})
    assert (evidence.mode, notices) == ("lexical", [])


def test_without_a_gateway_its_calls_say_so(connection: psycopg.Connection[Any]) -> None:
    client = Client(connection, gateway=True)
    assert client.gateway_status() == {"installed": False, "answering": False}
    with pytest.raises(psycopg.Error, match="gateway") as caught:
        client.sag_embed(QUESTION)
    assert caught.value.diag.message_hint


def test_two_sources_of_embeddings_exclude_each_other(
    connection: psycopg.Connection[Any],
) -> None:
    class Model:
        name = "small"
        dimensions = 3

    with pytest.raises(ValueError, match="gateway"):
        Client(connection, embedding_model=Model(), gateway=True)  # type: ignore[arg-type]


def test_connect(connection: psycopg.Connection[Any], database_url: str) -> None:
    for embedding in (None, "gateway"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with connect(database_url, embedding=embedding) as client:
                assert client.retrieve(QUESTION)[0].source == "a"


def test_entity_types(connection: psycopg.Connection[Any]) -> None:
    assert Client(connection).entity_types() == ENTITY_TYPES
    connection.execute("INSERT INTO sag.entity_type VALUES ('gene', 'Genes and proteins')")
    assert Client(connection).entity_types() == {**ENTITY_TYPES, "gene": "Genes and proteins"}
