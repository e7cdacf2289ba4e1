"""What others do with the same requests, as each documents it; they see clients' responses alone.

- A timer: Argo Rollouts' steps of `setWeight` and `pause: {duration: 10m}` without an analysis, at the weights of this
  simulation.
- Argo Rollouts with a background analysis: the same steps, `successCondition: result[0] >= 0.95`, `failureLimit: 3`
  (docs/features/analysis.md), measured each minute; there `interval` is 5m, which finds nothing earlier.
- Flagger: interval 1m, threshold 5, maxWeight 50, stepWeight 10, request-success-rate at least 99 (its tutorial of
  progressive delivery). A check without requests fails, too. It promotes after the check at maxWeight.
- Kayenta: at least 50 points for each metric, against a baseline of canary's size (Spinnaker's best practices); one
  point a minute, judged at the end.
- mSPRT: a mixture sequential probability ratio test at 1 %, each minute, during the timer's steps.

None waits another interval between a failed check and the rollback, and none loses time to start pods.
"""

import math
from collections.abc import Callable

import numpy as np

from bench.judge_sim import kayenta
from bench.judge_sim.peers import ALPHA, RATE_SPREAD
from bench.judge_sim.releases.rows import BAD, LOOK_S, MINUTE_S, Flags, Floats, Ints, Rng, Row, bad_of, generator
from bench.judge_sim.releases.slipway import Released
from slipway_operator.judging.latency import log_msprt

STEPS = np.repeat([0.05, 0.25, 0.5], 10)  # weight of each minute
ARGO_SUCCESS, ARGO_FAILURES = 0.95, 3
FLAGGER_SUCCESS, FLAGGER_FAILURES, FLAGGER_STEP, FLAGGER_MOST = 0.99, 5, 10, 50
KAYENTA_POINTS, KAYENTA_WEIGHT = 50, 0.1

# Requests and bad ones of canary and of the other side, each (runs, minutes): in which of the minutes it is rejected.
Check = Callable[[Ints, Ints, Ints, Ints], Flags]


def released(name: str, row: Row, rate: float, first: int, seed: int, arrivals: Ints) -> Released:
    """Releases by one of OTHERS; `arrivals`: requests before each look, (runs, looks)."""
    per_minute = MINUTE_S // LOOK_S
    whole = arrivals[:, : arrivals.shape[1] // per_minute * per_minute]
    minutes = whole.reshape(len(arrivals), -1, per_minute).sum(axis=-1)
    return OTHERS[name](generator(f"{name} {row.name} {rate:g}", first, seed), row.clients, minutes)


def _by_steps(
    rng: Rng, extra: float, minutes: Ints, steps: Floats, check: Check, *, baseline: bool = False
) -> Released:
    """Weights by the clock. `baseline`: the other side is of canary's weight, not all the rest."""
    arrivals = minutes[:, : steps.size]
    canary = rng.binomial(arrivals, steps)
    rest = arrivals - canary
    others = rng.binomial(rest, steps / (1 - steps)) if baseline else rest
    bad, more = bad_of(rng, canary, extra)
    failed = check(canary, bad, others, rng.binomial(others, BAD))
    rejected = np.asarray(failed.any(axis=-1))
    last = np.where(rejected, failed.argmax(axis=-1), steps.size - 1)
    harm = np.cumsum(more, axis=-1)[np.arange(len(last)), last]
    return _ended(rejected, (last + 1.0) * MINUTE_S, harm)


def _ended(rejected: Flags, seconds: Floats, harm: Ints) -> Released:
    promoted, nothing = np.where(rejected, np.inf, seconds), np.zeros(len(seconds))
    rejected_s = np.where(rejected, seconds, np.inf)
    return Released(promoted, promoted.copy(), rejected_s, harm.astype(np.float64), nothing, nothing.copy())


def _never(nc: Ints, _kc: Ints, _ns: Ints, _ks: Ints) -> Flags:
    return np.zeros(nc.shape, dtype=bool)


def _argo(nc: Ints, kc: Ints, _ns: Ints, _ks: Ints) -> Flags:
    """More failed measurements than failureLimit; one without data does not count as failed."""
    return np.asarray(np.cumsum(kc > (1 - ARGO_SUCCESS) * nc, axis=-1) > ARGO_FAILURES)


def _kayenta(nc: Ints, kc: Ints, ns: Ints, ks: Ints) -> Flags:
    canary, stable = kc / np.maximum(nc, 1), ks / np.maximum(ns, 1)
    failed = np.zeros(nc.shape, dtype=bool)
    failed[:, -1] = kayenta.high(canary, stable)
    return failed


def _msprt(nc: Ints, kc: Ints, ns: Ints, ks: Ints) -> Flags:
    """Of the difference of the rates over all minutes so far, with the variance of both together."""
    sums = [np.cumsum(item, axis=-1).astype(np.float64) for item in (nc, kc, ns, ks)]
    n, k, m, j = np.maximum(sums[0], 1), sums[1], np.maximum(sums[2], 1), sums[3]
    pooled = (k + j) / (n + m)
    variance = pooled * (1 - pooled) * (1 / n + 1 / m)
    difference = k / n - j / m
    known = (variance > 0) & (difference > 0)
    found = log_msprt(difference, np.where(known, variance, 1.0), RATE_SPREAD)
    return np.asarray(known & (found >= math.log(1 / ALPHA)))


def _flagger(rng: Rng, extra: float, minutes: Ints) -> Released:
    """Each minute a check; the weight grows after good ones, and failed ones add up for good."""
    runs = len(minutes)
    weight, failures = np.full(runs, FLAGGER_STEP), np.zeros(runs, dtype=np.int64)
    harm, ended = np.zeros(runs, dtype=np.int64), np.zeros(runs)
    for minute in range(FLAGGER_MOST // FLAGGER_STEP + FLAGGER_FAILURES):
        going = np.flatnonzero(ended == 0)
        canary = rng.binomial(minutes[going, minute], weight[going] / 100)
        bad, more = bad_of(rng, canary, extra)
        harm[going] += more
        good = (canary > 0) & (bad <= (1 - FLAGGER_SUCCESS) * canary)
        failures[going] += ~good
        done = (good & (weight[going] == FLAGGER_MOST)) | (failures[going] >= FLAGGER_FAILURES)
        ended[going[done]] = (minute + 1) * MINUTE_S
        weight[going[good]] = np.minimum(weight[going[good]] + FLAGGER_STEP, FLAGGER_MOST)
    return _ended(failures >= FLAGGER_FAILURES, ended, harm)


TIMER, ARGO, FLAGGER = "timer, 5-25-50", "Argo Rollouts, analysis", "Flagger"
KAYENTA, MSPRT = "Kayenta, 50 points", "mSPRT, 5-25-50"
OTHERS: dict[str, Callable[[Rng, float, Ints], Released]] = {
    TIMER: lambda rng, extra, minutes: _by_steps(rng, extra, minutes, STEPS, _never),
    ARGO: lambda rng, extra, minutes: _by_steps(rng, extra, minutes, STEPS, _argo),
    FLAGGER: _flagger,
    KAYENTA: lambda rng, extra, minutes: _by_steps(
        rng, extra, minutes, np.full(KAYENTA_POINTS, KAYENTA_WEIGHT), _kayenta, baseline=True
    ),
    MSPRT: lambda rng, extra, minutes: _by_steps(rng, extra, minutes, STEPS, _msprt),
}
