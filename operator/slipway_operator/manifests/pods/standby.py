"""The ReplicaSet of standby pods: those of a revision, behind a readiness gate and with a low priority."""

from typing import Any

from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import pod_template
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot


def standby_set(owner: Owner, snapshot: Snapshot, replicas: int, priority_class: str) -> dict[str, Any]:
    """Return the ReplicaSet. Its selector has no revision label, because that of a pod changes when it serves.

    `priority_class`: in place of that of the revision's other pods; empty: theirs. A pod keeps it when it serves:
    Kubernetes changes the priority of no pod.
    """
    revision = labels.standby_of(snapshot.revision)
    template = pod_template(owner, snapshot, revision)
    mark = {labels.STANDBY: snapshot.revision}
    priority = {"priorityClassName": priority_class} if priority_class else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": owner.child_metadata(revision),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {labels.MODEL_DEPLOYMENT: owner.name, **mark}},
            "template": {
                "metadata": {**template["metadata"], "labels": {**template["metadata"]["labels"], **mark}},
                "spec": {
                    **template["spec"],
                    **priority,
                    "readinessGates": [{"conditionType": labels.SERVING}],
                },
            },
        },
    }
