"""Rules for the files of a model folder, wherever they come from."""

import hashlib
import logging
import time
from pathlib import Path, PurePosixPath

from ..models.checkpoint import PICKLE_SUFFIXES

log = logging.getLogger(__name__)

# Data that a server reads. Everything else (code, pickles, other frameworks' weights) is left where it is.
KEPT_SUFFIXES = frozenset({".safetensors", ".json", ".jinja", ".txt", ".model", ".md"})
CHUNK_BYTES = 1 << 20
PROGRESS_EVERY_S = 5.0


class FetchError(Exception):
    """Why a model was not fetched: one sentence for a person."""


class UnusableError(FetchError):
    """It can be had, and is damaged or not to be served: another try brings the same."""


def is_kept(name: str) -> bool:
    return PurePosixPath(name).suffix in KEPT_SUFFIXES


def refuse_pickles_only(names: list[str], source: str) -> None:
    pickles = sorted(name for name in names if PurePosixPath(name).suffix in PICKLE_SUFFIXES)
    if pickles and not any(name.endswith(".safetensors") for name in names):
        raise UnusableError(
            f"{source} has only pickled weights ({', '.join(pickles[:3])}), which can run any code when loaded: "
            "convert them to safetensors."
        )


def inside(root: Path, name: str) -> Path:
    """root/name; refuses names that lead out of the root."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
        raise UnusableError(f"The file name {name!r} leads out of the model folder.")
    return root / pure


def check(folder: Path, max_bytes: int) -> Path:
    """A folder that is used where it lies: nothing is copied."""
    if not folder.is_dir():
        raise FetchError(f"There is no folder {folder}.")
    root = folder.resolve()
    paths = list(folder.rglob("*"))
    for path in paths:
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise UnusableError(f"{path.relative_to(folder)} is a link that leads out of the model folder {folder}.")
    files = [path for path in paths if path.is_file()]
    refuse_pickles_only([path.name for path in files], str(folder))
    check_size(sum(path.stat().st_size for path in files if is_kept(path.name)), max_bytes, str(folder))
    return folder


def check_size(size: int, max_bytes: int, source: str) -> None:
    if size > max_bytes:
        raise UnusableError(f"{source} has {size} bytes; the limit is {max_bytes}.")


def digests(folder: Path) -> dict[str, dict[str, object]]:
    """Size and sha256 of every kept file, by its name below the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and is_kept(path.name))
    progress = Progress("checked", sum(path.stat().st_size for path in files))
    found: dict[str, dict[str, object]] = {}
    for path in files:
        name = path.relative_to(folder).as_posix()
        found[name] = {"size": path.stat().st_size, "sha256": sha256_of(path, progress)}
    return found


def sha256_of(path: Path, progress: "Progress | None" = None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if progress:
                progress.add(len(chunk))
    return digest.hexdigest()


class Progress:
    """A line in the log every few seconds."""

    def __init__(self, verb: str, total_bytes: int) -> None:
        self._verb, self._total, self._done = verb, total_bytes, 0
        self._next_s = time.monotonic() + PROGRESS_EVERY_S

    def add(self, size: int) -> None:
        self._done += size
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_EVERY_S
            log.info("%s %d of %d MB", self._verb, self._done // 10**6, self._total // 10**6)
