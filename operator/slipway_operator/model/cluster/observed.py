"""The state of the cluster when a reconcile began."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from slipway_contracts.accuracy import AccuracyCounts
from slipway_contracts.api.types import strict
from slipway_contracts.counters import GenerationCounts
from slipway_contracts.gateway_report import ImplausibleUsage, ServiceReport
from slipway_contracts.service_levels import Counted
from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.status import RevisionCapacity
from slipway_operator.model.analysis.measure import ProviderAnswer
from slipway_operator.model.analysis.stored_run import StoredRun
from slipway_operator.model.analysis.template import Template
from slipway_operator.model.cluster.history import UNKNOWN, History
from slipway_operator.model.cluster.names import Standing
from slipway_operator.model.cluster.weights import Weights
from slipway_operator.model.deployment.hooks import HookAnswer
from slipway_operator.model.inputs.pod_inputs import PodInputs
from slipway_operator.model.inputs.registry import RegistryVersion

# Values of PodTrouble.reason that decisions use; the others are any reason that Kubernetes reports.
CREATE_FAILED, UNSCHEDULABLE, NOT_READY = "FailedCreate", "Unschedulable", "NotReady"
WEIGHTS_DIFFER = "WeightsDiffer"
# Why LeaderWorkerSets cannot be used: reasons of a condition.
NOT_INSTALLED, FORBIDDEN = "LeaderWorkerSetNotInstalled", "LeaderWorkerSetForbidden"


@dataclass(frozen=True, slots=True)
class PodTrouble:
    """Why a pod is not ready, or could not be created; reason and message come from Kubernetes where it gives them."""

    pod: str  # name of the pod, or of the ReplicaSet that could not create one
    reason: str  # CrashLoopBackOff, ImagePullBackOff, Unschedulable, OOMKilled, FailedCreate, ...
    message: str
    exit_code: int | None = None  # of the container that ended


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The immutable record of a revision: a ControllerRevision."""

    revision: str
    ordinal: int  # grows with each new revision of the ModelDeployment
    inputs: PodInputs
    image: str  # the server image in force when the revision was made; operator upgrades do not change it
    drain_timeout_s: int
    template_version: int  # version of the pod's rendering when the revision was created
    weights: Weights | None = None  # loaded by its first pod, and binding for all others; None: unknown yet
    name: str = ""  # name of the ControllerRevision; empty: it was lost, and this is the copy at the workload
    fetcher_image: str = ""  # image with slipway-fetcher, if the engine's image has none; empty: `image` has it
    accelerator: Json = field(default_factory=dict)  # what its accelerator type stood for when the revision was made
    tls: bool = False  # its pods serve HTTPS
    pull_secrets: tuple[str, ...] = ()  # those of the installation when the revision was made, beside the spec's
    history: History = UNKNOWN  # its attempts and promotions
    tracking_url: str = ""  # tracking server that has the files; empty: they are elsewhere
    statement: str = ""  # the signed statement about the verdict on it, as its record has it: nothing is verified

    @property
    def is_grouped(self) -> bool:
        """Whether a replica is a group of several pods."""
        return self.inputs.engine.parallelism.nodes > 1


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a revision; or a group: its leader, with readiness, restarts and leaving of all its pods together."""

    name: str
    created_at: datetime
    ready: bool
    restarts: int = 0  # sum over its containers
    address: str = ""  # IP address of the pod; empty before it has one
    weights: Weights | None = None  # the weights that its fetcher reports
    leaving: bool = False  # its node is drained or unreachable
    group: str = ""  # index of its group; empty without one
    node: str = ""  # name of its node; empty before it has one
    fetching: bool = False  # whether its init container `fetch` runs now
    model_bytes: int | None = None  # size of the model, as its fetcher reports it
    deletion_cost: int = 0  # its ReplicaSet removes pods with a lower one first
    uid: str = ""
    loaded: bool = False  # all its containers are ready, whatever its readiness gates say
    gate_open: bool = False  # of a standby pod: the condition by which it may be ready is True
    serves: bool = True  # False: a standby pod that takes no requests, by its label


@dataclass(frozen=True, slots=True)
class PodDownload:
    """Download progress, as a pod's fetcher reports it. The numbers are bounded, but the pod can report any of them."""

    done_bytes: int
    size_bytes: int | None  # size of the model; None: unknown
    bytes_per_second: int
    waiting: bool  # another pod downloads the model into the cache


