"""Whether canary chooses for copies of requests what stable did, a prediction or tokens: the row of the metric.

Of a mirrored request, stable's response is that which its client got, and canary's that to a copy; a pair of a twin
shadow has two copies. Both have the same bytes, so no split and no weight has a part in it. Each session is one
observation. The limit takes the place of a floor, because a new model is meant to predict some things otherwise. Canary
is rejected when its share is proved to be above the limit, and passes when it is proved to be below: two confidence
sequences, which may be read after each request.

A copy that canary failed holds nothing against it here, because other metrics count failures. It proves nothing in its
favour either: a canary must not pass by failing what it would predict otherwise. The same holds for a pair that has
not ended.

Of tokens an observation is a part X between 0 and 1: of the tokens of the twin's response that the twin's server would
choose, those that canary's server would not. The likelihood ratios are those of a coin, with the sum of the parts in
the place of the number of heads. They stay evidence: ratio(X) = (p/m)^X * ((1-p)/(1-m))^(1-X) is convex in X, so it is
at most X*p/m + (1-X)*(1-p)/(1-m), whose mean is at most 1 where E[X] is m or on the other side of m than p (Hoeffding
1963). So nothing is assumed of how tokens of one response depend on one another.
"""

import math

import numpy as np

from slipway_contracts.counters import MILLION
from slipway_operator.api.v1alpha1.analysis_run import Counts
from slipway_operator.judging.bounds import log_rate_below
from slipway_operator.judging.evidence import Floats, Numbers, bernoulli_exponents, log_over_starts
from slipway_operator.judging.forecast import FROM_THE_START, MOST_REQUESTS, End, divergence
from slipway_operator.judging.margins.extra import rate_upper
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec, of_changed, of_copies
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
    compared, disagreed = _by_epoch(metric, reading)
    limit = metric.max_disagreement
    found = _disagreement(spec, metric, reading)
    if not found.compared:
        return MetricVerdict(metric.name, Finding.NO_DATA, log_threshold=threshold, disagreement=found)
    evidence, finding, needed = 0.0, Finding.REPORTED, None
    if limit is not None:
        evidence = float(log_above(disagreed, compared, limit)) + math.log(metric.share or 1.0)
        below = float(log_below(found.disagreed, found.compared, found.failed + _unknown(metric, reading), limit))
        proved = below >= math.log(1 / spec.false_promote_rate)
        finding = Finding.NOT_WORSE if proved else Finding.UNDECIDED
        finding = Finding.WORSE if evidence >= threshold else finding
        decided = finding is not Finding.UNDECIDED
        needed = found.compared if decided else expected(spec, metric, reading).samples
    return MetricVerdict(
        metric.name, finding, found.compared, found.compared, round(found.disagreed), 0, log_evidence=evidence,
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


def _by_epoch(metric: MetricSpec, reading: Reading) -> tuple[list[float], list[float]]:
    """Compared copies, and those with another choice, by epoch. Of tokens the latter are sums of parts."""
    name, whole = (of_changed(metric.name), MILLION) if metric.of_choices else (metric.name, 1)
    epochs = reading.by_metric.get(name, Counts(name)).epochs
    return [one.canary_units / whole for one in epochs], [one.canary_bad / whole for one in epochs]


def _disagreement(spec: AnalysisSpec, metric: MetricSpec, reading: Reading) -> Disagreement:
    copies = reading.by_metric.get(of_copies(metric.name), Counts("")).epochs
    failed, unread = sum(one.canary_bad for one in copies), sum(one.stable_bad for one in copies)
    by_epoch = _by_epoch(metric, reading)
    compared, disagreed = round(sum(by_epoch[0])), sum(by_epoch[1])
    unknown = failed + _unknown(metric, reading)
    at_most = float(rate_upper(disagreed + unknown, compared + unknown, spec.false_promote_rate)) if compared else 1.0
    return Disagreement(compared, disagreed if metric.of_choices else round(disagreed), failed, unread, at_most)


def _unknown(metric: MetricSpec, reading: Reading) -> int:
    """Pairs that have not ended: each may be one in which canary chooses something else."""
    return reading.shadow.open if metric.is_paired and reading.shadow else 0
