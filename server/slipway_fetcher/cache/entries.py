"""One model of the cache: its record, and the check that its files are still those of the record."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

RECORD, FILES = "entry.json", "files"  # in the folder of an entry
RECORD_LIMIT_BYTES = 32 * 2**20
SMALL_BYTES = 2**20  # files up to this size are compared by digest at each use
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file as it was when its digest was computed."""

    size: int
    sha256: str
    changed_ns: int  # ctime: unlike mtime no program can set it, and unlike an inode it is not used again
    inode: int


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The record of a model in the cache."""

    digest: str  # sha256:… over the digests of its files
    commit: str
    files: dict[str, CachedFile]  # by the name below `FILES`
    left_out: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    def listed(self) -> dict[str, dict[str, Any]]:
        """The files as a marker has them."""
        return {name: {"size": file.size, "sha256": file.sha256} for name, file in self.files.items()}


def described(folder: Path, files: Mapping[str, Mapping[str, Any]], digest: str, commit: str = "") -> CacheEntry:
    """The record of a folder whose digests were just computed."""
    return CacheEntry(
        digest, commit, {name: _stated(folder / name, str(file["sha256"])) for name, file in files.items()}
    )


def _stated(path: Path, sha256: str) -> CachedFile:
    found = path.stat()
    return CachedFile(found.st_size, sha256, found.st_ctime_ns, found.st_ino)


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def read(folder: Path) -> CacheEntry | None:
    """The record of an entry; None where there is none, or one that this version does not write."""
    try:
        content = json.loads((folder / RECORD).read_bytes()[:RECORD_LIMIT_BYTES])
        files = {str(name): CachedFile(**file) for name, file in content["files"].items()}
        entry = CacheEntry(str(content["digest"]), str(content["commit"]), files, tuple(map(str, content["left_out"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return entry if is_digest(entry.digest) and all(map(_is_below, entry.files)) else None


def write(folder: Path, entry: CacheEntry) -> None:
    partial = folder / f"{RECORD}.partial"
    with partial.open("w") as file:
        json.dump(asdict(entry), file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / RECORD)


def damage(folder: Path, entry: CacheEntry) -> str:
    """How the files differ from the record; empty when they do not.

    A large file counts as unchanged while size, change time and inode are as recorded. Otherwise its digest decides.
    """
    for name, file in entry.files.items():
        path = folder / FILES / name
        try:
            found = _stated(path, file.sha256)
            if found.size != file.size:
                return f"{name} has {found.size} bytes, not {file.size}"
            if (found != file or file.size <= SMALL_BYTES) and _sha256(path) != file.sha256:
                return f"{name} does not have its digest"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return ""


def refreshed(files_folder: Path, entry: CacheEntry) -> CacheEntry:
    """The entry with the present times and inodes, of files whose digests are known."""
    files = {name: _stated(files_folder / name, file.sha256) for name, file in entry.files.items()}
    return replace(entry, files=files)


def _is_below(name: str) -> bool:
    pure = PurePosixPath(name)
    return bool(pure.parts) and not pure.is_absolute() and ".." not in pure.parts


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
