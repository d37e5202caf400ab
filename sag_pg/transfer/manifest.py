"""The manifest of a set of files: what the collection is, and what the other files must be."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from sag_pg.errors import LoadError
from sag_pg.transfer.lines import COPY_AGAIN, Lines
from sag_pg.transfer.records import SHAPES
from sag_pg.transfer.shape import Field, check_shape, texts_by_name, whole_number

FORMAT_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
# In the order in which they are written.
KINDS: Final = tuple(SHAPES)

_SHAPE: Final = {
    "collection": Field(str),
    "text_search_configuration": Field(str),
    "parameters": Field(dict),
    "embedding_space": Field(dict, type(None)),
    "entity_types": Field(dict, convert=texts_by_name),
    "files": Field(dict),
}
_SPACE_SHAPE: Final = {"model": Field(str), "dimensions": Field(int, convert=whole_number)}
_FILE_SHAPE: Final = {"lines": Field(int, convert=whole_number), "sha256": Field(str)}


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file of the set must be: its number of lines and its SHA-256 in hexadecimal."""

    lines: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says.

    Attributes:
        facts: What `sag.export_collection()` gave and `sag.import_collection()` takes.
        files: The other files by kind, such as "documents".
    """

    facts: dict[str, Any]
    files: dict[str, FileFacts]

    @property
    def collection(self) -> str:
        """Name of the exported collection."""
        return str(self.facts["collection"])

    @property
    def embedding_space(self) -> tuple[str, int] | None:
        """Name of the model of the vectors and their length; None where there are none."""
        space = self.facts["embedding_space"]
        return None if space is None else (space["model"], space["dimensions"])

    def write(self, directory: Path) -> None:
        """Write the manifest into a directory."""
        content = {
            "format_version": FORMAT_VERSION,
            **self.facts,
            "files": {path_of(directory, kind).name: asdict(self.files[kind]) for kind in KINDS},
        }
        text = json.dumps(content, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
        (directory / MANIFEST).write_text(text, "utf-8")

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the manifest of a directory.

        Raises:
            LoadError: There is none, it is of a newer format, or something is missing in it.
        """
        path = directory / MANIFEST
        try:
            content = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise LoadError(
                f"{path} cannot be read: {error.strerror or error}",
                "Name the directory that sag-pg export wrote.",
            ) from error
        except (ValueError, RecursionError) as error:
            raise LoadError(f"{path} is no JSON: {error}", COPY_AGAIN) from error
        try:
            version = check_shape(content, {"format_version": Field(int)})["format_version"]
            if version > FORMAT_VERSION:
                raise LoadError(
                    f"{path} is of format version {version}; this program knows {FORMAT_VERSION}.",
                    "Import it by the version of sag-pg that wrote it, or a newer one.",
                )
            facts = check_shape(content, _SHAPE)
            if facts["embedding_space"] is not None:
                check_shape(facts["embedding_space"], _SPACE_SHAPE)
            listed = check_shape(
                facts.pop("files"), {path_of(directory, kind).name: Field(dict) for kind in KINDS}
            )
            files = {
                kind: FileFacts(**check_shape(listed[path_of(directory, kind).name], _FILE_SHAPE))
                for kind in KINDS
            }
        except ValueError as error:
            raise LoadError(f"{path}: {error}", COPY_AGAIN) from error
        return cls(facts, files)

    def verify(self, directory: Path) -> None:
        """Make sure that the files are what was exported.

        Raises:
            LoadError: One is not. The message names the line where that can be told.
        """
        for kind, expected in self.files.items():
            path = path_of(directory, kind)
            try:
                with path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise LoadError(
                    f"{path} cannot be read: {error.strerror or error}", COPY_AGAIN
                ) from error
            if sha256 == expected.sha256:
                continue
            # A line that is none says more than the sum of all does.
            with Lines(path, SHAPES[kind]) as lines:
                while lines.head is not None:
                    lines.take()
            if lines.number < expected.lines:
                raise LoadError(
                    f"{path}, line {lines.number}: the file ends here, and {expected.lines} lines"
                    " were exported",
                    COPY_AGAIN,
                )
            raise LoadError(f"{path} was changed since it was exported", COPY_AGAIN)


def path_of(directory: Path, kind: str) -> Path:
    """Return where the file of a kind is."""
    return directory / f"{kind}.jsonl"
