"""Which parts of which files are on the disk: a line for each, written after the part.

A line counts only until the machine's next boot: parts are not synced to the disk, so the page cache may hold them.
"""

import json
import os
from collections import defaultdict
from pathlib import Path

from .. import folder
from .listing import StoredObject

NAME = "parts"
LIMIT_BYTES = 256 * 2**20
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Journal:
    """The finished parts of one source; several threads may add."""

    def __init__(self, path: Path, source: str) -> None:
        """`source` identifies what the parts belong to; a journal of another source or boot is emptied."""
        self._header = json.dumps([source, _boot()])
        self._path, self._done = path, _read(path, self._header)
        with folder.writing(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if self._done else os.O_TRUNC)
            self._file = os.open(path, flags, 0o600)
            if not self._done:
                os.write(self._file, f"{self._header}\n".encode())

    def done(self, name: str, stored: StoredObject, part_bytes: int) -> frozenset[int]:
        return frozenset(self._done.get(_key(name, stored, part_bytes), ()))

    def add(self, name: str, stored: StoredObject, part_bytes: int, part: int) -> None:
        """Append a finished part in one write, which the kernel does not mix with that of another thread."""
        with folder.writing(self._path):
            os.write(self._file, f"{json.dumps([_key(name, stored, part_bytes), part])}\n".encode())

    def close(self) -> None:
        os.close(self._file)

    def remove(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)


def _key(name: str, stored: StoredObject, part_bytes: int) -> str:
    """The key of a file's parts. Empty without an ETag: such a file is never continued, as a change would not show."""
    return json.dumps([name, stored.size, stored.etag, part_bytes]) if stored.etag else ""


def _read(path: Path, header: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    try:
        if path.stat().st_size > LIMIT_BYTES:
            return {}
        first, *lines = path.read_text().split("\n")
        if first != header:
            return {}
        for line in lines[:-1]:  # what follows the last newline was cut off
            key, part = json.loads(line)
            found[str(key)].add(int(part))
    except (OSError, ValueError, TypeError):
        return {}
    found.pop("", None)
    return dict(found)


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
