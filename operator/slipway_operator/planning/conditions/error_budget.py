"""The condition about the error budgets of spec.slo."""

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type
from slipway_operator.planning.facts import error_budget

SPENT, HELD = "BudgetSpent", "RolloutHeld"


def _spent(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event when the condition becomes True."""
    return Event("Warning", "ErrorBudgetSpent", now.message) if now and before is None else None


@condition_type("ErrorBudgetSpent", rank=65, event=_spent, bad_when="True")
def error_budget_spent(facts: ConditionFacts) -> ConditionState | None:
    """True while the budget of an objective is spent; else nothing."""
    spent = error_budget.spent(facts.at)
    if not spent:
        return None
    text = "; ".join(map(error_budget.account, spent))
    if not error_budget.holds(facts.course, facts.at):
        return ConditionState(True, SPENT, text)
    how = "spec.rollout.promoteFull goes on without its budget, spec.rollout.abort rejects the revision"
    return ConditionState(True, HELD, f"{text}; the rollout takes no step: {how}")


TYPES = (error_budget_spent,)
