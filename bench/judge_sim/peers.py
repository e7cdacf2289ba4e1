"""The judges that others use, on the same traffic, each looking once a minute.

They get what favours them: thresholds that know stable's true rates, a warm-up that they do not all have, the mean
latency of each minute in place of a threshold where their method takes one, known variances, a correction for the
number of metrics, and no extra interval between a failed check and the rollback. None sees the shadow comparison.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from bench.judge_sim import kayenta
from bench.judge_sim.traffic import CANARY, DRIFT, LATENCIES, METRICS, MINUTE_S, STABLE, Traffic
from slipway_operator.judging.latency import log_msprt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

SEEN = tuple(index for index in range(len(METRICS)) if index != DRIFT)
# Their built-in checks: success rate and duration of requests.
CHECKED = tuple(METRICS.index(name) for name in ("errors", "ttft"))
OBJECTIVE = 0.01  # bad requests that a service level objective of 99 % allows
SLACK = 2.0  # times stable's own rate, where that is more
ALPHA = 0.01
KAYENTA_EVERY_MIN = 5
OME_INITIAL_DELAY_MIN = 2
# Scale of the differences that a mixture expects: of log latency, and of rates.
LATENCY_SPREAD, RATE_SPREAD = 0.1, 0.01
TOLERATED = (0, 1, 2, 3, 5, 10)
WINDOWS_MIN = (1, 2, 5)

Judge = Callable[[Traffic], Floats]


def flagger(traffic: Traffic, threshold: int) -> Floats:
    """Seconds until rollback: a check fails without data too, and failed checks add up for good (its scheduler.go)."""
    bad, seen = _checks(traffic)
    return _when(np.cumsum(bad | ~seen, axis=-1) >= threshold, traffic)


def argo(traffic: Traffic, failure_limit: int) -> Floats:
    """Seconds until rollback: more failed measurements than failureLimit; one without data does not count as failed."""
    bad, seen = _checks(traffic)
    return _when(np.cumsum(bad & seen, axis=-1) > failure_limit, traffic)


def ome(traffic: Traffic, failure_limit: int) -> Floats:
    """Seconds until rollback by OME: the policy of the example in its canary-analysis.md.

    Each minute one sample of the rates of the last two; none in the first two minutes of a step (initialDelay); the
    step's `failure_limit`-th failing sample rolls back, and each step counts from zero. A sample without data is
    inconclusive, and by default (Hold) that rolls nothing back.
    """
    failing = np.zeros(_shape(traffic), dtype=bool)
    for index in CHECKED:
        n, k = (_last_minutes(counts[CANARY, index], 2) for counts in (traffic.requests, traffic.bad_requests))
        rate = traffic.plan.bad[STABLE, index, :, 0][:, None]
        failing |= k > n * np.maximum(OBJECTIVE, SLACK * rate)
    over, begin = np.zeros_like(failing), 0
    for _, minutes in traffic.plan.steps:
        counted = slice(begin + OME_INITIAL_DELAY_MIN, begin + minutes)
        over[:, counted] = np.cumsum(failing[:, counted], axis=-1) >= failure_limit
        begin += minutes
    return _when(over, traffic)


def _last_minutes(counts: npt.NDArray[np.int64], minutes: int) -> npt.NDArray[np.int64]:
    """Sums over each minute and those before it, (runs, minutes)."""
    total: npt.NDArray[np.int64] = np.cumsum(counts, axis=-1)
    total[:, minutes:] -= total[:, :-minutes].copy()
    return total


def kayenta_once(traffic: Traffic, strengths: Floats) -> Floats:
    """Judged when the time is over, as Kayenta's statistics assume; all metrics critical."""
    return np.where(strengths[:, -1] > kayenta.Z_98, float(traffic.minutes * MINUTE_S), np.inf)


def kayenta_often(traffic: Traffic, strengths: Floats, z: float = kayenta.Z_98) -> Floats:
    """Judged every five minutes on all points so far, as people configure it."""
    looks = _often(traffic)
    over = strengths[:, : len(looks)] > z
    return np.where(over.any(axis=-1), np.array(looks)[over.argmax(axis=-1)] * float(MINUTE_S), np.inf)


def kayenta_strengths(traffic: Traffic) -> Floats:
    """Strength of the worst metric at each look, every five minutes and at the end; (runs, looks)."""
    begin = traffic.plan.warmup_s // MINUTE_S
    looks = sorted({*_often(traffic), traffic.minutes})
    worst = np.full((traffic.plan.runs, len(looks)), -np.inf)
    for index in SEEN:
        canary, stable = _points(traffic, index)
        for column, minute in enumerate(looks):
            found = kayenta.strength(canary[:, begin:minute], stable[:, begin:minute])
            worst[:, column] = np.maximum(worst[:, column], found)
    return worst


