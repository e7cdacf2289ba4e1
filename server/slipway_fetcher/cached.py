"""Fetches a model through a cache that outlives the pod: one download serves all pods that share the cache.

A pod takes the model that its revision is pinned to, or that another pod of the revision took from the cache. Without
either, the source's present version is resolved, and a model that the cache has at that version is not downloaded.
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

from . import guard, mlflow
from .cache import entries
from .cache.entries import CacheEntry
from .cache.store import CachedModel, ModelCache
from .downloads import FETCH, LINE_EVERY_S
from .folder import DiskFullError, Resolved
from .marker import Marker
from .pin import ModelPin

log = logging.getLogger(__name__)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_OCI_DIGEST = re.compile(r".*@sha256:([0-9a-f]{64})")

Download = Callable[[Path, Resolved], Marker]


class AlreadyCached(Exception):
    """Not an error: ends a download before its first file, because the cache has the source's present version."""

    def __init__(self, digest: str) -> None:
        super().__init__(digest)
        self.digest = digest


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How a pod uses a cache."""

    root: Path
    scope: str = ""  # the pod's revision: all pods of a revision load the same model
    pod: str = ""  # uid of the pod, whose lease protects the model from eviction; empty: no lease


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's URI and revision, with the settings that decide which of its files are fetched."""

    uri: str
    revision: str
    settings: tuple[str, ...] = ()  # formats of the engine, endpoints of stores and hubs

    @property
    def fixed_digest(self) -> str | None:
        """The digest of the files, where the revision of a store or a tracking server is one; else None."""
        scheme = urlsplit(self.uri).scheme
        return (
            self.revision if scheme in ("s3", "gs", "az", mlflow.SCHEME) and entries.is_digest(self.revision) else None
        )

    @property
    def fixed_version(self) -> str | None:
        """The version, where URI and revision name one that never changes (a commit or a digest); else None."""
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
        """The name of the download in the cache: a sha256 in hex."""
        return _hash("source", *self._where, self.revision)

    def version_name(self, version: str) -> str:
        """The cache's alias of a version, whatever branch or tag was resolved to it."""
        return _hash("version", *self._where, version)

    def scope_name(self, scope: str) -> str:
        """The cache's alias of the model that all pods of a revision load."""
        return _hash("scope", *self._where, self.revision, scope)

    @property
    def _where(self) -> tuple[str, ...]:
        machine = platform.machine() if self.uri.startswith("oci://") else ""
        return (self.uri, machine, *self.settings)


class CachedFetch:
    """Fetches one model through the cache."""

    def __init__(self, use: CacheUse, source: ModelSource, pinned: ModelPin | None) -> None:
        """`pinned`: digest and commit that the operator recorded for the revision.

        Raises:
            CacheError: when the cache cannot be used.
        """
        self._cache, self._source, self._pin = ModelCache(use.root, use.pod), source, pinned
        self._names = [source.scope_name(use.scope)] if use.scope else []
        self._next_line_s = 0.0

    def run(self, download: Download) -> tuple[CachedModel, bool]:
        """Return the model, and whether it was in the cache already; wait while another pod downloads it.

        Raises:
            FetchError: when the model cannot be fetched.
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
        """The model in the cache, by digest or alias, without a request to the source; None where there is none."""
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
        """Download and publish the model; try again after evicting another model, or removing a damaged copy of it."""
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
        """Raise AlreadyCached where the cache has the source's version; else make room for its `size` bytes."""
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
