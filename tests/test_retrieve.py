"""sag_retrieve, sag_trace and sag_search, as their users call them."""

import math
import random
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from conftest import Server
from corpus import (
    Chunk,
    Document,
    Entity,
    assert_counts_exact,
    column,
    entity_ids,
    event_ids,
    fresh_database,
    literal,
    merge,
    passage,
    value,
)
from psycopg import errors, sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from sag_pg import embedded, migrate

Connection = psycopg.Connection[Any]

QUESTION = "Where was the founder of Acme Corporation born?"
# A rough space: founding, birth, everything else.
VECTOR = [0.7, 0.7, 0.1]

DOCUMENTS = [
    passage(
        "acme",
        "Acme Corporation was founded in 1999 by Alice Smith.",
        "Alice Smith",
        "1999",
        about="Acme Corporation",
        embedding=[1, 0.1, 0],
        lang="en",
        year=2020,
    ),
    passage(
        "alice",
        "Alice Smith was born in Lisbon and studied physics.",
        "Lisbon",
        about="Alice Smith",
        embedding=[0, 0.3, 1],
        lang="en",
        year=2021,
    ),
    passage(
        "lisbon",
        "Lisbon is the capital of Portugal.",
        "Portugal",
        about="Lisbon",
        embedding=[0, 0, 1],
        lang="pt",
        year=2021,
    ),
    passage(
        "globex",
        "Globex makes cars and trains.",
        about="Globex",
        embedding=[0.3, 0, 1],
        lang="de",
        year=2019,
    ),
    *[
        passage(
            f"filler {no}",
            f"Report number {no} about weather.",
            about=f"Report {no}",
            embedding=[0.1, 0.1 * no, 1],
            lang="de",
            year=2000 + no,
        )
        for no in range(8)
    ],
]


@pytest.fixture(scope="module")
def loaded(postgresql_noproc: Any) -> Iterator[Connection]:
    """A small corpus with vectors in `default`, the same without in `plain`, and `void`."""
    with fresh_database(postgresql_noproc, "sag_retrieve") as connection:
        connection.execute("SELECT sag.set_embedding_space('tiny', 3)")
        for name in ("plain", "void"):
            connection.execute("SELECT sag.create_collection(%s)", (name,))
        merge(connection, DOCUMENTS)
        merge(
            connection,
            [
                Document(
                    d.source, [Chunk(c.content, c.entities, c.title) for c in d.chunks], d.title
                )
                for d in DOCUMENTS
            ],
            "plain",
        )
        connection.commit()
        yield connection


@pytest.fixture
def corpus(loaded: Connection) -> Iterator[Connection]:
    """`loaded`, in a transaction that nobody sees."""
    try:
        yield loaded
    finally:
        loaded.rollback()


def run(connection: Connection, function: str, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    if isinstance(kwargs.get("options"), dict):
        kwargs["options"] = Jsonb(kwargs["options"])
    if isinstance(kwargs.get("embedding"), list):
        kwargs["embedding"] = literal(kwargs["embedding"])
    placed = [sql.Placeholder()] * len(args)
    named = [sql.SQL("{} => {}").format(sql.Identifier(k), sql.Placeholder()) for k in kwargs]
    query = sql.SQL("SELECT * FROM public.{}({})").format(
        sql.Identifier(function), sql.SQL(", ").join([*placed, *named])
    )
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, [*args, *kwargs.values()]).fetchall()


def retrieve(connection: Connection, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    return run(connection, "sag_retrieve", *args, **kwargs)


def trace(connection: Connection, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    return run(connection, "sag_trace", *args, **kwargs)


def search(connection: Connection, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    return run(connection, "sag_search", *args, **kwargs)


def sources(rows: list[dict[str, Any]]) -> list[str]:
    return [row["source"] for row in rows]


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "elapsed_ms"} for row in rows]


# What it returns.


@pytest.mark.parametrize("vector", [None, VECTOR])
def test_evidence_of_two_hops_comes_with_its_provenance(
    corpus: Connection, vector: list[float] | None
) -> None:
    rows = retrieve(corpus, QUESTION, embedding=vector)
    assert {"acme", "alice"} == set(sources(rows)[:2])
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    assert len({row["chunk_id"] for row in rows}) == len(rows) <= 10
    assert {row["mode"] for row in rows} == {"lexical (no gateway)" if vector is None else "vector"}
    (alice,) = (row for row in rows if row["source"] == "alice")
    assert alice["title"] == "Alice Smith"
    assert alice["content"] == "Alice Smith was born in Lisbon and studied physics."
    assert (alice["start_offset"], alice["end_offset"]) == (0, len(alice["content"]))
    assert alice["metadata"] == {"lang": "en", "year": 2021}
    assert alice["heading_path"] == []
    assert "Alice Smith" in alice["via"]
    assert all(row["found_by"] in ("event", "direct", "both") for row in rows)


def test_hop_says_how_far_an_event_was_reached(corpus: Connection) -> None:
    options = {"seed_event_limit": 1, "event_similarity": 0.99}
    hops = {
        h: {
            row["source"]: row["hop"]
            for row in retrieve(
                corpus, QUESTION, embedding=[1, 0.1, 0], options=options | {"hops": h}
            )
        }
        for h in range(4)
    }
    assert hops[0] == {"acme": 0}
    assert hops[1] == {"acme": 0, "alice": 1}
    assert hops[2] == hops[3] == {"acme": 0, "alice": 1, "lisbon": 2}
    (lisbon,) = (
        row
        for row in retrieve(corpus, QUESTION, embedding=[1, 0.1, 0], options=options | {"hops": 2})
        if row["source"] == "lisbon"
    )
    assert lisbon["via"][-3:] == ["Acme Corporation", "Alice Smith", "Lisbon"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"embedding": VECTOR},
        {"embedding": VECTOR, "options": {"ranking": "similarity", "hops": 2, "output_limit": 3}},
        {"embedding": VECTOR, "filter": "$.year > 2019"},
        {"collection": "plain", "embedding": VECTOR},
        {"collection": "void"},
        {"entities": ["Globex", "Lisbn"], "options": {"event_limit": 1, "direct_chunk_limit": 0}},
    ],
)
def test_last_stage_of_a_trace_is_the_result(corpus: Connection, arguments: dict[str, Any]) -> None:
    rows = retrieve(corpus, QUESTION, **arguments)
    traced = trace(corpus, QUESTION, **arguments)
    last = [row for row in traced if row["stage"] == "merge_chunks" and row["rank"] > 0]
    keys = {"rank": "rank", "chunk_id": "chunk_id", "source": "source", "score": "score"}
    keys |= {"hop": "hop", "method": "found_by", "mode": "mode"}
    assert [{k: row[k] for k in keys} for row in last] == [
        {k: row[v] for k, v in keys.items()} for row in rows
    ]
    assert [row["entity"] for row in last] == [" > ".join(row["via"]) or None for row in rows]
    # One row of rank 0 with a time for each stage, in the order of the pipeline.
    assert [row["stage"] for row in traced if row["rank"] == 0] == [
        "understand",
        "link_entities",
        "seed_events",
        "expand_events",
        "rank_events",
        "choose_events",
        "direct_chunks",
        "merge_chunks",
    ]
    assert all((row["elapsed_ms"] is not None) == (row["rank"] == 0) for row in traced)
    places = list(dict.fromkeys(row["stage"] for row in traced))
    order = [(places.index(row["stage"]), row["rank"]) for row in traced]
    assert order == sorted(order)


