"""Conditions for tools that wait for an apply: Flux, Helm, and others that read them as kstatus does.

Such a tool fails on Stalled, waits on Reconciling, and goes on without both where Ready is True. Both sum up what other
conditions say in detail, so that no column, Event or metric repeats them.
"""

from slipway_operator.api.v1alpha1.status import SleepState, State
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type
from slipway_operator.planning.conditions.transitions import RECONCILING, STALLED
from slipway_operator.planning.facts import model_name
from slipway_operator.planning.facts.recall import NO_FAULT
from slipway_operator.planning.facts.references import Missing
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.message import initializing, overdue, sentence

ROLLED_BACK = "RolledBack"


@condition_type(RECONCILING, rank=None, event=None, bad_when="Never")
def reconciling(facts: ConditionFacts) -> ConditionState | None:
    """True while what runs is on its way to what the spec describes; else nothing.

    A model that sleeps, or wakes for a request, is as its spec describes it.
    """
    course, at = facts.course, facts.at
    reason = None if stalled.decide(facts) else _under_way(course, at)
    return ConditionState(True, reason, sentence(course, at, facts.sizes)) if reason else None


@condition_type(STALLED, rank=None, event=None, bad_when="Never")
def stalled(facts: ConditionFacts) -> ConditionState | None:
    """True while what the spec describes will not run before a person acts; else nothing."""
    course, at = facts.course, facts.at
    rollout = course.rollout
    if at.missing and not at.missing.is_former:
        return ConditionState(True, at.missing.reason, _described(at.missing))
    if at.rolled_back:
        return ConditionState(True, ROLLED_BACK, _rolled_back(at))
    if rollout and rollout.abort and rollout.abort.reason not in NO_FAULT:
        return ConditionState(True, rollout.abort.reason, rollout.abort.message)
    if course.state is State.INITIALIZING and overdue(course, at):
        return ConditionState(True, "ProgressDeadlineExceeded", initializing(course, at, facts.sizes))
    if model_name.is_elsewhere(at):
        return ConditionState(True, model_name.NAME_CONFLICT, model_name.sentence(at).removeprefix("; "))
    return None


def _under_way(course: Course, at: Situation) -> str | None:
    """Why what runs is not yet what the spec describes; None where it is."""
    if rollout := course.rollout:
        return rollout.abort.reason if rollout.abort else str(rollout.state)
    if course.stable != at.wanted:
        return "Pending"
    waking = at.sleep is not None and at.sleep.state is SleepState.WAKING
    return "PodsNotReady" if not waking and at.ready(course.stable) < at.replicas else None


def _described(missing: Missing) -> str:
    return f"{missing.what}: {missing.remedy}"


def _rolled_back(at: Situation) -> str:
    source = "spec.rollout.rollbackTo" if at.spec.intents.rollback_to else "an alarm of spec.accuracy"
    return f"revision {at.wanted} is to run in place of {at.current}, which spec.model describes, because of {source}"


TYPES = (reconciling, stalled)
