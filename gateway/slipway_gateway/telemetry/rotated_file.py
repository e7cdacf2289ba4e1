"""Where lines of a log go: a file with a bounded number of predecessors, or a stream such as stdout."""

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class Sink(Protocol):
    """Takes whole lines. Its calls block."""

    def write(self, lines: Sequence[bytes]) -> None:
        """
        Raises:
            UnwrittenLines: not all of them were taken.
        """

    def close(self) -> None: ...


class UnwrittenLines(Exception):
    """Lines that a sink did not take, because of an OSError."""

    def __init__(self, count: int, cause: OSError) -> None:
        super().__init__(str(cause))
        self.count = count


class OpenStream:
    """Writes lines to a descriptor that is open, such as that of stdout."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._torn = False  # it ends in the middle of a line

    def write(self, lines: Sequence[bytes]) -> None:
        """
        Raises:
            UnwrittenLines: not all of them were taken. A line that was taken in part ends before the next one.
        """
        data = memoryview((b"\n" if self._torn else b"") + b"".join(lines))
        begin = 0
        try:
            while begin < len(data):
                begin += os.write(self._descriptor, data[begin:])
        except OSError as error:
            taken = bytes(data[:begin])
            whole = taken.count(b"\n") - (self._torn and begin > 0)
            self._torn = not taken.endswith(b"\n") if taken else self._torn
            raise UnwrittenLines(len(lines) - whole, error) from None
        self._torn = False

    def close(self) -> None:
        """Does nothing: the stream belongs to the process."""


class RotatedFile:
    """PATH, with PATH.1 to PATH.N before it. When it was moved or deleted, the next lines make it again.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """

    def __init__(self, path: str, max_bytes: int, max_files: int) -> None:
        """`max_files`: with the one that is written."""
        self._path, self._max_bytes, self._max_files = Path(path), max_bytes, max_files
        self._descriptor = -1
        self._identity = (0, 0)
        self._size = 0
        self._open()

    def write(self, lines: Sequence[bytes]) -> None:
        """
        Raises:
            UnwrittenLines: not all of them were taken.
        """
        left = len(lines)
        try:
            if self._descriptor < 0 or self._is_elsewhere():
                self._open()
            for part in self._parts(lines):
                self._stream.write(part)
                self._size += sum(map(len, part))
                left -= len(part)
        except UnwrittenLines as error:
            left -= len(part) - error.count
            self.close()  # its size is read when it is opened again
            raise UnwrittenLines(left, OSError(str(error))) from None
        except OSError as error:
            raise UnwrittenLines(left, error) from None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self.close()
        # Without O_NONBLOCK a named pipe at this path would block until it has a reader.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o640)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise OSError(f"{self._path} is no regular file")
        self._descriptor, self._size = descriptor, found.st_size
        self._identity = (found.st_dev, found.st_ino)
        self._stream = OpenStream(descriptor)
        if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
            # A process was killed while it wrote to it: the next line begins on a line of its own.
            try:
                self._size += os.write(descriptor, b"\n")
            except OSError:
                self.close()
                raise

    def _is_elsewhere(self) -> bool:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return True
        return (found.st_dev, found.st_ino) != self._identity

    def _parts(self, lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        """What fits into the file, with a new file after each part but the last. No line is in two files."""
        begin, size = 0, self._size
        for at, line in enumerate(lines):
            if size and size + len(line) > self._max_bytes:
                if at > begin:
                    yield lines[begin:at]
                self._rotate()
                begin, size = at, 0
            size += len(line)
        yield lines[begin:]

    def _rotate(self) -> None:
        """Renames all files, which drops the oldest, and opens a new one. After an OSError nothing more is written."""
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._max_files))]
        if len(names) == 1:
            self._path.unlink(missing_ok=True)
        for younger, older in reversed(list(itertools.pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                younger.replace(older)
        self._open()
