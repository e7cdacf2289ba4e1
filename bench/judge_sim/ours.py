"""Our judge on a batch of runs: the functions that the operator calls, with one more axis."""

import json
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.judge_sim.traffic import CANARY, DRIFT, LATENCIES, METRICS, MINUTE_S, STABLE, Traffic
from slipway_operator.judging import verdict as judging
from slipway_operator.judging.evidence import log_combined
from slipway_operator.model import wire
from slipway_operator.model.analysis import AnalysisSpec, Counts, Epoch, Kind, MetricSpec

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RARE = 0.005
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
    """Of each run: when it was rejected, by which metric, and when it first could have passed; infinite if never."""

    fail_s: Floats
    blamed: Ints
    pass_s: Floats
    log_evidence: Floats  # (metrics, runs, seconds)


def decide(traffic: Traffic) -> Decisions:
    """Looks every second for a failure and every minute for a pass."""
    sums = [cumulated(traffic, index) for index in range(len(METRICS))]
    logs = np.stack([evidence(traffic, index, sums[index]) for index in range(len(METRICS))])
    total = log_combined(np.moveaxis(logs, 0, -1), [metric.share for metric in SPEC.metrics])
    over = total >= math.log(1 / SPEC.false_rollback_rate)
    units = _units(traffic)
    doubted = _mismatched(traffic, units)
    over &= ~np.repeat(doubted, MINUTE_S, axis=-1)
    failed = over.any(axis=-1)
    first = over.argmax(axis=-1)
    blamed = logs[:, np.arange(first.size), first].argmax(axis=0)
    fail_s = np.where(failed, first + 1.0, np.inf)
    return Decisions(fail_s, blamed, _pass_s(traffic, sums, units, doubted), logs)


def cumulated(traffic: Traffic, index: int) -> tuple[Ints, Ints]:
    """Bad units so far of canary and of stable in each epoch, (runs, seconds, epochs)."""
    counts = traffic.bad_units[:, index]
    if SPEC.metrics[index].latency and traffic.plan.warmup_s:
        counts = counts.copy()
        counts[..., : traffic.plan.warmup_s] = 0
    canary, stable = (by_epoch(traffic, counts[side]) for side in (CANARY, STABLE))
    return canary, stable


def by_epoch(traffic: Traffic, counts: Ints, step_s: int = 1) -> Ints:
    """Running sums within each epoch, (runs, steps) to (runs, steps, epochs); a step is a second or a minute."""
    # Each epoch lies in one piece of memory, as the sums over them want it.
    found = np.zeros((len(traffic.epochs), *counts.shape), dtype=np.int64)
    for epoch, (_, begin_s, end_s) in enumerate(traffic.epochs):
        begin, end = begin_s // step_s, end_s // step_s
        np.cumsum(counts[:, begin:end], axis=-1, out=found[epoch, :, begin:end])
        found[epoch, :, end:] = found[epoch, :, end - 1, None]
    return np.moveaxis(found, 0, -1)


def evidence(traffic: Traffic, index: int, sums: tuple[Ints, Ints]) -> Floats:
    """ln E of a metric at each second, (runs, seconds): computed where a count changed, and kept until the next."""
    canary, stable = sums
    changed = np.ones(canary.shape[:2], dtype=bool)
    changed[:, 1:] = np.diff((canary + stable).sum(axis=-1), axis=-1) != 0
    kc, ks = canary[changed], stable[changed]
    found = judging.log_evidence(SPEC.metrics[index], judging.Tally(traffic.weights, kc, ks, kc, ks))
    return found[np.cumsum(changed.ravel()) - 1].reshape(changed.shape)


def _units(traffic: Traffic) -> tuple[Ints, Ints]:
    """Units so far at the end of each minute, (runs, minutes, epochs), of canary and of stable."""
    shape = (traffic.plan.runs, traffic.minutes, MINUTE_S)
    canary, stable = (
        by_epoch(traffic, traffic.units[side].reshape(shape).sum(axis=-1), MINUTE_S) for side in (CANARY, STABLE)
    )
    return canary, stable


def _mismatched(traffic: Traffic, units: tuple[Ints, Ints]) -> npt.NDArray[np.bool_]:
    """Whether the split is doubted during each minute, from what its predecessor saw; (runs, minutes)."""
    nc, ns = units
    found = judging.mismatched(judging.Tally(traffic.weights, nc, ns, nc, ns))
    return np.concatenate([np.zeros_like(found[:, :1]), found[:, :-1]], axis=-1)


def _pass_s(
    traffic: Traffic, sums: list[tuple[Ints, Ints]], units: tuple[Ints, Ints], doubted: npt.NDArray[np.bool_]
) -> Floats:
    at = slice(MINUTE_S - 1, None, MINUTE_S)
    nc, ns = units
    passed = ~doubted & (nc.sum(axis=-1) >= SPEC.min_samples.canary_requests)
    passed &= (np.arange(1, traffic.minutes + 1) * MINUTE_S > traffic.plan.warmup_s)[None, :]
    for index, metric in enumerate(SPEC.metrics):
        kc, ks = (counts[:, at] for counts in sums[index])
        weights = np.full_like(traffic.weights, 0.5) if index == DRIFT else traffic.weights
        tally = judging.Tally(weights, nc, ns, kc, ks)
        passed &= judging.passes(metric, tally, SPEC.false_promote_rate)
    return np.where(passed.any(axis=-1), (passed.argmax(axis=-1) + 1.0) * MINUTE_S, np.inf)


def restarted(rng: np.random.Generator, traffic: Traffic, before: Decisions) -> int:
    """Runs whose evidence differs in any bit at any second after an operator lost all but its status at a random one.

    What it kept goes through the very JSON of the status.
    """
    runs, seconds = traffic.units.shape[1:]
    at = rng.integers(0, seconds, size=runs)
    differ = np.zeros(runs, dtype=bool)
    for index in range(len(METRICS)):
        sums = cumulated(traffic, index)
        kept = _through_json(traffic, index, sums, at)
        resumed = [
            np.where(np.arange(seconds)[None, :, None] > at[:, None, None], old[:, None, :] + (now - then), now)
            for old, now, then in zip(kept, sums, (_then(item, at) for item in sums), strict=True)
        ]
        after = evidence(traffic, index, (resumed[0], resumed[1]))
        differ |= (after.view(np.int64) != before.log_evidence[index].view(np.int64)).any(axis=-1)
    return int(differ.sum())


def _then(counts: Ints, at: Ints) -> Ints:
    return counts[np.arange(at.size), at][:, None, :]


def _through_json(traffic: Traffic, index: int, sums: tuple[Ints, Ints], at: Ints) -> tuple[Ints, Ints]:
    """Counts at these seconds, (runs, epochs), written to a status and read again."""
    canary, stable = (counts[np.arange(at.size), at] for counts in sums)
    kept: list[Counts] = []
    for kc, ks in zip(canary.tolist(), stable.tolist(), strict=True):
        sides = zip(traffic.epochs, kc, ks, strict=True)
        counts = Counts(METRICS[index], tuple(Epoch(weight, a, b, a, b) for (weight, _, _), a, b in sides))
        kept.append(wire.from_json(Counts, json.loads(json.dumps(wire.to_json(counts)))))
    found = np.array([[(epoch.kc, epoch.ks) for epoch in counts.epochs] for counts in kept], dtype=np.int64)
    return found[..., 0], found[..., 1]