def test_trace_says_how_entities_were_linked(corpus: Connection) -> None:
    corpus.execute(
        "INSERT INTO sag.entity_alias (collection_id, entity_id, name)"
        " SELECT collection_id, entity_id, 'Motor Works' FROM sag.entity"
        " WHERE name = 'Globex' AND collection_id = sag.collection_key('default')"
    )
    rows = trace(
        corpus,
        "Is Acme Corporation near Portugol?",
        entities=["motor works", "Smith", "Reportt 3", None, "", " "],
    )
    understood = {row["name"]: row["method"] for row in rows if row["stage"] == "understand"}
    assert understood["acme corporation"] == "question"
    assert understood["motor works"] == understood["Smith"] == "caller"
    assert understood["portugol"] == "misspelt"
    linked = {row["entity"]: row["method"] for row in rows if row["stage"] == "link_entities"}
    assert linked.pop(None) is not None
    assert linked["Acme Corporation"] == "exact"
    assert linked["Globex"] == "alias"
    assert linked["Alice Smith"] == "words"
    assert linked["Portugal"] == "trigram"
    assert linked["Report 3"] == "trigram"


def test_limits_hold(corpus: Connection) -> None:
    for limit in (1, 3, 1000):
        rows = retrieve(
            corpus,
            QUESTION,
            embedding=VECTOR,
            options={"output_limit": limit, "event_similarity": 0},
        )
        assert len(rows) == min(limit, len(DOCUMENTS))
    options = {"event_limit": 0, "direct_chunk_limit": 2, "output_limit": 2}
    rows = retrieve(corpus, QUESTION, embedding=VECTOR, options=options)
    assert {row["found_by"] for row in rows} <= {"direct", "both"}


@pytest.mark.parametrize("vector", [None, VECTOR])
@pytest.mark.parametrize("ranking", ["evidence", "similarity"])
def test_filter_restricts_every_stage(
    corpus: Connection, vector: list[float] | None, ranking: str
) -> None:
    rows = trace(
        corpus,
        QUESTION + " report weather Lisbon",
        embedding=vector,
        entities=["Lisbon", "Globex"],
        filter='$.lang == "en" || $.year == 2003',
        options={"hops": 4, "ranking": ranking, "event_similarity": 0},
    )
    seen = {row["source"] for row in rows if row["source"] is not None}
    assert seen <= {"acme", "alice", "filler 3"}
    assert {"acme", "alice"} <= seen
    rows = trace(corpus, QUESTION, embedding=vector, filter='$.lang == "nowhere"')
    assert {row["source"] for row in rows} == {None}
    assert retrieve(corpus, QUESTION, embedding=vector, filter='$.lang == "nowhere"') == []


def test_budget_of_lexemes_does_not_starve_a_filter(postgresql: Connection) -> None:
    merge(
        postgresql,
        [
            *[passage(f"common {no}", "common text", lang="en") for no in range(20)],
            passage("wanted", "common text", lang="de"),
            passage("rare", "rare text", lang="en"),
        ],
    )
    rows = retrieve(
        postgresql,
        "common rare",
        filter='$.lang == "de"',
        options={"frontier_event_budget": 10},
    )
    assert sources(rows) == ["wanted"]


