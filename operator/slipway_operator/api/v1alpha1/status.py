"""The status of a ModelDeployment: the complete memory of the operator."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from slipway_operator.api.markers import AtMost, ListMap, LogLine, OneOf, required
from slipway_operator.api.types import Int32, Int64, Time, strict
from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun
from slipway_operator.api.v1alpha1.hook_state import Ended, HookState
from slipway_operator.api.v1alpha1.routes import Traffic

MAX_WAKES = 5
MOST_REVISIONS = 64
NEVER = datetime(1970, 1, 1, tzinfo=UTC)  # in place of a time that was lost
# What other controllers and webhooks say is a part of messages, of which a status has many, and 1.5 MB at most.
Message = Annotated[str, AtMost(4096)]
Word = Annotated[str, AtMost(256)]


class SleepState(StrEnum):
    """Whether a deployment that may sleep has pods."""

    AWAKE = "Awake"
    FALLING_ASLEEP = "FallingAsleep"  # gateways are told to hold what comes; the pods are still there
    ASLEEP = "Asleep"  # every gateway holds, and none has a request; no pods
    WAKING = "Waking"  # pods come up for a request that waits


@dataclass(frozen=True, slots=True)
class Sleep:
    """Of a deployment that may go without pods.

    Where it is, since when, and how long the last wakes took.
    """

    state: SleepState
    """FallingAsleep: gateways are told to hold what comes, and the pods are still there. Asleep: no pods. Waking:
    pods come up."""
    since: Time
    """When that began."""
    wake_seconds: Annotated[tuple[Annotated[Int32, Field(description="Of one wake.")], ...], AtMost(5)] = ()
    """How long the last wakes took, from the request to the first ready pod, the newest last."""

    def to(self, state: SleepState, now: datetime) -> "Sleep":
        """The next state; a wake that ends is remembered."""
        took = (max(1, round((now - self.since).total_seconds())),) if self.state is SleepState.WAKING else ()
        return replace(self, state=state, since=now, wake_seconds=(*self.wake_seconds, *took)[-MAX_WAKES:])

    @property
    def expected_s(self) -> int | None:
        """How long a wake takes: the median of the last ones; None before the first."""
        return sorted(self.wake_seconds)[len(self.wake_seconds) // 2] if self.wake_seconds else None


class State(StrEnum):
    """Where a rollout is."""

    INITIALIZING = "Initializing"  # the first revision comes up; there is nothing to fall back to
    PROVISIONING = "Provisioning"  # pods of the new revision come up
    CAPACITY_WAIT = "CapacityWait"  # no node takes them
    SHIFTING = "Shifting"  # a weight is on its way to the gateways
    PAUSED = "Paused"  # a pause step holds
    ANALYZING = "Analyzing"  # an analysis step waits for its verdict
    PROMOTING = "Promoting"  # the steps are done; pods and weight go to full
    ABORTING = "Aborting"  # weight goes back to stable
    ABORTED = "Aborted"  # rejected; stable serves


class Phase(StrEnum):
    """One word for people, derived, never decided by."""

    PENDING = "Pending"
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    ASLEEP = "Asleep"


class Mode(StrEnum):
    """Within how many pods a rollout goes on; see planning/sizing/capacity.py."""

    SURGE = "Surge"
    REPLACE = "Replace"
    RECREATE = "Recreate"


@dataclass(frozen=True, slots=True)
class Abort:
    """Why the attempt was rejected.

    Why an attempt was rejected.
    """

    reason: str
    """UserAbort, ProgressDeadlineExceeded, InsufficientCapacity, RevertedToStable, Superseded, HookFailed,
    HookRollback, AnalysisFailed or AnalysisInconclusive."""
    message: Message
    """One sentence."""
    at: Time
    """When."""
    step: Int32 = 0
    """The step it had reached, counted from 0."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout in flight, or the last one when it was rejected."""

    state: State
    """Where the rollout is."""
    revision: str
    """The revision in flight."""
    attempt: Int32
    """Counts from 1, one more with each retry."""
    started_at: Time = NEVER
    """When the attempt began."""
    step_started_at: Time = NEVER
    """When the step began."""
    progress_at: Time = NEVER
    """When the attempt last made progress; the progress deadline counts from here."""
    step_index: Int32 = 0
    """The step being done, counted from 0."""
    steps: Int32 = 0
    """Number of steps."""
    steps_hash: str = ""
    """Identity of the step list, to notice its change."""
    token: str = ""
    """REVISION/ATTEMPT/STEP, for spec.rollout.promote."""
    progress: str = ""
    """What was last seen of the pods; any change of it is progress."""
    skip_steps: bool = False
    """The steps are skipped, by promoteFull or a rollback."""
    capacity_mode: Mode = Mode.SURGE
    """Within how many pods the rollout goes on."""
    capacity_since: Time | None = None
    """When the wait for capacity began, or its present mode."""
    without_baseline: Message | None = None
    """Why this attempt goes on without the baseline pods that spec.strategy.canary.baselinePod asks for."""
    abort: Abort | None = None
    hooks: Annotated[tuple[HookState, ...], AtMost(16)] = ()
    """What the hooks of this attempt were asked and answered; written before it takes effect."""
    analysis: AnalysisRun | None = None
    """The analysis of the present step, or the last one."""
    background: AnalysisRun | None = None
    """The analysis in the background of the steps."""

    @property
    def attempt_token(self) -> str:
        """REVISION/ATTEMPT, what abort and retry name."""
        return f"{self.revision}/{self.attempt}"

    @property
    def step_token(self) -> str:
        """REVISION/ATTEMPT/STEP, what promote names."""
        return f"{self.revision}/{self.attempt}/{self.step_index}"

    @property
    def salt(self) -> str:
        """Salt of the traffic split: each attempt exposes other users."""
        return f"{self.revision}.{self.attempt}"

    @property
    def in_flight(self) -> bool:
        """Whether pods of the revision are under test."""
        return self.state not in (State.ABORTING, State.ABORTED)


