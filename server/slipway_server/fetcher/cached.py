"""Brings a model to a pod by a cache that outlives it: one download for all pods that share the cache.

A pod takes what its revision is pinned to, or what another pod of the revision took there. Without either, the source
is resolved, and what the cache has at that version is not downloaded.
"""

import hashlib
import json
import logging
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from ..model_cache import entries
from ..model_cache.entries import CacheEntry
from ..model_cache.store import CachedModel, ModelCache
from ..telemetry.downloads import FETCH, LINE_EVERY_S
from . import guard
from .folder import DiskFullError, Resolved
from .marker import Marker
from .pin import ModelPin

log = logging.getLogger(__name__)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_OCI_DIGEST = re.compile(r".*@sha256:([0-9a-f]{64})")

Download = Callable[[Path, Resolved], Marker]


class AlreadyCached(Exception):
    """No error: the cache has what the source has now, which ends a download before its first file."""

    def __init__(self, digest: str) -> None:
        super().__init__(digest)
        self.digest = digest


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How a pod uses a cache."""

    root: Path
    scope: str = ""  # the revision of the pod: all its pods load the same
    pod: str = ""  # uid whose lease keeps the model; empty: nothing keeps it


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model is, with all that decides which files come."""

    uri: str
    revision: str
    settings: tuple[str, ...] = ()  # formats of the engine, endpoints of stores and hubs

    @property
    def fixed_digest(self) -> str | None:
        """The digest of the files, where the revision is one."""
        scheme = urlsplit(self.uri).scheme
        return self.revision if scheme in ("s3", "gs", "az") and entries.is_digest(self.revision) else None

    @property
    def fixed_version(self) -> str | None:
        """The version, where URI and revision name one that never changes."""
        match urlsplit(self.uri).scheme:
            case "hf":
                return self.revision if _COMMIT.fullmatch(self.revision) else None
            case "oci":
                found = _OCI_DIGEST.fullmatch(self.uri)
                return found[1] if found else None
            case "https":
                return self.revision.removeprefix("sha256:") if entries.is_digest(self.revision) else None
        return None

    def name(self) -> str:
        """Of the download."""
        return _hash("source", *self._where, self.revision)

    def version_name(self, version: str) -> str:
        """The alias of a version, whatever branch or tag led to it."""
        return _hash("version", *self._where, version)

    def scope_name(self, scope: str) -> str:
        """The alias of what the pods of a revision load."""
        return _hash("scope", *self._where, self.revision, scope)

    @property
    def _where(self) -> tuple[str, ...]:
        machine = platform.machine() if self.uri.startswith("oci://") else ""
        return (self.uri, machine, *self.settings)


class CachedFetch:
    """The way of one model through the cache."""

    def __init__(self, use: CacheUse, source: ModelSource, pinned: ModelPin | None) -> None:
        """`pinned`: what the operator kept of the revision.

        Raises:
            CacheError: when the cache cannot be used.
        """
        self._cache, self._source, self._pin = ModelCache(use.root, use.pod), source, pinned
        self._names = [source.scope_name(use.scope)] if use.scope else []
        self._next_line_s = 0.0

    def run(self, download: Download) -> tuple[CachedModel, bool]:
        """The model, and whether it was in the cache already.

        Raises:
            FetchError: when it cannot be had.
            CacheError: when the cache cannot be used, or has no room.
        """
        self._cache.await_lease()
        if found := self._here():
            return found, True
        with self._cache.downloading(self._source.name(), self._wait) as work:
            FETCH.begin()
            if found := self._here() or self._left():
                return found, True
            return self._downloaded(work, download)

    def _here(self) -> CachedModel | None:
        """Without a request to the source."""
        fixed = self._source.fixed_version
        names = [*self._names, *([self._source.version_name(fixed)] if fixed else [])]
        if self._pin:
            digests = [self._pin.digest]
        else:
            fixed_digest = self._source.fixed_digest
            digests = [*([fixed_digest] if fixed_digest else []), *filter(None, map(self._cache.alias, names))]
        return next((found for digest in digests if (found := self._cache.find(digest))), None)

    def _left(self) -> CachedModel | None:
        wanted = self._pin.digest if self._pin else None
        return self._cache.left_pending(self._source.name(), wanted, self._names)

    def _downloaded(self, work: Path, download: Download) -> tuple[CachedModel, bool]:
        """Each turn but the last one evicts a model, or removes one that was damaged."""
        while True:
            names = [*self._names]
            try:
                done = download(work, partial(self._resolved, names))
                return self._cache.publish(self._source.name(), Path(done.path), _entry(done), names), False
            except AlreadyCached as cached:
                if found := self._cache.adopt(self._source.name(), cached.digest, names):
                    return found, True
            except DiskFullError:
                if not self._cache.evict_one(self._source.name()):
                    raise

    def _resolved(self, names: list[str], version: str, size: int) -> None:
        """What the source has now: it ends the download where the cache has it, and makes room for it elsewhere."""
        if version:
            name = self._source.version_name(version)
            digest = self._cache.alias(name)
            if digest and (self._pin is None or self._pin.digest == digest):
                raise AlreadyCached(digest)
            names.append(name)
        self._cache.make_room(self._source.name(), size)

    def _wait(self) -> None:
        FETCH.wait()
        if time.monotonic() >= self._next_line_s:
            log.info("another pod downloads %s into this cache: waiting for it", guard.shown(self._source.uri))
            self._next_line_s = time.monotonic() + LINE_EVERY_S


def _entry(done: Marker) -> CacheEntry:
    entry = entries.described(Path(done.path), done.files, done.digest, done.commit)
    return replace(entry, left_out=tuple(done.left_out))


def _hash(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
