"""Simulated traffic: counts of requests and bad ones, by second and by minute.

Sessions start as a Poisson process, have a geometric number of requests and are assigned as wholes. With probability
ICC all requests of a session share one fate, otherwise each has its own: two requests of a session correlate by ICC.
What a session's requests add up to is drawn from its exact distribution: nothing is simulated request by request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipway_operator.judging.epochs import clock_starts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BIN_S, MINUTE_S = 10, 60
CANARY, STABLE = 0, 1
METRICS = ("errors", "ttft", "itl", "empty", "truncated", "stuck", "malformed", "drift")
LATENCIES = ("ttft", "itl")  # with a time as well as a threshold
DRIFT = METRICS.index("drift")


@dataclass(frozen=True)
class Plan:
    """What a batch of runs goes through. Bins of BIN_S seconds; side 0 is canary, 1 is stable."""

    steps: tuple[tuple[int, int], ...]  # weight in percent, minutes
    load: Floats  # requests per second as assigned, (2, runs, bins)
    bad: Floats  # probability that a request is bad, (2, metrics, runs, bins)
    shift: Floats  # of the mean log latency, (2, latencies, runs, bins)
    spread: Floats  # standard deviation of log latency, (latencies, runs)
    icc: Floats  # (runs,)
    session: float = 1.0  # mean requests; 1: each request is assigned by itself
    mirrored: float = 0.2  # share of prompts that the drift comparison sees
    warmup_s: int = 0

    @property
    def runs(self) -> int:
        return int(self.load.shape[1])

    @property
    def bins(self) -> int:
        return int(self.load.shape[2])


@dataclass(frozen=True)
class Traffic:
    """What was counted. Units are sessions, or requests where each is assigned by itself."""

    plan: Plan
    bad_units: Ints  # (2, metrics, runs, seconds)
    units: Ints  # (2, runs, seconds)
    requests: Ints  # (2, metrics, runs, minutes)
    bad_requests: Ints  # (2, metrics, runs, minutes)
    log_latency: Floats  # sums, (2, latencies, runs, minutes)
    epochs: tuple[tuple[int, int, int], ...] = ()  # weight in percent, seconds from and to

    @property
    def weights(self) -> Floats:
        return np.array([weight / 100 for weight, _, _ in self.epochs])

    @property
    def minutes(self) -> int:
        return int(self.requests.shape[-1])


def draw(rng: np.random.Generator, plan: Plan) -> Traffic:
    """One batch of runs."""
    seconds, minutes = plan.bins * BIN_S, plan.bins * BIN_S // MINUTE_S
    shape = (2, len(METRICS), plan.runs)
    bad_units = np.zeros((*shape, seconds), dtype=np.int32)
    units = np.zeros((2, plan.runs, seconds), dtype=np.int32)
    requests = np.zeros((*shape, minutes), dtype=np.int64)
    bad_requests = np.zeros((*shape, minutes), dtype=np.int64)
    log_latency = np.zeros((2, len(LATENCIES), plan.runs, minutes))
    for side in (CANARY, STABLE):
        starts = rng.poisson(plan.load[side] * BIN_S / plan.session)
        for index, metric in enumerate(METRICS):
            if index == DRIFT:
                continue
            bad = plan.bad[side, index]
            alike, own, alike_bad, own_bad = _sessions(rng, starts, bad, plan)
            bad_units[side, index] = scatter(rng, alike_bad + own_bad)
            counts = [by_minute(item) for item in (alike, own, alike_bad, own_bad)]
            requests[side, index], bad_requests[side, index] = _requests(rng, counts, mean_by_minute(bad), plan.session)
            if metric in LATENCIES:
                row = LATENCIES.index(metric)
                n = requests[side, index]
                noise = rng.standard_normal(n.shape) * np.sqrt(n) * plan.spread[row][:, None]
                log_latency[side, row] = n * mean_by_minute(plan.shift[side, row]) + noise
            if index == 0:
                units[side] = bad_units[side, 0] + scatter(rng, starts - alike_bad - own_bad)
    _mirror(rng, plan, bad_units, requests, bad_requests)
    return Traffic(plan, bad_units, units, requests, bad_requests, log_latency, epochs_of(plan.steps))


def epochs_of(steps: Sequence[tuple[int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Weight, begin and end in seconds of each epoch: as long as neither the weight nor the clock begins a new one."""
    begins, at = [], 0
    for weight, minutes in steps:
        begins.append((at, weight))
        at += minutes * MINUTE_S
    for begin in clock_starts(at):
        begins.append((begin, next(weight for since, weight in reversed(begins[: len(steps)]) if since <= begin)))
    ordered = sorted(set(begins))
    ends = [begin for begin, _ in ordered[1:]] + [at]
    return tuple((weight, begin, end) for (begin, weight), end in zip(ordered, ends, strict=True))