def test_event_with_a_text_of_its_own(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    merge(
        postgresql,
        [
            Document(
                "a",
                [
                    Chunk(
                        "He bought it in 2001.",
                        [Entity("Acme Corporation")],
                        "A deal",
                        "Bob bought Acme Corporation.",
                        [1, 0, 0],
                        [0, 1, 0],
                    )
                ],
            )
        ],
    )
    (row,) = retrieve(postgresql, "Who bought Acme Corporation?", embedding=[1, 0, 0])
    assert (row["event"], row["content"]) == (
        "Bob bought Acme Corporation.",
        "He bought it in 2001.",
    )
    assert row["found_by"] == "both"
    for question, found_by in (("2001", "direct"), ("Bob bought", "both")):
        (row,) = retrieve(postgresql, question)
        assert (row["source"], row["found_by"]) == ("a", found_by)


def test_chinese_evidence_of_two_hops(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.create_collection('zh', 'simple')")
    merge(
        postgresql,
        [
            passage("1", "2019年星辰科技完成了对蓝海数据的收购。", "星辰科技", "蓝海数据"),
            passage("2", "李明曾任星辰科技的首席技术官。", "李明", "星辰科技"),
            passage("3", "李明后来加入了长城项目。", "李明", "长城项目"),
            passage("4", "天气很好。", "天气"),
        ],
        "zh",
    )
    question = "收购蓝海数据的那家公司的首席技术官后来加入了哪个项目"
    assert set(sources(retrieve(postgresql, question, "zh"))[:3]) == {"1", "2", "3"}


# How it can be called.


def test_in_a_read_only_transaction(corpus: Connection) -> None:
    corpus.execute("SET TRANSACTION READ ONLY")
    assert retrieve(corpus, QUESTION, embedding=VECTOR)
    assert trace(corpus, QUESTION)
    assert search(corpus, QUESTION, embedding=VECTOR)


@pytest.fixture
def roles(embedded_server: Server) -> Iterator[dict[str, str]]:
    """Login roles that are members of sag's group roles and nothing else."""
    names = {"sag_reader": "a reader", "sag_writer": "a writer"}
    with psycopg.connect(embedded_server.url("postgres"), autocommit=True) as connection:
        for group, name in names.items():
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}").format(
                    sql.Identifier(name), sql.Identifier(group)
                )
            )
        yield names
        for name in names.values():
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_member_of_sag_reader_retrieves_and_writes_nothing(
    loaded: Connection, embedded_server: Server, roles: dict[str, str]
) -> None:
    url = embedded_server.url(loaded.info.dbname, user=roles["sag_reader"])
    with psycopg.connect(url, autocommit=True) as connection:
        # A fresh session, where pgvector's library is not loaded yet.
        assert sources(retrieve(connection, QUESTION))[0] in ("acme", "alice")
        assert retrieve(connection, QUESTION, embedding=VECTOR)
        assert trace(connection, QUESTION, embedding=VECTOR)
        assert search(connection, QUESTION, embedding=VECTOR)
        for statement in (
            "SELECT sag.delete_documents('default', ARRAY['acme'])",
            "SELECT sag.drop_collection('plain')",
            "SELECT sag.set_parameter('hops', '2')",
            "SELECT sag.create_collection('mine')",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(statement.encode())
        with pytest.raises(errors.InsufficientPrivilege):
            merge(connection, [passage("new", "x")])


def test_member_of_sag_writer_ingests(
    postgresql: Connection, embedded_server: Server, roles: dict[str, str]
) -> None:
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    postgresql.commit()
    url = embedded_server.url(postgresql.info.dbname, user=roles["sag_writer"])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT sag.create_collection('mine')")
        assert set(merge(connection, DOCUMENTS, "mine").values()) == {"added"}
        assert merge(connection, [passage("acme", "new")], "mine") == {"acme": "replaced"}
        assert retrieve(connection, QUESTION, "mine", embedding=VECTOR)
        connection.execute("SELECT sag.delete_documents('mine', ARRAY['acme'])")
        connection.execute("SELECT sag.drop_collection('mine')")


@pytest.mark.parametrize("search_path", ["''", "pg_catalog", "pg_temp, public"])
def test_under_any_search_path(corpus: Connection, search_path: str) -> None:
    expected = retrieve(corpus, QUESTION, embedding=VECTOR)
    corpus.execute(f"SET LOCAL search_path = {search_path}".encode())
    vector = sql.SQL("SELECT * FROM public.sag_retrieve(%s, embedding => %s)")
    with corpus.cursor(row_factory=dict_row) as cursor:
        assert cursor.execute(vector, [QUESTION, literal(VECTOR)]).fetchall() == expected
    assert search(corpus, QUESTION, embedding=VECTOR)
    # The fixture's rollback takes it back.
    assert merge(corpus, [passage("new", "text", "Acme")]) == {"new": "added"}
    corpus.execute("SELECT sag.delete_documents('default', ARRAY['new'])")


def test_with_extensions_in_another_schema(
    empty_database_url: str, embedded_server: Server, roles: dict[str, str]
) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "the extensions"')
        for extension in ("vector", "pg_trgm"):
            connection.execute(f'CREATE EXTENSION {extension} SCHEMA "the extensions"'.encode())
        migrate.migrate(connection)
        connection.execute("SELECT sag.set_embedding_space('tiny', 3)")
        merge(connection, DOCUMENTS)
        expected = retrieve(connection, QUESTION, embedding=VECTOR)
        assert expected
        name = connection.info.dbname
    with psycopg.connect(
        embedded_server.url(name, user=roles["sag_reader"]), autocommit=True
    ) as connection:
        assert retrieve(connection, QUESTION, embedding=VECTOR) == expected
        assert search(connection, QUESTION, embedding=VECTOR)
        with pytest.raises(errors.UndefinedObject):
            retrieve(connection, QUESTION, "defualt")


SETTINGS = (
    "hnsw.ef_search",
    "hnsw.iterative_scan",
    "random_page_cost",
    "jit",
    "search_path",
    "pg_trgm.similarity_threshold",
)


def settings(connection: Connection) -> dict[str, str]:
    return {name: value(connection, "SELECT current_setting(%s)", name) for name in SETTINGS}


@pytest.mark.parametrize("scope", ["", "LOCAL", "SESSION"])
def test_leaves_no_settings_behind(corpus: Connection, scope: str) -> None:
    # Loads both libraries.
    corpus.execute("SELECT '[1]'::halfvec <=> '[1]', similarity('a', 'b')")
    if scope:
        for name, setting in (
            ("hnsw.ef_search", "77"),
            ("hnsw.iterative_scan", "strict_order"),
            ("random_page_cost", "3"),
            ("jit", "on"),
            ("pg_trgm.similarity_threshold", "0.4"),
        ):
            corpus.execute(f"SET {scope} {name} = {setting}".encode())
    before = settings(corpus)
    for vector in (None, VECTOR):
        retrieve(corpus, QUESTION, embedding=vector)
        trace(corpus, QUESTION, embedding=vector)
        assert settings(corpus) == before
    search(corpus, QUESTION, embedding=VECTOR)
    column(corpus, "SELECT sag.nearest_events(%s)", literal(VECTOR))
    assert settings(corpus) == before
    # Nor does a call that fails.
    with pytest.raises(errors.InvalidParameterValue), corpus.transaction():
        retrieve(corpus, QUESTION, options={"hops": 99})
    assert settings(corpus) == before


def test_leaves_no_settings_behind_in_a_fresh_session(
    loaded: Connection, embedded_server: Server
) -> None:
    with psycopg.connect(embedded_server.url(loaded.info.dbname)) as connection:
        retrieve(connection, QUESTION, embedding=VECTOR)
        connection.commit()
        assert settings(connection)["hnsw.ef_search"] == "40"
        assert settings(connection)["hnsw.iterative_scan"] == "off"


@pytest.mark.parametrize("vector", [None, VECTOR])
def test_both_kinds_of_plan_give_the_same(corpus: Connection, vector: list[float] | None) -> None:
    results = []
    for mode in ("force_custom_plan", "force_generic_plan", "auto"):
        corpus.execute(f"SET LOCAL plan_cache_mode = {mode}".encode())
        for _ in range(7 if mode == "auto" else 1):
            results.append(
                without_times(
                    trace(
                        corpus,
                        QUESTION,
                        embedding=vector,
                        filter="$.year > 2001",
                        options={"hops": 2},
                    )
                )
            )
    assert all(result == results[0] for result in results)


def test_after_dump_and_restore(
    loaded: Connection, embedded_server: Server, empty_database_url: str
) -> None:
    expected = retrieve(loaded, QUESTION, embedding=VECTOR)
    loaded.rollback()
    dump = subprocess.run(
        [embedded.bin_dir() / "pg_dump", "-d", embedded_server.url(loaded.info.dbname)],
        capture_output=True,
        timeout=60,
        check=True,
    )
    restore = subprocess.run(
        [
            embedded.bin_dir() / "psql",
            *("-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-d", empty_database_url),
        ],
        input=dump.stdout,
        capture_output=True,
        timeout=60,
    )
    assert (restore.returncode, restore.stderr) == (0, b"")
    indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'sag'"
    with psycopg.connect(empty_database_url) as connection:
        migrate.check(connection)
        assert retrieve(connection, QUESTION, embedding=VECTOR) == expected
        assert value(connection, indexes) == value(loaded, indexes)
        assert merge(connection, [passage("new", "x", "Acme Corporation")]) == {"new": "added"}
        assert_counts_exact(connection)


def test_in_parallel_workers(corpus: Connection) -> None:
    expected = retrieve(corpus, QUESTION, embedding=VECTOR, options={"hops": 2})
    lexical = retrieve(corpus, QUESTION)
    # Wherever a plan may run in a worker, it does.
    corpus.execute("SET LOCAL debug_parallel_query = on")
    corpus.execute("SET LOCAL plan_cache_mode = force_custom_plan")
    assert retrieve(corpus, QUESTION, embedding=VECTOR, options={"hops": 2}) == expected
    assert retrieve(corpus, QUESTION) == lexical


def test_without_prepared_statements(loaded: Connection, embedded_server: Server) -> None:
    """As through a pooler that lends the session for one transaction."""
    expected = retrieve(loaded, QUESTION, embedding=VECTOR)
    loaded.rollback()
    with psycopg.connect(
        embedded_server.url(loaded.info.dbname), autocommit=True, prepare_threshold=None
    ) as connection:
        for binary in (False, True):
            with connection.cursor(row_factory=dict_row, binary=binary) as cursor:
                rows = cursor.execute(
                    "SELECT * FROM sag_retrieve(%s, embedding => %s::text::halfvec)",
                    (QUESTION, literal(VECTOR)),
                ).fetchall()
                assert rows == expected
        assert column(connection, "SELECT name FROM pg_prepared_statements") == []
        assert column(connection, "SELECT relname FROM pg_class WHERE relpersistence = 't'") == []


def test_in_the_minute_after_a_bulk_load(postgresql: Connection) -> None:
    chance = random.Random(3)  # noqa: S311
    names = [f"Entity {no}" for no in range(400)]
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 8)")
    merge(
        postgresql,
        [
            passage(
                f"source {no}",
                " ".join(chance.choices(["alpha", "beta", "gamma", f"word{no}"], k=6)),
                *chance.sample(names, k=4),
                "Hub",
                embedding=[chance.gauss(0, 1) for _ in range(8)],
            )
            for no in range(2000)
        ],
    )
    assert (
        value(
            postgresql,
            "SELECT count(*) FROM pg_stats WHERE schemaname = 'sag' AND tablename = 'event'",
        )
        == 0
    )
    vector = [chance.gauss(0, 1) for _ in range(8)]
    for mode in ("force_custom_plan", "force_generic_plan"):
        postgresql.execute(f"SET plan_cache_mode = {mode}".encode())
        for embedding in (None, vector):
            started = time.monotonic()
            rows = retrieve(
                postgresql,
                "alpha beta of Entity 7 and Entity 11",
                embedding=embedding,
                options={"hops": 2},
            )
            assert len(rows) == 10
            assert time.monotonic() - started < 5
            traced = trace(
                postgresql,
                "alpha of Entity 7",
                embedding=embedding,
                options={"event_similarity": 0},
            )
            for stage in ("seed_events", "expand_events", "rank_events"):
                ranks = [row["rank"] for row in traced if row["stage"] == stage]
                assert ranks == list(range(len(ranks))), f"{stage} is not in the order of its ranks"
            direct = [row for row in traced if "direct" in (row["method"] or "")]
            assert sum(row["stage"] == "seed_events" for row in direct) == 60


