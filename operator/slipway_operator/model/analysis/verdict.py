"""What the judge reads at one moment of an analysis, and its verdict.

Pure data; the mathematics is in `slipway_operator.judging`. Everything here is the same after it was
written as JSON and read, and counts are integers: a restarted operator reaches the same verdict bit for bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from slipway_operator.api.v1alpha1.analysis_run import (
    CostRun,
    Counts,
    Epoch,
    ExtraBound,
    Outcome,
    Pace,
    PredictionDrift,
    Reason,
    Symptom,
)
from slipway_operator.api.v1alpha1.twin_shadow import PairQuality, PairScores, PairSources, ShadowRun


class Finding(StrEnum):
    """The result for one metric."""

    WORSE = "Worse"
    NOT_WORSE = "NotWorse"
    UNDECIDED = "Undecided"
    NO_DATA = "NoData"
    NOT_COMPARED = "NotCompared"
    UNEQUAL = "Unequal"  # counts of feedback or predictions contradict the traffic weights, so they are not compared
    NO_FLOOR = "NoFloor"
    COVERED = "Covered"  # the proof for BadResponse covers this metric, which can only reject
    WITHIN = "Within"  # the predictions are within maxPsi so far, which is no proof: they may still reject
    REPORTED = "Reported"  # drift that does not reject, because the revisions' model weights differ


@dataclass(frozen=True, slots=True)
class Reading:
    """The judge's input at one moment of an analysis."""

    counts: tuple[Counts, ...]
    seconds: float  # since the canary got its first request
    age_seconds: float = 0.0  # since all counters were last read
    canary_load: float = 1.0  # load per ready pod of canary, divided by that of stable
    symptoms: tuple[Symptom, ...] = ()
    weights_differ: bool = False  # the revisions have different model weights: drift is reported and rejects nothing
    shadow: ShadowRun | None = None  # state of the twin shadow, in an analysis of pairs
    running_seconds: float = 0.0  # since the analysis began
    assigned: tuple[Epoch, ...] = ()  # requests that gateways assigned to each revision, ended or not
    clocks: tuple[int, ...] = ()  # the clock epoch of each epoch of the counts
    paces: tuple[Pace, ...] = ()  # median latencies, only for messages
    cost: CostRun | None = None  # if the template compares costs

    @property
    def by_metric(self) -> Mapping[str, Counts]:
        return {counts.metric: counts for counts in self.counts}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Counts of copies of requests, by whether canary chooses what stable does: a prediction, or tokens.

    `disagreed`: copies with another prediction; of tokens, the sum of the parts that canary does not choose.
    `at_most`: proved upper bound of the mean share, failed copies included; 1 without a proof.
    """

    compared: int
    disagreed: float
    failed: int
    unread: int
    at_most: float


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """One row of a verdict, with the counts that it rests on.

    `canary_bad` of canary's `canary_units` and `stable_bad` of stable's `stable_units` observations have the event.

    `log_evidence` is ln of share*E; the sum of all rows' share*E against `log_threshold` decides. `ratio_upper` is the
    upper end of the confidence sequence of the ratio, and `samples_needed` the canary requests after which this metric
    is expected to be decided at the present rates; both are None when unknown.
    """

    name: str
    finding: Finding
    canary_units: int = 0
    stable_units: int = 0
    canary_bad: int = 0
    stable_bad: int = 0
    log_evidence: float = 0.0
    log_threshold: float = 0.0
    ratio_upper: float | None = None
    samples_needed: int | None = None
    extra: ExtraBound | None = None
    drift: PredictionDrift | None = None  # of a metric of predictions
    disagreement: Disagreement | None = None  # of a metric with maxDisagreement, or of predictions for copies
    cost: CostRun | None = None  # of a metric of costs

    @property
    def canary_rate(self) -> float | None:
        return self.canary_bad / self.canary_units if self.canary_units else None

    @property
    def stable_rate(self) -> float | None:
        return self.stable_bad / self.stable_units if self.stable_units else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of an analysis, its reason, and the rows behind it."""

    outcome: Outcome
    reason: Reason
    message: str
    metric: str = ""  # the metric that failed, or that the verdict waits for
    log_evidence: float = 0.0
    log_threshold: float = 0.0
    samples: int = 0  # requests of canary that were counted
    samples_needed: int | None = None
    seconds_left: int | None = None
    metrics: tuple[MetricVerdict, ...] = ()
    extra: ExtraBound | None = None
    pairs: PairSources | None = None  # with a twin shadow
    quality: PairQuality | None = None  # if the template compares tokens
    scores: PairScores | None = None  # if the template has a scorer
    predictions: PredictionDrift | None = None  # if the template compares predictions
    cost: CostRun | None = None  # if the template compares costs