@dataclass(frozen=True, slots=True)
class RevisionStatus:
    """One revision.

    One revision that has pods.
    """

    revision: str
    """Its hash; with -baseline behind it, fresh pods of the stable one."""
    role: str
    """stable, canary, baseline or old."""
    replicas: Int32
    """Pods wanted."""
    ready: Int32
    """Pods ready."""
    weight: Int32
    """Percent of new requests."""
    version: str | None = None
    """Its version for people."""
    inflight: Int32 | None = None
    """Requests in progress at the gateways."""
    scale_down_at: Time | None = None
    """When its pods may leave."""
    commit: str | None = None
    """The commit of its hf:// repository, which every pod of it loads."""
    digest: str | None = None
    """sha256: over the digests of its model's files, which every pod of it loads."""
    replica_set_uid: Annotated[str, AtMost(64)] | None = None
    """Of the ReplicaSet whose pods gateways send requests to."""


@required("type", "status", "last_transition_time", "reason", "message")
@dataclass(frozen=True, slots=True)
class Condition:
    """One condition.

    A metav1.Condition.
    """

    type: str
    """Its name."""
    status: Annotated[str, OneOf(("True", "False", "Unknown"))]
    """True, False or Unknown."""
    reason: Word
    """One word in CamelCase."""
    message: Message
    """One sentence."""
    last_transition_time: Time
    """When its status last changed."""
    observed_generation: Int64 = 0
    """The generation it answers."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A transition of the rollout: which row of its table was taken, and what it said.

    With a reason it is an Event too: one that was not told before the operator died is told by the next one.
    """

    at: Time
    """When."""
    row: str
    """Which transition; docs/rollouts.md lists them."""
    message: Message
    """What was decided."""
    reason: str | None = None
    """Reason of the Event that told it."""
    type: Annotated[str, OneOf(("Normal", "Warning"))] | None = None
    """Type of that Event."""


@required("reason", "start_time")
@dataclass(frozen=True, slots=True)
class PauseCondition:
    """One reason to pause.

    That a pause step holds; a user may remove it to end the pause, as in Argo Rollouts.
    """

    reason: str
    """CanaryPauseStep or InconclusiveAnalysis."""
    start_time: Time
    """When the pause began."""