# Bad input.


@pytest.mark.parametrize("question", ["", "   ", None])
def test_empty_question(corpus: Connection, question: str | None) -> None:
    for function in (retrieve, trace):
        with (
            pytest.raises(errors.InvalidParameterValue, match="question is empty"),
            corpus.transaction(),
        ):
            function(corpus, question)
    # An embedding is a question too.
    assert sources(retrieve(corpus, question, embedding=[1, 0.1, 0]))[0] == "acme"


@pytest.mark.parametrize(
    "question",
    [
        "?",
        "x",
        "what is the",
        "\t\n",
        "it's \"quoted\" 'twice'",
        "$$ $1 $tag$ %s %% {} \\ \\x00 \\' E'\\n'",
        "'; DROP TABLE sag.event; --",
        "a & b | !c <-> d :* (",
        "🎉🎉 👩‍👩‍👧 emoji",
        "\u202eשלום עולם\u202c مُحَمَّد",
        "e\u0301\u0301\u0301 Z̷͍̈́a̵l̶g̸o̷",
        "[a-z]+ (?=x) notepad++ c++ \\m\\M",
        "收购",
        "𠀀𠀁",
        "\x01\x1f\x7f",
    ],
)
@pytest.mark.parametrize("vector", [None, VECTOR])
def test_question_of_any_characters(
    corpus: Connection, question: str, vector: list[float] | None
) -> None:
    entities = [question, "Acme Corporation"]
    rows = retrieve(corpus, question, embedding=vector, entities=entities)
    assert "acme" in sources(rows)
    trace(corpus, question, embedding=vector)
    search(corpus, question, method="lexical")
    assert value(corpus, "SELECT count(*) FROM sag.event") == 2 * len(DOCUMENTS)


