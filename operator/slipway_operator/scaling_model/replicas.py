"""The number of pods that demand needs, and which rule decides it: one pure function with a bounded memory; pure.

The same decisions are written as advice and published as a metric: they follow from `Look`s alone, so a log of these
gives them again (`replay`).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slipway_operator.scaling_model.capacity_model import Basis, Capacity

MOST_WANTED = 60  # numbers in the memory of stabilization
_DRAIN_S = 60.0  # in which waiting work should be done, beside what arrives
_AT_MOST_BY_LATENCY = 2.0  # times what the model needs: more pods than that do not cure a latency
_MOST_PODS = 10_000  # that any spec may have
_STEP = 0.1  # of the pods, that latency adds or takes at a time


class Rule(StrEnum):
    """What decided the number of pods."""

    STEADY = "Steady"  # it needs as many as there are
    UTILIZATION = "Utilization"  # demand by the capacity of pods
    BACKLOG = "Backlog"  # more work waits than pods do in a moment
    LATENCY = "Latency"  # the objective is missed, or met with half of its limit
    FORECAST = "Forecast"
    SCHEDULE = "Schedule"
    BOUNDS = "Bounds"  # minReplicas or maxReplicas
    EMPTY = "Empty"  # there was no request for a while
    WAITING = "Waiting"  # a time, a cooldown or a window is not over
    UNKNOWN = "Unknown"  # demand, or what a pod carries, is not known


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds, thresholds and times of spec.autoscaling.objective; shares from 0 to 1, times in seconds."""

    min_replicas: int
    max_replicas: int
    utilization: float = 0.8  # of the capacity, for which pods are planned
    above: float | None = None  # utilization above which pods are added; None: whenever demand needs them
    above_s: float = 0.0
    below: float | None = None  # utilization below which pods are removed; None: whenever demand needs fewer
    below_s: float = 0.0
    window_s: float = 300.0  # the largest need of this time counts for fewer pods
    cooldown_s: float = 0.0  # between a change and fewer pods
    empty_s: float = 300.0
    latency_s: float = 30.0  # how long the objective is missed before pods are added
    backlog: float = 1.2  # waiting work by the work per second of ready pods


