"""Pod counts of a rollout at its present step: computed once per course, for all decisions that depend on them."""

from dataclasses import dataclass
from datetime import datetime

from slipway_operator.api.v1alpha1.status import Mode, State
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.sizing import canary, capacity, gates


@dataclass(frozen=True, slots=True)
class Sizes:
    """Pod counts that follow from the mode and the step."""

    mode: Mode  # capacity mode: within how many pods the rollout continues
    surge: int  # pods above the replicas that all revisions together may have
    carriers: int  # ready pods that together carry all traffic
    tight: bool  # no room for a whole second revision: the two take turns
    needed: int  # pods that the target needs for its step
    enough: int  # ready pods of the target with which its step continues
    stable_carries: bool  # stable has the ready pods for the weight that it has
    stable_lost: bool  # for spec.progressDeadlineSeconds it had no ready pod, so that nothing waits for them


def sizes_of(course: Course, at: Situation) -> Sizes:
    """The sizes for this course."""
    mode = capacity.mode(course, at)
    surge, carriers = capacity.surge(at, mode), capacity.carriers(at, mode)
    needed = _needed(course, at, mode)
    return Sizes(
        mode=mode,
        surge=surge,
        carriers=carriers,
        tight=surge < at.replicas,
        needed=needed,
        enough=at.spec.strategy.progress_threshold.of(needed),
        stable_carries=_stable_carries(course, at, mode),
        stable_lost=_stable_lost(course, at, mode),
    )


def _needed(course: Course, at: Situation, mode: Mode) -> int:
    rollout = course.rollout
    if rollout is None:
        return 0
    if rollout.state is State.INITIALIZING:
        return at.replicas
    if gates.holds_pods(course, at, mode):
        workload = at.workload(rollout.revision)
        return workload.desired if workload else 0
    carriers, surge = capacity.carriers(at, mode), capacity.surge(at, mode)
    if gates.past_steps(rollout, at) and not gates.holds_promotion(course, at):
        return carriers
    if _would_end_service(course, at, mode):
        return 0
    return canary.replicas_at(at.spec.strategy.steps, rollout, at.replicas, carriers, surge)


def _would_end_service(course: Course, at: Situation, mode: Mode) -> bool:
    """Whether the target could only start in place of the only stable pod, before any step gives it weight."""
    rollout = course.rollout
    early = rollout is not None and canary.weight_at(at.spec.strategy.steps, rollout.step_index) == 0
    return early and at.ready(course.target) == 0 and mode is Mode.RECREATE


def _stable_carries(course: Course, at: Situation, mode: Mode) -> bool:
    weight = at.share(course.stable)
    if weight == 0 or mode is Mode.RECREATE:
        return True
    return at.ready(course.stable) >= canary.replicas_for(weight, capacity.carriers(at, mode))


def _stable_lost(course: Course, at: Situation, mode: Mode) -> bool:
    since = course.rollout.stable_lost_at if course.rollout else None
    if since is None or mode is Mode.RECREATE or lost_since(course, at) is None:
        return False
    return at.elapsed_s(since) >= at.spec.progress_deadline_s


def lost_since(course: Course, at: Situation) -> datetime | None:
    """Since when stable has no ready pod though it should have some; None where it has."""
    if course.rollout is None or course.stable is None or at.replicas == 0 or at.ready(course.stable) > 0:
        return None
    return course.rollout.stable_lost_at or at.now
