"""What every file of sql/ and every object in the database must be like."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlglot.dialects.postgres import Postgres
from sqlglot.tokens import Token, TokenType

from sag_pg import scripts

SOURCES = scripts.sources_folder()
SOURCE_FILES = sorted(path for path in SOURCES.rglob("*.sql") if path.name != "load.sql")
MIGRATION_FILES = sorted(scripts.migrations_folder().glob("*.sql"))

# What may stand in a file that is applied again and again: it replaces, it does not add.
REPEATABLE = re.compile(
    r"CREATE OR REPLACE |COMMENT ON |GRANT |REVOKE |DO \$|DROP \w+ IF EXISTS sag\."
    r"|SELECT set_config\s*\(|INSERT INTO .*\sON CONFLICT\s",
    re.DOTALL,
)
OBJECT = re.compile(
    r"CREATE OR REPLACE (?P<kind>FUNCTION|PROCEDURE|AGGREGATE|VIEW) (?P<name>[\w.]+)"
)


def label(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def statements(path: Path) -> list[str]:
    """The texts of a file's statements, without the comments before them."""
    text = path.read_text()
    found: list[list[Token]] = [[]]
    for token in Postgres().tokenize(text):
        if token.token_type == TokenType.SEMICOLON:
            found.append([])
        else:
            found[-1].append(token)
    assert not found[-1], f"{label(path)}: the last statement has no semicolon"
    return [text[tokens[0].start : tokens[-1].end + 1] for tokens in found[:-1]]


def names(connection: psycopg.Connection[Any], query: str) -> list[str]:
    return [row[0] for row in connection.execute(query.encode())]


# The files.


def test_load_sql_names_every_file_exactly_once() -> None:
    listed = [script.name for script in scripts.load_program().sources]
    present = [path.relative_to(SOURCES).as_posix() for path in SOURCE_FILES]
    assert Counter(listed) == Counter(present)


@pytest.mark.parametrize("path", SOURCE_FILES + MIGRATION_FILES, ids=label)
def test_form_of_a_file(path: Path) -> None:
    content = path.read_bytes()
    text = content.decode("utf-8")
    assert "\t" not in text
    assert "\r" not in text
    assert content.endswith(b"\n")
    assert not content.endswith(b"\n\n")
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    # sqlfluff does not look into the bodies of functions.
    assert [line for line in text.splitlines() if len(line) > 100] == []
    assert statements(path)


@pytest.mark.parametrize("path", SOURCE_FILES, ids=label)
def test_source_only_replaces(path: Path) -> None:
    for statement in statements(path):
        assert REPEATABLE.match(statement), statement.partition("\n")[0]


@pytest.mark.parametrize("path", MIGRATION_FILES, ids=label)
def test_migration_leaves_transactions_to_the_runner(path: Path) -> None:
    for statement in statements(path):
        assert not re.match(r"BEGIN|COMMIT|ROLLBACK|START TRANSACTION|SET |RESET ", statement)
        assert not re.match(r"CREATE EXTENSION", statement), "the runner creates extensions"


@pytest.mark.parametrize("path", SOURCE_FILES, ids=label)
def test_object_has_a_file_of_its_name_and_its_comment_beside_it(path: Path) -> None:
    texts = statements(path)
    created = [match for text in texts if (match := OBJECT.match(text))]
    for match in created:
        comment = f"COMMENT ON {match['kind']} {match['name']}"
        assert any(text.startswith(comment) for text in texts), f"{comment} is missing"
    if created:
        found = {match["name"].rpartition(".")[2] for match in created}
        assert path.stem in found
        # An aggregate stands together with the functions that only it calls.
        assert all(name.startswith(path.stem) for name in found)


# The migrated database.