@dataclass(frozen=True, slots=True)
class Workload:
    """A revision's ReplicaSet; or its LeaderWorkerSet, of which each group counts as one pod."""

    revision: str
    desired: int  # its spec.replicas
    replicas: int  # pods that exist
    ready: int  # pods that are ready
    troubles: tuple[PodTrouble, ...] = ()
    unschedulable: int = 0  # pods without a node
    pods: tuple[Pod, ...] = ()  # those that are not terminating, oldest first
    stuck_deleting: bool = False  # it has a deletionTimestamp
    name: str = ""  # name of the object
    uid: str = ""  # of the controller of the pods that take requests: ReplicaSet, or the leaders' StatefulSet
    scheduled: tuple[str, ...] = ()  # names of pods that have a node, terminating ones included
    kind: str = "ReplicaSet"
    workers: tuple[Pod, ...] = ()  # pods of groups that are not terminating, without the leaders
    creating: int = 0  # pods without any container yet, except those that no node takes
    record: str = ""  # copy of its revision's record, as its annotation has it; empty without one


@dataclass(frozen=True, slots=True)
class Child:
    """An object with the labels of one of our revisions."""

    api_version: str
    kind: str
    name: str
    revision: str
    controller: str = ""  # kind and name of another controller of it; empty where it is ours


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway pod, from its response to `/internal/routes`."""

    name: str
    ready: bool  # the EndpointSlice lists it as ready: new requests may reach it
    reachable: bool  # it responded to the poll
    generation: int | None = None  # of its route for this ModelDeployment; None when it has no such route
    inflight: dict[str, int] = field(default_factory=dict)  # requests in progress, by revision
    incarnation: str = ""  # changes with each start of its process; empty when not reported
    cut_off: str = ""  # the revision to which this gateway alone sends no requests, because it fails hard
    bounds: dict[str, tuple[float, ...]] = field(default_factory=dict)  # of the latency buckets, in seconds by kind
    samples: tuple[GenerationCounts, ...] = ()  # empty from a gateway that sends none
    gone: bool = False  # the pod is gone; this is its last report, kept for a while
    held: int = 0  # requests that wait at the gateway for an endpoint
    known_s: float | None = None  # seconds since it got the route; None when not reported
    last_request_s: float | None = None  # seconds since it last had a request in progress; None: never
    digest: str = ""  # digest of the route in use; empty without one, or when not reported
    weights: dict[str, int] = field(default_factory=dict)  # of that route, in percent by revision
    service: ServiceReport = field(default_factory=ServiceReport)
    implausible_usage: ImplausibleUsage | None = None  # of the last minutes; None: all reports were plausible
    recounts_differ: tuple[str, ...] = ()  # in what its two lanes counted requests differently
    key_problems: tuple[str, ...] = ()  # why API keys of other providers could not be read
    # Requests in progress by revision and pod address; a revision is missing when the gateway does not report its pods.
    at_pods: dict[str, dict[str, int]] = field(default_factory=dict)
    objectives: dict[str, Counted] = field(default_factory=dict)  # counts by key, since its process has the limits
    accuracy: AccuracyCounts = field(default_factory=AccuracyCounts)  # since its process began

    @property
    def idle_s(self) -> float | None:
        """Seconds for which the gateway certainly had no request; None when not reported."""
        if self.known_s is None or self.last_request_s is None:
            return self.known_s
        return min(self.known_s, self.last_request_s)


@dataclass(frozen=True, slots=True)
class ScalerCondition:
    """A condition that the HorizontalPodAutoscaler's controller reports."""

    type: str  # AbleToScale | ScalingActive | ScalingLimited
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """A HorizontalPodAutoscaler that scales the ModelDeployment, or has the name that ours would have."""

    name: str
    ours: bool  # its owner reference names the ModelDeployment
    aims_here: bool  # its target is the ModelDeployment
    created_at: datetime
    spec: dict[str, Any] = field(default_factory=dict)
    conditions: tuple[ScalerCondition, ...] = ()
    orphan: bool = False  # it has the name and labels of ours, but no controller
    scaled_object: str = ""  # name of the KEDA ScaledObject that it was created for; empty: none


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Whether the sampler can read a ready pod's page of metrics, and what it lacks."""

    pod: str
    revision: str
    problem: str = ""  # why there is no fresh page; empty: there is one
    missing: tuple[tuple[str, str], ...] = ()  # (field, metric name) that the page should have and lacks


