"""status.accuracy: what is watched after the rollout, in full: the operator keeps nothing else of it."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from slipway_contracts.accuracy import PublishedBins
from slipway_contracts.api.markers import AtMost, OneOf
from slipway_contracts.api.types import Int32, Int64, Time

FEEDBACK, PREDICTIONS = SIGNALS = ("Feedback", "Predictions")
MOST_WATCHED, MOST_ROLLED_BACK = 3, 8
MOST_BETS = 128  # of one monitor
MOST_PERIODS = 30
_COUNT = Annotated[Int64, Field(description="Number of observations.")]


@dataclass(frozen=True, slots=True)
class AccuracyMonitor:
    """Monitor of one signal of a revision. Counts are by outcome (right, wrong) for Feedback, and by bin for
    Predictions."""

    signal: Annotated[str, OneOf(SIGNALS)]
    """Feedback or Predictions."""
    since: Time
    """Time from which the revision is watched."""
    limits: Annotated[str, AtMost(128)] = ""
    """Fields of spec.accuracy that the evidence is about. Other ones begin new evidence."""
    reference_rule: Annotated[str, AtMost(128)] = ""
    """Fields of spec.accuracy by which the reference was taken. Other ones begin a new reference."""
    counts: Annotated[tuple[_COUNT, ...], AtMost(17)] = ()
    """All observations of the revision, those of the reference included."""
    reference: Annotated[tuple[_COUNT, ...], AtMost(17)] = ()
    """Observations of the reference: the baseline of labels, or the first predictions. Absent if there is none."""
    reference_until: Time | None = None
    """End of the reference. Absent while it is taken."""
    limit: float | None = None
    """Share of wrong labels above which an alarm is raised. Absent for Predictions, and while a baseline is taken."""
    evidence: float = 0.0
    """Evidence of a change. At 1 an alarm is raised."""
    alarm_since: Time | None = None
    """Start of the present alarm. Absent: there is none."""
    alarms: Int32 = 0
    """Number of alarms about the revision."""
    finding: Annotated[str, AtMost(512)] = ""
    """What the last alarm was about, with its numbers."""
    after: Annotated[tuple[_COUNT, ...], AtMost(17)] = ()
    """Observations since the present alarm."""
    periods: Annotated[
        tuple[Annotated[str, AtMost(320), Field(description="START COUNT:COUNT...")], ...], AtMost(MOST_PERIODS)
    ] = ()
    """Counts by day: START COUNT:COUNT... Labels of the last 28 days, predictions of the last 7."""
    bets: Annotated[
        tuple[Annotated[Int64, Field(description="Logarithm of a stake in units of 1e-9.")], ...], AtMost(MOST_BETS)
    ] = ()
    """State of the evidence: one number for each bet."""


@dataclass(frozen=True, slots=True)
class RevisionAccuracy:
    """What is watched of one revision."""

    revision: str
    """Name of the revision."""
    monitors: Annotated[tuple[AccuracyMonitor, ...], AtMost(2)] = ()
    """Its monitors."""
    bins: PublishedBins | None = None


@dataclass(frozen=True, slots=True)
class AccuracyStatus:
    """What spec.accuracy watches. It is written once a minute if something was counted, and at once with an alarm."""

    read_at: Time
    """Time of the last count."""
    revisions: Annotated[tuple[RevisionAccuracy, ...], AtMost(MOST_WATCHED)] = ()
    """Revisions that serve or served, the serving one last. Labels of the others still count, and raise no alarm."""
    rollback: Annotated[str, AtMost(64)] | None = None
    """FROM/TO of the rollback that an alarm started: the spec describes FROM, and TO runs in its place."""
    rolled_back: Annotated[tuple[Annotated[str, Field(description="Revision.")], ...], AtMost(MOST_ROLLED_BACK)] = ()
    """Revisions from which an alarm started a rollback. It does so once for each."""
    counted: Annotated[
        tuple[Annotated[str, AtMost(1280), Field(description="PROCESS REVISION=RIGHT:WRONG ...")], ...], AtMost(96)
    ] = ()
    """What of each gateway process is counted: PROCESS REVISION=RIGHT:WRONG REVISION/BINS=COUNT:COUNT..."""

    def of(self, revision: str | None) -> RevisionAccuracy | None:
        """What is watched of a revision."""
        return next((one for one in self.revisions if one.revision == revision), None)
