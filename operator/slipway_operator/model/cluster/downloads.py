"""Which pods download a model and can be read about it; pure."""

from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Observed, Pod, Snapshot

FIRST_TEMPLATE = 3  # fetchers of former versions serve no progress
MOST_PODS = 4  # of one ModelDeployment
CACHED, FETCHING, FAILED = "Cached", "Fetching", "Failed"  # states of a model on a node


def is_served(snapshot: Snapshot) -> bool:
    """Whether fetchers of a revision serve their progress: not of a model that lies in a volume."""
    return snapshot.template_version >= FIRST_TEMPLATE and snapshot.inputs.model.is_downloaded


def fetching(observed: Observed) -> tuple[tuple[str, Pod], ...]:
    """The pods that download now, with their revisions; of many the oldest ones."""
    found = [
        (revision, pod)
        for revision, workload in observed.workloads.items()
        if (snapshot := observed.snapshots.get(labels.what_runs(revision))) and is_served(snapshot)
        for pod in (*workload.pods, *workload.workers)
        if pod.fetching and pod.address
    ]
    return tuple(sorted(found, key=lambda item: (item[1].created_at, item[1].name))[:MOST_PODS])