@dataclass(frozen=True, slots=True)
class ScalingReport:
    """The last decision about the number of pods, and the numbers behind it, as the status has them."""

    desired: int
    needed: int
    rule: str
    message: str
    utilization_percent: int | None = None
    demand: float | None = None
    forecast: float | None = None
    skill: float | None = None
    revisions: tuple[RevisionCapacity, ...] = ()
    history: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why nothing moves by itself, though the spec lets it; reason and message of a condition."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RegistryAnswer:
    """What the model registry says about spec.model.uri.

    `problem`: why the last look failed; `reason`: of a condition. `version` is then that of an earlier look, if any.
    """

    version: RegistryVersion | None = None
    problem: str = ""
    reason: str = ""


@strict
@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a plan may read besides spec and status."""

    snapshots: dict[str, Snapshot] = field(default_factory=dict)  # by revision
    workloads: dict[str, Workload] = field(default_factory=dict)  # by revision
    # ReplicaSets of standby pods, by the revision that they run. Those that serve count in `workloads` too.
    standby: dict[str, Workload] = field(default_factory=dict)
    services: dict[str, str] = field(default_factory=dict)  # names of headless Services by revision
    astray: frozenset[str] = frozenset()  # revisions whose Service does not select their pods
    spare: tuple[Child, ...] = ()  # objects of ours beyond the first of each revision
    foreign: tuple[Child, ...] = ()  # objects with our labels that another controller owns
    gateways: tuple[Gateway, ...] = ()
    refusal: str | None = None  # why the API server refuses to create a child: quota, admission, permissions
    autoscaler_refusal: str = ""  # why the API server refuses our autoscaler; empty: it does not
    hooks: dict[str, HookAnswer] = field(default_factory=dict)  # responses of hooks by idempotency key
    measured: dict[str, ProviderAnswer] = field(default_factory=dict)  # results of measurements by key
    templates: dict[str, Template] = field(default_factory=dict)  # AnalysisTemplates that the spec names
    analysis_runs: dict[str, StoredRun] = field(default_factory=dict)  # AnalysisRuns that the status names, by name
    run_refusal: str = ""  # why the API server refuses to write an AnalysisRun; empty: it does not
    autoscalers: tuple[Autoscaler, ...] = ()
    standing: Standing | None = None  # whether it owns its model name; None: not decided yet
    sees_drains: bool = False  # whether nodes are watched
    serves_claims: bool = True  # whether the API server has ResourceClaims; True when the spec needs none
    scaling: ScalingReport | None = None  # by spec.autoscaling.objective; None: nothing is decided yet
    metrics_providers: dict[str, str] = field(default_factory=dict)  # server of each metrics API group; "": us
    pages: tuple[MetricsPage, ...] | None = None  # pages of metrics of ready pods; None: nothing samples them
    # By pod name, for some pods whose fetcher runs. None: the pod cannot be read; missing: it was not read yet.
    downloads: dict[str, PodDownload | None] = field(default_factory=dict)
    # States of the prefetch Jobs of the last plan, by revision and node.
    prefetches: dict[tuple[str, str], str] = field(default_factory=dict)
    certificate: str | None = None  # why the issuer gives its pods none; empty: it does; None: unknown, or no issuer
    tenants: bool | None = False  # whether the release has Tenants; None: they were not read yet
    missing_fallbacks: tuple[str, ...] = ()  # names in spec.traffic of which there is no ModelDeployment
    hold: Hold | None = None  # of an adapter, by its ModelDeployment; of a ModelDeployment, by its adapters
    registry: RegistryAnswer | None = None  # None: it was not looked up yet, or there is nothing to look up
    no_groups: str = ""  # condition reason why LeaderWorkerSets cannot be used, if needed; empty: they can

    def ready(self, revision: str | None) -> int:
        """Ready pods of a revision; 0 when it has none."""
        workload = self.workloads.get(revision or "")
        return workload.ready if workload else 0

    def restarts(self, revision: str | None) -> int:
        """Number of container restarts in a revision's pods that are not terminating; 0 when it has none."""
        workload = self.workloads.get(revision or "")
        return sum(pod.restarts for pod in workload.pods) if workload else 0

    def inflight(self, revision: str) -> int | None:
        """Requests in progress at a revision over all gateways; None when a gateway did not respond."""
        if not all(gateway.reachable for gateway in self.gateways):
            return None
        return sum(gateway.inflight.get(revision, 0) for gateway in self.gateways)

    def inflight_by_address(self, revision: str) -> dict[str, int] | None:
        """Requests in progress at the pods of a revision; None when a gateway did not respond, or reports no pods."""
        busy = [gateway for gateway in self.gateways if gateway.inflight.get(revision)]
        if self.inflight(revision) is None or any(revision not in gateway.at_pods for gateway in busy):
            return None
        found = Counter[str]()
        for gateway in busy:
            found.update(gateway.at_pods[revision])
        return dict(found)
