"""The SQL that the program brings: its migrations and the sources of sql/."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sag_pg.errors import MigrationError

NO_TRANSACTION: Final = "-- sag: no-transaction"

_MIGRATION_NAME: Final = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_MANIFEST_LINE: Final = re.compile(r"\\ir\s+(\S+)")


@dataclass(frozen=True, slots=True)
class Script:
    """A file of SQL.

    Attributes:
        name: Path below its folder, with forward slashes.
        label: How messages call it: folder and name.
        text: Its content.
        sha256: Hash of its bytes, in hexadecimal.
    """

    name: str
    label: str
    text: str
    sha256: str

    @property
    def is_transactional(self) -> bool:
        """Whether it runs in the transaction of the whole run."""
        return not self.text.startswith(NO_TRANSACTION)


@dataclass(frozen=True, slots=True)
class Program:
    """What this version of the program brings: migrations from 1 on, and sources in order."""

    migrations: tuple[Script, ...]
    sources: tuple[Script, ...]


def migrations_folder() -> Path:
    """The folder of migrations, in a wheel as in a checkout."""
    return _folder("migrations")


def sources_folder() -> Path:
    """The folder sql/, in a wheel as in a checkout."""
    return _folder("sql")


def load_program(migrations: Path | None = None, sources: Path | None = None) -> Program:
    """Read the SQL that the program brings.

    Args:
        migrations: Folder of migrations; None for the program's own.
        sources: Folder with a `load.sql`; None for the program's own.

    Raises:
        MigrationError: Numbers have gaps, a released migration was changed, or `load.sql` names
            what does not exist.
    """
    return Program(
        migrations=_load_migrations(migrations or migrations_folder()),
        sources=_load_sources(sources or sources_folder()),
    )


def _folder(name: str) -> Path:
    package = Path(__file__).parent
    for candidate in (package / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise MigrationError(f"The installation has no folder {name}.", "Install sag-pg again.")


def _read(folder: Path, name: str) -> Script:
    label = f"{folder.name}/{name}"
    try:
        content = (folder / name).read_bytes()
        text = content.decode()
    except FileNotFoundError as error:
        raise MigrationError(f"{label} does not exist.") from error
    except UnicodeDecodeError as error:
        raise MigrationError(f"{label} is not UTF-8 at byte {error.start}.") from error
    return Script(name, label, text, hashlib.sha256(content).hexdigest())


def _load_migrations(folder: Path) -> tuple[Script, ...]:
    scripts = tuple(_read(folder, path.name) for path in sorted(folder.glob("*.sql")))
    for version, script in enumerate(scripts, start=1):
        match = _MIGRATION_NAME.fullmatch(script.name)
        if match is None or int(match[1]) != version:
            raise MigrationError(
                f"{script.label} stands where {version:04d}_name.sql is expected.",
                "Migrations are numbered from 0001 without gaps, in small letters.",
            )
    hashes = {script.name: script.sha256 for script in scripts}
    frozen = folder / "frozen.txt"
    lines = frozen.read_text().splitlines() if frozen.exists() else []
    for sha256, name in (line.split() for line in lines):
        if hashes.get(name) != sha256:
            raise MigrationError(
                f"{folder.name}/{name} is not what was released.",
                "Restore it and put the change into a new migration.",
            )
    return scripts


def _load_sources(folder: Path) -> tuple[Script, ...]:
    names: list[str] = []
    manifest = _read(folder, "load.sql")
    for number, line in enumerate(manifest.text.splitlines(), start=1):
        if not line.strip() or line.startswith("--"):
            continue
        match = _MANIFEST_LINE.fullmatch(line.rstrip())
        if match is None:
            raise MigrationError(
                f"{manifest.label}, line {number}: {line.strip()!r} is not understood.",
                "Only comments and lines of the form \\ir path/to/file.sql may stand there.",
            )
        if match[1] in names:
            raise MigrationError(f"{manifest.label}, line {number}: {match[1]} stands there twice.")
        names.append(match[1])
    return tuple(_read(folder, name) for name in names)
