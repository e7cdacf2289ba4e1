"""Rules for the files of a model folder, wherever they come from."""

import contextlib
import errno
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from slipway_process.model_folder.checkpoint import MARKER, PICKLE_SUFFIXES
from slipway_process.model_folder.classic import TRANSFORMERS

log = logging.getLogger(__name__)

# Called before a download with the version that the source has now (empty where it has none) and the bytes to come.
Resolved = Callable[[str, int], None]

CHUNK_BYTES = 1 << 20
_MODELS = frozenset({".onnx", ".ubj", ".skops"})  # a file that is a whole model
MAX_FILES = 10_000
MAX_NAME_BYTES, MAX_PART_BYTES = 1024, 255  # of a path below the folder, and of a name in it
NAMED = 5  # most names that a message lists
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_WRONG_NAME = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP})


class FetchError(Exception):
    """Why a model was not fetched: one sentence for a person."""


class UnusableError(FetchError):
    """The model can be fetched, but is damaged or must not be served: another try has the same result."""


class TooLargeError(UnusableError):
    """The model has more bytes than it may have."""


class DiskFullError(FetchError):
    """There is no room for the model's files."""


@dataclass(frozen=True, slots=True)
class Formats:
    """Suffixes of the files that an engine reads. All others (code, pickles, other frameworks' weights) stay behind."""

    weights: frozenset[str]
    other: frozenset[str] = frozenset({".json", ".jinja", ".txt", ".model", ".md"})
    advice: str = "convert them to safetensors"
    classic: str = ""  # format of a classic model, or auto
    required: frozenset[str] = frozenset()  # names of the only files that are kept, each of which must be there

    def is_kept(self, name: str) -> bool:
        pure = PurePosixPath(name)
        if self.required:
            return pure.name in self.required
        return pure.suffix in self.weights | self.other and pure.name != MARKER

    def left_out(self, names: Iterable[str], source: str) -> list[str]:
        """Names of the files that stay behind; pickles are logged.

        Raises:
            UnusableError: when the weights are pickles alone.
        """
        names = sorted(names)
        pickles = [name for name in names if is_pickle(name)]
        if pickles and not self._has_weights(names):
            raise UnusableError(
                f"{source} has only pickled weights ({', '.join(pickles[:3])}), which can run any code when loaded: "
                f"{self.advice}."
            )
        if pickles:
            log.warning("%s has pickled files, which are left out: %s", source, few(pickles))
        return [name for name in names if not self.is_kept(name)]

    def require_weights(self, names: Iterable[str], source: str) -> None:
        """Raise UnusableError for a folder without weights, or without a file that is required."""
        names = list(names)
        if missing := sorted(self.required.difference(names)):
            raise UnusableError(f"{source} has no {missing[0]}.")
        if not self._has_weights(names):
            raise UnusableError(f"{source} has no weights: no file ends in {', '.join(sorted(self.weights))}.")

    def _has_weights(self, names: Iterable[str]) -> bool:
        return any(PurePosixPath(name).suffix in self.weights for name in names)


SLIPWAY = Formats(frozenset({".safetensors"}))
ANY_ENGINE = Formats(
    frozenset({".safetensors", ".gguf", ".onnx"}), SLIPWAY.other | {".tiktoken", ".yaml", ".yml", ".onnx_data"}
)
# A LoRA adapter, as peft saves it: https://huggingface.co/docs/peft/developer_guides/checkpoint
PEFT = Formats(
    frozenset({".safetensors"}),
    frozenset({".json"}),
    required=frozenset({"adapter_config.json", "adapter_model.safetensors"}),
)
PEFT_FORMAT = "peft"  # its name among the formats

_CLASSIC = Formats(
    frozenset({".onnx", ".ubj", ".skops", ".json", ".txt"}),
    frozenset({".onnx_data", ".data", ".md"}),
    "save the model with skops.io.dump, or convert it to ONNX",
)


def classic(wanted: str) -> Formats:
    """The formats of a classic model. All but transformers keep the same files: a pin does not depend on the format."""
    formats = replace(SLIPWAY, advice="convert them to safetensors") if wanted == TRANSFORMERS else _CLASSIC
    return replace(formats, classic=wanted)


def is_pickle(name: str) -> bool:
    return PurePosixPath(name).suffix in PICKLE_SUFFIXES


