"""Routes from a file: parsed whole, reloaded when the file changes, the last good table kept."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec
import yaml

from ..wire.inference import InferenceLogRule
from .table import (
    MirrorRouteRule,
    Percent,
    Problem,
    RevisionEndpoints,
    Route,
    RouteTable,
    WeightedBackend,
    build,
    check_backends,
)
from .twin_shadow import ProbeRule, ScorerRule, TailRule, TwinLatencyRule, TwinShadowRule

log = logging.getLogger(__name__)
_POLL_S = 0.5


class FileBackend(msgspec.Struct, forbid_unknown_fields=True):
    """One revision and the URLs of its endpoints."""

    endpoints: list[str]
    revision: str = "file"
    version: str = ""
    weight: Percent = 100


class FileMirror(MirrorRouteRule, frozen=True, forbid_unknown_fields=True):
    """Which requests are copied to one of the revisions."""


class FileTail(TailRule, frozen=True, forbid_unknown_fields=True):
    """A latency of one stratum above which a response is in the tail."""


class FileTwinLatency(TwinLatencyRule, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How the latencies of a pair are compared."""

    tail: tuple[FileTail, ...] = ()


class FileProbes(ProbeRule, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Prompts that both revisions get as pairs."""


class FileScorer(ScorerRule, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The server that rates both responses of some pairs."""


class FileTwinShadow(TwinShadowRule, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Which sessions are copied to two of the revisions."""

    latencies: tuple[FileTwinLatency, ...] = ()
    probes: FileProbes | None = None
    scorer: FileScorer | None = None


class FileInferenceLog(InferenceLogRule, frozen=True, forbid_unknown_fields=True):
    """Which requests of the model the inference log has."""


class FileModel(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """One model."""

    backends: list[FileBackend]
    salt: str = ""
    mirror_routes: tuple[FileMirror, ...] = ()
    twin_shadow: FileTwinShadow | None = None
    inference_log: FileInferenceLog | None = None
    forward_headers: tuple[Literal["authorization", "cookie", "api-key", "x-api-key"], ...] = ()


class RoutesFile(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    models: dict[str, FileModel]


def parse(text: str, generation: int) -> RouteTable | Problem:
    try:
        # BaseLoader leaves scalars as text: a revision 1234567890 or a version 3.10 stays what was written.
        wanted = msgspec.convert(yaml.load(text, yaml.BaseLoader), RoutesFile, strict=False)
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError, UnicodeError) as error:
        return Problem(" ".join(str(error).split()))
    routes, endpoints = [], []
    for model, entry in wanted.models.items():
        backends = tuple(WeightedBackend(b.revision, b.weight, b.version) for b in entry.backends)
        urls = [url for backend in entry.backends for url in backend.endpoints]
        if problem := check_backends(backends) or _check_urls(urls):
            return Problem(f"model {model}: {problem.text}")
        if problem := _check_mirrors(entry):
            return Problem(f"model {model}: {problem.text}")
        name = f"file/{model}"
        mirrors = entry.mirror_routes
        passed = entry.forward_headers
        route = Route(name, "file", model, "", generation, entry.salt, backends, mirror_routes=mirrors)
        logged = entry.inference_log
        routes.append(replace(route, forward_headers=passed, twin_shadow=entry.twin_shadow, inference_log=logged))
        endpoints += [
            RevisionEndpoints(name, b.revision, tuple(url.rstrip("/") for url in b.endpoints)) for b in entry.backends
        ]
    return build(routes, endpoints)


def _check_mirrors(entry: FileModel) -> Problem | None:
    known = {backend.revision for backend in entry.backends}
    unknown = [mirror.revision for mirror in entry.mirror_routes if mirror.revision not in known]
    if unknown:
        return Problem(f"a mirror's revision {unknown[0]!r} is none of the backends")
    shadow = entry.twin_shadow
    if shadow is None:
        return None
    for name, revision in (("revision", shadow.revision), ("twin", shadow.twin)):
        if revision not in known:
            return Problem(f"twinShadow.{name} {revision!r} is none of the backends")
    return Problem("twinShadow.twin must be another revision") if shadow.twin == shadow.revision else None


def _check_urls(urls: list[str]) -> Problem | None:
    for url in urls:
        if not _is_endpoint(url):
            return Problem(f"{url!r} is not an endpoint: write http://HOST:PORT")
    return None


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.query
    except ValueError:
        return False


class FileSource:
    """Publishes the table of a file, and again whenever the file changes or `reload` is called."""

    def __init__(self, path: str, publish: Callable[[RouteTable], None]) -> None:
        self._path = Path(path)
        self._publish = publish
        self._generation = 0
        self._seen: object = "never"
        self._woken = asyncio.Event()

    @property
    def waiting_for(self) -> str:
        return f"a valid routes file at {self._path}"

    def reload(self) -> None:
        self._seen = "never"
        self._woken.set()

    async def run(self) -> None:
        # Polling, not inotify: a ConfigMap volume swaps a symlink, editors replace the file.
        while True:
            self._woken.clear()
            if (stamp := self._stamp()) != self._seen:
                self._seen = stamp
                self._load()
            try:
                async with asyncio.timeout(_POLL_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _load(self) -> None:
        try:
            parsed = parse(self._path.read_text(encoding="utf-8"), self._generation + 1)
        except (OSError, UnicodeDecodeError) as error:
            parsed = Problem(str(error))
        if isinstance(parsed, Problem):
            log.error("routes file not used, the last good one stays: %s", parsed.text, extra={"path": str(self._path)})
            return
        self._generation += 1
        self._publish(parsed)
        log.info(
            "routes file loaded: %s", ", ".join(parsed.models) or "no models", extra={"generation": self._generation}
        )
