"""docker/, as far as it can be tried without a container engine."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pathspec
import psycopg
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pytest_postgresql.janitor import DatabaseJanitor

from sag_pg import cli, config, migrate
from sag_pg.gateway.listening import DEFAULT_PORT
from sag_pg.models.settings import SETTINGS

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
COMPOSE_FILES = [DOCKER / "compose.yaml", DOCKER / "compose.tls.yaml"]
SCRIPTS = Path(sysconfig.get_path("scripts"))
CANARY = r"canary:with\colon"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: keyword and the rest, continued lines joined."""
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    joined = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined if line.strip()]


def environment_of_image() -> dict[str, str]:
    assignments = [rest for keyword, rest in instructions() if keyword == "ENV"]
    return dict(part.split("=", 1) for rest in assignments for part in shlex.split(rest))


def copies() -> list[tuple[list[str], str]]:
    """Sources and destination of each COPY from the build context."""
    found = []
    for keyword, rest in instructions():
        words = rest.split()
        if keyword == "COPY" and not any(word.startswith("--from=") for word in words):
            *sources, destination = (word for word in words if not word.startswith("--"))
            found.append((sources, destination))
    return found


def is_sent(path: str) -> bool:
    """Whether the ignore file lets a file of the repository into the build context.

    Docker's patterns are git's, with two differences that matter here: they start at the top, and
    a file can be taken back although its directory is ignored, which pathspec allows as well.
    """
    patterns = []
    for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            patterns.append(re.sub("^(!?)/?", r"\1/", line))
    # Everything is ignored first, so what matches is not sent.
    return not pathspec.PathSpec.from_lines("gitignore", patterns).match_file(path)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context as a builder gets it."""
    directory = tmp_path_factory.mktemp("context")
    for top in ("pyproject.toml", "README.md", "sag_pg", "sql", "migrations", "docker", "tests"):
        found = ROOT / top
        for path in [found] if found.is_file() else found.rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and is_sent(name):
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, directory / name)
    return directory


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    loaded = yaml.safe_load((DOCKER / name).read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_the_context_has_all_that_is_copied_and_nothing_private(context: Path) -> None:
    sources = [source for sources, _ in copies() for source in sources]
    assert sources
    for source in sources:
        assert (context / source).exists(), source
    # What is sent is what is copied: the list of what may go into an image is kept short.
    sent = {path.relative_to(context) for path in context.rglob("*") if path.is_file()}
    assert all(any(path.is_relative_to(source) for source in sources) for path in sent)
    for private in (
        ".env",
        ".git/config",
        "docker/.env",
        "docker/gateway.env",
        "docker/secrets/postgres_password",
        "sag_pg/.env",
        "sag_pg/__pycache__/client.cpython-312.pyc",
        "tests/conftest.py",
    ):
        assert not is_sent(private), private


def test_the_context_builds_the_whole_program(context: Path, tmp_path: Path) -> None:
    """The Dockerfile's steps, in a directory laid out as it lays out /src."""
    for sources, destination in copies():
        if destination.startswith("/"):
            continue
        for source in sources:
            target = tmp_path / destination / Path(source).name
            if (context / source).is_dir():
                shutil.copytree(context / source, tmp_path / destination)
            else:
                shutil.copyfile(context / source, target)
    extras = dict(rest.split("=") for keyword, rest in instructions() if keyword == "ARG")["EXTRAS"]
    run = subprocess.run(
        [sys.executable, "requirements.py", extras],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in ("local", "openai", "gateway"):
        assert extra in extras.split(",")
        wanted += project["optional-dependencies"][extra]
    assert run.stdout.splitlines() == wanted

    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "out", "."],
        cwd=tmp_path,
        check=True,
    )
    (wheel,) = (tmp_path / "out").glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    places = {"sag_pg": "sag_pg", "sql": "sag_pg/sql", "migrations": "sag_pg/migrations"}
    for top, place in places.items():
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"{place}/{path.relative_to(ROOT / top).as_posix()}" in packed


