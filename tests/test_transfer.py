"""Export and import of a collection: the same bytes, the same evidence, and never half of it."""

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from conftest import Server
from corpus import (
    Chunk,
    Connection,
    Document,
    Entity,
    assert_counts_exact,
    collection_id,
    column,
    delete,
    entity_ids,
    merge,
    value,
)
from model_server import ModelServer
from psycopg import conninfo, errors
from pytest_postgresql.janitor import DatabaseJanitor

from sag_pg import config, migrate
from sag_pg.cli import main
from sag_pg.client import Client
from sag_pg.errors import ConfigurationError, LoadError, SagError
from sag_pg.ingest.document import text_document
from sag_pg.ingest.job import ingest
from sag_pg.models.load import load_embedding_model, load_extractor
from sag_pg.models.settings import ModelSettings
from sag_pg.transfer import export_collection, import_collection

KINDS = ("documents", "chunks", "events", "links", "entities", "answers")
NAMES = (
    ["Acme", "Über 'quoted'", 'back\\slash "x"', "灯笼鱼计划", "O'Neil", "Kelmouth", "100 %"]
    + ["東京タワー", "$$ tag", "tab\there", "Zoë\u200f", "\U0001f980 crab"]
    + [f"Company {number}" for number in range(40)]
)
QUESTIONS = (
    "Whom did Acme meet?",
    "灯笼鱼计划和東京タワー",
    "Kelmouth and Company 7",
    "The Firm and Company 9",
)


def vector(chance: random.Random) -> list[float]:
    """Three numbers as different as half precision has them, down to its smallest."""
    return [chance.uniform(-1, 1) * 10.0 ** chance.randint(-7, 4) for _ in range(3)]


def random_documents(seed: int, count: int = 60, prefix: str = "") -> list[Document]:
    chance = random.Random(seed)  # noqa: S311
    documents = []
    for number in range(count):
        chunks = []
        # One that is longer than what is copied at once.
        for ordinal in range(300 if number == 5 else chance.randint(0, 4)):
            names = chance.sample(NAMES, 3)
            text = f"{names[0]} met {names[1]} — no. {number}/{ordinal}.\tŧ\r\n\\N {names[2]}"
            has_statement = chance.random() < 0.4
            chunks.append(
                Chunk(
                    text,
                    [
                        Entity(names[0], "ship", is_subject=True, role="it 'meets' \\"),
                        Entity(names[1].upper(), "person", embedding=vector(chance)),
                        Entity(names[2], "person"),
                        Entity(f"Alias of {names[2]}", alias_of=names[2]),
                        Entity(chance.choice(NAMES), alias_of=names[0]),
                    ],
                    title=chance.choice(["", "Title \\n", "标题"]),
                    statement=f"{names[0]} has met {names[1]}." if has_statement else None,
                    embedding=vector(chance) if chance.random() < 0.8 else None,
                    chunk_embedding=vector(chance) if has_statement else None,
                    answer_key=b"key %d" % (number % 30) if has_statement else None,
                )
            )
        documents.append(
            Document(
                prefix + chance.choice(["d/{} ü", "D{}", "文{}", "z{}'\"\\"]).format(number),
                chunks,
                title=chance.choice(["", "Заголовок", 'a "b" \\']),
                metadata={"n": number, "x": [1.5, None, {"lang": "zh"}, 1e-9], "big": 2**60},
                extractor=chance.choice([None, "a model"]),
            )
        )
    return documents


