"""The verdict: pass, fail or inconclusive, with the reason and the numbers behind it.

Fails as soon as the evidence of all metrics together crosses 1/falseRollbackRate. Passes when every metric is proved
not to be worse than its margin and nothing prevents a pass. Everything else, above all no data, is inconclusive.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, ExtraBound, Outcome, Reason, Symptom
from slipway_operator.judging import cost, forecast, sentences
from slipway_operator.judging.bounds import Flags, log_rate_below, log_ratio_below, not_worse, ratio_upper
from slipway_operator.judging.drift import log_drift_evidence
from slipway_operator.judging.evidence import Floats, Numbers, log_combined, log_over_starts, ratio_exponents
from slipway_operator.judging.margins import scores, shadow
from slipway_operator.judging.margins.extra import LIVE_BAD, live_bets, live_extra_upper, log_ipw_below
from slipway_operator.judging.predictions import agreement
from slipway_operator.judging.predictions import row as predictions
from slipway_operator.judging.sample_ratio import LOG_MISMATCH, log_mismatch_evidence
from slipway_operator.model.analysis.spec import AnalysisSpec, Kind, MetricSpec, of_slowdown, without_floor
from slipway_operator.model.analysis.template import COMPOSITE, INCLUDED
from slipway_operator.model.analysis.verdict import Finding, MetricVerdict, Reading, Verdict


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of canary and stable as arrays: units, and bad ones, which have the metric's event.

    Weights are fractions of shape (epochs,), the others have shape (..., epochs); leading axes are for example runs.
    """

    weights: Floats
    canary_units: Numbers
    stable_units: Numbers
    canary_bad: Numbers
    stable_bad: Numbers

    @classmethod
    def of(cls, epochs: Sequence[Epoch]) -> "Tally":
        return cls(
            np.array([epoch.weight / 100 for epoch in epochs], dtype=np.float64),
            *(
                np.array([getattr(epoch, name) for epoch in epochs], dtype=np.int64)
                for name in ("canary_units", "stable_units", "canary_bad", "stable_bad")
            ),
        )


# A canary that is as fast as stable in the median may have a slow tail: at most this part more of its requests may be
# slow by stable's quantile.
TAIL = 0.05
THOUSAND = 1000

# Reasons of an inconclusive verdict that more pairs would remove.
_WAITS_FOR_PAIRS = (Reason.NO_DATA, Reason.WARM_UP, Reason.UNDECIDED, Reason.SHADOW_STARVED)
# Findings of rows that are no evidence against a canary.
_NO_EVIDENCE = (Finding.NO_DATA, Finding.NO_FLOOR, Finding.REPORTED, Finding.UNEQUAL)


# -- for one canary or many at once: the operator and the simulation call the same functions


def log_evidence(spec: MetricSpec, tally: Tally) -> Floats:
    """ln E that canary is worse than this metric tolerates, shape (...)."""
    if spec.kind is Kind.PAIRED_DRIFT:
        return log_drift_evidence(tally.canary_bad, tally.stable_bad)
    return log_over_starts(
        ratio_exponents(tally.canary_bad, tally.stable_bad, tally.weights, np.float64(spec.tolerate_ratio))
    )


def passes(spec: MetricSpec, tally: Tally, false_promote_rate: float, slowdown: Tally | None = None) -> Flags:
    """Whether this metric is proved not to be worse than its margin, shape (...).

    Args:
        spec: the metric.
        tally: its counts.
        false_promote_rate: the highest probability that the metric passes although canary is worse than the margin.
        slowdown: for a metric with max_slowdown, requests of stable above its median, and of canary above its limit.
    """
    if spec.max_extra is not None:
        return _extra_below(tally, spec.max_extra / THOUSAND, false_promote_rate)
    if spec.max_slowdown is not None:
        if slowdown is None:
            return np.zeros(np.asarray(tally.canary_bad).shape[:-1], dtype=np.bool_)
        # A canary that is slower by the margin is above its limit as often as stable is above its median.
        below = log_ratio_below(slowdown.canary_bad, slowdown.stable_bad, slowdown.weights, np.float64(1.0))
        return np.asarray(below >= math.log(1 / false_promote_rate)) & _extra_below(
            tally, TAIL, false_promote_rate, TAIL
        )
    by_ratio = log_ratio_below(tally.canary_bad, tally.stable_bad, tally.weights, np.float64(spec.max_ratio))
    by_rate = None
    if spec.ok_below is not None:
        by_rate = log_rate_below(
            np.asarray(tally.canary_bad).sum(axis=-1), np.asarray(tally.canary_units).sum(axis=-1), spec.ok_below
        )
    return not_worse(by_ratio, by_rate, false_promote_rate)


