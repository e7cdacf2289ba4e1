"""An analysis in progress, as the status remembers it: kept nowhere else, and bounded."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from slipway_operator.api.markers import AnyText, AtMost, LogLine, SchemaOf, packed
from slipway_operator.api.types import Int32, Int64, Time, strict


class AnalysisPhase(StrEnum):
    """What became of a measurement, and of a metric."""

    RUNNING = "Running"
    SUCCESSFUL = "Successful"
    FAILED = "Failed"
    INCONCLUSIVE = "Inconclusive"
    ERROR = "Error"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement.

    One measurement that was taken.
    """

    at: Time
    """When its answer was written down."""
    phase: Annotated[AnalysisPhase, AnyText()]
    """Successful, Failed, Inconclusive or Error."""
    value: str = ""
    """What was answered."""
    message: str = ""
    """Why it is not good."""


@dataclass(frozen=True, slots=True)
class MetricRun:
    """One metric.

    All that an analysis remembers of a metric with a provider.
    """

    name: str
    """Its name."""
    phase: Annotated[AnalysisPhase, AnyText()] = AnalysisPhase.RUNNING
    """Running, Successful, Failed, Inconclusive or Error."""
    successful: Int64 = 0
    """Good measurements."""
    failed: Int64 = 0
    """Failed ones."""
    inconclusive: Int64 = 0
    """Inconclusive ones."""
    error: Int64 = 0
    """Errors."""
    consecutive_success: Int64 = 0
    """Good ones since the last that was not."""
    consecutive_error: Int64 = 0
    """Errors since the last that was none."""
    measurements: Annotated[tuple[Measurement, ...], AtMost(10)] = ()
    """The last ones, newest last."""
    message: str = ""
    """Why it ended as it did."""

    @property
    def count(self) -> int:
        """Measurements that were no errors."""
        return self.successful + self.failed + self.inconclusive

    @property
    def taken(self) -> int:
        """All measurements."""
        return self.count + self.error


class Outcome(StrEnum):
    """What an analysis says."""

    PASS = "Pass"
    FAIL = "Fail"
    INCONCLUSIVE = "Inconclusive"


