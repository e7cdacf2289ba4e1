"""A ModelDeployment as the verbs and views read it; pure, and patient with fields that a newer operator adds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from slipway_cli.moments import parse_time

Json = Mapping[str, Any]

FIRST, CAPACITY_WAIT, PAUSED = "Initializing", "CapacityWait", "Paused"
ANALYZING, PROMOTING, ABORTING, ABORTED = "Analyzing", "Promoting", "Aborting", "Aborted"


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout in flight, or the last one when it was rejected."""

    state: str
    revision: str
    attempt: int
    token: str
    step_index: int
    steps: int
    skips_steps: bool
    started_at: datetime | None
    step_started_at: datetime | None
    progress_at: datetime | None
    capacity_since: datetime | None
    capacity_mode: str
    why_rejected: str | None

    @property
    def attempt_token(self) -> str:
        """REVISION/ATTEMPT, what abort names."""
        return f"{self.revision}/{self.attempt}"

    @property
    def next_attempt_token(self) -> str:
        """REVISION/ATTEMPT, what retry names."""
        return f"{self.revision}/{self.attempt + 1}"

    @property
    def is_rejected(self) -> bool:
        """Whether its weight returns, or has returned, to stable."""
        return self.state in (ABORTING, ABORTED)

    @property
    def step_of_steps(self) -> str:
        """`step 2 of 5`, counted from 1."""
        return f"step {min(self.step_index + 1, self.steps)} of {self.steps}"


@dataclass(frozen=True, slots=True)
class Deployment:
    """One ModelDeployment."""

    namespace: str
    name: str
    uid: str
    generation: int
    observed_generation: int | None
    phase: str
    message: str
    paused: bool
    current: str | None
    stable: str | None
    previous: str | None
    rollout: Rollout | None
    spec: Json = field(repr=False)
    status: Json = field(repr=False)

    @property
    def is_answered(self) -> bool:
        """Whether the status speaks about the spec as it is now."""
        return self.observed_generation == self.generation

    @property
    def intents(self) -> Json:
        """What `spec.rollout` asks for."""
        return self.spec.get("rollout") or {}

    @property
    def wanted(self) -> str | None:
        """The revision that is to run: that of the spec, or the one that a rollback names in its place."""
        source, _, target = str(self.intents.get("rollbackTo") or "").partition("/")
        return target if target and source == self.current else self.current

    def version_of(self, revision: str | None) -> str | None:
        """The version for people of a revision that has pods."""
        return next((item.get("version") for item in self.revisions if item.get("revision") == revision), None)

    @property
    def revisions(self) -> tuple[Json, ...]:
        """The revisions that have pods."""
        return tuple(self.status.get("revisions") or ())

    def condition(self, kind: str) -> Json:
        """A condition; empty when it is not there."""
        return next((item for item in self.status.get("conditions") or () if item.get("type") == kind), {})


def read(obj: Json) -> Deployment:
    """Read a ModelDeployment as the API server gave it."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    return Deployment(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        observed_generation=status.get("observedGeneration"),
        phase=status.get("phase", "Pending"),
        message=status.get("message", "the operator has not looked at it yet"),
        paused=bool(spec.get("paused")),
        current=status.get("currentRevision"),
        stable=status.get("stableRevision"),
        previous=status.get("previousRevision"),
        rollout=_rollout(status["rollout"]) if status.get("rollout") else None,
        spec=spec,
        status=status,
    )


def _rollout(rollout: Json) -> Rollout:
    return Rollout(
        state=rollout.get("state", ""),
        revision=rollout.get("revision", ""),
        attempt=rollout.get("attempt", 0),
        token=rollout.get("token", ""),
        step_index=rollout.get("stepIndex", 0),
        steps=rollout.get("steps", 0),
        skips_steps=bool(rollout.get("skipSteps")),
        started_at=parse_time(rollout.get("startedAt")),
        step_started_at=parse_time(rollout.get("stepStartedAt")),
        progress_at=parse_time(rollout.get("progressAt")),
        capacity_since=parse_time(rollout.get("capacitySince")),
        capacity_mode=rollout.get("capacityMode", ""),
        why_rejected=(rollout.get("abort") or {}).get("message"),
    )
