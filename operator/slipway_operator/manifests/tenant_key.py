"""The Secrets of keys: the release's own one, and a namespace's, by which its servers know who a request is of."""

from collections.abc import Sequence
from typing import Any

from slipway_operator.api.v1alpha1.pod_inputs import DEPLOYMENT_VARIABLE
from slipway_operator.manifests import environment
from slipway_operator.model import labels
from slipway_operator.model.cluster import keys
from slipway_operator.model.cluster.keys import Key

NAME = "slipway-tenant-key"  # in each namespace with a ModelDeployment
COMPONENT = "keys"
DIR = "/etc/slipway/tenant"


def release_secret(namespace: str, name: str, content: Sequence[Key]) -> dict[str, Any]:
    """For the operator and the gateways alone."""
    return _secret(namespace, name, keys.render(content))


def namespace_secret(namespace: str, content: Sequence[Key]) -> dict[str, Any]:
    """It has no owner: ModelDeployments of the namespace share it, and it is worth nothing elsewhere."""
    return _secret(namespace, NAME, keys.render_derived(keys.derive(content, namespace)))


def with_keys(container: dict[str, Any], deployment: str) -> dict[str, Any]:
    """A server that checks proofs for `deployment`, namespace/name. Images that know nothing of it pass it over."""
    mount = {"name": "tenant-key", "mountPath": DIR, "readOnly": True}
    return {
        **container,
        "env": environment.merged(container["env"], [{"name": DEPLOYMENT_VARIABLE, "value": deployment}]),
        "volumeMounts": [*container["volumeMounts"], mount],
    }


def volume() -> dict[str, Any]:
    """Optional: pods start without it, and a kubelet brings it when it is there."""
    items = [{"key": keys.NAMESPACE_KEYS, "path": keys.NAMESPACE_KEYS}]
    return {"name": "tenant-key", "secret": {"secretName": NAME, "optional": True, "items": items}}


def _secret(namespace: str, name: str, data: dict[str, str]) -> dict[str, Any]:
    marks = {labels.MANAGED_BY: "slipway", labels.COMPONENT: COMPONENT}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": marks},
        "type": "Opaque",
        "data": data,
    }
