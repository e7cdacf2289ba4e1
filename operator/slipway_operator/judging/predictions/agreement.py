"""Whether canary predicts for copies of requests what stable did: the row of the metric.

Of a mirrored request, stable's response is that which its client got, and canary's that to a copy; a pair of a twin
shadow has two copies. Both have the same bytes, so no split and no weight has a part in it. Each session is one
observation. The limit takes the place of a floor, because a new model is meant to predict some things otherwise. Canary
is rejected when its share is proved to be above the limit, and passes when it is proved to be below: two confidence
sequences, which may be read after each request.

A copy that canary failed holds nothing against it here, because other metrics count failures. It proves nothing in its
favour either: a canary must not pass by failing what it would predict otherwise. The same holds for a pair that has
not ended.
"""

import math

import numpy as np

from slipway_operator.api.v1alpha1.analysis_run import Counts
from slipway_operator.judging.bounds import log_rate_below
from slipway_operator.judging.evidence import Floats, Numbers, bernoulli_exponents, log_over_starts
from slipway_operator.judging.forecast import FROM_THE_START, MOST_REQUESTS, End, divergence
from slipway_operator.judging.margins.extra import rate_upper
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec, of_copies
from slipway_operator.model.analysis.verdict import Disagreement, Finding, MetricVerdict, Reading

NODES = 16


def log_above(disagreed: Numbers, compared: Numbers, limit: float) -> Floats:
    """ln of the evidence that canary's share of other predictions is above `limit`, shape (...).

    Counts have shape (..., epochs).
    """
    k, n = np.asarray(disagreed), np.asarray(compared)
    nodes = limit + (1 - limit) * (np.arange(NODES) + 0.5) ** 2 / NODES**2
    epochs = range(k.shape[-1])
    return log_over_starts([bernoulli_exponents(k[..., at], n[..., at] - k[..., at], limit, nodes) for at in epochs])


def log_below(disagreed: Numbers, compared: Numbers, failed: Numbers, limit: float) -> Floats:
    """ln of the evidence that canary's share of other predictions is below `limit`, with its failures among them."""
    more = np.asarray(failed)
    return log_rate_below(np.asarray(disagreed) + more, np.asarray(compared) + more, limit)


def row(spec: AnalysisSpec, metric: MetricSpec, reading: Reading) -> MetricVerdict:
    """The metric's row in the verdict: counts, evidence and finding; without a limit it only reports."""
    threshold = math.log(1 / spec.false_rollback_rate)
    epochs = reading.by_metric.get(metric.name, Counts(metric.name)).epochs
    compared, disagreed, limit = (
        [one.canary_units for one in epochs],
        [one.canary_bad for one in epochs],
        metric.max_disagreement,
    )
    found = _disagreement(spec, metric, reading)
    if not found.compared:
        return MetricVerdict(metric.name, Finding.NO_DATA, log_threshold=threshold, disagreement=found)
    evidence, finding, needed = 0.0, Finding.REPORTED, None
    if limit is not None:
        evidence = float(log_above(disagreed, compared, limit)) + math.log(metric.share or 1.0)
        below = float(log_below(found.disagreed, found.compared, found.failed + _open(metric, reading), limit))
        proved = below >= math.log(1 / spec.false_promote_rate)
        finding = Finding.NOT_WORSE if proved else Finding.UNDECIDED
        finding = Finding.WORSE if evidence >= threshold else finding
        decided = finding is not Finding.UNDECIDED
        needed = found.compared if decided else expected(spec, metric, reading).samples
    return MetricVerdict(
        metric.name, finding, found.compared, found.compared, found.disagreed, 0, log_evidence=evidence,
        log_threshold=threshold, samples_needed=needed, disagreement=found,
    )  # fmt: skip


def expected(spec: AnalysisSpec, metric: MetricSpec, reading: Reading) -> End:
    """After how many compared requests a verdict is expected, at the present rates."""
    found, limit = _disagreement(spec, metric, reading), metric.max_disagreement
    if limit is None or not found.compared:
        return End(None, fails=False)
    above, sent = (found.disagreed + 0.5) / (found.compared + 1), found.compared + found.failed
    not_below = (found.disagreed + found.failed + 0.5) / (sent + 1)
    to_fail = to_pass = math.inf
    if above > limit:
        stake = (metric.share or 1.0) * FROM_THE_START
        to_fail = math.log(NODES / stake / spec.false_rollback_rate) / divergence(above, limit)
    if not_below < limit:
        to_pass = math.log(2 / spec.false_promote_rate) / divergence(not_below, limit) * found.compared / sent
    total = min(to_fail, to_pass)
    return End(math.ceil(total) if total < MOST_REQUESTS else None, fails=to_fail < to_pass)


def _disagreement(spec: AnalysisSpec, metric: MetricSpec, reading: Reading) -> Disagreement:
    sums = {
        name: [sum(getattr(one, field) for one in reading.by_metric.get(name, Counts(name)).epochs) for field in fields]
        for name, fields in (
            (metric.name, ("canary_units", "canary_bad")),
            (of_copies(metric.name), ("canary_bad", "stable_bad")),
        )
    }
    (compared, disagreed), (failed, unread) = sums.values()
    unknown = failed + _open(metric, reading)
    at_most = float(rate_upper(disagreed + unknown, compared + unknown, spec.false_promote_rate)) if compared else 1.0
    return Disagreement(compared, disagreed, failed, unread, at_most)


def _open(metric: MetricSpec, reading: Reading) -> int:
    """Pairs that have not ended: each may be one in which canary predicts something else."""
    return reading.shadow.open if metric.is_paired and reading.shadow else 0
