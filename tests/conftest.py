"""An embedded server for the session, and one fresh database for each test that asks for it."""

import os

# Before anything imports numpy or onnxruntime: more threads than that slow each other down.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo
from pytest_postgresql import factories
from pytest_postgresql.janitor import DatabaseJanitor

from sag_pg import config, embedded, migrate

# Nothing of the developer's own database may come into a test, nor into a process that it starts.
for variable in (*config.URL_VARIABLES, *config.LIBPQ_VARIABLES, config.DATA_DIR_VARIABLE):
    os.environ.pop(variable, None)

# A server whose data nobody needs after the next power cut, on a small machine.
SETTINGS = {
    **embedded.SETTINGS,
    "shared_buffers": "64MB",
    "maintenance_work_mem": "64MB",
    "fsync": "off",
    "full_page_writes": "off",
}


# Real questions and passages, which are not part of the repository.
TEST_DATA = Path(os.environ.get("SAG_PG_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


@dataclass(frozen=True)
class Server:
    """What pytest-postgresql wants to know of a server."""

    host: str
    port: int
    user: str
    password: str | None = None
    options: str = ""
    maintenance_dbname: str = "postgres"
    template_dbname: str | None = None

    def url(self, dbname: str, user: str | None = None) -> str:
        return conninfo.make_conninfo(
            "", host=self.host, port=self.port, user=user or self.user, dbname=dbname
        )


@pytest.fixture(scope="session")
def embedded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The session's server. Its databases are in the builtin locale C.UTF-8."""
    data_dir = tmp_path_factory.mktemp("server")
    try:
        options = conninfo.conninfo_to_dict(embedded.get_uri(data_dir, SETTINGS))
        yield Server(host=options["host"], port=int(options["port"]), user=options["user"])
    finally:
        embedded.stop(data_dir)


def migrate_template(
    host: str, port: int, user: str, dbname: str, password: str | None, autocommit: bool
) -> None:
    with psycopg.connect(
        host=host, port=port, user=user, dbname=dbname, password=password, autocommit=True
    ) as connection:
        migrate.migrate(connection)


# These take the place of the plugin's fixtures of the same names. `postgresql` is a connection to
# a fresh, migrated database; it is in a transaction from its first statement on.
postgresql_noproc = factories.postgresql_noproc(
    dbname="sag_test", load=[migrate_template], depends_on="embedded_server"
)
postgresql = factories.postgresql("postgresql_noproc")


@pytest.fixture
def database_url(postgresql: psycopg.Connection[Any], embedded_server: Server) -> str:
    """Connection string of the database behind `postgresql`."""
    return embedded_server.url(postgresql.info.dbname)


@pytest.fixture
def empty_database_url(embedded_server: Server) -> Iterator[str]:
    """Connection string of a fresh database without anything of sag-pg."""
    with DatabaseJanitor(
        host=embedded_server.host,
        port=embedded_server.port,
        user=embedded_server.user,
        dbname="sag_empty",
    ) as janitor:
        yield embedded_server.url(janitor.dbname)
