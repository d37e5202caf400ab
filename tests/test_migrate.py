"""Migrating: the program's own files, and small ones that fail, drift or are newer."""

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import Server
from pgvector import HalfVector
from psycopg import sql

from sag_pg import config, database, embedded, migrate, scripts
from sag_pg.errors import (
    DatabaseError,
    DatabaseNewerError,
    MigrationError,
    MigrationsPendingError,
)

Connection = psycopg.Connection[Any]

LEDGER = """\
CREATE SCHEMA sag;
CREATE TABLE sag.migration (
    version integer PRIMARY KEY, name text NOT NULL, sha256 text NOT NULL,
    applied_at timestamptz NOT NULL, program_version text NOT NULL
);
CREATE TABLE sag.applied_source (
    path text PRIMARY KEY, sha256 text NOT NULL, applied_at timestamptz DEFAULT now()
);
"""


class Files:
    """Folders of SQL that a test writes, and the program that they make."""

    def __init__(self, root: Path) -> None:
        self.migrations = root / "migrations"
        self.sources = root / "sql"
        self.migrations.mkdir()
        self.sources.mkdir()
        self.write("migrations/0001_ledger.sql", LEDGER)
        self.write("sql/load.sql", "-- in order\n\n\\ir a.sql\n\\ir b/c.sql\n")
        self.write("sql/a.sql", "CREATE OR REPLACE VIEW sag.a AS SELECT 1 AS x;\n")
        self.write("sql/b/c.sql", "CREATE OR REPLACE VIEW sag.c AS SELECT x FROM sag.a;\n")

    def write(self, name: str, text: str) -> None:
        path = self.migrations.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def program(self) -> scripts.Program:
        return scripts.load_program(self.migrations, self.sources)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Connection]:
    with connect(empty_database_url) as connection:
        yield connection


@pytest.fixture
def role(embedded_server: Server) -> Iterator[str]:
    """A role that may log in and nothing else; ask for it before the database."""
    name = 'plain "role"'
    with connect(embedded_server.url("postgres")) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def connect(url: str) -> Connection:
    return database.connect(config.resolve(url, environ={}))


def objects(connection: Connection) -> set[str]:
    """Everything in the database that is not PostgreSQL's own."""
    rows = connection.execute(
        "SELECT 'schema ' || nspname FROM pg_namespace WHERE oid >= 16384"
        " UNION ALL SELECT 'relation ' || relname FROM pg_class WHERE oid >= 16384"
        "   AND relnamespace <> 'pg_toast'::regnamespace"
        " UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE oid >= 16384"
        " UNION ALL SELECT 'extension ' || extname FROM pg_extension WHERE oid >= 16384"
    )
    return {row[0] for row in rows}


# The program's own files.


def test_names_are_contiguous_and_released_files_are_frozen() -> None:
    program = scripts.load_program()
    numbers = [int(script.name[:4]) for script in program.migrations]
    assert numbers == list(range(1, len(numbers) + 1))
    frozen = scripts.migrations_folder() / "frozen.txt"
    for line in frozen.read_text().splitlines() if frozen.exists() else []:
        sha256, name = line.split()
        content = (scripts.migrations_folder() / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == sha256, f"{name} was changed after release"


def test_fresh_database_becomes_current_and_the_second_run_does_nothing(
    empty: Connection,
) -> None:
    program = scripts.load_program()
    with pytest.raises(MigrationsPendingError, match="no sag-pg schema yet") as caught:
        migrate.check(empty)
    assert (caught.value.exit_code, caught.value.hint) == (3, "Run: sag-pg migrate")

    outcome = migrate.migrate(empty)
    assert outcome.extensions == ("pg_trgm", "vector")
    assert outcome.migrations == tuple(script.name for script in program.migrations)
    assert outcome.sources == len(program.sources)
    migrate.check(empty)

    before = objects(empty)
    ledger = empty.execute("SELECT * FROM sag.migration").fetchall()
    again = migrate.migrate(empty)
    assert (again.extensions, again.migrations, again.sources_changed) == ((), (), ())
    assert objects(empty) == before
    assert empty.execute("SELECT * FROM sag.migration").fetchall() == ledger


def test_twenty_runs_at_once_agree(empty_database_url: str) -> None:
    def run(_: int) -> tuple[str, ...]:
        with connect(empty_database_url) as connection:
            return migrate.migrate(connection).migrations

    with ThreadPoolExecutor(20) as pool:
        done = list(pool.map(run, range(20)))
    assert sorted(map(bool, done)) == [False] * 19 + [True]
    with connect(empty_database_url) as connection:
        assert migrate.inspect(connection).is_current
        locks = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert locks.fetchone() == (0,)


def test_extensions_may_stand_in_another_schema(empty: Connection) -> None:
    empty.execute("CREATE SCHEMA extensions")
    empty.execute("CREATE EXTENSION vector SCHEMA extensions")
    empty.execute("CREATE EXTENSION pg_trgm SCHEMA extensions")
    assert migrate.migrate(empty).extensions == ()
    migrate.check(empty)
    rows = empty.execute(
        "SELECT extname, extnamespace::regnamespace::text FROM pg_extension"
        " WHERE extname IN ('vector', 'pg_trgm') ORDER BY extname"
    )
    assert rows.fetchall() == [("pg_trgm", "extensions"), ("vector", "extensions")]

    assert database.register_types(empty)
    row = empty.execute("SELECT %s::extensions.halfvec", (HalfVector([1, 2]),)).fetchone()
    assert row == (HalfVector([1, 2]),)


def test_owner_of_the_database_needs_no_superuser(
    role: str, empty_database_url: str, embedded_server: Server
) -> None:
    with connect(empty_database_url) as admin:
        admin.execute("CREATE EXTENSION vector")
        admin.execute(sql.SQL("ALTER DATABASE sag_empty OWNER TO {}").format(sql.Identifier(role)))
        # Where the owner of the database is not the owner of public.
        admin.execute("ALTER SCHEMA public OWNER TO postgres")
        admin.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(sql.Identifier(role)))
    with connect(embedded_server.url("sag_empty", user=role)) as connection:
        assert migrate.migrate(connection).extensions == ("pg_trgm",)
        migrate.check(connection)


