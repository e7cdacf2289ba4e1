"""Runs of a cell: traffic in batches, every judge on each, and what came of it."""

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from bench.judge_sim import cells, ours, peers
from bench.judge_sim.cells import Alternative, Null
from bench.judge_sim.intervals import wilson
from bench.judge_sim.traffic import CANARY, METRICS, MINUTE_S, STABLE, Traffic, draw

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Progress = Callable[[str, int, int], None]  # what, runs done, runs in all

OURS, TUNED_KAYENTA, TUNED_RULE = "Slipway", "Kayenta, every 5 min, tuned", "best tuned threshold rule"
BATCH = 72  # each combination of the factors once
# Healthy runs that find a limit for a few rejections in a thousand: 200 allow the others several times what ours does.
TUNING_RUNS = 2000
STRICT = ", tuned to the lower end"
RESTART = "operator restart"
Z_95 = 1.959964
TAKEN, EARLY, REQUESTS, HARM = range(4)  # columns of what is measured of a run


@dataclass
class NullResult:
    """How healthy canaries of a cell fared."""

    null: Null
    runs: int = 0
    rollbacks: dict[str, int] = field(default_factory=dict)  # by judge
    passed: int = 0  # by ours, and not rejected before
    undecided: int = 0  # by ours
    by_rate: dict[str, list[int]] = field(default_factory=dict)  # requests per second: rollbacks of ours, runs
    differing: int = 0  # verdicts that a restart changed in any bit
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Detection:
    """How a judge fared with the canaries of a cell. Quantiles count a miss as never."""

    detected: float  # part of the runs
    early: float  # rejected before anything was wrong
    median_s: float
    median_low_s: float  # 95 % interval of the median
    median_high_s: float
    p90_s: float
    requests: float  # median, to canary since the regression began
    harm: float  # mean of bad responses that canary served until it was rejected, or time was over
    harm_error: float  # half of the 95 % interval of that


@dataclass
class AlternativeResult:
    """How the judges fared with bad canaries of a cell."""

    cell: Alternative
    runs: int
    judges: dict[str, Detection]
    passed: float  # part of the runs that ours would have let pass first
    rule: str  # which of the tuned ones was best
    tuned_to: float  # part of healthy canaries that the tuned ones may reject
    evidence_requests: float | None  # dead ones: canary requests that suffice as evidence in 99 of 100 runs
    cpu_s: float
    strict_harm: float = 0.0  # of the best rule, tuned to the lower end of the interval of what ours rejects


@dataclass(frozen=True)
class Tuned:
    """Limits that reject as many healthy canaries of a cell as ours does, and stable's rates, (metrics,), as known."""

    false_rollback_rate: float
    rules: list[peers.Rule]
    strict_rules: list[peers.Rule]  # the same family, tuned to the lower end of the interval of ours
    kayenta_z: float
    rates: Floats


