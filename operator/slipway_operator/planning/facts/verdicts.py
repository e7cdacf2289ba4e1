"""What rollouts concluded about revisions, as the status has it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from slipway_contracts.api.times import format_time
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.planning.facts.recall import NO_FAULT
from slipway_process import dsse

PROMOTED, REJECTED, ROLLED_BACK = "promoted", "rejected", "rolled-back"


@dataclass(frozen=True, slots=True)
class RevisionVerdict:
    """What a rollout concluded about a revision; `at` is the same at each look."""

    revision: str
    verdict: str
    reason: str
    at: datetime


def verdicts(status: Status) -> Iterator[RevisionVerdict]:
    """The verdicts in a status; of a revision the last one counts."""
    rollout, accuracy, stable = status.rollout, status.accuracy, status.stable_revision
    # The first revision was compared with nothing.
    promotion = next((one for one in reversed(status.decisions) if one.row == "promoted"), None)
    # A status from a backup may have an older one, of another revision.
    is_of_stable = promotion is not None and f"revision {stable} " in promotion.message
    if promotion and is_of_stable and stable and status.previous_revision:
        yield RevisionVerdict(stable, PROMOTED, promotion.message, promotion.at)
    rolled_back = (accuracy.rollback or "").partition("/")[0] if accuracy else ""
    alarm = next((one for one in status.conditions if one.type == "AccuracyAlarm" and one.status == "True"), None)
    if rolled_back and alarm:
        yield RevisionVerdict(rolled_back, ROLLED_BACK, alarm.message, alarm.last_transition_time)
    abort = rollout.abort if rollout else None
    if rollout and abort and abort.reason not in NO_FAULT:
        text = f"revision {rollout.revision}: {abort.reason}: {abort.message}"
        yield RevisionVerdict(rollout.revision, REJECTED, text, abort.at)


def is_stated(text: str, verdict: RevisionVerdict) -> bool:
    """Whether a text, which anyone may have written, is a statement about this verdict. No signature is verified."""
    try:
        found = json.loads(dsse.read(text).payload)["predicate"] if text else {}
        named = (found["revision"], found["verdict"], found["decidedAt"])
    except (ValueError, KeyError, TypeError, RecursionError):  # dsse.NotVerified is a ValueError
        return False
    return named == (verdict.revision, verdict.verdict, format_time(verdict.at))
