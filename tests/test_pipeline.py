"""sql/pipeline, stage by stage, on graphs small enough to know the answer."""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psycopg
import pytest
from corpus import (
    Chunk,
    Document,
    Entity,
    call,
    collection_id,
    column,
    entity_ids,
    event_ids,
    fresh_database,
    literal,
    merge,
    passage,
    value,
)
from psycopg import errors

Connection = psycopg.Connection[Any]


def set_space(connection: Connection, dimensions: int = 3) -> None:
    connection.execute("SELECT sag.set_embedding_space('tiny', %s)", (dimensions,))


def give_alias(connection: Connection, name: str, alias: str) -> None:
    connection.execute(
        "INSERT INTO sag.entity_alias (collection_id, entity_id, name)"
        " SELECT collection_id, entity_id, %s FROM sag.entity WHERE name = %s",
        (alias, name),
    )


def halfvec_array(vectors: Sequence[Sequence[float] | None]) -> str:
    return "{" + ",".join("NULL" if v is None else f'"{literal(v)}"' for v in vectors) + "}"


def at_angle(degrees: float) -> list[float]:
    """A vector at that angle from [1, 0, 0]."""
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), 0.0]


def similarity(degrees: float) -> float:
    return (1 + math.cos(math.radians(degrees))) / 2


# question_entities


def read_names(connection: Connection, question: str | None, event_limit: int = 20) -> set[str]:
    rows = call(
        connection,
        "question_entities",
        target=collection_id(connection),
        question=question,
        event_limit=event_limit,
    )
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"] for row in rows}


@pytest.fixture(scope="module")
def readable(postgresql_noproc: Any) -> Iterator[Connection]:
    with fresh_database(postgresql_noproc, "sag_readable") as connection:
        connection.autocommit = True
        merge(
            connection,
            [
                passage("a", "x", "New York", "New York City", "York", "North Sea"),
                passage("b", "x", "Sea level rise", "IBM", "Bob", "IBM lab", "Acme", "O'Brien"),
                passage("c", "x", "蓝海数据", "收购", "Notepad++"),
            ],
        )
        give_alias(connection, "IBM", "Big Blue")
        yield connection


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Is New York City near New York?", {"new york city", "new york"}),
        ("is NEW YORK CITY'S mayor old", {"new york city"}),
        # From the left, and a match consumes its words.
        ("north sea level rise", {"north sea"}),
        ("rising sea level rise", {"sea level rise"}),
        # A short word alone is no name; a longer name may hold it.
        ("does IBM pay Bob", set()),
        ("is acme the IBM lab", {"acme", "ibm lab"}),
        ("acme acme ACME", {"acme"}),
        ("who is behind Big Blue?", {"big blue"}),
        ("请问蓝海数据被收购了吗", {"蓝海数据", "收购"}),
        ("请问Acme公司", {"acme"}),
        ("the notepad++ editor", {"notepad++"}),
        ("nothing known here", set()),
        ("", set()),
        ("?!", set()),
        (None, set()),
        ("o'brien's " * 3, {"o brien"}),
    ],
)
def test_question_entities(readable: Connection, question: str | None, names: set[str]) -> None:
    assert read_names(readable, question) == names


def test_question_entities_leaves_out_what_is_too_frequent(postgresql: Connection) -> None:
    merge(postgresql, [passage(str(no), "x", "Common", "Usual Thing") for no in range(5)])
    give_alias(postgresql, "Common", "Frequent")
    question = "common or frequent usual thing"
    assert read_names(postgresql, question, 5) == {"common", "frequent", "usual thing"}
    assert read_names(postgresql, question, 4) == set()


def test_question_entities_of_an_alias_are_those_it_means(postgresql: Connection) -> None:
    merge(postgresql, [passage("a", "x", "Michael Jordan", "Michael B. Jordan")])
    for name in ("Michael Jordan", "Michael B. Jordan"):
        give_alias(postgresql, name, "Jordan")
    (row,) = call(
        postgresql, "question_entities", target=1, question="Was Jordan there?", event_limit=20
    )
    assert row["entity_ids"] == sorted(entity_ids(postgresql).values())


def test_question_entities_without_events_are_left_out(postgresql: Connection) -> None:
    merge(postgresql, [passage("a", "x", "Acme Corp")])
    give_alias(postgresql, "Acme Corp", "The Firm")
    merge(postgresql, [passage("a", "x", "Globex")])
    assert read_names(postgresql, "acme corp, the firm, globex") == {"globex"}


# misspelt_names


def misspelt(connection: Connection, question: str, *known: str) -> set[str]:
    rows = call(
        connection,
        "misspelt_names",
        target=collection_id(connection),
        configuration="english",
        question=question,
        known_names=list(known),
    )
    return {row["name"] for row in rows}


def test_misspelt_names_are_words_that_no_event_has(postgresql: Connection) -> None:
    merge(postgresql, [passage("a", "The company was founded by Alice in Berlin", "Alice")])
    assert misspelt(postgresql, "Who founded the company of Berlim?") == {"berlim", "of berlim"}
    assert misspelt(postgresql, "Which companies founded?") == set()
    # Short words, numbers and words of names that were read already are no misspelt names.
    assert misspelt(postgresql, "what zzzz 12345 x2000y Globex", "globex corp") == set()


