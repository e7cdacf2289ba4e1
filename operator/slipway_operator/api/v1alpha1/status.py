"""The status of a ModelDeployment: all state of the operator."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import AnyText, AtMost, ListMap, LogLine, OneOf, required
from slipway_contracts.api.types import Int32, Int64, Time, strict
from slipway_contracts.route_table import Traffic
from slipway_operator.api.v1alpha1.accuracy_status import AccuracyStatus
from slipway_operator.api.v1alpha1.analysis_run import Outcome, Reason, Text
from slipway_operator.api.v1alpha1.hooks import Ended, HookState
from slipway_operator.api.v1alpha1.provider import MetricRun
from slipway_operator.api.v1alpha1.registry_status import RegistryStatus

MAX_WAKES = 5
MOST_REVISIONS = 64
NEVER = datetime(1970, 1, 1, tzinfo=UTC)  # in place of a time that was lost
# Messages contain texts of other controllers and webhooks. A status has many of them, and 1.5 MB at most.
Message = Annotated[str, AtMost(4096)]
Word = Annotated[str, AtMost(256)]


class SleepState(StrEnum):
    """State of a deployment that can scale to zero."""

    AWAKE = "Awake"
    FALLING_ASLEEP = "FallingAsleep"  # gateways hold new requests; the pods still exist
    ASLEEP = "Asleep"  # every gateway holds requests; no pods
    WAKING = "Waking"  # pods start for a waiting request


@dataclass(frozen=True, slots=True)
class Sleep:
    """Scale-to-zero state of the deployment."""

    state: SleepState
    """Awake: pods serve. FallingAsleep: gateways hold new requests, and the pods still exist. Asleep: there are no
    pods. Waking: pods start."""
    since: Time
    """Start time of the state."""
    wake_seconds: Annotated[
        tuple[Annotated[Int32, Field(description="Duration of one wake in seconds.")], ...], AtMost(5)
    ] = ()
    """Durations of the last wakes in seconds, from the request to the first ready pod, oldest first."""

    def to(self, state: SleepState, now: datetime) -> "Sleep":
        """The next state; the duration of a wake that ends is recorded."""
        took = (max(1, round((now - self.since).total_seconds())),) if self.state is SleepState.WAKING else ()
        return replace(self, state=state, since=now, wake_seconds=(*self.wake_seconds, *took)[-MAX_WAKES:])

    @property
    def expected_s(self) -> int | None:
        """How long a wake takes: the median of the last ones; None before the first."""
        return sorted(self.wake_seconds)[len(self.wake_seconds) // 2] if self.wake_seconds else None


class State(StrEnum):
    """State of a rollout."""

    INITIALIZING = "Initializing"  # the first revision starts; there is no earlier one
    PROVISIONING = "Provisioning"  # pods of the new revision start
    CAPACITY_WAIT = "CapacityWait"  # no node has room for them
    SHIFTING = "Shifting"  # gateways apply a weight
    PAUSED = "Paused"  # a pause step lasts
    ANALYZING = "Analyzing"  # an analysis step waits for its verdict
    PROMOTING = "Promoting"  # the steps are done; pods and weight go to full
    ABORTING = "Aborting"  # weight goes back to stable
    ABORTED = "Aborted"  # rejected; stable serves


class Phase(StrEnum):
    """One-word summary for people. No decision uses it."""

    PENDING = "Pending"
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    ASLEEP = "Asleep"


class Mode(StrEnum):
    """How many pods a rollout may use; see planning/sizing/capacity.py."""

    SURGE = "Surge"
    REPLACE = "Replace"
    RECREATE = "Recreate"


@dataclass(frozen=True, slots=True)
class Abort:
    """Reason why the attempt was rejected."""

    reason: str
    """UserAbort, ProgressDeadlineExceeded, InsufficientCapacity, RevertedToStable, Superseded, HookFailed,
    HookRollback, AnalysisFailed or AnalysisInconclusive."""
    message: Message
    """Human-readable explanation."""
    at: Time
    """Time of the rejection."""
    step: Int32 = 0
    """Step that the attempt had reached, counted from 0."""


class Loss(StrEnum):
    """Why an AnalysisRun does not count."""

    MISSING = "RunMissing"  # no object has its name and UID
    OLDER = "RunOlder"  # a backup was restored
    NEWER = "RunNewer"  # an operator died after it wrote the run and before it wrote the status
    FOREIGN = "RunForeign"  # another object has its name
    EDITED = "RunEdited"  # another client changed it
    UNREADABLE = "RunUnreadable"  # its contents make no sense


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """Verdict on which the rollout acts, as of the named sequence of the run."""

    outcome: Outcome
    """Result of the analysis so far."""
    reason: Annotated[Reason, AnyText()]
    """Reason for the outcome."""
    message: Text
    """Human-readable explanation with the numbers."""
    since: Time
    """Time since which the outcome and the reason are unchanged."""
    seconds_left: Int64 | None = None
    """Expected time until a verdict, in seconds."""
    extra_at_most: float | None = None
    """Extra bad responses of the new revision per 1,000, at most, where the template bounds them."""


@dataclass(frozen=True, slots=True)
class StepRamp:
    """Ramp on which the rollout acts."""

    weight: Annotated[Int32, Field(ge=0, le=99)]
    """Percent of requests for the new revision that fits what is left of maxHarm."""
    max_harm: Int32
    """Extra bad responses that the ramp may cost before the new revision has passed."""
    spent: Annotated[float, Field(ge=0)] = 0.0
    """Extra bad responses that it may have cost so far."""
    at_most: Annotated[float, Field(ge=0, le=1000)] = 1000.0
    """Extra bad responses per 1,000, at most."""
    passed_at: Time | None = None
    """Time at which the new revision passed."""
    bake_until: Time | None = None
    """End of the bake. It begins when all gateways route by its weight."""


@dataclass(frozen=True, slots=True)
class AnalysisReference:
    """Analysis of a rollout: the AnalysisRun with its numbers, and what the rollout acts on."""

    id: str
    """Identifier of the analysis: REVISION/ATTEMPT/STEP, or REVISION/ATTEMPT/background."""
    template: str
    """Name of the AnalysisTemplate."""
    run: Annotated[str, AtMost(253)] = ""
    """Name of the AnalysisRun. Absent while there is none."""
    uid: Annotated[str, AtMost(64)] = ""
    """UID of the AnalysisRun."""
    sequence: Int64 = 0
    """status.sequence of the AnalysisRun that the rollout acts on."""
    lost: Annotated[Loss, AnyText()] | None = None
    """Why a former run of this analysis did not count, so that it started again: RunMissing, RunOlder, RunNewer,
    RunForeign, RunEdited or RunUnreadable."""
    verdict: StepVerdict | None = None
    braked: bool | None = None
    """Whether the weight is held at 1 until the warm-up is over, because the new revision is many times slower."""
    ramp: StepRamp | None = None
    started_at: Time | None = None
    """Start time of the analysis in the form of a release without AnalysisRuns."""
    read_at: Time | None = None
    """Time of its last reading in that form."""
    counters: Annotated[str, AtMost(1 << 20)] | None = None
    """Counts in that form. The operator moves them to an AnalysisRun."""
    measured: Annotated[tuple[MetricRun, ...], AtMost(32)] = ()
    """Measurements in that form."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Rollout in flight, or the last one if it was rejected."""

    state: State
    """State of the rollout."""
    revision: str
    """Revision that is rolled out."""
    attempt: Int32
    """Number of the attempt, counted from 1. Each retry increases it by one."""
    started_at: Time = NEVER
    """Start time of the attempt."""
    step_started_at: Time = NEVER
    """Start time of the current step."""
    progress_at: Time = NEVER
    """Time of the last progress. spec.progressDeadlineSeconds counts from here."""
    step_index: Int32 = 0
    """Current step, counted from 0."""
    steps: Int32 = 0
    """Number of steps."""
    steps_hash: str = ""
    """Hash of the list of steps. A change shows that the steps were edited."""
    token: str = ""
    """REVISION/ATTEMPT/STEP, the value for spec.rollout.promote."""
    progress: str = ""
    """Last observed progress of the pods. Any change of it counts as progress."""
    skip_steps: bool = False
    """Whether the steps are skipped, because of promoteFull or a rollback. Absent if not."""
    capacity_mode: Mode = Mode.SURGE
    """Surge: the rollout adds pods. Replace: pods of the stable revision are replaced one by one. Recreate: the only
    pod is deleted before the new one starts. Absent for Surge."""
    capacity_since: Time | None = None
    """Start time of the wait for capacity, or of the current capacity mode."""
    stable_lost_at: Time | None = None
    """Time since which no pod of the stable revision is ready. Absent while one is. After spec.progressDeadlineSeconds
    the rollout no longer waits for them."""
    without_baseline: Message | None = None
    """Reason why the attempt continues without the baseline pods of spec.strategy.canary.baselinePod."""
    abort: Abort | None = None
    hooks: Annotated[tuple[HookState, ...], AtMost(16)] = ()
    """Calls of hooks in this attempt, with their results. A result is recorded before it takes effect."""
    analysis: AnalysisReference | None = None
    """Analysis of the current step, or the last one."""
    background: AnalysisReference | None = None
    """Analysis in the background of the steps."""
    shadow_at_most: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Extra bad responses of the new revision per 1,000, at most, as the twin shadow of this attempt has proved."""

    @property
    def attempt_token(self) -> str:
        """REVISION/ATTEMPT, the value for spec.rollout.abort."""
        return f"{self.revision}/{self.attempt}"

    @property
    def step_token(self) -> str:
        """REVISION/ATTEMPT/STEP, the value for spec.rollout.promote."""
        return f"{self.revision}/{self.attempt}/{self.step_index}"

    @property
    def salt(self) -> str:
        """Salt of the traffic split: each attempt exposes different users."""
        return f"{self.revision}.{self.attempt}"

    @property
    def in_flight(self) -> bool:
        """Whether pods of the revision are under test."""
        return self.state not in (State.ABORTING, State.ABORTED)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Engine of a revision."""

    type: str
    """Type of the engine."""
    capabilities: Annotated[tuple[Annotated[str, Field(description="Name.")], ...], AtMost(16)] = ()
    """What the engine can do: Drain, Metrics, MirrorTokens, StreamResume, TenantCache and
    TenantFairness. slipway can do all.
    docs/engines.md explains what is lost without each."""


