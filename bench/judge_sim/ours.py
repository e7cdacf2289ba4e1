"""Our judge on a batch of runs: the functions that the operator calls, with one more axis, whenever it reads."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.judge_sim.traffic import CANARY, DRIFT, LATENCIES, METRICS, MINUTE_S, STABLE, Traffic, by_minute
from slipway_contracts.api.reading import encoded, read
from slipway_contracts.api.types import strict
from slipway_contracts.api.writing import to_json
from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch
from slipway_operator.judging import verdict as judging
from slipway_operator.judging.evidence import log_combined
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Sums = tuple[Ints, Ints]  # of canary and of stable, each (epochs, runs, bins or minutes)

RARE = 0.005
# Evidence at so many points at once stays within a core's cache: some eight arrays for each epoch.
POINTS = 2048
# Eight metrics with equal shares and nothing tolerated: what the detection table of the design assumes.
SPEC = AnalysisSpec(
    metrics=tuple(
        MetricSpec(
            name,
            kind=Kind.PAIRED_DRIFT if name == "drift" else Kind.BAD_EVENT,
            share=1 / len(METRICS),
            ok_below=RARE if name in ("errors", "empty", "stuck", "malformed") else None,
            latency=name in LATENCIES,
        )
        for name in METRICS
    )
)


@dataclass(frozen=True)
class Decisions:
    """Of each run: when it was rejected, and when it first could have passed, in seconds; infinite if never."""

    fail_s: Floats
    pass_s: Floats
    log_evidence: Floats  # (metrics, runs, bins)


def decide(traffic: Traffic) -> Decisions:
    """Looks for a failure at each reading and for a pass each minute."""
    return _decided(traffic, [cumulated(traffic, index) for index in range(len(METRICS))])


def _decided(traffic: Traffic, sums: list[Sums]) -> Decisions:
    logs = np.stack([evidence(traffic, index, sums[index]) for index in range(len(METRICS))])
    total = log_combined(np.moveaxis(logs, 0, -1), [metric.share for metric in SPEC.metrics])
    units = _units(traffic)
    doubted = _mismatched(traffic, units)
    over = total >= math.log(1 / SPEC.false_rollback_rate)
    over &= ~np.repeat(doubted, MINUTE_S // traffic.plan.bin_s, axis=-1)
    fail_s = np.where(over.any(axis=-1), (over.argmax(axis=-1) + 1.0) * traffic.plan.bin_s, np.inf)
    return Decisions(fail_s, _pass_s(traffic, sums, units, doubted), logs)


def cumulated(traffic: Traffic, index: int) -> Sums:
    """Bad units so far in each epoch, (epochs, runs, bins), of canary and of stable."""
    plan, counts = traffic.plan, traffic.bad_units[:, index]
    if SPEC.metrics[index].latency and plan.warmup_s:
        counts = counts.copy()
        counts[..., : plan.warmup_s // plan.bin_s] = 0
    return by_epoch(traffic, counts[CANARY], plan.bin_s), by_epoch(traffic, counts[STABLE], plan.bin_s)


def by_epoch(traffic: Traffic, counts: Ints, step_s: int) -> Ints:
    """Running sums within each epoch, (runs, steps) to (epochs, runs, steps)."""
    found = np.zeros((len(traffic.epochs), *counts.shape), dtype=np.int64)
    for epoch, (_, begin_s, end_s) in enumerate(traffic.epochs):
        begin, end = begin_s // step_s, end_s // step_s
        np.cumsum(counts[:, begin:end], axis=-1, out=found[epoch, :, begin:end])
        found[epoch, :, end:] = found[epoch, :, end - 1, None]
    return found


def evidence(traffic: Traffic, index: int, sums: Sums) -> Floats:
    """ln E of a metric at each reading, (runs, bins): worked out where a count changed, and kept until the next."""
    found = np.empty(sums[CANARY].shape[1:])
    for epoch, (_, begin_s, end_s) in enumerate(traffic.epochs):
        span = slice(begin_s // traffic.plan.bin_s, end_s // traffic.plan.bin_s)
        # An epoch that has not begun is not in the status either.
        canary_bad, stable_bad = (counts[: epoch + 1, :, span] for counts in sums)
        changed = _changed(canary_bad[epoch] + stable_bad[epoch])
        values = _log_evidence(index, traffic.weights[: epoch + 1], canary_bad[:, changed], stable_bad[:, changed])
        found[:, span] = values[np.cumsum(changed.ravel()) - 1].reshape(changed.shape)
    return found


def _changed(counts: Ints) -> Flags:
    """Where a running sum, (runs, bins), is not what it was one bin before; the first always counts."""
    changed = np.ones(counts.shape, dtype=bool)
    changed[:, 1:] = counts[:, 1:] != counts[:, :-1]
    return changed


def _log_evidence(index: int, weights: Floats, canary_bad: Ints, stable_bad: Ints) -> Floats:
    """ln E at these counts, (epochs, points) to (points,)."""
    # As floats they need no conversion for each alternative; below 2^53 the bits are the same.
    canary, stable = canary_bad.astype(np.float64), stable_bad.astype(np.float64)
    parts = [slice(begin, begin + POINTS) for begin in range(0, canary_bad.shape[1], POINTS)]
    found = [
        judging.log_evidence(SPEC.metrics[index], _tally(weights, canary[:, part], stable[:, part])) for part in parts
    ]
    return np.concatenate(found)


def _tally(
    weights: Floats, bad_canary: npt.ArrayLike, bad_stable: npt.ArrayLike, units: Sums | None = None
) -> judging.Tally:
    """Counts (epochs, ...) as the judge wants them, (..., epochs); bad ones stand in for units where none are given."""
    canary_bad, stable_bad = (np.moveaxis(np.asarray(item), 0, -1) for item in (bad_canary, bad_stable))
    canary_units, stable_units = (
        (canary_bad, stable_bad) if units is None else (np.moveaxis(item, 0, -1) for item in units)
    )
    return judging.Tally(weights, canary_units, stable_units, canary_bad, stable_bad)


def _units(traffic: Traffic) -> Sums:
    """Units so far at the end of each minute, (epochs, runs, minutes), of canary and of stable."""
    canary, stable = (
        by_epoch(traffic, by_minute(traffic.units[side], traffic.plan.bin_s), MINUTE_S) for side in (CANARY, STABLE)
    )
    return canary, stable


def _mismatched(traffic: Traffic, units: Sums) -> Flags:
    """Whether the split is doubted during each minute, from what its predecessor saw; (runs, minutes)."""
    found = judging.mismatched(_tally(traffic.weights, *units))
    return np.concatenate([np.zeros_like(found[:, :1]), found[:, :-1]], axis=-1)


def _pass_s(traffic: Traffic, sums: list[Sums], units: Sums, doubted: Flags) -> Floats:
    per_minute = MINUTE_S // traffic.plan.bin_s
    at = slice(per_minute - 1, None, per_minute)
    passed = ~doubted & (units[CANARY].sum(axis=0) >= SPEC.min_samples.canary_requests)
    passed &= (np.arange(1, traffic.minutes + 1) * MINUTE_S > traffic.plan.warmup_s)[None, :]
    for index, metric in enumerate(SPEC.metrics):
        weights = np.full_like(traffic.weights, 0.5) if index == DRIFT else traffic.weights
        tally = _tally(weights, sums[index][CANARY][..., at], sums[index][STABLE][..., at], units)
        passed &= judging.passes(metric, tally, SPEC.false_promote_rate)
    return np.where(passed.any(axis=-1), (passed.argmax(axis=-1) + 1.0) * MINUTE_S, np.inf)


# -- a restart


def restarted(rng: np.random.Generator, traffic: Traffic, before: Decisions) -> int:
    """Runs of which anything differs in any bit after an operator lost all but its status, after a random reading.

    What it kept goes through the very JSON of the status; evidence at each reading and verdicts are compared.
    """
    runs, bins = traffic.units.shape[1:]
    at = np.asarray(rng.integers(0, bins, size=runs))
    after = _decided(traffic, [_resumed(traffic, index, at) for index in range(len(METRICS))])
    differ = (after.log_evidence.view(np.int64) != before.log_evidence.view(np.int64)).any(axis=(0, 2))
    return int((differ | (after.fail_s != before.fail_s) | (after.pass_s != before.pass_s)).sum())


def _resumed(traffic: Traffic, index: int, at: Ints) -> Sums:
    """Sums as before up to these readings, (runs,), and then what was read again and what came since."""
    before = cumulated(traffic, index)
    then = [counts[:, np.arange(at.size), at] for counts in before]
    kept = _through_json(traffic, METRICS[index], then[CANARY], then[STABLE])
    later = np.arange(before[CANARY].shape[-1]) > at[:, None]
    canary, stable = (
        np.where(later, read[..., None] + (counts - once[..., None]), counts)
        for read, counts, once in zip(kept, before, then, strict=True)
    )
    return canary, stable


def _through_json(traffic: Traffic, metric: str, canary: Ints, stable: Ints) -> Sums:
    """Counts, (epochs, runs), written to a status and read again."""
    kept: list[Counts] = []
    for canary_bad, stable_bad in zip(canary.T.tolist(), stable.T.tolist(), strict=True):
        sides = zip(traffic.epochs, canary_bad, stable_bad, strict=True)
        counts = Counts(metric, tuple(Epoch(weight, a, b, a, b) for (weight, _, _), a, b in sides))
        kept.append(read(strict(Counts), encoded(to_json(counts))))
    found = np.array(
        [[(epoch.canary_bad, epoch.stable_bad) for epoch in counts.epochs] for counts in kept], dtype=np.int64
    )
    return found[..., 0].T, found[..., 1].T
