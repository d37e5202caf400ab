"""What runs in the process that converts files: it reads requests and writes answers, as JSON."""

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from sag_pg.errors import LoadError
from sag_pg.ingest.conversion.result import Converted
from sag_pg.ingest.loaders.reading import regroup
from sag_pg.text import in_one_line

# Each is loaded with the first file of its kind.
_MODULES: Final[Mapping[str, str]] = {
    ".html": "html",
    ".htm": "html",
    ".pdf": "pdf",
    ".docx": "docx",
    ".pptx": "pptx",
    ".xlsx": "xlsx",
    ".eml": "mail",
}
# Bytes of address space. Half a gigabyte is what the libraries have before they do anything.
_MEMORY: Final = 3 * 2**30
# The parent's time limit comes first, unless the parent is no more.
_GRACE_SECONDS: Final = 30
_SHOWN_CHARACTERS: Final = 200

_DAMAGED_HINT = "Is the file damaged, or of another type than its name says?"
_CONVERT_HINT = "Convert it to .txt or .md with another program."


def main() -> None:
    """Answer requests until there are no more."""
    # Ctrl-C is for the parent, which ends this process when it wants to.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        # What libraries print must not get among the answers.
        with open(os.devnull, "r+b") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 0)
            os.dup2(nothing.fileno(), 1)
        _limit_memory()
        for line in requests:
            request = json.loads(line)
            _alarm(int(request["seconds"]) + _GRACE_SECONDS)
            is_spent = _answer(Path(request["path"]), request["suffix"], answers)
            _alarm(0)
            if is_spent:
                return


def _limit_memory() -> None:
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
    # Some systems know the limit and do not let it be set.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _alarm(seconds: int) -> None:
    if sys.platform != "win32":
        signal.alarm(seconds)


def _answer(path: Path, suffix: str, answers: BinaryIO) -> bool:
    """Convert a file, write the answers, and tell whether this process should not go on."""
    try:
        module = importlib.import_module(f"sag_pg.ingest.conversion.{_MODULES[suffix]}")
        converted: Converted = module.convert(path)
        for piece in regroup(converted.pieces):
            _write(answers, {"text": piece})
    except LoadError as error:
        _fail(answers, str(error), error.hint)
    except ModuleNotFoundError as error:
        _fail(
            answers,
            f"{suffix} files need the package {(error.name or '').partition('.')[0]}, which is not"
            " installed",
            "Run pip install 'sag-pg[files]'.",
        )
    except RecursionError:
        _fail(answers, "it is nested too deeply", _CONVERT_HINT)
    except OSError as error:
        _fail(answers, f"cannot be read: {error.strerror or error}", _DAMAGED_HINT)
    except Exception as error:
        if _wants_memory(error):
            _fail(
                answers,
                f"its conversion needs more than {_MEMORY // 2**30} GiB of memory",
                _CONVERT_HINT,
                is_spent=True,
            )
            return True
        # Of converters it is not known what they raise.
        detail = in_one_line(str(error))[:_SHOWN_CHARACTERS]
        name = type(error).__name__
        _fail(answers, f"cannot be converted: {name}{': ' * bool(detail)}{detail}", _DAMAGED_HINT)
    else:
        _write(
            answers,
            {
                "title": converted.title,
                "markdown": converted.markdown,
                "metadata": converted.metadata,
            },
        )
    return False


def _wants_memory(error: BaseException | None) -> bool:
    """Tell whether memory was wanting, though closing what was open may have failed after that."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__context__
    return error is not None


def _fail(answers: BinaryIO, error: str, hint: str | None, *, is_spent: bool = False) -> None:
    _write(answers, {"error": error, "hint": hint, "is_spent": is_spent})


def _write(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()
