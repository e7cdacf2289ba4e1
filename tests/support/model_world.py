"""One ModelDeployment, or ModelAdapter, in a model of a cluster: what there is, and what operator and test see."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from slipway_operator.api.v1alpha1.analysis_run import RunStatus
from slipway_operator.api.v1alpha1.status import Mode, Status
from slipway_operator.kube.reading.observe import rebuilt
from slipway_operator.model.analysis.measure import ProviderAnswer, Question
from slipway_operator.model.analysis.stored_run import stored_run
from slipway_operator.model.analysis.template import Template, found
from slipway_operator.model.cluster.observed import (
    Autoscaler,
    Child,
    Hold,
    Observed,
    Pod,
    PodTrouble,
    RegistryAnswer,
    ScalingReport,
    Snapshot,
    Workload,
)
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment import status as status_room
from slipway_operator.model.deployment.hooks import HookAnswer, HookCall
from slipway_operator.model.labels import POOL_KIND, standby_of, what_runs
from slipway_operator.planning.facts.standby import joined
from tests.support.model_gateway import START, ModelGateway


@dataclass
class Pods:
    """The pods of one ReplicaSet: counts are enough."""

    desired: int
    replicas: int = 0
    ready: int = 0
    placed: int = 0  # pods that have a node
    made: list[datetime] = field(default_factory=list)  # when each pod was made, oldest first
    name: str = ""  # of the ReplicaSet
    kind: str = "ReplicaSet"  # or LeaderWorkerSet: then each is a group
    record: str = ""  # copy of the revision's record


@dataclass
class StandbyPods:
    """The ReplicaSet of a revision's standby pods, each of which is one of its own."""

    desired: int
    name: str
    pods: list[Pod] = field(default_factory=list)
    made: int = 0  # pods so far, for their names


