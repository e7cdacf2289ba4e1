"""How many pods each revision gets, and when those of a retired one may leave."""

from datetime import datetime, timedelta

from slipway_operator.model.status import State
from slipway_operator.planning import canary
from slipway_operator.planning.situation import Course, Situation


def needed_replicas(course: Course, at: Situation) -> int:
    """Pods that the target needs where the rollout is."""
    rollout = course.rollout
    if rollout is None:
        return 0
    if rollout.state in (State.INITIALIZING, State.PROMOTING):
        return at.replicas
    return canary.replicas_for(canary.scale_at(at.spec.strategy.steps, rollout.step_index), at.replicas)


def room_for_target(course: Course, at: Situation) -> int:
    """Pods that the target may have: all revisions together never exceed twice the replicas (invariant I7)."""
    others = sum(
        at.replicas if revision == course.stable else workload.desired
        for revision, workload in at.observed.workloads.items()
        if revision != course.target
    )
    return max(0, 2 * at.replicas - others)


def desired_replicas(course: Course, at: Situation) -> dict[str, int]:
    """Pods wanted of every revision that has or gets a ReplicaSet."""
    desired = {revision: _retired_replicas(course, at, revision) for revision in retired(course, at)}
    if course.stable:
        desired[course.stable] = at.replicas
    if course.target:
        desired[course.target] = _target_replicas(course, at, course.target)
    return desired


def retired(course: Course, at: Situation) -> list[str]:
    """Revisions with pods that are neither stable nor under test."""
    return [revision for revision in at.observed.workloads if revision not in (course.stable, course.target)]


def scale_down_at(course: Course, at: Situation, revision: str, weight: int) -> datetime | None:
    """When the pods of a retired revision may leave: a while after every gateway stopped sending to it."""
    if weight > 0:
        return None
    settled = at.status.scale_down_at(revision)
    if settled or not at.traffic_synced or at.weight(revision) > 0:
        return settled
    return at.now + timedelta(seconds=_delay_s(course, at, revision))


def leaves_at_latest(at: Situation, settled: datetime) -> datetime:
    """When pods leave even though requests are still in progress there."""
    return settled + timedelta(seconds=at.spec.drain_timeout_s)


def _target_replicas(course: Course, at: Situation, target: str) -> int:
    workload = at.workload(target)
    present = workload.desired if workload else 0
    if course.state is State.ABORTING:
        return present
    needed = needed_replicas(course, at)
    if needed >= present:
        return max(present, min(needed, room_for_target(course, at)))
    # Fewer pods only once no gateway sends them more than they carry.
    carried = canary.weight_carried(needed, at.replicas) >= at.weight(target)
    return needed if carried and at.traffic_synced else present


def _retired_replicas(course: Course, at: Situation, revision: str) -> int:
    """Only what the status already says may leave does: a decision is written down before it destroys."""
    present = at.observed.workloads[revision].desired
    settled = at.status.scale_down_at(revision)
    if settled is None or at.now < settled or at.weight(revision) > 0:
        return present
    idle = at.observed.inflight(revision) == 0
    return 0 if idle or at.now >= leaves_at_latest(at, settled) else present


def _delay_s(course: Course, at: Situation, revision: str) -> int:
    rejected = any(token.startswith(f"{revision}/") for token in course.aborted) and revision != course.previous
    strategy = at.spec.strategy
    return strategy.abort_scale_down_delay_s if rejected else strategy.scale_down_delay_s