@dataclass(frozen=True, slots=True)
class Carries:
    """A revision that serves: its share of the requests, from 0 to 1, and what one of its pods carries."""

    revision: str
    share: float
    capacity: Capacity | None


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that a decision reads. Work is in tokens, or in requests of a classic model."""

    at: float  # seconds
    replicas: int  # spec.replicas
    ready: int
    starting: int  # pods that exist and are not ready
    demand: float | None  # work that arrives per second; None: unknown
    backlog: float = 0.0  # work that waits
    in_flight: int | None = None  # requests at gateways; None: unknown
    latency: float | None = None  # the percentile by its limit; None: unknown
    forecast: float | None = None  # the highest demand until pods that are started now are ready
    floor: int = 0  # of schedules
    ceiling: int | None = None
    revisions: tuple[Carries, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """What decisions keep, with times of the same clock. `since`: since when each of three states lasts."""

    desired: int | None = None
    changed_at: float = -math.inf
    added_at: float = -math.inf
    since: tuple[float | None, float | None, float | None, float | None] = (None, None, None, None)
    needs: tuple[tuple[float, int], ...] = ()  # (when, largest need), oldest first


@dataclass(frozen=True, slots=True)
class Decision:
    """`needed` is what this moment needs, `desired` what should be; `message` has the numbers."""

    desired: int
    needed: int
    rule: Rule
    message: str
    memory: Memory = field(compare=False, repr=False)


_ABOVE, _BELOW, _MISSED, _EMPTY = range(4)


def decide(policy: Policy, look: Look, memory: Memory) -> Decision:
    """What to do now. The number changes at most once for each look."""
    current = look.replicas if memory.desired is None else memory.desired
    memory = _with_states(policy, look, memory)
    if look.demand is None or not _known(look.revisions):
        return _unknown(policy, look, replace(memory, desired=current))
    needed, rule, why = _needed(policy, look, memory, current)
    bounded = _clamped(policy, look, needed)
    if bounded != needed:
        by_schedule = bounded in (look.floor, look.ceiling)
        rule = Rule.SCHEDULE if by_schedule else Rule.BOUNDS
        why = f"{why}; {'a schedule' if by_schedule else 'minReplicas or maxReplicas'} makes it {bounded}"
    memory = replace(memory, desired=current, needs=_noted(memory.needs, look.at, bounded, policy.window_s))
    if bounded > current:
        return _more(policy, look, memory, bounded, rule, why)
    return _fewer(policy, look, memory, bounded, rule, why)


def replay(policy: Policy, looks: Iterable[Look], memory: Memory | None = None) -> Iterator[Decision]:
    """Decide again on a log of looks: the decisions are those that were made on them."""
    memory = memory or Memory()
    for look in looks:
        decision = decide(policy, look, memory)
        memory = decision.memory
        yield decision


# --- what demand needs ------------------------------------------------------------------------------------------------


def pods_for(demand: float, revisions: Sequence[Carries], utilization: float, most: int) -> int:
    """The least number of pods that carries this demand, when pods are split as requests are; at most `most`.

    Each revision gets its share of the pods, and at least one. So a slower canary needs more pods of both, but for
    the share that its one pod carries anyway.
    """
    if demand <= 0:
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if _carries(middle, demand, revisions, utilization):
            high = middle
        else:
            low = middle + 1
    return low


def _carries(pods: int, demand: float, revisions: Sequence[Carries], utilization: float) -> bool:
    return all(
        max(1, math.floor(pods * each.share + 0.5)) * each.capacity.load * utilization >= demand * each.share - 1e-9
        for each in revisions
        if each.capacity and each.share > 0
    )


def _needed(policy: Policy, look: Look, memory: Memory, current: int) -> tuple[int, Rule, str]:
    """The pods that this moment needs, the rule that requests most, and its numbers."""
    assert look.demand is not None, "decided only where demand is known"
    most, target = _MOST_PODS, policy.utilization
    carried = pods_for(look.demand, look.revisions, target, most)
    needs = [(carried, Rule.UTILIZATION, f"{look.demand:.4g}/s at {target:.0%} of {_capacities(look.revisions)}")]
    if look.backlog > policy.backlog * max(_ready_work(look), 1e-9):
        # Planned for all of their capacity: the backlog ends, so pods need no reserve for it.
        pods = pods_for(look.demand + look.backlog / _DRAIN_S, look.revisions, 1.0, most)
        needs.append((pods, Rule.BACKLOG, f"{look.backlog:.4g} wait beside {look.demand:.4g}/s"))
    if look.forecast is not None:
        pods = pods_for(look.forecast, look.revisions, target, most)
        needs.append((pods, Rule.FORECAST, f"{look.forecast:.4g}/s are expected"))
    if (cured := _by_latency(policy, look, memory, current, carried)) is not None:
        needs.append((cured, Rule.LATENCY, f"the latency is {look.latency or 0:.2f} of its limit"))
    return max(needs, key=lambda need: need[0])


def _by_latency(policy: Policy, look: Look, memory: Memory, current: int, carried: int) -> int | None:
    """More pods while the objective is missed, unless pods are starting or just came: these may be what it needs."""
    since = memory.since[_MISSED]
    if since is None or look.at - since < policy.latency_s:
        return None
    if look.starting or look.ready < current or look.at - memory.added_at < 2 * policy.latency_s:
        return current
    step = max(1, math.floor(_STEP * current))
    measured = all(each.capacity and each.capacity.basis is Basis.MEASURED for each in look.revisions)
    limit = math.ceil(_AT_MOST_BY_LATENCY * max(1, carried)) if measured else policy.max_replicas
    return max(current, min(current + step, limit)) if current < limit else current


# --- more and fewer ---------------------------------------------------------------------------------------------------


def _more(policy: Policy, look: Look, memory: Memory, needed: int, rule: Rule, why: str) -> Decision:
    current = memory.desired or 0
    if rule is Rule.UTILIZATION and policy.above is not None and not _lasts(look, memory, _ABOVE, policy.above_s):
        text = f"{needed} pods for {why}; utilization is not above {policy.above:.0%} for {policy.above_s:g} s"
        return Decision(current, needed, Rule.WAITING, text, memory)
    renewed = replace(memory, desired=needed, changed_at=look.at, added_at=look.at)
    return Decision(needed, needed, rule, f"{needed} pods: {why}", renewed)


def _fewer(policy: Policy, look: Look, memory: Memory, needed: int, rule: Rule, why: str) -> Decision:
    current = memory.desired or 0
    if current > _ceiling(policy, look):  # a bound that was lowered waits for nothing
        return _changed(look, memory, _ceiling(policy, look), needed, rule, why)
    least = _clamped(policy, look, 0)
    if least < current and _lasts(look, memory, _EMPTY, policy.empty_s):
        return _changed(look, memory, least, needed, Rule.EMPTY, f"no request for {policy.empty_s:g} s")
    stable = max((need for at, need in memory.needs if look.at - at <= policy.window_s), default=needed)
    if stable >= current:
        same = needed >= current
        text = f"{current} pods: {why}"
        if not same:
            text = f"{needed} pods for {why}; {stable} were needed within the last {policy.window_s:g} s"
        return Decision(current, needed, Rule.STEADY if same else Rule.WAITING, text, memory)
    if hold := _held(policy, look, memory):
        return Decision(current, needed, Rule.WAITING, f"{stable} pods for {why}; {hold}", memory)
    if not all(each.capacity and each.capacity.basis is Basis.MEASURED for each in look.revisions):
        # What pods carry is not measured: a few at a time, and only with a good latency.
        stable = max(stable, current - max(1, math.floor(_STEP * current)))
    return _changed(look, memory, stable, needed, rule, why)


def _held(policy: Policy, look: Look, memory: Memory) -> str:
    """Why pods are not removed now; empty where they may be."""
    measured = all(each.capacity and each.capacity.basis is Basis.MEASURED for each in look.revisions)
    if look.latency is not None and look.latency > 1.0:
        return "the objective is missed"
    if not measured and (look.latency is None or look.latency >= 0.5):
        return "what a pod carries is not measured, and the latency is not below half of its limit"
    if policy.below is not None and not _lasts(look, memory, _BELOW, policy.below_s):
        return f"utilization is not below {policy.below:.0%} for {policy.below_s:g} s"
    cooldown_s = policy.cooldown_s if measured else max(policy.cooldown_s, policy.window_s)
    if look.at - memory.changed_at < cooldown_s:
        return f"the last change is not {cooldown_s:g} s ago"
    return ""


def _changed(look: Look, memory: Memory, desired: int, needed: int, rule: Rule, why: str) -> Decision:
    renewed = replace(memory, desired=desired, changed_at=look.at)
    return Decision(desired, needed, rule, f"{desired} pods: {why}", renewed)


def _unknown(policy: Policy, look: Look, memory: Memory) -> Decision:
    """The number stays, within its bounds: what is missing is never taken for no demand. Schedules count.

    While what a pod carries is unknown, a latency above its limit adds pods.
    """
    current = memory.desired or 0
    desired = _clamped(policy, look, current)
    what = "demand" if look.demand is None else "what a pod carries"
    if desired == current and (pods := _by_latency(policy, look, memory, current, 0)) and pods > current:
        desired = _clamped(policy, look, pods)
        if desired > current:
            renewed = replace(memory, desired=desired, changed_at=look.at, added_at=look.at)
            text = f"{desired} pods: the latency is {look.latency or 0:.2f} of its limit, and {what} is unknown"
            return Decision(desired, desired, Rule.LATENCY, text, renewed)
    rule = Rule.UNKNOWN if desired == current else Rule.SCHEDULE if look.floor or look.ceiling else Rule.BOUNDS
    return Decision(desired, desired, rule, f"{desired} pods: {what} is unknown", replace(memory, desired=desired))


# --- states and bounds ------------------------------------------------------------------------------------------------


def utilization(look: Look) -> float | None:
    """Demand by what the ready pods carry; None while either is unknown."""
    work = _ready_work(look)
    return look.demand / work if look.demand is not None and work > 0 else None


def _with_states(policy: Policy, look: Look, memory: Memory) -> Memory:
    used = utilization(look)
    states = (
        used is not None and policy.above is not None and used > policy.above,
        used is not None and policy.below is not None and used < policy.below,
        look.latency is not None and look.latency > 1.0,
        look.demand == 0 and look.in_flight == 0 and look.backlog == 0,
    )
    above, below, missed, empty = (
        (look.at if since is None else since) if holds else None
        for holds, since in zip(states, memory.since, strict=True)
    )
    return replace(memory, since=(above, below, missed, empty))


def _lasts(look: Look, memory: Memory, state: int, seconds: float) -> bool:
    since = memory.since[state]
    return since is not None and look.at - since >= seconds


def _ready_work(look: Look) -> float:
    """Work per second of the ready pods, split as requests are."""
    return look.ready * min(
        (each.capacity.load for each in look.revisions if each.capacity and each.share > 0), default=0.0
    )


def _known(revisions: Sequence[Carries]) -> bool:
    return any(each.capacity and each.share > 0 for each in revisions)


def _capacities(revisions: Sequence[Carries]) -> str:
    parts = (
        f"{each.capacity.load:.4g} ({each.capacity.basis})" for each in revisions if each.capacity and each.share > 0
    )
    return " and ".join(parts)


def _ceiling(policy: Policy, look: Look) -> int:
    """maxReplicas, or the lower ceiling of a schedule, but never below minReplicas."""
    ceiling = policy.max_replicas if look.ceiling is None else min(look.ceiling, policy.max_replicas)
    return max(ceiling, policy.min_replicas)


def _clamped(policy: Policy, look: Look, pods: int) -> int:
    ceiling = _ceiling(policy, look)
    return min(max(pods, policy.min_replicas, look.floor, 1), ceiling)


def _noted(
    needs: tuple[tuple[float, int], ...], at: float, needed: int, window_s: float
) -> tuple[tuple[float, int], ...]:
    """The needs with this one, of the window only; what a later and larger one hides is left out."""
    kept = [(when, need) for when, need in needs if at - when <= window_s and need > needed]
    # Needs only fall from first to last: of too many the small ones are forgotten, which keeps pods.
    return (*kept[: MOST_WANTED - 1], (at, needed))
