"""The headless Service of a revision: its EndpointSlices have the addresses of the revision's pods for the gateways."""

from typing import Any

from slipway_operator.manifests.engines.profile import HTTP_PORT
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods import certificate
from slipway_operator.model import labels


def headless_service(owner: Owner, revision: str, *, tls: bool = False) -> dict[str, Any]:
    """Return the Service; Kubernetes copies its labels to the EndpointSlices, where gateways read them."""
    port = certificate.PORT_NAME if tls else "http"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owner.child_metadata(revision),
        "spec": {
            "clusterIP": "None",
            "selector": {labels.MODEL_DEPLOYMENT: owner.name, labels.REVISION: revision},
            "ports": [{"name": port, "port": HTTP_PORT, "targetPort": port, "protocol": "TCP"}],
        },
    }
