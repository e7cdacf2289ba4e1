"""Which models a pool has, by its file, and what lies in their folders. Every error names its field."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from slipway_contracts.fetch_source import FetchSource
from slipway_process.model_folder.checkpoint import ENTRIES_LIMIT, MARKER, CheckpointError, follow_marker

MAX_MODELS = 256  # entries, and so values of the labels of metrics
MAX_FILE_BYTES = 1 << 20
FETCH_ERROR = "slipway-fetch-error"  # beside the marker: why the files of an entry are not here
MAX_ERROR_BYTES = 4096

ModelKey: TypeAlias = tuple[str, str]  # name and version
_Path = Annotated[str, Meta(min_length=1, max_length=1024)]


class PoolEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One version of one model. `path`: its folder, below the pool's own."""

    name: Annotated[str, Meta(max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?$")]
    path: _Path
    version: Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")] = "unversioned"
    shown_version: Annotated[str, Meta(max_length=128)] = ""  # in answers, in place of `version`; "": that one
    default: bool = False  # the version of requests that name none
    task: Literal["predict", "classify", "rerank"] = "predict"
    format: Literal["auto", "onnx", "xgboost", "lightgbm", "skops", "transformers"] = "auto"
    pinned: bool = False  # loaded at the start, and never evicted
    max_in_flight: Annotated[int, Meta(ge=1, le=65_536)] = 64
    max_memory_bytes: Annotated[int, Meta(ge=0, le=2**62)] = 0  # 0: the server's --max-model-memory-bytes
    threads: Annotated[int, Meta(ge=1, le=256)] = 1
    source: FetchSource | None = None  # a fetcher brings the files, and its marker says that they are whole

    @property
    def key(self) -> ModelKey:
        return self.name, self.version


class PoolFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the pool's file."""

    models: Annotated[list[PoolEntry], Meta(max_length=MAX_MODELS)]


class CatalogError(CheckpointError):
    """The file of the pool is wrong; the sentence names the field."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Entries by name and version, and for each name the version of requests that name none."""

    entries: Mapping[ModelKey, PoolEntry]
    defaults: Mapping[str, str]


def read_catalog(file: Path) -> Catalog:
    """The catalog in a file. Raises CatalogError for a file that is not there, or wrong."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CatalogError(f"The pool's file {file} cannot be read: {error.strerror}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise CatalogError(f"The pool's file {file} has more than {MAX_FILE_BYTES} bytes.")
    try:
        return catalog_of(msgspec.json.decode(content, type=PoolFile).models)
    except RecursionError:
        raise CatalogError(f"The pool's file {file} is nested too deeply.") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CatalogError(f"The pool's file {file} is wrong: {error}.") from None


def catalog_of(models: list[PoolEntry]) -> Catalog:
    """The catalog of entries. Raises CatalogError for entries that contradict others, or lead out of the folder."""
    entries: dict[ModelKey, PoolEntry] = {}
    versions: dict[str, list[PoolEntry]] = {}
    for index, entry in enumerate(models):
        where = f"models[{index}]"
        if entry.key in entries:
            raise CatalogError(f"{where}: {entry.name} with the version {entry.version} is there twice.")
        parts = Path(entry.path).parts
        if not parts or os.path.isabs(entry.path) or ".." in parts:
            raise CatalogError(f"{where}.path: {entry.path!r} is not below the pool's folder: write a path below it.")
        entries[entry.key] = entry
        versions.setdefault(entry.name, []).append(entry)
    return Catalog(entries, {name: _default(name, found) for name, found in versions.items()})


def _default(name: str, versions: list[PoolEntry]) -> str:
    if len(versions) == 1:
        return versions[0].version
    chosen = [entry.version for entry in versions if entry.default]
    if len(chosen) != 1:
        raise CatalogError(f"models: {name} has {len(versions)} versions: write default: true for exactly one of them.")
    return chosen[0]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The files of a folder, as a hash of names, sizes, times and inodes: another fingerprint is another model."""

    digest: str
    size_bytes: int


def fingerprint(root: Path, entry: PoolEntry) -> Fingerprint:
    """The fingerprint of an entry's files. Raises CheckpointError for a folder that is missing or outside of `root`."""
    folder = root / entry.path
    if not folder.resolve().is_relative_to(root.resolve()):
        raise CheckpointError(f"The folder {entry.path} of {entry.name} is a link that leads out of the pool's folder.")
    if entry.source and not (folder / MARKER).is_file():
        raise CheckpointError(_why_missing(folder))
    folder, found, size_bytes = follow_marker(folder), list[str](), 0
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            try:
                status = os.stat(os.path.join(parent, name))
            except OSError:
                continue  # it was removed, or is a link to nothing: `find` decides about it
            size_bytes += status.st_size
            found.append(f"{parent}/{name}:{status.st_size}:{status.st_mtime_ns}:{status.st_ino}")
        if len(found) > ENTRIES_LIMIT:
            raise CheckpointError(f"{folder.name} has more than {ENTRIES_LIMIT} files: it is no model folder.")
    digest = hashlib.sha256("\n".join(found).encode("utf-8", "surrogateescape")).hexdigest()
    return Fingerprint(digest, size_bytes)


def _why_missing(folder: Path) -> str:
    try:
        with (folder / FETCH_ERROR).open("rb") as file:
            return file.read(MAX_ERROR_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return "The files of the model are not here yet: they are being downloaded."
