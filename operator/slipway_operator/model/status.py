"""A ModelDeployment's status: the complete memory of the operator."""

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from slipway_operator.model import wire
from slipway_operator.model.analysis_run import AnalysisRun
from slipway_operator.model.hooks import Ended, HookState
from slipway_operator.model.sleep import Sleep
from slipway_operator.model.strategy import HeaderMatch


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
    """Within how many pods a rollout goes on; see planning/capacity.py."""

    SURGE = "Surge"
    REPLACE = "Replace"
    RECREATE = "Recreate"


@dataclass(frozen=True, slots=True)
class Abort:
    """Why an attempt was rejected."""

    reason: str
    message: str
    at: datetime
    step: int = 0


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout in flight, or the last one when it was rejected."""

    state: State
    revision: str
    attempt: int
    started_at: datetime
    step_started_at: datetime
    progress_at: datetime
    step_index: int = 0
    steps: int = 0
    steps_hash: str = ""
    token: str = ""
    progress: str = ""
    skip_steps: bool = False
    capacity_mode: Mode = Mode.SURGE
    capacity_since: datetime | None = None  # when the wait for capacity, or its present mode, began
    without_baseline: str | None = None  # why this attempt goes on without the baseline pods that the spec asks for
    abort: Abort | None = None
    hooks: tuple[HookState, ...] = ()  # of this attempt, at most one of each name
    analysis: AnalysisRun | None = None  # of the present analysis step, or the last one
    background: AnalysisRun | None = None

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
class Backend:
    """A revision and its share of new requests, in percent."""

    revision: str
    weight: int
    version: str | None = None


@dataclass(frozen=True, slots=True)
class HeaderRoute:
    """Requests with all of these headers go to the revision, whatever its weight."""

    name: str
    revision: str
    match: tuple[HeaderMatch, ...]


@dataclass(frozen=True, slots=True)
class MirrorRoute:
    """The revision gets copies of this share of the requests that the other one answers, in percent."""

    name: str
    revision: str
    percentage: int
    match: tuple[HeaderMatch, ...] = ()  # only of requests with all of these headers


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the gateways route by; see docs/contracts.md."""

    generation: int
    model: str
    salt: str
    backends: tuple[Backend, ...] = ()
    header_routes: tuple[HeaderRoute, ...] = ()
    hold_seconds: int | None = None  # how long new requests wait for the first pod in place of a refusal
    acknowledged: str = ""  # "2/2": gateways that route by this generation, of the ready ones
    mirror_routes: tuple[MirrorRoute, ...] = ()
    asleep: bool | None = None  # gateways send nothing and hold what comes
    wake_seconds: int | None = None  # how long that is expected to last, for those who wait
    forward_headers: tuple[str, ...] = ()  # credentials of clients that reach the pods

    def weight(self, revision: str | None) -> int:
        """Percent of new requests of a revision."""
        return next((backend.weight for backend in self.backends if backend.revision == revision), 0)

    @property
    def digest(self) -> str:
        """What a gateway reports that routes by this table; who acknowledged it is no part of it."""
        return _digest(replace(self, acknowledged=""))


@dataclass(frozen=True, slots=True)
class RevisionStatus:
    """One revision that has pods."""

    revision: str
    role: str  # stable | canary | baseline | old
    replicas: int
    ready: int
    weight: int
    version: str | None = None
    inflight: int | None = None
    scale_down_at: datetime | None = None
    commit: str | None = None  # of its weights, where they are a repository's
    digest: str | None = None  # of its weights
    replica_set_uid: str | None = None  # gateways send requests to pods that this one controls, and to no others


@dataclass(frozen=True, slots=True)
class Condition:
    """A metav1.Condition."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: datetime
    observed_generation: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """A transition of the rollout: which row of its table was taken, and what it said.

    With a reason it is an Event too: one that was not told before the operator died is told by the next one.
    """

    at: datetime
    row: str
    message: str
    reason: str | None = None
    type: str | None = None  # Normal | Warning


@dataclass(frozen=True, slots=True)
class PauseCondition:
    """That a pause step holds; a user may remove it to end the pause, as in Argo Rollouts."""

    reason: str
    start_time: datetime


@dataclass(frozen=True, slots=True)
class Status:
    """All of `.status`."""

    observed_generation: int = 0
    phase: Phase = Phase.PENDING
    reason: str | None = None  # one word: what is wrong, else where the rollout is
    message: str = ""
    step: str | None = None
    weight: int | None = None
    ready: str | None = None
    model: str | None = None
    endpoint: str | None = None
    replicas: int = 0
    selector: str | None = None
    current_revision: str | None = None
    stable_revision: str | None = None
    previous_revision: str | None = None
    canary_revision: str | None = None
    rollout: Rollout | None = None
    ended: Ended | None = None
    traffic: Traffic | None = None
    sleep: Sleep | None = None  # of a deployment that may go without pods
    revisions: tuple[RevisionStatus, ...] = ()
    aborted_revisions: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()  # the last ones, newest last
    pause_conditions: tuple[PauseCondition, ...] = ()
    controller_pause: bool | None = None
    conditions: tuple[Condition, ...] = ()
    lease: str | None = None  # namespace/name of the Lease by which people know whether an operator runs

    @property
    def last_decision(self) -> Decision | None:
        """The newest one."""
        return self.decisions[-1] if self.decisions else None

    def scale_down_at(self, revision: str) -> datetime | None:
        """When the pods of a retired revision may leave; None when that is not settled."""
        return next((item.scale_down_at for item in self.revisions if item.revision == revision), None)


def parse(value: dict[str, Any] | None) -> Status:
    """Read `.status`; an absent one is that of a new object.

    A field that makes no sense counts as lost: others than the operator may write it, and no write may stop us.
    """
    given = value or {}
    try:
        return wire.from_json(Status, given)
    except _MALFORMED:
        return wire.from_json(Status, {key: item for key, item in given.items() if _is_read(key, item)})


# What reading something else than a status ends in; OverflowError: of a time at the ends of the calendar.
_MALFORMED = (AttributeError, LookupError, OverflowError, TypeError, ValueError)


def _is_read(key: str, item: Any) -> bool:
    try:
        wire.from_json(Status, {key: item})
    except _MALFORMED:
        return False
    return True


@lru_cache(4096)
def _digest(table: Traffic) -> str:
    """SHA-256 of canonical JSON, as in docs/contracts.md."""
    told = {key: item for key, item in wire.to_json(table).items() if key != "acknowledged"}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def render(status: Status) -> dict[str, Any]:
    """`.status` as the API takes it. All of it: it replaces what was there."""
    rendered: dict[str, Any] = wire.to_json(status)
    return rendered