@pytest.mark.parametrize(
    "question",
    [
        "x" * 100_000,
        "acme founder " * 8_000,
        " ".join(f"w{no}" for no in range(17_000))[:100_000],
        "收购项目" * 25_000,
        "+" * 100_000,
        "' \\ " * 25_000,
    ],
)
@pytest.mark.parametrize("vector", [None, VECTOR])
def test_question_of_100_000_characters(
    corpus: Connection, question: str, vector: list[float] | None
) -> None:
    # Not a measurement: what grows with the square of the question takes hours.
    corpus.execute("SET LOCAL statement_timeout = '120s'")
    retrieve(corpus, question, embedding=vector, entities=[question])


def test_only_stop_words_find_nothing_without_an_embedding(corpus: Connection) -> None:
    assert retrieve(corpus, "what is the") == []
    assert search(corpus, "what is the", method="lexical") == []
    assert search(corpus, "", method="lexical") == []


@pytest.mark.parametrize("function", [retrieve, trace, search])
def test_vector_of_another_length(corpus: Connection, function: Any) -> None:
    with pytest.raises(errors.DataException, match="embedding has 2 dimensions") as caught:
        function(corpus, QUESTION, embedding=[1.0, 0.0])
    assert "have 3" in str(caught.value.diag.message_detail)
    assert "'tiny'" in str(caught.value.diag.message_hint)


@pytest.mark.parametrize("function", [retrieve, trace, search])
def test_vector_without_direction(corpus: Connection, function: Any) -> None:
    with pytest.raises(errors.DataException, match="zeros"):
        function(corpus, QUESTION, embedding=[0.0, 0.0, 0.0])


@pytest.mark.parametrize("text", ["[NaN,0,0]", "[Infinity,0,0]", "[1e9,0,0]", "[]", "1,2,3"])
def test_what_is_no_vector(corpus: Connection, text: str) -> None:
    with pytest.raises(errors.DataError):
        retrieve(corpus, QUESTION, embedding=text)


@pytest.mark.parametrize("function", [retrieve, trace, search])
def test_unknown_collection(corpus: Connection, function: Any) -> None:
    with pytest.raises(errors.UndefinedObject, match="'defualt' does not exist") as caught:
        function(corpus, QUESTION, "defualt", embedding=VECTOR)
    assert "'default'" in str(caught.value.diag.message_detail)
    assert "create_collection" in str(caught.value.diag.message_hint)


def test_collection_null(corpus: Connection) -> None:
    with pytest.raises(errors.UndefinedObject, match="NULL"):
        retrieve(corpus, QUESTION, None)


