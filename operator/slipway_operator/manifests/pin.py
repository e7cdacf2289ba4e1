"""The ConfigMap that gives later pods of a revision the identity of the weights that they must load."""

from typing import Any

from slipway_operator.model.cluster.weights import FILE, Weights, render


def config_map(name: str, record: dict[str, Any], weights: Weights) -> dict[str, Any]:
    """The immutable ConfigMap. The revision's ControllerRevision owns it, so both are deleted together."""
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
