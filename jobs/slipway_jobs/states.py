"""States of files, batches and lines, and what they count (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass

# States of a file.
UPLOADING, READY, DELETED = "uploading", "ready", "deleted"
# States of a batch, as OpenAI names them.
VALIDATING, FAILED, IN_PROGRESS, FINALIZING = "validating", "failed", "in_progress", "finalizing"
COMPLETED, EXPIRED, CANCELLING, CANCELLED = "completed", "expired", "cancelling", "cancelled"
OPEN_BATCHES = (VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING)
ENDING_BATCHES = (FINALIZING, CANCELLING)
ENDED_BATCHES = (FAILED, COMPLETED, EXPIRED, CANCELLED)
CANCELLABLE = (VALIDATING, IN_PROGRESS)
# States of a line; it ends as `COMPLETED`, `FAILED`, `EXPIRED` or `CANCELLED`.
QUEUED, CLAIMED = "queued", "claimed"
OPEN_LINES = (QUEUED, CLAIMED)
ERROR_LINES = (FAILED, EXPIRED, CANCELLED)
# Kinds of batches: made by /v1/batches, /v1/jobs or /api/v1/batch.
BATCH, JOB, INPUTS = "batch", "job", "inputs"
# Parts of a batch's result.
OUTPUT, ERROR = "output", "error"

# Code of the error of what cannot be decrypted.
UNREADABLE_LINE = "sealing_key_lost"
UNRUN = {
    CANCELLED: ("batch_cancelled", "The batch was cancelled before this request ran."),
    EXPIRED: ("batch_expired", "The batch's completion window ended before this request ran."),
}


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Lines of one batch. `failed`: those that failed, expired or were cancelled."""

    total: int = 0
    completed: int = 0
    failed: int = 0


def count_lines(by_state: Mapping[str, int]) -> LineCounts:
    return LineCounts(sum(by_state.values()), by_state.get(COMPLETED, 0), sum(by_state.get(s, 0) for s in ERROR_LINES))
