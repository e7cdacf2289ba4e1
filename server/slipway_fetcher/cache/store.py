"""The cache: finds models by digest, publishes what was downloaded, and evicts what no pod uses.

Below its root: `models/DIGEST` are entries, `aliases/HASH` lead to a digest, `work/SOURCE` are downloads, `leases/POD`
keep entries, `max-bytes` is the administrator's limit.
"""

import contextlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import entries, leases, locks
from .entries import CacheEntry
from .locks import CacheError

log = logging.getLogger(__name__)

LIMIT = "max-bytes"
LEASE_LIMIT_S = 60.0  # longest wait for the process that holds the lease
_LOCK, _MODELS, _ALIASES, _WORK, _TRASH = "cache.lock", "models", "aliases", "work", "trash"
_PENDING, _RESERVED = "entry", "reserved"  # in the folder of a download
_NAMES, _NAMES_BYTES = "names", 4096  # of aliases, in a pending entry
_ALIAS = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model that is in the cache, whole, and kept for this pod."""

    folder: Path
    entry: CacheEntry


@dataclass(frozen=True, slots=True)
class _Holding:
    """A model or a download that takes room; `size` in bytes, `used_at` in Unix seconds."""

    path: Path
    size: int
    used_at: float
    source: str = ""  # of a download; empty for a model


class ModelCache:
    """One folder of models; several processes use it at a time."""

    def __init__(self, root: Path, pod: str = "") -> None:
        """`pod`: the uid of the pod whose lease protects its model from eviction; empty: nothing is protected.

        Raises:
            CacheError: when the folder cannot be written.
        """
        self._root, self._lease = root, leases.path_of(root, pod) if pod else None
        try:
            for part in (_MODELS, _ALIASES, _WORK, leases.FOLDER):
                (root / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError(f"The model cache cannot be written: {error.strerror}.") from error

    def await_lease(self) -> None:
        """Wait until another process of this pod holds the pod's lease.

        Raises:
            CacheError: when none does within LEASE_LIMIT_S.
        """
        until_s = time.monotonic() + LEASE_LIMIT_S
        while self._lease:
            with self._locked():
                if not locks.is_free(self._lease):
                    return
            if time.monotonic() > until_s:
                raise CacheError(f"The container `lease` of this pod did not start within {LEASE_LIMIT_S:.0f} s.")
            time.sleep(locks.PAUSE_S)

    def find(self, digest: str) -> CachedModel | None:
        """The model with the digest, now kept by this pod's lease, or None; a damaged model is removed."""
        path = self._path(digest)
        with self._locked():
            entry = entries.read(path)
            if entry is None or entry.digest != digest:
                self._discard(path)
                return None
            self._keep(entry.digest)
            os.utime(path / entries.RECORD)
        if why := entries.damage(path, entry):
            log.warning("a model of the cache is damaged and is fetched again: %s: %s", digest, why)
            self._remove_same(path, entry)
            return None
        if (fresh := entries.refreshed(path / entries.FILES, entry)) != entry:
            entries.write(path, fresh)
        return CachedModel(path / entries.FILES, fresh)

    def alias(self, name: str) -> str | None:
        """The digest that an alias leads to; None for an unknown alias."""
        try:
            found = (self._root / _ALIASES / name).read_bytes()[: leases.LIMIT_BYTES].decode()
        except (OSError, ValueError):
            return None
        return found if entries.is_digest(found) else None

    @contextlib.contextmanager
    def downloading(self, source: str, wait: Callable[[], None]) -> Iterator[Path]:
        """Yield the folder of a source's download under its lock; it has what an interrupted download left."""
        work = self._root / _WORK / source
        with locks.locked(self._lock_of(source), limit_s=None, wait=wait):
            work.mkdir(exist_ok=True)
            yield work

    def left_pending(self, source: str, wanted: str | None, names: Collection[str]) -> CachedModel | None:
        """The complete download of a process that died before it published it, now published; None where there is none.

        The download must have the `wanted` digest, or without one a name of `names`: the source may have changed since.
        Otherwise, and where files are damaged, the download is deleted.
        """
        pending = self._root / _WORK / source / _PENDING
        entry, meant = entries.read(pending), _names(pending)
        suits = entry and (entry.digest == wanted if wanted else set(names) & set(meant))
        if not entry or not suits or entries.damage(pending, entry):
            shutil.rmtree(pending, ignore_errors=True)
            return None
        return self._publish(source, entry, meant)

    def publish(self, source: str, folder: Path, entry: CacheEntry, names: Collection[str]) -> CachedModel:
        """Move a complete model from its download into the cache; `names` lead to it from now on.

        A power failure leaves all of it or none: its files are on the disk before their record is.
        """
        pending = self._root / _WORK / source / _PENDING
        shutil.rmtree(pending, ignore_errors=True)
        pending.mkdir()
        _seal(folder)
        (pending / _NAMES).write_text("\n".join(names))
        entry = entries.refreshed(folder, entry)  # sealing changed the times
        entries.write(pending, entry)
        folder.rename(pending / entries.FILES)
        _sync(pending)
        found = self._publish(source, entry, names)
        self._trim()
        return found

    def adopt(self, source: str, digest: str, names: Collection[str]) -> CachedModel | None:
        """The cached model with the digest, or None; `names` now lead to it, and the source's download is deleted."""
        if (found := self.find(digest)) is None:
            return None
        with self._locked():
            self._settle(source, digest, names)
        return found

    def make_room(self, source: str, size: int) -> None:
        """Evict what was not used for longest until a download of `size` bytes fits; that space is reserved for it.

        Raises:
            CacheError: when it does not fit.
        """
        limit = self._limit()
        if limit is not None and size > limit:
            raise CacheError(
                f"There is no room for the model in the cache: it has {size} bytes, the cache takes {limit}: have an "
                "administrator raise modelCache.maxBytes of the chart's values."
            )
        with self._locked():
            shutil.rmtree(self._root / _TRASH, ignore_errors=True)
            (self._root / _WORK / source / _RESERVED).write_text(str(size))
            while over := self._over(source, size, limit):
                if not self._evict_one(source):
                    raise CacheError(
                        f"There is no room for the model in the cache: {over} bytes are missing, and pods use all "
                        "other models."
                    )

    def evict_one(self, source: str) -> bool:
        """Evict the model that was not used for longest; false when there is none to evict."""
        with self._locked():
            return self._evict_one(source)

    def _trim(self) -> None:
        """Evict models until the cache is within its limit: the size of some downloads is known only at their end."""
        limit = self._limit()
        with self._locked():
            while limit is not None and sum(item.size for item in self._holdings()) > limit and self._evict_one(""):
                pass

    def _publish(self, source: str, entry: CacheEntry, names: Collection[str]) -> CachedModel:
        path = self._path(entry.digest)
        with self._locked():
            if entries.read(path) is None:
                shutil.rmtree(path, ignore_errors=True)
                (self._root / _WORK / source / _PENDING).rename(path)
                _sync(path.parent)
            self._keep(entry.digest)
            os.utime(path / entries.RECORD)
            self._settle(source, entry.digest, names)
        found = entries.read(path)
        assert found, "it was published under the lock, and the lease keeps it"
        return CachedModel(path / entries.FILES, found)

    def _settle(self, source: str, digest: str, names: Collection[str]) -> None:
        """Point `names` to the model, and delete the download's folder and lock; call it under the lock."""
        for name in names:
            _write_atomically(self._root / _ALIASES / name, digest)
        shutil.rmtree(self._root / _WORK / source, ignore_errors=True)
        self._lock_of(source).unlink(missing_ok=True)

    def _over(self, source: str, size: int, limit: int | None) -> int:
        """Bytes that have to go before the download fits; 0 when it fits."""
        here = _size(self._root / _WORK / source)
        free = shutil.disk_usage(self._root).free
        above = sum(item.size for item in self._holdings()) - limit if limit is not None else 0
        return max(0, above, size - here - free)

    def _evict_one(self, source: str) -> bool:
        used = leases.in_use(self._root)
        for item in sorted(self._holdings(), key=lambda item: item.used_at):
            kept = item.source == source if item.source else _digest(item.path) in used
            if not kept and (self._discard_download(item) if item.source else self._discard(item.path)):
                log.info("evicted from the model cache: %s, %d bytes", item.path.name, item.size)
                return True
        return False

    def _discard_download(self, item: _Holding) -> bool:
        """Remove a download that was given up; false when a process holds its lock."""
        lock = self._lock_of(item.source)
        if (file := locks.attempt(lock)) is None:
            return False
        try:
            lock.unlink(missing_ok=True)
            return self._discard(item.path)
        finally:
            os.close(file)

    def _holdings(self) -> list[_Holding]:
        found = []
        for path in (self._root / _MODELS).iterdir():
            entry = entries.read(path)
            used_at = (path / entries.RECORD).stat().st_mtime if entry else 0.0
            found.append(_Holding(path, entry.size if entry else _size(path), used_at))
        for path in (self._root / _WORK).iterdir():
            if path.is_dir():
                size = max(_size(path), _number(path / _RESERVED))
                found.append(_Holding(path, size, path.stat().st_mtime, path.name))
        return found

    def _remove_same(self, path: Path, entry: CacheEntry) -> None:
        """Remove a damaged entry, unless another process has replaced it meanwhile."""
        with self._locked():
            if entries.read(path) == entry:
                self._discard(path)

    def _discard(self, path: Path) -> bool:
        """Delete a model with its aliases, or a download; call it under the lock.

        The folder is renamed first, so that no process ever finds a half of it.
        """
        digest, trash = _digest(path), self._root / _TRASH
        for alias in (self._root / _ALIASES).iterdir() if path.parent.name == _MODELS else ():
            if self.alias(alias.name) == digest:
                alias.unlink(missing_ok=True)
        trash.mkdir(exist_ok=True)
        gone = trash / path.name
        shutil.rmtree(gone, ignore_errors=True)
        if path.exists():
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        return True

    def _keep(self, digest: str) -> None:
        if self._lease:
            leases.write(self._lease, digest)

    def _path(self, digest: str) -> Path:
        return self._root / _MODELS / digest.removeprefix("sha256:")

    def _lock_of(self, source: str) -> Path:
        return self._root / _WORK / f"{source}.lock"

    def _limit(self) -> int | None:
        return _number(self._root / LIMIT) or None

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return locks.locked(lock_of(self._root))


def lock_of(root: Path) -> Path:
    """The lock of a cache."""
    return root / _LOCK


def _digest(path: Path) -> str:
    return f"sha256:{path.name}"


def _names(pending: Path) -> list[str]:
    """The aliases that a pending download gets when it is published."""
    try:
        lines = (pending / _NAMES).read_bytes()[:_NAMES_BYTES].decode().split("\n")
    except (OSError, ValueError):
        return []
    return [line for line in lines if _ALIAS.fullmatch(line)]


def _size(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found += path.lstat().st_size
    return found


def _number(path: Path) -> int:
    """The number in a file; 0 where there is none."""
    try:
        return int(path.read_bytes()[:20])
    except (OSError, ValueError):
        return 0


def _seal(folder: Path) -> None:
    """Make the files read-only, and readable for all users, and sync them to the disk."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o444)
        _sync(path)
    folder.chmod(0o755)
    _sync(folder)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def used(root: Path, lease: Path) -> None:
    """Note that the model of a lease was in use until now; under the lock of the cache."""
    with contextlib.suppress(OSError, ValueError):
        digest = lease.read_bytes()[: leases.LIMIT_BYTES].decode()
        os.utime(root / _MODELS / digest.removeprefix("sha256:") / entries.RECORD)
