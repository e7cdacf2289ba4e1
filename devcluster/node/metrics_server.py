"""metrics-server, for autoscaling by CPU and memory, and how its manifests differ in the development cluster."""

from __future__ import annotations

import yaml

from devcluster import pins
from devcluster.node.addon import Addon

NAME = "metrics-server"
_UPSTREAM = "gcr.io/k8s-staging-metrics-server/metrics-server"  # as its own manifests call the image


def kustomization(image: str) -> str:
    """How its manifests differ here: the image, no check of the kubelet's own certificate, fewer promises (pure)."""
    name, _, tag = image.rpartition(":")
    container = "/spec/template/spec/containers/0"
    patch = [
        # The kubelet of kind signs its serving certificate itself.
        {"op": "add", "path": f"{container}/args/-", "value": "--kubelet-insecure-tls"},
        # Two cores are all that the node may have; model pods ask for theirs.
        {"op": "replace", "path": f"{container}/resources/requests/cpu", "value": "10m"},
        {"op": "replace", "path": f"{container}/readinessProbe/initialDelaySeconds", "value": 1},
        {"op": "replace", "path": f"{container}/readinessProbe/periodSeconds", "value": 2},
    ]
    return yaml.safe_dump({
        "resources": ["base"],
        "images": [{"name": _UPSTREAM, "newName": name, "newTag": tag}],
        "patches": [{"target": {"kind": "Deployment", "name": NAME}, "patch": yaml.safe_dump(patch)}],
    })  # fmt: skip


ADDON = Addon(
    name=NAME,
    module=pins.MODULES["kube"],
    path="sigs.k8s.io/metrics-server",
    binary=NAME,
    program=f"/{NAME}",
    manifests="manifests/base",
    kustomization=kustomization,
    apply=(),
    wait=("--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io", "--timeout=120s"),
)
