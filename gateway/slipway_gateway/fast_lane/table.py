"""Compiles the routes of a table for the fast lane, and decides which of them are plain (pure)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from ..routing.experiments import is_subject
from ..routing.public_names import owner_of
from ..routing.table import Route, RouteTable
from ..wire.isolation import ENGINES

Endpoint = tuple[str, str, int, str, str]


@dataclass(frozen=True, slots=True)
class CompiledRoute:
    """A route as the lane has it. `reason`: why its requests are Python's; empty: they are plain.

    `names`: by which requests name it. `backends`: revision, weight and endpoints; each endpoint is its URL, address,
    port, `Host`, and prefix of paths.
    """

    name: str
    uid: str
    model: str
    id: str
    names: tuple[str, ...]
    reason: str
    salt: str
    backends: tuple[tuple[str, int, list[Endpoint]], ...]
    forwarded: tuple[str, ...]
    isolates: bool  # an engine of its endpoints knows no tenants
    cache: tuple[float, bool] | None = None  # for how many seconds, and whether tenants get what others requested
    prefix_affinity: bool = False


def why_python(route: Route, *, has_copies: bool = True) -> str:
    """Why requests of a route need what the lane has not; empty when they do not.

    `has_copies`: the lane has copies of responses that this gateway keeps.
    """
    needs = {
        "adapter": bool(route.base),
        "asleep": route.asleep or route.wake_s is not None,
        "copied": bool(route.mirror_routes) or route.twin_shadow is not None,
        "header_routes": bool(route.header_routes),
        "feedback": route.rates_labels,
        "predictions": route.reads_predictions,
        "inference_log": route.inference_log is not None or route.generation_log is not None,
        "objectives": route.slo is not None,
        "fallback": bool(route.fallback),
        "circuit_breaker": route.circuit_breaker is not None,
        "degradation": route.degradation is not None,
        "cache": route.cache is not None and not has_copies,
        "guards": bool(route.guards),
    }
    return next((reason for reason, holds in needs.items() if holds), "")


def compile_table(
    table: RouteTable | None, host_of: Callable[[str], str], *, has_copies: bool = False
) -> list[CompiledRoute]:
    """All routes of a table. `host_of`: the `Host` of an endpoint's URL, as the gateway's own client writes it."""
    if table is None:
        return []
    names: dict[str, list[str]] = {name: [] for name in table.routes}
    # As `PublishedTable.find`: a name of a model comes before the name of a route.
    found: Mapping[str, Route] = {**table.routes, **table.models}
    for name, route in found.items():
        names.setdefault(route.name, []).append(name)
    compiled = [
        _compile(table, route, tuple(names[route.name]), host_of, has_copies=has_copies)
        for route in table.routes.values()
    ]
    return compiled + [_of_rules(name) for name in table.public]


def _of_rules(name: str) -> CompiledRoute:
    """A public name, whose rules Python follows."""
    return CompiledRoute(owner_of(name), "", name, name, (name,), "model_route", "", (), (), isolates=False)


def _compile(
    table: RouteTable, route: Route, names: tuple[str, ...], host_of: Callable[[str], str], *, has_copies: bool
) -> CompiledRoute:
    engines: set[str] = set()
    reason = "experiment" if is_subject(table.subjects, route.name) else why_python(route, has_copies=has_copies)
    backends = []
    for backend in route.backends:
        urls = table.urls(route, backend.revision)
        engines.update(table.engines.get(url, "") for url in urls)
        endpoints = [endpoint_of(url, host_of) for url in urls]
        known = [one for one in endpoints if one is not None]
        if len(known) < len(endpoints):
            reason = reason or "endpoints"
        backends.append((backend.revision, backend.weight, known))
    return CompiledRoute(
        route.name,
        route.uid,
        route.model,
        table.id_of(route),
        names,
        reason,
        route.salt,
        tuple(backends),
        route.forward_headers,
        not engines.isdisjoint(ENGINES),
        (float(route.cache.ttl_seconds), bool(route.cache.shared)) if route.cache is not None else None,
        route.prefix_affinity,
    )


def endpoint_of(url: str, host_of: Callable[[str], str]) -> Endpoint | None:
    """An endpoint; None where it has TLS or a name in place of an address, which Python resolves."""
    try:
        parts = urlsplit(url)
        address, port = ip_address(parts.hostname or ""), parts.port or 80
    except ValueError:
        return None
    if parts.scheme != "http" or parts.username is not None or parts.query:
        return None
    return url, str(address), port, host_of(url), parts.path