@pytest.mark.parametrize(
    "question", ["notepad++ where", "(((((( [a-z]* \\m{2}", "o'brien$$%", "收购"]
)
def test_misspelt_names_take_nothing_for_a_pattern(postgresql: Connection, question: str) -> None:
    merge(postgresql, [passage("a", "plain text", "Alice")])
    misspelt(postgresql, question, "some name", "notepad++", "c++")
    assert "notepad++" not in misspelt(postgresql, "notepad++", "notepad++")


# link_entities


def link(
    connection: Connection, *asked: tuple[str, str, Sequence[float] | None], **options: Any
) -> dict[str, Any]:
    """Method and similarity by normalised name of the linked entity."""
    rows = call(
        connection,
        "link_entities",
        target=collection_id(connection),
        names=[name for name, _, _ in asked],
        origins=[origin for _, origin, _ in asked],
        embeddings=halfvec_array([vector for _, _, vector in asked]),
        **options,
    )
    names = {entity_id: name for name, entity_id in entity_ids(connection).items()}
    assert len({row["entity_id"] for row in rows}) == len(rows)
    return {names[row["entity_id"]]: (row["method"], row["similarity"]) for row in rows}


@pytest.fixture(scope="module")
def named(postgresql_noproc: Any) -> Iterator[Connection]:
    with fresh_database(postgresql_noproc, "sag_named") as connection:
        connection.autocommit = True
        set_space(connection)
        entities = [
            Entity("Acme", embedding=at_angle(0)),
            Entity("Acme Incorporated", embedding=at_angle(20)),
            Entity("Globex", embedding=at_angle(90)),
            Entity("Abraham Lincoln"),
            Entity("Lincoln Memorial"),
            Entity("Berlin"),
        ]
        merge(connection, [Document("a", [Chunk("x", entities)])])
        give_alias(connection, "Globex", "The Globe")
        yield connection


@pytest.mark.parametrize("origin", ["question", "caller"])
def test_link_by_exact_name_and_alias(named: Connection, origin: str) -> None:
    assert link(named, ("BERLIN", origin, None)) == {"berlin": ("exact", 1)}
    assert link(named, ("the Globe", origin, None)) == {"globex": ("alias", 1)}
    assert link(named, ("Nowhere Land", "question", None)) == {}


def test_link_by_vector_from_the_given_one_or_the_entitys_own(named: Connection) -> None:
    expected = pytest.approx(similarity(20), abs=1e-3)
    assert link(named, ("ACME", "question", None)) == {
        "acme": ("exact", 1),
        "acme incorporated": ("vector", expected),
    }
    assert link(named, ("the company", "caller", at_angle(0))) == {
        "acme": ("vector", pytest.approx(1, abs=1e-3)),
        "acme incorporated": ("vector", expected),
    }
    assert link(named, ("the company", "caller", at_angle(0)), link_limit=1).keys() == {"acme"}
    assert link(named, ("acme", "caller", None), entity_similarity=0.99).keys() == {"acme"}
    assert link(named, ("company", "caller", at_angle(-90)), entity_similarity=0.6) == {}


def test_link_by_words_of_a_longer_name(named: Connection) -> None:
    linked = link(named, ("Lincoln", "caller", None))
    assert {name: method for name, (method, _) in linked.items()} == {
        "abraham lincoln": "words",
        "lincoln memorial": "words",
    }
    assert len(link(named, ("Lincoln", "caller", None), link_limit=1)) == 1
    # What stands in a question was read from the names already.
    assert link(named, ("Lincoln", "question", None)) == {}


def test_link_by_trigrams(named: Connection) -> None:
    for origin in ("caller", "misspelt"):
        ((name, (method, near)),) = link(named, ("Abraham Linkoln", origin, None)).items()
        assert (name, method) == ("abraham lincoln", "trigram")
        assert near == pytest.approx(
            value(named, "SELECT similarity('abraham lincoln', 'abraham linkoln')"), abs=1e-6
        )
        assert link(named, ("Abraham Linkoln", origin, None), trigram_similarity=0.9) == {}
    assert link(named, ("berlin", "misspelt", None)) == {"berlin": ("trigram", 1)}


def test_link_without_anything_to_link(named: Connection) -> None:
    assert link(named) == {}
    assert call(named, "link_entities", target=1, names=None, origins=None, embeddings=None) == []


@pytest.mark.parametrize("name", ["", "'", "\\", "a & b | !c", "$$ %s", "🎉", "x" * 5000, "()*:"])
def test_link_takes_any_name(named: Connection, name: str) -> None:
    assert link(named, (name, "caller", None), (name, "misspelt", None)) == {}


# search_vectors and seed_events


