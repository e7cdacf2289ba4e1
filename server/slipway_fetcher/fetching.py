"""Brings a model folder to the pod, checks it, and leaves a marker when it is whole.

`hub`, `web`, `archive`, `objects`, `oci` and `mlflow` bring files, `folder` decides which files are
kept, `guard` decides which addresses may be called, `pin` compares the files with the revision's digest, `cached` keeps
them for other pods.
"""

import json
import logging
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from slipway_process.model_folder import checkpoint, classic

from . import folder, guard, marker, mlflow, pin, web
from . import hub as hubs
from .cached import CachedFetch, CacheUse, ModelSource
from .checksums import known
from .downloads import FETCH
from .folder import FetchError, Formats, Resolved, UnusableError
from .guard import EgressRules
from .hub import Hub
from .marker import Marker
from .objects import fetching as objects
from .objects import location
from .objects.access import StoreAccess
from .oci import pulling
from .oci.registry import RegistryAccess
from .pin import ModelPin, Report
from .settings import SCHEMES

log = logging.getLogger("slipway.fetcher")

PVC_MOUNT = Path("/mnt/pvc")
LINK = "current"  # symlink in --dest to the model's folder, for engines other than slipway-server
_PINNED_BY_FILES = (
    "file",
    "pvc",
    *location.SCHEMES,
    mlflow.SCHEME,
)  # schemes whose --revision is the digest of the files
LEFT_OUT_KEPT = 1000  # most names of left-out files that the marker lists


@dataclass(frozen=True, slots=True)
class Sources:
    """Where models may come from: egress rules, endpoints with credentials, and the formats of the files to keep."""

    rules: EgressRules = field(default_factory=EgressRules)
    hub: Hub = field(default_factory=Hub)
    store: StoreAccess = field(default_factory=StoreAccess)
    registry: RegistryAccess = field(default_factory=RegistryAccess)
    tracking: mlflow.TrackingAccess = field(default_factory=mlflow.TrackingAccess)
    pvc_mount: Path = PVC_MOUNT
    formats: Formats = folder.SLIPWAY  # others are for other engines, which find the folder by LINK
    resolved: Resolved = lambda version, size: None  # called before a download begins

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that decide which files are fetched, without credentials: a part of the cache's keys."""
        store = self.store
        return (*sorted(self.formats.weights), self.hub.endpoint, store.endpoint, store.region, store.account)


@dataclass(frozen=True, slots=True)
class Found:
    """A model folder before its check."""

    path: Path
    commit: str = ""
    left_out: tuple[str, ...] = ()


def fetch(
    uri: str,
    revision: str,
    dest: Path,
    *,
    max_bytes: int,
    pin_file: Path | None = None,
    sources: Sources | None = None,
    use: CacheUse | None = None,
) -> Report:
    """Bring a model to `dest`, or find it in place (file://, pvc://), and compare it with the pin of its revision.

    `use` names a cache that outlives the pod; None: no cache. The function is idempotent: what a finished run left is
    kept, what an interrupted run left is continued or replaced.

    Raises:
        FetchError: when the model cannot be fetched.
        UnusableError: when the model cannot be used, or is not what the revision is pinned to.
        CheckpointError: when the folder holds no model that a server loads.
        CacheError: when the cache cannot be used.
    """
    sources, kept = sources or Sources(), pin.read(pin_file)
    with folder.writing(dest):
        dest.mkdir(parents=True, exist_ok=True)
    if use is None or urlsplit(uri).scheme in ("file", "pvc"):
        return _report(_fetched(uri, revision, dest, max_bytes, kept, sources), kept)

    def download(work: Path, resolved: Resolved) -> Marker:
        return _fetched(uri, revision, work, max_bytes, kept, replace(sources, resolved=resolved))

    model, cached = CachedFetch(use, ModelSource(uri, revision, sources.settings), kept).run(download)
    _check_usable(model.folder, dest, uri, sources.formats)
    entry = model.entry
    found = Marker(
        uri, revision, str(model.folder), entry.digest, entry.commit, entry.listed(), list(entry.left_out)
    )  # fmt: skip
    marker.write(dest, found)
    log.info("complete", extra={"uri": guard.shown(uri), "path": found.path, "digest": found.digest, "cached": cached})
    return replace(_report(found, kept), cached=cached)


def _fetched(uri: str, revision: str, dest: Path, max_bytes: int, kept: ModelPin | None, sources: Sources) -> Marker:
    """Fetch the model into `dest`, check it, and write its marker; a complete earlier run is reused."""
    FETCH.begin()
    done = marker.read(dest, uri, revision)
    if done and (kept is None or kept.digest == done.digest):
        log.info("already here", extra={"uri": guard.shown(uri)})
        return done
    found = _find(uri, revision, dest, max_bytes, kept, sources)
    _check_usable(found.path, dest, uri, sources.formats)
    files = known.of_folder(found.path, sources.formats)
    digest = pin.digest_of(files)
    where = f"{guard.shown(uri)} at commit {found.commit}" if found.commit else guard.shown(uri)
    if urlsplit(uri).scheme in _PINNED_BY_FILES and (wanted := pin.sha256_pin(revision)):
        _check_revision(digest, wanted, where)
    pin.check(digest, kept, where)
    left_out = list(found.left_out[:LEFT_OUT_KEPT])
    fresh = Marker(uri, revision, str(found.path.absolute()), digest, found.commit, files, left_out)
    marker.write(dest, fresh)
    log.info("complete", extra={"uri": guard.shown(uri), "path": fresh.path, "digest": digest, "commit": found.commit})
    return fresh


