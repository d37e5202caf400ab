"""Keeps bytes so that they can be read again."""

import io
import shutil
import tempfile
import threading
import weakref
from typing import Any, BinaryIO, Final

# More than this goes to the disk.
_KEPT_BYTES: Final = 2**20


class Spool:
    """Bytes that were written once and can be read any number of times, from several threads.

    They are in memory while they are few, else in a temporary file, which has no name and goes
    with the last reader.
    """

    def __init__(self) -> None:
        file = tempfile.SpooledTemporaryFile(max_size=_KEPT_BYTES)  # noqa: SIM115
        weakref.finalize(self, file.close)
        self._file = file
        self._lock = threading.Lock()
        self.size = 0

    @classmethod
    def of(cls, stream: BinaryIO) -> "Spool":
        """Copy a stream to its end."""
        spool = cls()
        shutil.copyfileobj(stream, spool)
        return spool

    def write(self, data: bytes) -> int:
        """Add bytes at the end; not to be called any more once it has been opened."""
        self.size += len(data)
        return self._file.write(data)

    def open(self) -> BinaryIO:
        """Open the bytes for reading from their beginning."""
        return io.BufferedReader(_SpoolReader(self))

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes from a position."""
        with self._lock:
            self._file.seek(position)
            return self._file.read(size)


class _SpoolReader(io.RawIOBase):
    """Reads a spool from a position of its own."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._spool.size}
        self._position = max(base[whence] + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._spool.read_at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
