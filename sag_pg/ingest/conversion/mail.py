"""Converts messages of electronic mail."""

import datetime
import email
import email.policy
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Final

from sag_pg.errors import LoadError
from sag_pg.ingest.conversion.result import Converted
from sag_pg.ingest.conversion.tidying import escape
from sag_pg.text import in_one_line

_HEADERS: Final = ("from", "subject", "date", "to", "message-id")


def convert(path: Path) -> Converted:
    """Convert a .eml file: its subject, who wrote it to whom and when, and its body.

    The body is the plain text, else the web page, and all that follows it in the same message.
    Attachments are named and not read.
    """
    with path.open("rb") as file:
        message = email.message_from_binary_file(file, policy=email.policy.default)
    if not isinstance(message, EmailMessage) or not any(map(message.get, _HEADERS)):
        raise LoadError(
            "it is not a message of electronic mail: it has no headers",
            "Does its name end as it should?",
        )
    body, is_markdown = _body(message)
    if not body.strip():
        raise LoadError("there is no text in its body", "Its attachments are not read.")
    metadata: dict[str, Any] = {}
    people: list[str] = []
    for header in ("from", "to", "cc"):
        addresses = list(_addresses(message, header))
        if addresses:
            written = [address for _, address in addresses if address]
            metadata[header] = written if header != "from" else ", ".join(written)
            people.append(
                f"{header.capitalize()}: {', '.join(name or at for name, at in addresses)}"
            )
    if (date := _date(message)) is not None:
        metadata["date"] = date
    attachments = [_file_name(part) for part in message.iter_attachments()]
    if any(attachments):
        metadata["attachments"] = [name for name in attachments if name]
    head = "  \n".join(people) if is_markdown else "\n".join(people)
    subject = in_one_line(str(message.get("subject", "")))
    return Converted([head, "\n\n" * bool(head), body], subject, is_markdown, metadata)


def _body(message: EmailMessage) -> tuple[str, bool]:
    """Return the text of a message, and whether it is Markdown."""
    texts = list(_texts(message))
    is_markdown = any(is_page for _, is_page in texts)
    shown = [text if is_page or not is_markdown else escape(text) for text, is_page in texts]
    if len(shown) > 1:
        shown = [text.strip("\r\n") for text in shown]
    return "\n\n".join(shown), is_markdown


def _texts(part: EmailMessage) -> Iterator[tuple[str, bool]]:
    """Yield the texts of a part, and whether each is Markdown."""
    if part.get_content_type() == "multipart/mixed":
        # Some programs go on with the text after a picture, and lists add a line at the end.
        for inner in part.iter_parts():
            if isinstance(inner, EmailMessage) and not inner.is_attachment():
                yield from _texts(inner)
        return
    plain = part.get_body(("plain",))
    if plain is not None and (text := _text(plain)).strip():
        yield text, False
        return
    page = part.get_body(("html",))
    if page is not None:
        from sag_pg.ingest.conversion.html import convert_html

        pieces = convert_html(_text(page).encode("utf-8", "replace"), "utf-8").pieces
        yield "".join(pieces), True


def _text(part: Any) -> str:
    data = part.get_payload(decode=True) or b""
    for charset in (part.get_content_charset(), "utf-8"):
        try:
            return str(data.decode(charset or "utf-8"))
        except (LookupError, UnicodeDecodeError):
            continue
    return str(data.decode("cp1252", "replace"))


def _addresses(message: EmailMessage, header: str) -> Iterator[tuple[str, str]]:
    """Yield name and address of each person in a header; either may be empty."""
    for value in message.get_all(header, []):
        for address in getattr(value, "addresses", ()):
            name = in_one_line(address.display_name)
            at = in_one_line(address.addr_spec)
            at = "" if at == "<>" else at
            if name or at:
                yield name, at


def _date(message: EmailMessage) -> str | None:
    moment = getattr(message.get("date"), "datetime", None)
    if moment is None:
        return None
    if moment.tzinfo is None:
        # -0000: the time is in UTC, and where the sender was is not said.
        moment = moment.replace(tzinfo=datetime.UTC)
    return str(moment.isoformat())


def _file_name(part: Any) -> str:
    return in_one_line(part.get_filename() or "")