def _often(traffic: Traffic) -> list[int]:
    begin = traffic.plan.warmup_s // MINUTE_S
    return list(range(begin + KAYENTA_EVERY_MIN, traffic.minutes + 1, KAYENTA_EVERY_MIN))


def strongest(traffic: Traffic, strengths: Floats) -> Floats:
    """Of all looks every five minutes, (runs,)."""
    found: Floats = strengths[:, : len(_often(traffic))].max(axis=-1)
    return found


def tuned_kayenta_z(strongest: Floats, false_rollback_rate: float) -> float:
    """The lowest confidence, as a normal quantile, with which looking every five minutes keeps to this rate.

    Args:
        strongest: of healthy canaries, (runs,).
        false_rollback_rate: of these, the part that may be rejected.
    """
    return float(np.quantile(strongest, 1 - false_rollback_rate, method="higher"))


def z_test(traffic: Traffic) -> Floats:
    """A one-sided z test of the rates, or of the mean log latencies, looked at each minute."""
    critical = _normal_quantile(1 - ALPHA / len(SEEN))
    crossed = np.zeros(_shape(traffic), dtype=bool)
    for index in SEEN:
        difference, variance = _differences(traffic, index)
        crossed |= difference > critical * np.sqrt(variance)
    return _when(crossed, traffic)


def msprt(traffic: Traffic) -> Floats:
    """A mixture sequential probability ratio test of the same differences (Johari et al.), looked at each minute."""
    threshold = math.log(len(SEEN) / ALPHA)
    crossed = np.zeros(_shape(traffic), dtype=bool)
    for index in SEEN:
        difference, variance = _differences(traffic, index)
        spread = LATENCY_SPREAD if METRICS[index] in LATENCIES else RATE_SPREAD
        with np.errstate(divide="ignore", invalid="ignore"):
            crossed |= (difference > 0) & (log_msprt(difference, variance, spread) >= threshold) & np.isfinite(variance)
    return _when(crossed, traffic)


ONCE, OFTEN = "Kayenta, judged once", "Kayenta, every 5 min"
OTHERS: dict[str, Judge] = {
    "Flagger, threshold 5": partial(flagger, threshold=5),
    "Flagger, threshold 10": partial(flagger, threshold=10),
    "Argo, failureLimit 0": partial(argo, failure_limit=0),
    "Argo, failureLimit 3": partial(argo, failure_limit=3),
    "OME, failureLimit 2": partial(ome, failure_limit=2),
    "z test, every minute": z_test,
    "mSPRT, every minute": msprt,
}
JUDGES = (ONCE, OFTEN, *OTHERS)


def judged(traffic: Traffic, strengths: Floats) -> dict[str, Floats]:
    """Seconds until rollback of each of JUDGES, (runs,); `strengths` as of `kayenta_strengths`."""
    both = {ONCE: kayenta_once(traffic, strengths), OFTEN: kayenta_often(traffic, strengths)}
    return both | {name: judge(traffic) for name, judge in OTHERS.items()}


# -- threshold rules that are tuned to a false-rollback rate


@dataclass(frozen=True)
class Rule:
    """Rolls back at more than `tolerated` windows of `window_min` whose worst metric deviates by `limit` or more."""

    window_min: int
    tolerated: int
    limit: float

    @property
    def name(self) -> str:
        return f"{self.tolerated} failures of {self.window_min} min tolerated"


def tuned_rules(healthy: Mapping[int, Floats], false_rollback_rate: float) -> list[Rule]:
    """The family of threshold rules, each with the lowest limits that keep to this rate on healthy canaries.

    Args:
        healthy: `deviations` of healthy canaries of the very configuration that the rules will be used in.
        false_rollback_rate: of these, the part that may be rejected.
    """
    rules = []
    for window, deviations in healthy.items():
        worst = np.sort(deviations, axis=-1)[:, ::-1]
        for tolerated in TOLERATED:
            if tolerated < worst.shape[-1]:
                limit = float(np.quantile(worst[:, tolerated], 1 - false_rollback_rate, method="higher"))
                rules.append(Rule(window, tolerated, np.nextafter(limit, np.inf)))
    return rules


def by_rule(rule: Rule, deviations: Mapping[int, Floats]) -> Floats:
    """Seconds until a rule rolls back, (runs,)."""
    failed = np.cumsum(deviations[rule.window_min] >= rule.limit, axis=-1) > rule.tolerated
    return np.where(failed.any(axis=-1), (failed.argmax(axis=-1) + 1.0) * rule.window_min * MINUTE_S, np.inf)