def test_an_unknown_extra_is_named() -> None:
    run = subprocess.run(
        [sys.executable, DOCKER / "requirements.py", "local,lokal"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith("No such extra: lokal. There are: embedded, local,")


def check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.name)
def test_compose_files_follow_the_specification(path: Path, tmp_path: Path) -> None:
    checked = check_schema(path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    broken = tmp_path / "compose.yaml"
    broken.write_text(path.read_text().replace("restart:", "restarts:"))
    assert check_schema(broken).returncode == 1


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.name)
def test_what_compose_files_name_exists(path: Path) -> None:
    file = compose(path.name)
    ignored = (DOCKER / ".gitignore").read_text().splitlines()
    assert "/secrets/" in ignored
    for secret in file["secrets"].values():
        assert secret["file"].startswith("secrets/")
    for service in file["services"].values():
        if build := service.get("build"):
            assert (DOCKER / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).is_file()
        for env_file in service.get("env_file", []):
            assert f"/{env_file}" in ignored
        for mount in service["volumes"]:
            assert mount.split(":")[0] in file["volumes"]
        assert set(service["secrets"]) <= set(file["secrets"])
        for name, value in service["environment"].items():
            if str(value).startswith("/run/secrets/"):
                assert value.removeprefix("/run/secrets/") in service["secrets"], name


def test_database_and_gateway_meet_at_one_socket() -> None:
    services = compose()["services"]
    directory = environment_of_image()["SAG_PG_GATEWAY_SOCKET_DIR"]
    assert f"gateway-socket:{directory}:ro" in services["db"]["volumes"]
    assert f"gateway-socket:{directory}" in services["gateway"]["volumes"]
    assert f"SAG_PG_GATEWAY_SOCKET_DIR:-{directory}}}" in (DOCKER / "entrypoint.sh").read_text()
    # The gateway's user owns the directory, in the image and in the volume that is mounted there.
    dockerfile = (DOCKER / "Dockerfile").read_text()
    (user,) = (rest for keyword, rest in instructions() if keyword == "USER")
    uid, gid = user.split(":")
    assert uid != "0"
    assert f"--uid {uid} " in dockerfile
    assert f"--gid {gid} " in dockerfile
    volume = compose()["volumes"]["gateway-socket"]["driver_opts"]
    assert {f"uid={uid}", f"gid={gid}", "mode=0755"} <= set(volume["o"].split(","))
    # Nothing is published, and a file of the password is all that both need to agree upon.
    assert not any("ports" in service for service in services.values())
    database, gateway = services["db"]["environment"], services["gateway"]["environment"]
    assert gateway["PGHOST"] == "db"
    assert gateway["PGUSER"] == database["POSTGRES_USER"]
    assert gateway["PGDATABASE"] == database["POSTGRES_DB"]
    assert gateway["PGPASSWORD_FILE"] == database["POSTGRES_PASSWORD_FILE"]


def test_every_setting_is_passed_on_where_it_is_set() -> None:
    passed = {
        name
        for name, value in compose()["services"]["gateway"]["environment"].items()
        if value is None
    }
    settings = {variable for setting in SETTINGS for variable in setting.variables}
    context = click.Context(cli.main)
    for name in cli.COMMANDS:
        command = cli.main.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter.envvar, str):
                settings.add(parameter.envvar)
    assert passed == settings | {"OPENAI_API_KEY"}
    # A database that the shell of whoever starts it works on is not theirs.
    assert not passed & {*config.URL_VARIABLES, *config.LIBPQ_VARIABLES}


def test_all_agree_on_the_port() -> None:
    for name in ("entrypoint.sh", "healthcheck.py"):
        (port,) = re.findall(r'SAG_PG_GATEWAY_PORT(?::-|", ")(\d+)', (DOCKER / name).read_text())
        assert int(port) == DEFAULT_PORT
    tls = compose("compose.tls.yaml")["services"]["gateway"]
    assert tls["ports"] == [f"{DEFAULT_PORT}:{DEFAULT_PORT}"]


