"""The Job that brings the model of a revision to one node, to its cache or as an image, and the images of its pods."""

from typing import Any

from slipway_operator.api.inputs.pod_inputs import PROGRESS_VARIABLE
from slipway_operator.manifests.job import job_name
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import pod_template
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot

PREFETCH = "prefetch"  # value of the component label
DEADLINE_S, KEPT_S, TRIES = 3600, 600, 3
# It waits for the network and the disk. Its limits are those of the pods, its requests fit beside one of them.
_REQUESTS = {"cpu": "100m", "memory": "256Mi"}
IMAGE = "image"  # name of the container that pulls the engine's
_PULL = {"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "16Mi"}
# Without /bin/true it fails when the image is there: another try would do no more.
_ONCE = {"rules": [{"action": "FailJob", "onExitCodes": {"containerName": IMAGE, "operator": "NotIn", "values": [0]}}]}
_OF_POD = (
    *("automountServiceAccountToken", "enableServiceLinks", "securityContext"),
    *("imagePullSecrets", "serviceAccountName", "tolerations"),
)
_NODE_ONLY = "requiredDuringSchedulingIgnoredDuringExecution"


def prefetch_job(owner: Owner, snapshot: Snapshot, node: str) -> dict[str, Any]:
    """The fetcher of a pod of the revision, as a Job on this node. It pulls the images of fetcher and engine, too.

    Its name says revision and node, so it is created once. Its pod has no label of model pods: no Service, budget or
    autoscaler selects it.
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
    images = [_pull(engine)] if engine["image"] != fetcher["image"] else []
    mounted = {mount["name"] for mount in fetcher["volumeMounts"]}
    spec = {
        "ttlSecondsAfterFinished": KEPT_S,
        "activeDeadlineSeconds": DEADLINE_S,
        "backoffLimit": TRIES - 1,
        **({"podFailurePolicy": _ONCE} if images else {}),
        "template": {
            "metadata": {"labels": {labels.COMPONENT: PREFETCH}},
            "spec": {
                **{name: pod[name] for name in _OF_POD if name in pod},
                "restartPolicy": "Never",
                "affinity": _on(node),
                "containers": [_alone(fetcher), *images],
                "volumes": [volume for volume in pod["volumes"] if volume["name"] in mounted],
            },
        },
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _pull(engine: dict[str, Any]) -> dict[str, Any]:
    """A container whose only purpose is that the kubelet pulls the engine's image. Its command ends at once, and fails
    where the image has no shell, which the Job does not mind: the image is on the node then."""
    return {
        "name": IMAGE,
        **{name: engine[name] for name in ("image", "imagePullPolicy", "securityContext") if name in engine},
        "command": ["/bin/true"],
        "resources": {"requests": _PULL, "limits": _PULL},
    }


def _alone(fetcher: dict[str, Any]) -> dict[str, Any]:
    """Without a lease: what it brought may be evicted before a pod uses it. Without a port: no policy is around it."""
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
