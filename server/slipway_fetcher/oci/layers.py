"""Unpacks layers: of an image what is below /models, later layers over earlier ones; of an artefact a folder."""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from .. import archive, folder
from ..folder import Formats, UnusableError

ROOT = "models"
_REMOVED, _OPAQUE = ".wh.", ".wh..wh..opq"


class LayerUnpacking:
    """The model folder while layers are put over one another; `max_bytes` bounds all that is decompressed."""

    def __init__(self, target: Path, max_bytes: int, formats: Formats, source: str) -> None:
        self._target, self._limit, self._formats, self._source = target, max_bytes, formats, source
        self._unpacked = 0
        self.names: set[str] = set()  # of files below the model folder, also of those that are left out

    def image_layer(self, packed: Path) -> None:
        """Unpack what an image layer has below /models.

        Raises:
            UnusableError: for a layer that is damaged, too large, or has links or names that lead out.
        """
        for tar, member in self._members(packed):
            parts = PurePosixPath(member.name).parts
            if parts[:1] == ("/",):
                parts = parts[1:]
            if parts[:1] == (ROOT,) and len(parts) > 1:
                self._member(tar, member, "/".join(parts[1:]))

    def folder_layer(self, packed: Path) -> None:
        """Unpack a layer that is a tar of the model folder; the same errors as `image_layer`."""
        for tar, member in self._members(packed):
            if member.name not in (".", "./"):
                self._member(tar, member, str(PurePosixPath(member.name)))

    def _members(self, packed: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
        try:
            with archive.opened(packed) as file, tarfile.open(fileobj=file, mode="r:") as tar:
                for member in tar:
                    # Everything counts: to read past a file that is left out it has to be decompressed too.
                    self._unpacked += member.size
                    folder.check_size(self._unpacked, self._limit, f"{self._source}, unpacked,")
                    yield tar, member
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UnusableError(f"A layer of {self._source} cannot be unpacked: {error}.") from error

    def _member(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        path = folder.inside(self._target, name)
        if not (member.isfile() or member.isdir()) or member.issparse():
            raise UnusableError(f"{name} of {self._source} is neither a file nor a folder: links are refused.")
        if member.isdir():
            return
        if path.name == _OPAQUE:
            return self._remove(path.parent)
        if path.name.startswith(_REMOVED):
            # The removed name is checked like every other one: `.wh...` would remove the folder above.
            above = PurePosixPath(name).parent
            return self._remove(folder.inside(self._target, f"{above}/{path.name.removeprefix(_REMOVED) or '..'}"))
        self.names.add(name)
        folder.check_count(len(self.names), self._source)
        if self._formats.is_kept(name):
            with folder.writing(path):
                path.unlink(missing_ok=True)
            archive.extract(tar, member, path)

    def _remove(self, path: Path) -> None:
        """Delete a file or folder of an earlier layer, which a whiteout entry of this layer names."""
        below = path.relative_to(self._target).as_posix()
        self.names = {
            name for name in self.names if below != "." and name != below and not name.startswith(f"{below}/")
        }
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        self._target.mkdir(exist_ok=True)
