"""A weight whose possible harm fits a budget.

Before each look the weight is chosen, and what the next seconds may cost at most is added to what was spent: so the
expected number of extra bad responses stays below the budget while the bounds hold.
"""

WEIGHTS = (1, 2, 5, 10, 25, 50)
LOOK_S = 10.0  # what one look covers: a reading, and the time until gateways follow
OF_THE_REST = 6.0  # a look may spend this part of what is left
AT_ONCE = 5.0  # bad responses that one look may cost, by live requests alone


def next_weight(u: float, u_live: float, spent: float, budget: float, rate: float, most: int = WEIGHTS[-1]) -> int:
    """The highest weight in percent, up to `most`, whose next look fits what is left; 0 where none does.

    Args:
        u: at most so many extra bad responses for each request of canary.
        u_live: the same by live requests alone.
        spent: what former looks may have cost.
        budget: extra bad responses that a promotion may cost.
        rate: requests a second to both sides.
    """
    weights = sorted({most, *(weight for weight in WEIGHTS if weight < most)})
    fits = [weight for weight in weights if _fits(u, u_live, budget - spent, rate * LOOK_S * weight / 100)]
    return max(fits, default=0)


def least_weight(u: float, spent: float, budget: float, rate: float) -> int:
    """The weight while none fits: gateways cannot split finer than 1 percent, so that one may take all that is left.

    0 where not even that is enough. At more than 50 requests a second one look at 1 percent is more than AT_ONCE.
    """
    return WEIGHTS[0] if u * rate * LOOK_S * WEIGHTS[0] / 100 <= budget - spent else 0


def _fits(u: float, u_live: float, left: float, requests: float) -> bool:
    return u * requests <= left / OF_THE_REST and u_live * requests <= AT_ONCE
