"""Digests of files: those that this process computed while it wrote them, and all others by reading the files."""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..downloads import DownloadProgress
from ..folder import CHUNK_BYTES, SLIPWAY, Formats

KEPT = 20_000  # digests: more than a model may have files
READERS = 4  # files that are read at a time; hashlib does without the interpreter's lock

_Version = tuple[int, int, int, int]


class KnownDigests:
    """The sha256 of files by device, inode, size and mtime: a file that was changed or replaced is not known."""

    def __init__(self) -> None:
        self._digests: dict[_Version, str] = {}

    def note(self, path: Path, sha256: str) -> None:
        """Remember the digest of a file that is complete and was closed."""
        self._digests[_version(path)] = sha256
        if len(self._digests) > KEPT:
            self._digests.pop(next(iter(self._digests)), None)

    def of(self, path: Path) -> str | None:
        return self._digests.get(_version(path))


KNOWN = KnownDigests()  # of this process: it fetches one model


def sha256_of(path: Path, progress: DownloadProgress | None = None) -> str:
    """The sha256 of a file in hex: from KNOWN, or else by reading the file."""
    if known := KNOWN.of(path):
        if progress:
            progress.add(path.stat().st_size)
        return known
    digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            if progress:
                progress.add(size)
    return digest.hexdigest()


def blob_of(path: Path) -> str:
    """The git blob id of a file: a sha1 in hex."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def of_folder(folder: Path, formats: Formats = SLIPWAY) -> dict[str, dict[str, object]]:
    """Size and sha256 of every kept file, by its name below the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and formats.is_kept(path.name))
    names = [path.relative_to(folder).as_posix() for path in files]
    sizes = [path.stat().st_size for path in files]
    sums = _read(files, DownloadProgress("checked", sum(sizes)))
    return {
        name: {"size": size, "sha256": sha256} for name, size, sha256 in zip(names, sizes, sums, strict=True)
    }  # fmt: skip


def _read(files: Iterable[Path], progress: DownloadProgress) -> list[str]:
    with ThreadPoolExecutor(min(READERS, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(lambda path: sha256_of(path, progress), files))


def _version(path: Path) -> _Version:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