def test_psql_loads_the_same_files(empty_database_url: str, empty: Connection) -> None:
    migrate.migrate(empty)
    process = subprocess.run(
        [
            embedded.bin_dir() / "psql",
            *("-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null"),
            *("-f", scripts.sources_folder() / "load.sql", "-d", empty_database_url),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (process.returncode, process.stderr) == (0, "")


# What is missing, and whom to ask for it.


def test_role_without_privileges_learns_every_statement_to_ask_for(
    role: str, empty_database_url: str, embedded_server: Server
) -> None:
    with connect(embedded_server.url("sag_empty", user=role)) as connection:
        before = objects(connection)
        for dry_run in (True, False):
            with pytest.raises(MigrationError, match="lacks privileges") as caught:
                migrate.migrate(connection, dry_run=dry_run)
            assert caught.value.hint is not None
            statements = [line.strip() for line in caught.value.hint.splitlines()[1:]]
            assert statements == [
                "CREATE EXTENSION pg_trgm;",
                "CREATE EXTENSION vector;",
                'GRANT CREATE ON DATABASE "sag_empty" TO "plain ""role""";',
                'GRANT CREATE ON SCHEMA public TO "plain ""role""";',
            ]
        assert objects(connection) == before
    # Exactly these make it work.
    with connect(empty_database_url) as admin:
        for statement in statements:
            admin.execute(statement.encode())
    with connect(embedded_server.url("sag_empty", user=role)) as connection:
        migrate.migrate(connection)
        migrate.check(connection)


def test_other_owner_of_the_schema_is_named(
    role: str, empty: Connection, embedded_server: Server, files: Files
) -> None:
    migrate.migrate(empty, files.program())
    with connect(embedded_server.url("sag_empty", user=role)) as connection:
        with pytest.raises(DatabaseError, match="cannot be read") as caught:
            migrate.migrate(connection, files.program())
        assert caught.value.hint is not None
        asked = caught.value.hint.partition(": ")[2]
        empty.execute(asked.encode())
        migrate.check(connection, files.program())
        with pytest.raises(MigrationError, match="does not own the schema") as refused:
            migrate.migrate(connection, files.program())
    assert refused.value.hint is not None
    assert refused.value.hint == "Let its owner postgres run: sag-pg migrate"


def test_database_in_another_encoding_is_refused(embedded_server: Server, files: Files) -> None:
    with connect(embedded_server.url("postgres")) as admin:
        admin.execute(
            "CREATE DATABASE sag_latin1 TEMPLATE template0 ENCODING 'LATIN1'"
            " LOCALE_PROVIDER libc LOCALE 'C'"
        )
        try:
            with (
                connect(embedded_server.url("sag_latin1")) as connection,
                pytest.raises(DatabaseError, match="encoding LATIN1") as caught,
            ):
                migrate.migrate(connection, files.program())
            assert caught.value.hint is not None
            assert "ENCODING 'UTF8'" in caught.value.hint
        finally:
            admin.execute("DROP DATABASE sag_latin1")


def test_too_old_extension_is_refused(empty: Connection, files: Files) -> None:
    empty.execute("CREATE EXTENSION vector")
    empty.execute("UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'")
    with pytest.raises(MigrationError, match=r"vector has version 0\.7\.4") as caught:
        migrate.migrate(empty, files.program())
    assert caught.value.hint is not None
    assert "ALTER EXTENSION vector UPDATE" in caught.value.hint


# Failing, drifting, newer.


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("migrations/0002_x.sql", "CREATE TABLE sag.x ();\n\nCREATE TABEL y ();\n", "line 3"),
        ("migrations/0002_x.sql", "SELECT 'é';\nSELECT gone FROM pg_class;\n", "line 2"),
        ("sql/b/c.sql", "-- c\nCREATE VIEW sag.c AS SELECT * FROM gone;\n", "line 2"),
    ],
)
def test_failing_run_leaves_no_trace_and_names_the_place(
    empty: Connection, files: Files, name: str, text: str, message: str
) -> None:
    before = objects(empty)
    files.write(name, text)
    with pytest.raises(MigrationError, match=f"{name}, {message}: .*SQLSTATE 42"):
        migrate.migrate(empty, files.program())
    assert objects(empty) == before
    assert empty.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    ).fetchone() == (0,)


def test_error_at_run_time_comes_with_detail_context_and_hint(
    empty: Connection, files: Files
) -> None:
    files.write(
        "migrations/0002_x.sql",
        "DO $$ BEGIN RAISE EXCEPTION 'no' USING DETAIL = 'why', HINT = 'how'; END $$;",
    )
    with pytest.raises(MigrationError) as caught:
        migrate.migrate(empty, files.program())
    assert str(caught.value).startswith("migrations/0002_x.sql: no (SQLSTATE P0001)\nDETAIL: why")
    assert "CONTEXT: PL/pgSQL function inline_code_block line 1" in str(caught.value)
    assert caught.value.hint == "how"


def test_dry_run_tells_and_changes_nothing(empty: Connection, files: Files) -> None:
    before = objects(empty)
    outcome = migrate.migrate(empty, files.program(), dry_run=True)
    assert outcome == migrate.Outcome(
        extensions=("pg_trgm", "vector"),
        migrations=("0001_ledger.sql",),
        sources_changed=("a.sql", "b/c.sql"),
        sources=2,
    )
    assert objects(empty) == before
    assert migrate.migrate(empty, files.program()) == outcome


def test_newer_database_is_refused(empty: Connection, files: Files) -> None:
    older = files.program()
    files.write("migrations/0002_future.sql", "CREATE TABLE sag.future ();")
    migrate.migrate(empty, files.program())
    assert migrate.inspect(empty, older).database_newer
    for action in (migrate.check, migrate.migrate):
        with pytest.raises(DatabaseNewerError, match=r"0002_future\.sql") as caught:
            action(empty, older)
        assert caught.value.exit_code == 4


def test_changed_migration_is_drift(empty: Connection, files: Files) -> None:
    migrate.migrate(empty, files.program())
    files.write("migrations/0001_ledger.sql", LEDGER + "-- changed\n")
    assert migrate.inspect(empty, files.program()).drifted == ("0001_ledger.sql",)
    for action in (migrate.check, migrate.migrate):
        with pytest.raises(MigrationsPendingError, match=r"differ .* 0001_ledger\.sql") as caught:
            action(empty, files.program())
        assert caught.value.exit_code == 3


def test_sources_drift_when_changed_added_or_gone(empty: Connection, files: Files) -> None:
    migrate.migrate(empty, files.program())
    files.write("sql/a.sql", "CREATE OR REPLACE VIEW sag.a AS SELECT 1 AS x, 2 AS y;\n")
    files.write("sql/d.sql", "CREATE OR REPLACE VIEW sag.d AS SELECT 3 AS z;\n")
    files.write("sql/load.sql", "\\ir a.sql\n\\ir d.sql\n")
    changed = ("a.sql", "d.sql", "b/c.sql")
    assert migrate.inspect(empty, files.program()).sources_drifted == changed
    with pytest.raises(MigrationsPendingError, match=r"3 files of sql/ differ"):
        migrate.check(empty, files.program())
    assert migrate.migrate(empty, files.program()).sources_changed == changed
    migrate.check(empty, files.program())
    assert empty.execute("SELECT y FROM sag.a").fetchone() == (2,)


def test_run_restores_what_was_changed_by_hand(empty: Connection, files: Files) -> None:
    migrate.migrate(empty, files.program())
    empty.execute("CREATE OR REPLACE VIEW sag.a AS SELECT 99 AS x")
    migrate.migrate(empty, files.program())
    assert empty.execute("SELECT x FROM sag.a").fetchone() == (1,)


def test_file_outside_a_transaction(empty: Connection, files: Files) -> None:
    files.write("migrations/0002_table.sql", "CREATE TABLE sag.t AS SELECT 1 AS x;")
    files.write(
        "migrations/0003_index.sql",
        "-- sag: no-transaction\nCREATE INDEX CONCURRENTLY t_x ON sag.t (x);",
    )
    files.write("migrations/0004_rename.sql", "ALTER INDEX sag.t_x RENAME TO t_by_x;")
    with ThreadPoolExecutor(2) as pool:
        # A second run that waits must not keep CREATE INDEX CONCURRENTLY from ending.
        def run(_: int) -> tuple[str, ...]:
            with connect(empty.info.dsn) as connection:
                return migrate.migrate(connection, files.program()).migrations

        done = sorted(pool.map(run, range(2)), key=len)
    assert [len(names) for names in done] == [0, 4]
    assert empty.execute("SELECT 'sag.t_by_x'::regclass::text").fetchone() == ("sag.t_by_x",)
    assert migrate.inspect(empty, files.program()).is_current


def test_wait_for_another_run_ends(empty: Connection, files: Files) -> None:
    messages: list[str] = []
    with connect(empty.info.dsn) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (migrate.LOCK_KEY,))
        with pytest.raises(MigrationError, match=f"process {other.info.backend_pid}"):
            migrate.migrate(empty, files.program(), wait_seconds=0.3, notify=messages.append)
    assert messages == ["Waiting for another sag-pg migrate"]


def test_time_limits_of_the_role_do_not_apply(empty: Connection, files: Files) -> None:
    files.write("migrations/0002_slow.sql", "SELECT pg_sleep(0.2);")
    empty.execute("SET statement_timeout = '100ms'")
    migrate.migrate(empty, files.program())
    assert empty.execute("SHOW statement_timeout").fetchone() == ("100ms",)


# Reading the files.


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("migrations/0003_gap.sql", "", "0003_gap.sql stands where 0002_name.sql is expected"),
        ("migrations/0001_again.sql", "", "0001_ledger.sql stands where 0002_name.sql"),
        ("migrations/second.sql", "", "second.sql stands where 0002_name.sql"),
        ("migrations/frozen.txt", f"{'0' * 64}  0001_ledger.sql\n", "not what was released"),
        ("migrations/frozen.txt", f"{'0' * 64}  0000_gone.sql\n", "not what was released"),
        ("sql/load.sql", "\\ir a.sql\n\\ir gone.sql\n", "sql/gone.sql does not exist"),
        ("sql/load.sql", "\\ir a.sql\n\\ir a.sql\n", "line 2: a.sql stands there twice"),
        ("sql/load.sql", "\\ir a.sql\nSELECT 1;\n", "line 2: 'SELECT 1;' is not understood"),
    ],
)
def test_faulty_files_are_named(files: Files, name: str, text: str, message: str) -> None:
    files.write(name, text)
    with pytest.raises(MigrationError, match=message.replace("\\", "\\\\")):
        files.program()


def test_file_that_is_not_utf8_is_named(files: Files) -> None:
    (files.sources / "a.sql").write_bytes(b"SELECT '\xe9';")
    with pytest.raises(MigrationError, match=r"sql/a\.sql is not UTF-8 at byte 8"):
        files.program()


def test_frozen_file_that_is_unchanged_is_accepted(files: Files) -> None:
    sha256 = hashlib.sha256(LEDGER.encode()).hexdigest()
    files.write("migrations/frozen.txt", f"{sha256}  0001_ledger.sql\n")
    assert files.program().migrations[0].sha256 == sha256


# Connecting.


def test_connection_carries_no_session_state_that_a_pooler_would_lose(empty: Connection) -> None:
    assert empty.autocommit
    assert empty.prepare_threshold is None
    assert empty.info.encoding == "utf-8"
    assert empty.execute("SHOW application_name").fetchone() == ("sag-pg",)


def test_types_are_registered_only_once_they_exist(empty: Connection) -> None:
    assert not database.register_types(empty)
    empty.execute("CREATE EXTENSION vector")
    assert database.register_types(empty)


def test_failing_connection_hides_the_password(embedded_server: Server) -> None:
    url = embedded_server.url("absent") + " password=hunter2"
    with pytest.raises(DatabaseError, match='database "absent" does not exist') as caught:
        connect(url)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert "--database-url" in (caught.value.hint or "")


def test_program_is_found_in_a_wheel_as_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sag_pg"
    shutil.copytree(scripts.sources_folder(), package / "sql")
    monkeypatch.setattr(scripts, "__file__", str(package / "scripts.py"))
    assert scripts.sources_folder() == package / "sql"
    with pytest.raises(MigrationError, match="no folder migrations"):
        scripts.migrations_folder()
    shutil.copytree(Path(__file__).parent.parent / "migrations", tmp_path / "migrations")
    assert scripts.migrations_folder() == tmp_path / "migrations"
