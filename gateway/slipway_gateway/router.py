"""Choice of an endpoint for one request: weight first, then availability, then least load (pure)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .split import affinity, choose
from .table import Backend, Route, RouteTable


@dataclass(frozen=True, slots=True)
class Target:
    """Where one attempt of a request goes."""

    route: str
    model: str
    revision: str
    url: str


def preference(route: Route, key: str) -> list[Backend]:
    """Backends in the order in which a key tries them: its own, then those with weight, then the rest."""
    backends = route.backends
    chosen = choose([backend.weight for backend in backends], route.salt, key)
    if chosen is None:
        return list(backends)
    others = backends[chosen + 1 :] + backends[:chosen]
    return [backends[chosen], *sorted(others, key=lambda backend: backend.weight == 0)]


def pick(
    table: RouteTable,
    route: Route,
    key: str,
    inflight: Mapping[str, int],
    excluded: Collection[str] = (),
    *,
    avoided: str = "",
) -> Target | None:
    """The least loaded endpoint of the first revision that has one; at equal load a key keeps its endpoint.

    The `avoided` revision comes last: better a bad one than none.
    """
    for backend in sorted(preference(route, key), key=lambda backend: backend.revision == avoided):
        if target := pick_of(table, route, backend.revision, key, inflight, excluded=excluded):
            return target
    return None


def pick_of(
    table: RouteTable,
    route: Route,
    revision: str,
    key: str,
    inflight: Mapping[str, int],
    *,
    excluded: Collection[str] = (),
) -> Target | None:
    """The same within one revision, listed or not: what began there can end nowhere else."""
    urls = [url for url in table.urls(route, revision) if url not in excluded]
    if not urls:
        return None
    url = min(urls, key=lambda url: (inflight.get(url, 0), affinity(url, key)))
    return Target(route.name, route.model, revision, url)
