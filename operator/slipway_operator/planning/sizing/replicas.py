"""How many pods each revision gets, and when those of a retired one may leave."""

from datetime import datetime, timedelta

from slipway_operator.api.v1alpha1.status import Mode, State
from slipway_operator.model import labels
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.sizing import baseline, canary, gates, replacement
from slipway_operator.planning.sizing.sizes import Sizes


def room_for_target(course: Course, at: Situation, sizes: Sizes) -> int:
    """Pods that the target may have: all revisions together never exceed replicas and surge (invariant I7)."""
    others = sum(
        max(workload.desired, _stable_replicas(course, at, sizes)) if revision == course.stable else workload.desired
        for revision, workload in at.observed.workloads.items()
        if revision != course.target
    )
    return max(0, at.replicas + sizes.surge - others)


def desired_replicas(course: Course, at: Situation, sizes: Sizes) -> dict[str, int]:
    """Pods wanted of every revision that has or gets a ReplicaSet."""
    desired = {revision: _retired_replicas(course, at, revision) for revision in retired(course, at, sizes)}
    if course.stable:
        desired[course.stable] = _stable_replicas(course, at, sizes)
    if course.target:
        desired[course.target] = _target_replicas(course, at, sizes, course.target)
    if pods := baseline.replicas(course, at, sizes):
        desired[baseline.name(course)] = pods
    return desired


def retired(course: Course, at: Situation, sizes: Sizes) -> list[str]:
    """Revisions with pods that are neither stable nor under test, nor the baseline."""
    kept = {course.stable, course.target, *((baseline.name(course),) if baseline.replicas(course, at, sizes) else ())}
    return [revision for revision in at.observed.workloads if revision not in kept]


def scale_down_at(course: Course, at: Situation, sizes: Sizes, revision: str, weight: int) -> datetime | None:
    """When the pods of a retired revision may leave: a while after every gateway stopped sending to it; None before."""
    if weight > 0:
        return None
    settled = at.status.scale_down_at(revision)
    yields = _is_rejected(course, revision) and _target_needs_room(course, at, sizes)
    if settled and (yields or _stable_needs_room(course, at, sizes)):
        return min(settled, at.now)
    if settled or not at.traffic_synced or at.weight(revision) > 0:
        return settled
    return at.now + timedelta(seconds=_delay_s(course, at, revision))


def leaves_at_latest(at: Situation, settled: datetime) -> datetime:
    """When pods leave even though requests are still in progress there."""
    return settled + timedelta(seconds=at.spec.drain_timeout_s)


def _stable_replicas(course: Course, at: Situation, sizes: Sizes) -> int:
    """Pods of stable: all where there is room; else what the target leaves, but enough for its weight."""
    workload = at.workload(course.stable or "")
    present = workload.desired if workload else 0
    if course.rollout is None and (extra := replacement.extra_pods(course, at, course.stable or "")):
        return at.replicas + extra
    if not sizes.tight:
        return at.replicas
    budget = at.replicas + sizes.surge
    wanted = max(_least_stable(course, at, sizes, present), min(at.replicas, budget - _claim(course, at, sizes)))
    others = sum(item.desired for name, item in at.observed.workloads.items() if name != course.stable)
    return wanted if wanted <= present else max(present, min(wanted, budget - others))


def _least_stable(course: Course, at: Situation, sizes: Sizes, present: int) -> int:
    if course.target is None:
        return 0
    written_down = at.status.rollout is not None and at.status.rollout.capacity_mode is sizes.mode
    if not at.traffic_synced or not written_down:
        return min(present, at.replicas)
    if sizes.mode is Mode.RECREATE:
        return 0 if sizes.needed and not gates.holds_pods(course, at, sizes.mode) else 1
    return max(1, canary.replicas_for(at.share(course.stable), sizes.carriers))


def _claim(course: Course, at: Situation, sizes: Sizes) -> int:
    """Pods that stable leaves to the target."""
    if course.target is None:
        return 0
    if course.state is State.ABORTING:
        workload = at.workload(course.target)
        return _returning_replicas(course, at, sizes, workload.desired if workload else 0)
    return sizes.needed


def _target_replicas(course: Course, at: Situation, sizes: Sizes, target: str) -> int:
    workload = at.workload(target)
    present = workload.desired if workload else 0
    if course.state is State.ABORTING:
        return _returning_replicas(course, at, sizes, present)
    needed, room, tight = sizes.needed, room_for_target(course, at, sizes), sizes.tight
    if needed >= present and not (tight and room < present):
        return max(present, min(needed, room))
    # Fewer pods only once no gateway sends them more than they carry.
    least = canary.replicas_for(at.weight(target), sizes.carriers) if at.traffic_synced else present
    return min(present, max(least, min(needed, max(1, room)) if tight else needed))


def _returning_replicas(course: Course, at: Situation, sizes: Sizes, present: int) -> int:
    """Pods of a rejected revision with weight: where room is short, they decrease as the weight does."""
    if not sizes.tight or not at.traffic_synced:
        return present
    return min(present, max(1, canary.replicas_for(at.weight(course.target), sizes.carriers)))


def _stable_needs_room(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether pods of stable wait for a node, or for others to leave."""
    stable = at.workload(course.stable or "")
    return stable is not None and (stable.unschedulable > 0 or _stable_replicas(course, at, sizes) < at.replicas)


def _target_needs_room(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether pods of the revision under test wait for others to leave."""
    if course.target is None or course.state is State.ABORTING:
        return False
    workload = at.workload(course.target)
    return (workload.desired if workload else 0) < sizes.needed and room_for_target(course, at, sizes) < sizes.needed


def _is_rejected(course: Course, revision: str) -> bool:
    """Whether a retired revision was rejected, and no rollback goes to it."""
    return any(token.startswith(f"{revision}/") for token in course.aborted) and revision != course.previous


def _retired_replicas(course: Course, at: Situation, revision: str) -> int:
    """Pods of a retired revision: 0 only once the status, as read, permits it: decisions are written first."""
    present = at.observed.workloads[revision].desired
    settled = at.status.scale_down_at(revision)
    if settled is None or at.now < settled or at.weight(revision) > 0 or not at.traffic_synced:
        return present
    idle = at.observed.inflight(revision) == 0
    return 0 if idle or at.now >= leaves_at_latest(at, settled) else present


def _delay_s(course: Course, at: Situation, revision: str) -> int:
    if labels.what_runs(revision) != revision:  # a baseline: no rollout goes back to it
        return 0
    strategy = at.spec.strategy
    rejected = _is_rejected(course, revision)
    return strategy.abort_scale_down_delay_s if rejected else strategy.scale_down_delay_s
