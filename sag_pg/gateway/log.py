"""The gateway's log: one JSON object a line.

A line holds what happened, to which connection, how long it took and how it ended; never what was
asked or answered, and no key or password. That is kept by writing only what the functions here
are given: messages of other libraries and of exceptions, which may hold contents, are left out.
"""

import json
import logging
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

_logger = logging.getLogger("sag_pg.gateway")


def configure(stream: TextIO) -> None:
    """Write the log of this process to a stream; all other libraries' messages lose their text."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _logger.setLevel(logging.INFO)


def info(event: str, **fields: Any) -> None:
    """Log something usual.

    Args:
        event: What happened, in one word.
        fields: JSON values that hold no contents; those that are None are left out.
    """
    _write(logging.INFO, event, fields)


def warning(event: str, **fields: Any) -> None:
    """Log something that somebody should know."""
    _write(logging.WARNING, event, fields)


def fault(event: str, error: BaseException | None, **fields: Any) -> None:
    """Log a fault of the program: the kind of the exception and where it came from."""
    if error is not None:
        fields["error"] = type(error).__name__
        fields["at"] = [
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)
        ]
    _write(logging.ERROR, event, fields)


def _write(level: int, event: str, fields: dict[str, Any]) -> None:
    known = {name: value for name, value in fields.items() if value is not None}
    _logger.log(level, event, extra={"fields": known})


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        own = record.name == _logger.name
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.msg if own else "library",
        }
        line |= getattr(record, "fields", {}) if own else {"logger": record.name}
        return json.dumps(line, ensure_ascii=False)
