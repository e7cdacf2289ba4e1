"""The condition about usage that servers of the ModelDeployment reported and no request can have caused."""

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.planning.facts.conditions import USAGE_IMPLAUSIBLE
from slipway_operator.planning.facts.situation import Situation

MORE_THAN_POSSIBLE = "MoreThanPossible"


def conditions(at: Situation) -> list[Condition]:
    """The condition, while a gateway had such a report in the last minutes; the largest one is shown."""
    found = [item.implausible_usage for item in at.observed.gateways if item.implausible_usage and not item.gone]
    if not found:
        return []
    largest = max(found, key=lambda item: (item.reported, item.possible))
    text = (
        f"a server reported {largest.reported} tokens for a request that can have caused {largest.possible}; the rest "
        "is not charged. Correct what the engine reports as usage"
    )
    return [Condition(USAGE_IMPLAUSIBLE, "True", MORE_THAN_POSSIBLE, text, at.now)]
