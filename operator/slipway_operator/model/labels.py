"""Names and labels of everything that belongs to a ModelDeployment, defined only here."""

from collections.abc import Iterable

from slipway_contracts import adapters

GROUP = "slipway.dev"
VERSION = "v1alpha1"
KIND = "ModelDeployment"
PLURAL = "modeldeployments"
API_VERSION = f"{GROUP}/{VERSION}"

FIELD_MANAGER = "slipway-operator"

MODEL_DEPLOYMENT = f"{GROUP}/modeldeployment"
REVISION = f"{GROUP}/revision"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
LEADER, IS_LEADER = f"{GROUP}/leader", "true"  # label of the pod of the operator that holds the lease
RECORD = f"{GROUP}/record"  # annotation of a workload: copy of its revision's ControllerRevision
METRICS_PATH = f"{GROUP}/metrics-path"  # annotation of pods: path of the engine's metrics, if it is not /metrics

ANALYSIS_OUTCOME = f"{GROUP}/analysis-outcome"  # label of AnalysisRuns: Pass, Fail, Inconclusive or None

MODEL_POOL = f"{GROUP}/modelpool"  # label of the objects of a ModelPool
POOL_REPLICAS = f"{GROUP}/pool-replicas"  # annotation of a pool member's ReplicaSet: 1 if it is an entry
POOL_ENTRIES = f"{GROUP}/pool-entries"  # annotation of a pod: marks the newest file of entries, or of adapters
POOL_KIND = "ModelPool"  # of a workload too: its revision has no pods, a pool or another ModelDeployment serves it
POOL_REVISION = "pool"  # value of the label REVISION on pods of a pool, which serve many revisions

SERVER = "server"  # component label of objects of a revision
WORKER = "worker"  # component label of a group's pods that take no requests
# Annotation of a pod: its ReplicaSet removes pods with a lower cost first.
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
LEADER_WORKER_SET, GROUPS_API_VERSION = "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"
# Labels that LeaderWorkerSet gives its pods; StatefulSets copy them to their ControllerRevisions.
GROUP_SET, GROUP_INDEX = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"

_REVISION_LENGTH = 10  # characters; a collision suffix replaces the end, because Service names have at most 63
_BASELINE = "-baseline"  # suffix of the label REVISION of baseline pods, with which a canary is compared
_STANDBY = "-standby"  # suffix of the label REVISION of standby pods while they take no requests
STANDBY = f"{GROUP}/standby"  # label of standby pods, which selects them whether they serve or not: their revision
SERVING = f"{GROUP}/serving"  # condition of standby pods, and their readiness gate: True while they take requests


def object_of(name: str) -> tuple[str, str]:
    """Return kind and metadata.name of what has this name among ModelDeployments: see `adapters.subject_name`."""
    adapter = adapters.adapter_of(name)
    return (KIND, name) if adapter is None else (adapters.KIND, adapter)


def child_labels(name: str, revision: str) -> dict[str, str]:
    """Return the labels of every object of one revision."""
    return {MODEL_DEPLOYMENT: name, REVISION: revision, MANAGED_BY: "slipway", COMPONENT: SERVER}


def selector(name: str) -> str:
    """Return the label selector of every object of a ModelDeployment, as a string."""
    return f"{MODEL_DEPLOYMENT}={name}"


def live_selector(name: str, revisions: Iterable[str], *, grouped: bool = False) -> str:
    """Return the label selector of the pods of these revisions, as a string; of all pods if there are none.

    `grouped`: it selects only leaders, one pod for each replica, because autoscalers count each pod as a replica. It
    does so without `!=`, which readers of the scale subresource refuse.
    """
    listed = ",".join(sorted(revisions))
    found = f"{selector(name)},{REVISION} in ({listed})" if listed else selector(name)
    return f"{found},{COMPONENT}={SERVER}" if grouped else found


def autoscaler_name(name: str) -> str:
    """Return the name of our HorizontalPodAutoscaler: KEDA makes no such name, and users hardly do."""
    return f"{name}-autoscaler"


def child_name(name: str, revision: str, collision_count: int = 0) -> str:
    """Return the name of a revision's ReplicaSet, Service and ControllerRevision.

    `collision_count`: how often an object of another controller had the name, as in the status of a Deployment.
    """
    if not collision_count:
        return f"{name}-{revision}"
    runs, suffix = what_runs(revision), f"-{collision_count}"
    return f"{name}-{runs[: _REVISION_LENGTH - len(suffix)]}{suffix}{revision.removeprefix(runs)}"


def baseline_of(revision: str) -> str:
    """Return the revision label of a revision's baseline pods."""
    return revision + _BASELINE


def standby_of(revision: str) -> str:
    """Return the revision label of a revision's standby pods while they take no requests."""
    return revision + _STANDBY


def is_standby(revision: str) -> bool:
    """Return whether this is the revision label of standby pods."""
    return revision.endswith(_STANDBY)


def what_runs(revision: str) -> str:
    """Return the revision that pods with this revision label run; that of baseline and standby pods has a suffix."""
    return revision.removesuffix(_BASELINE).removesuffix(_STANDBY)
