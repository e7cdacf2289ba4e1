"""A weight whose possible harm, in extra bad responses, fits a budget.

The weight is chosen before each look at the counters. The most extra bad responses that it may cause until the next
look are added to those spent: so their expected number stays below the budget while the bounds hold.
"""

WEIGHTS = (1, 2, 5, 10, 25, 50)
LOOK_S = 10.0  # what one look covers: a reading, and the time until gateways apply its weight
OF_THE_REST = 6.0  # a look may spend one sixth of the budget that is left
AT_ONCE = 5.0  # extra bad responses that one look may cost, by the bound from live requests alone


def next_weight(u: float, u_live: float, spent: float, budget: float, rate: float, most: int = WEIGHTS[-1]) -> int:
    """The highest weight in percent, up to `most`, whose next look fits what is left; 0 where none does.

    Args:
        u: upper bound on extra bad responses for each request to canary.
        u_live: the same bound from live requests alone.
        spent: extra bad responses that former looks may have cost.
        budget: extra bad responses that a promotion may cost.
        rate: requests a second to both sides.
    """
    weights = sorted({most, *(weight for weight in WEIGHTS if weight < most)})
    fits = [weight for weight in weights if _fits(u, u_live, budget - spent, rate * LOOK_S * weight / 100)]
    return max(fits, default=0)


def least_weight(u: float, spent: float, budget: float, rate: float) -> int:
    """The weight in percent while `next_weight` finds none: 1, which may spend all that is left of the budget.

    Gateways cannot split finer than 1 percent. 0 where the budget is too small even for 1 percent. At more than 50
    requests a second, one look at 1 percent may cost more than AT_ONCE.
    """
    return WEIGHTS[0] if u * rate * LOOK_S * WEIGHTS[0] / 100 <= budget - spent else 0


def _fits(u: float, u_live: float, left: float, requests: float) -> bool:
    return u * requests <= left / OF_THE_REST and u_live * requests <= AT_ONCE
