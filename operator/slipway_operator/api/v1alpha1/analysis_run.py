"""AnalysisRun: what was counted and measured in one analysis, and the verdict. At most MOST_BYTES an object.

The operator alone writes these objects. The status of their subject says which run and which `status.sequence` it acted
on, and it alone decides: a run with other contents than the operator wrote last counts as lost.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import AnyText, AtMost, Definition, PrinterColumn, SchemaOf, custom_resource
from slipway_contracts.api.types import ApiType, Int32, Int64, Time, strict
from slipway_operator.api.v1alpha1.provider import MetricRun
from slipway_operator.api.v1alpha1.twin_shadow import PairQuality, PairScores, PairSources, ShadowRun

MOST_BYTES = 256 << 10  # of an object as JSON
MOST_POINTS = 120  # of a series
LONGEST_TEXT = 2048  # characters of a message
# Messages contain numbers, and texts of providers.
Text = Annotated[str, AtMost(LONGEST_TEXT)]


class Outcome(StrEnum):
    """Result of an analysis."""

    PASS = "Pass"
    FAIL = "Fail"
    INCONCLUSIVE = "Inconclusive"


class Reason(StrEnum):
    """Reason for the result of an analysis."""

    WORSE = "WorseThanStable"  # Fail: the evidence crossed 1/falseRollbackRate
    VETOED = "Vetoed"  # Fail: a symptom that needs no statistics and that stable does not show
    METRIC_FAILED = "MetricFailed"  # Fail: more measurements failed than failureLimit allows
    METRIC_ERROR = "MetricError"  # Fail: more consecutive errors of a provider than consecutiveErrorLimit
    NOT_WORSE = "NotWorse"  # Pass
    UNDECIDED = "Undecided"  # Inconclusive, as all below: more requests are needed
    NO_DATA = "NoData"
    STALE = "Stale"  # counters were not read for longer than staleSeconds
    WARM_UP = "WarmUp"
    SAMPLE_RATIO_MISMATCH = "SampleRatioMismatch"  # the canary does not get its share, so a comparison is invalid
    FEEDBACK_MISMATCH = "FeedbackMismatch"  # one side gets feedback more often, so its rates are not comparable
    LOAD_MISMATCH = "LoadMismatch"  # pods of canary have more load than stable's: latencies are not comparable
    NO_FLOOR = "NoFloor"  # stable has no second pod to measure how much its own answers differ
    MEASURING = "Measuring"  # measurements of a provider are pending
    METRIC_INCONCLUSIVE = "MetricInconclusive"  # final: more inconclusive measurements than inconclusiveLimit
    SHADOW_STARVED = "ShadowStarved"  # no pairs come, or too many were withheld
    PAIRS_OPEN = "PairsOpen"  # it passes if the pairs that have not ended end well; no further one is sent
    NO_TWIN = "NoTwin"  # final: this attempt gets no baseline pods
    HARM_SPENT = "HarmSpent"  # final: no weight fits what is left of maxHarm


@dataclass(frozen=True, slots=True)
class Epoch:
    """Counts of one metric in one epoch: requests (of latencies: sessions) and bad ones among them.

    A change of the weight starts a new epoch, and so does the clock: see `judging.epochs`.
    A session counts at most one bad event. For paired drift the counts are mirrored prompts at weight 50: `canary_bad`
    where only the canary disagreed with stable, `stable_bad` where only the second stable pod did.

    Raises:
        ValueError: when the counts are impossible.
    """

    weight: Int32
    """Weight of the new revision in percent when the requests were assigned."""
    canary_units: Int64 = 0
    """Number of requests to the new revision."""
    stable_units: Int64 = 0
    """Number of requests to stable."""
    canary_bad: Int64 = 0
    """Number of bad requests to the new revision."""
    stable_bad: Int64 = 0
    """Number of bad requests to stable."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < 100:
            raise ValueError(
                f"weight is {self.weight}; a comparison needs both revisions: count at 1 to 99 percent only"
            )
        if not (0 <= self.canary_bad <= self.canary_units and 0 <= self.stable_bad <= self.stable_units):
            raise ValueError(
                f"impossible counts: {self.canary_bad} bad of {self.canary_units} on canary, "
                f"{self.stable_bad} of {self.stable_units} on stable"
            )


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one metric by epoch."""

    metric: str
    """Name of the metric."""
    epochs: Annotated[tuple[Epoch, ...], AtMost(200)] = ()
    """Counts by epoch."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """Current value of a veto's symptom on both sides; 1 or 0 where it is present or absent."""

    veto: str
    """Name of the veto."""
    canary: float
    """Value for the new revision."""
    stable: float
    """Value for stable."""


