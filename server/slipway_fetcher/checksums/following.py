"""The sha256 of a file whose parts come in any order, some of them at the same time."""

import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from .. import folder
from ..folder import CHUNK_BYTES, FetchError
from .known import KNOWN


class FollowingDigest:
    """Follows the parts of one file; several threads finish them.

    The thread that finishes a part hashes every part that now continues the hashed beginning of the file. It reads the
    bytes back from the page cache: the copy costs a tenth of the digest, and the process holds no parts in memory.
    """

    def __init__(self, path: Path, size: int, part_bytes: int, done: Iterable[int] = ()) -> None:
        """`done`: numbers of parts that an earlier run left."""
        self._path, self._size, self._part_bytes = path, size, part_bytes
        self._lock, self._done = threading.Lock(), set(done)
        self._busy, self._next, self._digest = False, 0, hashlib.sha256()

    def finish(self, number: int) -> None:
        """Note that part `number` is in the file; hash what can be hashed now. KNOWN gets the whole file's digest."""
        with self._lock:
            self._done.add(number)
            if self._busy:  # another thread hashes, and takes this part too
                return
            self._busy = True
        while self._has_next():
            self._add_part()

    def _has_next(self) -> bool:
        """Whether the next part is in the file. If not, stop hashing under the same lock, so that no part is missed."""
        with self._lock:
            self._busy = self._next in self._done
            return self._busy

    def _add_part(self) -> None:
        begin, buffer = self._next * self._part_bytes, memoryview(bytearray(CHUNK_BYTES))
        end = min(begin + self._part_bytes, self._size)
        with folder.writing(self._path):
            file = os.open(self._path, os.O_RDONLY)
        try:
            while begin < end and (count := os.preadv(file, [buffer[: end - begin]], begin)):
                self._digest.update(buffer[:count])
                begin += count
        finally:
            os.close(file)
        if begin < end:
            raise FetchError(f"{self._path.name} became shorter while it was downloaded.")
        with self._lock:
            self._done.discard(self._next)
            self._next += 1
        if end == self._size:
            KNOWN.note(self._path, self._digest.hexdigest())
