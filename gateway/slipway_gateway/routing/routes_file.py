"""Routes from a file: parsed whole, reloaded when the file changes, the last good table kept."""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import yaml

from slipway_contracts.api.markers import AtMost
from slipway_contracts.api.reading import UnreadableObject, read_text
from slipway_contracts.api.types import strict
from slipway_contracts.guards import GuardSpec
from slipway_contracts.model_routes.references import all_refs_of, chain_problem
from slipway_contracts.model_routes.spec import DEPLOYMENT, ModelRouteSpec
from slipway_contracts.model_routes.spec import refusal as refusal_of_route
from slipway_contracts.resilience import CircuitBreaker, Degradation, RetryBudget
from slipway_contracts.route_table import (
    Backend,
    GenerationLogSample,
    InferenceLogSample,
    MirrorRoute,
    ResponseCache,
    refusal,
)
from slipway_contracts.service_levels import ServiceLevels
from slipway_contracts.twin_shadow import TwinShadow

from .public_names import PublicRoute
from .table import Problem, RevisionEndpoints, Route, RouteTable, build

log = logging.getLogger(__name__)
_POLL_S = 0.5
_NAMESPACE = "file"  # of all routes


@dataclass(frozen=True, slots=True)
class FileBackend:
    """One revision and the URLs of its endpoints; of an adapter its pods report it."""

    endpoints: tuple[str, ...] | None = None
    revision: str = "file"
    version: str = ""
    weight: int = 100


@strict
@dataclass(frozen=True, slots=True)
class FileModel:
    """One model: what a route table has of it, and endpoints."""

    backends: tuple[FileBackend, ...]
    salt: str = ""
    mirror_routes: tuple[MirrorRoute, ...] = ()
    twin_shadow: TwinShadow | None = None
    inference_log: InferenceLogSample | None = None
    generation_log: GenerationLogSample | None = None
    slo: ServiceLevels | None = None
    prefix_affinity: bool = False
    fallback: Annotated[tuple[str, ...], AtMost(4)] = ()
    first_byte_seconds: int | None = None
    cache: ResponseCache | None = None
    circuit_breaker: CircuitBreaker | None = None
    retry_budget: RetryBudget | None = None
    degradation: Degradation | None = None
    guards: Annotated[tuple[GuardSpec, ...], AtMost(8)] = ()
    base: str = ""
    forward_headers: tuple[Literal["authorization", "cookie", "api-key", "x-api-key"], ...] = ()


@strict
@dataclass(frozen=True, slots=True)
class RoutesFile:
    """The whole file."""

    models: dict[str, FileModel]
    model_routes: dict[str, ModelRouteSpec] = field(default_factory=dict)


def parse(text: str, generation: int) -> RouteTable | Problem:
    try:
        # BaseLoader leaves scalars as text: a revision 1234567890 or a version 3.10 stays what was written.
        file = read_text(RoutesFile, yaml.load(text, yaml.BaseLoader))
    except (yaml.YAMLError, UnreadableObject, RecursionError, UnicodeError) as error:
        return Problem(" ".join(str(error).split()))
    routes, endpoints = [], []
    for model, entry in file.models.items():
        route = _route(model, entry, generation)
        urls = [url for backend in entry.backends for url in backend.endpoints or ()]
        if problem := refusal(route) or _unusable(urls) or _missing(entry) or _baseless(entry, file.models):
            return Problem(f"model {model}: {problem}")
        routes.append(route)
        endpoints += [
            RevisionEndpoints(route.name, b.revision, tuple(url.rstrip("/") for url in b.endpoints or ()))
            for b in entry.backends
        ]
    public = [PublicRoute(f"{_NAMESPACE}/{name}", spec) for name, spec in file.model_routes.items()]
    if problem := _unfollowable({route.name: route for route in public}, file.models):
        return Problem(problem)
    return build(routes, endpoints, model_routes=public)


def _unfollowable(routes: Mapping[str, PublicRoute], models: Collection[str]) -> str:
    """Which ModelRoute of the file cannot be followed, and why; empty where all can."""
    specs = {name: route.spec for name, route in routes.items()}
    owners = dict.fromkeys(models, "a model of the file")
    for name, route in routes.items():
        at = f"model route {name.removeprefix(f'{_NAMESPACE}/')}"
        for public in route.names:
            if public in owners:
                return f"{at}: the name {public} is that of {owners[public]}, too"
            owners[public] = at
        if problem := refusal_of_route(route.spec) or chain_problem(name, specs)[1]:
            return f"{at}: {problem}"
        if any(fallback.external for rule in route.spec.rules for fallback in rule.fallback):
            return f"{at}: external providers need a cluster, whose Secrets have their keys"
        for ref in all_refs_of(route.spec):
            known = models if ref.kind == DEPLOYMENT else [key.removeprefix(f"{_NAMESPACE}/") for key in routes]
            if ref.namespace is not None or ref.name not in known:
                what = "model" if ref.kind == DEPLOYMENT else "model route"
                return f"{at}: its target {ref.name} is no {what} of the file"
    return ""


def _route(model: str, entry: FileModel, generation: int) -> Route:
    backends = tuple(Backend(item.revision, item.weight, item.version) for item in entry.backends)
    return Route(
        f"{_NAMESPACE}/{model}",
        "file",
        model,
        generation=generation,
        salt=entry.salt,
        backends=backends,
        mirror_routes=entry.mirror_routes,
        twin_shadow=entry.twin_shadow,
        forward_headers=entry.forward_headers,
        inference_log=entry.inference_log,
        generation_log=entry.generation_log,
        slo=entry.slo,
        prefix_affinity=entry.prefix_affinity,
        fallback=entry.fallback,
        first_byte_seconds=entry.first_byte_seconds,
        cache=entry.cache,
        circuit_breaker=entry.circuit_breaker,
        retry_budget=entry.retry_budget,
        degradation=entry.degradation,
        guards=entry.guards,
        base=f"{_NAMESPACE}/{entry.base}" if entry.base else "",
    )


def _missing(entry: FileModel) -> str:
    """Which revision of copies is none of the backends; empty where all are."""
    known = {backend.revision for backend in entry.backends}
    unknown = [mirror.revision for mirror in entry.mirror_routes if mirror.revision not in known]
    if unknown:
        return f"a mirror's revision {unknown[0]!r} is none of the backends"
    shadow = entry.twin_shadow
    if shadow is None:
        return ""
    for name, revision in (("revision", shadow.revision), ("twin", shadow.twin)):
        if revision not in known:
            return f"twinShadow.{name} {revision!r} is none of the backends"
    return "twinShadow.twin must be another revision" if shadow.twin == shadow.revision else ""


def _baseless(entry: FileModel, models: Mapping[str, FileModel]) -> str:
    """Why an adapter has no pods; empty where it has, and for a model that is none."""
    base = models.get(entry.base)
    if entry.base and (base is None or base.base):
        return f"its base {entry.base!r} is no model of the file with pods of its own"
    listed = [backend for backend in entry.backends if backend.endpoints is not None]
    if entry.base and any(backend.endpoints for backend in listed):
        return "its pods are those of its base: leave out endpoints"
    return "" if entry.base or len(listed) == len(entry.backends) else "a backend has no endpoints"


def _unusable(urls: list[str]) -> str:
    """What is wrong with the first URL that is no endpoint; empty where all are."""
    return next((f"{url!r} is not an endpoint: write http://HOST:PORT" for url in urls if not _is_endpoint(url)), "")


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
