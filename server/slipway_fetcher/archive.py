"""Unpacks a .tar of a model folder: plain files and folders only, checked before anything is written."""

import gzip
import hashlib
import io
import tarfile
import zlib
from pathlib import Path
from typing import IO, Any

from . import folder
from .checksums.known import KNOWN
from .folder import Formats, UnusableError

SUFFIXES = (".tar", ".tar.gz", ".tgz")
LONGEST_READ_BYTES = 16 * 2**20  # a longer read comes from a forged header: files are copied in smaller chunks
_GZIP = b"\x1f\x8b"


def unpack(archive: Path, target: Path, max_bytes: int, formats: Formats = folder.SLIPWAY) -> list[str]:
    """Unpack the files that the engine reads; return the names of the others. `max_bytes` bounds all files together.

    Raises:
        UnusableError: when the archive is damaged, too large, or has links or names that lead out.
        DiskFullError: when there is no room.
    """
    try:
        with opened(archive) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            kept, omitted = _chosen(tar, target, max_bytes, formats)
        folder.check_room(target, sum(member.size for member in kept.values()))
        with opened(archive) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for name, member in kept.items():
                extract(tar, member, folder.inside(target, name))
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnusableError(f"The archive cannot be unpacked: {error}.") from error
    return omitted


def _chosen(
    tar: tarfile.TarFile, target: Path, max_bytes: int, formats: Formats
) -> tuple[dict[str, tarfile.TarInfo], list[str]]:
    kept: dict[str, tarfile.TarInfo] = {}
    names: list[str] = []
    total = 0
    for member in tar:
        path = folder.inside(target, member.name) if member.name not in (".", "./") else target
        if not (member.isfile() or member.isdir()) or member.issparse():
            raise UnusableError(f"{member.name} in the archive is neither a file nor a folder: links are refused.")
        folder.check_count(len(names), "The archive")
        if not member.isfile():
            continue
        # Everything counts: to read past a file that is left out it has to be decompressed too.
        total += member.size
        folder.check_size(total, max_bytes, "The archive, unpacked,")
        name = path.relative_to(target).as_posix()
        names.append(name)
        if formats.is_kept(name):
            if name in kept:
                raise UnusableError(f"The archive has {name} twice.")
            kept[name] = member
    return kept, formats.left_out(names, "The archive")


def extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write one regular file of an archive to `path`, and note its sha256 in KNOWN.

    Raises:
        UnusableError: when the archive ends in the middle of the file.
    """
    content = tar.extractfile(member)
    assert content is not None, "only plain files are chosen"
    with folder.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with content, path.open("xb") as file:
            while chunk := content.read(folder.CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
    if path.stat().st_size != member.size:
        raise UnusableError(f"The archive ends in the middle of {member.name}.")
    KNOWN.note(path, digest.hexdigest())


class _Bounded(io.RawIOBase):
    """Refuses reads above LONGEST_READ_BYTES: for a forged header tarfile would read gigabytes into memory."""

    def __init__(self, file: gzip.GzipFile | IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > LONGEST_READ_BYTES:
            raise tarfile.ReadError("a header is too long")
        return self._file.read(size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def opened(archive: Path) -> Any:
    """Open an archive for tarfile; a gzip archive is decompressed while it is read."""
    with archive.open("rb") as file:
        packed = file.read(2) == _GZIP
    return _Bounded(gzip.open(archive, "rb") if packed else archive.open("rb"))