@dataclass(frozen=True, slots=True)
class FetchingPod:
    """Pod that downloads the model. Numbers are those of the pod, rounded and some seconds old."""

    pod: Annotated[str, AtMost(253)]
    """Name of the pod."""
    node: Annotated[str, AtMost(253)] | None = None
    """Node of the pod."""
    percent: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Downloaded share in percent. Absent while the size is not known."""
    downloaded_bytes: Int64 = 0
    """Bytes on the disk of the pod, with those of an interrupted download."""
    size_bytes: Int64 | None = None
    """Bytes of the model. Absent while it is not known."""
    bytes_per_second: Int64 = 0
    """Speed of the last seconds."""
    seconds_left: Int64 | None = None
    """Seconds that the rest takes at this speed. Absent while the size or the speed is not known."""
    waiting: bool | None = None
    """Whether another pod downloads the model into the cache of both. Absent if not."""


@dataclass(frozen=True, slots=True)
class NodeModel:
    """Node that has the model of the revision in its cache, or downloads it."""

    node: Annotated[str, AtMost(253)]
    """Name of the node."""
    state: Annotated[str, OneOf(("Cached", "Fetching", "Failed"))]
    """Cached if a pod of the revision on the node has the model, or a Job has brought it there; Fetching while one
    downloads it; Failed if the Job failed, and pods download it themselves."""
    size_bytes: Int64 | None = None
    """Bytes of the model. Absent while it is not known."""
    percent: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Downloaded share in percent. Absent while it is not known, and of Jobs."""
    bytes_per_second: Int64 | None = None
    """Speed of the last seconds. Absent as the percentage is."""
    seconds_left: Int64 | None = None
    """Seconds that the rest takes at this speed. Absent while the size or the speed is not known."""


