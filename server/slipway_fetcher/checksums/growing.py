"""A file that grows at its end, with the sha256 of all that it has."""

import hashlib
import os
from pathlib import Path
from types import TracebackType

from .. import folder
from ..folder import CHUNK_BYTES
from .known import KNOWN


class GrowingDigest:
    """The sha256 of a file's first bytes. It outlives a failed attempt: the next one continues file and digest."""

    def __init__(self, path: Path) -> None:
        self._path, self._digest, self._size = path, hashlib.sha256(), 0

    def keep(self, size: int) -> None:
        """Bring the digest to the file's first `size` bytes: bytes of an earlier run are read once from the disk."""
        if size < self._size:
            self._digest, self._size = hashlib.sha256(), 0
        if size == self._size:
            return
        buffer = memoryview(bytearray(CHUNK_BYTES))
        with folder.writing(self._path), self._path.open("rb", buffering=0) as file:
            file.seek(self._size)
            while self._size < size and (count := file.readinto(buffer[: size - self._size])):
                self.add(buffer[:count])

    def add(self, chunk: memoryview) -> None:
        self._digest.update(chunk)
        self._size += len(chunk)

    def note(self) -> None:
        """Note the digest in KNOWN: call it when the file is complete and closed."""
        if self._path.stat().st_size == self._size:
            KNOWN.note(self._path, self._digest.hexdigest())


class GrowingFile:
    """A file that is open for appending, without a buffer."""

    def __init__(self, path: Path, size: int, digest: GrowingDigest) -> None:
        """Append after the file's `size` bytes; 0 truncates the file."""
        self._path, self._digest = path, digest
        with folder.writing(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if size else os.O_TRUNC), 0o666)
        digest.keep(size)

    def write(self, chunk: memoryview) -> None:
        """Write all of `chunk`, in as many calls as the disk needs, and add it to the digest."""
        left = chunk
        with folder.writing(self._path):
            while left:
                left = left[os.write(self._file, left) :]
        self._digest.add(chunk)

    def __enter__(self) -> "GrowingFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with folder.writing(self._path):
            os.close(self._file)