@dataclass(frozen=True, slots=True)
class AssignedEpoch(Epoch):
    """Requests that were assigned in one epoch, completed or not. Whether they are bad is unknown."""

    canary_bad: Int64 = 0
    """Always 0."""
    stable_bad: Int64 = 0
    """Always 0."""


@dataclass(frozen=True, slots=True)
class MetricCounts:
    """Counts of one metric; a count that is absent is 0."""

    canary_units: Int64 = 0
    """Number of requests to the new revision."""
    stable_units: Int64 = 0
    """Number of requests to stable."""
    canary_bad: Int64 = 0
    """Number of bad requests to the new revision."""
    stable_bad: Int64 = 0
    """Number of bad requests to stable."""


CountsByMetric = Annotated[dict[str, MetricCounts], AtMost(128)]


@dataclass(frozen=True, slots=True)
class Seen:
    """Counters of one gateway process for one generation, as last added to the counts."""

    incarnation: Annotated[str, AtMost(64)]
    """Identifier of the gateway process."""
    generation: Int64
    """Generation of the routing table."""
    canary_assigned: Int64 = 0
    """Number of requests that the split assigned to the new revision."""
    stable_assigned: Int64 = 0
    """Number of requests that it assigned to stable."""
    counts: CountsByMetric = field(default_factory=dict)
    """Counters by metric. A metric that is absent has only zeros."""


@dataclass(frozen=True, slots=True)
class LatencyThreshold:
    """Latency of one metric and stratum above which a request is slow. It is renewed by the clock."""

    metric: str
    """Name of the metric."""
    stratum: str
    """Stratum: requests of similar size and kind, which are compared with one another."""
    seconds: float
    """Threshold in seconds."""
    canary_seconds: float | None = None
    """Threshold for the new revision, where it is another one."""


@dataclass(frozen=True, slots=True)
class FormerTimes:
    """Latencies of stable in one stratum when the thresholds were last renewed."""

    kind: str
    """Kind of latency: ttft, itl or e2e."""
    stratum: str
    """Stratum of the requests."""
    counts: Annotated[tuple[Annotated[Int64, Field(description="Count of a bucket.")], ...], AtMost(128)] = ()
    """Number of latencies in each bucket of the gateways' histograms."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Medians of a latency on both sides, for messages."""

    metric: str
    """Name of the metric."""
    canary_seconds: float
    """Median of the new revision, in seconds."""
    stable_seconds: float
    """Median of stable, in seconds."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Counts of one epoch at one reading; see planning/analysis/trace.py."""

    seconds: Int64
    """Seconds since the start of the run."""
    epoch: Int32
    """Index of the epoch in the counts, from 0."""
    counts: CountsByMetric = field(default_factory=dict)
    """Counts by metric. A metric that is absent has only zeros."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load of ready pods in thousandths, summed over the readings: their share of the requests by the weights. Requests
    in progress at canary do not measure it, because a slow revision has more of them."""

    readings: Int64 = 0
    """Number of readings."""
    canary: Int64 = 0
    """Percent of the requests for each pod of the new revision."""
    stable: Int64 = 0
    """Percent of the requests for each pod of stable."""
    busy: Int64 = 0
    """Requests in progress at each pod of stable. Up to one, load does not explain a latency."""


@dataclass(frozen=True, slots=True)
class ExtraBound:
    """Extra bad responses of the new revision per 1,000, compared with stable."""

    at_most: float
    """Bound that is proved."""
    estimate: float
    """Difference of the two rates so far."""
    limit: float
    """Bound with which the new revision passes: maxExtra of the metric."""


@dataclass(frozen=True, slots=True)
class PredictionDrift:
    """Distribution of what classic models predict, on both sides."""

    psi: float
    """Population stability index of the new revision against stable, without the part of chance."""
    chance: float
    """Index that as many predictions of equal distributions have in the mean. It is subtracted."""
    evidence: str
    """Evidence that the distributions differ, however little, as odds."""
    canary: Int64 = 0
    """Number of predictions of the new revision: one for each session."""
    stable: Int64 = 0
    """Number of predictions of stable."""
    unread: Int64 = 0
    """Number of sessions whose prediction gateways could not read."""
    differs: bool = False
    """Whether this evidence reaches that at which a revision is rejected."""