def fill(connection: Connection, collection: str) -> None:
    """A corpus with all that a collection can hold."""
    connection.execute("SELECT sag.set_embedding_space('small', 3)")
    connection.execute("SELECT sag.create_collection(%s, 'simple')", [collection])
    connection.execute("SELECT sag.set_parameter('hops', '2', %s)", [collection])
    connection.execute("INSERT INTO sag.entity_type VALUES ('ship', 'Ships that ''sail''')")
    # In the order of the export: among events of equal score the one that came first is taken.
    merge(connection, sorted(random_documents(7), key=lambda each: each.source), collection)
    # Numbers that only numeric holds, as SQL clients write them.
    connection.execute(
        'UPDATE sag.document SET metadata = metadata || \'{"price": 1.50, "tiny":'
        ' 0.12345678901234567890123, "huge": 1e400}\''
        " WHERE document_id = (SELECT min(document_id) FROM sag.document)"
    )
    merge(connection, [Document("gone", [Chunk("x", [Entity("Old Name")])])], collection)
    for name, alias in (
        ("acme", "The Firm"),
        # One that events give too, and one whose entity no event carries any more.
        ("kelmouth", "Alias of Kelmouth"),
        ("old name", "Ancient"),
    ):
        connection.execute(
            "INSERT INTO sag.entity_alias (collection_id, entity_id, name)"
            " SELECT collection_id, entity_id, %s FROM sag.entity WHERE normalized_name = %s"
            " ON CONFLICT (collection_id, normalized_name, entity_id)"
            " DO UPDATE SET origin = 'person'",
            (alias, name),
        )
    # From a database whose aliases did not know their events yet.
    connection.execute(
        "INSERT INTO sag.entity_alias (collection_id, entity_id, name, origin)"
        " SELECT collection_id, entity_id, 'Early', 'extraction' FROM sag.entity"
        " WHERE normalized_name = 'acme'"
    )
    delete(connection, ["gone"], collection)
    worker = value(connection, "SELECT sag.register_worker('test')")
    for number in range(30):
        connection.execute(
            "SELECT sag.store_answer(%s, %s, %s, 'openai:m+p', %s)",
            (collection, worker, b"key %d" % number, json.dumps({"n": number, "é": [1.25]})),
        )
    # One that a worker is asking for.
    connection.execute(
        "SELECT FROM sag.claim_answers(%s, %s, 'openai:m+p', %s)", (collection, worker, [b"open"])
    )


@pytest.fixture
def source(database_url: str) -> Iterator[Connection]:
    with migrate.connect_migrated(config.resolve(database_url, None)) as connection:
        fill(connection, "from")
        yield connection


@pytest.fixture
def target_url(embedded_server: Server, postgresql_noproc: Any) -> Iterator[str]:
    """A second migrated database."""
    with DatabaseJanitor(
        host=embedded_server.host,
        port=embedded_server.port,
        user=embedded_server.user,
        dbname="sag_target",
        template_dbname=postgresql_noproc.template_dbname,
    ):
        yield embedded_server.url("sag_target")


@pytest.fixture
def target(target_url: str) -> Iterator[Connection]:
    with migrate.connect_migrated(config.resolve(target_url, None)) as connection:
        yield connection


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def read(directory: Path, kind: str) -> list[Any]:
    return [json.loads(line) for line in (directory / f"{kind}.jsonl").read_bytes().splitlines()]


def manifest(directory: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((directory / "manifest.json").read_text("utf-8"))
    return facts


def seal(directory: Path, **facts: Any) -> None:
    """Make the manifest fit files that were changed."""
    found = {**manifest(directory), **facts}
    for kind in KINDS:
        content = (directory / f"{kind}.jsonl").read_bytes()
        found["files"][f"{kind}.jsonl"] = {
            "lines": content.count(b"\n"),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    (directory / "manifest.json").write_text(json.dumps(found), "utf-8")


def evidence(connection: Connection, collection: str) -> list[list[Any]]:
    client = Client(connection, collection=collection)
    return [
        sorted(
            (found.score or 0, found.source, found.start_offset, found.event, found.via, found.mode)
            for found in client.retrieve(question, embedding=embedding)
        )
        for question in QUESTIONS
        for embedding in ([0.5, 0.4, 1.0], None)
    ]


def test_round_trip(source: Connection, target: Connection, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    exported = export_collection(source, "from", first)
    assert exported.documents == 60
    assert exported.chunks == exported.events > 300
    assert exported.answers == 30
    assert set(files(first)) == {"manifest.json", *(f"{kind}.jsonl" for kind in KINDS)}
    export_collection(source, "from", second)
    assert files(second) == files(first)

    imported = import_collection(target, first)
    assert (imported.added, imported.documents, imported.chunks) == (60, 60, exported.chunks)
    assert (imported.collection, imported.answers) == ("from", 30)
    assert_counts_exact(target)
    assert not export_differs(target, first, tmp_path / "third")
    # Again it changes nothing.
    again = import_collection(target, first)
    assert (again.unchanged, again.added, again.replaced, again.chunks) == (60, 0, 0, 0)
    assert not export_differs(target, first, tmp_path / "fourth")

    found = evidence(source, "from")
    assert [len(rows) > 0 for rows in found] == [True] * len(found)
    assert evidence(target, "from") == found
    assert column(target, "SELECT parameters ->> 'hops' FROM sag.collection ORDER BY 1") == [
        "2",
        None,
    ]
    # Every bit of the vectors is the same, and each event gave the same aliases.
    for query in (
        "SELECT encode(halfvec_send(embedding), 'hex') FROM sag.event ORDER BY 1",
        "SELECT encode(halfvec_send(embedding), 'hex') FROM sag.chunk ORDER BY 1",
        "SELECT normalized_name || encode(halfvec_send(embedding), 'hex') FROM sag.entity"
        " ORDER BY 1",
        "SELECT count(*) FROM sag.event_alias",
    ):
        assert column(target, query) == column(source, query)


def export_differs(connection: Connection, first: Path, second: Path) -> list[str]:
    """The files in which an export differs from an earlier one."""
    export_collection(connection, manifest(first)["collection"], second)
    before, after = files(first), files(second)
    return [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]


def test_what_was_imported_can_be_deleted(
    source: Connection, target: Connection, tmp_path: Path
) -> None:
    export_collection(source, "from", tmp_path / "set")
    import_collection(target, tmp_path / "set")
    for connection in (source, target):
        sources = column(connection, "SELECT source FROM sag.document")
        assert len(delete(connection, sources, "from")) == 60
        assert_counts_exact(connection)
        # What a person said stays; the rest is gone, aliases included.
        assert set(entity_ids(connection, "from")) == {"acme", "kelmouth", "old name"}
        assert set(column(connection, "SELECT name FROM sag.entity_alias")) >= {
            "The Firm",
            "Alias of Kelmouth",
            "Ancient",
        }
        assert value(connection, "SELECT count(*) FROM sag.event_alias") == 0
    assert column(source, "SELECT name FROM sag.entity_alias ORDER BY name") == column(
        target, "SELECT name FROM sag.entity_alias ORDER BY name"
    )


def test_the_default_collection(source: Connection, target: Connection, tmp_path: Path) -> None:
    source.execute("SELECT sag.set_parameter('hops', '3', 'default')")
    source.execute(
        "UPDATE sag.collection SET text_search_configuration = 'pg_catalog.french'"
        " WHERE name = 'default'"
    )
    merge(source, [Document("mots", [Chunk("Les chevaux courent.")])])
    export_collection(source, "default", tmp_path / "set")
    # Nothing in it has a vector, so that no model is asked for.
    assert manifest(tmp_path / "set")["embedding_space"] is None
    target.execute("SELECT sag.set_embedding_space('other', 4)")
    import_collection(target, tmp_path / "set")
    assert not export_differs(target, tmp_path / "set", tmp_path / "again")
    assert value(target, "SELECT lexemes @@ 'cheval' FROM sag.event")


def test_into_a_collection_that_holds_others(
    source: Connection, target: Connection, tmp_path: Path
) -> None:
    export_collection(source, "from", tmp_path / "set")
    target.execute("SELECT sag.set_embedding_space('small', 3)")
    target.execute("SELECT sag.set_parameter('hops', '0', 'default')")
    mine = [
        Document("mine", [Chunk("Acme stays.", [Entity("ACME"), Entity("Firm", alias_of="ACME")])]),
        Document(read(tmp_path / "set", "documents")[3]["source"], [Chunk("Other content.")]),
    ]
    merge(target, mine)
    target.execute(
        "SELECT FROM sag.claim_answers('default', sag.register_worker('w'), 'm', ARRAY[%s::bytea])",
        [b"key 1"],
    )
    imported = import_collection(target, tmp_path / "set", "default")
    assert (imported.added, imported.replaced) == (59, 1)
    assert_counts_exact(target)
    assert value(target, "SELECT count(*) FROM sag.document WHERE source = 'mine'") == 1
    # Its own settings and its own names stay; a worker finds the answer that it waits for.
    assert value(target, "SELECT parameters FROM sag.collection WHERE name = 'default'") == {
        "hops": 0
    }
    assert value(target, "SELECT name FROM sag.entity WHERE normalized_name = 'acme'") == "ACME"
    assert value(target, "SELECT count(*) FROM sag.model_answer WHERE answer IS NULL") == 0


def test_vectors_of_another_model(source: Connection, target: Connection, tmp_path: Path) -> None:
    export_collection(source, "from", tmp_path / "set")
    target.execute("SELECT sag.set_embedding_space('other', 4)")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="model 'other'") as caught:
        import_collection(target, tmp_path / "set")
    assert "--without-embeddings" in (caught.value.diag.message_hint or "")
    assert column(target, "SELECT name FROM sag.collection") == ["default"]
    imported = import_collection(target, tmp_path / "set", embeddings=False)
    assert imported.added == 60
    assert_counts_exact(target)
    assert value(target, "SELECT count(embedding) FROM sag.entity") == 0
    assert value(target, "SELECT count(embedding) FROM sag.event") == 0
    assert value(target, "SELECT count(*) FROM sag.entity") == value(
        source, "SELECT count(*) FROM sag.entity"
    )
    # And where there is no model at all.
    export_collection(target, "from", tmp_path / "bare")
    assert manifest(tmp_path / "bare")["embedding_space"] is None


def test_a_model_that_changes_meanwhile(
    source: Connection, target: Connection, target_url: str, tmp_path: Path
) -> None:
    merge(source, [Document(f"m{no}", [Chunk(f"Text {no}.")] * 300) for no in range(8)], "from")
    export_collection(source, "from", tmp_path / "set")

    def change(documents: int, total: int) -> None:
        with psycopg.connect(target_url, autocommit=True) as other:
            other.execute("UPDATE sag.embedding_space SET model = 'next'")

    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="model 'next'"):
        import_collection(target, tmp_path / "set", progress=change)


def test_beside_a_reembedding(source: Connection, target: Connection, tmp_path: Path) -> None:
    export_collection(source, "from", tmp_path / "set")
    target.execute("SELECT sag.set_embedding_space('small', 3)")
    target.execute("SELECT sag.start_reembedding('next', 4)")
    import_collection(target, tmp_path / "set")
    for kind, rows in (
        ("event", "SELECT event_id FROM sag.event ORDER BY 1"),
        ("chunk", "SELECT chunk_id FROM sag.chunk WHERE lexemes IS NOT NULL ORDER BY 1"),
        ("entity", "SELECT entity_id FROM sag.entity WHERE embedding IS NOT NULL ORDER BY 1"),
    ):
        assert column(
            target, "SELECT row_id FROM sag.reembed_task WHERE kind = %s ORDER BY 1", kind
        ) == column(target, rows)


def test_answers_are_not_bought_again(
    source: Connection, target: Connection, tmp_path: Path
) -> None:
    with ModelServer() as server:
        settings = ModelSettings.from_environment({}, base_url=server.url, model_retries=0)

        def run(connection: Connection, prefix: str) -> Any:
            return ingest(
                connection,
                [
                    text_document(f"{prefix}{number}", f"Plant{number} stands in Oslo.", title="T")
                    for number in range(5)
                ],
                collection="paid",
                extractor=load_extractor("openai:test-chat", settings),
                embedding_model=load_embedding_model("openai:test-embedding", settings),
            )

        # The model behind the endpoint has another length of vectors.
        target.execute("SELECT sag.create_collection('paid')")
        assert run(target, "d").added == 5
        asked = server.count("extraction")
        assert asked == 5
        export_collection(target, "paid", tmp_path / "set")
        source.execute("SELECT sag.drop_collection('from')")
        source.execute("DELETE FROM sag.embedding_space")
        import_collection(source, tmp_path / "set")
        assert run(source, "d").unchanged == 5
        assert run(source, "copy of d").added == 5
        assert server.count("extraction") == asked


# Sets that are not what was exported.


def change_line(number: int, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        lines = path.read_text("utf-8").split("\n")
        record = json.loads(lines[number - 1])
        changed = change(record)
        lines[number - 1] = json.dumps(record if changed is None else changed)
        path.write_text("\n".join(lines), "utf-8")

    return edit


def swap_lines(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2], lines[3] = lines[3], lines[2]
    path.write_bytes(b"".join(lines))


def drop_line(number: int) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        del lines[number - 1]
        path.write_bytes(b"".join(lines))

    return edit


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def set_to(key: str, given: Any) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.__setitem__(key, given)


def without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.__delitem__(key)


WRONG: list[tuple[str, Callable[[Path], Any], str]] = [
    ("documents", swap_lines, r"documents\.jsonl, line 4: the source .* is out of order"),
    ("documents", change_line(3, without("title")), r'line 3: "title" is missing'),
    ("documents", change_line(3, set_to("metadata", [])), r'"metadata" is an array'),
    ("documents", change_line(3, set_to("content_hash", "xyz")), r'"content_hash" is wrong'),
    ("documents", change_line(3, lambda record: [record]), "line 3: an object belongs here"),
    ("documents", drop_line(5), r"chunks\.jsonl, line \d+: the source .* or no document"),
    ("documents", change_line(3, set_to("title", "a\0b")), r"one of the lines 1 to \d+"),
    ("documents", change_line(3, set_to("title", "\ud800")), r"one of the lines 1 to \d+"),
    ("chunks", change_line(7, set_to("ordinal", "1")), r'line 7: "ordinal" is a text'),
    ("chunks", change_line(7, set_to("ordinal", 2**31)), r'line 7: "ordinal" is wrong'),
    ("chunks", change_line(7, set_to("ordinal", True)), r'line 7: "ordinal" is true or'),
    ("chunks", change_line(7, set_to("heading_path", [1])), r'line 7: "heading_path" is wrong'),
    ("chunks", change_line(7, set_to("embedding", [1.0])), r"line 7: the vector has 1 dim"),
    ("chunks", change_line(7, set_to("embedding", [1e9] * 3)), r'"embedding" is wrong'),
    ("chunks", change_line(7, set_to("embedding", ["a"])), r'line 7: "embedding" is wrong'),
    ("chunks", change_line(7, set_to("embedding", [float("nan")] * 3)), "line 7: NaN is no"),
    ("chunks", truncate, r"chunks\.jsonl, line \d+: the line is cut off"),
    ("events", drop_line(9), r"events\.jsonl, line 9: the event of chunk \d+ of"),
    ("events", change_line(9, set_to("source", "!")), r"line 9: the event of chunk"),
    ("links", change_line(1, set_to("ordinal", 999)), r"links\.jsonl, line 1: .* no chunk 999"),
    ("links", change_line(1, set_to("source", "!")), r"links\.jsonl, line 1: the source '!'"),
    ("links", change_line(1, set_to("type", "boat")), r"entity type 'boat' does not exist"),
    ("entities", change_line(2, set_to("aliases", [{}])), r'line 2: "aliases" is wrong'),
    ("answers", change_line(2, set_to("answer", None)), r'line 2: "answer" is null'),
    ("answers", lambda path: path.write_bytes(b"{\n"), r"answers\.jsonl, line 1: "),
    ("answers", lambda path: path.write_bytes(b"\xff\n"), r"answers\.jsonl, line 1: .*utf-8"),
    ("answers", lambda path: path.write_bytes(b"[" * 10**5 + b"\n"), r"answers\.jsonl, line 1"),
]


def test_a_wrong_line_is_named(source: Connection, target: Connection, tmp_path: Path) -> None:
    export_collection(source, "from", tmp_path / "set")
    for number, (kind, edit, complaint) in enumerate(WRONG):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "set", directory)
        edit(directory / f"{kind}.jsonl")
        # Before anything is written, where the manifest tells.
        with pytest.raises(LoadError, match=rf"{kind}\.jsonl"):
            import_collection(target, directory, str(number))
        assert column(target, "SELECT name FROM sag.collection WHERE name = %s", str(number)) == []
        # At the line, where it does not.
        seal(directory)
        with pytest.raises(LoadError, match=complaint):
            import_collection(target, directory, str(number))
    assert_counts_exact(target)


def test_metadata_may_be_as_deep_as_is_read(
    source: Connection, target: Connection, tmp_path: Path
) -> None:
    export_collection(source, "from", tmp_path / "set")
    path = tmp_path / "set" / "documents.jsonl"
    kept = path.read_bytes()
    for number, is_refused in (("1", False), ("1.0000000000000000000001", True)):
        deep = '{"a":' * 600 + number + "}" * 600
        lines = kept.split(b"\n")
        record = json.loads(lines[0])
        record["metadata"] = 0
        lines[0] = json.dumps(record).replace('"metadata": 0', f'"metadata": {deep}').encode()
        path.write_bytes(b"\n".join(lines))
        seal(tmp_path / "set")
        if is_refused:
            with pytest.raises(LoadError, match=r"documents\.jsonl, one of the lines 1 to"):
                import_collection(target, tmp_path / "set", "refused")
        else:
            import_collection(target, tmp_path / "set", "deep")
            export_collection(target, "deep", tmp_path / "again")
            assert deep in (tmp_path / "again" / "documents.jsonl").read_text().replace(" ", "")


def test_files_that_are_not_as_exported(
    source: Connection, target: Connection, tmp_path: Path
) -> None:
    directory = tmp_path / "set"
    export_collection(source, "from", directory)
    with pytest.raises(LoadError, match=r"manifest\.json cannot be read") as caught:
        import_collection(target, tmp_path)
    assert caught.value.hint == "Name the directory that sag-pg export wrote."
    chunks = directory / "chunks.jsonl"
    whole = chunks.read_bytes()
    lines = whole.splitlines(keepends=True)
    chunks.write_bytes(b"".join(lines[:-2]))
    count = len(lines)
    with pytest.raises(LoadError, match=rf"line {count - 2}: the file ends here, and {count} line"):
        import_collection(target, directory)
    chunks.write_bytes(whole.replace(b"Kelmouth", b"Kelsouth"))
    with pytest.raises(LoadError, match=r"chunks\.jsonl was changed"):
        import_collection(target, directory)
    chunks.unlink()
    with pytest.raises(LoadError, match=r"chunks\.jsonl cannot be read: No such file"):
        import_collection(target, directory)
    chunks.write_bytes(whole)
    kept = (directory / "manifest.json").read_text("utf-8")
    for change, complaint in (
        ({"format_version": 2}, "format version 2; this program knows 1"),
        ({"format_version": None}, '"format_version" is null'),
        ({"entity_types": {"a": 1}}, '"entity_types" is wrong'),
        ({"embedding_space": {"model": "m"}}, '"dimensions" is missing'),
        ({"files": {}}, r'"documents\.jsonl" is missing'),
    ):
        (directory / "manifest.json").write_text(
            json.dumps({**json.loads(kept), **change}), "utf-8"
        )
        with pytest.raises(LoadError, match=rf"manifest\.json.*{complaint}"):
            import_collection(target, directory)
    (directory / "manifest.json").write_text(kept[:-10], "utf-8")
    with pytest.raises(LoadError, match=r"manifest\.json is no JSON"):
        import_collection(target, directory)
    assert column(target, "SELECT name FROM sag.collection") == ["default"]
    # A parameter of another version of the program, and a configuration that is not there.
    (directory / "manifest.json").write_text(kept, "utf-8")
    seal(directory, parameters={"hopps": 1})
    with pytest.raises(psycopg.Error, match="parameter 'hopps' does not exist"):
        import_collection(target, directory)
    seal(directory, parameters={}, text_search_configuration="public.none")
    with pytest.raises(errors.UndefinedObject, match=r"'public\.none'") as missing:
        import_collection(target, directory)
    assert "create_collection('from', 'simple')" in (missing.value.diag.message_hint or "")
    target.execute("SELECT sag.create_collection('from', 'simple')")
    assert import_collection(target, directory).added == 60


# The directory.


def test_a_directory_that_is_there(source: Connection, tmp_path: Path) -> None:
    directory = tmp_path / "set"
    directory.mkdir()
    export_collection(source, "from", directory)
    with pytest.raises(ConfigurationError, match="earlier export"):
        export_collection(source, "from", directory)
    merge(source, [Document("further", [Chunk("More.")])], "from")
    link = tmp_path / "link"
    link.symlink_to(directory)
    exported = export_collection(source, "from", link, overwrite=True)
    assert exported.documents == len(read(directory, "documents")) == 61
    assert link.is_symlink()
    # Nothing of the user's is deleted.
    (directory / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="not just an earlier export"):
        export_collection(source, "from", directory, overwrite=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "chunks.jsonl").write_text("mine")
    with pytest.raises(ConfigurationError, match="not just an earlier export"):
        export_collection(source, "from", other, overwrite=True)
    for path in (other / "chunks.jsonl", other / "chunks.jsonl" / "below"):
        with pytest.raises(ConfigurationError, match="Not a directory"):
            export_collection(source, "from", path)
    with pytest.raises(SagError, match="cannot be written: File name too long"):
        export_collection(source, "from", tmp_path / ("x" * 250))
    with pytest.raises(errors.UndefinedObject):
        export_collection(source, "missing", tmp_path / "none")
    # Nothing half written is left of what failed.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "other", "set"]


def test_an_export_that_fails_leaves_the_earlier_one(source: Connection, tmp_path: Path) -> None:
    directory = tmp_path / "set"
    export_collection(source, "from", directory)
    before = files(directory)
    merge(source, [Document("further", [Chunk("More.")])], "from")

    def fail(lines: int) -> None:
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("set.partial-")]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_collection(source, "from", directory, overwrite=True, progress=fail)
    assert files(directory) == before
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    # The connection is as good as before.
    assert export_collection(source, "from", directory, overwrite=True).documents == 61


def test_an_export_is_of_one_moment(source: Connection, tmp_path: Path) -> None:
    url = source.info.dsn
    rounds = 0
    ended = threading.Event()

    def write() -> None:
        nonlocal rounds
        with migrate.connect_migrated(config.resolve(url, None)) as connection:
            while not ended.is_set():
                rounds += 1
                # Replaces about half of them, and adds or deletes others.
                merge(connection, random_documents(rounds, 4 + rounds % 7), "from")
                sources = column(connection, "SELECT source FROM sag.document LIMIT %s", rounds % 5)
                delete(connection, sources, "from")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            before = rounds
            directory = tmp_path / str(number)
            exported = export_collection(source, "from", directory)
            listed = manifest(directory)["files"]
            lines = {kind: read(directory, kind) for kind in KINDS}
            for kind in KINDS:
                assert listed[f"{kind}.jsonl"]["lines"] == len(lines[kind])
                assert getattr(exported, kind) == len(lines[kind])
            chunks = [(chunk["source"], chunk["ordinal"]) for chunk in lines["chunks"]]
            assert [(event["source"], event["ordinal"]) for event in lines["events"]] == chunks
            assert {source for source, _ in chunks} <= {
                document["source"] for document in lines["documents"]
            }
            assert {(link["source"], link["ordinal"]) for link in lines["links"]} <= set(chunks)
            assert {link["entity"] for link in lines["links"]} <= {
                entity["name"] for entity in lines["entities"]
            }
            while rounds == before and writer.is_alive():
                time.sleep(0.01)
    finally:
        ended.set()
        writer.join()
    assert rounds >= 5


