"""What the judge reads at one moment of an analysis, and its verdict.

Pure data; the mathematics is in `slipway_operator.judging`. Everything here survives `wire.to_json` and
`wire.from_json` unchanged, and counts are integers: an operator that starts again reaches the same verdict bit for bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch, Outcome, Reason, Symptom


class Finding(StrEnum):
    """What is known of one metric."""

    WORSE = "Worse"
    NOT_WORSE = "NotWorse"
    UNDECIDED = "Undecided"
    NO_DATA = "NoData"
    NOT_COMPARED = "NotCompared"
    NO_FLOOR = "NoFloor"
    REPORTED = "Reported"  # drift between revisions whose weights differ: that is what a new model is for


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known at one moment of an analysis."""

    counts: tuple[Counts, ...]
    seconds: float  # since the canary got its first request
    age_seconds: float = 0.0  # since all counters were last read
    canary_load: float = 1.0  # what a ready pod of canary is given, divided by what one of stable's is
    symptoms: tuple[Symptom, ...] = ()
    weights_differ: bool = False  # the revisions compute with different numbers: drift is reported and rejects nothing
    assigned: tuple[Epoch, ...] = ()  # requests that the split gave each side, ended or not

    @property
    def by_metric(self) -> Mapping[str, Counts]:
        return {counts.metric: counts for counts in self.counts}


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """One row of a verdict, with the numbers that it rests on.

    `log_evidence` is ln of share*E; the sum of all rows' share*E against `log_threshold` decides. `ratio_upper` is the
    upper end of the confidence sequence of the ratio, and `samples_needed` the canary requests with which this metric
    is expected to be decided if all goes on as it is; both are missing where nothing is known.
    """

    name: str
    finding: Finding
    nc: int = 0
    ns: int = 0
    kc: int = 0
    ks: int = 0
    log_evidence: float = 0.0
    log_threshold: float = 0.0
    ratio_upper: float | None = None
    samples_needed: int | None = None

    @property
    def canary_rate(self) -> float | None:
        return self.kc / self.nc if self.nc else None

    @property
    def stable_rate(self) -> float | None:
        return self.ks / self.ns if self.ns else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an analysis says, why, and the rows behind it."""

    outcome: Outcome
    reason: Reason
    message: str
    metric: str = ""  # the blamed one, or the one that is waited for
    log_evidence: float = 0.0
    log_threshold: float = 0.0
    samples: int = 0  # canary requests
    samples_needed: int | None = None
    seconds_left: int | None = None
    metrics: tuple[MetricVerdict, ...] = ()