@dataclass(frozen=True, slots=True)
class CostSide:
    """What pods of one revision did, and what they cost, in the compared minutes."""

    price: Annotated[float, Field(ge=0)] = 0.0
    """Price of a pod for an hour, in the currency of the operator's prices."""
    pod_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Time of its ready pods."""
    running_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Sum of the times for which requests were in progress at them."""
    units: Annotated[float, Field(ge=0)] = 0.0
    """Number of generated tokens, or of predictions."""


@dataclass(frozen=True, slots=True)
class CostRun:
    """Cost of the new revision and of stable, minute by minute. See docs/judge.md."""

    counted_at: Time | None = None
    """Time up to which minutes are counted."""
    unit: Annotated[str, AtMost(16)] = ""
    """What a cost is divided by: Tokens or Predictions."""
    minutes: Int64 = 0
    """Number of compared minutes."""
    dearer: Int64 = 0
    """Minutes in which the new revision cost more than maxCostIncrease allows, whatever the load explains."""
    not_within: Int64 = 0
    """Minutes in which it may have cost more than that."""
    idle: Int64 = 0
    """Minutes that are not compared, because a side had too few requests in progress."""
    low: Annotated[float, Field(ge=0)] = 0.0
    """Cost of the new revision by that of stable, at least: the geometric mean over the minutes."""
    high: Annotated[float, Field(ge=0)] = 0.0
    """Likewise, at most."""
    canary: CostSide = CostSide()
    stable: CostSide = CostSide()
    problem: Annotated[str, AtMost(512)] = ""
    """Why nothing is compared. Empty where there is no problem."""


@dataclass(frozen=True, slots=True)
class RampRun:
    """Ramp of a run, which chooses the weight."""

    weight: Annotated[Int32, Field(ge=0, le=99)]
    """Percent of requests for the new revision that fits what is left of maxHarm."""
    max_harm: Int32
    """Extra bad responses that the ramp may cost before the new revision has passed."""
    spent: Annotated[float, Field(ge=0)] = 0.0
    """Extra bad responses that it may have cost so far."""
    at_most: Annotated[float, Field(ge=0, le=1000)] = 1000.0
    """Extra bad responses per 1,000, at most: the lower one of the two bounds below."""
    shadow_at_most: Annotated[float, Field(ge=0, le=1000)] | None = None
    """The bound that the twin shadow has proved."""
    live_at_most: Annotated[float, Field(ge=0, le=1000)] = 1000.0
    """The bound that the requests to the new revision prove."""
    rate: Annotated[float, Field(ge=0)] = 0.0
    """Requests per second to all revisions, rather too high than too low."""
    assigned: Int64 = 0
    """Sum of the gateways' counters of assigned requests at the last reading."""
    changed_at: Time | None = None
    """Time of the last change of the weight."""
    passed_at: Time | None = None
    """Time at which the new revision passed."""
    bake_until: Time | None = None
    """End of the bake. It begins when all gateways route by its weight."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Human-readable result of one metric. The verdict is computed from the counts."""

    name: str
    """Name of the metric."""
    finding: str
    """Worse, NotWorse, Undecided, Covered, Within, NoData, NotCompared, Unequal, NoFloor or Reported."""
    canary_samples: Int64
    """Number of requests to the new revision that the metric compares."""
    stable_samples: Int64
    """Number of requests to stable that the metric compares."""
    canary_bad: Int64
    """Number of bad requests to the new revision."""
    stable_bad: Int64
    """Number of bad requests to stable."""
    evidence: str
    """Evidence of this metric."""
    threshold: str
    """Total evidence of all metrics at which the new revision is rejected."""
    canary_rate: str | None = None
    """Rate of bad requests to the new revision."""
    stable_rate: str | None = None
    """Rate of bad requests to stable."""
    needed: Int64 | None = None
    """Number of requests to the new revision at which a result is expected."""


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """Most recent verdict of the analysis."""

    outcome: Outcome
    """Result of the analysis so far."""
    reason: Annotated[Reason, AnyText()]
    """Reason for the outcome: WorseThanStable, Vetoed, MetricFailed, MetricError, NotWorse, Undecided, NoData, Stale,
    WarmUp, SampleRatioMismatch, FeedbackMismatch, LoadMismatch, NoFloor, Measuring, MetricInconclusive, ShadowStarved,
    PairsOpen, NoTwin or HarmSpent."""
    message: Text
    """Human-readable explanation with the numbers."""
    since: Time
    """Time since which the outcome and the reason are unchanged."""
    evidence: str
    """Evidence of all metrics together, as odds, that the new revision is worse than stable."""
    threshold: str
    """Evidence at which the new revision is rejected."""
    metric: str | None = None
    """Name of the metric or veto that rejects the new revision, or of the metric that is still undecided."""
    samples: Int64 = 0
    """Number of requests to the new revision, for the metric with the fewest."""
    needed: Int64 | None = None
    """Number of requests to the new revision at which a verdict is expected."""
    seconds_left: Int64 | None = None
    """Expected time until a verdict, in seconds."""
    extra: ExtraBound | None = None
    pairs: PairSources | None = None
    quality: PairQuality | None = None
    scores: PairScores | None = None
    predictions: PredictionDrift | None = None
    cost: CostRun | None = None
    metrics: Annotated[tuple[MetricRow, ...], AtMost(32)] = ()
    """Result of each metric."""


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """Change of the verdict."""

    at: Time
    """Time of the change."""
    outcome: Annotated[Outcome, AnyText()]
    """Outcome after the change."""
    reason: Annotated[Reason, AnyText()]
    """Reason for the outcome."""
    message: Text
    """Human-readable explanation with the numbers."""


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Bound of one metric at one reading."""

    seconds: Int64
    """Seconds since the start of the run."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""
    samples: Int64 = 0
    """Number of requests to the new revision, or of pairs, that were counted."""


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """Bound of one metric over time."""

    metric: str
    """Name of the metric."""
    unit: str
    """What is bounded. ExtraPerThousand: bad responses of the new revision per 1,000 beyond those of stable. Ratio:
    rate of bad requests to the new revision, divided by that of stable. CostRatio: cost of its tokens or predictions,
    divided by that of stable; an estimate."""
    limit: float
    """Bound with which the metric passes."""
    points: Annotated[tuple[SeriesPoint, ...], AtMost(MOST_POINTS)] = ()
    """Readings, oldest first. Beyond the limit every second one is dropped."""