@strict
@dataclass(frozen=True, slots=True)
class Status:
    """What the operator observed and decided. Written by the operator alone.

    All of `.status`.
    """

    observed_generation: Int64 = 0
    """The metadata.generation that this status answers."""
    phase: Phase = Phase.PENDING
    """One word, derived from the conditions."""
    reason: Annotated[str, AtMost(64)] | None = None
    """One word more: what is wrong, as a condition has it, else where the rollout is, for example ImagePullFailed,
    InsufficientCapacity or Paused. Absent when all is well."""
    message: Message = ""
    """What is happening, what is waited for, and why."""
    step: str | None = None
    """Step of the rollout in flight, of how many, for example 2/5."""
    weight: Int32 | None = None
    """Percent of new requests for the canary that every ready gateway acknowledged."""
    ready: str | None = None
    """Ready pods of those wanted, over all revisions."""
    model: str | None = None
    """The name that clients send."""
    endpoint: str | None = None
    """Base URL for OpenAI clients inside the cluster."""
    replicas: Int32 = 0
    """Pods of the live revisions, at most spec.replicas, for the scale subresource: what a rollout adds for its
    time is not counted."""
    selector: str | None = None
    """Label selector of all pods of the live revisions, for the scale subresource."""
    current_revision: str | None = None
    """The revision that the spec describes."""
    stable_revision: str | None = None
    """The revision that was last promoted."""
    previous_revision: str | None = None
    """The revision that was stable before."""
    canary_revision: str | None = None
    """The revision under test, if any."""
    rollout: Rollout | None = None
    ended: Ended | None = None
    traffic: Traffic | None = None
    sleep: Sleep | None = None
    revisions: Annotated[tuple[RevisionStatus, ...], AtMost(MOST_REVISIONS)] = ()
    """The revisions that have pods."""
    aborted_revisions: Annotated[tuple[Annotated[str, Field(description="One attempt.")], ...], AtMost(20)] = ()
    """Attempts that were rejected, as REVISION/ATTEMPT, newest last."""
    decisions: Annotated[
        tuple[Annotated[Decision, LogLine(2048), Field(description="TIME ROW: MESSAGE (TYPE REASON).")], ...],
        AtMost(20),
    ] = ()
    """The last decisions about rollouts, newest last: TIME ROW: MESSAGE (TYPE REASON)."""
    collision_count: Int32 | None = None
    """How often another controller had the name of a child. Names of later children contain it."""
    pause_conditions: Annotated[tuple[PauseCondition, ...], AtMost(4)] = ()
    """There while a pause step holds. Removing them, as Argo Rollouts' plugin does, is taken as
    spec.rollout.promote of that step."""
    controller_pause: bool | None = None
    """That a pause step holds, also after its pauseConditions were removed."""
    conditions: Annotated[tuple[Condition, ...], AtMost(16), ListMap("type")] = ()
    """Accepted, Ready, Available, Progressing, TrafficSynced, StableHealthy and CapacityAvailable; beside a stable
    revision also CanaryHealthy, with an autoscaler also Autoscaling."""
    lease: str | None = None
    """NAMESPACE/NAME of the Lease that the operator renews. When it expires, no operator runs, and this status is as of
    its last write."""

    @property
    def last_decision(self) -> Decision | None:
        """The newest one."""
        return self.decisions[-1] if self.decisions else None

    def scale_down_at(self, revision: str) -> datetime | None:
        """When the pods of a retired revision may leave; None when that is not settled."""
        return next((item.scale_down_at for item in self.revisions if item.revision == revision), None)


@dataclass(frozen=True, slots=True)
class PatchedStatus(Status):
    """What the operator observed and decided. Written by the operator alone.

    But for two patches, which `planning.rollout.argo` reads: the operator itself never writes them.
    """

    abort: bool | None = None
    """Argo Rollouts' patch: true is taken as spec.rollout.abort of the attempt in flight, false as
    spec.rollout.retry of the rejected one. The operator acts on it once and removes it."""
    promote_full: bool | None = None
    """Argo Rollouts' patch: true is taken as spec.rollout.promoteFull of the revision in flight. The operator acts
    on it once and removes it."""