def few(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def inside(root: Path, name: str) -> Path:
    """Return root/name; UnusableError for a name that leads out of the root, is too long, or is not printable."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name or not pure.parts:
        raise UnusableError(f"The file name {name[:MAX_PART_BYTES]!r} leads out of the model folder.")
    long = len(name.encode(errors="replace")) > MAX_NAME_BYTES
    long = long or any(len(part.encode(errors="replace")) > MAX_PART_BYTES for part in pure.parts)
    if long or not name.isprintable():
        raise UnusableError(f"The file name {name[:MAX_PART_BYTES]!r} is too long or has characters of control.")
    return root / pure


def check_names(names: Iterable[str], source: str) -> None:
    """Refuse names that cannot be in one folder together.

    Checked before any download: later, the disk would refuse whichever of the files comes second.

    Raises:
        UnusableError: for two names of one file, and a file that is a folder too.
    """
    seen: dict[str, str] = {}
    for name in names:
        key = str(PurePosixPath(name))
        if key in seen:
            raise UnusableError(f"{source} lists {seen[key]!r} and {name!r}, which are one file.")
        seen[key] = name
    for path, name in seen.items():
        for parent in parents(path):
            if (above := seen.get(str(parent))) is not None:
                raise UnusableError(f"{source} lists {above!r} and {name!r}: the first cannot be a file and a folder.")


def parents(name: str) -> Iterable[PurePosixPath]:
    return PurePosixPath(name).parents


def keep_only(target: Path, names: Iterable[str]) -> None:
    """Delete all files below `target` but `names`, and empty folders: a file to come may have a folder's name."""
    wanted = {inside(target, name) for name in names}
    for path in sorted(target.rglob("*"), reverse=True):
        if path.is_file() and path not in wanted:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def only_folder(target: Path) -> Path:
    """The model's folder in an unpacked archive: its only subfolder, unless `target` itself holds the model."""
    inner = [path for path in target.iterdir() if path.is_dir()]
    own = (target / "config.json").exists() or any(path.suffix in _MODELS for path in target.iterdir())
    return inner[0] if len(inner) == 1 and not own else target


def check(folder: Path) -> Path:
    """Check a folder that is used in place, and return it.

    Raises:
        FetchError: when there is no folder.
        UnusableError: for a symbolic link that leads out of it.
    """
    if not folder.is_dir():
        raise FetchError(f"There is no folder {folder}.")
    root = folder.resolve()
    paths = list(folder.rglob("*"))
    for path in paths:
        # realpath raises no error for a link to itself; whoever opens such a link finds no file.
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            raise UnusableError(f"{path.relative_to(folder)} is a link that leads out of the model folder {folder}.")
    return folder


def names_in(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def check_size(size: int, max_bytes: int, source: str) -> None:
    if size > max_bytes:
        raise TooLargeError(f"{source} has {size} bytes; the limit is {max_bytes}.")


def bytes_beside(shared: Path, dest: Path) -> int:
    """Bytes of the files in `shared`, on its file system, but for markers and what is in `dest`."""
    device, files = shared.lstat().st_dev, dict[int, int]()
    for parent, names, leaves in os.walk(shared):
        here = Path(parent)
        names[:] = [name for name in names if here / name != dest and (here / name).lstat().st_dev == device]
        for found in ((here / leaf).lstat() for leaf in leaves if leaf != MARKER):
            if stat.S_ISREG(found.st_mode):
                files[found.st_ino] = found.st_size  # a file may have several names
    return sum(files.values())


def check_count(count: int, source: str) -> None:
    if count > MAX_FILES:
        raise UnusableError(f"{source} has {count} files; at most {MAX_FILES} are taken.")


def check_room(folder: Path, needed: int) -> None:
    """Refuse a download that does not fit before the disk is full.

    Raises:
        DiskFullError: with the needed and the free space.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise _disk_full(f"{needed} bytes more are needed, {free} are free")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert OSErrors of disk calls to FetchErrors with a sentence; network calls do not belong inside."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _disk_full(f"writing {path.name} failed: {os.strerror(error.errno)}") from error
        if error.errno in _WRONG_NAME:
            raise UnusableError(f"{path.name} cannot be written: {os.strerror(error.errno)}.") from error
        raise FetchError(f"{path.name} cannot be written: {error}.") from error


def _disk_full(what: str) -> DiskFullError:
    return DiskFullError(f"There is no room for the model: {what}.")


def link(path: Path, target: Path) -> None:
    """Make or replace a symbolic link."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target.absolute())
    fresh.replace(path)
