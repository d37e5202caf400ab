"""sql/ingest: what a batch adds, replaces and deletes, and that every kept count stays exact."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from corpus import (
    Chunk,
    Document,
    Entity,
    assert_counts_exact,
    column,
    delete,
    entity_ids,
    event_ids,
    fill_batch,
    merge,
    passage,
    value,
)
from psycopg import errors
from psycopg.rows import dict_row

Connection = psycopg.Connection[Any]

TABLES = ("document", "chunk", "event", "entity", "entity_alias", "event_entity")


def row_counts(connection: Connection) -> dict[str, int]:
    return {
        table: value(connection, f"SELECT count(*) FROM sag.{table}")  # noqa: S608
        for table in TABLES
    }


def event_counts(connection: Connection) -> dict[str, int]:
    return dict(
        connection.execute("SELECT normalized_name, event_count FROM sag.entity").fetchall()
    )


# What becomes of a document.


def test_new_document(postgresql: Connection) -> None:
    document = Document(
        "a.md",
        [
            Chunk(
                "Alice founded Acme.",
                [Entity("Alice", "person", is_subject=True, role="founder"), Entity("Acme")],
                title="Acme",
            ),
            Chunk("Acme is in Berlin.", [Entity("Acme"), Entity("Berlin", "location")]),
        ],
        title="Acme",
        metadata={"year": 2020},
    )
    with postgresql.transaction():
        fill_batch(postgresql, [document])
        outcome = postgresql.execute("SELECT * FROM sag.merge_batch('default')").fetchall()
    assert outcome == [("a.md", "added", 2)]
    assert event_counts(postgresql) == {"alice": 1, "acme": 2, "berlin": 1}
    assert postgresql.execute(
        "SELECT source, title, metadata, content_hash FROM sag.document"
    ).fetchall() == [("a.md", "Acme", {"year": 2020}, document.content_hash)]
    assert postgresql.execute(
        "SELECT ordinal, content, start_offset, end_offset, lexemes IS NULL FROM sag.chunk"
        " ORDER BY ordinal"
    ).fetchall() == [
        (0, "Alice founded Acme.", 0, 19, True),
        (1, "Acme is in Berlin.", 19, 37, True),
    ]
    assert postgresql.execute(
        "SELECT n.name, l.type, l.is_subject, l.role FROM sag.event_entity AS l"
        " INNER JOIN sag.entity AS n USING (collection_id, entity_id)"
        " INNER JOIN sag.event AS e USING (collection_id, event_id)"
        " WHERE e.title = 'Acme' ORDER BY 1"
    ).fetchall() == [("Acme", "tag", False, None), ("Alice", "person", True, "founder")]
    # The title is part of the text.
    assert value(postgresql, "SELECT max(lexemes::text) FROM sag.event") == (
        "'acm':1,4 'alic':2 'found':3"
    )
    assert_counts_exact(postgresql)


def test_same_content_again_changes_nothing(postgresql: Connection) -> None:
    document = passage("a", "Alice founded Acme.", "Alice", "Acme")
    assert merge(postgresql, [document]) == {"a": "added"}
    before = postgresql.execute("SELECT ctid, * FROM sag.entity ORDER BY entity_id").fetchall()
    assert merge(postgresql, [document]) == {"a": "unchanged"}
    after = postgresql.execute("SELECT ctid, * FROM sag.entity ORDER BY entity_id").fetchall()
    assert before == after
    assert_counts_exact(postgresql)


def test_replaced_document_leaves_nothing_of_the_old_behind(postgresql: Connection) -> None:
    merge(
        postgresql,
        [
            passage("a", "Alice founded Acme with Zed.", "Alice", "Acme", "Zed"),
            passage("b", "Bob works at Acme.", "Bob", "Acme"),
        ],
    )
    postgresql.commit()
    shared = entity_ids(postgresql)["acme"]
    created, updated = postgresql.execute(
        "SELECT created_at, updated_at FROM sag.document WHERE source = 'a'"
    ).fetchone() or (None, None)
    assert created == updated
    postgresql.commit()

    assert merge(
        postgresql, [passage("a", "Alice founded Globex.", "Alice", "Globex", year=1)]
    ) == {"a": "replaced"}
    assert event_counts(postgresql) == {"alice": 1, "acme": 1, "bob": 1, "globex": 1}
    assert entity_ids(postgresql)["acme"] == shared
    assert row_counts(postgresql) == {
        "document": 2,
        "chunk": 2,
        "event": 2,
        "entity": 4,
        "entity_alias": 0,
        "event_entity": 4,
    }
    assert column(postgresql, "SELECT content FROM sag.chunk WHERE content LIKE '%%Zed%%'") == []
    assert postgresql.execute(
        "SELECT created_at = %s, updated_at > %s, metadata FROM sag.document WHERE source = 'a'",
        (created, created),
    ).fetchone() == (True, True, {"year": 1})
    assert_counts_exact(postgresql)


def test_replacing_within_the_transaction_that_added(postgresql: Connection) -> None:
    with postgresql.transaction():
        assert merge(postgresql, [passage("a", "one", "Acme")]) == {"a": "added"}
        assert merge(postgresql, [passage("a", "two", "Globex")]) == {"a": "replaced"}
    assert event_counts(postgresql) == {"globex": 1}
    assert_counts_exact(postgresql)


def test_document_shrinks_to_nothing_and_grows_again(postgresql: Connection) -> None:
    chunks = [Chunk(f"part {no}", [Entity("Acme"), Entity(f"Only {no}")]) for no in range(3)]
    merge(postgresql, [Document("a", chunks)])
    assert event_counts(postgresql)["acme"] == 3
    assert merge(postgresql, [Document("a", [])]) == {"a": "replaced"}
    assert row_counts(postgresql) == dict.fromkeys(TABLES, 0) | {"document": 1}
    assert_counts_exact(postgresql)
    assert merge(postgresql, [Document("a", chunks[:1])]) == {"a": "replaced"}
    assert event_counts(postgresql) == {"acme": 1, "only 0": 1}
    assert_counts_exact(postgresql)


def test_new_unchanged_and_replaced_in_one_batch(postgresql: Connection) -> None:
    merge(postgresql, [passage("a", "one", "Acme"), passage("b", "two", "Acme", "Bob")])
    postgresql.commit()
    assert merge(
        postgresql,
        [passage("c", "three", "Acme"), passage("a", "one", "Acme"), passage("b", "2", "Bob")],
    ) == {"c": "added", "a": "unchanged", "b": "replaced"}
    assert event_counts(postgresql) == {"acme": 2, "bob": 1}
    assert_counts_exact(postgresql)


def test_empty_batch(postgresql: Connection) -> None:
    assert merge(postgresql, []) == {}
    assert_counts_exact(postgresql)


def test_batch_tables_are_gone_after_the_merge(postgresql: Connection) -> None:
    merge(postgresql, [passage("a", "text", "Acme")])
    assert column(postgresql, "SELECT relname FROM pg_class WHERE relpersistence = 't'") == []


def test_collections_do_not_see_each_other(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.create_collection('other')")
    merge(postgresql, [passage("a", "one", "Acme")])
    merge(postgresql, [passage("a", "two", "Acme", "Bob")], "other")
    assert set(entity_ids(postgresql)) == {"acme"}
    assert set(entity_ids(postgresql, "other")) == {"acme", "bob"}
    assert delete(postgresql, ["a"], "other") == {"a"}
    assert set(event_ids(postgresql)) == {"a"}
    assert_counts_exact(postgresql)


# Entities.


def test_spellings_of_one_name_are_one_entity(postgresql: Connection) -> None:
    spellings = ["The Acme Corp.", "ACME CORP", "Acme Corp's", "acme  corp"]
    merge(
        postgresql,
        [
            Document(
                "a",
                [
                    Chunk("x", [Entity(name) for name in spellings]),
                    Chunk("y", [Entity(spellings[2], "organization")]),
                ],
            )
        ],
    )
    assert event_counts(postgresql) == {"acme corp": 2}
    assert_counts_exact(postgresql)


def test_of_equal_names_the_subject_counts_and_types_stay_on_the_link(
    postgresql: Connection,
) -> None:
    chunk = Chunk("x", [Entity("Apple"), Entity("apple", "product", is_subject=True)])
    merge(
        postgresql, [Document("a", [chunk]), Document("b", [Chunk("y", [Entity("APPLE", "work")])])]
    )
    assert postgresql.execute(
        "SELECT type, is_subject FROM sag.event_entity ORDER BY 1"
    ).fetchall() == [
        ("product", True),
        ("work", False),
    ]
    assert len(entity_ids(postgresql)) == 1


def test_names_too_short_or_too_long_are_left_out(postgresql: Connection) -> None:
    names = ["", " ", "x", "\t\n", "\u200b\u200b", "y" * 401]
    merge(postgresql, [passage("a", "text", *names, "Acme")])
    assert event_counts(postgresql) == {"acme": 1}


def test_hostile_names_are_names(postgresql: Connection) -> None:
    names = [
        "!!!",
        "O'Brien",
        "$$",
        r"back\slash",
        "100 %",
        "🎉🎉",
        "שלום",
        "हिन्दी",
        "收购",
        "y" * 400,
    ]
    merge(postgresql, [passage(name, f"text {name}", name, about=name) for name in names])
    assert sorted(column(postgresql, "SELECT name FROM sag.entity")) == sorted(names)
    assert delete(postgresql, names) == set(names)
    assert event_counts(postgresql) == {}


def test_alias_from_extraction_goes_with_its_entity(postgresql: Connection) -> None:
    chunk = Chunk(
        "x",
        [
            Entity("International Business Machines"),
            Entity("IBM", alias_of="International Business Machines"),
            Entity("ibm", alias_of="international business machines"),
            Entity("Big Blue", alias_of="Nobody Here"),
            Entity("International Business Machines'", alias_of="International Business Machines"),
        ],
    )
    merge(postgresql, [Document("a", [chunk])])
    assert postgresql.execute(
        "SELECT normalized_name, origin FROM sag.entity_alias"
    ).fetchall() == [("ibm", "extraction")]
    assert event_counts(postgresql) == {"international business machines": 1}
    delete(postgresql, ["a"])
    assert row_counts(postgresql) == dict.fromkeys(TABLES, 0)


def aliases(connection: Connection) -> set[str]:
    return set(column(connection, "SELECT normalized_name FROM sag.entity_alias"))


def test_alias_goes_with_the_last_event_that_gave_it(postgresql: Connection) -> None:
    """What a deleted document called an entity is not found by that name any more."""

    def document(source: str, *names: str) -> Document:
        given = [Entity(name, alias_of="Acme") for name in names]
        return Document(source, [Chunk(f"x {names}", [Entity("Acme"), *given])])

    merge(postgresql, [document("a", "The Firm", "Old Co"), document("b", "the firm")])
    merge(postgresql, [document("c")])
    assert aliases(postgresql) == {"firm", "old co"}
    merge(postgresql, [document("a", "New Co")])
    assert aliases(postgresql) == {"firm", "new co"}
    delete(postgresql, ["b"])
    assert aliases(postgresql) == {"new co"}
    # What a person gave, or has confirmed, stays with its entity.
    postgresql.execute("UPDATE sag.entity_alias SET origin = 'person'")
    delete(postgresql, ["a"])
    assert aliases(postgresql) == {"new co"}
    assert event_counts(postgresql) == {"acme": 1}
    assert_counts_exact(postgresql)


def test_alias_that_is_wrong_can_be_deleted(postgresql: Connection) -> None:
    chunk = Chunk("x", [Entity("Acme"), Entity("Globex", alias_of="Acme")])
    merge(postgresql, [Document("a", [chunk])])
    postgresql.execute("DELETE FROM sag.entity_alias")
    assert delete(postgresql, ["a"]) == {"a"}
    assert event_counts(postgresql) == {}


def test_alias_is_of_an_entity_in_its_own_chunk(postgresql: Connection) -> None:
    """What a document brings does not depend on the documents that are merged with it."""
    documents = [
        Document("a", [Chunk("x", [Entity("Bob"), Entity("The Firm", alias_of="Acme")])]),
        passage("b", "y", "Acme"),
    ]
    merge(postgresql, documents)
    assert aliases(postgresql) == set()
    # Nor do those count that are left out.
    merge(postgresql, [replace(documents[1], task_id=1), passage("c", "z", "Acme")])
    assert event_counts(postgresql) == {"bob": 1, "acme": 2}


def test_alias_from_a_person_keeps_its_entity(postgresql: Connection) -> None:
    merge(postgresql, [passage("a", "x", "Acme")])
    postgresql.execute(
        "INSERT INTO sag.entity_alias (collection_id, entity_id, name)"
        " SELECT collection_id, entity_id, 'The Firm' FROM sag.entity"
    )
    kept = entity_ids(postgresql)
    postgresql.commit()
    merge(postgresql, [passage("a", "y", "Globex")])
    assert event_counts(postgresql) == {"acme": 0, "globex": 1}
    delete(postgresql, ["a"])
    assert event_counts(postgresql) == {"acme": 0}
    merge(postgresql, [passage("a", "x", "ACME")])
    assert entity_ids(postgresql) == kept
    assert event_counts(postgresql) == {"acme": 1}
    assert_counts_exact(postgresql)


def test_embedding_of_an_entity_is_kept_and_filled_in(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    chunk = Chunk("x", [Entity("Acme"), Entity("Bob", embedding=[1, 0, 0])])
    merge(postgresql, [Document("a", [chunk])])
    chunk = Chunk(
        "y", [Entity("Acme", embedding=[0, 1, 0]), Entity("Bob", embedding=[0, 0, 1]), Entity("C3")]
    )
    merge(postgresql, [Document("b", [chunk])])
    assert dict(
        postgresql.execute("SELECT normalized_name, embedding::text FROM sag.entity").fetchall()
    ) == {"acme": "[0,1,0]", "bob": "[1,0,0]", "c3": None}


# Events with a text of their own, and vectors.


def test_statement_of_its_own_gives_the_chunk_its_own_lexemes_and_vector(
    postgresql: Connection,
) -> None:
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    chunks = [
        Chunk("He bought it.", (), "Deal", "Alice acquired Acme.", [1, 0, 0], [0, 1, 0]),
        Chunk("Bob sells cars.", (), "Cars", None, [0, 0, 1], [0, 1, 0]),
    ]
    merge(postgresql, [Document("a", chunks)])
    assert postgresql.execute(
        "SELECT tsvector_to_array(c.lexemes), c.embedding::text,"
        " tsvector_to_array(e.lexemes), e.embedding::text, e.content"
        " FROM sag.chunk AS c INNER JOIN sag.event AS e USING (collection_id, chunk_id)"
        " ORDER BY c.ordinal"
    ).fetchall() == [
        (
            ["bought", "deal"],
            "[0,1,0]",
            ["acm", "acquir", "alic", "deal"],
            "[1,0,0]",
            "Alice acquired Acme.",
        ),
        (None, None, ["bob", "car", "sell"], "[0,0,1]", None),
    ]
    assert postgresql.execute(
        "SELECT event_total, lexeme_total, embedding_total, statement_total"
        " FROM sag.collection_statistic"
    ).fetchone() == (2, 7, 2, 1)
    merge(postgresql, [Document("a", chunks[1:])])
    assert_counts_exact(postgresql)


def test_text_search_configuration_of_the_collection(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.create_collection('plain', 'simple')")
    merge(postgresql, [passage("a", "the houses")], "plain")
    assert column(postgresql, "SELECT tsvector_to_array(lexemes) FROM sag.event") == [
        ["houses", "the"]
    ]


def test_vector_without_an_embedding_space(postgresql: Connection) -> None:
    documents = {
        "event": passage("a", "x", embedding=[1, 0, 0]),
        "chunk": Document("a", [Chunk("x", statement="y", chunk_embedding=[1, 0, 0])]),
        "entity": Document("a", [Chunk("x", [Entity("Acme", embedding=[1, 0, 0])])]),
    }
    for kind, document in documents.items():
        with pytest.raises(
            errors.ObjectNotInPrerequisiteState, match="no embedding space"
        ) as caught:
            merge(postgresql, [document])
        assert "set_embedding_space" in str(caught.value.diag.message_hint), kind
    assert row_counts(postgresql) == dict.fromkeys(TABLES, 0)


@pytest.mark.parametrize("kind", ["event", "chunk", "entity"])
def test_vector_of_another_length(postgresql: Connection, kind: str) -> None:
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    postgresql.commit()
    vector = [1.0, 0.0]
    document = {
        "event": passage("b", "x", embedding=vector),
        "chunk": Document("b", [Chunk("x", statement="y", chunk_embedding=vector)]),
        "entity": Document("b", [Chunk("x", [Entity("Acme", embedding=vector)])]),
    }[kind]
    with pytest.raises(errors.DataException, match="expected 3 dimensions, not 2"):
        merge(postgresql, [passage("a", "fine", "Fine"), document])
    assert row_counts(postgresql) == dict.fromkeys(TABLES, 0)


def test_vector_without_direction_is_kept_as_none(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    nothing = [0.0, 0.0, 0.0]
    chunk = Chunk("x", [Entity("Acme", embedding=nothing)], "", "y", nothing, nothing)
    merge(postgresql, [Document("a", [chunk])])
    for table in ("chunk", "event", "entity"):
        query = f"SELECT embedding FROM sag.{table}"  # noqa: S608
        assert column(postgresql, query) == [None]
    assert_counts_exact(postgresql)


# Refusals leave nothing.


def test_unknown_entity_type(postgresql: Connection) -> None:
    bad = Document("b", [Chunk("x", [Entity("Acme", "compny")])])
    with pytest.raises(errors.ForeignKeyViolation, match="entity type 'compny'") as caught:
        merge(postgresql, [passage("a", "fine", "Fine"), bad])
    assert "organization, person" in str(caught.value.diag.message_detail)
    assert "sag.entity_type" in str(caught.value.diag.message_hint)
    assert row_counts(postgresql) == dict.fromkeys(TABLES, 0)

    postgresql.execute("INSERT INTO sag.entity_type VALUES ('compny', 'A firm')")
    assert merge(postgresql, [bad]) == {"b": "added"}


def test_source_of_more_than_2000_bytes(postgresql: Connection) -> None:
    # 667 characters of three bytes.
    for source in ("x" * 2001, "收" * 667, ""):
        with pytest.raises(errors.CheckViolation):
            merge(postgresql, [passage("a", "fine", "Fine"), passage(source, "x", "Acme")])
    assert row_counts(postgresql) == dict.fromkeys(TABLES, 0)
    assert merge(postgresql, [passage("x" * 2000, "x", "Acme")]) == {"x" * 2000: "added"}


def test_one_source_twice_in_a_batch(postgresql: Connection) -> None:
    with pytest.raises(errors.CardinalityViolation):
        merge(postgresql, [passage("a", "one"), passage("a", "two")])
    assert row_counts(postgresql) == dict.fromkeys(TABLES, 0)


def test_unknown_collection(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.create_collection('papers')")
    postgresql.commit()
    with pytest.raises(errors.UndefinedObject, match="'paper'") as caught:
        merge(postgresql, [passage("a", "x")], "paper")
    assert "'papers'" in str(caught.value.diag.message_detail)
    with pytest.raises(errors.UndefinedObject):
        delete(postgresql, ["a"], "paper")


# Tasks of the queue.


def take(connection: Connection, *sources: str, max_attempts: int = 3) -> tuple[int, list[int]]:
    """Puts documents into the queue, and gives all that is there to a new worker."""
    for source in sources:
        value(connection, "SELECT sag_ingest(%s, 'some text')", source)
    connection.execute(
        "UPDATE sag.ingest_task SET available_at = now(), max_attempts = %s", (max_attempts,)
    )
    worker = value(connection, "SELECT sag.register_worker('test')")
    taken = column(
        connection, "SELECT task_id FROM sag.take_tasks(%s, '{}', NULL, NULL, 10, 100)", worker
    )
    return worker, taken


def task_row(connection: Connection, task_id: int) -> dict[str, Any]:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            "SELECT state, worker_id, attempts, chunk_count, error, hint,"
            " finished_at IS NOT NULL AS is_finished, available_at > now() AS is_waiting,"
            " (SELECT count(*) FROM sag.ingest_piece AS p WHERE p.task_id = t.task_id) AS pieces"
            " FROM sag.ingest_task AS t WHERE task_id = %s",
            (task_id,),
        ).fetchone()
    assert row is not None
    return row


def test_a_merge_settles_its_tasks(postgresql: Connection) -> None:
    merge(postgresql, [passage("b", "old"), passage("c", "same")])
    worker, (a, b, c) = take(postgresql, "a", "b", "c")
    documents = [
        replace(passage("a", "new", "Acme"), task_id=a),
        Document("b", [Chunk("one"), Chunk("two")], task_id=b),
        replace(passage("c", "same"), task_id=c),
    ]
    states = {"a": "added", "b": "replaced", "c": "unchanged"}
    assert merge(postgresql, documents, worker=worker) == states
    done = {"worker_id": None, "attempts": 0, "error": None, "hint": None, "is_finished": True}
    done |= {"is_waiting": False, "pieces": 0}
    assert task_row(postgresql, a) == {"state": "added", "chunk_count": 1, **done}
    assert task_row(postgresql, b) == {"state": "replaced", "chunk_count": 2, **done}
    assert task_row(postgresql, c) == {"state": "unchanged", "chunk_count": 0, **done}
    assert dict(postgresql.execute("SELECT source, task_id FROM sag.document").fetchall()) == {
        "a": a,
        "b": b,
        "c": c,
    }
    # A merge around the queue leaves it standing.
    merge(postgresql, [passage("a", "by hand")])
    assert value(postgresql, "SELECT task_id FROM sag.document WHERE source = 'a'") == a


def test_a_merge_leaves_out_what_its_worker_has_no_longer(postgresql: Connection) -> None:
    worker, (a, b) = take(postgresql, "a", "b")
    postgresql.execute("SELECT sag.release_tasks(%s, ARRAY[%s::bigint])", (worker, b))
    other, _ = take(postgresql)
    given = Entity("Left Out Inc", alias_of="Left Out")
    documents = [
        Document("a", [Chunk("x", [Entity("Left Out"), given])], task_id=a),
        replace(passage("b", "y", "Acme"), task_id=b),
        passage("c", "z", "Acme"),
    ]
    states = {"a": "superseded", "b": "added", "c": "added"}
    assert merge(postgresql, documents, worker=worker) == states
    assert event_counts(postgresql) == {"acme": 2}
    assert aliases(postgresql) == set()
    assert task_row(postgresql, a)["state"] == "running"
    assert task_row(postgresql, a)["worker_id"] == other
    assert merge(postgresql, documents[:1], worker=other) == {"a": "added"}
    # Nobody's, or said to be so.
    assert merge(postgresql, documents[:1], worker=worker) == {"a": "superseded"}
    assert merge(postgresql, documents[:1]) == {"a": "superseded"}
    assert_counts_exact(postgresql)


def test_an_older_task_changes_nothing(postgresql: Connection) -> None:
    first, (old,) = take(postgresql, "a")
    second, (new,) = take(postgresql, "a")
    content = passage("a", "newest", "Acme")
    # The newest content is there already; that it is confirmed keeps what is older out.
    merge(postgresql, [content])
    unchanged = {"a": "unchanged"}
    assert merge(postgresql, [replace(content, task_id=new)], worker=second) == unchanged
    late = replace(passage("a", "older", "Globex"), task_id=old)
    assert merge(postgresql, [late], worker=first) == {"a": "superseded"}
    assert event_counts(postgresql) == {"acme": 1}
    assert value(postgresql, "SELECT task_id FROM sag.document") == new


def failures(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT ordinal, attempts, error, hint FROM sag.chunk_failure ORDER BY ordinal"
    ).fetchall()


def test_chunks_for_which_a_model_failed(postgresql: Connection) -> None:
    def document(*failed: tuple[int, str, str | None]) -> Document:
        chunks = [Chunk(f"part {no}", [Entity("Acme")]) for no in range(4)]
        return Document("a", chunks, task_id=task, failures=failed)

    worker, (task,) = take(postgresql, "a", max_attempts=3)
    failed = [(2, "no answer", "Try later."), (1, "refused", None)]
    assert merge(postgresql, [document(*failed)], worker=worker) == {"a": "added"}
    # The document is in, and waits for the next attempt.
    row = task_row(postgresql, task)
    assert row == {
        "state": "queued",
        "worker_id": None,
        "attempts": 1,
        "chunk_count": 4,
        "error": "models failed for 2 of 4 chunks; refused",
        "hint": None,
        "is_finished": False,
        "is_waiting": True,
        "pieces": 1,
    }
    assert failures(postgresql) == [(1, 1, "refused", None), (2, 1, "no answer", "Try later.")]

    worker, _ = take(postgresql)
    assert merge(postgresql, [document(failed[0])], worker=worker) == {"a": "replaced"}
    assert failures(postgresql) == [(2, 2, "no answer", "Try later.")]
    worker, _ = take(postgresql)
    assert merge(postgresql, [document(failed[0])], worker=worker) == {"a": "unchanged"}
    assert failures(postgresql) == [(2, 3, "no answer", "Try later.")]
    row = task_row(postgresql, task)
    assert (row["state"], row["attempts"], row["is_finished"]) == ("incomplete", 3, True)
    assert (row["hint"], row["pieces"]) == ("Try later.", 1)

    postgresql.execute("SELECT sag.retry_job(job_id) FROM sag.ingest_job")
    worker, _ = take(postgresql)
    assert merge(postgresql, [document()], worker=worker) == {"a": "replaced"}
    assert failures(postgresql) == []
    row = task_row(postgresql, task)
    assert (row["state"], row["error"], row["pieces"]) == ("replaced", None, 0)
    assert_counts_exact(postgresql)


# Deleting.


# Answers of models.


def store(connection: Connection, *keys: bytes, collection: str = "default") -> None:
    worker = value(connection, "SELECT sag.register_worker('test')")
    for key in keys:
        connection.execute(
            "SELECT sag.store_answer(%s, %s, %s, 'a model', '{\"entities\": []}')",
            (collection, worker, key),
        )


def known(connection: Connection, *keys: bytes, collection: str = "default") -> set[bytes]:
    rows = connection.execute(
        "SELECT answer_key FROM sag.known_answers(%s, %s)", (collection, list(keys))
    )
    return {row[0] for row in rows}


def test_an_answer_stays_while_a_chunk_carries_it(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.create_collection('other')")
    keys = (b"1", b"2", b"3", b"4")
    store(postgresql, *keys)
    store(postgresql, b"1", b"1")
    store(postgresql, b"1", collection="other")
    merge(
        postgresql,
        [
            Document("a", [Chunk("one", answer_key=b"1"), Chunk("two", answer_key=b"2")]),
            Document("b", [Chunk("two", answer_key=b"2"), Chunk("three", answer_key=b"3")]),
            Document("c", [Chunk("no model's")]),
        ],
    )
    assert known(postgresql, *keys, b"6") == set(keys)
    # What a newer content has no more may come back; what is deleted is gone.
    merge(postgresql, [Document("b", [Chunk("two", answer_key=b"2")])])
    assert known(postgresql, *keys) == set(keys)
    delete(postgresql, ["a", "c"])
    assert known(postgresql, *keys) == {b"2", b"3", b"4"}
    delete(postgresql, ["b"])
    assert known(postgresql, *keys) == {b"3", b"4"}
    assert known(postgresql, *keys, collection="other") == {b"1"}


def test_answers_of_a_merge_that_is_rolled_back_stay(postgresql: Connection) -> None:
    store(postgresql, b"1")
    wrong = Document("a", [Chunk("one", [Entity("Acme", "no type")], answer_key=b"1")])
    with pytest.raises(errors.ForeignKeyViolation), postgresql.transaction():
        merge(postgresql, [wrong])
    assert known(postgresql, b"1") == {b"1"}


def test_answers_that_no_chunk_carries_go_in_the_end(postgresql: Connection) -> None:
    store(postgresql, b"old", b"new", b"used")
    merge(postgresql, [Document("a", [Chunk("one", answer_key=b"used")])])
    postgresql.execute(
        "UPDATE sag.model_answer SET created_at = now() - interval '31 days'"
        " WHERE answer_key <> 'new'"
    )
    postgresql.execute("SELECT sag.purge_queue()")
    assert known(postgresql, b"old", b"new", b"used") == {b"new", b"used"}


def test_answers_go_with_their_collection(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.create_collection('other')")
    store(postgresql, b"1", collection="other")
    postgresql.execute("SELECT sag.drop_collection('other')")
    assert value(postgresql, "SELECT count(*) FROM sag.model_answer") == 0
    postgresql.commit()
    with pytest.raises(errors.UndefinedObject), postgresql.transaction():
        store(postgresql, b"1", collection="other")


def test_a_writer_stores_answers_and_a_reader_does_not(postgresql: Connection) -> None:
    postgresql.execute("SET LOCAL ROLE sag_writer")
    store(postgresql, b"1", b"2")
    assert merge(postgresql, [Document("a", [Chunk("one", answer_key=b"1")])]) == {"a": "added"}
    assert delete(postgresql, ["a"]) == {"a"}
    assert known(postgresql, b"1", b"2") == {b"2"}
    postgresql.execute("SET LOCAL ROLE sag_reader")
    assert known(postgresql, b"2") == {b"2"}
    with pytest.raises(errors.InsufficientPrivilege), postgresql.transaction():
        store(postgresql, b"3")


def test_a_document_says_what_made_its_events(postgresql: Connection) -> None:
    def extractors() -> dict[str, str | None]:
        rows = postgresql.execute("SELECT source, extractor FROM sag.document")
        return dict(rows.fetchall())

    merge(postgresql, [Document("a", [Chunk("x")], extractor="model+prompt-1"), Document("b", [])])
    assert extractors() == {"a": "model+prompt-1", "b": None}
    merge(postgresql, [Document("a", [Chunk("x")], extractor="model+prompt-2")])
    assert extractors() == {"a": "model+prompt-2", "b": None}


def test_delete_documents(postgresql: Connection) -> None:
    merge(
        postgresql,
        [
            passage("a", "one", "Acme", "Alice"),
            passage("b", "two", "Acme", "Bob"),
            passage("c", "three", "Acme"),
        ],
    )
    assert delete(postgresql, ["a", "b", "b", "not there"]) == {"a", "b"}
    assert event_counts(postgresql) == {"acme": 1}
    assert row_counts(postgresql)["event"] == 1
    assert_counts_exact(postgresql)
    assert delete(postgresql, ["a"]) == set()
    assert delete(postgresql, []) == set()
    assert delete(postgresql, ["c"]) == {"c"}
    assert row_counts(postgresql) == dict.fromkeys(TABLES, 0)
    assert_counts_exact(postgresql)


@pytest.mark.parametrize("is_analyzed", [False, True])
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_work_is_proportional_to_what_is_deleted_or_merged(
    postgresql: Connection, mode: str, is_analyzed: bool
) -> None:
    """No statement reads the collection, whatever the planner knows of it."""
    documents = [
        Document(
            f"source {no}",
            [Chunk(f"text {no}", [Entity("Hub"), Entity(f"Own {no}")], answer_key=b"%d" % no)],
        )
        for no in range(2000)
    ]
    store(postgresql, *(b"%d" % no for no in range(5)))
    merge(postgresql, documents)
    postgresql.commit()
    if is_analyzed:
        postgresql.execute("ANALYZE")
        postgresql.commit()
    postgresql.execute(f"SET plan_cache_mode = {mode}".encode())

    def rows_read() -> int:
        return int(
            value(
                postgresql,
                "SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0)"
                " FROM pg_stat_xact_user_tables"
                " WHERE schemaname = 'sag' AND relname NOT IN ('entity_type', 'parameter')",
            )
        )

    def rows_read_by(step: Callable[[], object]) -> int:
        before = rows_read()
        step()
        return rows_read() - before

    few = documents[:5]
    sources = [document.source for document in few]
    changed = [replace(document, title="changed") for document in few]
    alias = Entity("The Hub", alias_of="Hub")
    new = [Document("new", [Chunk("x", [Entity("Hub"), Entity("New"), alias])])]
    assert rows_read_by(lambda: merge(postgresql, new)) < 100
    assert rows_read_by(lambda: merge(postgresql, few)) < 100
    assert rows_read_by(lambda: merge(postgresql, changed)) < 400
    assert rows_read_by(lambda: delete(postgresql, [*sources, "new"])) < 400
    worker, tasks = take(postgresql, *sources)
    queued = [replace(d, task_id=task) for d, task in zip(few, tasks, strict=True)]
    assert rows_read_by(lambda: merge(postgresql, queued, worker=worker)) < 400
    assert_counts_exact(postgresql)


def test_drop_collection(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.create_collection('other')")
    merge(postgresql, [passage("a", "one", "Acme")])
    chunk = Chunk("x", [Entity("Acme"), Entity("The Firm", alias_of="Acme")], statement="y")
    merge(postgresql, [Document("a", [chunk])], "other")
    worker = value(postgresql, "SELECT sag.register_worker('test')")
    job = value(postgresql, "SELECT sag.start_job('other', %s, '{}')", worker)
    postgresql.execute("SELECT sag.record_failure('other', %s, 'b', 'unreadable', NULL)", (job,))
    postgresql.execute(
        "SELECT sag.add_usage('other', %s, '{m}', '{1}', '{1}', '{1}', '{1}')", (job,)
    )
    value(postgresql, "SELECT sag_ingest('c', 'Some text.', collection => 'other')")
    assert value(postgresql, "SELECT state FROM sag.job_status WHERE failed = 1") == "loading"

    postgresql.execute("SELECT sag.drop_collection('other')")
    assert column(postgresql, "SELECT name FROM sag.collection") == ["default"]
    assert row_counts(postgresql)["document"] == 1
    assert value(postgresql, "SELECT count(*) FROM sag.ingest_task") == 0
    assert column(postgresql, "SELECT origin FROM sag.ingest_job") == ["sql"]
    assert_counts_exact(postgresql)
    postgresql.commit()
    with pytest.raises(errors.UndefinedObject), postgresql.transaction():
        postgresql.execute("SELECT sag.drop_collection('other')")
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        postgresql.execute("SELECT sag.drop_collection('default')")


@pytest.mark.parametrize("table", ["document", "chunk", "event", "entity"])
def test_delete_around_the_functions_is_refused(postgresql: Connection, table: str) -> None:
    merge(postgresql, [passage("a", "one", "Acme")])
    with pytest.raises(errors.ForeignKeyViolation):
        postgresql.execute(f"DELETE FROM sag.{table}".encode())  # noqa: S608


def test_unchanged_sources(postgresql: Connection) -> None:
    documents = [passage("a", "one"), passage("b", "two")]
    merge(postgresql, documents)
    asked = [*documents, passage("c", "three")]
    hashes = [documents[0].content_hash, b"another", asked[2].content_hash]
    assert column(
        postgresql,
        "SELECT source FROM sag.unchanged_sources('default', %s, %s)",
        [document.source for document in asked],
        hashes,
    ) == ["a"]


def test_collection_statistics(postgresql: Connection) -> None:
    postgresql.execute("SELECT sag.create_collection('other')")
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    merge(postgresql, [passage("a", "x", "Acme", "Bob", embedding=[1, 0, 0]), passage("b", "y")])
    assert postgresql.execute("SELECT * FROM sag.collection_statistics()").fetchall() == [
        ("default", 2, 2, 1, 2),
        ("other", 0, 0, 0, 0),
    ]


# Many steps.


def random_document(source: str, chance: random.Random, names: list[str]) -> Document:
    chunks = [
        Chunk(
            f"{chance.random()} " + " ".join(chance.choices(names, k=3)),
            [
                Entity(name.upper() if chance.random() < 0.3 else name, is_subject=no == 0)
                for no, name in enumerate(chance.sample(names, k=chance.randint(0, 4)))
            ]
            + [Entity("the " + names[0], alias_of=names[1])],
            statement="a statement" if chance.random() < 0.3 else None,
            embedding=[chance.random() + 0.1, 1, 0] if chance.random() < 0.5 else None,
        )
        for _ in range(chance.randint(0, 3))
    ]
    return Document(source, chunks)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_course_of_ingests_replacements_and_deletions_keeps_counts_exact(
    postgresql: Connection, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311
    names = [f"Name {no}" for no in range(8)]
    sources = [f"source {no}" for no in range(10)]
    postgresql.execute("SELECT sag.set_embedding_space('tiny', 3)")
    postgresql.commit()
    expected: dict[str, Document] = {}
    for _ in range(15):
        chosen = chance.sample(sources, k=chance.randint(1, 5))
        if chance.random() < 0.3:
            assert delete(postgresql, chosen) == expected.keys() & set(chosen)
            expected = {s: d for s, d in expected.items() if s not in chosen}
        else:
            batch = {source: random_document(source, chance, names) for source in chosen}
            batch |= {s: d for s, d in expected.items() if chance.random() < 0.2}
            outcome = merge(postgresql, batch.values())
            assert outcome == {
                source: "added"
                if source not in expected
                else "unchanged"
                if expected[source] == document
                else "replaced"
                for source, document in batch.items()
            }
            expected |= batch
        postgresql.commit()
        assert_counts_exact(postgresql)
    stored = postgresql.execute(
        "SELECT d.source, array_remove(array_agg(c.content ORDER BY c.ordinal), NULL)"
        " FROM sag.document AS d LEFT JOIN sag.chunk AS c USING (collection_id, document_id)"
        " GROUP BY d.source"
    )
    assert dict(stored.fetchall()) == {
        source: [chunk.content for chunk in document.chunks]
        for source, document in expected.items()
    }
