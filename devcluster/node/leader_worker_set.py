"""LeaderWorkerSet, for replicas of several pods, and how its manifests differ in the development cluster."""

from __future__ import annotations

from pathlib import Path

import yaml

from devcluster import pins
from devcluster.node.addon import Addon
from devcluster.places import Places

NAMESPACE = "lws-system"
_UPSTREAM = "us-central1-docker.pkg.dev/k8s-staging-images/lws/lws"  # as its own manifests call the image
_USER = 65532
_CRD = Path("crd") / "bases" / "leaderworkerset.x-k8s.io_leaderworkersets.yaml"


def crd(places: Places) -> Path:
    """Its CustomResourceDefinition, of the version that is pinned; the module is downloaded where it is not there."""
    return ADDON.folder(places) / _CRD


def kustomization(image: str) -> str:
    """How its manifests differ here: the image, its user, one replica, and webhooks for its own pods alone (pure)."""
    name, _, tag = image.rpartition(":")
    template = "/spec/template/spec"
    deployment = [
        {"op": "replace", "path": "/spec/replicas", "value": 1},
        {"op": "add", "path": f"{template}/securityContext/runAsUser", "value": _USER},
        # Two cores are all that the node may have.
        {"op": "replace", "path": f"{template}/containers/0/resources/requests/cpu", "value": "10m"},
        {"op": "replace", "path": f"{template}/containers/0/resources/requests/memory", "value": "64Mi"},
        {"op": "replace", "path": f"{template}/containers/0/readinessProbe/initialDelaySeconds", "value": 1},
        {"op": "replace", "path": f"{template}/containers/0/readinessProbe/periodSeconds", "value": 2},
    ]
    # As they come, they refuse every pod of the cluster while the controller is away.
    selected = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}
    own_pods = [{"op": "add", "path": "/webhooks/1/objectSelector", "value": selected}]
    webhooks = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return yaml.safe_dump({
        "resources": ["config/default"],
        "images": [{"name": _UPSTREAM, "newName": name, "newTag": tag}],
        "patches": [
            {"target": {"kind": "Deployment"}, "patch": yaml.safe_dump(deployment)},
            *({"target": {"kind": kind}, "patch": yaml.safe_dump(own_pods)} for kind in webhooks),
        ],
    })  # fmt: skip


ADDON = Addon(
    name="lws",
    module=pins.MODULES["lws"],
    path="sigs.k8s.io/lws",
    binary=pins.LWS,
    program="/manager",
    manifests="config",
    kustomization=kustomization,
    apply=("--server-side",),
    wait=("--namespace", NAMESPACE, "--for=condition=Available", "deployment", "--all", "--timeout=180s"),
)
