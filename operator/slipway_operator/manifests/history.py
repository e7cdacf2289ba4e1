"""The records of a revision: its ControllerRevision, the copy at its workload, and the ConfigMap with its weights."""

import json
from typing import Any

from slipway_operator.manifests.owner import Owner
from slipway_operator.model.cluster import history, weights
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import inputs_to_dict

LONGEST_COPY = 200_000  # characters: all annotations of an object have 256 KiB


def controller_revision(owner: Owner, snapshot: Snapshot) -> dict[str, Any]:
    """Return the immutable record of a revision: the user's inputs, and what the operator added at its creation."""
    content = _content(snapshot)
    annotations = content.pop("annotations")
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": owner.child_metadata(snapshot.revision) | ({"annotations": annotations} if annotations else {}),
        **content,
    }


def copy_of(snapshot: Snapshot) -> str:
    """Return the record as JSON text, for an annotation of the workload; empty when it is too long for one.

    A lost ControllerRevision is made again from it.
    """
    text = json.dumps(_content(snapshot), sort_keys=True)
    return text if len(text) <= LONGEST_COPY else ""


def _content(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "annotations": {
            **({weights.ANNOTATION: weights.render(snapshot.weights)} if snapshot.weights else {}),
            **({history.ANNOTATION: history.render(snapshot.history)} if snapshot.history != history.UNKNOWN else {}),
        },
        "revision": snapshot.ordinal,
        "data": {
            "inputs": inputs_to_dict(snapshot.inputs),
            "image": snapshot.image,
            "drainTimeoutSeconds": snapshot.drain_timeout_s,
            "templateVersion": snapshot.template_version,
            **({"fetcherImage": snapshot.fetcher_image} if snapshot.fetcher_image else {}),
            **({"accelerator": snapshot.accelerator} if snapshot.accelerator else {}),
            **({"tls": True} if snapshot.tls else {}),
            **({"trackingUrl": snapshot.tracking_url} if snapshot.tracking_url else {}),
            **({"pullSecrets": list(snapshot.pull_secrets)} if snapshot.pull_secrets else {}),
        },
    }


def config_map(name: str, record: dict[str, Any], loaded: weights.Weights) -> dict[str, Any]:
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
        "data": {weights.FILE: weights.render(loaded)},
    }
