"""Migrations: what the program brings, what a database has, and how the one becomes the other.

`migrations/NNNN_name.sql` hold what touches stored data and run once, in the order of their
numbers; the ledger `sag.migration` keeps their hashes. `sql/` holds what can be replaced at any
time, in the order of `sql/load.sql`, and is re-applied by every run; `sag.applied_source` keeps
the hashes of what was applied last.

A run is one transaction, so that a failing one leaves no trace. The exception is a migration
whose first line is `-- sag: no-transaction`, for the statements that PostgreSQL refuses inside a
transaction (CREATE INDEX CONCURRENTLY): it holds exactly one statement, everything before it is
committed first, and since its search_path cannot be set it qualifies every name.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from psycopg import errors, sql

from sag_pg import __version__
from sag_pg.config import ConnectionTarget
from sag_pg.database import connect, explain_error, register_types
from sag_pg.errors import (
    DatabaseError,
    DatabaseNewerError,
    MigrationError,
    MigrationsPendingError,
)
from sag_pg.requirements import check_server, missing_extensions, prepare
from sag_pg.scripts import Program, Script, load_program

Connection = psycopg.Connection[Any]

# "sag-pg" in ASCII: one number for the lock of all versions of the program.
LOCK_KEY: Final = int.from_bytes(b"sag-pg")
_LOCK_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """A row of the ledger."""

    version: int
    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Status:
    """How a database stands to the program.

    Attributes:
        applied: The ledger, in order.
        pending: Names of migrations still to be applied, in order.
        drifted: Names of applied migrations that the program has in another form.
        sources_drifted: Paths below sql/ that were never applied, were applied in another form
            or are gone from the program.
        unknown: Names of applied migrations beyond the program's last.
    """

    applied: tuple[AppliedMigration, ...]
    pending: tuple[str, ...]
    drifted: tuple[str, ...]
    sources_drifted: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def database_newer(self) -> bool:
        """Whether a newer program has migrated the database."""
        return bool(self.unknown)

    @property
    def is_current(self) -> bool:
        """Whether database and program fit."""
        return not (self.pending or self.drifted or self.sources_drifted or self.unknown)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did, or would do: names in order.

    Attributes:
        extensions: Extensions created.
        migrations: Migrations applied.
        sources_changed: Files of sql/ whose form is new to the database.
        sources: Number of files of sql/ applied, changed or not.
    """

    extensions: tuple[str, ...]
    migrations: tuple[str, ...]
    sources_changed: tuple[str, ...]
    sources: int


def inspect(connection: Connection, program: Program | None = None) -> Status:
    """Compare a database with the program; changes nothing and takes three short queries.

    Raises:
        DatabaseError: This role may not read the ledger.
    """
    program = program or load_program()
    try:
        applied = _applied_migrations(connection)
        applied_sources = _applied_sources(connection) if applied else {}
    except errors.InsufficientPrivilege as error:
        role = sql.Identifier(connection.info.user).as_string(connection)
        raise DatabaseError(
            f"The state of the migrations cannot be read: {error.diag.message_primary}.",
            "Ask the owner of schema sag for: GRANT USAGE ON SCHEMA sag TO"
            f" {role}; GRANT SELECT ON sag.migration, sag.applied_source TO {role};",
        ) from error
    ours = dict(enumerate(program.migrations, start=1))
    sources = {script.name: script.sha256 for script in program.sources}
    changed = [name for name, sha256 in sources.items() if applied_sources.get(name) != sha256]
    gone = sorted(applied_sources.keys() - sources.keys())
    versions = {row.version for row in applied}
    return Status(
        applied=applied,
        pending=tuple(script.name for version, script in ours.items() if version not in versions),
        drifted=tuple(
            row.name
            for row in applied
            if row.version in ours and row.sha256 != ours[row.version].sha256
        ),
        sources_drifted=(*changed, *gone),
        unknown=tuple(row.name for row in applied if row.version not in ours),
    )


