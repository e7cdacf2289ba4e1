"""Where things lie: the cache (may be deleted at any time) and the state of one running cluster."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.keys import key_of, module_key
from devcluster.pins import GoModule, module_of

PACKAGE = Path(__file__).resolve().parent
REPOSITORY = PACKAGE.parent
DEFAULT_CLUSTER = "slipway"
_MADE_HERE = ("bases", "torch", "component-images", "kind-files", "metrics-server-files")


@dataclass(frozen=True, slots=True)
class Places:
    """All folders, from the environment once; nothing else in devcluster knows a path outside the repository."""

    cache: Path
    state_root: Path
    cluster: str
    lent_images: Path | None = None  # the own engine's store of another cache: read, never written

    @property
    def state(self) -> Path:
        """What belongs to the running cluster; `down` deletes it."""
        return self.state_root / self.cluster

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def work(self) -> Path:
        """Half-made things; removed when they are whole."""
        return self.cache / "work"

    @property
    def engine(self) -> Path:
        """The own engine's configuration and image store, where the machine's engine cannot be used as it is."""
        return self.cache / "engine"

    @property
    def images(self) -> Path:
        """The own engine's store of images."""
        return self.engine / "storage"

    @property
    def layout(self) -> Path:
        """Images on their way from the engine's store into nodes."""
        return self.cache / "layout"

    @property
    def run(self) -> Path:
        """What the own engine forgets at a reboot; on a tmpfs, so that a reboot does forget it."""
        if not os.access("/run", os.W_OK):
            return self.cache / "run"
        usual = self.cache == Path.home() / ".cache" / "slipway"
        return Path("/run/slipway" if usual else f"/run/slipway-{key_of([str(self.cache)])}")

    @property
    def uv(self) -> Path | None:
        """uv from PATH, else the one that the Makefile put into the cache."""
        found = shutil.which("uv") or next(iter(sorted(self.cache.glob("uv-*/bin/uv"), reverse=True)), None)
        return Path(found) if found else None

    def binaries(self, module: GoModule) -> Path:
        return self.cache / "bin" / f"{module.name}-{module_key(module, module_files(module), platform.machine())}"

    def binary(self, name: str) -> Path:
        module = module_of(name)
        return self.binaries(module) / name


def places(environment: Mapping[str, str] = os.environ) -> Places:
    """The folders of this user; the state lies in the cache folder unless XDG_STATE_HOME names another."""
    cache_home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".cache"
    cache = Path(cache_home) / "slipway"
    state_home = environment.get("XDG_STATE_HOME")
    state_root = Path(state_home) / "slipway" if state_home else cache / "state"
    lent = environment.get("SLIPWAY_LENT_IMAGES")
    return Places(
        cache, state_root, environment.get("SLIPWAY_CLUSTER") or DEFAULT_CLUSTER, Path(lent) if lent else None
    )


def module_files(module: GoModule) -> dict[str, bytes]:
    """The committed files of one wrapper module."""
    folder = PACKAGE / "gomods" / module.name
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def exclusive(where: Places) -> Iterator[None]:
    """One builder at a time; prints once that it waits. The kernel drops the lock when the process dies."""
    where.cache.mkdir(parents=True, exist_ok=True)
    with (where.cache / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting: another devcluster command builds or starts something", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        _sweep_half_made(where)
        yield


@contextmanager
def appears_whole(target: Path) -> Iterator[Path]:
    """Gives a path to write to and renames it to the target at the end: readers see all of it or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield folder / target.name
        if (folder / target.name).exists():
            (folder / target.name).replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep_half_made(where: Places) -> None:
    """Removes what a killed run left; the caller holds the lock, so no process is writing there."""
    for folder in (*(where.cache / "bin").glob("*"), *(where.cache / name for name in _MADE_HERE), where.work):
        for path in folder.glob(".*.*"):
            shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(where.work / "tmp", ignore_errors=True)


def write_whole(target: Path, text: str, mode: int = 0o644) -> None:
    """Writes a small file atomically."""
    with appears_whole(target) as path:
        path.write_text(text)
        path.chmod(mode)


def free_bytes(path: Path) -> int:
    """Free space where the path is or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def demand_space(path: Path, gigabytes: float, purpose: str) -> None:
    """Stops before a long build that would fail for want of space."""
    free = free_bytes(path) / 1e9
    if free < gigabytes:
        raise DevclusterError(
            f"{purpose} needs {gigabytes:.0f} GB in {path}, {free:.1f} GB are free. "
            "Free some space or set XDG_CACHE_HOME to a folder with more."
        )
