"""The rules of kstatus, by which Flux, Helm and other tools find out whether an applied object is reconciled.

Only those for custom resources, in their order: deletion, generation, Reconciling and Stalled, then Ready.
"""

from enum import StrEnum
from typing import Any


class Result(StrEnum):
    """What a tool does: it waits for InProgress, ends with an error for Failed, and goes on for Current."""

    IN_PROGRESS = "InProgress"
    FAILED = "Failed"
    CURRENT = "Current"
    TERMINATING = "Terminating"


def compute(obj: dict[str, Any]) -> Result:
    """The result for an object as the API server has it."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return Result.TERMINATING
    if "generation" in metadata and status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return Result.IN_PROGRESS
    conditions = status.get("conditions") or []
    standard = {"Reconciling": Result.IN_PROGRESS, "Stalled": Result.FAILED}
    for one in conditions:
        if one["status"] == "True" and one["type"] in standard:
            return standard[one["type"]]
    ready = next((one["status"] for one in conditions if one["type"] == "Ready"), "True")
    return Result.CURRENT if ready == "True" else Result.IN_PROGRESS
