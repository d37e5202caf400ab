"""The process that converts files, as the rest of the program sees it.

Converters are large libraries that read what strangers wrote: one of them may hang, crash or ask
for more memory than there is, and only a process can be stopped then. It is started with the
first file and kept for those that follow.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Final

from sag_pg.errors import LoadError

_SECONDS: Final = 300.0
_SECONDS_PER_BYTE: Final = 10 / 2**20
# Characters. A small file may unpack to any length.
_TEXT_LIMIT: Final = 256 * 2**20
# Some libraries lose a little memory with each file.
_FILES: Final = 200
_END_SECONDS: Final = 5.0

_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop());"
    " from sag_pg.ingest.conversion.child import main; main()"
)


@dataclass(slots=True)
class About:
    """What a file says about itself; see `result.Converted`."""

    title: str = ""
    markdown: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Conversion:
    """A file that is being converted.

    Attributes:
        pieces: Its text in pieces, to be taken once, and closed where they are not taken to the
            end; raises LoadError.
        about: What it says about itself, once the last piece was taken.
    """

    pieces: Generator[str, None, None]
    about: About


class Converter:
    """Converts one file after the other; a context manager, that ends its process.

    Args:
        seconds: Time that a file of no size may take; 10 seconds are added per MiB.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._files = 0

    def __enter__(self) -> "Converter":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def convert(self, path: str, suffix: str, size: int) -> Conversion:
        """Convert a file.

        Args:
            path: Where it is, from the root.
            suffix: Its type, such as `.pdf`.
            size: Bytes, on which the time depends that it may take.
        """
        about = About()
        seconds = self._seconds + size * _SECONDS_PER_BYTE
        return Conversion(self._pieces(path, suffix, seconds, about), about)

    def _pieces(
        self, path: str, suffix: str, seconds: float, about: About
    ) -> Generator[str, None, None]:
        process = self._running()
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        is_done = False
        try:
            request = {"path": path, "suffix": suffix, "seconds": seconds}
            for answer in _ask(process, request):
                if "text" in answer:
                    yield answer["text"]
                    continue
                is_done = not answer.get("is_spent", False)
                if "error" in answer:
                    raise LoadError(answer["error"], answer["hint"])
                about.title = answer["title"]
                about.markdown = answer["markdown"]
                about.metadata = answer["metadata"]
                return
            if late.is_set():
                raise LoadError(
                    f"its conversion took longer than {seconds:.0f} seconds and was stopped",
                    "Convert it to .txt or .md with another program.",
                )
            raise LoadError(
                "its conversion crashed, or the system stopped it for want of memory",
                "Is the file damaged? Convert it to .txt or .md with another program.",
            )
        finally:
            timer.cancel()
            if not is_done:
                self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._files >= _FILES:
            self._end()
        self._files += 1
        if self._process is None:
            # -P and the path: it finds just what this process would, wherever it was started.
            command = [sys.executable, "-P", "-c", _START, json.dumps(list(map(str, sys.path)))]
            try:
                self._process = subprocess.Popen(  # noqa: S603
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                raise LoadError(
                    f"no process can be started to convert it: {error.strerror or error}",
                    "How many processes may this user have, and how much memory is free?",
                ) from error
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        self._files = 0
        if process is None:
            return
        process.kill()
        with contextlib.suppress(OSError):
            _pipe(process.stdin).close()
        _pipe(process.stdout).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)


def _ask(process: subprocess.Popen[bytes], request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the process answers, until it ends or the text gets too long."""
    length = 0
    try:
        _pipe(process.stdin).write(json.dumps(request).encode() + b"\n")
        _pipe(process.stdin).flush()
        for line in _pipe(process.stdout):
            answer = json.loads(line)
            length += len(answer.get("text", ""))
            if length > _TEXT_LIMIT:
                raise LoadError(
                    f"its text is longer than {_TEXT_LIMIT // 2**20} million characters",
                    "Split it, or convert it to .txt or .md, which are read in pieces.",
                )
            yield answer
    except (OSError, json.JSONDecodeError):
        # It ended, or was ended within a line.
        return


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("the process was started with pipes")
    return pipe
