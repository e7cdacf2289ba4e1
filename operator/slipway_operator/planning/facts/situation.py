"""One reconcile's view: spec, status and observation, and what decisions derive from them."""

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from slipway_operator.api.v1alpha1.analysis_run import RunStatus
from slipway_operator.api.v1alpha1.status import Decision, Rollout, Sleep, SleepState, State, Status
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Observed, Workload
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.model.deployment.strategy import Step
from slipway_operator.model.inputs.pod_inputs import Resources
from slipway_operator.planning.facts import causes
from slipway_operator.planning.facts.causes import Cause
from slipway_operator.planning.facts.references import Missing


@dataclass(frozen=True, slots=True)
class Course:
    """Decisions that are kept from one reconcile to the next."""

    rollout: Rollout | None = None
    stable: str | None = None
    previous: str | None = None
    aborted: tuple[str, ...] = ()  # REVISION/ATTEMPT, newest last
    decisions: tuple[Decision, ...] = ()
    runs: dict[str, RunStatus] = field(default_factory=dict)  # of the analyses that go on, by field of the rollout

    @property
    def state(self) -> State | None:
        """The state of the rollout; None is idle."""
        return self.rollout.state if self.rollout else None

    @property
    def target(self) -> str | None:
        """The revision under test: one that may hold weight beside stable."""
        return self.rollout.revision if self.rollout and self.rollout.state is not State.ABORTED else None


def step_now(spec: Spec, rollout: Rollout) -> Step | None:
    """The present step of a rollout; None past the last one, or where the status has an invalid index."""
    steps = spec.strategy.steps
    return steps[rollout.step_index] if 0 <= rollout.step_index < len(steps) else None


def rollout_of(course: Course) -> Rollout:
    """The rollout, where one must exist."""
    assert course.rollout is not None, "only the rows and sentences of idle states do without a rollout"
    return course.rollout


@dataclass(frozen=True)
class Situation:
    """Everything that a decision may read. What many of them need is derived once."""

    spec: Spec
    wanted: str  # the revision to run
    current: str  # the revision that the spec describes
    status: Status
    observed: Observed
    now: datetime
    uid: str = ""  # of the ModelDeployment
    sleep: Sleep | None = None  # as decided now
    missing: Missing | None = None  # a reference that cannot be resolved
    name: str = ""  # of the ModelDeployment

    @cached_property
    def asleep(self) -> bool:
        """Whether the deployment should have no pods: asleep in the status as read, and by what is decided now."""
        written, decided = self.status.sleep, self.sleep
        return bool(written and decided and written.state is decided.state is SleepState.ASLEEP)

    @cached_property
    def replicas(self) -> int:
        """Pods that should serve all traffic: spec.replicas, or 0 while asleep."""
        return 0 if self.asleep else self.spec.replicas

    @property
    def holds(self) -> bool:
        """Whether nothing moves by itself: spec.paused is set, a reference cannot be resolved, or adapters wait."""
        return self.spec.paused or bool(self.missing and self.missing.holds) or self.observed.hold is not None

    @property
    def rolled_back(self) -> bool:
        """Whether a former revision runs: by spec.rollout.rollbackTo, or because of an alarm of spec.accuracy."""
        return self.wanted != self.current

    @cached_property
    def acknowledged(self) -> tuple[int, int]:
        """(ready gateways that route by the table in the status, ready gateways).

        By its digest: a generation does not identify a table that was lost, restored or edited by hand.
        """
        digest = self.status.traffic.digest if self.status.traffic else ""
        ready = [gateway for gateway in self.observed.gateways if gateway.ready]
        return sum(gateway.digest == digest for gateway in ready), len(ready)

    @cached_property
    def traffic_synced(self) -> bool:
        """Whether all ready gateways route by the table in the status."""
        acked, ready = self.acknowledged
        # Without a table there is nothing to wait for, unless gateways still route by one that was lost.
        return ready == acked and (ready > 0 or self.status.traffic is None)

    def weight(self, revision: str | None) -> int:
        """Weight in percent in the table that the gateways last got."""
        return self.status.traffic.weight(revision) if self.status.traffic else 0

    def share(self, revision: str | None) -> int:
        """Weight in percent of all pods that run a revision: with its baseline's, which it carries when that leaves."""
        return self.weight(revision) + self.weight(labels.baseline_of(revision or ""))

    def ready(self, revision: str | None) -> int:
        """Ready pods of a revision."""
        return self.observed.ready(revision)

    def workload(self, revision: str) -> Workload | None:
        """The revision's ReplicaSet or LeaderWorkerSet; None where there is none."""
        return self.observed.workloads.get(revision)

    def resources(self, revision: str) -> Resources:
        """Resources of each pod of a revision, as far as they are known."""
        snapshot = self.observed.snapshots.get(revision)
        return snapshot.inputs.resources if snapshot else Resources()

    def cause(self, revision: str | None) -> Cause | None:
        """Why pods of a revision are not ready; None when no cause is known."""
        workload, refusal = self.workload(revision or ""), self.observed.refusal
        found = causes.of_workload(workload, self.resources(workload.revision)) if workload else None
        return found or (causes.of_refusal(refusal) if refusal else None)

    def trouble(self, revision: str | None) -> str:
        """The message of `cause`; empty when no cause is known."""
        found = self.cause(revision)
        return found.message if found else ""

    def elapsed_s(self, since: datetime) -> float:
        """Seconds from a moment to now."""
        return (self.now - since).total_seconds()
