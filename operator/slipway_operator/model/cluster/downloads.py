"""Which pods download a model now and serve their progress; pure."""

from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Observed, Pod, Snapshot

FIRST_TEMPLATE = 3  # template version: fetchers of earlier ones serve no progress
MOST_PODS = 4  # pods of one ModelDeployment whose progress is read
CACHED, FETCHING, FAILED = "Cached", "Fetching", "Failed"  # states of a model on a node


def is_served(snapshot: Snapshot) -> bool:
    """Whether fetchers of a revision serve their progress; for a model in a volume there is no download."""
    return snapshot.template_version >= FIRST_TEMPLATE and snapshot.inputs.model.is_downloaded


def fetching(observed: Observed) -> tuple[tuple[str, Pod], ...]:
    """Return the pods that download now, each with its revision; at most the MOST_PODS oldest ones."""
    found = [
        (revision, pod)
        for revision, workload in observed.workloads.items()
        if (snapshot := observed.snapshots.get(labels.what_runs(revision))) and is_served(snapshot)
        for pod in (*workload.pods, *workload.workers)
        if pod.fetching and pod.address
    ]
    return tuple(sorted(found, key=lambda item: (item[1].created_at, item[1].name))[:MOST_PODS])