class Reason(StrEnum):
    """Why it says so."""

    WORSE = "WorseThanStable"  # Fail: the evidence crossed 1/falseRollbackRate
    VETOED = "Vetoed"  # Fail: a symptom that needs no statistics, and stable does not have it
    METRIC_FAILED = "MetricFailed"  # Fail: a threshold was missed more often than its failureLimit
    METRIC_ERROR = "MetricError"  # Fail: a provider was asked in vain more often than its consecutiveErrorLimit
    NOT_WORSE = "NotWorse"  # Pass
    UNDECIDED = "Undecided"  # Inconclusive, as all below: more requests will tell
    NO_DATA = "NoData"
    STALE = "Stale"  # counters were not read for longer than the template allows
    WARM_UP = "WarmUp"
    SAMPLE_RATIO_MISMATCH = "SampleRatioMismatch"  # the canary does not get its share: the comparison means nothing
    LOAD_MISMATCH = "LoadMismatch"  # pods of canary carry more load than stable's: their latencies cannot be compared
    NO_FLOOR = "NoFloor"  # stable has no second pod that would say how much two of its answers differ anyway
    MEASURING = "Measuring"  # measurements of a provider are still to come
    METRIC_INCONCLUSIVE = "MetricInconclusive"  # for good: more often than its inconclusiveLimit


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch.

    Counts of one metric in one epoch: requests (of latencies: sessions) and bad ones among them.

    An epoch ends with its weight, and by the clock: see `judging.epochs`.

    A session counts at most one bad event. For paired drift they are mirrored prompts at weight 50: `kc` where only the
    canary disagreed with stable, `ks` where only the second stable pod did.

    Raises:
        ValueError: when the counts are impossible.
    """

    w: Int32
    """Weight of the new revision in percent when the requests were assigned."""
    nc: Int64 = 0
    """Requests to the new revision."""
    ns: Int64 = 0
    """Requests to stable."""
    kc: Int64 = 0
    """Bad ones of the new revision."""
    ks: Int64 = 0
    """Bad ones of stable."""

    def __post_init__(self) -> None:
        if not 0 < self.w < 100:
            raise ValueError(f"weight is {self.w}; a comparison needs both revisions: count at 1 to 99 percent only")
        if not (0 <= self.kc <= self.nc and 0 <= self.ks <= self.ns):
            raise ValueError(
                f"impossible counts: {self.kc} bad of {self.nc} on canary, {self.ks} of {self.ns} on stable"
            )


@dataclass(frozen=True, slots=True)
class Counts:
    """One metric.

    All that an analysis remembers of a metric: four integers for each epoch.
    """

    metric: str
    """Its name."""
    epochs: Annotated[tuple[Epoch, ...], AtMost(200)] = ()
    """Its counts by epoch; one begins with each weight and by the clock."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One veto.

    How much of a veto's symptom each side shows now; 1 or 0 where it is there or not.
    """

    veto: str
    """Its name."""
    canary: float
    """How much of it the new revision shows."""
    stable: float
    """How much of it stable shows."""


@dataclass(frozen=True, slots=True)
class AssignedEpoch(Epoch):
    """One epoch.

    Of requests, ended or not: nothing is known of whether they are bad.
    """

    kc: Int64 = 0
    """Always 0."""
    ks: Int64 = 0
    """Always 0."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One process and generation.

    One gateway process's counters for one generation as they were when last added: requests that were assigned to
    canary and to stable, then four for each metric of the template, in its order: requests of canary and of stable, bad
    ones of canary and of stable. After them come four for each metric of mirrored prompts, of those that no second
    stable pod answered.
    """

    incarnation: str
    """The gateway process."""
    generation: Int64
    """Generation of the route."""
    totals: Annotated[tuple[Annotated[Int64, Field(description="One counter.")], ...], AtMost(258)] = ()
    """Requests assigned to both; then four for each metric of the template, in its order: requests of both, bad
    ones of both. Then those of mirrored prompts that no second stable pod answered."""


@dataclass(frozen=True, slots=True)
class LatencyThreshold:
    """One metric and stratum.

    From how many seconds on a request of this stratum is slow; frozen for the run.
    """

    metric: str
    """The metric."""
    stratum: str
    """The requests that are compared with one another, by size and kind."""
    seconds: float
    """From how many seconds on."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One epoch as it was counted at one reading.

    What an epoch had counted at one reading, four for each metric as in `Seen`; see planning/analysis/trace.py.
    """

    seconds: Int64
    """Since the run began."""
    epoch: Int32
    """Its place among the epochs of counts, from 0."""
    totals: Annotated[tuple[Annotated[Int64, Field(description="One count.")], ...], AtMost(256)] = ()
    """Four for each metric, in the order of counts: nc, ns, kc, ks."""


@dataclass(frozen=True, slots=True)
class Load:
    """What ready pods are given, in thousandths, summed over readings.

    What a ready pod is given, summed over readings, in thousandths: of a percent of the requests by the published
    weights, and `busy`, how many are in progress at a pod of stable.

    What is in progress at canary is no measure of its load: a slow one has more of it by being slow.
    """

    readings: Int64 = 0
    """How many."""
    canary: Int64 = 0
    """Percent of the requests for each pod of the new revision."""
    stable: Int64 = 0
    """Percent of the requests for each pod of stable."""
    busy: Int64 = 0
    """Requests in progress at each pod of stable: up to one, load explains nothing."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric for people; the numbers that decide are the counts."""

    name: str
    """Its name."""
    finding: str
    """Worse, NotWorse, Undecided, NoData, NotCompared, NoFloor or Reported."""
    canary_samples: Int64
    """Requests to the new revision that it compares."""
    stable_samples: Int64
    """Requests to stable that it compares."""
    canary_bad: Int64
    """Bad ones of the new revision."""
    stable_bad: Int64
    """Bad ones of stable."""
    evidence: str
    """Its part of the evidence."""
    threshold: str
    """What all parts together need to reject."""
    canary_rate: str | None = None
    """Rate of bad ones of the new revision."""
    stable_rate: str | None = None
    """Rate of bad ones of stable."""
    needed: Int64 | None = None
    """Requests to the new revision with which it is expected to be decided."""