@dataclass
class World:
    """What there is. The comment of a field has what a test may set."""

    spec: dict[str, Any]
    adapter: bool = False  # it is a ModelAdapter, whose revisions are entries in place of pods
    hold: Hold | None = None  # its ModelDeployment lets it not roll out
    registry: RegistryAnswer | None = None  # the last answer of the model registry
    uris: dict[str, str] = field(default_factory=dict)  # models by revision, even of one whose record is lost
    now: datetime = START
    generation: int = 1
    status: dict[str, Any] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    pods: dict[str, Pods] = field(default_factory=dict)
    standby: dict[str, StandbyPods] = field(default_factory=dict)  # by the revision that they run
    standby_loads_s: int = 1  # time after which a new standby pod has the model
    services: dict[str, str] = field(default_factory=dict)  # names by revision
    autoscalers: dict[str, Autoscaler] = field(default_factory=dict)  # by name
    gateways: list[ModelGateway] = field(default_factory=lambda: [ModelGateway("a"), ModelGateway("b")])
    foreign: tuple[Child, ...] = ()  # objects that another controller took
    broken: set[str] = field(default_factory=set)  # model URIs whose pods never get ready
    places: int | None = None  # pods that the nodes take; None is any number
    scheduling_message: str = (
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."  # the scheduler, of those without a place
    )
    inflight: dict[str, int] = field(default_factory=dict)
    rate: float = 0  # requests that each gateway gets in a second
    bad: dict[str, float] = field(default_factory=dict)  # rate of errors by model URI, else one in a hundred
    slow: set[str] = field(default_factory=set)  # model URIs that answer slower, by these times
    slowness: int = 3
    busy: float = 0.0  # part of the pairs of a twin shadow that gateways withhold
    pair_seconds: int = 0  # time after which pairs end
    drained_before: datetime | None = None  # pods made before this moment are on a node that is drained
    sees_drains: bool = True
    no_groups: str = ""  # why LeaderWorkerSets cannot be used
    scaling: ScalingReport | None = None  # the last decision about the number of pods
    serves_claims: bool = True
    cold_s: int = 0  # how long a pod answers three times slower at first
    mute: set[str] = field(default_factory=set)  # model URIs of whose answers no latency is counted
    drift: float = 0.0  # how often canary answers a mirrored prompt otherwise than stable
    floor: float = 0.02  # how often a second pod of stable does
    lost: float = 0.0  # how often a token that stable chooses is not canary's first choice
    lower: float = 0.0  # how often a scorer rates canary's response of a pair lower
    unscored: float = 0.0  # how often it returns nothing
    hangs: dict[str, float] = field(default_factory=dict)  # how often an answer never ends, by model URI
    crashed: set[str] = field(default_factory=set)  # model URIs whose pods are not ready any more
    restarts: dict[str, int] = field(default_factory=dict)  # of the first pod, by model URI
    templates: dict[str, dict[str, Any]] = field(default_factory=dict)  # specs of AnalysisTemplates by name
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # AnalysisRuns by name
    run_refusal: str = ""  # why none can be written
    events: list[Event] = field(default_factory=list)
    calls_until_crash: int | None = None
    calls: int = 0
    hook_answers: dict[str, bool] = field(
        default_factory=dict
    )  # answers of hooks by name; else a rollback hook answers no, others yes
    hook_calls: list[HookCall] = field(default_factory=list)  # questions put to hooks; a new operator may put one again
    values: dict[str, Any] = field(default_factory=dict)  # what providers answer by metric: a value, or an Answer
    measured: list[Question] = field(default_factory=list)  # questions put to them
    _parsed: Status | None = None
    _written: Status | None = None  # the value of `status`, unless another writer changed it
    _questions: dict[str, HookCall] = field(default_factory=dict)
    _answers: dict[str, HookAnswer] = field(default_factory=dict)
    _due: dict[str, Question] = field(default_factory=dict)
    _measurements: dict[str, ProviderAnswer] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name; of a ModelAdapter that among ModelDeployments."""
        return "chat.adapter" if self.adapter else "chat"

    def obj(self) -> dict[str, Any]:
        """The ModelDeployment."""
        metadata = {"name": self.name, "namespace": "default", "uid": "u1", "generation": self.generation}
        encoded = msgspec.json.encode({"metadata": metadata, "spec": self.spec, "status": self.status})
        return msgspec.json.decode(encoded)  # type: ignore[no-any-return]

    def parsed(self) -> Status:
        """Its status."""
        if self._parsed is None:
            self._parsed = status_room.parse(self.status)
        return self._parsed

    def saved_run(self, field: str = "analysis") -> dict[str, Any]:
        """The object of that run, as kubectl saves it."""
        return {"kind": "AnalysisRun", **self.runs[self.status["rollout"][field]["run"]]}

    def run_now(self, field: str = "analysis") -> RunStatus | None:
        """The AnalysisRun that the status names: of the step, or in the background."""
        rollout = self.parsed().rollout
        reference = getattr(rollout, field) if rollout else None
        found = stored_run(self.runs[reference.run]) if reference and reference.run in self.runs else None
        return found.run if found else None

    def state(self) -> str | None:
        """State of the rollout; None when idle."""
        rollout = self.parsed().rollout
        return rollout.state.value if rollout else None

    def weights(self) -> dict[str, int]:
        """Weights by version of the model, for reading in tests."""
        traffic = self.parsed().traffic
        return {backend.version or "": backend.weight for backend in traffic.backends} if traffic else {}

    def is_broken(self, revision: str) -> bool:
        """Whether pods of this revision never get ready."""
        return self.uri(revision) in self.broken

    def uri(self, revision: str) -> str:
        """The model of a revision, or of its baseline."""
        return self.uris[what_runs(revision)]

    def ready(self, revision: str) -> int:
        """Ready pods that run a revision."""
        return sum(self.all_ready(name) for name in self.pods if what_runs(name) == revision)

    def serving(self, revision: str) -> list[Pod]:
        """Standby pods of a revision that take requests."""
        return [pod for pod in self.standby[revision].pods if pod.serves] if revision in self.standby else []

    def all_ready(self, revision: str) -> int:
        """Ready pods of this label, with the standby pods that serve."""
        there = self.pods[revision].ready if revision in self.pods else 0
        return there + sum(pod.ready for pod in self.serving(revision))

    def error_rate(self, revision: str) -> float:
        """How often an answer of this revision fails."""
        return self.bad.get(self.uri(revision), 0.01)

    def is_cold(self, revision: str) -> bool:
        """Whether every pod of this revision is young."""
        made = self.pods[revision].made if revision in self.pods else []
        return bool(made) and (self.now - made[0]).total_seconds() < self.cold_s

    def is_among(self, revision: str, uris: set[str]) -> bool:
        """Whether a revision's model is one of these."""
        return self.uri(revision) in uris

    def observed(self) -> Observed:
        """What the operator sees."""
        seen = [self._workload(name, item) for name, item in self.pods.items()]
        workloads, standby = joined([*seen, *map(self._standby_workload, self.standby)])
        return Observed(
            snapshots=self.snapshots | {item.revision: item for item in self._rebuilt()},
            workloads={item.revision: item for item in workloads},
            standby=standby,
            services=dict(self.services),
            foreign=self.foreign,
            gateways=tuple(item.seen(self.inflight, self.now) for item in self.gateways),
            hooks=dict(self._answers),
            measured=dict(self._measurements),
            templates={name: _template(name, msgspec.json.encode(spec)) for name, spec in self.templates.items()},
            analysis_runs={name: read for name, item in self.runs.items() if (read := stored_run(item))},
            autoscalers=tuple(self.autoscalers.values()),
            scaling=self.scaling,
            sees_drains=self.sees_drains,
            no_groups=self.no_groups,
            serves_claims=self.serves_claims,
            hold=self.hold,
            registry=self.registry,
        )

    def fixpoint(self) -> dict[str, Any]:
        """What must not depend on how the operator came here: everything but times and generations."""
        parsed = self.parsed()
        traffic = parsed.traffic.backends if parsed.traffic else ()
        return {
            "stable": parsed.stable_revision,
            "state": self.state(),
            "backends": traffic,
            "pods": {name: item.desired for name, item in self.pods.items()},
            "standby": {name: (item.desired, len(self.serving(name))) for name, item in self.standby.items()},
            "services": set(self.services),
            "snapshots": set(self.snapshots),
            "aborted": parsed.aborted_revisions,
        }

    def _rebuilt(self) -> list[Snapshot]:
        """The lost records, from their copies."""
        holders = [Workload(name, 0, 0, 0, record=item.record) for name, item in self.pods.items()]
        return rebuilt(holders, self.snapshots, self.name)

    def _workload(self, name: str, item: Pods) -> Workload:
        uri = self.uri(name)
        waiting = item.replicas - item.placed
        fails = uri in self.broken or uri in self.crashed
        troubles = _troubles(name, fails, self.scheduling_message if waiting else None)
        pods = _pods(name, tuple(item.made), item.ready, self.restarts.get(uri, 0), self.drained_before)
        seen = Workload(name, item.desired, item.replicas, item.ready, troubles, waiting, pods, name=item.name)
        if self.adapter:
            return replace(seen, kind=POOL_KIND, record=item.record, pods=(), unschedulable=0)
        return replace(seen, kind=item.kind, record=item.record)

    def _standby_workload(self, name: str) -> Workload:
        item = self.standby[name]
        there = len(item.pods)
        pods, ready = tuple(item.pods), sum(pod.ready for pod in item.pods)
        return Workload(standby_of(name), item.desired, there, ready, pods=pods, name=item.name, uid=f"uid-{item.name}")

    def _live(self) -> set[str | None]:
        rollout = self.parsed().rollout
        return {self.parsed().stable_revision, rollout.revision if rollout else None}

    def _mode(self, status: Status | None = None) -> Mode:
        rollout = (status or self.parsed()).rollout
        return rollout.capacity_mode if rollout else Mode.SURGE

    def _carriers(self, status: Status | None = None) -> int:
        """Pods that carry everything: one fewer while they are replaced in place."""
        return int(self.spec.get("replicas", 1)) - (self._mode(status) is Mode.REPLACE)

    def _acked_weight(self, revision: str | None) -> int:
        traffic = self.parsed().traffic
        ready = [gateway for gateway in self.gateways if gateway.ready]
        acked = traffic and ready and all(item.digest == traffic.digest for item in ready)
        return traffic.weight(revision) if traffic and acked else -1


# What a reconcile sees is mostly what the last one saw: it is made once.


@lru_cache(256)
def _template(name: str, written: bytes) -> Template:
    return found(name, msgspec.json.decode(written))


@lru_cache(256)
def _troubles(name: str, fails: bool, scheduling_message: str | None) -> tuple[PodTrouble, ...]:
    broken = PodTrouble(f"chat-{name}-x", "CrashLoopBackOff", "shard 2 is missing")
    unplaced = PodTrouble(f"chat-{name}-y", "Unschedulable", scheduling_message or "")
    return (*((broken,) if fails else ()), *((unplaced,) if scheduling_message is not None else ()))


@lru_cache(256)
def _pods(
    name: str, made: tuple[datetime, ...], ready: int, restarts: int, drained: datetime | None
) -> tuple[Pod, ...]:
    """The first one is the one that was started again."""
    return tuple(
        Pod(f"chat-{name}-{n}", since, n < ready, 0 if n else restarts, leaving=drained is not None and since < drained)
        for n, since in enumerate(made)
    )
