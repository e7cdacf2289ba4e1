"""Runs of a cell: traffic in batches, every judge on each, and what came of it."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench.judge_sim import cells, ours, peers
from bench.judge_sim.cells import Alternative, Null
from bench.judge_sim.traffic import CANARY, METRICS, MINUTE_S, Traffic, draw

Floats = npt.NDArray[np.float64]
Told = Callable[[str, int, int], None]  # what, runs done, runs in all

OURS, TUNED_KAYENTA, TUNED_RULE = "Slipway", "Kayenta, every 5 min, tuned", "best tuned threshold rule"
BATCH = 72  # each combination of the factors once
RESTART = "operator restart"


@dataclass
class NullResult:
    """How healthy canaries of a cell fared."""

    null: Null
    runs: int = 0
    rollbacks: dict[str, int] = field(default_factory=dict)  # by judge
    passed: int = 0  # by ours, and not rejected before
    undecided: int = 0  # by ours
    by_rate: dict[float, tuple[int, int]] = field(default_factory=dict)  # requests per second: rollbacks of ours, runs
    differing: int = 0  # verdicts that a restart changed in any bit


@dataclass(frozen=True)
class Detection:
    """How a judge fared with the canaries of a cell. Quantiles count a miss as never."""

    detected: float  # part of the runs
    early: float  # rejected before anything was wrong
    median_s: float
    p90_s: float
    requests: float  # median, to canary since the regression began
    harm: float  # mean of bad responses that canary served until it was rejected, or time was over


@dataclass
class AlternativeResult:
    """How the judges fared with bad canaries of a cell."""

    cell: Alternative
    runs: int
    judges: dict[str, Detection]
    passed: float  # part of the runs that ours would have let pass first
    most_requests: float  # to canary until ours rejected it, in 99 of 100 runs
    rule: str  # which of the tuned ones was best


def null_result(null: Null, runs: int, seed: int, told: Told) -> NullResult:
    result = NullResult(null)
    for rng, first, size in _batches(null.name, runs, seed):
        steps = cells.SCHEDULES[first // BATCH % len(cells.SCHEDULES)]
        traffic = draw(rng, cells.null_plan(rng, null, first, size, steps))
        _add(result, traffic, cells.factors(first, size).rate)
        if null.name == RESTART:
            result.differing += ours.restarted(rng, traffic, ours.decide(traffic))
        told(null.name, first + size, runs)
    return result


def _add(result: NullResult, traffic: Traffic, rates: Floats) -> None:
    mine = ours.decide(traffic)
    failed, passed = np.isfinite(mine.fail_s), np.isfinite(mine.pass_s)
    result.runs += failed.size
    result.passed += int((passed & (mine.pass_s <= mine.fail_s)).sum())
    result.undecided += int((~passed & ~failed).sum())
    for rate in np.unique(rates):
        rollbacks, runs = result.by_rate.get(float(rate), (0, 0))
        here = rates == rate
        result.by_rate[float(rate)] = (rollbacks + int(failed[here].sum()), runs + int(here.sum()))
    found = {OURS: mine.fail_s, **{name: judge(traffic) for name, judge in peers.JUDGES.items()}}
    for name, when in found.items():
        result.rollbacks[name] = result.rollbacks.get(name, 0) + int(np.isfinite(when).sum())


def alternative_result(cell: Alternative, runs: int, seed: int, told: Told) -> AlternativeResult:
    rules, kayenta_z, rates = _tuned(cell, runs, seed, told)
    gathered: dict[str, list[Floats]] = {}
    passed: list[Floats] = []
    for rng, first, size in _batches(cell.name, runs, seed):
        plan, begin = cells.alternative_plan(rng, cell, size, regressed=True)
        traffic = draw(rng, plan)
        mine = ours.decide(traffic)
        passed.append(mine.pass_s < mine.fail_s)
        found = {OURS: mine.fail_s, **{name: judge(traffic) for name, judge in peers.JUDGES.items()}}
        found[TUNED_KAYENTA] = peers.kayenta_often(traffic, kayenta_z)
        found |= {rule.name: peers.by_rule(rule, traffic, rates) for rule in rules}
        for name, when in found.items():
            gathered.setdefault(name, []).append(_measures(traffic, cell, begin, when))
        told(cell.name, first + size, runs)
    measured = {name: np.concatenate(parts) for name, parts in gathered.items()}
    best = min((rule.name for rule in rules), key=lambda name: measured[name][:, 3].mean())
    kept = [OURS, *peers.JUDGES, TUNED_KAYENTA]
    judges = {name: _detection(measured[name]) for name in kept} | {TUNED_RULE: _detection(measured[best])}
    most = float(np.quantile(measured[OURS][:, 2], 0.99, method="higher"))
    return AlternativeResult(cell, runs, judges, float(np.concatenate(passed).mean()), most, best)


def _tuned(cell: Alternative, runs: int, seed: int, told: Told) -> tuple[list[peers.Rule], float, Floats]:
    """Rules and Kayenta with the limits that reject one of a hundred healthy canaries of this very configuration.

    All runs are needed at once for the quantiles, so this is one big batch, of minutes alone.
    """
    rng = _generator(f"{cell.name}, healthy", 0, seed)
    parts = []
    for first in range(0, runs, BATCH):
        plan, _ = cells.alternative_plan(rng, cell, min(BATCH, runs - first), regressed=False)
        parts.append(draw(rng, plan))
        told(f"{cell.name}, tuning", min(first + BATCH, runs), runs)
    healthy = _joined(parts)
    rates = healthy.plan.bad[1, :, 0, 0]
    alpha = ours.SPEC.false_rollback_rate
    return peers.tuned_rules(healthy, rates, alpha), peers.tuned_kayenta_z(healthy, alpha), rates


def _joined(parts: list[Traffic]) -> Traffic:
    """Batches as one, with what is counted by minute; the seconds are left out."""
    first = parts[0].plan
    plan = cells.Plan(
        first.steps,
        np.concatenate([part.plan.load for part in parts], axis=1),
        np.concatenate([part.plan.bad[..., :1] for part in parts], axis=2),
        first.shift[..., :1],
        np.concatenate([part.plan.spread for part in parts], axis=1),
        np.concatenate([part.plan.icc for part in parts]),
        first.session,
        warmup_s=first.warmup_s,
    )
    nothing = np.zeros((2, plan.runs, 0), dtype=np.int64)
    by_minute = [
        np.concatenate([getattr(part, name) for part in parts], axis=2)
        for name in ("requests", "bad_requests", "log_latency")
    ]
    return Traffic(plan, nothing, nothing, *by_minute, epochs=parts[0].epochs)


def _measures(traffic: Traffic, cell: Alternative, begin: Floats, when: Floats) -> Floats:
    """Of each run: seconds to detection (infinite if missed, nan if early), weight of it, canary requests, harm."""
    runs, seconds = traffic.units.shape[1:]
    rows = np.arange(runs)
    end = np.where(np.isfinite(when), when, seconds).astype(int)
    begin_s = begin.astype(int)

    def between(counts: npt.NDArray[np.int64]) -> Floats:
        sums = np.concatenate([np.zeros((runs, 1)), np.cumsum(counts, axis=-1)], axis=-1)
        return np.maximum(sums[rows, end] - sums[rows, np.minimum(begin_s, end)], 0.0)

    index = METRICS.index(cell.metric)
    early = when <= begin
    taken = np.where(early, np.nan, when - begin)
    requests = np.where(np.isfinite(when), between(traffic.units[CANARY]), np.inf)
    return np.stack([taken, early, requests, between(traffic.bad_units[CANARY, index])], axis=-1)


def _detection(measured: Floats) -> Detection:
    early = measured[:, 1] > 0
    seconds, requests = measured[~early, 0], measured[~early, 2]
    if not seconds.size:
        return Detection(0.0, 1.0, np.inf, np.inf, np.inf, float(measured[:, 3].mean()))
    return Detection(
        float(np.isfinite(seconds).sum() / early.size),
        float(early.mean()),
        _quantile(seconds, 0.5),
        _quantile(seconds, 0.9),
        _quantile(requests, 0.5),
        float(measured[:, 3].mean()),
    )


def _quantile(values: Floats, part: float) -> float:
    return float(np.quantile(values, part, method="higher"))


def _batches(name: str, runs: int, seed: int) -> Iterator[tuple[np.random.Generator, int, int]]:
    for first in range(0, runs, BATCH):
        yield _generator(name, first, seed), first, min(BATCH, runs - first)


def _generator(name: str, first: int, seed: int) -> np.random.Generator:
    """Of its own for each batch of each cell: no result depends on which others are run."""
    return np.random.default_rng([seed, zlib.crc32(name.encode()), first])


def cap_s(result: AlternativeResult) -> float:
    """Seconds after which a run of this cell is over."""
    return float(cells.ALTERNATIVE_MINUTES * MINUTE_S)