def _check_usable(path: Path, dest: Path, uri: str, formats: Formats) -> None:
    if formats is folder.SLIPWAY:
        _look_at_code(checkpoint.read(path).config, guard.shown(uri))
    elif formats.classic:
        classic.find(path, formats.classic)
    else:
        formats.require_weights(folder.names_in(path), guard.shown(uri))
        if not formats.required:
            folder.link(dest / LINK, path)


def _find(uri: str, revision: str, dest: Path, max_bytes: int, kept: ModelPin | None, sources: Sources) -> Found:
    parts, rules, formats, resolved = urlsplit(uri), sources.rules, sources.formats, sources.resolved
    match parts.scheme:
        case "file":
            return _in_place(Path(parts.netloc + parts.path), dest, max_bytes, formats)
        case "pvc":
            name = parts.path.strip("/")
            root = folder.inside(sources.pvc_mount, name) if name else sources.pvc_mount
            return _in_place(root, dest, max_bytes, formats)
        case "hf":
            repository, pinned = parts.netloc + parts.path, kept.commit if kept else ""
            path, commit, left_out = hubs.download(
                repository, revision, dest, max_bytes, rules, sources.hub, pinned, formats=formats, resolved=resolved
            )
            return Found(path, commit, tuple(left_out))
        case "https":
            path, left_out = web.download(uri, revision, dest, max_bytes, rules, formats=formats, resolved=resolved)
            return Found(path, "", tuple(left_out))
        case "s3" | "gs" | "az":
            pin.sha256_pin(revision)  # finds a mistake in the revision before the download
            path, left_out = objects.download(
                uri, dest, max_bytes, rules, sources.store, formats=formats, resolved=resolved
            )
            return Found(path, "", tuple(left_out))
        case "oci":
            path, commit, left_out = pulling.download(
                uri, dest, max_bytes, rules, sources.registry,
                pinned=kept.commit if kept else "", formats=formats, resolved=resolved,
            )  # fmt: skip
            return Found(path, commit, tuple(left_out))
        case mlflow.SCHEME:
            pin.sha256_pin(revision)
            path, left_out = mlflow.download(
                uri, dest, max_bytes, rules, sources.tracking, formats=formats, resolved=resolved
            )
            return Found(path, "", tuple(left_out))
    raise FetchError(f"{guard.shown(uri)} is not understood: model URIs begin with {SCHEMES}.")


def _in_place(path: Path, dest: Path, max_bytes: int, formats: Formats) -> Found:
    folder.check(path)
    left_out = tuple(formats.left_out(folder.names_in(path), str(path)))
    if formats.required:
        path = _copied(path, dest, max_bytes, formats)
    return Found(path, "", left_out)


def _copied(path: Path, dest: Path, max_bytes: int, formats: Formats) -> Path:
    """A copy of the files that are required: an engine loads adapters from below one folder alone."""
    formats.require_weights(folder.names_in(path), str(path))
    files = [path / name for name in sorted(formats.required)]
    if hidden := [str(file) for file in files if not os.access(file, os.R_OK)]:
        raise UnusableError(f"{hidden[0]} cannot be read: it belongs to another user. Make it readable for all.")
    size_bytes = sum(file.stat().st_size for file in files)
    folder.check_size(size_bytes, max_bytes, str(path))
    partial, target = dest / "model.partial", dest / "model"
    with folder.writing(target):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        folder.check_room(dest, size_bytes)
        for file in files:
            shutil.copyfile(file, partial / file.name)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    return target


def _check_revision(digest: str, wanted: str, source: str) -> None:
    if digest != f"sha256:{wanted}":
        raise UnusableError(f"{source} has {digest}; spec.model.revision is sha256:{wanted}.")


def _look_at_code(config: dict[str, object], source: str) -> None:
    """Refuse a model that only its repository's own code could load; else warn of such code, which is never run."""
    mapped = config.get("auto_map")
    if not mapped:
        return
    text = json.dumps(mapped)[:200]
    if not config.get("model_type"):
        raise UnusableError(
            f"config.json of {source} names no model_type, only code of its own ({text}), which is never run: "
            "serve a model whose architecture is known."
        )
    log.warning("config.json of %s names code of its own (auto_map), which is never run: %s", source, text)


def _report(done: Marker, kept: ModelPin | None) -> Report:
    size = sum(int(file["size"]) for file in done.files.values())
    return Report(done.digest, done.commit, len(done.files), size, kept is not None)