@dataclass(frozen=True, slots=True)
class HarmPoint:
    """What a ramp may have cost at one reading."""

    seconds: Int64
    """Seconds since the start of the run."""
    spent: float
    """Extra bad responses so far, at most."""
    weight: Int32
    """Percent of requests for the new revision."""


@strict
@dataclass(frozen=True, slots=True)
class RunStatus:
    """Run of an AnalysisTemplate, for one step or in the background of the steps."""

    id: str
    """Identifier of the run: REVISION/ATTEMPT/STEP, or REVISION/ATTEMPT/background."""
    template: str
    """Name of the AnalysisTemplate."""
    template_hash: str
    """Hash of the template's content. The run restarts when it changes."""
    started_at: Time
    """Start time of the run."""
    read_at: Time
    """Time of the last reading that was recorded."""
    first_request_at: Time | None = None
    """Time at which a request to the new revision was first observed."""
    missing_since: Time | None = None
    """Time since which a ready gateway does not respond, or none is ready."""
    stale: bool = False
    """Whether missingSince is longer ago than staleSeconds of the template."""
    warm: bool = False
    """Whether the warm-up is over."""
    thresholds: Annotated[tuple[LatencyThreshold, ...], AtMost(256)] = ()
    """Latency thresholds from the latencies of stable."""
    former_times: Annotated[tuple[FormerTimes, ...], AtMost(64)] = ()
    """Latencies of stable when the thresholds were last renewed."""
    renewed_epoch: Int32 | None = None
    """Clock epoch in which the thresholds were last renewed."""
    paces: Annotated[tuple[Pace, ...], AtMost(32)] = ()
    """Medians of the compared latencies."""
    braked: bool = False
    """Whether the weight is held at 1 until the warm-up is over, because the new revision is many times slower."""
    timed: Annotated[tuple[Annotated[str, Field(description="Kind of latency.")], ...], AtMost(3)] = ()
    """Kinds of latency observed in answers of either revision: ttft, itl, e2e."""
    counts: Annotated[tuple[Counts, ...], AtMost(128)] = ()
    """Counts by metric. The verdict is computed from them."""
    assigned: Annotated[tuple[Annotated[Epoch, SchemaOf(AssignedEpoch)], ...], AtMost(200)] = ()
    """Requests that the split assigned to each side, completed or not, in the same epochs. They show whether the new
    revision gets its share."""
    clocks: Annotated[tuple[Annotated[Int32, Field(description="Number of a clock epoch.")], ...], AtMost(200)] = ()
    """Number of the clock epoch of each of those epochs, from 0."""
    seen: Annotated[tuple[Seen, ...], AtMost(256)] = ()
    """Counters of each gateway process as last added, so that a restart adds nothing twice."""
    left_out: Annotated[tuple[Annotated[str, AtMost(64), Field(description="Gateway process.")], ...], AtMost(256)] = ()
    """Gateway processes that are not counted, because there is no room for their counters."""
    load: Load = Load()
    weight: Int32 | None = None
    """Percent of requests for the new revision at the last recorded reading."""
    restarts: Annotated[tuple[Annotated[Int64, Field(description="Number of restarts.")], ...], AtMost(2)] = ()
    """Number of restarts of the pods of the new revision and of stable when the run started."""
    canary_away_since: Time | None = None
    """Time since which the new revision has no ready pod through its own fault."""
    stable_away_since: Time | None = None
    """Time since which stable has no ready pod."""
    symptoms: Annotated[tuple[Symptom, ...], AtMost(8)] = ()
    """Observed symptoms of the template's vetoes."""
    weights_differ: bool = False
    """Whether the models of the two revisions differ, so that drift of mirrored requests is only reported."""
    shadow: ShadowRun | None = None
    ramp: RampRun | None = None
    cost: CostRun | None = None
    measured: Annotated[tuple[MetricRun, ...], AtMost(32)] = ()
    """Measurements of the metrics with a provider."""
    verdict: RunVerdict | None = None
    decisions: Annotated[tuple[VerdictChange, ...], AtMost(10)] = ()
    """Most recent changes of the verdict, oldest first."""
    trace: Annotated[tuple[Moment, ...], AtMost(128)] = ()
    """History of the counts for `slipway analyze`. When it is long, every second reading is dropped."""
    series: Annotated[tuple[MetricSeries, ...], AtMost(32)] = ()
    """Bounds of the metrics over time."""
    harm: Annotated[tuple[HarmPoint, ...], AtMost(MOST_POINTS)] = ()
    """What a ramp may have cost over time."""
    sequence: Int64 = 0
    """Number of writes of the run. The status of the subject names the one that it acted on."""


