"""Conditions about AnalysisRuns: whether one was lost, and whether they can be written."""

from slipway_operator.api.v1alpha1.status import AnalysisReference, Condition, Loss
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type

REFUSED = "RunRefused"
_WHY = {
    Loss.MISSING: "it was deleted",
    Loss.OLDER: "it is older than the status",
    Loss.NEWER: "it is newer than the status: an operator died between both writes",
    Loss.FOREIGN: "another object has its name",
    Loss.EDITED: "another client changed it",
    Loss.UNREADABLE: "its contents make no sense",
}


def _lost(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event for each message that the former condition lacks."""
    is_new = now is not None and (before is None or before.message != now.message)
    return Event("Warning", "AnalysisRunLost", now.message) if now and is_new else None


@condition_type("AnalysisRunLost", rank=None, event=_lost, bad_when="True")
def analysis_run_lost(facts: ConditionFacts) -> ConditionState | None:
    """True while an analysis goes on that started again, because its AnalysisRun did not count; else nothing."""
    rollout = facts.course.rollout
    if rollout is None or not rollout.in_flight:
        return None
    references: list[AnalysisReference | None] = [rollout.analysis, rollout.background]
    lost = [(it, it.lost) for it in references if it and it.lost and it.id.startswith(f"{rollout.attempt_token}/")]
    if not lost:
        return None
    text = "; ".join(f"the analysis {it.id} starts again, and weights hold: {_WHY[loss]}" for it, loss in lost)
    return ConditionState(True, lost[0][1], f"AnalysisRun: {text}")


def _refused(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event when the condition becomes False, or says something else."""
    is_new = now is not None and (before is None or before.message != now.message)
    return Event("Warning", "AnalysisRunRefused", now.message) if now and is_new else None


@condition_type("AnalysisRecorded", rank=55, event=_refused)
def analysis_recorded(facts: ConditionFacts) -> ConditionState | None:
    """False while an AnalysisRun cannot be written, so that the analysis waits; else nothing."""
    refusal = facts.at.observed.run_refusal
    return ConditionState(False, REFUSED, f"the analysis waits, and weights hold: {refusal}") if refusal else None


TYPES = (analysis_run_lost, analysis_recorded)
