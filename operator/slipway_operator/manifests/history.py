"""The ControllerRevision that records a revision."""

from typing import Any

from slipway_operator.manifests.owner import Owner
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.deployment.spec import inputs_to_dict


def controller_revision(owner: Owner, snapshot: Snapshot) -> dict[str, Any]:
    """Immutable record of the inputs and of what the operator added to them when the revision was made."""
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
        },
    }