MetricLine = Annotated[MetricRow, LogLine(512), Field(description="NAME FINDING, bad ones of each side, evidence.")]


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """What the judge says.

    What the judge said last, for rows of the rollout's table and for people.
    """

    outcome: Outcome
    """What."""
    reason: Annotated[Reason, AnyText()]
    """Why: WorseThanStable, Vetoed, MetricFailed, MetricError, NotWorse, Undecided, NoData, Stale, WarmUp,
    SampleRatioMismatch, LoadMismatch, NoFloor, Measuring or MetricInconclusive."""
    message: str
    """One sentence with the numbers."""
    since: Time
    """When it began to say so."""
    evidence: str
    """The odds that the revision is worse, over all metrics."""
    threshold: str
    """The odds at which it is rejected."""
    metric: str | None = None
    """The metric that is blamed, or waited for."""
    samples: Int64 = 0
    """Requests to the new revision, of the metric that has fewest."""
    needed: Int64 | None = None
    """With how many a verdict is expected."""
    seconds_left: Int64 | None = None
    """How long that is expected to take."""
    metrics: Annotated[tuple[MetricLine, ...], AtMost(32)] = ()
    """The metrics one by one: NAME FINDING, the bad ones of each side, the evidence."""


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """One change.

    That the judge began to say something else.
    """

    at: Time
    """When."""
    outcome: Annotated[Outcome, AnyText()]
    """What it said from then on."""
    reason: Annotated[Reason, AnyText()]
    """Why."""
    message: str
    """One sentence with the numbers."""


@packed(
    "counters",
    "What was counted, packed: base64 of zlib of JSON. The verdict rests on it, and `slipway analyze` shows it.",
    plain=("id", "template", "started_at", "read_at", "measured", "verdict"),
)
@strict
@dataclass(frozen=True, slots=True)
class AnalysisRun:
    """The analysis of the present step, or the last one.

    One run of a template over one step, or in the background of the steps.
    """

    id: str
    """REVISION/ATTEMPT/STEP, or REVISION/ATTEMPT/background."""
    template: str
    """Name of its AnalysisTemplate."""
    template_hash: str
    """Identity of what the template said; when that changes the run begins anew."""
    started_at: Time
    """When it began to count."""
    read_at: Time
    """When counters were last written down."""
    first_request_at: Time | None = None
    """When the new revision was first seen to have been given a request."""
    missing_since: Time | None = None
    """Since when a ready gateway does not answer."""
    stale: bool = False
    """Whether that is longer than the template allows."""
    warm: bool = False
    """Whether the warm-up is over."""
    thresholds: Annotated[tuple[LatencyThreshold, ...], AtMost(512)] = ()
    """From when on an answer is slow; frozen from stable's own latencies."""
    timed: Annotated[tuple[Annotated[str, Field(description="One kind.")], ...], AtMost(3)] = ()
    """Kinds of latency that answers of either revision were seen to have: ttft, itl, e2e."""
    counts: Annotated[tuple[Counts, ...], AtMost(64)] = ()
    """What was counted; all that the verdict rests on."""
    assigned: Annotated[tuple[Annotated[Epoch, SchemaOf(AssignedEpoch)], ...], AtMost(200)] = ()
    """Requests that the split gave each side, ended or not, in the same epochs: what the share of the new revision
    is checked by."""
    clocks: Annotated[tuple[Annotated[Int32, Field(description="One number.")], ...], AtMost(200)] = ()
    """Number of the clock's epoch for each of those, from 0."""
    seen: Annotated[tuple[Seen, ...], AtMost(1024)] = ()
    """Counters of each gateway process as last added, so that no restart adds anything twice."""
    load: Load = Load()
    weight: Int32 | None = None
    """Percent of the requests of the new revision, when counters were last written down."""
    restarts: Annotated[tuple[Annotated[Int64, Field(description="How many.")], ...], AtMost(2)] = ()
    """Restarts of the pods of the new revision and of stable when the run began."""
    canary_away_since: Time | None = None
    """Since when the new revision has no ready pod, for a fault of its own."""
    stable_away_since: Time | None = None
    """Since when stable has no ready pod."""
    symptoms: Annotated[tuple[Symptom, ...], AtMost(8)] = ()
    """What is seen of the template's vetoes."""
    weights_differ: bool = False
    """Whether the two revisions' models differ, so that drift is reported only; asked for templates that compare
    mirrored requests."""
    measured: Annotated[tuple[MetricRun, ...], AtMost(32)] = ()
    """The metrics with a provider."""
    verdict: RunVerdict | None = None
    decisions: Annotated[tuple[VerdictChange, ...], AtMost(10)] = ()
    """The last times the verdict changed, newest last."""
    trace: Annotated[tuple[Moment, ...], AtMost(256)] = ()
    """How the counts came to be, for `slipway analyze`: 32 readings at most, every second one kept when there are
    more."""
