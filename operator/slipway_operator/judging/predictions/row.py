"""A metric of predictions: its row of a verdict, and sentences about it.

As a report it decides nothing. With maxPsi it may reject, when the evidence shows that the index is above it; it passes
with enough predictions whose index is below, which is an estimate and no proof.
"""

import math
from dataclasses import dataclass

import numpy as np

from slipway_contracts.counters import BINS
from slipway_operator.api.v1alpha1.analysis_run import Counts, PredictionDrift
from slipway_operator.judging.evidence import Floats
from slipway_operator.judging.predictions.difference import log_difference
from slipway_operator.judging.predictions.excess import log_excess
from slipway_operator.judging.predictions.index import stability_index
from slipway_operator.judging.sample_ratio import LOG_MISMATCH, log_mismatch_evidence
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec, of_bin
from slipway_operator.model.analysis.verdict import Finding, MetricVerdict, Reading

READ = "gateways read JSON of up to 64 KiB, and make bins from the first 200 predictions that each of them reads"
_DIGITS = 3
_LARGEST = 300.0  # a larger logarithm is shown as a power of ten


@dataclass(frozen=True, slots=True)
class _Binned:
    """Predictions of both sides, shape (epochs, bins); canary's weight and the clock epoch of each epoch."""

    canary: Floats
    stable: Floats
    weights: Floats
    clocks: tuple[int, ...]


def row(spec: AnalysisSpec, metric: MetricSpec, reading: Reading) -> MetricVerdict:
    """The metric's row in the verdict: counts, index, evidence and finding; without maxPsi it only reports."""
    threshold = math.log(1 / spec.false_rollback_rate)
    found = _binned(metric.name, reading)
    made = MetricVerdict(metric.name, Finding.NO_DATA, log_threshold=threshold)
    if found is None:
        return made
    drift = _drift(found, reading, metric.name, threshold)
    if metric.max_psi is None:
        return _with(made, Finding.REPORTED, drift)
    if _is_unequal(found):
        return _with(made, Finding.UNEQUAL, drift)
    excess = log_excess(found.canary, found.stable, found.weights, found.clocks, metric.max_psi)
    evidence = float(excess) + math.log(metric.share or 1.0)
    finding = Finding.WITHIN if drift.psi < metric.max_psi else Finding.UNDECIDED
    finding = Finding.WORSE if evidence >= threshold else finding
    return _with(made, finding, drift, evidence)


def sentence(metric: MetricSpec, drift: PredictionDrift) -> str:
    """The index and the numbers of predictions in words, and maxPsi where the metric has it."""
    bound = "" if metric.max_psi is None else f" (maxPsi {metric.max_psi:g})"
    text = (
        f"population stability index {drift.psi:g}{bound}, by {drift.canary:,} predictions of canary and "
        f"{drift.stable:,} of stable; that they differ at all has e={drift.evidence}"
    )
    return f"{text}; {drift.unread:,} were not read" if drift.unread else text


def _with(made: MetricVerdict, finding: Finding, drift: PredictionDrift, log_evidence: float = 0.0) -> MetricVerdict:
    return MetricVerdict(
        made.name,
        finding,
        drift.canary,
        drift.stable,
        log_evidence=log_evidence,
        log_threshold=made.log_threshold,
        drift=drift,
    )


def _drift(found: _Binned, reading: Reading, metric: str, threshold: float) -> PredictionDrift:
    index, chance = stability_index(found.canary, found.stable, found.weights)
    differs = float(log_difference(found.canary, found.stable, found.weights, found.clocks))
    return PredictionDrift(
        psi=round(float(index), _DIGITS),
        chance=round(float(chance), _DIGITS),
        evidence=f"{math.exp(differs):.3g}" if abs(differs) < _LARGEST else f"10^{differs / math.log(10):.0f}",
        canary=int(found.canary.sum()),
        stable=int(found.stable.sum()),
        unread=sum(
            epoch.canary_bad + epoch.stable_bad for epoch in reading.by_metric.get(metric, Counts(metric)).epochs
        ),
        differs=differs >= threshold,
    )


def _is_unequal(found: _Binned) -> bool:
    """Whether predictions of one side are read more often than its weight explains."""
    own, other = found.canary.sum(axis=-1), found.stable.sum(axis=-1)
    return bool(log_mismatch_evidence(own, other, found.weights) >= LOG_MISMATCH)


def _binned(metric: str, reading: Reading) -> _Binned | None:
    """The metric's predictions by epoch and bin; None where a side has none."""
    bins = [reading.by_metric.get(of_bin(metric, place), Counts("")).epochs for place in range(BINS)]
    if not bins[0] or any(len(epochs) != len(bins[0]) for epochs in bins):
        return None
    canary = np.array([[epoch.canary_bad for epoch in epochs] for epochs in bins], dtype=np.float64).T
    stable = np.array([[epoch.stable_bad for epoch in epochs] for epochs in bins], dtype=np.float64).T
    if not canary.any() or not stable.any():
        return None
    clocks = reading.clocks[: len(bins[0])] or (0,) * len(bins[0])
    return _Binned(canary, stable, np.array([epoch.weight / 100 for epoch in bins[0]]), tuple(clocks))