def check(connection: Connection, program: Program | None = None) -> None:
    """Make sure that a database fits the program.

    Raises:
        DatabaseNewerError: A newer program has migrated it.
        MigrationsPendingError: It has to be migrated, or was migrated by another program.
    """
    status = inspect(connection, program)
    _refuse_newer(status)
    _refuse_drifted(status)
    if status.pending:
        what = "has no sag-pg schema yet" if not status.applied else "is older than this program"
        raise MigrationsPendingError(
            f"The database {what}: {len(status.pending)} migrations are pending.",
            "Run: sag-pg migrate",
        )
    if status.sources_drifted:
        raise MigrationsPendingError(
            f"{len(status.sources_drifted)} files of sql/ differ from what the database has:"
            f" {_some(status.sources_drifted)}.",
            "Run: sag-pg migrate",
        )


def connect_migrated(
    target: ConnectionTarget, notify: Callable[[str], None] = lambda message: None
) -> Connection:
    """Open a connection to a migrated database, with the vector types registered.

    The embedded server is this program's own, so it is migrated where that is needed; any other
    database never is.

    Args:
        target: The database.
        notify: Told what a migration does.

    Raises:
        MigrationsPendingError: The database has to be migrated.
        DatabaseNewerError: A newer program has migrated it.
        DatabaseError: The database cannot be reached.
    """
    connection = connect(target)
    try:
        program = load_program()
        if target.is_embedded and not inspect(connection, program).is_current:
            migrate(connection, program, notify=notify)
        check(connection, program)
        register_types(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(
    connection: Connection,
    program: Program | None = None,
    *,
    dry_run: bool = False,
    wait_seconds: float = 600,
    notify: Callable[[str], None] = lambda message: None,
) -> Outcome:
    """Bring a database to the state that the program needs.

    Any number of processes may do this at once: one works, the others wait and then find
    nothing to do.

    Args:
        connection: A connection in autocommit mode.
        program: What to apply; None for the program's own files.
        dry_run: Change nothing and return what would be done.
        wait_seconds: How long to wait for another run, in seconds.
        notify: Receives messages for a person who waits.

    Raises:
        DatabaseNewerError: A newer program has migrated the database.
        MigrationsPendingError: An applied migration differs from the program's.
        MigrationError: A statement failed or a privilege or extension is missing. Nothing was
            changed, save by files outside a transaction.
    """
    program = program or load_program()
    check_server(connection)
    if dry_run:
        outcome = _plan(connection, program)
        with connection.transaction(force_rollback=True):
            prepare(connection, outcome.extensions)
        return outcome
    with _lock(connection, wait_seconds, notify):
        outcome = _plan(connection, program)
        # Transactions stand at even positions, between them what runs outside one.
        batches: list[list[tuple[int, Script]]] = [[]]
        for version, script in enumerate(program.migrations, start=1):
            if script.name in outcome.migrations and script.is_transactional:
                batches[-1].append((version, script))
            elif script.name in outcome.migrations:
                batches += [[(version, script)], []]
        for position, batch in enumerate(batches):
            transaction = (
                connection.transaction() if position % 2 == 0 else contextlib.nullcontext()
            )
            with transaction:
                if position == 0:
                    prepare(connection, outcome.extensions)
                if position % 2 == 0:
                    # A role's time limit is meant for queries.
                    connection.execute("SELECT set_config('statement_timeout', '0', true)")
                for version, script in batch:
                    notify(f"Applying {script.label}")
                    _run(connection, script)
                    _record(connection, version, script)
                if position == len(batches) - 1:
                    _apply_sources(connection, program.sources)
    return outcome


def _applied_migrations(connection: Connection) -> tuple[AppliedMigration, ...]:
    # Not to_regclass: it fails where this role may not use the schema.
    ledger = connection.execute(
        "SELECT FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'sag' AND c.relname = 'migration'"
    ).fetchone()
    if ledger is None:
        return ()
    rows = connection.execute("SELECT version, name, sha256 FROM sag.migration ORDER BY version")
    return tuple(AppliedMigration(*row) for row in rows)


def _applied_sources(connection: Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT path, sha256 FROM sag.applied_source").fetchall())


def _refuse_newer(status: Status) -> None:
    if status.database_newer:
        raise DatabaseNewerError(
            "A newer sag-pg has migrated the database: this one does not know"
            f" {_some(status.unknown)}.",
            "Upgrade: pip install --upgrade sag-pg",
        )


def _refuse_drifted(status: Status) -> None:
    if status.drifted:
        raise MigrationsPendingError(
            f"Applied migrations differ from this program's: {_some(status.drifted)}.",
            "Use the release of sag-pg that applied them (column program_version of"
            " sag.migration).",
        )


def _plan(connection: Connection, program: Program) -> Outcome:
    """Say what a run would do. Raises where it must not."""
    status = inspect(connection, program)
    _refuse_newer(status)
    _refuse_drifted(status)
    return Outcome(
        extensions=missing_extensions(connection),
        migrations=status.pending,
        sources_changed=status.sources_drifted,
        sources=len(program.sources),
    )


@contextlib.contextmanager
def _lock(
    connection: Connection, wait_seconds: float, notify: Callable[[str], None]
) -> Iterator[None]:
    """Hold the session lock that keeps two runs apart.

    It is asked for again and again rather than waited for inside PostgreSQL: a waiting statement
    holds a snapshot, on which another run's CREATE INDEX CONCURRENTLY would wait in turn.
    """
    deadline = time.monotonic() + wait_seconds
    waiting = False
    while not _holds(connection, "SELECT pg_catalog.pg_try_advisory_lock(%s)"):
        if not waiting:
            notify("Waiting for another sag-pg migrate")
            waiting = True
        if time.monotonic() > deadline:
            raise MigrationError(
                f"Another sag-pg migrate is still at work after {wait_seconds:g} s, in the"
                f" server's process {_lock_holder(connection)}.",
                "Look at it in pg_stat_activity before you try again.",
            )
        time.sleep(_LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        # With the connection the lock is gone as well.
        with contextlib.suppress(psycopg.OperationalError):
            _holds(connection, "SELECT pg_catalog.pg_advisory_unlock(%s)")


def _lock_holder(connection: Connection) -> int | None:
    row = connection.execute(
        "SELECT pid FROM pg_catalog.pg_locks AS l"
        " JOIN pg_catalog.pg_database AS d ON d.oid = l.database"
        " WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted"
        " AND l.classid = %s AND l.objid = %s",
        (LOCK_KEY >> 32, LOCK_KEY & 0xFFFFFFFF),
    ).fetchone()
    return row[0] if row is not None else None


def _holds(connection: Connection, query: LiteralString) -> bool:
    row = connection.execute(query, (LOCK_KEY,)).fetchone()
    return row is not None and bool(row[0])


def _run(connection: Connection, script: Script) -> None:
    try:
        # Without parameters psycopg sends the whole text at once, statements and all.
        connection.execute(script.text.encode())
    except psycopg.Error as error:
        message, hint = explain_error(error)
        place = script.label
        if error.diag.statement_position is not None:
            before = script.text[: int(error.diag.statement_position) - 1]
            place += f", line {before.count(chr(10)) + 1}"
        elif error.diag.context is not None:
            message += f"\nCONTEXT: {error.diag.context}"
        raise MigrationError(f"{place}: {message}", hint) from error


def _record(connection: Connection, version: int, script: Script) -> None:
    try:
        connection.execute(
            "INSERT INTO sag.migration (version, name, sha256, applied_at, program_version)"
            " VALUES (%s, %s, %s, clock_timestamp(), %s)",
            (version, script.name, script.sha256, __version__),
        )
    except psycopg.Error as error:
        message, hint = explain_error(error)
        raise MigrationError(f"The ledger refuses {script.label}: {message}", hint) from error


def _apply_sources(connection: Connection, sources: Sequence[Script]) -> None:
    for script in sources:
        _run(connection, script)
    connection.execute("DELETE FROM sag.applied_source")
    connection.execute(
        "INSERT INTO sag.applied_source (path, sha256)"
        " SELECT * FROM unnest(%s::text[], %s::text[])",
        ([script.name for script in sources], [script.sha256 for script in sources]),
    )


def _some(names: Sequence[str], limit: int = 3) -> str:
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown
