"""A ModelDeployment as commands and views read it; pure. Unknown fields are ignored: a newer operator may add some."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from slipway_cli.api import Json
from slipway_cli.objects.times import parse_time
from slipway_operator.model.deployment.status_lines import decision_fields

# The message of a decision that rejects an attempt.
_REJECTED = re.compile(r"revision (\S+), attempt (\d+), is rejected: (.*)", re.DOTALL)

FIRST, CAPACITY_WAIT, PAUSED = "Initializing", "CapacityWait", "Paused"
ANALYZING, PROMOTING, ABORTING, ABORTED = "Analyzing", "Promoting", "Aborting", "Aborted"


@dataclass(frozen=True, slots=True)
class RolloutStatus:
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
        """REVISION/ATTEMPT, the value of abort."""
        return f"{self.revision}/{self.attempt}"

    @property
    def next_attempt_token(self) -> str:
        """REVISION/ATTEMPT, the value of retry."""
        return f"{self.revision}/{self.attempt + 1}"

    @property
    def is_rejected(self) -> bool:
        """Whether the attempt is rejected: its weight returns, or has returned, to stable."""
        return self.state in (ABORTING, ABORTED)

    @property
    def step_of_steps(self) -> str:
        """`step 2 of 5`, counted from 1."""
        return f"step {min(self.step_index + 1, self.steps)} of {self.steps}"


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """A transition of the rollout: the row of the operator's table that was taken, and its message."""

    at: datetime | None
    row: str
    message: str


@dataclass(frozen=True, slots=True)
class Rejection:
    """An attempt that was rejected; the message is None once the status has forgotten it."""

    revision: str
    attempt: int
    at: datetime | None = None
    message: str | None = None

    def __str__(self) -> str:
        return f"attempt {self.attempt}: {self.message or 'the status does not keep the reason any more'}"


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
    rollout: RolloutStatus | None
    spec: Json = field(repr=False)
    status: Json = field(repr=False)

    @property
    def is_answered(self) -> bool:
        """Whether the status belongs to the current generation of the spec."""
        return self.observed_generation == self.generation

    @property
    def intents(self) -> Json:
        """The commands in `spec.rollout`."""
        return self.spec.get("rollout") or {}

    @property
    def wanted(self) -> str | None:
        """The desired revision: that of the spec, or the one of a rollback."""
        for token in (self.intents.get("rollbackTo"), self.alarm_rollback):
            source, _, target = str(token or "").partition("/")
            if target and source == self.current:
                return target
        return self.current

    @property
    def alarm_rollback(self) -> str | None:
        """FROM/TO of the rollback that an alarm of spec.accuracy started, while the spec has such rollbacks."""
        rolls_back = (self.spec.get("accuracy") or {}).get("onAlarm") == "Rollback"
        return (self.status.get("accuracy") or {}).get("rollback") if rolls_back else None

    @property
    def rolled_back_to(self) -> str | None:
        """The revision that runs in place of the spec's, while a rollback holds."""
        running = (self.stable, self.rollout.revision if self.rollout else None)
        return self.wanted if self.wanted != self.current and self.wanted in running else None

    def rejections(self, revision: str) -> list[Rejection]:
        """The rejected attempts of a revision that the status remembers, oldest first."""
        return [item for item in _read_rejections(self) if item.revision == revision]

    def last_rejection(self, revision: str) -> Rejection | None:
        """The last rejected attempt of a revision; None if it was promoted since, or never rejected."""
        if revision in (self.stable, self.previous):
            return None
        return next(reversed(self.rejections(revision)), None)

    def version_of(self, revision: str | None) -> str | None:
        """The version, as users named it, of a revision that has pods; None without one."""
        return next((item.get("version") for item in self.revisions if item.get("revision") == revision), None)

    @property
    def revisions(self) -> tuple[Json, ...]:
        """The revisions that have pods."""
        return tuple(self.status.get("revisions") or ())

    @property
    def decisions(self) -> tuple[DecisionLine, ...]:
        """The last decisions of the operator, oldest first; without invalid lines that others wrote."""
        return tuple(found for line in self.status.get("decisions") or () if (found := _decision(line)))

    def condition(self, kind: str) -> Json:
        """A condition; empty when it is not there."""
        return next((item for item in self.status.get("conditions") or () if item.get("type") == kind), {})


def _decision(line: object) -> DecisionLine | None:
    found = decision_fields(line) if isinstance(line, str) else None
    if not isinstance(found, dict):
        return None
    try:
        return DecisionLine(parse_time(found["at"]), found["row"], found["message"])
    except (ValueError, OverflowError):
        return None


def read_deployment(obj: Json) -> Deployment:
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


def _read_rejections(of: Deployment) -> Iterator[Rejection]:
    """Attempts from `abortedRevisions`, their reasons from the decisions and the rejected rollout."""
    reasons: dict[str, tuple[datetime | None, str]] = {}
    for decision in of.decisions:
        if match := _REJECTED.match(decision.message):
            reasons[f"{match[1]}/{match[2]}"] = decision.at, match[3]
    if of.rollout and of.rollout.why_rejected:
        at = parse_time((of.status["rollout"].get("abort") or {}).get("at"))
        reasons[of.rollout.attempt_token] = at, of.rollout.why_rejected
    for token in dict.fromkeys([*(of.status.get("abortedRevisions") or ()), *reasons]):
        revision, _, attempt = token.partition("/")
        if attempt.isdecimal():  # any writer of the status may write anything there
            yield Rejection(revision, int(attempt), *reasons.get(token, (None, None)))


def _rollout(rollout: Json) -> RolloutStatus:
    return RolloutStatus(
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
