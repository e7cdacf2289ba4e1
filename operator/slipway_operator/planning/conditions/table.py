"""All types of conditions, in the order of the status, and what follows from them."""

from collections.abc import Iterable, Iterator

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions import (
    accuracy,
    adapters,
    analyses,
    autoscaling,
    deployment,
    engine_metrics,
    error_budget,
    fallbacks,
    kstatus,
    lanes,
    ownership,
    references,
    registry,
    scaling_objective,
    tenants,
    unknown_fields,
)
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionType
from slipway_operator.planning.conditions.transitions import carry_over

TABLE: tuple[ConditionType, ...] = (
    *deployment.TYPES,
    *autoscaling.TYPES,
    *scaling_objective.TYPES,
    *engine_metrics.TYPES,
    *references.TYPES,
    *analyses.TYPES,
    *tenants.TYPES,
    *lanes.TYPES,
    *error_budget.TYPES,
    *adapters.TYPES,
    *accuracy.TYPES,
    *fallbacks.TYPES,
    *registry.TYPES,
    *unknown_fields.TYPES,
    *ownership.TYPES,
    *kstatus.TYPES,
)
TYPES = {kind.name: kind for kind in TABLE}
WITHOUT_SPEC = tuple(kind for kind in TABLE if kind.without_spec)


def conditions(facts: ConditionFacts, kinds: Iterable[ConditionType] = TABLE) -> tuple[Condition, ...]:
    """The conditions of these types as they are now."""
    before = facts.at.status.conditions
    former = {item.type: item for item in before}
    fresh = (kind.condition(facts, former.get(kind.name)) for kind in kinds)
    return carry_over((item for item in fresh if item), before)


def events(before: Iterable[Condition], now: Iterable[Condition]) -> Iterator[Event]:
    """Events about conditions that changed, began or ended."""
    former, present = {item.type: item for item in before}, {item.type: item for item in now}
    for kind in TABLE:
        if kind.event and (event := kind.event(former.get(kind.name), present.get(kind.name))):
            yield event


def is_problem(shown: Condition) -> bool:
    """Whether a condition reports a problem; another version of the operator may have written it."""
    return TYPES[shown.type].is_problem(shown) if shown.type in TYPES else shown.status != "True"


def reason(shown: Iterable[Condition]) -> str | None:
    """The reason of the most specific condition with a problem; None without one."""
    ranked = {kind.rank: item for item in shown if (kind := TYPES[item.type]).rank is not None and _tells(kind, item)}
    return ranked[min(ranked)].reason if ranked else None


def _tells(kind: ConditionType, shown: Condition) -> bool:
    return kind.is_problem(shown) and shown.reason not in kind.starting
