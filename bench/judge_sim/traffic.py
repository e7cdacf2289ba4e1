"""Simulated traffic: counts of requests and bad ones, at each reading and by minute.

Sessions start as a Poisson process, have a geometric number of requests and are assigned as wholes. With probability
ICC all requests of a session share one fate, otherwise each has its own: two requests of a session correlate by ICC.
What a session's requests add up to is drawn from its exact distribution: nothing is simulated request by request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipway_operator.judging.epochs import clock_starts
from slipway_operator.planning.analysis.runs import READ_S

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MINUTE_S = 60
CANARY, STABLE = 0, 1
METRICS = ("errors", "ttft", "itl", "empty", "truncated", "stuck", "malformed", "drift")
LATENCIES = ("ttft", "itl")  # with a time as well as a threshold
DRIFT = METRICS.index("drift")


@dataclass(frozen=True)
class Plan:
    """What a batch of runs goes through. Bins of `bin_s` seconds; side 0 is canary, 1 is stable."""

    steps: tuple[tuple[int, int], ...]  # weight in percent, minutes
    load: Floats  # requests per second as assigned, (2, runs, bins)
    bad: Floats  # probability that a request is bad, (2, metrics, runs, bins)
    shift: Floats  # of the mean log latency, (2, latencies, runs, bins)
    spread: Floats  # standard deviation of log latency, (latencies, runs)
    icc: Floats  # (runs,)
    session: float = 1.0  # mean requests; 1: each request is assigned by itself
    mirrored: float = 0.2  # share of prompts that the drift comparison sees
    warmup_s: int = 0
    bin_s: int = READ_S  # a divisor of a minute; the operator reads counters at the end of each
    slow_each: bool = False  # each slow request of a session is a bad unit, not the session
    beside: bool = False  # side 1 is a baseline with canary's weight

    @property
    def runs(self) -> int:
        return int(self.load.shape[1])

    @property
    def bins(self) -> int:
        return int(self.load.shape[2])

    @property
    def minutes(self) -> int:
        return self.bins * self.bin_s // MINUTE_S


@dataclass(frozen=True)
class Traffic:
    """What was counted. Units are sessions, or requests where each is assigned by itself."""

    plan: Plan
    bad_units: Ints  # (2, metrics, runs, bins)
    units: Ints  # (2, runs, bins)
    requests: Ints  # (2, metrics, runs, minutes)
    bad_requests: Ints  # (2, metrics, runs, minutes)
    log_latency: Floats  # sums, (2, latencies, runs, minutes)
    epochs: tuple[tuple[int, int, int], ...] = ()  # weight in percent, seconds from and to

    @property
    def weights(self) -> Floats:
        return np.array([0.5 if self.plan.beside else weight / 100 for weight, _, _ in self.epochs])

    @property
    def minutes(self) -> int:
        return int(self.requests.shape[-1])


@dataclass(frozen=True)
class Sessions:
    """Sessions that began in each bin or minute, (runs, bins): those whose requests share one fate, and the others."""

    alike: Ints
    own: Ints
    alike_bad: Ints  # with at least one bad request
    own_bad: Ints

    def by_minute(self, bin_s: int) -> "Sessions":
        return Sessions(*(by_minute(item, bin_s) for item in (self.alike, self.own, self.alike_bad, self.own_bad)))


def draw(rng: np.random.Generator, plan: Plan) -> Traffic:
    """One batch of runs."""
    shape = (2, len(METRICS), plan.runs)
    made = Traffic(
        plan,
        bad_units=np.zeros((*shape, plan.bins), dtype=np.int64),
        units=np.zeros((2, plan.runs, plan.bins), dtype=np.int64),
        requests=np.zeros((*shape, plan.minutes), dtype=np.int64),
        bad_requests=np.zeros((*shape, plan.minutes), dtype=np.int64),
        log_latency=np.zeros((2, len(LATENCIES), plan.runs, plan.minutes)),
        epochs=epochs_of(plan.steps),
    )
    for side in (CANARY, STABLE):
        _serve(rng, made, side)
    _mirror(rng, made)
    return made


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


def by_minute(counts: Ints, bin_s: int) -> Ints:
    """(runs, bins) to sums, (runs, minutes)."""
    minutes: Ints = counts.reshape(counts.shape[0], -1, MINUTE_S // bin_s).sum(axis=-1)
    return minutes


def mean_by_minute(values: Floats, bin_s: int) -> Floats:
    minutes: Floats = values.reshape(values.shape[0], -1, MINUTE_S // bin_s).mean(axis=-1)
    return minutes


# -- what one side serves


def _serve(rng: np.random.Generator, traffic: Traffic, side: int) -> None:
    """Sessions of one side, and what became of them in each metric but the mirrored one."""
    plan = traffic.plan
    starts = rng.poisson(plan.load[side] * (plan.bin_s / plan.session))
    traffic.units[side] = starts
    alike = rng.binomial(starts, plan.icc[:, None]) if plan.session > 1 else np.zeros_like(starts)
    for index in range(len(METRICS)):
        if index == DRIFT:
            continue
        sessions = _sessions(rng, alike, starts - alike, plan.bad[side, index], plan.session)
        _count(rng, traffic, side, index, sessions)
        if METRICS[index] in LATENCIES:
            _time(rng, traffic, side, index)


def _sessions(rng: np.random.Generator, alike: Ints, own: Ints, bad: Floats, session: float) -> Sessions:
    if session == 1:
        return Sessions(alike, own, alike, rng.binomial(own, bad))
    at_least_one = bad + (1 - bad) * _one_more(bad, session)
    return Sessions(alike, own, rng.binomial(alike, bad), rng.binomial(own, at_least_one))


def _count(rng: np.random.Generator, traffic: Traffic, side: int, index: int, sessions: Sessions) -> None:
    """Bad units of each bin; requests, and bad ones, of each minute."""
    plan = traffic.plan
    bad, minutely = plan.bad[side, index], sessions.by_minute(plan.bin_s)
    by_minutes = mean_by_minute(bad, plan.bin_s)
    if plan.slow_each and METRICS[index] in LATENCIES:
        alike, own = _bad_requests(rng, sessions, bad, plan.session)
        traffic.bad_units[side, index] = alike + own
        alike, own = by_minute(alike, plan.bin_s), by_minute(own, plan.bin_s)
    else:
        traffic.bad_units[side, index] = sessions.alike_bad + sessions.own_bad
        alike, own = _bad_requests(rng, minutely, by_minutes, plan.session)
    traffic.bad_requests[side, index] = alike + own
    traffic.requests[side, index] = alike + own + _good_requests(rng, minutely, own, by_minutes, plan.session)


def _one_more(bad: Floats, session: float) -> Floats:
    """Probability that at least one more bad request follows in a session, after any of its requests."""
    go_on = 1 - 1 / session
    return go_on * bad / (1 - go_on * (1 - bad))


def _bad_requests(rng: np.random.Generator, sessions: Sessions, bad: Floats, session: float) -> tuple[Ints, Ints]:
    """Bad requests of sessions whose requests share a fate, and of the others."""
    if session == 1:
        return sessions.alike_bad, sessions.own_bad
    return (
        sessions.alike_bad + _negative_binomial(rng, sessions.alike_bad, 1 / session),
        sessions.own_bad + _negative_binomial(rng, sessions.own_bad, 1 - _one_more(bad, session)),
    )


def _good_requests(rng: np.random.Generator, sessions: Sessions, own_bad: Ints, bad: Floats, session: float) -> Ints:
    """The other requests of all sessions; `own_bad` requests are bad of those that have a fate each."""
    if session == 1:
        return sessions.own - sessions.own_bad
    end = 1 / session
    alike = sessions.alike - sessions.alike_bad
    # Between bad requests, and after the last, lie runs of good ones; a session without bad ones has one more at least.
    own = _negative_binomial(rng, own_bad + sessions.own, 1 - (1 - bad) * (1 - end)) + sessions.own - sessions.own_bad
    return alike + _negative_binomial(rng, alike, end) + own


def _negative_binomial(rng: np.random.Generator, size: Ints, stop: Floats | float) -> Ints:
    """Failures before the size-th success, 0 where size is 0, which numpy's own refuses."""
    return rng.poisson(rng.standard_gamma(size) * (1 - stop) / stop)


