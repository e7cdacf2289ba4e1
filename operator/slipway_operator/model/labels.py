"""Names and labels of everything that belongs to a ModelDeployment: their single home."""

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


def child_labels(name: str, revision: str) -> dict[str, str]:
    """Labels of every object of one revision."""
    return {MODEL_DEPLOYMENT: name, REVISION: revision, MANAGED_BY: "slipway", COMPONENT: "server"}


def selector(name: str) -> str:
    """Label selector, as a string, of every object of a ModelDeployment."""
    return f"{MODEL_DEPLOYMENT}={name}"


def child_name(name: str, revision: str) -> str:
    """Name of a revision's ReplicaSet, Service and ControllerRevision."""
    return f"{name}-{revision}"