def test_exact_search_and_vector_index_agree(postgresql: Connection) -> None:
    chance = random.Random(7)  # noqa: S311
    set_space(postgresql, 8)
    vectors = [[chance.gauss(0, 1) for _ in range(8)] for _ in range(300)]
    merge(
        postgresql,
        [
            passage(str(no), "x", "Hub", *(["Odd"] if no % 2 else []), embedding=v, third=no % 3)
            for no, v in enumerate(vectors)
        ],
    )
    events = event_ids(postgresql)
    matrix = np.array(vectors)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    for setting in ("enable_seqscan", "enable_bitmapscan", "enable_sort"):
        postgresql.execute(f"SET {setting} = off".encode())
    postgresql.execute("SET hnsw.ef_search = 300")
    postgresql.execute("SET hnsw.iterative_scan = strict_order")
    postgresql.execute("SET plan_cache_mode = force_custom_plan")
    odd = entity_ids(postgresql)["odd"]
    for given, allowed in (
        ({}, lambda no: True),
        ({"entity_id": odd}, lambda no: no % 2 == 1),
        ({"filter": "$.third == 1"}, lambda no: no % 3 == 1),
    ):
        question = [chance.gauss(0, 1) for _ in range(8)]
        similarities = (1 + matrix @ np.array(question) / np.linalg.norm(question)) / 2
        best = sorted((no for no in range(300) if allowed(no)), key=lambda no: -similarities[no])
        for read_all in (True, False):
            scans = value(
                postgresql, "SELECT pg_stat_get_xact_numscans('sag.event_embedding'::regclass)"
            )
            rows = call(
                postgresql,
                "search_vectors",
                target=1,
                embedding=literal(question),
                read_all=read_all,
                result_limit=10,
                **given,
            )
            assert [row["event_id"] for row in rows] == [events[str(no)] for no in best[:10]]
            assert [row["similarity"] for row in rows] == pytest.approx(
                similarities[best[:10]], abs=2e-3
            )
            used = value(
                postgresql, "SELECT pg_stat_get_xact_numscans('sag.event_embedding'::regclass)"
            )
            assert (used > scans) is not read_all


def seeds(connection: Connection, **arguments: Any) -> list[dict[str, Any]]:
    defaults: dict[str, Any] = {
        "target": collection_id(connection),
        "embedding": literal(at_angle(0)),
        "queries": None,
        "weights": None,
        "event_counts": None,
        "average_length": 1.0,
        "entity_ids": [],
        "entity_event_counts": [],
        "read_all": True,
    }
    return call(connection, "seed_events", **defaults | arguments)


@pytest.fixture(scope="module")
def fan(postgresql_noproc: Any) -> Iterator[Connection]:
    """Ten events at 0, 10 .. 90 degrees from the question; Hub in all, Odd in every other."""
    with fresh_database(postgresql_noproc, "sag_fan") as connection:
        connection.autocommit = True
        set_space(connection)
        merge(
            connection,
            [
                passage(
                    str(no),
                    f"word{no} common",
                    "Hub",
                    *(["Odd"] if no % 2 else []),
                    embedding=at_angle(10 * no),
                    half=no // 5,
                )
                for no in range(10)
            ],
        )
        yield connection


def test_direct_seeds_are_the_nearest_above_the_threshold(fan: Connection) -> None:
    events = event_ids(fan)
    rows = seeds(fan, seed_event_limit=3)
    assert [row["event_id"] for row in rows] == [events["0"], events["1"], events["2"]]
    assert {(row["path"], row["entity_id"]) for row in rows} == {("direct", None)}
    assert [row["relevance"] for row in rows] == pytest.approx(
        [similarity(0), similarity(10), similarity(20)], abs=1e-3
    )
    rows = seeds(fan, event_similarity=similarity(45))
    assert {row["event_id"] for row in rows} == {events[str(no)] for no in range(5)}


def test_entity_seeds_are_capped_per_entity_best_first(fan: Connection) -> None:
    events, entities = event_ids(fan), entity_ids(fan)
    rows = seeds(
        fan,
        entity_ids=[entities["hub"], entities["odd"]],
        entity_event_counts=[10, 5],
        seed_event_limit=0,
        seed_entity_event_limit=2,
    )
    assert {(row["entity_id"], row["event_id"]) for row in rows} == {
        (entities["hub"], events["0"]),
        (entities["hub"], events["1"]),
        (entities["odd"], events["1"]),
        (entities["odd"], events["3"]),
    }
    assert {row["path"] for row in rows} == {"entity"}


@pytest.mark.parametrize("read_all", [True, False])
def test_seeds_of_a_hub_come_from_the_vector_search(fan: Connection, read_all: bool) -> None:
    events, entities = event_ids(fan), entity_ids(fan)
    hub = {"entity_ids": [entities["odd"]], "entity_event_counts": [5], "event_budget": 4}
    rows = seeds(fan, seed_event_limit=0, seed_entity_event_limit=2, read_all=read_all, **hub)
    assert [row["event_id"] for row in rows] == [events["1"], events["3"]]
    assert {(row["path"], row["entity_id"]) for row in rows} == {("entity", entities["odd"])}
    # Without a vector there is no order to read them in, so some within the budget have to do.
    assert len(seeds(fan, embedding=None, **hub)) == 4


def weighed(connection: Connection, *lexemes: str, **arguments: Any) -> dict[str, Any]:
    """sag.weigh_lexemes(), in the arrays that the later stages take."""
    target = collection_id(connection)
    rows = call(
        connection,
        "weigh_lexemes",
        target=target,
        lexemes=list(lexemes),
        event_total=value(
            connection,
            "SELECT event_total FROM sag.collection_statistic WHERE collection_id = %s",
            target,
        ),
        **arguments,
    )
    return {
        "queries": [row["query"] for row in rows],
        "weights": [row["weight"] for row in rows],
        "event_counts": [row["event_count"] for row in rows],
    }