@dataclass(frozen=True, slots=True)
class RevisionStatus:
    """Revision that has pods."""

    revision: str
    """Hash of the revision. The suffix -baseline denotes new pods of the stable revision, for comparison."""
    role: str
    """Role of the revision: stable, canary, baseline or old."""
    replicas: Int32
    """Number of desired pods."""
    ready: Int32
    """Number of ready pods."""
    weight: Int32
    """Percent of new requests."""
    version: str | None = None
    """Human-readable version."""
    registry: Annotated[str, AtMost(512)] | None = None
    """models:/NAME/VERSION of a model that is from a registry."""
    inflight: Int32 | None = None
    """Number of requests in progress at the gateways."""
    scale_down_at: Time | None = None
    """Time from which on the pods may be deleted."""
    commit: str | None = None
    """Commit of the hf:// repository, or digest of the oci:// manifest without sha256:. Every pod of the revision
    loads it."""
    digest: str | None = None
    """sha256: and the digest over the digests of the model's files. Every pod of the revision loads these files."""
    replica_set_uid: Annotated[str, AtMost(64)] | None = None
    """UID of the ReplicaSet whose pods gateways send requests to; of several pods for a replica, that of the leaders'
    StatefulSet."""
    standby_uid: Annotated[str, AtMost(64)] | None = None
    """UID of the ReplicaSet of standby pods. Gateways send requests to those of its pods that serve."""
    engine: EngineStatus | None = None
    """Engine of the revision. Absent for slipway."""
    fetching: Annotated[tuple[FetchingPod, ...], AtMost(4)] = ()
    """Some of the pods that download the model now."""
    nodes: Annotated[tuple[NodeModel, ...], AtMost(16)] = ()
    """Nodes with pods of the revision, and those on which Jobs download its model ahead. With spec.model.cache node
    only; of many nodes those that do not have it come first."""


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """Standby pods of the stable revision."""

    replicas: Int32
    """Number of pods that should wait with a loaded model."""
    ready: Int32
    """Number of pods that do, and serve as soon as spec.replicas rises."""
    serving: Int32
    """Number of further pods of this kind that serve, and count among spec.replicas. They wait again when spec.replicas
    falls."""
    message: Message = ""
    """Why pods are missing. Empty while they only start."""


