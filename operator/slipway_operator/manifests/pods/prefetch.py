"""The Job that brings the model of a revision to one node, to its cache or as an image, and the images of its pods."""

from typing import Any

from slipway_operator.api.inputs.pod_inputs import PROGRESS_VARIABLE
from slipway_operator.manifests.job import job_name
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.image_pull import pulling
from slipway_operator.manifests.pods.workload import pod_template
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot

PREFETCH = "prefetch"  # value of the component label
DEADLINE_S, KEPT_S, TRIES = 3600, 600, 3
# The fetcher mostly waits for network and disk. Its limits are those of model pods; its requests are small, so that it
# fits on a node beside such a pod.
_REQUESTS = {"cpu": "100m", "memory": "256Mi"}
_OF_POD = (
    *("automountServiceAccountToken", "enableServiceLinks", "securityContext"),
    *("imagePullSecrets", "serviceAccountName", "tolerations"),
)
_NODE_ONLY = "requiredDuringSchedulingIgnoredDuringExecution"


def prefetch_job(owner: Owner, snapshot: Snapshot, node: str) -> dict[str, Any]:
    """Return a Job that runs the revision's fetcher on this node; the node also pulls the images of its pods.

    The Job's name is a digest of revision and node, so it is created once. Its pod has no label of model pods, so no
    Service, budget or autoscaler selects it.
    """
    metadata = owner.child_metadata(job_name(f"{PREFETCH}/{snapshot.revision}/{node}"))
    metadata["labels"] = {
        labels.MODEL_DEPLOYMENT: owner.name,
        labels.MANAGED_BY: "slipway",
        labels.COMPONENT: PREFETCH,
    }
    pod = pod_template(owner, snapshot, snapshot.revision)["spec"]
    [fetcher] = [container for container in pod["initContainers"] if container["name"] == "fetch"]
    [engine] = pod["containers"][:1]
    mounted = {mount["name"] for mount in fetcher["volumeMounts"]}
    made = {
        **{name: pod[name] for name in _OF_POD if name in pod},
        "restartPolicy": "Never",
        "affinity": _on(node),
        "containers": [_alone(fetcher)],
        "volumes": [volume for volume in pod["volumes"] if volume["name"] in mounted],
    }
    spec = {
        "ttlSecondsAfterFinished": KEPT_S,
        "activeDeadlineSeconds": DEADLINE_S,
        "backoffLimit": TRIES - 1,
        "template": {
            "metadata": {"labels": {labels.COMPONENT: PREFETCH}},
            "spec": pulling(made, engine, fetcher) if engine["image"] != fetcher["image"] else made,
        },
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _alone(fetcher: dict[str, Any]) -> dict[str, Any]:
    """Return the fetcher without lease and port.

    Without a lease, the cache may evict the model before a pod uses it. No NetworkPolicy would protect a port.
    """
    args, limits = list(fetcher["args"]), fetcher["resources"].get("limits", {})
    if "--cache-pod" in args:
        start = args.index("--cache-pod")
        del args[start : start + 2]
    requests = {**_REQUESTS, **{name: limits[name] for name in limits if name == "ephemeral-storage"}}
    variables = [item for item in fetcher["env"] if item["name"] != PROGRESS_VARIABLE]
    return {**fetcher, "args": args, "env": variables, "resources": {**fetcher["resources"], "requests": requests}}


def _on(node: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeAffinity": {_NODE_ONLY: {"nodeSelectorTerms": [{"matchFields": [field]}]}}}
