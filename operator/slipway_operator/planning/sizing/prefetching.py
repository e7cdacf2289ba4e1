"""Nodes that download the model of a new revision while its first pods are judged, so that later pods need not wait."""

from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.prefetch import prefetch_job
from slipway_operator.model.cluster.plan import Prefetch
from slipway_operator.model.inputs.pod_inputs import IMAGE_CACHE, NODE_CACHE
from slipway_operator.planning.facts.situation import Course, Situation

MOST_NODES = 16  # of one revision


def jobs(owner: Owner, course: Course, at: Situation) -> tuple[Prefetch, ...]:
    """Jobs that download the model on the nodes of the stable pods, where the next pods run in their place or beside.

    Jobs begin when the first pod of the revision has its model: from then on all of its pods load the same bytes.
    """
    target, stable = course.target, course.stable
    snapshot = at.observed.snapshots.get(target or "")
    if target == stable or stable is None or snapshot is None:
        return ()
    if snapshot.inputs.model.cache not in (NODE_CACHE, IMAGE_CACHE) or snapshot.weights is None:
        return ()
    wanted = _nodes(at, stable) - _nodes(at, snapshot.revision)
    nodes = sorted(wanted)[:MOST_NODES]
    return tuple(Prefetch(snapshot.revision, node, prefetch_job(owner, snapshot, node)) for node in nodes)


def _nodes(at: Situation, revision: str) -> set[str]:
    """Nodes of the revision's pods, without nodes that are drained."""
    workload = at.workload(revision)
    pods = (*workload.pods, *workload.workers) if workload else ()
    return {pod.node for pod in pods if pod.node and not pod.leaving}