def test_variables_of_the_container_are_those_of_the_scripts() -> None:
    """A variable that nobody reads would be a setting that does nothing."""
    scripts = "".join((DOCKER / name).read_text() for name in ("entrypoint.sh", "healthcheck.py"))
    given = set(environment_of_image())
    for path in COMPOSE_FILES:
        for name, value in compose(path.name)["services"]["gateway"]["environment"].items():
            if value is not None:
                given.add(name)
    given |= set(re.findall("^(SAG_PG_GATEWAY[A-Z_]+)=", (DOCKER / "README.md").read_text(), re.M))
    own = {name for name in given if name.startswith(("SAG_PG_", "PGPASS"))}
    assert len(own) > 4
    assert not {name for name in own if not re.search(rf"\b{name}\b", scripts)}


# The entry point.

Run = subprocess.CompletedProcess[str]


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A directory that the database's server, which is another user, may enter."""
    with tempfile.TemporaryDirectory(prefix="sag-gateway-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@pytest.fixture
def environment(tmp_path: Path, socket_dir: Path) -> dict[str, str]:
    """What the entry point gets of its container, without a database."""
    return {
        "HOME": str(tmp_path),
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        "PGPASSFILE": str(tmp_path / "pgpass"),
        "SAG_PG_GATEWAY_SOCKET_DIR": str(socket_dir),
        "SAG_PG_WAIT_SECONDS": "30",
    }


# A gateway that ends once the database is ready for it.
UNFIT_GATEWAY = ("sag-pg", "serve", "--max-calls", "0")


def enter(environment: dict[str, str], *command: str) -> Run:
    return subprocess.run(
        [DOCKER / "entrypoint.sh", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def gateway_options(url: str) -> tuple[list[str], list[list[str]]]:
    """The options of the foreign server and of its user mappings."""
    with psycopg.connect(url) as connection:
        servers = connection.execute(
            "SELECT srvoptions FROM pg_foreign_server WHERE srvname = 'sag_gateway'"
        ).fetchall()
        mappings = connection.execute(
            "SELECT umoptions FROM pg_user_mapping ORDER BY umoptions"
        ).fetchall()
    ((options,),) = servers
    return sorted(options), [mapping for (mapping,) in mappings]


def test_the_entry_point_is_a_shell_script() -> None:
    subprocess.run(["sh", "-n", DOCKER / "entrypoint.sh"], check=True)
    assert os.access(DOCKER / "entrypoint.sh", os.X_OK)


def test_the_entry_point_makes_the_database_ready(
    empty_database_url: str, environment: dict[str, str], socket_dir: Path
) -> None:
    environment["DATABASE_URL"] = empty_database_url
    first = enter(environment, *UNFIT_GATEWAY)
    assert first.returncode == 2, first.stderr
    assert "--max-calls" in first.stderr.splitlines()[-1]
    # Standard output is the command's, which can be piped on.
    assert first.stdout == ""
    with psycopg.connect(empty_database_url) as connection:
        assert migrate.inspect(connection).is_current
    options, mappings = gateway_options(empty_database_url)
    assert {f"host={socket_dir}", "port=5454"} <= set(options)
    assert mappings
    # Every start does the same, and leaves the password as it is.
    second = enter(environment, *UNFIT_GATEWAY)
    assert second.returncode == 2, second.stderr
    assert gateway_options(empty_database_url) == (options, mappings)
    for mapping in mappings:
        for option in mapping:
            if option.startswith("password="):
                assert option.removeprefix("password=") not in first.stderr + second.stderr


@pytest.mark.parametrize(
    "command", [("echo", "o k"), ("sag-pg", "--help"), ("sag-pg", "serve", "--help")], ids=" ".join
)
def test_the_entry_point_asks_no_database_of_other_commands(
    environment: dict[str, str], command: tuple[str, ...]
) -> None:
    environment |= {
        "DATABASE_URL": "postgresql://sag@127.0.0.1:1/sag",
        "SAG_PG_WAIT_SECONDS": "600",
    }
    run = enter(environment, *command)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(("o k", "Usage: "))
    assert run.stderr == ""


def test_the_entry_point_leaves_the_database_to_other_commands(
    empty_database_url: str, environment: dict[str, str]
) -> None:
    run = enter({**environment, "DATABASE_URL": empty_database_url}, "sag-pg", "status")
    assert run.returncode == 3
    assert "PostgreSQL" in run.stdout
    with psycopg.connect(empty_database_url) as connection:
        assert not migrate.inspect(connection).applied


def test_the_entry_point_hands_the_password_to_libpq_alone(
    database_url: str, environment: dict[str, str], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CANARY + "\n")
    environment |= {"DATABASE_URL": database_url, "PGPASSWORD_FILE": str(secret)}
    # A file that an earlier start left.
    (tmp_path / "pgpass").write_text("stale")
    run = enter(environment, "env")
    assert run.returncode == 0, run.stderr
    assert "canary" not in run.stdout + run.stderr
    assert (tmp_path / "pgpass").stat().st_mode & 0o777 == 0o600
    with psycopg.connect(database_url, passfile=str(tmp_path / "pgpass")) as connection:
        assert connection.pgconn.password == CANARY.encode()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("\n", "is empty"), ("one\ntwo\n", "more than one line"), (None, "cannot be read")],
)
def test_the_entry_point_refuses_an_unfit_password_file(
    environment: dict[str, str], tmp_path: Path, content: str | None, complaint: str
) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_text(content)
    run = enter(environment | {"PGPASSWORD_FILE": str(secret)}, "echo", "ran")
    assert (run.returncode, run.stdout) == (1, "")
    assert complaint in run.stderr
    assert "two" not in run.stderr


def test_the_entry_point_waits_for_the_database(
    embedded_server: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    environment["DATABASE_URL"] = embedded_server.url("sag_late")
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [DOCKER / "entrypoint.sh", *UNFIT_GATEWAY],
            env=environment,
            stdout=output,
            stderr=output,
        )
    time.sleep(2)
    assert process.poll() is None
    with DatabaseJanitor(
        host=embedded_server.host,
        port=embedded_server.port,
        user=embedded_server.user,
        dbname="sag_late",
    ):
        assert process.wait(timeout=120) == 2, log.read_text()
    assert "--max-calls" in log.read_text().splitlines()[-1]


def test_the_entry_point_says_when_the_database_never_comes(environment: dict[str, str]) -> None:
    environment |= {
        "DATABASE_URL": "postgresql://sag:canary@127.0.0.1:1/sag",
        "SAG_PG_WAIT_SECONDS": "1",
    }
    run = enter(environment, *UNFIT_GATEWAY)
    assert (run.returncode, run.stdout) == (1, "")
    assert "No database after 1 s (SAG_PG_WAIT_SECONDS)" in run.stderr
    assert "Connection refused" in run.stderr
    assert "canary" not in run.stderr


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"DATABASE_URL": "mysql://db/sag"}, "DATABASE_URL has the scheme 'mysql'"),
        ({"SAG_PG_WAIT_SECONDS": "1m"}, "SAG_PG_WAIT_SECONDS is not a whole number: 1m"),
        ({"SAG_PG_WAIT_SECONDS": ""}, "SAG_PG_WAIT_SECONDS is not a whole number: "),
    ],
)
def test_the_entry_point_does_not_wait_on_a_wrong_setting(
    environment: dict[str, str], variables: dict[str, str], complaint: str
) -> None:
    # Much longer than `enter` waits.
    run = enter({**environment, "SAG_PG_WAIT_SECONDS": "600", **variables}, *UNFIT_GATEWAY)
    assert (run.returncode, run.stdout) == (1, "")
    assert complaint in run.stderr


