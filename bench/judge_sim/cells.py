"""The cells of the simulation: healthy canaries in trouble that is not theirs, and canaries that are worse."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.judge_sim.latencies import SLOW, Shape, slow
from bench.judge_sim.traffic import CANARY, LATENCIES, METRICS, MINUTE_S, STABLE, Plan
from slipway_operator.planning.analysis.runs import READ_S

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator

RATES = (1.0, 10.0, 100.0)
ERRORS = (0.001, 0.005, 0.02)
SHAPES = (Shape(0.2), Shape(0.6), Shape(1.2), Shape(0.6, tail=True))
CORRELATIONS = (0.0, 0.3)
SCHEDULES = (((5, 10), (25, 10), (50, 10)), ((50, 30),))
BESIDE = (((5, 10), (25, 10), (40, 10)), ((25, 30),))  # of canaries with a baseline: below half of the requests
ITL = Shape(0.2)
SESSION = 6.0
WARMUP_S = 120
# Of an objective: 5 % of the requests may miss it, and a spent budget has ten that did (operator `error_budget.py`).
MAY_MISS, LEAST_MISSED = 0.05, 10
UNREAD_S = 10  # what a gateway that dies takes with it, and a little more than what the operator had not read
STABLE_RATES = {
    "errors": 0.005, "ttft": SLOW, "itl": SLOW, "empty": 0.001, "truncated": 0.05, "stuck": 0.0005,
    "malformed": 0.001, "drift": 0.01,
}  # fmt: skip
# Part of the prompts that stable has cached; how soon a new cache has most of that; the part that a gateway wrongly
# takes for cached, because it does not see what an engine drops.
CACHED, CACHE_FILLS_S, GUESSED_WRONG = 0.8, 300.0, 0.01
TENANTS = np.array([0.4, 0.25, 0.15, 0.12, 0.08])


@dataclass(frozen=True)
class Factors:
    """Levels of the factors, one for each run."""

    rate: Floats
    error: Floats
    shape: tuple[Shape, ...]
    icc: Floats


@dataclass(frozen=True)
class Null:
    """A canary that is no worse, and what happens around it."""

    name: str
    description: str
    change: Callable[[Rng, Plan, Factors], Plan]
    gated: bool = True
    session: float = SESSION
    slow_each: bool = False  # counts each slow request of a session
    beside: bool = False  # compared with a baseline

    @property
    def schedules(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Weights and minutes, in turn."""
        return BESIDE if self.beside else SCHEDULES


@dataclass(frozen=True)
class Alternative:
    """A canary that is worse in one metric."""

    name: str
    metric: str
    weight: int  # percent
    factor: float = 1.0  # of the metric's rate
    rate: float | None = None  # what it becomes
    times: float | None = None  # what its latencies are multiplied by
    mean_shift: float | None = None  # of log latency, where not all are slower alike
    late: bool = False  # begins at a random time between 2 and 10 minutes
    beside: bool = False  # compared with a baseline: shown for what that costs, and held to no bar
    expected_s: float | None = None  # of the design's table

    @property
    def dead(self) -> bool:
        """Whether no request of canary succeeds."""
        return self.metric == "errors" and self.rate == 1.0


def factors(first: int, runs: int) -> Factors:
    """Levels in turn, so that any run of 72 after another has each combination once."""
    combinations = list(itertools.product(RATES, ERRORS, SHAPES, CORRELATIONS))
    chosen = [combinations[(first + run) % len(combinations)] for run in range(runs)]
    return Factors(
        np.array([item[0] for item in chosen]),
        np.array([item[1] for item in chosen]),
        tuple(item[2] for item in chosen),
        np.array([item[3] for item in chosen]),
    )


