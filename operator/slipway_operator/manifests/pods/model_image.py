"""A model in a container image that the kubelet mounts: an image volume (KEP-4639), on by default from Kubernetes 1.35.

A node keeps the image like those of containers: its pods share one copy, and no pod downloads the model. The fetcher
reads the mounted folder, and checks the files and their pin as for a model in a claim.
"""

from typing import Any

from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import IMAGE_CACHE

IMAGE_DIR = "/mnt/image"
MODELS = "models"  # folder with the files in the image, as in KServe's modelcars
_VOLUME = "model-image"


def mounted(pod: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """Return the pod with the model's image as a volume, or unchanged if the model is not mounted from an image."""
    model = snapshot.inputs.model
    if model.cache != IMAGE_CACHE:
        return pod
    server, fetcher = pod["containers"][0], pod["initContainers"][0]
    # A node that has the image needs no registry. If a tag was moved, nodes have different images; the pin shows it.
    image = {"reference": model.uri.removeprefix("oci://"), "pullPolicy": "IfNotPresent"}
    # The kubelet pulls this image with the pull secrets of the pod.
    secrets = [{"name": model.secret.name}] if model.secret else []
    pull_secrets = [*pod.get("imagePullSecrets", ()), *secrets]
    return {
        **pod,
        "initContainers": [_mounted(fetcher) | {"args": _in_place(fetcher["args"], model.uri)}],
        "containers": [_mounted(server)],
        "volumes": [*pod["volumes"], {"name": _VOLUME, "image": image}],
        **({"imagePullSecrets": pull_secrets} if pull_secrets else {}),
    }


def _in_place(arguments: list[str], uri: str) -> list[str]:
    """Return the fetcher's arguments, with the mounted folder in place of the registry."""
    return [f"file://{IMAGE_DIR}/{MODELS}" if argument == uri else argument for argument in arguments]


def _mounted(container: dict[str, Any]) -> dict[str, Any]:
    mount = {"name": _VOLUME, "mountPath": IMAGE_DIR, "readOnly": True}
    return {**container, "volumeMounts": [*container["volumeMounts"], mount]}
