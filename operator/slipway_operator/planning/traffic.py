"""The table that gateways route by: weights follow readiness, and change only with a new generation."""

from slipway_operator.model.status import Backend, State, Traffic
from slipway_operator.planning import canary
from slipway_operator.planning.situation import Course, Situation

STEP_HOLDS_WEIGHT = (State.SHIFTING, State.PAUSED)


def next_traffic(course: Course, at: Situation, model: str) -> Traffic | None:
    """The table to publish; the one in force when nothing changes. None before any pod is ready."""
    backends = _backends(course, at)
    if not backends:
        return at.status.traffic
    present = at.status.traffic
    salt = course.rollout.salt if course.rollout else (present.salt if present else "")
    acked, ready = at.acknowledged
    if present and (present.salt, present.backends, present.model) == (salt, backends, model):
        return Traffic(present.generation, model, salt, backends, f"{acked}/{ready}")
    generation = present.generation + 1 if present else 1
    return Traffic(generation, model, salt, backends, f"0/{ready}")


def _backends(course: Course, at: Situation) -> tuple[Backend, ...]:
    """The revision under test first, so that raising its weight only ever moves users towards it."""
    if course.stable is None:
        target = course.target
        serves = target is not None and (at.ready(target) > 0 or at.weight(target) > 0)
        return (_backend(at, target, 100),) if target and serves else ()
    weight = target_weight(course, at)
    stable = _backend(at, course.stable, 100 - weight)
    return (_backend(at, course.target, weight), stable) if course.target else (stable,)


def target_weight(course: Course, at: Situation) -> int:
    """Percent of new requests for the revision under test."""
    rollout = course.rollout
    if rollout is None or course.target is None:
        return 0
    present = at.weight(rollout.revision)
    carried = canary.weight_carried(at.ready(rollout.revision), at.replicas) if at.replicas else present
    if rollout.state is State.ABORTING:
        return _returning(course, at, present)
    if rollout.state is State.PROMOTING:
        return carried
    if rollout.state in STEP_HOLDS_WEIGHT:
        return min(canary.weight_at(at.spec.strategy.steps, rollout.step_index), carried)
    return min(present, carried)


def _returning(course: Course, at: Situation, present: int) -> int:
    """Down only, and no faster than stable pods are ready for it, unless the other side has none (I5)."""
    if at.ready(course.target) == 0 or at.replicas == 0:
        return 0
    return min(present, 100 - canary.weight_carried(at.ready(course.stable), at.replicas))


def _backend(at: Situation, revision: str, weight: int) -> Backend:
    snapshot = at.observed.snapshots.get(revision)
    version = snapshot.inputs.model.version if snapshot else at.spec.inputs.model.version
    return Backend(revision, weight, version or revision)