def test_lexical_seeds(fan: Connection) -> None:
    events = event_ids(fan)
    given = weighed(fan, "word3", "word7", "common") | {"embedding": None, "average_length": 2.0}
    rows = seeds(fan, **given)
    assert {row["event_id"] for row in rows[:2]} == {events["3"], events["7"]}
    # ln(1 + 10/1) + ln(1 + 10/10), at average length.
    assert rows[0]["relevance"] == pytest.approx(math.log(11) + math.log(2))
    assert len(rows) == 10
    # The frequent lexeme does not fit the budget; alone it is taken all the same, and where all is
    # read the budget does not matter.
    found = seeds(fan, **given, event_budget=5, read_all=False)
    assert {row["event_id"] for row in found} == {events["3"], events["7"]}
    assert len(seeds(fan, **given, event_budget=5, read_all=True)) == 10
    alone = weighed(fan, "common") | {"embedding": None}
    assert len(seeds(fan, **alone, event_budget=5, read_all=False)) == 5
    assert len(seeds(fan, **given, seed_event_limit=1)) == 1


@pytest.mark.parametrize("with_embedding", [True, False])
@pytest.mark.parametrize("read_all", [True, False])
def test_filter_restricts_every_path_of_the_seeds(
    fan: Connection, with_embedding: bool, read_all: bool
) -> None:
    events, entities = event_ids(fan), entity_ids(fan)
    given = weighed(fan, "common") if not with_embedding else {}
    vector = literal(at_angle(0)) if with_embedding else None
    for budget in (2000, 4):
        rows = seeds(
            fan,
            **given,
            embedding=vector,
            entity_ids=[entities["hub"], entities["odd"]],
            entity_event_counts=[10, 5],
            filter="$.half == 1",
            read_all=read_all,
            seed_entity_event_limit=2,
            event_budget=budget,
        )
        assert rows
        assert {row["event_id"] for row in rows} <= {events[str(no)] for no in range(5, 10)}
        if with_embedding:
            # The cap comes after the filter.
            assert {
                (row["entity_id"], row["event_id"]) for row in rows if row["path"] == "entity"
            } == {
                (entities["hub"], events["5"]),
                (entities["hub"], events["6"]),
                (entities["odd"], events["5"]),
                (entities["odd"], events["7"]),
            }


# weigh_lexemes


def test_lexeme_weights_before_and_after_analyze(postgresql: Connection) -> None:
    merge(
        postgresql,
        [passage(str(no), "common" + (" rare" if no < 3 else "")) for no in range(30)],
    )
    lexemes = ["common", "rare", "absent", "o'brien\\"]
    rows = {
        row["lexeme"]: row
        for row in call(
            postgresql, "weigh_lexemes", target=1, lexemes=lexemes, event_total=30, event_budget=10
        )
    }
    # Counted up to the budget.
    assert {name: row["event_count"] for name, row in rows.items()} == {
        "common": 11,
        "rare": 3,
        "absent": 0,
        "o'brien\\": 0,
    }
    assert rows["rare"]["weight"] == pytest.approx(math.log(1 + 30 / 3))
    assert rows["absent"]["weight"] == 0
    postgresql.execute("ANALYZE sag.event")
    rows = {
        row["lexeme"]: row
        for row in call(
            postgresql, "weigh_lexemes", target=1, lexemes=lexemes, event_total=30, event_budget=10
        )
    }
    assert {name: row["event_count"] for name, row in rows.items()} == {
        "common": 30,
        "rare": 3,
        "absent": 0,
        "o'brien\\": 0,
    }
    assert rows["common"]["weight"] == pytest.approx(math.log(2))


# expand_events


def expand(connection: Connection, seed: dict[str, float], **arguments: Any) -> dict[str, Any]:
    """Rows of the expansion by source; `seed` gives relevance by source."""
    events = event_ids(connection)
    sources = {event_id: source for source, event_id in events.items()}
    defaults: dict[str, Any] = {
        "target": collection_id(connection),
        "embedding": None,
        "queries": "{}",
        "weights": "{}",
        "average_length": 1.0,
        "event_total": len(events),
        "event_ids": [events[source] for source in seed],
        "relevances": list(seed.values()),
        "entity_ids": [],
        "entity_weights": "{}",
    }
    rows = call(connection, "expand_events", **defaults | arguments)
    assert len({row["event_id"] for row in rows}) == len(rows), "an event is reached once"
    names = {entity_id: name for name, entity_id in entity_ids(connection).items()}
    return {
        sources[row["event_id"]]: (
            row["hop"],
            names[row["entity_id"]],
            sources[row["from_event_id"]],
        )
        for row in rows
    }


@pytest.fixture(scope="module")
def chain(postgresql_noproc: Any) -> Iterator[Connection]:
    with fresh_database(postgresql_noproc, "sag_chain") as connection:
        connection.autocommit = True
        links = ["ab", "bc", "cd", "de", "ef"]
        merge(
            connection,
            [
                passage(source, f"text {source}", f"Entity {source[0]}", f"Entity {source[1]}")
                for source in links
            ],
        )
        yield connection


@pytest.mark.parametrize("hops", range(5))
def test_each_hop_reaches_one_further_event_of_a_chain(chain: Connection, hops: int) -> None:
    reached = [
        ("bc", (1, "entity b", "ab")),
        ("cd", (2, "entity c", "bc")),
        ("de", (3, "entity d", "cd")),
        ("ef", (4, "entity e", "de")),
    ]
    seed = {"ab": 1.0}
    entity = {"entity_ids": [entity_ids(chain)["entity a"]], "entity_weights": [1.0]}
    assert expand(chain, seed, hops=hops, **entity) == dict(reached[:hops])


def test_expansion_does_not_go_out_from_linked_entities(chain: Connection) -> None:
    entities = entity_ids(chain)
    linked = {"entity_ids": [entities["entity b"]], "entity_weights": [1.0]}
    assert expand(chain, {"ab": 1.0}, hops=4, **linked) == {}