def _extra_below(tally: Tally, margin: float, false_promote_rate: float, expected: float = LIVE_BAD) -> Flags:
    units, bets = (
        np.asarray(tally.canary_units) + np.asarray(tally.stable_units),
        live_bets(tally.weights, margin, expected),
    )
    found = log_ipw_below(tally.canary_bad, tally.stable_bad, units, tally.weights, margin, bets)
    return np.asarray(found >= math.log(1 / false_promote_rate))


def mismatched(tally: Tally) -> Flags:
    """Whether the split of requests contradicts the weights, shape (...)."""
    return np.asarray(log_mismatch_evidence(tally.canary_units, tally.stable_units, tally.weights) >= LOG_MISMATCH)


# -- for one canary


def judge(spec: AnalysisSpec, reading: Reading) -> Verdict:
    """The verdict on a reading of the counters. The same reading gives the same bits, in any process."""
    verdict = _judged(spec, reading)
    # Pairs that have not ended count against a pass. Where they alone prevent it, the rollout waits for their end.
    if verdict.outcome is Outcome.INCONCLUSIVE and shadow.open_pairs(reading):
        settled = _judged(spec, shadow.without_open(reading))
        if settled.outcome is Outcome.PASS:
            text = shadow.settling(shadow.sentence(spec, reading, verdict.metrics), reading)
            return dataclasses.replace(verdict, reason=Reason.PAIRS_OPEN, message=text, seconds_left=None)
    return verdict


def _judged(spec: AnalysisSpec, reading: Reading) -> Verdict:
    rows = tuple(_row(spec, metric, reading) for metric in spec.metrics)
    gating = {metric.name for metric in spec.gating}
    deciding = [row for row in rows if row.name in gating]
    bounded = next((row for row in deciding if row.extra and spec.bounded and row.name == spec.bounded.name), None)
    compared = [row for row in deciding if row.finding not in _NO_EVIDENCE and row.canary_units and row.stable_units]
    total = _total(row.log_evidence for row in compared)
    threshold = math.log(1 / spec.false_rollback_rate)

    def conclude(outcome: Outcome, reason: Reason, message: str, metric: str = "") -> Verdict:
        verdict = Verdict(outcome, reason, message, metric, total, threshold, metrics=rows)
        verdict = dataclasses.replace(verdict, extra=bounded.extra if bounded else None)
        return _with_forecast(spec, reading, _with_sources(spec, reading, verdict))

    if veto := _veto(spec, reading.symptoms):
        text = f"{veto.veto}: canary shows {veto.canary:g}, stable {veto.stable:g}{sentences.unit(veto)}"
        return conclude(Outcome.FAIL, Reason.VETOED, text, veto.veto)
    if not deciding:  # only metrics with a provider decide; see judging/measurement.py
        return conclude(Outcome.PASS, Reason.NOT_WORSE, "nothing is compared with stable")
    if doubt := _doubt_of_all(spec, reading, deciding):
        return conclude(Outcome.INCONCLUSIVE, *doubt)
    if compared and total >= threshold:
        blamed = max(compared, key=lambda row: row.log_evidence)
        return conclude(
            Outcome.FAIL, Reason.WORSE, sentences.rejection(spec, blamed, reading, total, threshold), blamed.name
        )
    if doubt := _doubt_of_passing(spec, reading, deciding):
        return conclude(Outcome.INCONCLUSIVE, *doubt)
    if spec.compares_pairs:
        return conclude(Outcome.PASS, Reason.NOT_WORSE, shadow.sentence(spec, reading, deciding))
    text = f"no metric is worse than stable by its margin ({len(compared)} compared)"
    parts = [
        text,
        *sentences.proofs(spec, deciding),
        *_favoured(spec, reading),
        *_reports(reading, deciding),
        *sentences.predictions_of(spec, rows),
        *sentences.costs_of(spec, rows),
    ]
    return conclude(Outcome.PASS, Reason.NOT_WORSE, "; ".join(parts))


def _with_sources(spec: AnalysisSpec, reading: Reading, verdict: Verdict) -> Verdict:
    """The verdict with the drift of predictions, and with the sources, quality and scores of pairs.

    Where pairs are few, the message has the expected time as well.
    """
    drift = next((row.drift for row in verdict.metrics if row.drift), None)
    verdict = dataclasses.replace(verdict, predictions=drift, cost=reading.cost if spec.cost else None)
    if not spec.compares_pairs:
        return verdict
    gating = {metric.name for metric in spec.gating}
    slow = shadow.offer(spec, reading, [row for row in verdict.metrics if row.name in gating])
    text = f"{verdict.message}; {slow}" if slow and verdict.reason in _WAITS_FOR_PAIRS else verdict.message
    quality, rated = shadow.quality(reading), scores.found(reading)
    return dataclasses.replace(verdict, message=text, pairs=shadow.sources(reading), quality=quality, scores=rated)


