"""Pods as processes: what holds a lease, and the fetcher that uses the cache."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from slipway_fetcher import fetching as fetcher
from slipway_fetcher.cache import leases, locks
from slipway_fetcher.cached import CacheUse
from slipway_fetcher.folder import ANY_ENGINE
from slipway_fetcher.hub import Hub
from slipway_fetcher.pin import Report
from testkit.until import until
from tests.fetcher.site import FETCHER, HERE, LIMIT, Site, offer_repository
from tests.server.process import SOURCES

LEASE = (sys.executable, "-m", "slipway_fetcher.cache", "lease")
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES}


def offer_model(site: Site, weights: bytes = b"GGUF" + bytes(2 * 2**20), commit: str = "a" * 40) -> None:
    """A repository with a model for another engine, which needs no valid tensors."""
    offer_repository(site, {"model.gguf": weights, "config.json": b"{}"}, commit)


def take(
    site: Site,
    dest: Path,
    root: Path,
    *,
    uri: str = "hf://org/tiny",
    scope: str = "v1",
    pod: str = "",
    pin: Path | None = None,
) -> Report:
    """Fetch in this process."""
    sources = fetcher.Sources(
        HERE, Hub(f"http://127.0.0.1:{site.port}"), formats=ANY_ENGINE
    )  # fmt: skip
    use = CacheUse(root, scope, pod)
    return fetcher.fetch("hf://org/tiny", "", dest, max_bytes=LIMIT, pin_file=pin, sources=sources, use=use)


def start(site: Site, dest: Path, root: Path, *flags: str) -> subprocess.Popen[bytes]:
    """The fetcher as a process."""
    dest.mkdir(parents=True, exist_ok=True)
    arguments = ("--uri", "hf://org/tiny", "--dest", str(dest), "--any-engine", "--allow-host", "127.0.0.1")
    cache = ("--cache-dir", str(root), "--cache-scope", "v1")
    variables = {"HF_ENDPOINT": f"http://127.0.0.1:{site.port}", "SLIPWAY_TERMINATION_LOG": str(dest / "words")}
    with (dest / "log").open("ab") as log:
        return subprocess.Popen(
            [*FETCHER, *arguments, *cache, *flags], env=ENVIRONMENT | variables, stdout=log, stderr=log
        )


@contextlib.contextmanager
def lease(root: Path, pod: str, dest: Path, end: signal.Signals = signal.SIGTERM) -> Iterator[subprocess.Popen[bytes]]:
    """The process that keeps a pod's model, until `end`."""
    process = subprocess.Popen([*LEASE, "--cache-dir", str(root), "--pod", pod, "--dest", str(dest)], env=ENVIRONMENT)
    try:
        until(lambda: not locks.is_free(leases.path_of(root, pod)))
        yield process
    finally:
        process.send_signal(end)
        process.wait()


def weights_requests(site: Site) -> int:
    return sum(path.endswith(".gguf") for path, _ in site.requests)


def models(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "models").iterdir())
