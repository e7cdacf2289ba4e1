"""The condition about gateways whose compiled lane and whose Python counted a request differently."""

from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type

DIFFERENT = "CountedDifferently"


@condition_type("LanesDiffer", rank=150, event=None, bad_when="True")
def lanes_differ(facts: ConditionFacts) -> ConditionState | None:
    """While a gateway runs that had such a difference in requests for this model; it serves by Python alone since."""
    gateways = [one for one in facts.at.observed.gateways if one.recounts_differ and not one.gone]
    if not gateways:
        return None
    kinds = ", ".join(sorted({kind for one in gateways for kind in one.recounts_differ}))
    text = (
        f"gateway {gateways[0].name} counted requests in its compiled lane otherwise than in Python ({kinds}), and "
        "serves all by Python since. Report it, and start that gateway again with --plane off"
    )
    return ConditionState(True, DIFFERENT, text)


TYPES = (lanes_differ,)