@dataclass(frozen=True, slots=True)
class ObjectiveStatus:
    """Objective of spec.slo, over the window so far."""

    objective: str
    """Name of the objective: ttftP95, itlP95, latencyP99 or availability."""
    target: float
    """Percent of the requests that must meet it."""
    requests: Int64
    """Requests that count."""
    missed: Int64
    """Requests among them that missed it."""
    budget_left: float
    """Share of the error budget that is left, from 1 down. At 0 or below it is spent."""


@dataclass(frozen=True, slots=True)
class ServiceLevelStatus:
    """What the gateways counted against spec.slo. It is written once a minute, or when a budget is spent."""

    read_at: Time
    """Time of the last count."""
    objectives: Annotated[tuple[ObjectiveStatus, ...], AtMost(4)] = ()
    """Objectives, with what is left of their error budgets."""
    periods: Annotated[
        tuple[Annotated[str, AtMost(256), Field(description="START OBJECTIVE/LIMIT=REQUESTS:MISSED ...")], ...],
        AtMost(30),
    ] = ()
    """Counts by time, in 28 periods of the window: START OBJECTIVE/LIMIT=REQUESTS:MISSED."""
    counted: Annotated[
        tuple[Annotated[str, AtMost(320), Field(description="PROCESS OBJECTIVE/LIMIT=REQUESTS:MISSED ...")], ...],
        AtMost(96),
    ] = ()
    """What of each gateway process is counted: PROCESS OBJECTIVE/LIMIT=REQUESTS:MISSED."""


