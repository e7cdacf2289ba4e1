"""The short columns of `kubectl get`: phase, step, reason, ready pods."""

from collections.abc import Mapping, Sequence

from slipway_operator.api.v1alpha1.status import Condition, Phase, Rollout, SleepState, State
from slipway_operator.planning.analysis import findings, runs
from slipway_operator.planning.conditions import table
from slipway_operator.planning.facts import downloads, error_budget, model_name, serving
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of
from slipway_operator.planning.message import overdue
from slipway_operator.planning.rollout import hooks
from slipway_operator.planning.scaling import sleep
from slipway_operator.planning.sizing.sizes import Sizes


def phase(course: Course, at: Situation, sizes: Sizes) -> Phase:
    """The phase, for `kubectl get`."""
    if course.state in (State.ABORTING, State.ABORTED):
        return Phase.DEGRADED
    if course.rollout is None:
        settled = _settled_phase(course, at)
        ill = model_name.is_elsewhere(at) or (at.missing is not None and not at.missing.is_former)
        return Phase.DEGRADED if settled is Phase.HEALTHY and ill else settled
    if course.state is State.INITIALIZING:
        return _first_phase(course, at)
    waits = hooks.is_waiting(course, at, sizes) or runs.is_undecided(course, at) or error_budget.holds(course, at)
    holds = course.state is State.PAUSED or at.holds or waits
    return Phase.PAUSED if holds else Phase.PROGRESSING


def step(rollout: Rollout | None) -> str | None:
    """Number of the step, counted from 1, and of all steps, for `kubectl get`."""
    if rollout is None or rollout.steps == 0 or rollout.state is State.INITIALIZING:
        return None
    return f"{min(rollout.step_index + 1, rollout.steps)}/{rollout.steps}"


def reason(shown: Sequence[Condition], rollout: Rollout | None, at: Situation) -> str | None:
    """The reason, for `kubectl get`: that of a condition with a problem.

    Without one, how far a download or an analysis is, else the rollout's state; None when idle.
    """
    problem = table.reason(shown)
    if problem is not None:
        return problem
    coming = downloads.word(at) if rollout is None or rollout.state in _AWAITS_PODS else None
    return coming or (_doing(rollout) if rollout else None)


def _doing(rollout: Rollout) -> str:
    """The rollout's state; for an analysis, with the expected time left where it is known."""
    run = rollout.analysis if rollout.state is State.ANALYZING else None
    if run is None or run.id != rollout.step_token:
        return str(rollout.state)
    if run.ramp and run.ramp.bake_until:
        return f"Baking until {run.ramp.bake_until:%H:%M} UTC"
    left = findings.time_left(run.verdict)
    return f"{rollout.state}, {left}" if left else str(rollout.state)


_AWAITS_PODS = frozenset({State.INITIALIZING, State.PROVISIONING, State.PROMOTING})


def ready_of_wanted(at: Situation, desired: Mapping[str, int]) -> str:
    """Ready pods of those wanted, over all revisions that are to have pods."""
    return f"{sum(at.ready(revision) for revision in desired)}/{sum(desired.values())}"


def _settled_phase(course: Course, at: Situation) -> Phase:
    ready = at.ready(course.stable)
    if at.asleep:
        return Phase.ASLEEP
    if at.sleep and at.sleep.state is SleepState.WAKING:
        return Phase.DEGRADED if sleep.is_late(at) else Phase.PROGRESSING
    if serving.trouble(course, at):
        return Phase.DEGRADED
    if ready >= at.replicas:
        return Phase.HEALTHY
    return Phase.PROGRESSING if ready > 0 else Phase.DEGRADED


def _first_phase(course: Course, at: Situation) -> Phase:
    if overdue(course, at):
        return Phase.DEGRADED
    return Phase.PROGRESSING if at.ready(rollout_of(course).revision) else Phase.PENDING