def _row(spec: AnalysisSpec, metric: MetricSpec, reading: Reading) -> MetricVerdict:
    if by_its_own := _own_row(metric):
        return by_its_own(spec, metric, reading)
    if metric.is_paired:
        return shadow.row(spec, metric, reading, covered=_is_covered(spec, metric))
    epochs = reading.by_metric.get(metric.name, Counts(metric.name)).epochs
    sums = _sums(epochs)
    threshold = math.log(1 / spec.false_rollback_rate)
    if finding := _drift_finding(metric, reading):
        shown = sums if sums["canary_units"] else _sums(_unfloored(metric.name, reading))
        return _row_of(metric, finding, shown, log_threshold=threshold)
    burdened = metric.latency and reading.canary_load > 1 + spec.max_load_difference
    if not sums["canary_units"] or not sums["stable_units"]:
        # Latencies of a canary with more load than stable are not counted at all.
        none = Finding.NOT_COMPARED if burdened else Finding.NO_DATA
        return _row_of(metric, none, sums, log_threshold=threshold)
    tally = Tally.of(epochs)
    if metric.of_feedback and bool(mismatched(tally)):
        return _row_of(metric, Finding.UNEQUAL, sums, log_threshold=threshold)
    evidence = float(log_evidence(metric, tally)) + math.log(metric.share or 1.0)
    upper = ratio_upper(tally.canary_bad, tally.stable_bad, tally.weights, spec.false_promote_rate)
    finding = Finding.UNDECIDED
    if evidence >= threshold:
        # Latencies were counted only under the load of stable or less, so load does not explain them.
        finding = Finding.WORSE
    elif burdened:
        finding = Finding.NOT_COMPARED
    elif _is_covered(spec, metric):
        finding = Finding.COVERED
    elif bool(passes(metric, tally, spec.false_promote_rate, _slowdown(metric, reading))):
        finding = Finding.NOT_WORSE
    end = _forecast(spec, metric, reading)
    decided = finding in (Finding.WORSE, Finding.NOT_WORSE, Finding.COVERED)
    return _row_of(
        metric, finding, sums, log_evidence=evidence, log_threshold=threshold, ratio_upper=float(upper),
        samples_needed=sums["canary_units"] if decided else end.samples,
        extra=_extra(metric, tally, spec.false_promote_rate),
    )  # fmt: skip


def _own_row(metric: MetricSpec) -> Callable[[AnalysisSpec, MetricSpec, Reading], MetricVerdict] | None:
    """What makes the row of a metric that compares no rates of bad events; None of any other."""
    if metric.of_cost:
        return cost.row
    if metric.of_predictions:
        return predictions.row
    return agreement.row if metric.of_agreement or metric.of_choices else None


def _row_of(metric: MetricSpec, finding: Finding, sums: dict[str, int], **numbers: Any) -> MetricVerdict:
    return MetricVerdict(
        metric.name,
        finding,
        sums["canary_units"],
        sums["stable_units"],
        sums["canary_bad"],
        sums["stable_bad"],
        **numbers,
    )


def _is_covered(spec: AnalysisSpec, metric: MetricSpec) -> bool:
    """Whether a metric passes without a proof of its own.

    Predictions have none, and a bound on the composite event also bounds each event that it includes.
    """
    if metric.of_predictions:
        return True
    bounds = any(one.event == COMPOSITE and one.max_extra is not None for one in spec.gating)
    return bounds and metric.event in INCLUDED and metric.max_extra is None


def _slowdown(metric: MetricSpec, reading: Reading) -> Tally | None:
    epochs = reading.by_metric.get(of_slowdown(metric.name), Counts("")).epochs
    return Tally.of(epochs) if any(epoch.canary_units and epoch.stable_units for epoch in epochs) else None