def test_unknown_option(corpus: Connection) -> None:
    with pytest.raises(errors.Error, match="'hop' does not exist") as caught:
        retrieve(corpus, QUESTION, options={"hop": 2})
    assert "'hops'" in str(caught.value.diag.message_hint)
    assert "output_limit" in str(caught.value.diag.message_detail)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"hops": 5}, "from 0 to 4"),
        ({"hops": -1}, "from 0 to 4"),
        ({"hops": 1.5}, "whole number"),
        ({"hops": "2"}, "whole number"),
        ({"hops": None}, "whole number"),
        ({"hops": [1]}, "whole number"),
        ({"hops": True}, "whole number"),
        ({"hops": 10**400}, "whole number"),
        ({"event_similarity": 1.01}, "from 0 to 1"),
        ({"event_similarity": "NaN"}, "from 0 to 1"),
        ({"bridge_weight": "Infinity"}, "from 0 to 10"),
        ({"ranking": "best"}, "evidence, similarity"),
        ({"ranking": 1}, "evidence, similarity"),
        ({"choose": "best"}, "rank, model"),
        ({"understand": "magic"}, "sql, embedding, model"),
        ({"gateway_timeout": 100}, "from 2000"),
        ({"strict": "yes"}, "true or false"),
        ({"strict": 1}, "true or false"),
        ({"hops": 1, "output_limit": 0}, "from 1 to 1000"),
    ],
)
def test_option_that_does_not_fit(corpus: Connection, options: dict[str, Any], hint: str) -> None:
    with pytest.raises(errors.InvalidParameterValue) as caught:
        retrieve(corpus, QUESTION, options=options)
    assert hint in str(caught.value.diag.message_hint)
    assert caught.value.diag.message_detail


@pytest.mark.parametrize("options", [[], [1], "x", 1, True, None])
def test_options_that_are_no_object(corpus: Connection, options: Any) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="options are a JSON"):
        retrieve(corpus, QUESTION, options=Jsonb(options))


def test_whole_numbers_may_be_written_with_a_fraction(corpus: Connection) -> None:
    text = '{"output_limit": 2.0, "hops": 1e0, "event_similarity": 0}'
    assert len(retrieve(corpus, QUESTION, embedding=VECTOR, options=text)) == 2
    # No options at all are no override.
    assert retrieve(corpus, QUESTION, options=None) == retrieve(corpus, QUESTION)


@pytest.mark.parametrize("filter_", ["$.a ==", "lang = 'en'", "$[", ""])
def test_filter_that_does_not_parse(corpus: Connection, filter_: str) -> None:
    with pytest.raises((errors.SyntaxError, errors.InvalidTextRepresentation)):
        retrieve(corpus, QUESTION, filter=filter_)


def test_entities_of_the_caller(corpus: Connection) -> None:
    assert "globex" not in sources(retrieve(corpus, QUESTION))
    entities = [None, "", "  ", "GLOBEX", "Globex's", "x" * 10_000, "!!!"]
    assert "globex" in sources(retrieve(corpus, QUESTION, entities=entities))
    assert retrieve(corpus, QUESTION, entities=[]) == retrieve(corpus, QUESTION)
    assert retrieve(corpus, QUESTION, entities=[None, ""]) == retrieve(corpus, QUESTION)
    rows = retrieve(
        corpus,
        QUESTION,
        entities=["Globex"],
        entity_embeddings='{"[1,0,0]",NULL,"[0,1,0]"}',
    )
    assert "globex" in sources(rows)


def test_entity_embedding_of_another_length(corpus: Connection) -> None:
    with pytest.raises(errors.DataException, match="embedding has 2 dimensions"):
        retrieve(corpus, QUESTION, entities=["Globex"], entity_embeddings='{"[1,0]"}')


def test_collection_without_embeddings_says_so(corpus: Connection) -> None:
    notices: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        notices.append(f"{diagnostic.severity}: {diagnostic.message_primary}")

    corpus.add_notice_handler(note)
    try:
        rows = retrieve(corpus, QUESTION, "plain", embedding=VECTOR)
    finally:
        corpus.remove_notice_handler(note)
    assert {row["mode"] for row in rows} == {"lexical (collection without embeddings)"}
    assert notices == ["WARNING: collection 'plain' holds no embeddings; its lexemes are searched"]
    plain = retrieve(corpus, QUESTION, "plain")
    assert sources(rows) == sources(plain)
    assert {row["mode"] for row in plain} == {"lexical"}
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="no embeddings"):
        retrieve(corpus, QUESTION, "plain", embedding=VECTOR, options={"strict": True})


def test_strict_takes_no_offence_where_nothing_falls_back(corpus: Connection) -> None:
    for arguments in ({"embedding": VECTOR}, {"collection": "plain"}):
        assert retrieve(corpus, QUESTION, options={"strict": True}, **arguments) == retrieve(
            corpus, QUESTION, **arguments
        )
    # Nor where words alone are what is asked for.
    options = {"strict": True, "understand": "sql"}
    assert {row["mode"] for row in retrieve(corpus, QUESTION, options=options)} == {"lexical"}
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="no model gateway") as caught:
        retrieve(corpus, QUESTION, options={"strict": True})
    assert "gateway install" in str(caught.value.diag.message_hint)


def test_empty_collection(corpus: Connection) -> None:
    for vector in (None, VECTOR):
        assert retrieve(corpus, QUESTION, "void", embedding=vector) == []
        assert search(corpus, QUESTION, "void", embedding=[1, 0, 0]) == []


# sag_search


def test_search_methods(corpus: Connection) -> None:
    question = "who founded Acme Corporation"
    near = [1.0, 0.1, 0.0]
    by_vector = search(corpus, question, method="vector", embedding=near)
    assert by_vector[0]["source"] == "acme"
    assert by_vector[0]["score"] == pytest.approx(1, abs=1e-3)
    assert len(by_vector) == 10
    by_lexemes = search(corpus, question, method="lexical")
    assert sources(by_lexemes) == ["acme"]
    hybrid = search(corpus, question, embedding=near, result_limit=3)
    assert hybrid[0]["source"] == "acme"
    assert hybrid[0]["score"] == pytest.approx(2 / 61)
    assert hybrid[1]["score"] == pytest.approx(1 / 62)
    assert [row["rank"] for row in hybrid] == [1, 2, 3]
    filtered = search(corpus, question, embedding=near, filter='$.lang == "de"')
    assert {source.split()[0] for source in sources(filtered)} == {"globex", "filler"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic", "embedding": VECTOR}, "'magic' does not exist"),
        ({"method": "", "embedding": VECTOR}, "'' does not exist"),
        ({"method": "lexical", "result_limit": -1}, "result_limit cannot be -1"),
        ({"method": "vector"}, "needs an embedding"),
    ],
)
def test_search_that_cannot_be(corpus: Connection, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match=message) as caught:
        search(corpus, QUESTION, **arguments)
    assert caught.value.diag.message_hint