@dataclass(frozen=True, slots=True)
class RevisionCapacity:
    """What one pod of a revision carries while the objectives of spec.slo hold, in tokens per second of work. Prompt
    tokens count by what they cost. In requests per second for a model without tokens."""

    revision: str
    """Revision."""
    per_second: float | None = None
    """What a pod carries. Absent while it is unknown."""
    at_least: float | None = None
    """Lower bound of it, with 95 % confidence."""
    at_most: float | None = None
    """Upper bound of it. Absent while no load was too high."""
    basis: Annotated[str, AtMost(16)] = ""
    """Measured: objectives were missed at higher loads. Extrapolated: from step times. AtLeast: the highest load so
    far, at which they were met."""
    start_seconds: Int32 | None = None
    """Time from the creation of a pod until it is ready: the median of the last ones."""
    fit: Annotated[str, AtMost(4096)] = ""
    """Numbers of the model, for the next operator."""


@dataclass(frozen=True, slots=True)
class AutoscalingStatus:
    """What spec.autoscaling.objective needs. It is written once a minute, or when the number changes."""

    mode: Annotated[str, AtMost(16)]
    """Mode of the objective: Advise or Act."""
    desired_replicas: Int32
    """Number of pods that there should be."""
    rule: Annotated[str, AtMost(32)]
    """What decided it: Steady, Utilization, Backlog, Latency, Forecast, Schedule, Bounds, Empty, Waiting or Unknown."""
    message: Message
    """Human-readable explanation with the numbers."""
    since: Time
    """Time since which the number is unchanged."""
    read_at: Time
    """Time of these numbers."""
    needed_replicas: Int32 = 0
    """Number of pods that this moment needs, before windows and cooldowns."""
    utilization_percent: Int32 | None = None
    """Demand in percent of what the ready pods carry."""
    demand_per_second: float | None = None
    """Work that arrives per second."""
    forecast_per_second: float | None = None
    """Highest demand that is expected until pods that are created now are ready."""
    forecast_skill: float | None = None
    """1 less the error of the forecast by that of the last value: 1 is perfect, below 0 it does not count."""
    revisions: Annotated[tuple[RevisionCapacity, ...], AtMost(4)] = ()
    """Revisions that serve."""
    history: Annotated[str, AtMost(12288)] = ""
    """Numbers of the forecast, for the next operator."""
    log: Annotated[
        tuple[Annotated[str, AtMost(512), Field(description="TIME REPLICAS RULE: MESSAGE.")], ...], AtMost(20)
    ] = ()
    """Most recent changes of the number, oldest first: TIME REPLICAS RULE: MESSAGE."""