def healthy(
    levels: Factors, steps: tuple[tuple[int, int], ...], session: float, warmup_s: int, bin_s: int = READ_S
) -> Plan:
    """Canaries that are what stable is."""
    lengths = [minutes * MINUTE_S // bin_s for _, minutes in steps]
    runs, bins = levels.rate.size, sum(lengths)
    weight = np.repeat([percent / 100 for percent, _ in steps], lengths)
    total = np.broadcast_to(levels.rate[:, None], (runs, bins))
    rates = np.array([STABLE_RATES[name] for name in METRICS])
    bad = np.broadcast_to(rates[None, :, None, None], (2, len(METRICS), runs, bins)).copy()
    bad[:, METRICS.index("errors")] = levels.error[None, :, None]
    return Plan(
        steps,
        np.stack([total * weight, total * (1 - weight)]),
        bad,
        np.zeros((2, len(LATENCIES), runs, bins)),
        np.array([[shape.spread for shape in levels.shape], [ITL.spread] * runs]),
        levels.icc,
        session,
        warmup_s=warmup_s,
        bin_s=bin_s,
    )


def null_plan(rng: Rng, null: Null, first: int, runs: int, steps: tuple[tuple[int, int], ...]) -> Plan:
    levels = factors(first, runs)
    plan = replace(healthy(levels, steps, null.session, WARMUP_S), slow_each=null.slow_each)
    return null.change(rng, _beside(plan) if null.beside else plan, levels)


def _beside(plan: Plan) -> Plan:
    """The same with a baseline as the other side: it has canary's weight."""
    return replace(plan, load=np.stack([plan.load[CANARY], plan.load[CANARY]]), beside=True)


# -- what happens around healthy canaries


def _nothing(_rng: Rng, plan: Plan, _levels: Factors) -> Plan:
    return plan


def _diurnal(rng: Rng, plan: Plan, _levels: Factors) -> Plan:
    """A day in half an hour: load goes up threefold and back, and bad events with it."""
    phase = rng.uniform(0, 2 * np.pi, size=(plan.runs, 1))
    times = 2 + np.sin(2 * np.pi * np.arange(plan.bins) / plan.bins + phase)
    plan.load[:] *= times / 2
    plan.bad[:] = np.minimum(plan.bad * times, 0.9)
    return plan


def _outage(rng: Rng, plan: Plan, _levels: Factors) -> Plan:
    """Half of all requests fail for two minutes, on both sides."""
    during = _windows(rng, plan, 120)
    plan.bad[:, METRICS.index("errors")] = np.where(during, 0.5, plan.bad[:, METRICS.index("errors")])
    return plan


def _held_outage(rng: Rng, plan: Plan, _levels: Factors) -> Plan:
    """99 of 100 requests fail for five minutes, on both sides. The weight stays while the error budget is spent."""
    errors = METRICS.index("errors")
    plan.bad[:, errors] = np.where(_windows(rng, plan, 300), 0.99, plan.bad[:, errors])
    seconds = np.arange(plan.bins) * plan.bin_s
    total = plan.load.sum(axis=0)
    missed = (plan.load * plan.bad[:, errors]).sum(axis=0)
    spent = np.cumsum(missed * plan.bin_s, axis=1) > np.maximum(
        LEAST_MISSED, MAY_MISS * np.cumsum(total * plan.bin_s, axis=1)
    )
    # Of these lengths the budget is spent until the end: the outage is a sixth of all requests, or more.
    first = np.where(spent.any(axis=1), spent.argmax(axis=1), plan.bins - 1)
    weight = plan.load[CANARY] / np.maximum(total, 1e-9)
    held = np.take_along_axis(weight, first[:, None], axis=1)
    weight = np.where(seconds[None, :] >= first[:, None] * plan.bin_s, held, weight)
    plan.load[:] = np.stack([total * weight, total * (1 - weight)])
    return plan


def _slow_node(_rng: Rng, plan: Plan, levels: Factors) -> Plan:
    """The canary's only pod is on a node that is 15 % slower."""
    return _slower(plan, levels, 1.15, np.ones((plan.runs, plan.bins), dtype=bool))


def _cold_start(_rng: Rng, plan: Plan, levels: Factors) -> Plan:
    """Canary is twice as slow for its first 90 seconds."""
    return _slower(plan, levels, 2.0, np.broadcast_to(np.arange(plan.bins) * plan.bin_s < 90, (plan.runs, plan.bins)))


def _cold_longer(_rng: Rng, plan: Plan, levels: Factors) -> Plan:
    """Fresh pods are twice as slow for ten minutes, which the warm-up does not know: canary's, and a baseline's."""
    during = np.broadcast_to(np.arange(plan.bins) * plan.bin_s < 600, (plan.runs, plan.bins))
    for side in (CANARY, STABLE) if plan.beside else (CANARY,):
        plan = _slower(plan, levels, 2.0, during, side)
    return plan


def _cold_cache(_rng: Rng, plan: Plan, _levels: Factors) -> Plan:
    """Canary's cache of prompts fills as that of stable did; prompts that are computed whole are compared with all."""
    missed = 1 - CACHED * (1 - np.exp(-np.arange(plan.bins) * plan.bin_s / CACHE_FILLS_S))
    # Stable's slowest twentieth are prompts that its cache lacked.
    plan.bad[CANARY, METRICS.index("ttft")] = np.minimum(SLOW * missed / (1 - CACHED), 0.9)
    return plan


def _cold_cache_by_strata(_rng: Rng, plan: Plan, _levels: Factors) -> Plan:
    """The same, each prompt compared with those that their caches had or lacked like it, as gateways guess that."""
    cached = CACHED * (1 - np.exp(-np.arange(plan.bins) * plan.bin_s / CACHE_FILLS_S))
    # Within a stratum a twentieth is slow on both sides, but for prompts that count as cached and are not: these are
    # above their stratum's limit, and the limit is that of a stable that has as many of them.
    plan.bad[CANARY, METRICS.index("ttft")] = SLOW * (1 - cached) + (SLOW + GUESSED_WRONG) * cached
    plan.bad[STABLE, METRICS.index("ttft")] = SLOW * (1 - CACHED) + (SLOW + GUESSED_WRONG) * CACHED
    return plan


def _tenants(rng: Rng, plan: Plan, _levels: Factors) -> Plan:
    """Five tenants that come and go, with rates of errors of their own; each request is assigned by itself."""
    share, risk = _bursts(rng, plan)
    active = share.sum(axis=1)
    plan.load[:] *= active
    mixed = (share * risk[:, :, None]).sum(axis=1) / np.maximum(active, 1e-9)
    plan.bad[:, :-1] = np.minimum(plan.bad[:, :-1] * mixed, 0.9)
    return plan


def _sticky_tenants(rng: Rng, plan: Plan, _levels: Factors) -> Plan:
    """The same, but each tenant as a whole goes to one side: what a hash of so few keys does."""
    share, risk = _bursts(rng, plan)
    weight = plan.load[CANARY] / np.maximum(plan.load.sum(axis=0), 1e-9)
    total = plan.load.sum(axis=0)
    here = rng.uniform(size=(plan.runs, TENANTS.size, 1)) < weight[:, None, :]
    for side, mine in ((CANARY, here), (STABLE, ~here)):
        part = share * mine
        active = part.sum(axis=1)
        plan.load[side] = total * active
        mixed = (part * risk[:, :, None]).sum(axis=1) / np.maximum(active, 1e-9)
        plan.bad[side, :-1] = np.minimum(plan.bad[side, :-1] * np.where(active > 0, mixed, 1.0), 0.9)
    return plan


def _bursts(rng: Rng, plan: Plan) -> tuple[Floats, Floats]:
    """Share of the load of each tenant in each bin, (runs, tenants, bins), and how prone to trouble each is."""
    on = rng.uniform(size=(plan.runs, TENANTS.size, plan.minutes)) < 0.6
    share = TENANTS[None, :, None] * np.repeat(on, MINUTE_S // plan.bin_s, axis=-1) / 0.6
    return share, np.exp(rng.normal(0, 0.7, size=(plan.runs, TENANTS.size)))


def _reset(rng: Rng, plan: Plan, _levels: Factors) -> Plan:
    """A gateway dies, and with it what it had counted since it was last read: ten seconds are missing."""
    plan.load[:] = np.where(_windows(rng, plan, UNREAD_S), 0.0, plan.load)
    return plan


def _windows(rng: Rng, plan: Plan, seconds: int) -> npt.NDArray[np.bool_]:
    length = seconds // plan.bin_s
    begin = rng.integers(0, plan.bins - length, size=(plan.runs, 1))
    at = np.arange(plan.bins)
    return np.asarray((at >= begin) & (at < begin + length))


def _slower(plan: Plan, levels: Factors, times: float, during: npt.NDArray[np.bool_], side: int = CANARY) -> Plan:
    ttft = np.array([slow(shape, times) for shape in levels.shape])[:, None]
    for row, rate in ((0, ttft), (1, slow(ITL, times))):
        index = METRICS.index(LATENCIES[row])
        plan.bad[side, index] = np.where(during, rate, plan.bad[side, index])
        plan.shift[side, row] = np.where(during, np.log(times), 0.0)
    return plan


NULLS = (
    Null("nothing happens", "canary is what stable is", _nothing),
    Null("a day in half an hour", "load and bad events go up threefold and back", _diurnal),
    Null("shared outage", "half of all requests fail for two minutes, on both sides", _outage),
    Null("outage that spends the error budget", "99 of 100 requests fail for five minutes, on both sides; holdOnBudget "
         "keeps the weight", _held_outage),
    Null("cold start", "canary is twice as slow for its first 90 s", _cold_start),
    Null("five tenants", "five keys with bursts and risks of their own; split by request", _tenants, session=1.0),
    Null("counter reset", "a gateway dies with ten seconds that were not read", _reset),
    Null("operator restart", "the operator loses all but the status at a random reading", _nothing),
    Null("slow node", "the canary's only pod is on a node that is 15 % slower", _slow_node, gated=False),
    Null("each slow request counts", "each slow request of a session that sticks to a side, not the session",
         _nothing, gated=False, slow_each=True),
    Null("cold for ten minutes", "fresh pods are twice as slow for ten minutes, and stable's are old", _cold_longer,
         gated=False),
    Null("cold cache", "canary's cache of prompts is empty at first; compared within strata of cached prompts",
         _cold_cache_by_strata),
    Null("cold cache, without strata", "the same, all prompts compared with all", _cold_cache, gated=False),
    Null("nothing happens, beside a baseline", "canary is what its baseline is", _nothing, beside=True),
    Null("cold for ten minutes, beside a baseline", "the same, compared with pods as fresh", _cold_longer, beside=True),
    Null("slow node, beside a baseline", "the canary's node is slower and that of the baseline is not", _slow_node,
         gated=False, beside=True),
    Null("five sticky tenants", "each key as a whole goes to one side", _sticky_tenants, gated=False, session=1.0),
)  # fmt: skip

ALTERNATIVES = (
    Alternative("canary is dead", "errors", 5, rate=1.0, expected_s=3),
    Alternative("errors 0.5 % to 10 %", "errors", 5, rate=0.1, expected_s=52),
    Alternative("errors 0.5 % to 2.5 %", "errors", 10, rate=0.025, expected_s=263),
    Alternative("errors 0.5 % to 1 %", "errors", 25, rate=0.01, expected_s=1295),
    Alternative("TTFT +50 %", "ttft", 10, times=1.5, expected_s=62),
    Alternative("TTFT +20 %", "ttft", 10, times=1.2, expected_s=387),
    Alternative("TTFT +20 %, weight 25", "ttft", 25, times=1.2, expected_s=192),
    Alternative("ITL +10 %", "itl", 10, times=1.1, expected_s=140),
    Alternative("empty 0.1 % to 1 %", "empty", 10, rate=0.01, expected_s=405),
    Alternative("1 % of streams stuck", "stuck", 10, rate=0.0105),
    Alternative("TTFT bimodal: 5 % five times slower", "ttft", 10, rate=0.05 + 0.95 * 0.05, mean_shift=0.05 * 1.609),
    Alternative("5 points more truncated", "truncated", 10, rate=0.10),
    Alternative("drift 2 %", "drift", 10, rate=0.03),
    Alternative("errors 0.5 % to 10 %, later", "errors", 10, rate=0.1, late=True),
    Alternative("TTFT +50 %, later", "ttft", 10, times=1.5, late=True),
    Alternative("canary is dead, beside a baseline", "errors", 5, rate=1.0, beside=True),
    Alternative("errors 0.5 % to 2.5 %, beside a baseline", "errors", 10, rate=0.025, beside=True),
    Alternative("TTFT +50 %, beside a baseline", "ttft", 10, times=1.5, beside=True),
)
ALTERNATIVE_RATE, ALTERNATIVE_MINUTES, FINE_MINUTES = 20.0, 60, 5
EARLIEST_S, LATEST_S = 120, 600


def alternative_plan(
    rng: Rng, cell: Alternative, runs: int, *, regressed: bool, fine: bool = False
) -> tuple[Plan, Floats]:
    """Runs of one alternative, or the same with a healthy canary; and when regressions begin, in seconds, (runs,).

    `fine` ones are counted each second, and are over after FINE_MINUTES.
    """
    minutes, bin_s = (FINE_MINUTES, 1) if fine else (ALTERNATIVE_MINUTES, READ_S)
    levels = Factors(np.full(runs, ALTERNATIVE_RATE), np.full(runs, 0.005), (Shape(0.6),) * runs, np.zeros(runs))
    plan = healthy(levels, ((cell.weight, minutes),), session=1.0, warmup_s=0, bin_s=bin_s)
    plan = _beside(plan) if cell.beside else plan
    begin: Floats = np.zeros(runs)
    if cell.late:
        begin = np.asarray(rng.integers(EARLIEST_S // bin_s, LATEST_S // bin_s, size=runs) * bin_s, np.float64)
    if not regressed:
        return plan, begin
    during = np.arange(plan.bins) * bin_s >= begin[:, None]
    index = METRICS.index(cell.metric)
    shape = ITL if cell.metric == "itl" else Shape(0.6)
    rate: Any = slow(shape, cell.times) if cell.times else cell.rate
    plan.bad[CANARY, index] = np.where(during, rate, plan.bad[STABLE, index])
    if cell.metric in LATENCIES:
        shift: Any = np.log(cell.times) if cell.times else cell.mean_shift
        plan.shift[CANARY, LATENCIES.index(cell.metric)] = np.where(during, shift, 0.0)
    return plan, begin