# Collections, parameters and the embedding space.


def test_create_collection(postgresql: Connection) -> None:
    create = "SELECT sag.create_collection(%s, %s)"
    created = value(postgresql, create, "papers", "german")
    assert value(postgresql, create, "papers", "simple") == created
    assert value(postgresql, create, "it's $$ \\ 收购 🎉", "pg_catalog.simple") != created
    assert dict(
        postgresql.execute("SELECT name, text_search_configuration FROM sag.collection").fetchall()
    ) == {
        "default": "pg_catalog.english",
        "papers": "pg_catalog.german",
        "it's $$ \\ 收购 🎉": "pg_catalog.simple",
    }
    for unknown in ("klingon", "", "-", "4711", "a.b.c.d", '"open', "a.b.c", None, "x'y"):
        with pytest.raises(errors.UndefinedObject) as caught, postgresql.transaction():
            value(postgresql, create, "new", unknown)
        assert "pg_ts_config" in str(caught.value.diag.message_hint)
    for name in ("", "x" * 201, None):
        with pytest.raises(errors.InvalidParameterValue) as refused, postgresql.transaction():
            value(postgresql, create, name, "simple")
        assert "1 to 200 characters" in str(refused.value.diag.message_hint)


def set_parameter(
    connection: Connection, name: str, new: Any, collection: str | None = None
) -> None:
    connection.execute(
        "SELECT sag.set_parameter(%s, %s, %s)",
        (name, None if new is None else Jsonb(new), collection),
    )


def test_options_beat_the_collection_beats_the_database(corpus: Connection) -> None:
    corpus.execute("SAVEPOINT start")

    def count(collection: str, **options: Any) -> int:
        return len(retrieve(corpus, QUESTION + " report weather", collection, options=options))

    assert (count("default"), count("plain")) == (10, 10)
    set_parameter(corpus, "output_limit", 5)
    assert (count("default"), count("plain")) == (5, 5)
    set_parameter(corpus, "output_limit", 3, "plain")
    assert (count("default"), count("plain")) == (5, 3)
    assert (count("default", output_limit=1), count("plain", output_limit=4)) == (1, 4)
    set_parameter(corpus, "output_limit", None)
    assert (count("default"), count("plain")) == (10, 3)
    set_parameter(corpus, "output_limit", None, "plain")
    assert (count("default"), count("plain")) == (10, 10)
    assert column(corpus, "SELECT parameters FROM sag.collection WHERE name = 'plain'") == [{}]
    set_parameter(corpus, "output_limit", 2.0, "plain")
    assert count("plain") == 2
    corpus.execute("ROLLBACK TO start")


@pytest.mark.parametrize("collection", [None, "plain"])
def test_parameter_that_does_not_fit_is_not_set(corpus: Connection, collection: str | None) -> None:
    for name, new, kind in (
        ("hops", 9, errors.InvalidParameterValue),
        ("hop", 1, errors.Error),
        ("hop", None, errors.Error),
        ("ranking", "best", errors.InvalidParameterValue),
    ):
        with pytest.raises(kind) as caught, corpus.transaction():
            set_parameter(corpus, name, new, collection)
        assert caught.value.diag.message_hint
    with pytest.raises(errors.UndefinedObject), corpus.transaction():
        set_parameter(corpus, "hops", 2, "nowhere")
    assert column(corpus, "SELECT name FROM sag.parameter WHERE database_value IS NOT NULL") == []


@pytest.mark.parametrize("threshold", [0.2, 0.9])
def test_trigram_similarity_is_the_parameter_and_not_the_sessions(
    corpus: Connection, threshold: float
) -> None:
    """pg_trgm has a threshold of its own, by default 0.3, which applies to its operator."""
    corpus.execute(f"SET LOCAL pg_trgm.similarity_threshold = {threshold}".encode())

    def linked(least: float) -> set[str]:
        rows = trace(corpus, QUESTION, entities=["Globxe"], options={"trigram_similarity": least})
        return {row["entity"] for row in rows if row["method"] == "trigram"}

    near = value(corpus, "SELECT similarity('globex', 'globxe')")
    assert 0.3 < near < 0.6
    assert linked(near + 0.05) == set()
    assert linked(near - 0.05) == {"Globex"}
    # One with less than pg_trgm's default.
    far = trace(corpus, QUESTION, entities=["Globalised"], options={"trigram_similarity": 0.2})
    assert "Globex" in {row["entity"] for row in far if row["method"] == "trigram"}


