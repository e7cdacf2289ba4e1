"""Pods → endpoints of revisions (pure).

A pod of a pool serves many models: each revision of a member is an endpoint of its own at it. Its URL has the revision
before the path, by which the pod knows the entry. So in-flight counts, ejections and retries are of one entry, and a
broken model takes no requests from others in the same pod.
"""

import re
from collections.abc import Mapping
from typing import Any

from slipway_process.network.host_names import host_name, pod_zone

from .table import STANDBY, RevisionEndpoints, base_revision

LABEL_DEPLOYMENT = "slipway.dev/modeldeployment"
LABEL_REVISION = "slipway.dev/revision"
LABEL_POOL = "slipway.dev/modelpool"
LABEL_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"  # 0 in the leader of a group
PORT_NAME, TLS_PORT_NAME, DEFAULT_PORT = "http", "https", 8000
_RENAMED = re.compile("([a-z0-9]{1,9})-[1-9][0-9]{0,3}")  # a beginning of the revision, and a number


def parse_pod(obj: Mapping[str, Any]) -> RevisionEndpoints | None:
    """A pod → its endpoint; None when the pod has ended, is terminating, or is not one of ours.

    It is ours when it has both labels and that revision's ReplicaSet controls it: any user of the namespace can set the
    labels. In a group of pods only the leader is; a StatefulSet controls it.
    """
    meta, status = obj["metadata"], obj.get("status") or {}
    labels = meta.get("labels") or {}
    deployment, revision = labels.get(LABEL_DEPLOYMENT), labels.get(LABEL_REVISION)
    address = status.get("podIP")
    owner = next((one for one in meta.get("ownerReferences") or () if one.get("controller")), None)
    pool = _pool_of(owner, labels, meta["namespace"]) if owner else ""
    if not (deployment or pool) or not revision or not address or meta.get("deletionTimestamp") or _ended(status):
        return None
    if not pool and not _controls(owner, labels, deployment or "", revision):
        return None
    try:
        url = _pod_url(obj, address)
    except ValueError:  # the pod's IP is no address
        return None
    if pool:
        return RevisionEndpoints("", "", (url,), pool=pool, ready=_ready(status))
    uid = str((owner or {}).get("uid") or "")
    return RevisionEndpoints(f"{meta['namespace']}/{deployment}", revision, (url,), uid, ready=_ready(status))


def _controls(owner: Mapping[str, Any] | None, labels: Mapping[str, Any], deployment: str, revision: str) -> bool:
    """Whether `owner` is the controller of the revision's pods."""
    return owner is not None and _may_serve(owner, labels) and _is_named(owner.get("name"), deployment, revision)


def _may_serve(owner: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    """Whether pods of this controller take requests: those of a ReplicaSet, and leaders of groups."""
    leads = labels.get(LABEL_WORKER_INDEX) == "0"
    return owner.get("kind") == "ReplicaSet" or (owner.get("kind") == "StatefulSet" and leads)


def _is_named(name: Any, deployment: str, revision: str) -> bool:
    """Whether `name` is that of a revision's ReplicaSet, or the fallback for when that name has another owner."""
    if name == f"{deployment}-{revision}":
        return True
    name = str(name).removesuffix(STANDBY)  # of a standby pod that serves: only its label is the revision's
    if name == f"{deployment}-{revision}":
        return True
    runs = base_revision(revision)
    found = _RENAMED.fullmatch(str(name).removeprefix(f"{deployment}-").removesuffix(revision.removeprefix(runs)))
    return found is not None and str(name).startswith(f"{deployment}-") and runs.startswith(found[1])


def _ready(status: Mapping[str, Any]) -> bool:
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    return conditions.get("Ready") == "True"


def _ended(status: Mapping[str, Any]) -> bool:
    return status.get("phase") in ("Failed", "Succeeded")


def _pod_url(pod: Mapping[str, Any], address: str) -> str:
    """The pod's URL: https where a container has a port named `https`, else http. A pod never changes its ports."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    ports = {port.get("name"): port.get("containerPort") for one in containers for port in one.get("ports") or ()}
    if encrypted := ports.get(TLS_PORT_NAME):
        return f"https://{host_name(address, pod_zone(pod['metadata']['namespace']))}:{encrypted}"
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{ports.get(PORT_NAME) or DEFAULT_PORT}"


def _pool_of(owner: Mapping[str, Any], labels: Mapping[str, Any], namespace: str) -> str:
    """`namespace/uid` of the StatefulSet of a pod's pool; empty for a pod that belongs to no pool.

    The pod serves the revisions with which the operator published that uid. A pool serves its own namespace alone,
    whatever a status says.
    """
    uid = owner.get("uid")
    return f"{namespace}/{uid}" if labels.get(LABEL_POOL) and owner.get("kind") == "StatefulSet" and uid else ""