def _sessions(rng: np.random.Generator, starts: Ints, bad: Floats, plan: Plan) -> tuple[Ints, Ints, Ints, Ints]:
    """Sessions whose requests share a fate, and the others; and those of each with at least one bad request."""
    if plan.session == 1:
        nothing = np.zeros_like(starts)
        return nothing, starts, nothing, rng.binomial(starts, bad)
    alike = rng.binomial(starts, plan.icc[:, None])
    more = _one_more(bad, plan.session)
    return alike, starts - alike, rng.binomial(alike, bad), rng.binomial(starts - alike, bad + (1 - bad) * more)


def _one_more(bad: Floats, session: float) -> Floats:
    """Probability that at least one more bad request follows in a session, after any of its requests."""
    go_on = 1 - 1 / session
    return go_on * bad / (1 - go_on * (1 - bad))


def _requests(rng: np.random.Generator, counts: Sequence[Ints], bad: Floats, session: float) -> tuple[Ints, Ints]:
    """Requests, and bad ones, of the sessions of each minute."""
    alike, own, alike_bad, own_bad = counts
    if session == 1:
        return own, own_bad
    end = 1 / session
    of_bad = alike_bad + _negative_binomial(rng, alike_bad, end)
    of_good = (alike - alike_bad) + _negative_binomial(rng, alike - alike_bad, end)
    bad_own = own_bad + _negative_binomial(rng, own_bad, 1 - _one_more(bad, session))
    # Between bad requests, and after the last, lie runs of good ones; a session without bad ones has one more at least.
    good_own = _negative_binomial(rng, bad_own + own, 1 - (1 - bad) * (1 - end)) + (own - own_bad)
    return of_bad + of_good + bad_own + good_own, of_bad + bad_own


def _negative_binomial(rng: np.random.Generator, size: Ints, stop: Floats | float) -> Ints:
    """Failures before the size-th success, 0 where size is 0, which numpy's own refuses."""
    return rng.poisson(rng.standard_gamma(size) * (1 - stop) / stop)


def _mirror(rng: np.random.Generator, plan: Plan, bad_units: Ints, requests: Ints, bad_requests: Ints) -> None:
    """Mirrored prompts: only those where one side alone disagrees with stable count."""
    prompts = rng.poisson(plan.load.sum(axis=0) * BIN_S * plan.mirrored)
    one, other = plan.bad[CANARY, DRIFT], plan.bad[STABLE, DRIFT]
    canary_only = rng.binomial(prompts, one * (1 - other))
    stable_only = rng.binomial(prompts - canary_only, other * (1 - one) / (1 - one * (1 - other)))
    for side, counts in ((CANARY, canary_only), (STABLE, stable_only)):
        bad_units[side, DRIFT] = scatter(rng, counts)
        requests[side, DRIFT], bad_requests[side, DRIFT] = by_minute(prompts), by_minute(counts)


def scatter(rng: np.random.Generator, counts: Ints) -> npt.NDArray[np.int32]:
    """Spreads what happened in each bin evenly at random over its seconds: (runs, bins) to (runs, seconds)."""
    runs, bins = counts.shape
    where = np.repeat(np.arange(runs * bins, dtype=np.int64), counts.ravel()) * BIN_S
    where += rng.integers(0, BIN_S, size=where.size, dtype=np.int64)
    found = np.bincount(where, minlength=runs * bins * BIN_S)
    return found.reshape(runs, bins * BIN_S).astype(np.int32)


def by_minute(counts: Ints) -> Ints:
    """(runs, bins) to sums, (runs, minutes)."""
    return counts.reshape(counts.shape[0], -1, MINUTE_S // BIN_S).sum(axis=-1)


def mean_by_minute(values: Floats) -> Floats:
    return values.reshape(values.shape[0], -1, MINUTE_S // BIN_S).mean(axis=-1)
