"""An AnalysisRun as it was read: nothing of it is trusted before its identity is compared with the status."""

from dataclasses import dataclass
from typing import Any

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun, RunStatus

Json = dict[str, Any]

FIELDS = ("analysis", "background")  # of status.rollout: the analysis of a step, and that in the background


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One object. `generation`: how often its contents changed, which only the API server counts.

    `subject`: UID of the object whose change is analyzed. `run` is None where the contents make no sense. `ours`: the
    version is the one that this process wrote last.
    """

    name: str
    uid: str
    version: str
    generation: int
    subject: str = ""
    run: RunStatus | None = None
    ours: bool = False


@dataclass(frozen=True, slots=True)
class RunWrite:
    """Write one AnalysisRun. `former`: the object that was read; None: it is created."""

    name: str
    run: RunStatus
    former: StoredRun | None = None


def stored_run(obj: Json) -> StoredRun | None:
    """The run of an object; None while it is being deleted, which nothing cancels."""
    metadata = obj["metadata"]
    if metadata.get("deletionTimestamp"):
        return None
    bare = StoredRun(metadata["name"], metadata["uid"], metadata["resourceVersion"], metadata.get("generation", 0))
    try:
        run = read(AnalysisRun, encoded({name: obj.get(name) for name in ("spec", "status")}))
    except UnreadableObject:
        return bare
    return StoredRun(bare.name, bare.uid, bare.version, bare.generation, run.spec.subject_ref.uid, run.status)