def null_result(null: Null, runs: int, seed: int, on_progress: Progress) -> NullResult:
    began, result = time.process_time(), NullResult(null)
    for rng, first, size in _batches(null.name, runs, seed):
        steps = null.schedules[first // BATCH % len(null.schedules)]
        traffic = draw(rng, cells.null_plan(rng, null, first, size, steps))
        mine = ours.decide(traffic)
        _add(result, traffic, mine, cells.factors(first, size).rate)
        if null.name == RESTART:
            result.differing += ours.restarted(rng, traffic, mine)
        on_progress(null.name, first + size, runs)
    result.cpu_s = time.process_time() - began
    return result


def _add(result: NullResult, traffic: Traffic, mine: ours.Decisions, rates: Floats) -> None:
    failed, passed = np.isfinite(mine.fail_s), np.isfinite(mine.pass_s)
    result.runs += failed.size
    result.passed += int((passed & (mine.pass_s <= mine.fail_s)).sum())
    result.undecided += int((~passed & ~failed).sum())
    for rate in np.unique(rates):
        here = rates == rate
        sums = result.by_rate.setdefault(f"{rate:g}", [0, 0])
        sums[0] += int(failed[here].sum())
        sums[1] += int(here.sum())
    found = {OURS: mine.fail_s} | peers.judged(traffic, peers.kayenta_strengths(traffic))
    for name, when in found.items():
        result.rollbacks[name] = result.rollbacks.get(name, 0) + int(np.isfinite(when).sum())


def alternative_result(cell: Alternative, runs: int, seed: int, on_progress: Progress) -> AlternativeResult:
    """Where few runs leave it in doubt that ours is better, the others are tuned once more, as a full run does it."""
    began = time.process_time()
    found = _alternative_result(cell, runs, seed, on_progress, _tuned(cell, runs, seed, on_progress))
    if runs < TUNING_RUNS and not cell.beside and _harm_differs(found) > 0:
        again = _tuned(cell, TUNING_RUNS, seed, on_progress)
        found = _alternative_result(cell, runs, seed, on_progress, again)
    return replace(found, cpu_s=time.process_time() - began)


def _harm_differs(found: AlternativeResult) -> float:
    return found.judges[OURS].harm - found.judges[TUNED_RULE].harm


def _alternative_result(
    cell: Alternative, runs: int, seed: int, on_progress: Progress, tuned: Tuned
) -> AlternativeResult:
    gathered: dict[str, list[Floats]] = {}
    passed: list[npt.NDArray[np.bool_]] = []
    for rng, first, size in _batches(cell.name, runs, seed):
        plan, begin = cells.alternative_plan(rng, cell, size, regressed=True)
        traffic = draw(rng, plan)
        mine = ours.decide(traffic)
        passed.append(mine.pass_s < mine.fail_s)
        found = {OURS: mine.fail_s} | _others(traffic, tuned)
        for name, measures in _measures(traffic, cell, begin, found).items():
            gathered.setdefault(name, []).append(measures)
        on_progress(cell.name, first + size, runs)
    measured = {name: np.concatenate(parts) for name, parts in gathered.items()}
    best, strict = (
        min((rule.name + kind for rule in tuned.rules), key=lambda name: measured[name][:, HARM].mean())
        for kind in ("", STRICT)
    )
    judges = {name: _detection(measured[name]) for name in (OURS, *peers.JUDGES, TUNED_KAYENTA)}
    judges[TUNED_RULE] = _detection(measured[best])
    enough = _evidence_requests(cell, runs, seed) if cell.dead else None
    passed_first = float(np.concatenate(passed).mean())
    strict_harm = float(measured[strict][:, HARM].mean())
    return AlternativeResult(
        cell, runs, judges, passed_first, best, tuned.false_rollback_rate, enough, 0.0, strict_harm
    )


def _others(traffic: Traffic, tuned: Tuned) -> dict[str, Floats]:
    """Seconds until rollback of all other judges, (runs,)."""
    strengths, deviations = peers.kayenta_strengths(traffic), peers.deviations(traffic, tuned.rates)
    found = peers.judged(traffic, strengths)
    found[TUNED_KAYENTA] = peers.kayenta_often(traffic, strengths, tuned.kayenta_z)
    for kind, rules in (("", tuned.rules), (STRICT, tuned.strict_rules)):
        found |= {rule.name + kind: peers.by_rule(rule, deviations) for rule in rules}
    return found


def _tuned(cell: Alternative, runs: int, seed: int, on_progress: Progress) -> Tuned:
    """Rules and Kayenta with the limits that reject as many healthy canaries of this very configuration as ours does.

    As many as the upper end of the interval of ours, so that chance does not favour us; never more than ours promises.
    """
    rates, rejected = np.empty(0), 0
    strongest: list[Floats] = []
    deviations: dict[int, list[Floats]] = {}
    for rng, first, size in _batches(f"{cell.name}, healthy", runs, seed):
        plan, _ = cells.alternative_plan(rng, cell, size, regressed=False)
        traffic, rates = draw(rng, plan), plan.bad[STABLE, :, 0, 0]
        rejected += int(np.isfinite(ours.decide(traffic).fail_s).sum())
        strongest.append(peers.strongest(traffic, peers.kayenta_strengths(traffic)))
        for window, found in peers.deviations(traffic, rates).items():
            deviations.setdefault(window, []).append(found)
        on_progress(f"{cell.name}, tuning", first + size, runs)
    least, most = wilson(rejected, runs)
    rate = min(ours.SPEC.false_rollback_rate, most)
    healthy = {window: np.concatenate(parts) for window, parts in deviations.items()}
    rules, strict = (peers.tuned_rules(healthy, end) for end in (rate, min(rate, least)))
    return Tuned(rate, rules, strict, peers.tuned_kayenta_z(np.concatenate(strongest), rate), rates)


def _evidence_requests(cell: Alternative, runs: int, seed: int) -> float:
    """Canary requests after which, in 99 of 100 runs, a look would have rejected: one looks each second."""
    parts = []
    for rng, _, size in _batches(f"{cell.name}, each second", runs, seed):
        plan, begin = cells.alternative_plan(rng, cell, size, regressed=True, fine=True)
        traffic = draw(rng, plan)
        found = _measures(traffic, cell, begin, {OURS: ours.decide(traffic).fail_s})
        parts.append(found[OURS][:, REQUESTS])
    return _quantile(np.concatenate(parts), 0.99)


# -- what is measured of a run


def _measures(traffic: Traffic, cell: Alternative, begin: Floats, found: Mapping[str, Floats]) -> dict[str, Floats]:
    """By judge, of each run: seconds to detection (infinite if missed, nan if early), whether early, canary requests
    (infinite if missed) and bad ones of these until then; (runs, 4)."""
    served = _so_far(traffic.units[CANARY])
    harmed = _so_far(traffic.bad_units[CANARY, METRICS.index(cell.metric)])
    rows, last = np.arange(begin.size), traffic.plan.bins * traffic.plan.bin_s
    measured = {}
    for name, when in found.items():
        end = (np.minimum(when, last) / traffic.plan.bin_s).astype(int)
        start = np.minimum((begin / traffic.plan.bin_s).astype(int), end)
        requests, harm = (sums[rows, end] - sums[rows, start] for sums in (served, harmed))
        early = when <= begin
        taken = np.where(early, np.nan, when - begin)
        measured[name] = np.stack([taken, early, np.where(np.isfinite(when), requests, np.inf), harm], axis=-1)
    return measured


def _so_far(counts: Ints) -> Ints:
    """(runs, bins) to running sums before each bin and after the last, (runs, bins + 1)."""
    return np.concatenate([np.zeros_like(counts[:, :1]), np.cumsum(counts, axis=-1)], axis=-1)


def _detection(measured: Floats) -> Detection:
    early, harm = measured[:, EARLY] > 0, measured[:, HARM]
    seconds, requests = measured[~early, TAKEN], measured[~early, REQUESTS]
    if not seconds.size:
        seconds = requests = np.array([np.inf])
    aside = Z_95 * 0.5 / np.sqrt(seconds.size)
    return Detection(
        detected=float(np.isfinite(seconds).sum() / early.size),
        early=float(early.mean()),
        median_s=_quantile(seconds, 0.5),
        median_low_s=_quantile(seconds, max(0.0, 0.5 - aside)),
        median_high_s=_quantile(seconds, min(1.0, 0.5 + aside)),
        p90_s=_quantile(seconds, 0.9),
        requests=_quantile(requests, 0.5),
        harm=float(harm.mean()),
        harm_error=float(Z_95 * harm.std() / np.sqrt(harm.size)),
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
