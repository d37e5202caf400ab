"""The order in which flags and variables name the database, and what messages may show of it."""

from pathlib import Path

import pytest

from sag_pg import config
from sag_pg.errors import ConfigurationError

URL_FLAG = "postgresql://flag/db"
ENVIRONMENT = {
    "SAG_PG_DATABASE_URL": "postgresql://own/db",
    "DATABASE_URL": "postgresql://general/db",
    "PGSERVICE": "service",
    "PGHOST": "host",
    "PGHOSTADDR": "192.0.2.1",
    "PGPORT": "5433",
    "PGDATABASE": "database",
    "PGUSER": "user",
    "SAG_PG_DATA_DIR": "/data",
}


@pytest.mark.parametrize("variable", ENVIRONMENT)
def test_flag_for_url_beats_each_variable(variable: str) -> None:
    target = config.resolve(database_url=URL_FLAG, environ={variable: ENVIRONMENT[variable]})
    assert (target.source, target.conninfo) == ("--database-url", URL_FLAG)
    assert not target.is_embedded


@pytest.mark.parametrize("variable", ENVIRONMENT)
def test_flag_for_directory_beats_each_variable(variable: str, tmp_path: Path) -> None:
    target = config.resolve(data_dir=tmp_path, environ={variable: ENVIRONMENT[variable]})
    assert (target.source, target.data_dir) == ("--data-dir", tmp_path)


def test_variables_go_in_the_documented_order() -> None:
    environ = dict(ENVIRONMENT)
    sources = []
    while environ:
        target = config.resolve(environ=environ)
        sources.append(target.source)
        for variable in target.source.split(", "):
            del environ[variable]
    assert sources == [
        "SAG_PG_DATABASE_URL",
        "DATABASE_URL",
        "PGSERVICE, PGHOST, PGHOSTADDR, PGPORT, PGDATABASE, PGUSER",
        "SAG_PG_DATA_DIR",
    ]


def test_libpq_reads_its_variables_itself() -> None:
    target = config.resolve(environ={"PGHOST": "db.example.com"})
    assert target.conninfo == ""
    assert str(target) == "database named by PGHOST"


@pytest.mark.parametrize("variable", ["PGPASSWORD", "PGSSLMODE", "PGAPPNAME", "PGOPTIONS"])
def test_variables_that_name_no_database_lead_to_the_embedded_server(variable: str) -> None:
    target = config.resolve(environ={variable: "x"})
    assert target.is_embedded
    assert target.source == "default"
    assert target.data_dir is not None
    assert target.data_dir.is_absolute()
    assert target.data_dir.name == "sag-pg"


def test_empty_variables_count_as_unset() -> None:
    assert config.resolve(environ=dict.fromkeys(ENVIRONMENT, "")).source == "default"


def test_relative_and_home_directories_become_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert config.resolve(data_dir="~/sag", environ={}).data_dir == Path("/home/somebody/sag")
    assert config.resolve(data_dir="sag", environ={}).data_dir == Path.cwd() / "sag"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"database_url": URL_FLAG, "data_dir": "x"}, "exclude each other"),
        ({"database_url": ""}, "--database-url is empty"),
        ({"data_dir": ""}, "--data-dir is empty"),
        ({"database_url": "mysql://me:hunter2@host/db"}, "scheme 'mysql'"),
        ({"database_url": "hunter2"}, "not a connection string"),
        ({"database_url": "host=a port=b dbname=c password='hunter2"}, "not a connection string"),
        # Unescaped, the characters end the password, and libpq takes the rest for a host or port.
        ({"database_url": "postgresql://me:hunter2/x@host/db"}, "not a connection string"),
        ({"database_url": "postgresql://me:hunter2@x@host/db"}, "not a connection string"),
        ({"database_url": "postgresql://me:%hunter2@host/db"}, "not a connection string"),
    ],
)
def test_unusable_flags_are_explained_without_the_password(
    flags: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        config.resolve(**flags, environ={})
    assert caught.value.hint
    assert caught.value.exit_code == 2
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_unusable_variable_is_named() -> None:
    with pytest.raises(ConfigurationError, match="DATABASE_URL has the scheme 'sqlite'") as caught:
        config.resolve(environ={"DATABASE_URL": "sqlite:///x.db"})
    assert caught.value.hint is not None
    assert "SAG_PG_DATABASE_URL" in caught.value.hint


@pytest.mark.parametrize(
    ("conninfo", "shown"),
    [
        ("postgresql://me:hunter2@db:5433/app", "user=me dbname=app host=db port=5433"),
        ("postgresql://me@db/app?password=hunter2", "user=me dbname=app host=db"),
        ("host=db password=hunter2 sslpassword=hunter2", "host=db"),
        ("postgresql://me:hunter2@[::1]:1,b:2/app", "user=me dbname=app host=::1,b port=1,2"),
        ("postgresql:///app?host=/run/a%40b", "dbname=app host=/run/a@b"),
        ("hunter2", "(unreadable connection string)"),
    ],
)
def test_passwords_are_never_shown(conninfo: str, shown: str) -> None:
    assert config.redact(conninfo) == shown
    target = config.ConnectionTarget("--database-url", conninfo)
    assert "hunter2" not in f"{target} {target!r}"
