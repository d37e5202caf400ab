"""What sag-pg needs of a server and of the role that migrates, and whom to ask for it."""

import re
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import errors, sql

from sag_pg.database import explain_error
from sag_pg.errors import DatabaseError, MigrationError

Connection = psycopg.Connection[Any]

MINIMUM_SERVER: Final = 160000
# Extensions and the oldest version that will do.
EXTENSIONS: Final = {"vector": (0, 8), "pg_trgm": (1, 6)}


def check_server(connection: Connection) -> None:
    """Make sure that the server's version and the database's encoding will do.

    Raises:
        DatabaseError: They will not.
    """
    if connection.info.server_version < MINIMUM_SERVER:
        raise DatabaseError(
            f"The server is PostgreSQL {connection.info.server_version // 10000}.",
            f"sag-pg needs PostgreSQL {MINIMUM_SERVER // 10000} or newer.",
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise DatabaseError(
            f"The database {connection.info.dbname} has the encoding {encoding}.",
            "Make one in UTF-8: CREATE DATABASE sag TEMPLATE template0 ENCODING 'UTF8';",
        )


def installed_extensions(connection: Connection) -> dict[str, str]:
    """Return the versions of the needed extensions that the database has, by name."""
    rows = connection.execute(
        "SELECT extname, extversion FROM pg_catalog.pg_extension WHERE extname = ANY (%s)"
        " ORDER BY extname",
        (list(EXTENSIONS),),
    )
    return dict(rows.fetchall())


def missing_extensions(connection: Connection) -> tuple[str, ...]:
    """Return the extensions that have to be created; those that are there stay as they are.

    Raises:
        MigrationError: One is not to be had on this server, or is too old.
    """
    rows = connection.execute(
        "SELECT name, default_version, installed_version"
        " FROM pg_catalog.pg_available_extensions WHERE name = ANY (%s)",
        (list(EXTENSIONS),),
    ).fetchall()
    available = {name: (default, installed) for name, default, installed in rows}
    for name, minimum in EXTENSIONS.items():
        needed = ".".join(map(str, minimum))
        if name not in available:
            major = connection.info.server_version // 10000
            package = f"postgresql-{major}-pgvector" if name == "vector" else "postgresql-contrib"
            raise MigrationError(
                f"The server does not offer the extension {name}.",
                f"Ask its administrator to install it, version {needed} or newer (on Debian and"
                f" Ubuntu: apt install {package}; on a managed service: in its console).",
            )
        default, installed = available[name]
        version = installed or default
        if tuple(map(int, re.findall(r"\d+", version))) < minimum:
            raise MigrationError(
                f"The extension {name} has version {version}; sag-pg needs {needed} or newer.",
                f"Ask the administrator to install a newer one, then: ALTER EXTENSION {name}"
                " UPDATE;",
            )
    return tuple(name for name, (_, installed) in sorted(available.items()) if installed is None)


def prepare(connection: Connection, extensions: Sequence[str]) -> None:
    """Create extensions and make sure that this role may do what the migrations do.

    Args:
        connection: A connection inside a transaction.
        extensions: Extensions to create, in schema public: a tenant's schema on the search_path
            would hide them from everybody else.

    Raises:
        MigrationError: Privileges are missing; the hint has every statement that the
            administrator has to run.
    """
    row = connection.execute(
        "SELECT current_user, current_database(),"
        " pg_catalog.has_database_privilege(current_database(), 'CREATE'),"
        " (SELECT pg_catalog.has_schema_privilege(oid, 'CREATE')"
        "  FROM pg_catalog.pg_namespace WHERE nspname = 'public'),"
        " (SELECT ARRAY[pg_catalog.pg_get_userbyid(nspowner),"
        "               pg_catalog.pg_has_role(nspowner, 'USAGE')::text]"
        "  FROM pg_catalog.pg_namespace WHERE nspname = 'sag')"
    ).fetchone()
    if row is None:
        raise DatabaseError("The server does not answer.")
    user, database, may_create, may_create_public, owner = row
    role = sql.Identifier(user).as_string(connection)
    requests: list[str] = []
    for name in extensions:
        create = sql.SQL("CREATE EXTENSION {} SCHEMA public").format(sql.Identifier(name))
        try:
            with connection.transaction():
                connection.execute(create)
        except errors.InsufficientPrivilege:
            requests.append(f"CREATE EXTENSION {name};")
        except psycopg.Error as error:
            message, hint = explain_error(error)
            raise MigrationError(f"The extension {name}: {message}", hint) from error
    if owner is None and not may_create:
        name = sql.Identifier(database).as_string(connection)
        requests.append(f"GRANT CREATE ON DATABASE {name} TO {role};")
    if owner is not None and owner[1] != "true":
        # Membership would be superuser's rights where that owns the schema.
        raise MigrationError(
            f"The role {user} does not own the schema sag of the database {database}.",
            f"Let its owner {owner[0]} run: sag-pg migrate",
        )
    if not may_create_public:
        requests.append(f"GRANT CREATE ON SCHEMA public TO {role};")
    if requests:
        raise MigrationError(
            f"The role {user} lacks privileges in the database {database}.",
            "Ask the administrator to run, in that database:\n  " + "\n  ".join(requests),
        )