def test_every_object_has_a_comment(postgresql: psycopg.Connection[Any]) -> None:
    missing = names(
        postgresql,
        """
        SELECT 'function ' || p.oid::regprocedure
        FROM pg_proc AS p
        WHERE (p.pronamespace = 'sag'::regnamespace
               OR p.pronamespace = 'public'::regnamespace AND p.proname LIKE 'sag\\_%')
            AND obj_description(p.oid, 'pg_proc') IS NULL
        UNION ALL
        SELECT 'relation ' || c.oid::regclass
        FROM pg_class AS c
        WHERE c.relnamespace = 'sag'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
            AND obj_description(c.oid, 'pg_class') IS NULL
        UNION ALL
        SELECT 'column ' || a.attrelid::regclass || '.' || a.attname
        FROM pg_attribute AS a
        INNER JOIN pg_class AS c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'sag'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
            AND a.attnum > 0 AND NOT a.attisdropped
            AND col_description(a.attrelid, a.attnum) IS NULL
        UNION ALL
        SELECT 'type ' || t.oid::regtype
        FROM pg_type AS t
        LEFT JOIN pg_class AS c ON c.oid = t.typrelid
        WHERE t.typnamespace = 'sag'::regnamespace AND t.typelem = 0
            AND (c.oid IS NULL OR c.relkind = 'c')
            AND obj_description(t.oid, 'pg_type') IS NULL
        """,
    )
    assert missing == []


def test_functions_that_read_data_have_a_fixed_search_path(
    postgresql: psycopg.Connection[Any],
) -> None:
    # A body parsed when it was created (RETURN, BEGIN ATOMIC) needs none. Immutable functions,
    # called once a row, do without: setting it costs more than they do.
    loose = names(
        postgresql,
        """
        SELECT p.oid::regprocedure::text
        FROM pg_proc AS p
        INNER JOIN pg_language AS l ON l.oid = p.prolang
        WHERE (p.pronamespace = 'sag'::regnamespace
               OR p.pronamespace = 'public'::regnamespace AND p.proname LIKE 'sag\\_%')
            AND l.lanname IN ('sql', 'plpgsql') AND p.prosqlbody IS NULL
            AND p.provolatile <> 'i'
            AND NOT EXISTS (
                SELECT FROM unnest(p.proconfig) AS s (setting)
                WHERE s.setting LIKE 'search\\_path=%'
            )
        """,
    )
    assert not loose, "\n".join(loose)


def test_text_functions_work_under_any_search_path(postgresql: psycopg.Connection[Any]) -> None:
    postgresql.execute("SET LOCAL search_path = ''")
    row = postgresql.execute(
        "SELECT sag.normalize_entity('The Acme'), sag.text_vector('pg_catalog.english', 'running')"
    ).fetchone()
    assert row == ("acme", "'run':1")


def test_collection_id_leads_every_key(postgresql: psycopg.Connection[Any]) -> None:
    # What lets the same schema be sharded: DESIGN's data model.
    offending = names(
        postgresql,
        """
        SELECT k.conrelid::regclass || ': ' || k.conname
        FROM pg_constraint AS k
        INNER JOIN pg_attribute AS a
            ON a.attrelid = k.conrelid AND a.attname = 'collection_id' AND NOT a.attisdropped
        WHERE k.connamespace = 'sag'::regnamespace AND k.contype IN ('p', 'u', 'f')
            AND k.conrelid <> 'sag.collection'::regclass
            -- What all collections share, such as types of entities, is referred to as is.
            AND (k.contype <> 'f' OR EXISTS (
                SELECT FROM pg_attribute AS f
                WHERE f.attrelid = k.confrelid AND f.attname = 'collection_id'
            ))
            AND (NOT a.attnum = ANY (k.conkey) OR k.contype = 'p' AND k.conkey[1] <> a.attnum)
        """,
    )
    assert offending == []


def test_nothing_but_the_entry_points_is_outside_the_schema(
    postgresql: psycopg.Connection[Any],
) -> None:
    outside = names(
        postgresql,
        """
        SELECT p.proname FROM pg_proc AS p
        WHERE p.oid >= 16384 AND p.pronamespace <> 'sag'::regnamespace
            AND p.proname NOT LIKE 'sag\\_%'
            AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.objid = p.oid AND d.deptype = 'e')
        UNION ALL
        SELECT c.relname FROM pg_class AS c
        WHERE c.oid >= 16384 AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
            AND c.relnamespace <> 'sag'::regnamespace
        """,
    )
    assert outside == []
