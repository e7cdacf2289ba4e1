"""An analysis in progress, as the status remembers it: kept nowhere else, and bounded."""

from dataclasses import dataclass
from datetime import datetime

from slipway_operator.model.analysis import Counts, Epoch, Outcome, Reason, Symptom
from slipway_operator.model.measuring import MetricRun


@dataclass(frozen=True, slots=True)
class Seen:
    """One gateway process's counters for one generation as they were when last added: requests that were assigned to
    canary and to stable, then four for each metric of the template, in its order: requests of canary and of stable, bad
    ones of canary and of stable. After them come four for each metric of mirrored prompts, of those that no second
    stable pod answered."""

    incarnation: str
    generation: int
    totals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Threshold:
    """From how many seconds on a request of this stratum is slow; frozen for the run."""

    metric: str
    stratum: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Moment:
    """What an epoch had counted at one reading, four for each metric as in `Seen`; see planning/trace.py."""

    seconds: int  # since the run began
    epoch: int  # its place among the epochs of `counts`
    totals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What a ready pod is given, summed over readings, in thousandths: of a percent of the requests by the published
    weights, and `busy`, how many are in progress at a pod of stable.

    What is in progress at canary is no measure of its load: a slow one has more of it by being slow.
    """

    readings: int = 0
    canary: int = 0
    stable: int = 0
    busy: int = 0


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric for people; the numbers that decide are the counts."""

    name: str
    finding: str
    canary_samples: int
    stable_samples: int
    canary_bad: int
    stable_bad: int
    evidence: str  # that canary is worse: its share times the odds, such as 0.42
    threshold: str  # at which the canary is rejected, by all metrics together
    canary_rate: str | None = None  # of bad ones, such as 2.50%
    stable_rate: str | None = None
    needed: int | None = None  # canary samples with which it is expected to be decided


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """What the judge said last, for rows of the rollout's table and for people."""

    outcome: Outcome
    reason: Reason
    message: str
    since: datetime  # when outcome or reason became this
    evidence: str
    threshold: str
    metric: str | None = None  # the blamed one, or the one that is waited for
    samples: int = 0  # canary requests, of the metric that has fewest
    needed: int | None = None
    seconds_left: int | None = None
    metrics: tuple[MetricRow, ...] = ()


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """That the judge began to say something else."""

    at: datetime
    outcome: Outcome
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class AnalysisRun:
    """One run of a template over one step, or in the background of the steps."""

    id: str  # REVISION/ATTEMPT/STEP, or REVISION/ATTEMPT/background
    template: str
    template_hash: str  # another one begins the run anew
    started_at: datetime
    read_at: datetime  # when counters were last written down
    first_request_at: datetime | None = None  # when canary was first seen to have been given a request
    missing_since: datetime | None = None  # since when a ready gateway does not answer; None while all do
    stale: bool = False  # for longer than the template allows
    warm: bool = False  # the warm-up is over
    thresholds: tuple[Threshold, ...] = ()
    timed: tuple[str, ...] = ()  # kinds of latency that answers of either revision were seen to have
    counts: tuple[Counts, ...] = ()  # of every metric, in the same epochs
    assigned: tuple[Epoch, ...] = ()  # requests that the split gave each side, ended or not, in these epochs too
    clocks: tuple[int, ...] = ()  # number of the clock's epoch, for each of those; see judging/epochs.py
    seen: tuple[Seen, ...] = ()
    load: Load = Load()
    weight: int | None = None  # canary's in percent, at the last reading
    restarts: tuple[int, ...] = ()  # of canary's and of stable's pods when the run began
    canary_away_since: datetime | None = None  # since when it has no ready pod, for a fault of its own
    stable_away_since: datetime | None = None  # since when it has none, whatever the reason
    symptoms: tuple[Symptom, ...] = ()  # of the template's vetoes, now
    weights_differ: bool = False  # of the two revisions' models, as far as a template of drift asks
    measured: tuple[MetricRun, ...] = ()  # metrics with a provider, of which something was asked
    verdict: RunVerdict | None = None
    decisions: tuple[VerdictChange, ...] = ()  # the last ones, newest last
    trace: tuple[Moment, ...] = ()  # how the counts came to be, oldest first