def _time(rng: np.random.Generator, traffic: Traffic, side: int, index: int) -> None:
    """Sums of log latency of each minute's requests."""
    plan, row = traffic.plan, LATENCIES.index(METRICS[index])
    n = traffic.requests[side, index]
    noise = rng.standard_normal(n.shape) * np.sqrt(n) * plan.spread[row][:, None]
    traffic.log_latency[side, row] = n * mean_by_minute(plan.shift[side, row], plan.bin_s) + noise


def _mirror(rng: np.random.Generator, traffic: Traffic) -> None:
    """Mirrored prompts: only those where one side alone disagrees with stable count."""
    plan = traffic.plan
    prompts = rng.poisson(plan.load.sum(axis=0) * plan.bin_s * plan.mirrored)
    one, other = plan.bad[CANARY, DRIFT], plan.bad[STABLE, DRIFT]
    canary_only = rng.binomial(prompts, one * (1 - other))
    stable_only = rng.binomial(prompts - canary_only, other * (1 - one) / (1 - one * (1 - other)))
    for side, counts in ((CANARY, canary_only), (STABLE, stable_only)):
        traffic.bad_units[side, DRIFT] = counts
        traffic.requests[side, DRIFT] = by_minute(prompts, plan.bin_s)
        traffic.bad_requests[side, DRIFT] = by_minute(counts, plan.bin_s)
