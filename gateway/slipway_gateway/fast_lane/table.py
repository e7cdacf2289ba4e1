"""Compiles the routes and ModelRoutes of a table for the fast lane, and decides which of them are plain (pure)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slipway_contracts.model_routes.references import namespace_of, target_of
from slipway_contracts.model_routes.spec import KIND, PUBLIC, RouteMatch, RouteRange, RouteRule, RouteSampling

from ..routing.experiments import is_subject
from ..routing.public_names import PublicRoute
from ..routing.table import Route, RouteTable
from ..wire.isolation import ENGINES

if TYPE_CHECKING:
    from slipway_plane import _native

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
    return [
        _compile(table, route, tuple(names[route.name]), host_of, has_copies=has_copies)
        for route in table.routes.values()
    ]


def compile_model_routes(table: RouteTable | None) -> list["_native.LaneModelRoute"]:
    """All ModelRoutes of a table, with the public names that each has."""
    if table is None:
        return []
    names: dict[str, list[str]] = {name: [] for name in table.model_routes}
    for name, public in table.public.items():
        names[public.name].append(name)
    return [
        (name, names[name], [_rule(table, public, rule) for rule in public.spec.rules])
        for name, public in table.model_routes.items()
    ]


def _rule(table: RouteTable, public: PublicRoute, rule: RouteRule) -> "_native.LaneRule":
    spec = public.spec
    is_python = (
        spec.sampling != RouteSampling()
        or spec.response_model == PUBLIC
        or bool(spec.guards or rule.fallback)
        or is_subject(table.subjects, public.name, KIND)
    )
    targets = [
        (ref.kind if public.may_lead_to(ref) else "", target_of(ref, namespace_of(public.name)), ref.weight)
        for ref in rule.backend_refs
    ]
    return rule.name, [_match(one) for one in rule.matches], targets, is_python


def _match(match: RouteMatch) -> "_native.LaneMatch":
    headers = [(header.name.lower(), header.exact, header.prefix) for header in match.headers]
    has = (match.has_tools, match.has_images, match.has_code)
    needs_python = match.time is not None or match.classifier is not None
    return match.tenants, headers, _range(match.prompt_bytes), _range(match.prompt_tokens), has, needs_python


def _range(limits: RouteRange | None) -> "_native.LaneRange | None":
    return None if limits is None else (limits.min, limits.max)


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