def test_expansion_goes_both_ways_and_stops_where_all_is_seen(chain: Connection) -> None:
    assert {source: row[0] for source, row in expand(chain, {"cd": 1.0}, hops=4).items()} == {
        "bc": 1,
        "de": 1,
        "ab": 2,
        "ef": 2,
    }
    assert expand(chain, {}, hops=4) == {}


def test_expansion_respects_the_filter_at_every_hop(postgresql: Connection) -> None:
    merge(
        postgresql,
        [
            passage("ab", "x", "Entity a", "Entity b", lang="en"),
            passage("bc", "x", "Entity b", "Entity c", lang="de"),
            passage("bd", "x", "Entity b", "Entity d", lang="en"),
            passage("cx", "x", "Entity c", "Entity x", lang="en"),
            passage("dy", "x", "Entity d", "Entity y", lang="en"),
        ],
    )
    reached = expand(postgresql, {"ab": 1.0}, hops=3, filter='$.lang == "en"')
    assert {source: row[0] for source, row in reached.items()} == {"bd": 1, "dy": 2}


def test_entities_with_a_single_event_do_not_crowd_out_bridges(postgresql: Connection) -> None:
    merge(
        postgresql,
        [
            passage("seed", "x", "Single", "Pair"),
            passage("other", "x", "Pair"),
            passage("poor", "x", "Nothing"),
        ],
    )
    # Beside a poor one the seed is worth something, and the rarest of its entities the most.
    seed = {"seed": 1.0, "poor": 0.0}
    assert expand(postgresql, seed, frontier_limit=1) == {"other": (1, "pair", "seed")}
    assert expand(postgresql, seed, frontier_limit=0) == {}


def test_budget_skips_a_hub_and_takes_smaller_entities_behind_it(postgresql: Connection) -> None:
    seed = [passage(f"seed {no}", "x", "Hub", *["Small"][: no < 1]) for no in range(4)]
    merge(
        postgresql,
        [
            *seed,
            *[passage(f"hub {no}", "x", "Hub") for no in range(6)],
            passage("small", "x", "Small"),
            passage("poor", "x"),
        ],
    )
    relevances = {f"seed {no}": 1.0 - no / 100 for no in range(4)} | {"poor": 0.0}
    # Hub has the greatest weight: four seeds carry it.
    reached = expand(postgresql, relevances, frontier_limit=1)
    assert {row[1] for row in reached.values()} == {"hub"}
    assert len(reached) == 6
    reached = expand(postgresql, relevances, frontier_event_budget=9)
    assert reached == {"small": (1, "small", "seed 0")}
    reached = expand(postgresql, relevances, frontier_event_budget=12)
    assert set(reached) == {"small", *(f"hub {no}" for no in range(6))}


def test_frontier_comes_from_the_best_seeds(postgresql: Connection) -> None:
    merge(
        postgresql,
        [
            passage("good", "x", "Left"),
            passage("poor", "x", "Right"),
            passage("left", "x", "Left"),
            passage("right", "x", "Right"),
        ],
    )
    relevances = {"good": 0.9, "poor": 0.1}
    assert set(expand(postgresql, relevances)) == {"left", "right"}
    assert set(expand(postgresql, relevances, frontier_seed_limit=1)) == {"left"}


# event_base, bridge_events, cover_question, rank_events: against the formulas in Python.

MU, LAMBDA, KAPPA, RHO = 0.3, 0.6, 0.6, 0.1
WORDS = ["apple", "banana", "cherry", "grape", "melon", "lemon"]


