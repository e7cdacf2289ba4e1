"""Choice of an endpoint for one request: weight first, then availability, then a policy (pure)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from slipway_contracts.model_routes.rules import host_name
from slipway_contracts.route_table import Backend, HeaderMatch

from .split import choose, tag
from .table import Route, RouteTable, base_revision


class RouteEndpoint(msgspec.Struct, frozen=True):
    """Where one attempt of a request goes; `model` is what clients call the route.

    `base`, `base_revision`: of an adapter, the route of the pod's deployment and what of it the pod runs.
    """

    route: str
    model: str
    revision: str
    url: str
    base: str = ""
    base_revision: str = ""

    @property
    def deployment(self) -> str:
        """The name of the route to which its pod belongs."""
        return self.base or self.route

    @property
    def computed_by(self) -> str:
        """What a response depends on: the revision and, of an adapter, the revision of its base."""
        return f"{self.revision}+{self.base_revision}" if self.base else self.revision


def match_header_route(route: Route, headers: Mapping[str, str]) -> str:
    """The revision of the first header route that a request fits, or empty. `headers` is case-insensitive."""
    for one in route.header_routes:
        if one.match and fits(one.match, headers):
            return one.revision
    return ""


def fits(matches: Collection[HeaderMatch], headers: Mapping[str, str]) -> bool:
    """Whether a request has all headers of `matches`, which may be empty. `headers` is case-insensitive."""
    return all(_fits(match, headers) for match in matches)


def _fits(match: HeaderMatch, headers: Mapping[str, str]) -> bool:
    value = headers.get(match.name)
    if value is None:
        return False
    if match.name == "host":
        value = host_name(value)
    if match.exact is not None:
        return value == (match.exact.lower() if match.name == "host" else match.exact)
    return match.prefix is not None and value.startswith(match.prefix.lower() if match.name == "host" else match.prefix)


def assign_revision(route: Route, key: str) -> str:
    """The revision that the split gives a key, whether it has an endpoint or not; empty when there is no split."""
    backends = route.backends
    if len(backends) == 1 and backends[0].weight == 100:
        return backends[0].revision
    chosen = choose([backend.weight for backend in backends], route.salt, key)
    return "" if chosen is None else backends[chosen].revision


def order_backends(route: Route, key: str) -> Sequence[Backend]:
    """Backends in the order in which a key tries them: its own, its baseline or base, those with weight, the rest."""
    backends = route.backends
    if len(backends) < 2:
        return backends
    chosen = choose([backend.weight for backend in backends], route.salt, key)
    if chosen is None:
        return backends
    own, others = backends[chosen], backends[chosen + 1 :] + backends[:chosen]
    same = base_revision(own.revision)
    return [own, *sorted(others, key=lambda backend: (base_revision(backend.revision) != same, backend.weight == 0))]


class EndpointPicker(Protocol):
    """A policy that chooses among endpoints that may serve a request, at least one. `key`: its sticky key."""

    def pick(self, urls: Sequence[str], key: str) -> str: ...


def pick(
    table: RouteTable,
    route: Route,
    key: str,
    picker: EndpointPicker,
    excluded: Collection[str] = (),
    *,
    avoided: str = "",
    hosts: Sequence[str] = (),
) -> RouteEndpoint | None:
    """An endpoint of the first revision that has one. The version comes first: `picker` chooses within it.

    The `avoided` revision comes last: better a bad one than none. None when no revision has an endpoint. `hosts`: of an
    adapter, the revisions of its base in the order in which the key tries them.
    """
    order = order_backends(route, key)
    for backend in sorted(order, key=lambda backend: backend.revision == avoided) if avoided else order:
        if endpoint := pick_in_revision(table, route, backend.revision, key, picker, excluded=excluded, hosts=hosts):
            return endpoint
    return None


def pick_in_revision(
    table: RouteTable,
    route: Route,
    revision: str,
    key: str,
    picker: EndpointPicker,
    *,
    excluded: Collection[str] = (),
    holder: str = "",
    hosts: Sequence[str] = (),
) -> RouteEndpoint | None:
    """Like `pick` within `revision`, which the route need not list: a stream that began there continues only there.

    `holder`: tag of the endpoint that comes first, whatever the policy.
    """
    urls: Sequence[str] = table.urls(route, revision)
    if excluded:
        urls = [url for url in urls if url not in excluded]
    if not urls:
        return None
    if route.base:
        urls = _at_first_host(table, urls, hosts)
    if holder:
        urls = [url for url in urls if tag(url) == holder] or urls
    url = urls[0] if len(urls) == 1 else picker.pick(urls, key)
    return RouteEndpoint(route.name, table.id_of(route), revision, url, *table.hosts.get(url, ("", "")))


def _at_first_host(table: RouteTable, urls: Sequence[str], hosts: Sequence[str]) -> Sequence[str]:
    """The URLs of the first revision of the base that has some; all of them where none of these has one."""
    by_host: dict[str, list[str]] = {}
    for url in urls:
        by_host.setdefault(table.hosts[url][1] if url in table.hosts else "", []).append(url)
    return next((by_host[host] for host in hosts if host in by_host), urls)


def host_order(base: Route, key: str, avoided: str = "") -> list[str]:
    """The revisions of a base in the order in which a key tries them, the `avoided` one last."""
    order = [backend.revision for backend in order_backends(base, key)]
    return sorted(order, key=lambda revision: revision == avoided) if avoided else order
