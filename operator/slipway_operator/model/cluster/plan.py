"""The writes of a reconcile; `kube/writing/apply.py` executes exactly these."""

from dataclasses import dataclass
from typing import Any

from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.analysis.measure import Question
from slipway_operator.model.analysis.stored_run import RunWrite
from slipway_operator.model.cluster.weights import Weights
from slipway_operator.model.deployment.hooks import HookCall


@dataclass(frozen=True, slots=True)
class Create:
    """Create or complete an object by server-side apply.

    `uid`: of the object that existed. If it still exists but lost our labels or owner reference, it gets them again.
    """

    manifest: dict[str, Any]
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """Record which weights a revision has in its ControllerRevision, and publish that to its pods in a ConfigMap.

    `config_map`: its name; empty for a revision without pods of its own.
    """

    record: str
    config_map: str
    weights: Weights


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write one annotation of an object of a revision."""

    kind: str  # ControllerRevision, ReplicaSet or LeaderWorkerSet
    name: str
    annotation: str
    text: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Set the replicas of an existing workload; its template is never touched."""

    name: str
    replicas: int
    kind: str = "ReplicaSet"  # or LeaderWorkerSet; ModelPool: `replicas` says whether the revision is an entry
    costs: tuple[tuple[str, int], ...] = ()  # deletion costs of pods, to be written first
    uid: str = ""  # of a ReplicaSet: a later one of its name is not scaled


@dataclass(frozen=True, slots=True)
class Gate:
    """Let a standby pod take requests, or no more: its revision label and its readiness gate."""

    pod: str
    uid: str  # a later pod of its name stays as it is
    revision: str  # value of the label
    serves: bool


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object that carries our label and our owner reference."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict a pod; its controller creates another one."""

    pod: str
    why: str = ""
    with_group: bool = False  # the pod is deleted with foreground propagation, after its group's workers
    uid: str = ""  # a later pod of its name stays


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about a transition."""

    type: str  # Normal | Warning
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A Job that brings the model of a revision to a node."""

    revision: str
    node: str
    job: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs and pins, then actions in order, the status, deletions, evictions, events, and calls of hooks."""

    status: Status
    runs: tuple[RunWrite, ...] = ()  # AnalysisRuns; the status names them, so they are written first
    loses_run: bool = False  # an analysis starts again, because its AnalysisRun does not count any more
    pins: tuple[Pin, ...] = ()
    create: tuple[Create, ...] = ()
    annotate: tuple[Annotate, ...] = ()
    gates: tuple[Gate, ...] = ()
    scale: tuple[Scale, ...] = ()
    delete: tuple[Delete, ...] = ()
    evict: tuple[Evict, ...] = ()
    prefetch: tuple[Prefetch, ...] = ()  # all that are wanted, even if their Jobs exist already
    grouped: bool = False  # a replica is a group of pods, which connect to one another
    min_available: int | None = None  # of the PodDisruptionBudget; None: leave the budget as it is
    autoscaler: Create | None = None  # not in `create`: pods and routes do not wait for it
    events: tuple[Event, ...] = ()
    calls: tuple[HookCall, ...] = ()  # every call whose response is needed now, even if it was sent before
    questions: tuple[Question, ...] = ()  # measurements that are due, even if they were started before
    requeue_after_s: float | None = None

    @property
    def takes_away(self) -> bool:
        """Whether the plan scales, deletes or evicts, and so may remove pods or their records, or what was counted."""
        closes = any(not gate.serves for gate in self.gates)
        return bool(self.scale or self.delete or self.evict or self.loses_run or closes)
