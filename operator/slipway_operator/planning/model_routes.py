"""The status of a ModelRoute: its names, whether its rules can be followed, and its targets (pure)."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from slipway_contracts.model_routes.references import all_refs_of, chain_problem, namespace_of, reference_of, target_of
from slipway_contracts.model_routes.rules import zone_of
from slipway_contracts.model_routes.spec import DEPLOYMENT, KIND, ModelRouteSpec, RouteRef
from slipway_operator.api.v1alpha1.model_route import ModelRouteStatus
from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model import labels
from slipway_operator.model.cluster.names import Standing
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.claims import UNCLAIMED
from slipway_operator.planning.conditions.transitions import awaited, carry_over, condition, failed

# Types and reasons are those of the Gateway API where it has them.
ACCEPTED, RESOLVED = "Accepted", "ResolvedRefs"
BACKEND_NOT_FOUND, REF_NOT_PERMITTED = "BackendNotFound", "RefNotPermitted"
MOST_MESSAGE = 1024
_SHOWN = 3  # targets that a message lists
_NAMES_AWAITED = "whether the ModelRoute has its names is decided in a moment"


class _From(msgspec.Struct):
    group: str = ""
    kind: str = ""
    namespace: str = ""


class _To(msgspec.Struct):
    group: str = ""
    kind: str = ""
    name: str = ""


class _GrantSpec(msgspec.Struct, rename={"from_": "from"}):
    from_: list[_From] = []
    to: list[_To] = []


@dataclass(frozen=True, slots=True)
class ReferenceGrants:
    """What namespaces allow ModelRoutes of others. `problem`: why nothing is known of it; empty: it is known."""

    allowed: frozenset[tuple[str, str, str, str]] = frozenset()  # namespace of the route, kind, namespace, name or ""
    problem: str = ""

    def allow(self, namespace: str, kind: str, target: str) -> bool:
        """Whether a ModelRoute of a namespace may lead to `target`, which is `namespace/name`."""
        of, _, name = target.partition("/")
        return any((namespace, kind, of, listed) in self.allowed for listed in ("", name))


@dataclass(frozen=True, slots=True)
class RouteWorld:
    """What rules may lead to: ModelDeployments and ModelRoutes by `namespace/name`, and consents of namespaces."""

    deployments: Collection[str]
    routes: Mapping[str, ModelRouteSpec]
    grants: ReferenceGrants


def grants_of(objects: Iterable[Mapping[str, Any]]) -> ReferenceGrants:
    """Read ReferenceGrants. What cannot be read of them grants nothing."""
    allowed: set[tuple[str, str, str, str]] = set()
    for obj in objects:
        try:
            spec = msgspec.convert(obj.get("spec") or {}, _GrantSpec)
        except msgspec.ValidationError:
            continue
        namespaces = [one.namespace for one in spec.from_ if (one.group, one.kind) == (labels.GROUP, KIND)]
        targets = [one for one in spec.to if one.group == labels.GROUP and one.kind in (DEPLOYMENT, KIND)]
        of = obj["metadata"]["namespace"]
        allowed |= {(namespace, target.kind, of, target.name) for namespace in namespaces for target in targets}
    return ReferenceGrants(frozenset(allowed))


def crosses(name: str, spec: ModelRouteSpec) -> bool:
    """Whether any target is in another namespace."""
    return any(_is_foreign(ref, namespace_of(name)) for ref in all_refs_of(spec))


def status(
    name: str,
    generation: int,
    standings: Mapping[str, Standing | None],
    world: RouteWorld,
    former: ModelRouteStatus,
    now: datetime,
) -> ModelRouteStatus:
    """The status as it is now; conditions that did not change keep the transition time of `former`.

    `standings`: of each name of the ModelRoute `name`, None while it is not decided.
    """
    spec, namespace = world.routes[name], namespace_of(name)
    granted = {reference_of(ref, namespace) for ref in all_refs_of(spec) if _is_granted(ref, namespace, world.grants)}
    accepted, resolved = _accepted(name, standings, world, now), _resolved(spec, namespace, world, now)
    fresh = (accepted, resolved, *_for_tools(accepted, resolved, now))
    owned = tuple(one for one, standing in standings.items() if standing is not None and not standing.lost)
    return ModelRouteStatus(generation, owned, tuple(sorted(granted)), carry_over(fresh, former.conditions))


def unreadable(generation: int, why: str, former: ModelRouteStatus, now: datetime) -> ModelRouteStatus:
    """The status of a ModelRoute whose spec cannot be read."""
    message = f"gateways follow its last good version: {why}"[:MOST_MESSAGE]
    fresh = (
        condition(ACCEPTED, False, "Invalid", message, now),
        failed("Invalid", message, now),
    )
    return ModelRouteStatus(generation, former.names, former.granted, carry_over(fresh, former.conditions))


def events(former: ModelRouteStatus, fresh: ModelRouteStatus) -> tuple[Event, ...]:
    """Events for conditions whose reason changed; none for a new ModelRoute that is in order at once."""
    before = {one.type: one for one in former.conditions}
    return tuple(_events(before, fresh.conditions))


def _events(before: Mapping[str, Condition], conditions: Iterable[Condition]) -> Iterator[Event]:
    for one in conditions:
        former = before.get(one.type)
        if one.status == "False" and (former is None or former.reason != one.reason):
            yield Event("Warning", one.reason, one.message)
        elif one.status == "True" and former is not None and former.status == "False":
            yield Event("Normal", one.reason, one.message)


def _accepted(name: str, standings: Mapping[str, Standing | None], world: RouteWorld, now: datetime) -> Condition:
    reason, message = chain_problem(name, world.routes)
    if not reason and (zones := _unknown_zones(world.routes[name])):
        reason, message = (
            "UnknownTimeZone",
            f"no time zone has the name {', '.join(zones)}: write for example Europe/Berlin",
        )
    lost = [one for one in standings.values() if one is not None and one.lost]
    if not reason and lost:
        reason, message = lost[0].reason, "; ".join(one.message for one in lost)
    if reason:
        holds = None if reason == UNCLAIMED else False
        return condition(ACCEPTED, holds, reason, message[:MOST_MESSAGE], now)
    if None in standings.values():
        return condition(ACCEPTED, None, UNCLAIMED, _NAMES_AWAITED, now)
    return condition(
        ACCEPTED, True, "Accepted", f"gateways follow its rules for {', '.join(standings)}"[:MOST_MESSAGE], now
    )


def _for_tools(accepted: Condition, resolved: Condition, now: datetime) -> tuple[Condition, ...]:
    """Stalled or Reconciling, for tools that wait for an apply: what a target lacks may come with the same one."""
    if accepted.status == "False":
        return (failed(accepted.reason, accepted.message, now),)
    behind = next((one for one in (accepted, resolved) if one.status != "True"), None)
    return (awaited(behind.reason, behind.message, now),) if behind else ()


def _unknown_zones(spec: ModelRouteSpec) -> list[str]:
    zones = {match.time.time_zone for rule in spec.rules for match in rule.matches if match.time}
    return sorted(zone for zone in zones if zone_of(zone) is None)[:_SHOWN]


def _resolved(spec: ModelRouteSpec, namespace: str, world: RouteWorld, now: datetime) -> Condition:
    forbidden: dict[str, None] = {}
    missing: dict[str, None] = {}
    for ref in all_refs_of(spec):
        target = target_of(ref, namespace)
        shown = f"{ref.kind} {target}"
        # Whether it exists stays hidden until its namespace allows it.
        if _is_foreign(ref, namespace) and not world.grants.allow(namespace, ref.kind, target):
            forbidden[shown] = None
        elif target not in (world.deployments if ref.kind == DEPLOYMENT else world.routes):
            missing[shown] = None
    if forbidden:
        why = world.grants.problem or (
            f"a ReferenceGrant there has to allow {KIND} of namespace {namespace}, and no request goes there until then"
        )
        message = f"{_listed(forbidden)} must not be referred to: {why}"
        return condition(RESOLVED, False, REF_NOT_PERMITTED, message[:MOST_MESSAGE], now)
    if missing:
        message = (
            f"there is no {_listed(missing)}: requests of its rules are refused with status 503, a fallback is passed "
            "over, and a classifier has its default"
        )
        return condition(RESOLVED, False, BACKEND_NOT_FOUND, message[:MOST_MESSAGE], now)
    return condition(RESOLVED, True, RESOLVED, "all targets are there", now)


def _is_foreign(ref: RouteRef, namespace: str) -> bool:
    return ref.namespace is not None and ref.namespace != namespace


def _is_granted(ref: RouteRef, namespace: str, grants: ReferenceGrants) -> bool:
    return _is_foreign(ref, namespace) and grants.allow(namespace, ref.kind, target_of(ref, namespace))


def _listed(targets: Collection[str]) -> str:
    shown = ", ".join(list(targets)[:_SHOWN])
    return f"{shown} and {len(targets) - _SHOWN} more" if len(targets) > _SHOWN else shown