# The gateway that it starts.


def is_healthy(environment: dict[str, str]) -> bool:
    (command,) = (
        rest.partition("CMD ")[2] for keyword, rest in instructions() if keyword == "HEALTHCHECK"
    )
    program, script = json.loads(command)
    (source,) = (
        source for sources, destination in copies() for source in sources if destination == script
    )
    run = subprocess.run([program, ROOT / source], env=environment, check=False, timeout=60)
    assert run.returncode in (0, 1)
    return run.returncode == 0


@contextlib.contextmanager
def serving(environment: dict[str, str], log: Path) -> Iterator[None]:
    """The entry point without a command; when it is left, it is told to stop, as by Docker."""
    assert not is_healthy(environment)
    with log.open("w") as output:
        process = subprocess.Popen([DOCKER / "entrypoint.sh"], env=environment, stderr=output)
    try:
        deadline = time.monotonic() + 120
        while not is_healthy(environment):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert not is_healthy(environment)


def addresses(log: Path) -> str:
    """Where the log says that the gateway listens."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    (ready,) = (line for line in lines if line["event"] == "ready")
    return str(ready["message"])


def gateway_status(url: str) -> dict[str, Any]:
    with psycopg.connect(url) as connection:
        ((facts,),) = connection.execute("SELECT sag.gateway_status()").fetchall()
    assert isinstance(facts, dict)
    return facts


def test_the_database_reaches_the_gateway_by_the_socket_alone(
    database_url: str, environment: dict[str, str], socket_dir: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CANARY)
    environment |= {
        "DATABASE_URL": database_url,
        "PGPASSWORD_FILE": str(secret),
        "SAG_PG_EMBEDDING": "none",
    }
    log = tmp_path / "log"
    with serving(environment, log):
        # The server is another system user, as in another container.
        facts = gateway_status(database_url)
        assert facts["answering"], json.dumps(facts)
    assert addresses(log) == f"listening on {socket_dir}/.s.PGSQL.5454"
    assert "canary" not in log.read_text()
    # A health check is no attempt to log in.
    assert "28P01" not in log.read_text()


def test_the_database_reaches_the_gateway_over_tls(
    database_url: str, environment: dict[str, str], socket_dir: Path, tmp_path: Path
) -> None:
    write_certificate(socket_dir / "gateway.crt", tmp_path / "gateway.key")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment |= {
        "DATABASE_URL": database_url,
        "SAG_PG_EMBEDDING": "none",
        "SAG_PG_GATEWAY_HOST": "localhost",
        "SAG_PG_GATEWAY_PORT": str(port),
        "SAG_PG_GATEWAY_TLS_CERT": str(socket_dir / "gateway.crt"),
        "SAG_PG_GATEWAY_TLS_KEY": str(tmp_path / "gateway.key"),
        "SAG_PG_GATEWAY_SSLROOTCERT": str(socket_dir / "gateway.crt"),
    }
    log = tmp_path / "log"
    with serving(environment, log):
        # The embedded server's libpq knows no TLS, so that this process stands in for it.
        with psycopg.connect(database_url) as connection:
            ((options,),) = connection.execute(
                "SELECT srvoptions FROM pg_foreign_server WHERE srvname = 'sag_gateway'"
            ).fetchall()
            ((password,),) = connection.execute("SELECT sag.gateway_secret()").fetchall()
        address = dict(option.split("=", 1) for option in options)
        assert address["sslmode"] == "verify-full"
        with psycopg.connect(
            user="sag_gateway", password=password, autocommit=True, **address
        ) as connection:
            assert connection.execute("SELECT status()").fetchone() is not None
    assert addresses(log) == f"listening on 0.0.0.0:{port}"
    assert '"tls": true' in log.read_text()


def write_certificate(certificate_file: Path, key_file: Path) -> None:
    """A certificate for localhost that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
