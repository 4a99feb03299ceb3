"""Files as Python's `io` has them, on the engine's reads and writes at offsets."""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, IO, Any

from ._errors import error_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from ._zilla import Files, RawFile

# Bytes that readall asks for at a time.
_STEP = 16 << 20
# Bytes of a buffer; half of the usual record.
_BUFFER = 64 << 10


class File(io.RawIOBase):
    """An open file: an `io.RawIOBase`, which `io.BufferedReader` and the like take.

    The position is this object's. Threads that share one use `read_at` and `write_at`. What was written is
    stable after `sync`; `flush` and `close` promise nothing, as with any file.
    """

    def __init__(self, raw: RawFile, name: str, letter: str, updating: bool) -> None:
        """As `Files.open` with `buffering=0` makes it."""
        self._raw = raw
        self._at = 0
        self._reads = updating or letter == "r"
        self._writes = updating or letter != "r"
        self._appends = letter == "a"
        self.name = name
        self.mode = f"{letter}b{'+' if updating else ''}"
        if self._appends:
            self._at = raw.size()

    def __repr__(self) -> str:
        return f"<zilla.File name={self.name!r} mode={self.mode!r}{' closed' if self.closed else ''}>"

    def _open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _may_read(self) -> None:
        self._open()
        if not self._reads:
            raise io.UnsupportedOperation("File not open for reading")

    def _may_write(self) -> None:
        self._open()
        if not self._writes:
            raise io.UnsupportedOperation("File not open for writing")

    def readable(self) -> bool:
        """Whether it was opened for reading."""
        self._open()
        return self._reads

    def writable(self) -> bool:
        """Whether it was opened for writing."""
        self._open()
        return self._writes

    def seekable(self) -> bool:
        """True."""
        self._open()
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Reads into a buffer, and says how many bytes; 0 at the end."""
        self._may_read()
        with memoryview(buffer).cast("B") as into:
            data = self._raw.read_at(self._at, len(into))
            into[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self) -> bytes:
        """All bytes up to the end."""
        self._may_read()
        parts = []
        while data := self._raw.read_at(self._at, _STEP):
            parts.append(data)
            self._at += len(data)
        return b"".join(parts)

    def write(self, data: ReadableBuffer, /) -> int:
        """Writes all of it, and says how many bytes. A file that was opened with "a" gets it at its end."""
        self._may_write()
        whole = _bytes(data)
        # Nothing does not move the position either.
        if self._appends and whole:
            self._at = self._raw.size()
        self._raw.write_at(self._at, whole)
        self._at += len(whole)
        return len(whole)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position, and says where it is."""
        self._open()
        if whence == os.SEEK_SET:
            to = offset
        elif whence == os.SEEK_CUR:
            to = self._at + offset
        elif whence == os.SEEK_END:
            to = self._raw.size() + offset
        else:
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        if not 0 <= to < 1 << 63:
            raise error_of(errno.EINVAL, "Invalid argument")
        self._at = to
        return to

    def tell(self) -> int:
        """The position."""
        self._open()
        return self._at

    def truncate(self, size: int | None = None, /) -> int:
        """Makes the file so many bytes long; without a number, as many as the position."""
        self._may_write()
        to = self._at if size is None else size
        if not 0 <= to < 1 << 63:
            raise error_of(errno.EINVAL, "Invalid argument")
        self._raw.truncate(to)
        return to

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`, as `os.pread`; the position stays."""
        self._may_read()
        return self._raw.read_at(offset, length)

    def write_at(self, offset: int, data: ReadableBuffer) -> None:
        """Writes all of it at `offset`, as `os.pwrite`; the position stays."""
        self._may_write()
        self._raw.write_at(offset, _bytes(data))

    def stat(self) -> os.stat_result:
        """What `os.fstat` says."""
        self._open()
        return self._raw.stat()

    def sync(self) -> None:
        """Returns when all that was written is on stable storage, as `os.fsync`."""
        self._open()
        self._raw.sync()

    def close(self) -> None:
        """Gives it back."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._raw.close()


def _bytes(data: ReadableBuffer) -> bytes:
    return data if isinstance(data, bytes) else memoryview(data).tobytes()


def open(  # noqa: A001
    files: Files,
    path: str,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> IO[Any] | File:
    """What the built-in `open` does, with a path in these files. `buffering=0` gives a `zilla.File`."""
    words = set(mode)
    letters = [letter for letter in mode if letter in "rwax"]
    if len(words) != len(mode) or words - set("rwaxbt+") or len(letters) != 1 or {"b", "t"} <= words:
        raise ValueError(f"invalid mode: {mode!r}")
    binary = "b" in words
    if binary and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("binary mode doesn't take an encoding, errors or newline argument")
    if buffering == 0 and not binary:
        raise ValueError("can't have unbuffered text I/O")
    letter, updating = letters[0], "+" in words
    file = File(files.open_raw(path, letter), path, letter, updating)
    if buffering == 0:
        return file
    size = buffering if buffering > 1 else _BUFFER
    buffered: io.BufferedRandom | io.BufferedReader | io.BufferedWriter
    if updating:
        buffered = io.BufferedRandom(file, size)
    elif letter == "r":
        buffered = io.BufferedReader(file, size)
    else:
        buffered = io.BufferedWriter(file, size)
    if binary:
        return buffered
    wrapper = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
    wrapper.mode = mode  # type: ignore[misc]
    return wrapper