class Pool:
    """A random corpus, a pool of its events with relevances, and two linked entities."""

    def __init__(self, connection: Connection, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311
        names = [f"Entity {no}" for no in range(9)]
        documents = []
        for no in range(30):
            chosen = chance.sample(names, k=chance.randint(0, 4))
            entities = [Entity(name, is_subject=chance.random() < 0.4) for name in chosen]
            content = " ".join(chance.sample(WORDS, k=chance.randint(0, 4)))
            documents.append(Document(str(no), [Chunk(content, entities)]))
        name = f"pool {seed}"
        connection.execute("SELECT sag.create_collection(%s)", (name,))
        merge(connection, documents, name)
        ids = event_ids(connection, name)
        entities_by_name = entity_ids(connection, name)
        self.target = collection_id(connection, name)
        self.total = len(documents)
        self.links = {
            ids[d.source]: {
                entities_by_name[e.name.lower()]: e.is_subject for e in d.chunks[0].entities
            }
            for d in documents
        }
        self.words = {ids[d.source]: set(d.chunks[0].content.split()) for d in documents}
        self.relevance = {
            ids[source]: round(chance.random(), 3)
            for source in chance.sample([d.source for d in documents], k=22)
        }
        self.counts = {
            entity: sum(entity in carried for carried in self.links.values())
            for entity in entities_by_name.values()
        }
        self.linked = {entities_by_name[name]: 0.0 for name in ("entity 0", "entity 1")}
        for entity in self.linked:
            self.linked[entity] = self.idf(entity)

    def idf(self, entity: int) -> float:
        """idf(u) / idf_max."""
        return math.log(1 + self.total / self.counts[entity]) / math.log(1 + self.total)

    def base(self) -> dict[int, float]:
        low = float(np.percentile(list(self.relevance.values()), 5))
        high = max(self.relevance.values())
        return {
            event: 0.6 * (relevance - low) / (high - low)
            + MU
            * min(
                1.5,
                sum(
                    (1.5 if is_subject else 1) * self.linked[entity]
                    for entity, is_subject in self.links[event].items()
                    if entity in self.linked
                ),
            )
            for event, relevance in self.relevance.items()
        }

    def bridge(self, base: dict[int, float], limit: int = 20) -> dict[int, float]:
        strongest = sorted(base, key=lambda event: (-base[event], event))[:limit]
        bridges: dict[int, float] = {}
        for event in base:
            worths = [
                base[other]
                * self.idf(entity)
                * (1.3 if is_subject else 1.0 if self.links[other][entity] else 0.6)
                for other in strongest
                if other != event
                for entity, is_subject in self.links[event].items()
                if entity in self.links[other] and entity not in self.linked
            ]
            if worths:
                bridges[event] = max(worths)
        return bridges

    def cover(self, scored: list[tuple[int, float]], words: list[str], picks: int) -> list[int]:
        having = {word: sum(word in self.words[event] for event, _ in scored) for word in words}
        idf = {
            word: math.log(1 + len(scored) / count) for word, count in having.items() if count > 0
        }
        taken: list[int] = []
        covered: set[str] = set()
        rest = list(scored)
        while rest and len(taken) < picks:
            gains = [
                score
                + KAPPA
                * sum(idf[word] for word in self.words[event] & idf.keys() - covered)
                / sum(idf.values())
                - RHO * sum(bool(self.subjects(event) & self.subjects(other)) for other in taken)
                for event, score in rest
            ]
            best = max(range(len(rest)), key=lambda no: (round(gains[no], 9), -no))
            event, _ = rest.pop(best)
            taken.append(event)
            covered |= self.words[event]
        return taken

    def subjects(self, event: int) -> set[int]:
        return {entity for entity, is_subject in self.links[event].items() if is_subject}


def stem(connection: Connection, words: Sequence[str]) -> list[str]:
    return column(connection, "SELECT unnest(sag.question_lexemes('english', %s))", " ".join(words))


@pytest.fixture(scope="module")
def pooled(postgresql_noproc: Any) -> Iterator[Connection]:
    with fresh_database(postgresql_noproc, "sag_pooled") as connection:
        connection.autocommit = True
        yield connection


@pytest.fixture(scope="module")
def pools(pooled: Connection) -> dict[int, Pool]:
    """Pools by seed, each in a collection of its own."""
    return {seed: Pool(pooled, seed) for seed in range(1, 5)}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_event_base_is_the_formula(pools: dict[int, Pool], pooled: Connection, seed: int) -> None:
    pool = pools[seed]
    rows = call(
        pooled,
        "event_base",
        target=pool.target,
        event_ids=list(pool.relevance),
        relevances=list(pool.relevance.values()),
        entity_ids=list(pool.linked),
        entity_weights=list(pool.linked.values()),
    )
    assert {row["event_id"]: row["base"] for row in rows} == pytest.approx(pool.base())
    assert any(row["entity_part"] > 0 for row in rows)
    assert all(
        row["base"] == pytest.approx(row["similarity_part"] + row["entity_part"]) for row in rows
    )


def test_event_base_of_equal_relevances_has_no_similarity_part(postgresql: Connection) -> None:
    merge(postgresql, [passage("a", "x", "Acme"), passage("b", "y")])
    events = event_ids(postgresql)
    for sources in (["a"], ["a", "b"]):
        rows = call(
            postgresql,
            "event_base",
            target=1,
            event_ids=[events[source] for source in sources],
            relevances=[0.5] * len(sources),
            entity_ids=[entity_ids(postgresql)["acme"]],
            entity_weights=[1.0],
        )
        assert {row["event_id"]: row["base"] for row in rows} == pytest.approx(
            {events[source]: MU if source == "a" else 0.0 for source in sources}
        )


@pytest.mark.parametrize("limit", [20, 3, 1])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bridge_events_is_the_formula(
    pools: dict[int, Pool], pooled: Connection, seed: int, limit: int
) -> None:
    pool = pools[seed]
    base = pool.base()
    rows = call(
        pooled,
        "bridge_events",
        target=pool.target,
        event_total=pool.total,
        event_ids=list(base),
        bases=list(base.values()),
        entity_ids=list(pool.linked),
        bridge_event_limit=limit,
    )
    expected = pool.bridge(base, limit)
    assert {row["event_id"]: row["bridge"] for row in rows} == pytest.approx(expected)
    for row in rows:
        # The reason given is one that has this worth.
        event, other, entity = row["event_id"], row["from_event_id"], row["entity_id"]
        worth = 1.3 if pool.links[event][entity] else 1.0 if pool.links[other][entity] else 0.6
        assert event != other
        assert row["bridge"] == pytest.approx(base[other] * pool.idf(entity) * worth)


def test_bridge_budget_skips_what_does_not_fit(postgresql: Connection) -> None:
    merge(postgresql, [passage(str(no), "x", "Wide", *["Pair"][: no < 2]) for no in range(6)])
    events = event_ids(postgresql)
    pool = {"event_ids": list(events.values()), "bases": [1.0 - no / 10 for no in range(6)]}
    for budget, expected in ((8, 6), (7, 2), (2, 2), (1, 0), (0, 0)):
        rows = call(
            postgresql,
            "bridge_events",
            target=1,
            event_total=6,
            entity_ids=[],
            bridge_event_budget=budget,
            **pool,
        )
        assert len(rows) == expected


@pytest.mark.parametrize("picks", [22, 5])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_cover_question_is_the_greedy_choice(
    pools: dict[int, Pool], pooled: Connection, seed: int, picks: int
) -> None:
    pool = pools[seed]
    scored = sorted(pool.relevance.items(), key=lambda item: (-item[1], item[0]))
    words = ["apple", "banana", "cherry", "grape", "unheard"]
    lexemes = dict(
        zip(
            words,
            stem(pooled, ["apple"])
            + stem(pooled, ["banana"])
            + stem(pooled, ["cherry"])
            + stem(pooled, ["grape"])
            + stem(pooled, ["unheard"]),
            strict=True,
        )
    )
    rows = call(
        pooled,
        "cover_question",
        target=pool.target,
        event_ids=[event for event, _ in scored],
        scores=[score for _, score in scored],
        lexemes=list(lexemes.values()),
        pick_limit=picks,
    )
    rows.sort(key=lambda row: row["pick"])
    assert [row["pick"] for row in rows] == list(range(1, picks + 1))
    assert [row["event_id"] for row in rows] == pool.cover(scored, words, picks)


def rank(connection: Connection, pool: Pool, **options: Any) -> list[dict[str, Any]]:
    return call(
        connection,
        "rank_events",
        target=pool.target,
        event_total=pool.total,
        event_ids=list(pool.relevance),
        relevances=list(pool.relevance.values()),
        entity_ids=list(pool.linked),
        entity_weights=list(pool.linked.values()),
        **options,
    )


def test_ranking_by_similarity_is_by_relevance(pools: dict[int, Pool], pooled: Connection) -> None:
    pool = pools[1]
    rows = rank(pooled, pool, lexemes=["appl"], ranking="similarity", candidate_limit=7)
    expected = sorted(pool.relevance.items(), key=lambda item: (-item[1], item[0]))[:7]
    assert [(row["event_id"], row["score"]) for row in rows] == expected
    assert [row["rank"] for row in rows] == list(range(1, 8))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ranking_by_evidence(pools: dict[int, Pool], pooled: Connection, seed: int) -> None:
    pool = pools[seed]
    words = ["apple", "melon"]
    base = pool.base()
    bridge = pool.bridge(base)
    score = {event: base[event] + LAMBDA * bridge.get(event, 0) for event in base}
    scored = sorted(score.items(), key=lambda item: (-item[1], item[0]))
    rows = rank(pooled, pool, lexemes=stem(pooled, words), cover_limit=0)
    assert [row["event_id"] for row in rows] == [event for event, _ in scored]
    assert [row["score"] for row in rows] == pytest.approx([s for _, s in scored])

    covered = pool.cover(scored[:10], words, 6)
    rest = [event for event, _ in scored if event not in covered]
    rows = rank(
        pooled,
        pool,
        lexemes=stem(pooled, words),
        cover_limit=10,
        cover_pick_limit=6,
        candidate_limit=15,
    )
    assert [row["event_id"] for row in rows] == (covered + rest)[:15]
    for row in rows:
        assert row["score"] == pytest.approx(score[row["event_id"]])
        assert row["base"] == pytest.approx(base[row["event_id"]])
        assert (row["bridge"] or 0) == pytest.approx(bridge.get(row["event_id"], 0))


@pytest.mark.parametrize("ranking", ["evidence", "similarity"])
def test_ranking_an_empty_pool(postgresql: Connection, ranking: str) -> None:
    assert (
        call(
            postgresql,
            "rank_events",
            target=1,
            event_total=0,
            event_ids="{}",
            relevances="{}",
            entity_ids="{}",
            entity_weights="{}",
            lexemes=None,
            ranking=ranking,
        )
        == []
    )


# direct_chunks and merge_chunks


def direct(connection: Connection, **arguments: Any) -> list[Any]:
    defaults: dict[str, Any] = {
        "target": 1,
        "embedding": literal(at_angle(0)),
        "queries": None,
        "weights": None,
        "event_counts": None,
        "average_length": 3.0,
        "direct_event_ids": "{}",
        "direct_relevances": "{}",
        "read_all": True,
    }
    rows = call(connection, "direct_chunks", **defaults | arguments)
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    contents = dict(connection.execute("SELECT chunk_id, content FROM sag.chunk").fetchall())
    return [(contents[row["chunk_id"]], row["relevance"]) for row in rows]


@pytest.fixture(scope="module")
def stated(postgresql_noproc: Any) -> Iterator[Connection]:
    """Chunks with events of their own text, and with the chunk's."""
    with fresh_database(postgresql_noproc, "sag_stated") as connection:
        connection.autocommit = True
        set_space(connection)
        merge(
            connection,
            [
                Document(
                    "a",
                    [
                        Chunk("red one", (), "", "statement one", at_angle(80), at_angle(10)),
                        Chunk("red two", (), "", "statement two", at_angle(0), at_angle(60)),
                        Chunk("verbatim three", (), "", None, at_angle(20)),
                    ],
                    metadata={"lang": "en"},
                ),
                Document(
                    "b",
                    [Chunk("red four", (), "", "statement four", at_angle(0), at_angle(0))],
                    metadata={"lang": "de"},
                ),
            ],
        )
        yield connection


@pytest.mark.parametrize("read_all", [True, False])
def test_direct_chunks_by_vector(stated: Connection, read_all: bool) -> None:
    verbatim = column(stated, "SELECT event_id FROM sag.event WHERE content IS NULL")
    given = {
        "direct_event_ids": verbatim,
        "direct_relevances": [similarity(20)],
        "read_all": read_all,
    }
    expected = [
        ("red four", pytest.approx(1, abs=1e-3)),
        ("red one", pytest.approx(similarity(10), abs=1e-3)),
        ("verbatim three", pytest.approx(similarity(20), abs=1e-3)),
        ("red two", pytest.approx(similarity(60), abs=1e-3)),
    ]
    assert direct(stated, **given) == expected
    assert direct(stated, direct_chunk_limit=2, **given) == expected[:2]
    assert direct(stated, direct_chunk_limit=0, **given) == []
    assert direct(stated, filter='$.lang == "en"', **given) == expected[1:]
    assert direct(stated, has_statements=False, **given) == expected[2:3]


def test_direct_chunks_by_lexemes(stated: Connection) -> None:
    given = weighed(stated, "one", "red", "statement")
    given["event_counts"] = [1, 3, 3]
    given["weights"] = [2.0, 1.0, 1.0]
    given["queries"] = column(
        stated,
        "SELECT sag.lexeme_query(x)::text FROM unnest(ARRAY['one', 'red', 'statement']) AS x",
    )
    found = direct(stated, embedding=None, **given)
    assert found[0][0] == "red one"
    assert {content for content, _ in found} == {"red one", "red two", "red four"}
    assert {
        content for content, _ in direct(stated, embedding=None, filter='$.lang == "de"', **given)
    } == {"red four"}


def test_merge_chunks_order_and_fill(postgresql: Connection) -> None:
    merge(postgresql, [passage(str(no), f"text {no}") for no in range(8)])
    events = event_ids(postgresql)
    chunks = dict(postgresql.execute("SELECT event_id, chunk_id FROM sag.event").fetchall())

    def merged(
        chosen: str, direct_chunks: str, candidates: str, limit: int
    ) -> list[tuple[Any, ...]]:
        sources = {event_id: source for source, event_id in events.items()}
        rows = call(
            postgresql,
            "merge_chunks",
            target=1,
            chosen_event_ids=[events[no] for no in chosen],
            direct_chunk_ids=[chunks[events[no]] for no in direct_chunks],
            candidate_event_ids=[events[no] for no in candidates],
            output_limit=limit,
        )
        assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
        assert all(row["chunk_id"] == chunks[row["event_id"]] for row in rows)
        return [(sources[row["event_id"]], row["found_by"]) for row in rows]

    assert merged("31", "106", "3152", 10) == [
        ("3", "event"),
        ("1", "both"),
        ("0", "direct"),
        ("6", "direct"),
        ("5", "event"),
        ("2", "event"),
    ]
    assert merged("31", "06", "3152", 3) == [("3", "event"), ("1", "event"), ("0", "direct")]
    assert merged("", "06", "", 5) == [("0", "direct"), ("6", "direct")]
    assert merged("", "", "3", 5) == [("3", "event")]
    assert merged("", "", "", 5) == []


# The small ones.


def test_take_within_skips_what_does_not_fit(postgresql: Connection) -> None:
    amounts = [3, 9, 4, 4, 3, 1]
    taken = column(
        postgresql,
        "SELECT sag.take_within(u.amount, 10) OVER (ORDER BY u.no ROWS UNBOUNDED PRECEDING)"
        " FROM unnest(%s::bigint[]) WITH ORDINALITY AS u (amount, no) ORDER BY u.no",
        amounts,
    )
    assert taken == [True, False, True, False, True, False]


def test_lexical_score(postgresql: Connection) -> None:
    score = "SELECT sag.lexical_score('apple:1 pear:2', 2, %s::tsquery[], %s::float8[], %s::float8)"
    queries = "{'apple','pear','plum'}"
    assert value(postgresql, score, queries, [1.0, 2.0, 4.0], 2.0) == pytest.approx(3.0)
    assert value(postgresql, score, queries, [1.0, 2.0, 4.0], 1.0) == pytest.approx(3.0 / 1.3)
    # A question without any lexeme.
    assert value(postgresql, score, None, None, 2.0) == 0
    assert value(postgresql, score, "{}", "{}", 0.0) == 0


def test_similarity_is_on_the_scale_of_the_paper(postgresql: Connection) -> None:
    query = "SELECT sag.similarity(%s::halfvec, %s::halfvec)"
    for degrees, expected in ((0, 1.0), (90, 0.5), (180, 0.0)):
        pair = (literal(at_angle(0)), literal(at_angle(degrees)))
        assert value(postgresql, query, *pair) == pytest.approx(expected, abs=1e-3)
    with pytest.raises(errors.DataException):
        value(postgresql, query, "[1,0]", "[1,0,0]")


def test_small_collections_are_read_and_large_ones_searched(postgresql: Connection) -> None:
    query = "SELECT sag.reads_all(1, %s, NULL, 60)"
    assert value(postgresql, query, 0) is True
    assert value(postgresql, query, 1000) is True
    assert value(postgresql, query, 1_000_000) is False
    # Few documents pass the filter.
    merge(postgresql, [passage("a", "x", lang="en")])
    assert value(postgresql, "SELECT sag.reads_all(1, 1000000, '$.lang == \"en\"', 60)") is True
