"""The workload of a revision: a ReplicaSet, or a LeaderWorkerSet where a replica has several pods."""

from typing import Any

from slipway_operator.manifests.engines.profile import HTTP_PORT
from slipway_operator.manifests.history import copy_of
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import pod_template, profile_of, replica_set
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot

# Prefixes of labels and annotations in spec.pod that Kueue and LeaderWorkerSet read from the LeaderWorkerSet: they are
# written there and not to the pods.
GROUP_LABELS = ("kueue.x-k8s.io/",)
GROUP_ANNOTATIONS = ("leaderworkerset.sigs.k8s.io/",)
# preStop of a worker: it delays SIGTERM until the leader has drained and closed its port, at most for the grace period.
AWAIT_LEADER = f"""
import os, socket, time
missed = 0
while missed < 3:
    try:
        socket.create_connection((os.environ["LWS_LEADER_ADDRESS"], {HTTP_PORT}), 2).close()
        missed = 0
    except OSError:
        missed += 1
    time.sleep(1)
"""
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def workload(owner: Owner, snapshot: Snapshot, replicas: int, revision: str = "") -> dict[str, Any]:
    """One immutable workload per revision, with a copy of the revision's record; `revision` as for `replica_set`."""
    if not snapshot.inputs.has_pods:
        return _recorded(_entry(owner, snapshot, replicas), snapshot)
    make = leader_worker_set if snapshot.is_grouped else replica_set
    return _recorded(make(owner, snapshot, replicas, revision), snapshot)


def _recorded(manifest: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """Return the manifest with the copy; without one for a baseline, whose label names no revision of its own."""
    metadata, copy = manifest["metadata"], copy_of(snapshot)
    if not copy or metadata["labels"][labels.REVISION] != snapshot.revision:
        return manifest
    annotations = {**metadata.get("annotations", {}), labels.RECORD: copy}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _entry(owner: Owner, snapshot: Snapshot, replicas: int) -> dict[str, Any]:
    """Return the ReplicaSet of a revision without pods of its own. `replicas`: 1 if it is an entry, or else 0."""
    made = replica_set(owner, snapshot, 0)
    return {**made, "metadata": {**made["metadata"], "annotations": {labels.POOL_REPLICAS: str(replicas)}}}


def leader_worker_set(owner: Owner, snapshot: Snapshot, replicas: int, revision: str = "") -> dict[str, Any]:
    """The LeaderWorkerSet. As with a ReplicaSet, only its `spec.replicas` is ever written again."""
    revision = revision or snapshot.revision
    leader = pod_template(owner, snapshot, revision)
    written = leader["metadata"]
    queue = _having(written["labels"], GROUP_LABELS)
    placed = _having(written["annotations"], GROUP_ANNOTATIONS)
    leader["metadata"] = {
        "labels": _without(written["labels"], queue),
        "annotations": _without(written["annotations"], placed),
    }
    metadata = owner.child_metadata(revision)
    return {
        "apiVersion": labels.GROUPS_API_VERSION,
        "kind": labels.LEADER_WORKER_SET,
        "metadata": {
            **metadata,
            "labels": {**queue, **metadata["labels"]},
            **({"annotations": placed} if placed else {}),
        },
        "spec": {
            "replicas": replicas,
            # Start workers with the leader: the pods find each other while they start, and the leader gets ready last.
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": snapshot.inputs.engine.parallelism.nodes,
                # Each pod holds a part of the model, so a group without one of its pods is of no use.
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": _worker(leader, snapshot),
            },
        },
    }


def _worker(leader: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """Return the template of a group's other pods: they fetch the same model, but have no port to probe.

    A request needs all pods of the group. When one is evicted, the whole group is deleted, and its leader drains.
    """
    profile, spec, metadata = profile_of(snapshot), leader["spec"], leader["metadata"]
    server = _without(spec["containers"][0], (*PROBES, "command", "args", "ports"))
    server |= {"command": list(profile.worker_command)} if profile.worker_command else {}
    server |= {"args": list(profile.worker_args)}
    if profile.worker_has_python:
        server |= {"lifecycle": {"preStop": {"exec": {"command": ["python3", "-c", AWAIT_LEADER]}}}}
    return {
        "metadata": {**metadata, "labels": {**metadata["labels"], labels.COMPONENT: labels.WORKER}},
        "spec": {**spec, "containers": [server]},
    }


def _having(items: dict[str, str], beginnings: tuple[str, ...]) -> dict[str, str]:
    return {key: value for key, value in items.items() if key.startswith(beginnings)}


def _without(items: dict[str, Any], names: Any) -> dict[str, Any]:
    return {key: value for key, value in items.items() if key not in names}
