"""Forecasts: after how many requests a verdict is expected at the present rates.

Wald's identity: a sum that has to reach L, and grows by the divergence D on average with each event, needs L/D events.
A forecast is accurate to a few percent when L is large against one step. It informs people and decides nothing.
"""

import math
from dataclasses import dataclass

from slipway_operator.api.v1alpha1.analysis_run import Epoch
from slipway_operator.judging.evidence import FACTORS
from slipway_operator.judging.margins.extra import FROM_THE_START as MARGIN_FROM_THE_START
from slipway_operator.judging.margins.extra import LIVE_BAD, ON_THE_BEST, live_stakes
from slipway_operator.model.analysis.spec import MetricSpec

MIXTURE_COST = math.log(len(FACTORS))  # what the evidence lacks, in nats, as the size of a regression is unknown
FROM_THE_START = 0.5  # share of the stake on a regression from the first epoch on
# A forecast of more than a hundred million requests is not useful.
MOST_REQUESTS = 1e8


@dataclass(frozen=True, slots=True)
class Rates:
    """What a forecast extrapolates: both rates of bad events and the weight, each strictly between 0 and 1."""

    canary: float
    stable: float
    weight: float

    @property
    def ratio(self) -> float:
        return self.canary / self.stable

    @property
    def events_per_request(self) -> float:
        """Bad events of both sides for each request to either."""
        return self.weight * self.canary + (1 - self.weight) * self.stable


@dataclass(frozen=True, slots=True)
class End:
    """The expected end of a metric's analysis.

    `samples`: canary's requests until then in total; None if no end is expected. `fails`: the end is a rejection.
    """

    samples: int | None
    fails: bool


def canary_part(weight: float, ratio: float) -> float:
    """Probability theta that a bad event is canary's, from the weight and the ratio of the two rates."""
    return weight * ratio / (weight * ratio + 1 - weight)


def divergence(p: float, q: float) -> float:
    """Kullback-Leibler divergence of Bernoulli(p) from Bernoulli(q), in nats."""
    terms = ((p, q), (1 - p, 1 - q))
    return sum(a * math.log(a / b) for a, b in terms if a > 0)


def requests_until_fail(rates: Rates, tolerate_ratio: float, share: float, false_rollback_rate: float) -> float:
    """Requests, to both sides together, after which a canary is expected to be rejected; infinite if it never is."""
    if rates.ratio <= tolerate_ratio:
        return math.inf
    theta, null = canary_part(rates.weight, rates.ratio), canary_part(rates.weight, tolerate_ratio)
    needed = math.log(1 / false_rollback_rate) + math.log(1 / share) + MIXTURE_COST
    return needed / divergence(theta, null) / rates.events_per_request


def requests_until_pass(rates: Rates, max_ratio: float, ok_below: float | None, false_promote_rate: float) -> float:
    """Requests, to both sides together, after which a metric is expected to pass; infinite if it never does."""
    needed = math.log(2 / false_promote_rate)
    by_ratio = by_rate = math.inf
    if rates.ratio < max_ratio:
        theta, margin = canary_part(rates.weight, rates.ratio), canary_part(rates.weight, max_ratio)
        by_ratio = (needed + MIXTURE_COST) / divergence(theta, margin) / rates.events_per_request
    if ok_below is not None and rates.canary < ok_below:
        by_rate = needed / divergence(rates.canary, ok_below) / rates.weight
    return min(by_ratio, by_rate)


def requests_until_below(rates: Rates, margin: float, false_promote_rate: float) -> float:
    """Requests, to both sides together, until fewer extra bad events than `margin` are expected to be proved."""
    weight = rates.weight
    bad_canary, bad_stable = weight * rates.canary, (1 - weight) * rates.stable
    growth = max(
        bad_canary * math.log1p(size * weight * margin - size)
        + bad_stable * math.log1p(size * weight * (margin + 1 / (1 - weight)))
        + (1 - bad_canary - bad_stable) * math.log1p(size * weight * margin)
        for size in live_stakes(LIVE_BAD, margin, weight).sizes
    )
    needed = -math.log(false_promote_rate * ON_THE_BEST * MARGIN_FROM_THE_START)
    return needed / growth if growth > 0 else math.inf


def observed(epochs: tuple[Epoch, ...]) -> Rates | None:
    """Rates so far, at the present weight, with half an event added to each side; None if a side has no requests."""
    canary_units, stable_units = (
        sum(epoch.canary_units for epoch in epochs),
        sum(epoch.stable_units for epoch in epochs),
    )
    if not canary_units or not stable_units:
        return None
    canary_bad, stable_bad = sum(epoch.canary_bad for epoch in epochs), sum(epoch.stable_bad for epoch in epochs)
    return Rates(
        (canary_bad + 0.5) / (canary_units + 1), (stable_bad + 0.5) / (stable_units + 1), epochs[-1].weight / 100
    )


def expected(
    spec: MetricSpec,
    epochs: tuple[Epoch, ...],
    false_rollback_rate: float,
    false_promote_rate: float,
    slowdown: tuple[Epoch, ...] = (),
) -> End:
    """The expected end of this metric's analysis, counted from the first request.

    `slowdown`: for a metric with max_slowdown, its counts of latencies above stable's median and above canary's limit.
    """
    rates = observed(epochs)
    if rates is None:
        return End(None, fails=False)
    stake = (spec.share or 1.0) * FROM_THE_START
    to_fail = requests_until_fail(rates, spec.tolerate_ratio, stake, false_rollback_rate)
    if spec.max_extra is not None:
        to_pass = requests_until_below(rates, spec.max_extra / 1000, false_promote_rate)
    elif spec.max_slowdown is not None:
        medians = observed(slowdown)
        to_pass = requests_until_pass(medians, 1.0, None, false_promote_rate) if medians else math.inf
    else:
        to_pass = requests_until_pass(rates, spec.max_ratio, spec.ok_below, false_promote_rate)
    total = rates.weight * min(to_fail, to_pass)
    return End(math.ceil(total) if total < MOST_REQUESTS else None, fails=to_fail < to_pass)
