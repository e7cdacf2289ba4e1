"""Names and labels of everything that belongs to a ModelDeployment, defined only here."""

from collections.abc import Iterable

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
METRICS_PATH = f"{GROUP}/metrics-path"  # annotation of pods whose engine has its metrics elsewhere than at /metrics

MODEL_POOL = f"{GROUP}/modelpool"  # label of what belongs to a ModelPool, and of a revision's record of membership
POOL_REPLICAS = f"{GROUP}/pool-replicas"  # annotation of a ReplicaSet without pods: whether its revision is an entry
POOL_ENTRIES = f"{GROUP}/pool-entries"  # annotation of a pool's pod: the file of entries that its kubelet is to write
POOL_KIND = "ModelPool"
POOL_REVISION = "pool"  # value of the revision's label of pods that serve many

SERVER = "server"  # component of what belongs to a revision
WORKER = "worker"  # component of pods of a group that take no requests
# Of a pod, for its ReplicaSet: pods with a lower one are removed first.
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
LEADER_WORKER_SET, GROUPS_API_VERSION = "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"
# Labels that LeaderWorkerSet gives its pods, and StatefulSets to the records of their own revisions.
GROUP_SET, GROUP_INDEX = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"

_REVISION_LENGTH = 10  # in a name: a collision suffix replaces its end, because names of Services have 63 characters
_BASELINE = "-baseline"  # suffix of a revision's label: new pods of it, with which a canary is compared


def child_labels(name: str, revision: str) -> dict[str, str]:
    """Labels of every object of one revision."""
    return {MODEL_DEPLOYMENT: name, REVISION: revision, MANAGED_BY: "slipway", COMPONENT: SERVER}


def selector(name: str) -> str:
    """Label selector, as a string, of every object of a ModelDeployment."""
    return f"{MODEL_DEPLOYMENT}={name}"


def live_selector(name: str, revisions: Iterable[str], *, grouped: bool = False) -> str:
    """Label selector, as a string, of the pods of these revisions; of all pods where the list is empty.

    `grouped`: of one pod for each replica, its leader, because autoscalers take each pod for a replica. The scale
    subresource's readers refuse `!=`.
    """
    listed = ",".join(sorted(revisions))
    found = f"{selector(name)},{REVISION} in ({listed})" if listed else selector(name)
    return f"{found},{COMPONENT}={SERVER}" if grouped else found


def autoscaler_name(name: str) -> str:
    """Name of a ModelDeployment's own HorizontalPodAutoscaler: not KEDA's, and unlikely for a user's."""
    return f"{name}-autoscaler"


def child_name(name: str, revision: str, collision_count: int = 0) -> str:
    """Name of a revision's ReplicaSet, Service and ControllerRevision.

    `collision_count`: how often another controller had the name, as in the status of a Deployment.
    """
    if not collision_count:
        return f"{name}-{revision}"
    runs, suffix = what_runs(revision), f"-{collision_count}"
    return f"{name}-{runs[: _REVISION_LENGTH - len(suffix)]}{suffix}{revision.removeprefix(runs)}"


def baseline_of(revision: str) -> str:
    """The revision label of a revision's baseline pods."""
    return revision + _BASELINE


def what_runs(revision: str) -> str:
    """The revision that pods with this label run; for a baseline, the one that it is of."""
    return revision.removesuffix(_BASELINE)
