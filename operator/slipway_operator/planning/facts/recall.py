"""What a lost status had, from what survives it: the history of each revision's record, and the routes of gateways."""

from collections import Counter
from dataclasses import replace
from datetime import datetime

from slipway_operator.api.v1alpha1.status import Abort, Rollout, State, Status
from slipway_operator.model import labels
from slipway_operator.model.cluster.history import UNKNOWN, History
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.planning.facts.revision import attempt_of

# Bound on a table's generation: one per change never reaches it, and the integer has room above it for later tables.
MAX_GENERATION = 1 << 40
MAX_ABORTED = 20  # of status.abortedRevisions
REJECTED_BEFORE = "RejectedBefore"
NO_FAULT = ("RevertedToStable", "Superseded")  # reasons of aborts that say nothing against the revision


def histories(status: Status, observed: Observed) -> dict[str, History]:
    """The histories that records should have, of the revisions whose history changes.

    They follow from the status as read: what is recorded is decided, and written there.
    """
    histories = {name: item.history for name, item in observed.snapshots.items()}
    rollout, stable, generation = status.rollout, status.stable_revision, _generation(status)
    if rollout and rollout.revision in histories:
        former = histories[rollout.revision]
        tried = replace(former, attempts=max(former.attempts, rollout.attempt))
        at_fault = rollout.abort and rollout.abort.reason not in NO_FAULT
        histories[rollout.revision] = replace(tried, rejected=rollout.attempt) if at_fault else tried
    if stable in histories and stable != promoted_last(observed) and generation > promoted_at(observed):
        histories[stable] = replace(histories[stable], promoted=generation)
    return {name: item for name, item in histories.items() if item != observed.snapshots[name].history}


def is_older(status: Status, observed: Observed, wanted: str) -> bool:
    """Whether the status is a former copy: gateways route by a newer table, or a record has a later history."""
    if status.stable_revision is None:
        return False
    last, generation = promoted_last(observed), _generation(status)
    promoted = last not in (None, status.stable_revision) and promoted_at(observed) >= generation
    return promoted or _newest_generation(observed) > generation or _was_rejected(status, observed, wanted)


def _was_rejected(status: Status, observed: Observed, wanted: str) -> bool:
    """Whether the revision that should run was rejected, and the status, which has the last rejections, lacks this."""
    snapshot = observed.snapshots.get(wanted)
    token = f"{wanted}/{snapshot.history.rejected}" if snapshot and snapshot.history.rejected else ""
    return bool(token) and token not in status.aborted_revisions and len(status.aborted_revisions) < MAX_ABORTED


def stable(named: str | None, observed: Observed, wanted: str) -> str | None:
    """The stable revision; None where there was none.

    `named`: the one in the status, which is in no object; None where the status has none, or is a former copy. It stays
    where gateways route to it, as does a revision that all requests go to and that lost its record, and with it its
    history. Else it is the revision that was promoted last, then one that gateways route to, rather not the one that
    may be under test.
    """
    routed = _routed(observed)
    if named in routed:
        return named
    unrecorded = [name for name in routed if name not in observed.snapshots]
    if unrecorded and len(routed) == 1:
        return unrecorded[0]
    promoted = promoted_last(observed)
    if promoted and (promoted in routed or named is None):
        return promoted
    known = [name for name in routed if name in observed.snapshots or name in observed.workloads]
    return max(known, key=lambda name: (observed.ready(name) > 0, name != wanted, routed[name]), default=named)


def rejection(spec: Spec, observed: Observed, wanted: str, now: datetime) -> Rollout | None:
    """The rejection of the revision that should run, if its last attempt was rejected and no further one is named.

    An abort in the spec counts too: the status may have been lost before the operator acted on it.
    """
    snapshot = observed.snapshots.get(wanted)
    history = snapshot.history if snapshot else UNKNOWN
    attempt = max(history.rejected, attempt_of(spec.intents.abort, wanted))
    if attempt < max(history.attempts, 1) or attempt_of(spec.intents.retry, wanted) > attempt:
        return None
    text = f"attempt {attempt} was rejected, and then the status was lost or replaced by a former copy"
    return Rollout(State.ABORTING, wanted, attempt, now, now, now, abort=Abort(REJECTED_BEFORE, text, now))


def is_over(rollout: Rollout, observed: Observed) -> bool:
    """Whether a later attempt of its revision began."""
    snapshot = observed.snapshots.get(rollout.revision)
    return snapshot is not None and snapshot.history.attempts > rollout.attempt


def aborted(status: Status, observed: Observed) -> tuple[str, ...]:
    """status.abortedRevisions with the rejections that only records have."""
    recorded = (
        f"{name}/{item.history.rejected}" for name, item in sorted(observed.snapshots.items()) if item.history.rejected
    )
    tokens = (token for token in recorded if token not in status.aborted_revisions)
    return (*tokens, *status.aborted_revisions)[-MAX_ABORTED:]


def promoted_last(observed: Observed) -> str | None:
    """The revision that became stable last, by the records; None where they have none."""
    promoted = {item.history.promoted: name for name, item in observed.snapshots.items() if item.history.promoted}
    return promoted[max(promoted)] if promoted else None


def promoted_at(observed: Observed) -> int:
    """The generation of the table in which that revision became stable; 0 where the records have none."""
    return max((item.history.promoted for item in observed.snapshots.values()), default=0)


def _generation(status: Status) -> int:
    return status.traffic.generation if status.traffic and status.traffic.generation < MAX_GENERATION else 0


def _newest_generation(observed: Observed) -> int:
    routed = (gateway.generation or 0 for gateway in observed.gateways if not gateway.gone)
    return max((number for number in routed if number < MAX_GENERATION), default=0)


def _routed(observed: Observed) -> dict[str, int]:
    """Weights by revision, with its baseline's, in the newest table that gateways route by; empty without one."""
    weights, newest = Counter[str](), _newest_generation(observed)
    for gateway in observed.gateways:
        if not gateway.gone and gateway.generation == newest:
            weights.update({labels.what_runs(name): weight for name, weight in gateway.weights.items() if weight})
    return dict(weights)