class SubjectReference(ApiType):
    """Object whose change is analyzed."""

    api_version: Annotated[str, Field(max_length=253)]
    """API group and version."""
    kind: Annotated[str, Field(max_length=63)]
    """Kind of the object."""
    name: Annotated[str, Field(max_length=253)]
    """Name of the object, in the namespace of the run."""
    uid: Annotated[str, Field(max_length=64)]
    """UID of the object."""


class AnalysisRunSpec(ApiType):
    """Subject of the run."""

    subject_ref: SubjectReference


@custom_resource(
    Definition(
        group="slipway.dev",
        version="v1alpha1",
        plural="analysisruns",
        short_names=("sar",),
        categories=(),  # `kubectl get slipway` shows what people write
        columns=(
            PrinterColumn("Subject", "string", ".spec.subjectRef.name", "Object whose change is analyzed."),
            PrinterColumn("Run", "string", ".status.id", "REVISION/ATTEMPT/STEP, or REVISION/ATTEMPT/background."),
            PrinterColumn("Template", "string", ".status.template", "Name of the AnalysisTemplate."),
            PrinterColumn("Outcome", "string", ".status.verdict.outcome", "Pass, Fail or Inconclusive, so far."),
            PrinterColumn("Reason", "string", ".status.verdict.reason", "Reason for the outcome."),
            PrinterColumn("Age", "date", ".metadata.creationTimestamp"),
            PrinterColumn("Message", "string", ".status.verdict.message", "The numbers.", wide=True),
        ),
    )
)
class AnalysisRun(ApiType):
    """One analysis of a new revision: what was counted and measured, and the verdict. The operator alone writes it, and
    the status of its subject alone decides: a run that another client changed or deleted starts again. Argo Rollouts
    has a kind of the same name: write analysisruns.slipway.dev."""

    spec: AnalysisRunSpec
    status: RunStatus
