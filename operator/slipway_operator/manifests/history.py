"""The records of a revision: its ControllerRevision, and the ConfigMap with the weights that its pods must load."""

from typing import Any

from slipway_operator.manifests.owner import Owner
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.cluster.weights import FILE, Weights, render
from slipway_operator.model.inputs.pod_inputs import inputs_to_dict


def controller_revision(owner: Owner, snapshot: Snapshot) -> dict[str, Any]:
    """Return the immutable record of a revision: the user's inputs, and what the operator added at its creation."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": owner.child_metadata(snapshot.revision),
        "revision": snapshot.ordinal,
        "data": {
            "inputs": inputs_to_dict(snapshot.inputs),
            "image": snapshot.image,
            "drainTimeoutSeconds": snapshot.drain_timeout_s,
            "templateVersion": snapshot.template_version,
            **({"fetcherImage": snapshot.fetcher_image} if snapshot.fetcher_image else {}),
            **({"accelerator": snapshot.accelerator} if snapshot.accelerator else {}),
            **({"tls": True} if snapshot.tls else {}),
        },
    }


def config_map(name: str, record: dict[str, Any], weights: Weights) -> dict[str, Any]:
    """Return the immutable ConfigMap with the weights; `record`, the ControllerRevision, owns it."""
    metadata = record["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": metadata["labels"],
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ControllerRevision",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                }
            ],
        },
        "immutable": True,
        "data": {FILE: render(weights)},
    }