@required("type", "status", "last_transition_time", "reason", "message")
@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of the object, as metav1.Condition. status.observedGeneration is that of all conditions."""

    type: str
    """Type of the condition."""
    status: Annotated[str, OneOf(("True", "False", "Unknown"))]
    """True, False or Unknown."""
    reason: Word
    """Reason for the status, one word in CamelCase."""
    message: Message
    """Human-readable explanation."""
    last_transition_time: Time
    """Time of the last change of the status."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Transition of the rollout: the name of its row in the table, and the message.

    A decision with a reason is an Event too. When the operator dies before it sent the Event, the next one sends it.
    """

    at: Time
    """Time of the transition."""
    row: str
    """Name of the transition; docs/rollouts.md lists them."""
    message: Message
    """Human-readable explanation."""
    reason: str | None = None
    """Reason of the Event about the transition."""
    type: Annotated[str, OneOf(("Normal", "Warning"))] | None = None
    """Type of that Event."""


@required("reason", "start_time")
@dataclass(frozen=True, slots=True)
class PauseCondition:
    """Reason for a pause. Removing it ends the pause, as in Argo Rollouts."""

    reason: str
    """CanaryPauseStep or InconclusiveAnalysis."""
    start_time: Time
    """Start time of the pause."""


@strict
@dataclass(frozen=True, slots=True)
class Status:
    """Observed state of the ModelDeployment, written by the operator."""

    observed_generation: Int64 = 0
    """metadata.generation that the status was computed from."""
    phase: Phase = Phase.PENDING
    """One-word summary, derived from the conditions."""
    reason: Annotated[str, AtMost(64)] | None = None
    """Most specific reason in CamelCase: of a failure, otherwise the state of the rollout, for example ImagePullFailed,
    InsufficientCapacity or Paused. While pods download the model it is Fetching, with the percentage of the pod that
    has least, for example Fetching 43 %. Absent in the normal state."""
    message: Message = ""
    """Human-readable description of the current activity, what it waits for, and why."""
    step: str | None = None
    """Current step of the rollout in flight and the number of steps, for example 2/5."""
    weight: Int32 | None = None
    """Percent of new requests for the canary, as acknowledged by every ready gateway."""
    ready: str | None = None
    """Number of ready pods and of desired pods, over all revisions."""
    model: str | None = None
    """Name that clients send as "model"."""
    endpoint: str | None = None
    """Base URL for OpenAI clients inside the cluster."""
    replicas: Int32 = 0
    """Number of pods of the live revisions, at most spec.replicas, for the scale subresource. Pods that a rollout adds
    temporarily are not counted."""
    selector: str | None = None
    """Label selector of all pods of the live revisions, for the scale subresource."""
    current_revision: str | None = None
    """Revision that the spec describes."""
    stable_revision: str | None = None
    """Revision that was last promoted."""
    previous_revision: str | None = None
    """Revision that was stable before stableRevision."""
    canary_revision: str | None = None
    """Revision under test. Absent if there is none."""
    rollout: Rollout | None = None
    ended: Ended | None = None
    traffic: Traffic | None = None
    sleep: Sleep | None = None
    slo: ServiceLevelStatus | None = None
    autoscaling: AutoscalingStatus | None = None
    accuracy: AccuracyStatus | None = None
    registry: RegistryStatus | None = None
    standby: StandbyStatus | None = None
    revisions: Annotated[tuple[RevisionStatus, ...], AtMost(MOST_REVISIONS)] = ()
    """Revisions that have pods."""
    aborted_revisions: Annotated[tuple[Annotated[str, Field(description="REVISION/ATTEMPT.")], ...], AtMost(20)] = ()
    """Rejected attempts as REVISION/ATTEMPT, oldest first."""
    decisions: Annotated[
        tuple[Annotated[Decision, LogLine(2048), Field(description="TIME ROW: MESSAGE (TYPE REASON).")], ...],
        AtMost(20),
    ] = ()
    """Most recent decisions about rollouts, oldest first: TIME ROW: MESSAGE (TYPE REASON)."""
    collision_count: Int32 | None = None
    """Number of times that the name of a child was in use by an object of another controller. Names of later children
    contain it."""
    pause_conditions: Annotated[tuple[PauseCondition, ...], AtMost(4)] = ()
    """Reasons for the current pause. Present while a pause step holds. Removing them, as the plugin of Argo Rollouts
    does, has the effect of spec.rollout.promote for that step."""
    controller_pause: bool | None = None
    """Whether a pause step holds. It stays true when pauseConditions are removed."""
    conditions: Annotated[tuple[Condition, ...], AtMost(32), ListMap("type")] = ()
    """Accepted, Ready, Available, Progressing, TrafficSynced, StableHealthy and CapacityAvailable. CanaryHealthy is
    present while there is a canary beside a stable revision, Autoscaling with an autoscaler. docs/status.md lists all
    conditions."""
    lease: str | None = None
    """NAMESPACE/NAME of the Lease that the operator renews. When it has expired, no operator runs, and the status is as
    of its last write."""

    @property
    def last_decision(self) -> Decision | None:
        """The most recent decision; None before the first."""
        return self.decisions[-1] if self.decisions else None

    def scale_down_at(self, revision: str) -> datetime | None:
        """When the pods of a retired revision may be deleted; None if that is not decided yet."""
        return next((item.scale_down_at for item in self.revisions if item.revision == revision), None)


@dataclass(frozen=True, slots=True)
class PatchedStatus(Status):
    """Observed state of the ModelDeployment, written by the operator. As in Argo Rollouts, users can patch abort and
    promoteFull, and remove pauseConditions.

    `planning.rollout.argo` reads the patches. The operator never sets these fields.
    """

    abort: bool | None = None
    """Patch of Argo Rollouts. true has the effect of spec.rollout.abort for the attempt in flight, false of
    spec.rollout.retry for the rejected one. The operator acts on it once and removes it."""
    promote_full: bool | None = None
    """Patch of Argo Rollouts. true has the effect of spec.rollout.promoteFull for the revision in flight. The operator
    acts on it once and removes it."""
