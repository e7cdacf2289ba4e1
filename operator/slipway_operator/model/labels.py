"""Names and labels of everything that belongs to a ModelDeployment: their single home."""

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

_REVISION_LENGTH = 10  # of a name: what tells names apart takes its place, for Services have 63 characters
_BASELINE = "-baseline"  # at the end of a revision's label: fresh pods of it, that a canary is compared with


def child_labels(name: str, revision: str) -> dict[str, str]:
    """Labels of every object of one revision."""
    return {MODEL_DEPLOYMENT: name, REVISION: revision, MANAGED_BY: "slipway", COMPONENT: "server"}


def selector(name: str) -> str:
    """Label selector, as a string, of every object of a ModelDeployment."""
    return f"{MODEL_DEPLOYMENT}={name}"


def live_selector(name: str, revisions: Iterable[str]) -> str:
    """Label selector, as a string, of the pods of some revisions: of all when there is none yet."""
    listed = ",".join(sorted(revisions))
    return f"{selector(name)},{REVISION} in ({listed})" if listed else selector(name)


def autoscaler_name(name: str) -> str:
    """Name of a ModelDeployment's own HorizontalPodAutoscaler: neither KEDA's nor one that people would choose."""
    return f"{name}-autoscaler"


def child_name(name: str, revision: str, collision_count: int = 0) -> str:
    """Name of a revision's ReplicaSet, Service and ControllerRevision.

    `collision_count`: how often a name was taken by another controller, as in the status of a Deployment.
    """
    if not collision_count:
        return f"{name}-{revision}"
    runs, suffix = what_runs(revision), f"-{collision_count}"
    return f"{name}-{runs[: _REVISION_LENGTH - len(suffix)]}{suffix}{revision.removeprefix(runs)}"


def baseline_of(revision: str) -> str:
    """What the baseline pods of a revision are labelled with as theirs."""
    return revision + _BASELINE


def what_runs(revision: str) -> str:
    """The revision that pods with this label run: of a baseline the one that it is of."""
    return revision.removesuffix(_BASELINE)