# The commands.


def invoke(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--database-url", url, *arguments])


def test_commands(source: Connection, target: Connection, target_url: str, tmp_path: Path) -> None:
    directory = str(tmp_path / "set")
    result = invoke(source.info.dsn, "export", "-c", "from", directory, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["documents"] == 60
    result = invoke(source.info.dsn, "export", "-c", "from", directory)
    assert result.exit_code == 2
    assert "--force" in result.stderr
    result = invoke(source.info.dsn, "export", "-c", "from", directory, "--force")
    assert result.exit_code == 0, result.output
    assert "documents   60\n" in result.stdout

    result = invoke(target_url, "import", directory, "-c", "to", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["added"] == 60
    target.execute("SELECT sag.create_collection('german', 'german')")
    result = invoke(target_url, "import", directory, "-c", "german", "--without-embeddings")
    assert result.exit_code == 0, result.output
    assert "added       60\n" in result.stdout
    assert "keeps its text search configuration pg_catalog.german" in result.stderr
    assert "sag-pg reembed" in result.stderr
    result = invoke(target_url, "import", str(tmp_path))
    assert result.exit_code == 1
    assert "Name the directory that sag-pg export wrote" in result.stderr
    assert invoke(target_url, "import", str(tmp_path / "none")).exit_code == 2
    assert invoke(target_url, "export", "-c", "none", str(tmp_path / "x")).exit_code == 1


def test_an_import_that_is_killed_goes_on(
    source: Connection, target: Connection, target_url: str, tmp_path: Path
) -> None:
    merge(
        source, [Document(f"more {no}", [Chunk(f"Text {no}.")] * 2) for no in range(3000)], "from"
    )
    directory = tmp_path / "set"
    export_collection(source, "from", directory)
    # In the middle it has to wait for this lock.
    locked = threading.Event()
    killed = threading.Event()

    def hold() -> None:
        with psycopg.connect(target_url) as other:
            while value(other, "SELECT count(*) FROM sag.document") < 500:
                other.rollback()
                time.sleep(0.005)
            other.execute("SELECT FROM sag.lock_collection('from')")
            locked.set()
            assert killed.wait(60)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    process = subprocess.Popen(
        [sys.executable, "-m", "sag_pg", "--database-url", target_url, "import", str(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert locked.wait(60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed.set()
    holder.join()
    before = value(target, "SELECT count(*) FROM sag.document")
    assert 500 <= before < 3060
    assert_counts_exact(target)
    result = invoke(target_url, "import", str(directory), "--json")
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout)
    assert counts["added"] + counts["unchanged"] == 3060
    assert counts["unchanged"] >= before
    assert_counts_exact(target)
    assert not export_differs(target, directory, tmp_path / "again")


def test_a_server_that_comes_back(
    source: Connection, target: Connection, target_url: str, tmp_path: Path
) -> None:
    merge(source, [Document(f"m{no}", [Chunk(f"Text {no}.")] * 300) for no in range(8)], "from")
    export_collection(source, "from", tmp_path / "set")

    def cut(documents: int, total: int) -> None:
        with psycopg.connect(target_url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    imported = import_collection(target, tmp_path / "set", progress=cut)
    assert imported.documents == 68
    with migrate.connect_migrated(config.resolve(target_url, None)) as connection:
        assert_counts_exact(connection)
        assert not export_differs(connection, tmp_path / "set", tmp_path / "again")


def test_a_reader_exports_and_a_writer_imports(
    source: Connection, target: Connection, target_url: str, tmp_path: Path
) -> None:
    source.execute("CREATE ROLE transfer_reader LOGIN IN ROLE sag_reader")
    source.execute("CREATE ROLE transfer_writer LOGIN IN ROLE sag_writer")
    directory = str(tmp_path / "set")
    try:
        url = conninfo.make_conninfo(source.info.dsn, user="transfer_reader")
        result = invoke(url, "export", "-c", "from", directory)
        assert result.exit_code == 0, result.output
        url = conninfo.make_conninfo(target_url, user="transfer_writer")
        result = invoke(url, "import", directory)
        assert result.exit_code == 1
        assert "only the owner of sag's tables sets the embedding space" in result.stderr
        assert "SELECT sag.set_embedding_space('small', 3);" in result.stderr
        target.execute("SELECT sag.set_embedding_space('small', 3)")
        result = invoke(url, "import", directory)
        assert result.exit_code == 1
        assert "They are: ship." in result.stderr
        assert "VALUES ('ship', 'Ships that ''sail''');" in result.stderr
        target.execute("INSERT INTO sag.entity_type VALUES ('ship', 'Ships that ''sail''')")
        result = invoke(url, "import", directory, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["added"] == 60
        assert not export_differs(target, tmp_path / "set", tmp_path / "again")
    finally:
        source.execute("DROP ROLE transfer_reader")
        source.execute("DROP ROLE transfer_writer")


def test_only_the_named_collection_is_exported(source: Connection, tmp_path: Path) -> None:
    export_collection(source, "from", tmp_path / "before")
    source.execute("SELECT sag.create_collection('neighbour')")
    merge(source, random_documents(11, prefix="other "), "neighbour")
    assert collection_id(source, "neighbour") != collection_id(source, "from")
    assert not export_differs(source, tmp_path / "before", tmp_path / "after")
