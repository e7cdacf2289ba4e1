"""The condition about what spec.accuracy watches."""

from slipway_operator.api.v1alpha1.accuracy_status import FEEDBACK
from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type
from slipway_operator.planning.facts import accuracy

LOW, SHIFTED, ROLLED_BACK = "AccuracyLow", "PredictionsShifted", "RolledBack"


def _raised(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event when an alarm is raised, and one when it starts a rollback."""
    if now is None or (before is not None and before.reason == now.reason):
        return None
    return Event("Warning", "AccuracyAlarm", now.message)


@condition_type("AccuracyAlarm", rank=67, event=_raised, bad_when="True")
def accuracy_alarm(facts: ConditionFacts) -> ConditionState | None:
    """True while the revision that serves has an alarm, and while a former one runs because of an alarm."""
    course, at = facts.course, facts.at
    status, rollback = at.status.accuracy, accuracy.rollback_of(at)
    if status is None or at.spec.accuracy is None:
        return None
    watched = status.of(rollback[0] if rollback else course.stable)
    raised = accuracy.alarms(watched)
    text = "; ".join(one.finding for one in raised)
    if rollback:
        source, target = rollback
        how = (
            f"revision {target} runs in its place until the spec describes another one, or spec.rollout.rollbackTo is "
            f"{source}/{source}"
        )
        return ConditionState(True, ROLLED_BACK, f"revision {source}: {text}; {how}")
    if not raised or watched is None:
        return None
    reason = LOW if any(one.signal == FEEDBACK for one in raised) else SHIFTED
    why_not = accuracy.hindrance(course, at, status.revisions) if at.spec.accuracy.rolls_back else ""
    return ConditionState(
        True, reason, f"revision {watched.revision}: {text}{f'; no rollback: {why_not}' if why_not else ''}"
    )


TYPES = (accuracy_alarm,)