def deviations(traffic: Traffic, rates: Floats) -> dict[int, Floats]:
    """How far the worst metric of canary exceeds its known rate, by minutes of a window; each (runs, windows).

    As a signed root of the deviance: one limit on this scale is a limit for each metric's rate with about the same
    chance of being exceeded, so that no metric of a rule is tuned better than another.

    Args:
        traffic: canaries.
        rates: stable's true rates of bad requests, (metrics,).
    """
    return {window: _deviations(traffic, rates, window) for window in WINDOWS_MIN}


def _deviations(traffic: Traffic, rates: Floats, window_min: int) -> Floats:
    windows = traffic.minutes // window_min
    shape = (traffic.plan.runs, windows, window_min)
    worst = np.full(shape[:2], -np.inf)
    for index in SEEN:
        n, k = (
            item[CANARY, index][:, : windows * window_min].reshape(shape).sum(axis=-1)
            for item in (traffic.requests, traffic.bad_requests)
        )
        expected = np.maximum(n * rates[index], 1e-12)
        with np.errstate(divide="ignore", invalid="ignore"):
            deviance = 2 * (np.where(k > 0, k * np.log(k / expected), 0.0) - (k - expected))
        worst = np.maximum(worst, np.sign(k - expected) * np.sqrt(np.maximum(deviance, 0.0)))
    return worst


# -- what they share


def _shape(traffic: Traffic) -> tuple[int, int]:
    return traffic.plan.runs, traffic.minutes


def _when(crossed: Flags, traffic: Traffic) -> Floats:
    """Seconds at the first minute, after the warm-up, at which a run crossed; infinite if none."""
    after = crossed & (np.arange(traffic.minutes) >= traffic.plan.warmup_s // MINUTE_S)
    return np.where(after.any(axis=-1), (after.argmax(axis=-1) + 1.0) * MINUTE_S, np.inf)


def _checks(traffic: Traffic) -> tuple[Flags, Flags]:
    """Whether canary misses an objective in a minute, and whether it had any requests; after the warm-up only."""
    bad = np.zeros(_shape(traffic), dtype=bool)
    for index in CHECKED:
        n, k = traffic.requests[CANARY, index], traffic.bad_requests[CANARY, index]
        rate = traffic.plan.bad[STABLE, index, :, 0][:, None]
        bad |= k > n * np.maximum(OBJECTIVE, SLACK * rate)
    counted = np.arange(traffic.minutes) >= traffic.plan.warmup_s // MINUTE_S
    return bad & counted, (traffic.requests[CANARY, 0] > 0) | ~counted


def _points(traffic: Traffic, index: int) -> tuple[Floats, Floats]:
    """One point a minute of canary and of stable: the mean latency, or the rate of bad requests; 0 without requests."""
    sides = []
    for side in (CANARY, STABLE):
        n = np.maximum(traffic.requests[side, index], 1)
        if METRICS[index] in LATENCIES:
            sums = traffic.log_latency[side, LATENCIES.index(METRICS[index])]
            sides.append(np.where(traffic.requests[side, index] > 0, np.exp(sums / n), 0.0))
        else:
            sides.append(traffic.bad_requests[side, index] / n)
    return sides[CANARY], sides[STABLE]


def _differences(traffic: Traffic, index: int) -> tuple[Floats, Floats]:
    """Canary minus stable over all minutes so far, and the variance of that; (runs, minutes). Infinite without data."""
    begin = traffic.plan.warmup_s // MINUTE_S

    def so_far(counts: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> Floats:
        found = counts.astype(np.float64)
        found[:, :begin] = 0
        return np.cumsum(found, axis=-1)

    n = [so_far(traffic.requests[side, index]) for side in (CANARY, STABLE)]
    seen = (n[0] > 0) & (n[1] > 0)
    safe = [np.maximum(item, 1.0) for item in n]
    if METRICS[index] in LATENCIES:
        row = LATENCIES.index(METRICS[index])
        sums = [so_far(traffic.log_latency[side, row]) for side in (CANARY, STABLE)]
        each = np.broadcast_to(traffic.plan.spread[row][:, None] ** 2, seen.shape)
    else:
        sums = [so_far(traffic.bad_requests[side, index]) for side in (CANARY, STABLE)]
        pooled = (sums[0] + sums[1]) / np.maximum(n[0] + n[1], 1.0)
        each = pooled * (1 - pooled)
        seen &= each > 0
    difference = sums[0] / safe[0] - sums[1] / safe[1]
    return difference, np.where(seen, each * (1 / safe[0] + 1 / safe[1]), np.inf)


def _normal_quantile(p: float) -> float:
    low, high = -10.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * math.erfc(-middle / math.sqrt(2)) < p else (low, middle)
    return (low + high) / 2