def _extra(metric: MetricSpec, tally: Tally, false_promote_rate: float) -> ExtraBound | None:
    """The bound on extra bad responses per 1,000, rounded up: what is shown is proved. None without max_extra."""
    if metric.max_extra is None:
        return None
    units, bets = (
        np.asarray(tally.canary_units) + np.asarray(tally.stable_units),
        live_bets(tally.weights, metric.max_extra / THOUSAND),
    )
    at_most = float(
        live_extra_upper(tally.canary_bad, tally.stable_bad, units, tally.weights, bets, false_promote_rate)
    )
    (canary_units, stable_units), (canary_bad, stable_bad) = (
        (int(np.sum(a)), int(np.sum(b)))
        for a, b in ((tally.canary_units, tally.stable_units), (tally.canary_bad, tally.stable_bad))
    )
    estimate = round(THOUSAND * (canary_bad / canary_units - stable_bad / stable_units), 1)
    return ExtraBound(math.ceil(10 * THOUSAND * at_most) / 10, estimate, metric.max_extra)


def _forecast(spec: AnalysisSpec, metric: MetricSpec, reading: Reading) -> forecast.End:
    if metric.of_agreement or metric.of_choices:
        return agreement.expected(spec, metric, reading)
    if metric.is_paired:
        return forecast.End(*shadow.expected(spec, metric, reading))
    counts = (reading.by_metric.get(name, Counts(name)) for name in (metric.name, of_slowdown(metric.name)))
    epochs, slowdown = (item.epochs for item in counts)
    return forecast.expected(metric, epochs, spec.false_rollback_rate, spec.false_promote_rate, slowdown)


def _sums(epochs: Sequence[Epoch]) -> dict[str, int]:
    return {
        name: sum(getattr(epoch, name) for epoch in epochs)
        for name in ("canary_units", "stable_units", "canary_bad", "stable_bad")
    }


def _unfloored(metric: str, reading: Reading) -> Sequence[Epoch]:
    return reading.by_metric.get(without_floor(metric), Counts(metric)).epochs


def _drift_finding(metric: MetricSpec, reading: Reading) -> Finding | None:
    """The finding on mirrored prompts that needs no evidence; None where the evidence decides."""
    if metric.kind is not Kind.PAIRED_DRIFT:
        return None
    paired = any(epoch.canary_units for epoch in reading.by_metric.get(metric.name, Counts(metric.name)).epochs)
    alone = any(epoch.canary_units for epoch in _unfloored(metric.name, reading))
    if reading.weights_differ and (paired or alone):
        return Finding.REPORTED
    return Finding.NO_FLOOR if alone and not paired else None


def _doubt_of_all(
    spec: AnalysisSpec, reading: Reading, rows: Sequence[MetricVerdict]
) -> tuple[Reason, str, str] | None:
    """Why no comparison is valid, so that there is no pass or fail (reason, message, metric); None if they are."""
    if spec.compares_pairs:
        return shadow.doubt_of_all(spec, reading, rows)
    counted = [row for row in rows if not row.cost]  # costs have minutes in place of requests
    if counted and not any(row.canary_units and row.stable_units for row in counted):
        if reading.seconds < spec.min_samples.warmup_seconds:
            return Reason.WARM_UP, sentences.warming(spec, reading), ""
        return Reason.NO_DATA, sentences.nothing(reading, counted), ""
    if reading.age_seconds > spec.stale_seconds:
        text = f"the counters are {reading.age_seconds:.0f} s old; {spec.stale_seconds} s are allowed"
        return Reason.STALE, text, ""
    # The number of requests that end, or have a latency, depends on the revision: a slow one ends fewer. So the test
    # takes the requests that the split assigned.
    if reading.assigned and bool(mismatched(Tally.of(reading.assigned))):
        canary_units, stable_units = sentences.given(reading)
        share = f"{canary_units} of {canary_units + stable_units}"
        text = f"canary was given {share} requests, which its weight does not explain"
        return Reason.SAMPLE_RATIO_MISMATCH, text, ""
    return None


def _doubt_of_passing(
    spec: AnalysisSpec, reading: Reading, rows: Sequence[MetricVerdict]
) -> tuple[Reason, str, str] | None:
    """Why a canary that is not rejected does not pass (reason, message, metric); None if it passes."""
    least = spec.min_samples
    early = reading.seconds < least.min_seconds
    if spec.compares_pairs:
        found = shadow.doubt_of_passing(spec, reading, rows)
        return found or (sentences.too_early(spec, reading) if early else None)
    if reading.seconds < least.warmup_seconds:
        return Reason.WARM_UP, sentences.warming(spec, reading), ""
    waiting = {finding: [row for row in rows if row.finding is finding] for finding in Finding}
    if waiting[Finding.NOT_COMPARED]:
        return Reason.LOAD_MISMATCH, sentences.unequal(spec, reading), waiting[Finding.NOT_COMPARED][0].name
    if doubt := sentences.incomparable(spec, waiting):
        return doubt
    undecided = [*waiting[Finding.WORSE], *waiting[Finding.UNDECIDED]]
    if undecided:
        slowest = max(undecided, key=lambda row: (row.samples_needed or math.inf, row.cost is not None))
        return Reason.UNDECIDED, sentences.wait(spec, slowest), slowest.name
    fewest = min((row for row in rows if not row.cost), key=lambda row: row.canary_units, default=None)
    if fewest and fewest.canary_units < least.canary_requests:
        return (
            Reason.UNDECIDED,
            f"n={fewest.canary_units}, needs {least.canary_requests} canary requests at least",
            fewest.name,
        )
    return sentences.too_early(spec, reading) if early else None


