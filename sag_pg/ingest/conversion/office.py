"""What the files of Word, PowerPoint and Excel have in common: they are zip archives."""

import zipfile
from pathlib import Path
from typing import Final

from defusedxml import ElementTree

from sag_pg.errors import LoadError

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED: Final = "EncryptedPackage".encode("utf-16-le")
_UNPACKED_LIMIT: Final = 2**30
# Bytes of the file with a document's properties, which are few.
_PROPERTIES_LIMIT: Final = 2**20
_TITLE_TAG: Final = "{http://purl.org/dc/elements/1.1/}title"


def check_package(path: Path, folder: str, kind: str) -> None:
    """Refuse what is not an archive of the kind that its name says, or would fill the memory.

    Args:
        path: The file.
        folder: Folder that an archive of this kind has.
        kind: What it is called, with its article.

    Raises:
        LoadError: It is something else, encrypted, or unpacks to more than 1 GiB.
    """
    with path.open("rb") as file:
        if file.read(len(_OLE)) == _OLE:
            if _ENCRYPTED in file.read():
                raise LoadError("it is protected by a password", "Save it without one.")
            raise LoadError(
                "it has the format of Office before 2007",
                f"Save it in today's format, {path.suffix.lower()}.",
            )
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, ValueError) as error:
        raise LoadError(
            f"it is not {kind}, or it is damaged: {error}", "Does its name end as it should?"
        ) from error
    if not any(part.filename.startswith(f"{folder}/") for part in parts):
        raise LoadError(f"it is a zip archive, but not {kind}", "Does its name end as it should?")
    unpacked = sum(part.file_size for part in parts)
    if unpacked > _UNPACKED_LIMIT:
        raise LoadError(
            f"it unpacks to {unpacked // 2**20} MiB; up to {_UNPACKED_LIMIT // 2**20} MiB can be"
            " converted",
            "Split it, or convert it to .txt or .md, which are read in pieces.",
        )


def stated_title(path: Path) -> str:
    """Return the title among a document's properties, empty where there is none."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("docProps/core.xml") as file:
            root = ElementTree.fromstring(file.read(_PROPERTIES_LIMIT))
    except (KeyError, ValueError, zipfile.BadZipFile, ElementTree.ParseError):
        return ""
    return (root.findtext(_TITLE_TAG) or "").strip()