def test_embedding_space_is_set_once(postgresql: Connection) -> None:
    def space(model: str | None, dimensions: int | None) -> None:
        with postgresql.transaction():
            postgresql.execute("SELECT sag.set_embedding_space(%s, %s)", (model, dimensions))

    def present() -> list[tuple[Any, ...]]:
        return postgresql.execute("SELECT model, dimensions FROM sag.embedding_space").fetchall()

    def indexes() -> list[Any]:
        return column(
            postgresql,
            "SELECT indexrelid FROM pg_index WHERE indexrelid::regclass::text LIKE '%%_embedding'"
            " ORDER BY 1",
        )

    check = "SELECT sag.check_embedding_space(%s, %s)"
    assert value(postgresql, check, "tiny", 3) is False
    for model, dimensions in (("", 3), (None, 3), ("tiny", 0), ("tiny", None), ("big", 5000)):
        with pytest.raises(errors.InvalidParameterValue) as caught:
            space(model, dimensions)
        assert "4000" in str(caught.value.diag.message_detail)
    assert present() == []

    space("tiny", 3)
    assert present() == [("tiny", 3)]
    built = indexes()
    assert len(built) == 3
    space("tiny", 3)
    assert indexes() == built, "setting it again built the indexes again"
    assert value(postgresql, check, "tiny", 3) is True

    # As long as there is no vector another model may come.
    space("larger", 4000)
    assert present() == [("larger", 4000)]
    space("tiny", 3)
    merge(postgresql, [passage("a", "x", embedding=[1, 0, 0])])
    for model, dimensions in (("tiny", 4), ("other", 3)):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="'tiny' with 3"):
            space(model, dimensions)
        with (
            pytest.raises(errors.ObjectNotInPrerequisiteState, match="'tiny' with 3"),
            postgresql.transaction(),
        ):
            value(postgresql, check, model, dimensions)
    assert present() == [("tiny", 3)]
    space("tiny", 3)
    assert len(retrieve(postgresql, "x", embedding=[1, 0, 0])) == 1


def test_events_with_and_without_vectors_in_one_collection(postgresql: Connection) -> None:
    """A model that does not know a script leaves some events without a vector."""
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    merge(
        postgresql,
        [
            passage("with", "Acme makes cars", "Acme Motors", embedding=[1, 0, 0]),
            passage("without", "Acme makes trains", "Acme Motors"),
            passage("other", "Something else", embedding=[0.1, 1, 0]),
        ],
    )
    rows = retrieve(postgresql, "What does Acme Motors make?", embedding=[1, 0, 0])
    assert sources(rows)[0] == "with"
    assert "without" in sources(rows)
    assert all(row["score"] is None or math.isfinite(row["score"]) for row in rows)
    rows = retrieve(postgresql, "trains", embedding=[1, 0, 0], options={"ranking": "similarity"})
    assert sources(rows)[0] == "with"
    # Not to be known as near is not to be known as far.
    rows = trace(postgresql, "What does Acme Motors make?", embedding=[1, 0, 0])
    scores = {row["source"]: row["score"] for row in rows if row["stage"] == "rank_events"}
    assert scores["with"] > scores["without"] > scores["other"]
    assert scores["without"] > 0
    ranks = {row["source"]: row["rank"] for row in rows if row["stage"] == "seed_events"}
    assert ranks["with"] == 1
    assert entity_ids(postgresql).keys() == {"acme motors"}
    assert len(event_ids(postgresql)) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("sag_retrieve('Oban', 'defualt')", "collection 'defualt' does not exist"),
        ("sag_retrieve('', 'default')", "the question is empty"),
        ("sag_retrieve('Oban', options => '{\"nope\": 1}')", "parameter 'nope' does not exist"),
        ("sag_trace('Oban', 'defualt')", "collection 'defualt' does not exist"),
        ("sag_search('Oban', 'defualt')", "collection 'defualt' does not exist"),
    ],
)
@pytest.mark.parametrize("documents", [0, 20])
def test_faults_are_found_whatever_the_plan(
    postgresql: Connection, call: str, message: str, documents: int
) -> None:
    if documents:
        merge(postgresql, [passage(f"d{no}", "text", "Name") for no in range(documents)])
    postgresql.execute("ANALYZE")
    with pytest.raises(errors.DatabaseError, match=message):
        postgresql.execute(f"SELECT count(*) FROM {call}")  # noqa: S608


def test_search_without_method_takes_what_is_possible(corpus: Connection) -> None:
    assert search(corpus, "acme founder") == search(corpus, "acme founder", method="lexical")
    near = search(corpus, "acme founder", embedding=VECTOR)
    assert near == search(corpus, "acme founder", method="hybrid", embedding=VECTOR)


def test_documents_without_a_vector_are_found_by_their_words(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    merge(
        postgresql,
        [
            *[passage(f"vague {no}", f"filler {no}", embedding=[1, no, 0]) for no in range(30)],
            passage("exact", "tin oxide glazes pottery"),
        ],
    )
    rows = retrieve(postgresql, "Which oxide glazes pottery?", embedding=[1, 0, 0])
    assert "exact" in sources(rows)[:3]
    assert {row["mode"] for row in rows} == {"vector and lexical"}


def test_filter_that_nothing_passes_says_so(corpus: Connection) -> None:
    notices: list[str] = []
    corpus.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    assert retrieve(corpus, "acme", filter="$.lang ? (@ > 2000)") == []
    assert any("passes the filter" in notice for notice in notices)
    notices.clear()
    retrieve(corpus, "acme", filter='$.lang == "de"')
    assert notices == []


def test_hub_without_an_embedding(postgresql: Connection) -> None:
    merge(postgresql, [passage(f"d{no}", f"text {no}", "Hub Corporation") for no in range(30)])
    rows = retrieve(
        postgresql, "zzz", entities=["Hub Corporation"], options={"frontier_event_budget": 10}
    )
    assert len(rows) == 10


@pytest.mark.parametrize("value", ["1e-400", "1e400"])
def test_numbers_that_no_double_can_be(postgresql: Connection, value: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="bridge_weight"):
        postgresql.execute("SELECT sag.set_parameter('bridge_weight', %s::jsonb)", [value])