def _veto(spec: AnalysisSpec, symptoms: Iterable[Symptom]) -> Symptom | None:
    """The first symptom that reaches its limit on canary and not on stable: vetoes are outside the error rate."""
    limits = {veto.name: veto.limit for veto in spec.vetoes}
    shown = (item for item in symptoms if item.veto in limits)
    return next((item for item in shown if item.canary >= limits[item.veto] > item.stable), None)


def _favoured(spec: AnalysisSpec, reading: Reading) -> list[str]:
    """Remarks on latencies that were compared although canary's pods have less load.

    A few pods at a low weight usually have less; holding every such rollout would not prove anything either.
    """
    if reading.canary_load >= 1 - spec.max_load_difference or not any(metric.latency for metric in spec.gating):
        return []
    return [
        f"canary's pods had {reading.canary_load:.2f} times the load of stable's, so its latencies were compared in "
        "its favour"
    ]


def _total(logs: Iterable[float]) -> float:
    found = list(logs)
    return float(log_combined(np.array(found), np.ones(len(found)))) if found else 0.0


def _with_forecast(spec: AnalysisSpec, reading: Reading, verdict: Verdict) -> Verdict:
    """The verdict with canary's samples so far and, where a decision is expected, those needed and the seconds left."""
    deciding = [metric for metric in spec.gating if not (metric.of_cost or _is_covered(spec, metric))]
    if spec.compares_pairs and reading.seconds < spec.min_samples.warmup_seconds:
        deciding = [metric for metric in deciding if not metric.latency]  # counted after the warm-up
    counts = [reading.by_metric.get(metric.name, Counts(metric.name)) for metric in deciding]
    samples = [sum(epoch.canary_units for epoch in item.epochs) for item in counts]
    verdict = dataclasses.replace(verdict, samples=min(samples, default=0))
    if verdict.outcome is not Outcome.INCONCLUSIVE or not verdict.samples or reading.seconds <= 0:
        return verdict
    if any((row.drift or row.cost) and row.finding is Finding.UNDECIDED for row in verdict.metrics):
        return verdict  # how long an index stays above its bound without a proof is not known; costs count minutes
    ends = [_forecast(spec, metric, reading) for metric in deciding]
    left = [None if end.samples is None else max(1, end.samples - n) for end, n in zip(ends, samples, strict=True)]
    waits = [(more, n) for more, n in zip(left, samples, strict=True) if more is not None]
    # One metric that fails ends the wait; a pass needs a decision on every metric.
    failing = [(more, n) for more, n, end in zip(left, samples, ends, strict=True) if end.fails and more is not None]
    if not failing and None in left:
        return verdict
    # Metrics count requests, sessions or mirrored prompts, so compare the times that they need.
    more, n = min(failing, key=_part) if failing else max(waits, key=_part)
    fewest = min(samples)
    needed, seconds = fewest + math.ceil(fewest * more / n), math.ceil(more * reading.seconds / n)
    if not failing:
        seconds = max(seconds, math.ceil(spec.min_samples.min_seconds - reading.seconds))
    return dataclasses.replace(verdict, samples_needed=needed, seconds_left=seconds)


def _part(wait: tuple[int, int]) -> float:
    """Samples still needed, divided by those counted so far."""
    return wait[0] / wait[1]


def _reports(reading: Reading, rows: Sequence[MetricVerdict]) -> list[str]:
    """Remarks on drift that is reported and rejects nothing."""
    remark = "reported only, for the weights differ"
    reported = [row for row in rows if row.finding is Finding.REPORTED]
    paired = {name for name, counts in reading.by_metric.items() if any(epoch.canary_units for epoch in counts.epochs)}
    return [
        f"{row.name}: {sentences.drifts(row) if row.name in paired else sentences.differs(row)}; {remark}"
        for row in reported
    ]
