"""Public names: the ModelRoutes of a table, and the deployment to which the rules of one lead a request (pure)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.model_routes.references import fallback_ref, namespace_of, reference_of, refs_of, target_of
from slipway_contracts.model_routes.rules import RoutedRequest, select
from slipway_contracts.model_routes.spec import (
    DEPLOYMENT,
    KIND,
    MOST_DEPTH,
    ModelRouteSpec,
    RouteClassifier,
    RouteRef,
    RouteRule,
    RouteSampling,
    names_of,
    refusal,
)
from slipway_contracts.resilience import external_target

from .fallbacks import Fallback
from .split import choose

# Why the rules lead a request nowhere.
NO_RULE, NO_TARGET = "no rule", "no target"
MOST_LOOKED_AT = 512  # targets of a public name


class _Status(msgspec.Struct):
    """The part of a ModelRoute's status that a gateway reads."""

    granted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PublicRoute:
    """A ModelRoute. `granted`: targets in other namespaces that allow it, as the operator found out."""

    name: str  # `namespace/name`
    spec: ModelRouteSpec
    created: str = ""  # RFC 3339
    granted: frozenset[str] = frozenset()
    # Kind and name of each target that may get requests.
    targets: tuple[tuple[str, str], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(dict.fromkeys(_targets(self))))

    @property
    def names(self) -> tuple[str, ...]:
        """The public names that it wants; it has those that the owners of names give it."""
        return names_of(self.name.partition("/")[2], self.spec)

    def may_lead_to(self, ref: RouteRef) -> bool:
        """Whether requests may go to a target: it is in the same namespace, or its own namespace allows it."""
        namespace = namespace_of(self.name)
        return (ref.namespace or namespace) == namespace or reference_of(ref, namespace) in self.granted


class Chosen(NamedTuple):
    """To which deployment the rules lead a request.

    `target`: `namespace/name` of a ModelDeployment, which may not be there; empty where `problem` says why.
    `passed`: the ModelRoutes and rules that the request passed. `sampling`: what these impose, the first one first.
    `fallbacks`: of the last rule that has some; None: no rule has.
    """

    target: str
    passed: tuple[tuple[str, str], ...]
    sampling: tuple[RouteSampling, ...] = ()
    problem: str = ""
    fallbacks: tuple[Fallback, ...] | None = None


def owner_of(name: str) -> str:
    """How the owners of model names name a ModelRoute."""
    return f"{KIND}/{name}"


def parse_model_route(obj: Mapping[str, Any]) -> PublicRoute:
    """Raises UnreadableObject: the message names the field."""
    meta = obj["metadata"]
    spec = read(ModelRouteSpec, encoded(obj.get("spec") or {}), "spec")
    if problem := refusal(spec):
        raise UnreadableObject(f"spec.{problem}")
    try:
        status = msgspec.convert(obj.get("status") or {}, _Status)
    except msgspec.ValidationError as error:
        raise UnreadableObject(f"status: {error}") from None
    name = f"{meta['namespace']}/{meta['name']}"
    return PublicRoute(name, spec, meta.get("creationTimestamp") or "", frozenset(status.granted))


def owned_names(routes: Mapping[str, PublicRoute], owners: Mapping[str, str] | None) -> dict[str, PublicRoute]:
    """ModelRoutes by public name. `owners`: the owner of each name; without it, as for a file, each has its names."""
    if owners is None:
        return {name: route for route in routes.values() for name in route.names}
    found = ((name, routes.get(owner.removeprefix(f"{KIND}/"))) for name, owner in owners.items() if _is_route(owner))
    return {name: route for name, route in found if route is not None and name in route.names}


def _is_route(owner: str) -> bool:
    return owner.startswith(f"{KIND}/")


def choose_target(
    routes: Mapping[str, PublicRoute],
    first: PublicRoute,
    request: RoutedRequest,
    key: str,
    classified: Callable[[str, RouteClassifier], bool] = lambda namespace, classifier: classifier.default,
) -> Chosen:
    """Follows rules from a ModelRoute to a deployment, through at most MOST_DEPTH ModelRoutes.

    `routes`: by `namespace/name`. `key`: the request's sticky key, which chooses among the targets of a rule: each rule
    has a split of its own.
    `classified`: whether the request fits by a classifier of a namespace.
    """
    route = first
    passed: list[tuple[str, str]] = []
    sampling: list[RouteSampling] = []
    fallbacks: tuple[Fallback, ...] | None = None
    for _ in range(MOST_DEPTH):
        rule = select(route.spec.rules, request, partial(classified, namespace_of(route.name)))
        if rule is None:
            return Chosen("", tuple(passed), problem=NO_RULE)
        passed.append((route.name, rule.name))
        sampling.append(route.spec.sampling)
        fallbacks = _fallbacks(route, rule) or fallbacks
        ref = _ref_of(route, rule, key)
        if ref is None or not route.may_lead_to(ref):
            break
        target = target_of(ref, namespace_of(route.name))
        if ref.kind == DEPLOYMENT:
            return Chosen(target, tuple(passed), tuple(sampling), fallbacks=fallbacks)
        if (following := routes.get(target)) is None:
            break
        route = following
    return Chosen("", tuple(passed), problem=NO_TARGET)


def reachable(routes: Mapping[str, PublicRoute], first: PublicRoute) -> list[str]:
    """`namespace/name` of the ModelDeployments to which rules may lead, those of the first ModelRoute first.

    It looks at MOST_LOOKED_AT targets: lists of models need no more, and anyone may write ModelRoutes.
    """
    found: dict[str, None] = {}
    level, left = [first], MOST_LOOKED_AT
    for _ in range(MOST_DEPTH):
        following: dict[str, PublicRoute] = {}
        for kind, target in islice(chain.from_iterable(route.targets for route in level), left):
            left -= 1
            if kind == DEPLOYMENT:
                found[target] = None
            elif target in routes:
                following[target] = routes[target]
        level = list(following.values())
    return list(found)


def _targets(route: PublicRoute) -> Iterator[tuple[str, str]]:
    namespace = namespace_of(route.name)
    refs = (ref for ref in refs_of(route.spec) if ref.weight and route.may_lead_to(ref))
    return ((ref.kind, target_of(ref, namespace)) for ref in refs)


def _fallbacks(route: PublicRoute, rule: RouteRule) -> tuple[Fallback, ...]:
    """What answers in place of the targets of a rule, as far as it may."""
    found = []
    for one in rule.fallback:
        if one.external is not None:
            found.append(Fallback(f"{route.name}/{one.name}", external_target(one.name, one.external)))
        elif route.may_lead_to(ref := fallback_ref(one)):
            found.append(Fallback(target_of(ref, namespace_of(route.name))))
    return tuple(found)


def _ref_of(route: PublicRoute, rule: RouteRule, key: str) -> RouteRef | None:
    refs = rule.backend_refs
    if len(refs) == 1:
        return refs[0]
    chosen = choose([ref.weight for ref in refs], f"{route.name}/{rule.name}", key)
    return None if chosen is None else refs[chosen]
