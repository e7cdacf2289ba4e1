"""The Secrets of keys: the release's, and a namespace's, by which its servers verify the tenant of a request."""

from collections.abc import Sequence
from typing import Any

from slipway_operator.api.inputs.pod_inputs import DEPLOYMENT_VARIABLE
from slipway_operator.manifests.pods import environment
from slipway_operator.model import labels
from slipway_operator.model.cluster import keys
from slipway_operator.model.cluster.keys import Key

NAME = "slipway-tenant-key"  # in each namespace with a ModelDeployment
COMPONENT = "keys"
DIR = "/etc/slipway/tenant"


def release_secret(namespace: str, name: str, content: Sequence[Key]) -> dict[str, Any]:
    """The release's Secret, for the operator and the gateways only."""
    return kept_secret(namespace, name, COMPONENT, keys.render(content))


def namespace_secret(namespace: str, content: Sequence[Key]) -> dict[str, Any]:
    """Return a namespace's Secret; its keys are valid only there. Its ModelDeployments share it, so none owns it."""
    return kept_secret(namespace, NAME, COMPONENT, keys.render_derived(keys.derive(content, namespace)))


def with_keys(container: dict[str, Any], deployment: str) -> dict[str, Any]:
    """Return the server with the keys to verify tenants, as `deployment` (namespace/name). Older images ignore them."""
    mount = {"name": "tenant-key", "mountPath": DIR, "readOnly": True}
    return {
        **container,
        "env": environment.merged(container["env"], [{"name": DEPLOYMENT_VARIABLE, "value": deployment}]),
        "volumeMounts": [*container["volumeMounts"], mount],
    }


def volume() -> dict[str, Any]:
    """The volume with the keys; optional: pods start without it, and the kubelet adds the keys once they exist."""
    items = [{"key": keys.NAMESPACE_KEYS, "path": keys.NAMESPACE_KEYS}]
    return {"name": "tenant-key", "secret": {"secretName": NAME, "optional": True, "items": items}}


def kept_secret(namespace: str, name: str, component: str, data: dict[str, str]) -> dict[str, Any]:
    """Return a Secret without an owner: the operator keeps it, and garbage collection never deletes it."""
    marks = {labels.MANAGED_BY: "slipway", labels.COMPONENT: component}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": marks},
        "type": "Opaque",
        "data": data,
    }
