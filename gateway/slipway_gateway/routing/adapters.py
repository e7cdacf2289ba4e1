"""Adapters in the route table: which pods of the base serve which of their revisions (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from slipway_contracts.adapters import AdapterReport, lora_name

from .table import Route, RouteTable

# The adapters that a pod has loaded: names by which clients request them, and revisions.
HeldAdapters = frozenset[tuple[str, str]]
SGLANG = "sglang"
MAX_UNLISTED = 8  # revisions of one adapter at one pod, of those that its route does not list any more
_Endpoints = dict[tuple[str, str], tuple[str, ...]]


def held(report: AdapterReport) -> HeldAdapters:
    """What a pod's report says that it has loaded."""
    return frozenset((adapter.name, adapter.revision) for adapter in report.adapters if adapter.state == "loaded")


def with_adapters(table: RouteTable, reports: Mapping[str, HeldAdapters]) -> RouteTable:
    """A table in which the pods of a base are endpoints of the adapters that they report.

    An adapter sleeps while its base does, and has its guards and its preference of pods. `reports`: by URL of the pod.
    A report counts for adapters of the pod's own deployment alone, whatever it says.
    """
    adapters = [route for route in table.routes.values() if route.base]
    if not adapters:
        return table
    pods: dict[str, list[tuple[str, bool]]] = {}  # URLs by base, and whether they take new requests
    for urls_of, ready in ((table.endpoints, True), (table.unready, False)):
        for (name, _), urls in urls_of.items():
            pods.setdefault(name, []).extend((url, ready) for url in urls)
    held_by = {url: _by_name(reports.get(url, frozenset())) for urls in pods.values() for url, _ in urls}
    ready_urls: dict[tuple[str, str], list[str]] = {}
    other_urls: dict[tuple[str, str], list[str]] = {}
    for route in adapters:
        for url, ready in pods.get(route.base, ()):
            for revision in _revisions(route, held_by[url].get(route.model, ())):
                (ready_urls if ready else other_urls).setdefault((route.name, revision), []).append(url)
    routes = {**table.routes, **{route.name: _as_its_base(route, table.routes.get(route.base)) for route in adapters}}
    models = {model: routes[route.name] for model, route in table.models.items()}
    return replace(
        table,
        routes=routes,
        models=models,
        endpoints={**table.endpoints, **_sorted(ready_urls)},
        unready={**table.unready, **_sorted(other_urls)},
    )


def _by_name(adapters: HeldAdapters) -> dict[str, list[str]]:
    """Revisions by name, so that no adapter is looked for among all the others of a pod."""
    revisions: dict[str, list[str]] = {}
    for name, revision in sorted(adapters):
        revisions.setdefault(name, []).append(revision)
    return revisions


def _revisions(route: Route, reported: Sequence[str]) -> list[str]:
    """The revisions of an adapter at a pod: those that its route lists, and some that it listed before."""
    listed = {backend.revision for backend in route.backends}
    unlisted = [revision for revision in reported if revision not in listed]
    return [revision for revision in reported if revision in listed] + unlisted[:MAX_UNLISTED]


def _as_its_base(route: Route, base: Route | None) -> Route:
    if base is None:
        return route
    hold_s = base.hold_s if route.hold_s is None else route.hold_s
    return replace(
        route,
        asleep=route.asleep or base.asleep,
        wake_s=base.wake_s,
        hold_s=hold_s,
        prefix_affinity=route.prefix_affinity or base.prefix_affinity,
        guards=route.guards or base.guards,  # who may write an adapter need not be allowed to write these
    )


def _sorted(urls: Mapping[tuple[str, str], list[str]]) -> _Endpoints:
    return {key: tuple(sorted(urls_of)) for key, urls_of in urls.items()}


def model_of(adapter: str, revision: str, engine: str) -> str:
    """`model` of a request for a revision of an adapter, as an engine of this type reads it.

    SGLang takes what follows the first colon: https://docs.sglang.io/docs/advanced_features/lora
    """
    name = lora_name(adapter, revision)
    return f"base:{name}" if engine == SGLANG else name


def bases_of(table: RouteTable) -> set[str]:
    """URLs of all pods of deployments that are the base of adapters."""
    bases = {route.base for route in table.routes.values() if route.base}
    every = chain(table.endpoints.items(), table.unready.items())
    return {url for (name, _), urls in every if name in bases for url in urls}
