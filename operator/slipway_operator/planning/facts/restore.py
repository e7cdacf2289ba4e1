"""A status that was lost, restored or edited by hand, made consistent again.

The status is the operator's persistent state, and others may write it: a backup, `kubectl edit`, a tool. Impossible
values are dropped here, before anything is decided, so that a reconcile continues from it as from any other state.
Possible values are accepted: a user who may write the status may also write the spec.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from slipway_contracts.api.writing import camel
from slipway_contracts.route_table import Traffic, refusal
from slipway_contracts.twin_shadow import TwinShadow, shadow_refusal
from slipway_operator.api.v1alpha1.status import NEVER, RevisionStatus, Rollout, State, Status
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.planning.facts import recall
from slipway_operator.planning.facts.recall import MAX_GENERATION
from slipway_operator.planning.facts.revision import steps_hash

MOST_PATHS = 5  # paths in one Event
MAX_ATTEMPT = 1 << 31
MAX_COLLISIONS = 9999  # a name has room for this many digits
AT_A_STEP = frozenset({State.PAUSED, State.ANALYZING})
_ATTEMPT = re.compile("[^/]+/[0-9]{1,10}")  # of status.abortedRevisions
_REVISION = re.compile("[a-z2-7]{10}")
SKEW = timedelta(seconds=30)  # between the clocks of two operators


def restored(status: Status, spec: Spec, observed: Observed, wanted: str, now: datetime) -> Status:
    """The status without impossible values, and with what it lost; the same object where there is neither."""
    recalled = _recalled(status, spec, observed, wanted, now)
    sleep = replace(status.sleep, since=_past(status.sleep.since, now)) if status.sleep else None
    kept = replace(
        recalled,
        traffic=status.traffic if status.traffic and _is_table(status.traffic) else None,
        sleep=sleep,
        revisions=_revisions(status.revisions, spec, now),
        aborted_revisions=tuple(token for token in recalled.aborted_revisions if _ATTEMPT.fullmatch(token)),
        collision_count=_count(status.collision_count),
    )
    return status if kept == status else kept


def lost(before: Status, kept: Status, observed: Observed, wanted: str) -> tuple[Event, ...]:
    """An Event about a status that is a former copy, or with the names of its dropped parts; none where it is sound."""
    names = ("stable_revision", "rollout", "traffic", "sleep", "revisions", "aborted_revisions", "collision_count")
    parts = ", ".join(f"status.{camel(name)}" for name in names if getattr(before, name) != getattr(kept, name))
    if recall.is_older(before, observed, wanted):
        text = f"it is a former copy: {parts or 'no part of it'} was taken from records and gateways, which are ahead"
        return (Event("Warning", "StatusRestored", text),)
    if before is kept:
        return ()
    return (Event("Warning", "StatusRestored", f"{parts} was lost or had impossible values, and was computed again"),)


def unread(paths: Sequence[str]) -> tuple[Event, ...]:
    """An Event with the paths of the unreadable parts of a status; none where all are readable."""
    if not paths:
        return ()
    named = ", ".join(f"status.{path}" for path in paths[:MOST_PATHS])
    more = f" and {len(paths) - MOST_PATHS} more" if len(paths) > MOST_PATHS else ""
    return (Event("Warning", "StatusRestored", f"{named}{more} could not be read and counts as lost"),)


def _count(collisions: int | None) -> int | None:
    return collisions if collisions and 0 < collisions <= MAX_COLLISIONS else None


def _past(moment: datetime, now: datetime) -> datetime:
    """The moment where it is known and, apart from clock skew, not in the future; else now."""
    return moment if NEVER < moment <= now + SKEW else now


def _recalled(status: Status, spec: Spec, observed: Observed, wanted: str, now: datetime) -> Status:
    """The status with its sound rollout; where decisions were lost or are former ones, with those of other objects."""
    rollout, named = _rollout(status, spec, observed, wanted, now), status.stable_revision
    older, known = recall.is_older(status, observed, wanted), _is_known(named, observed) or named == wanted
    first = named is None and rollout is not None and rollout.state is State.INITIALIZING
    if first or (known and not older):
        return replace(status, rollout=rollout)
    stable = recall.stable(None if older else _valid(named), observed, wanted)
    goes_on = rollout and stable == named and not recall.is_over(rollout, observed)
    rejection = recall.rejection(spec, observed, wanted, now) if stable not in (None, wanted) else None
    aborted = recall.aborted(status, observed)
    rollout = rejection or (rollout if goes_on else None)
    return replace(status, stable_revision=stable, rollout=rollout, aborted_revisions=aborted)


def _valid(revision: str | None) -> str | None:
    return revision if revision and _REVISION.fullmatch(revision) else None


def _is_known(revision: str | None, observed: Observed) -> bool:
    return revision is not None and (revision in observed.snapshots or revision in observed.workloads)


def _rollout(status: Status, spec: Spec, observed: Observed, wanted: str, now: datetime) -> Rollout | None:
    rollout = status.rollout
    if rollout is None or not 1 <= rollout.attempt <= MAX_ATTEMPT:
        return None
    known = rollout.revision == wanted or _is_known(rollout.revision, observed)
    first = rollout.state is State.INITIALIZING
    if not known or rollout.revision == status.stable_revision or (first and status.stable_revision):
        return None
    # The length of a step list that was edited since is only in the status.
    edited = rollout.steps_hash != steps_hash(spec.strategy.steps)
    steps = max(rollout.steps, 0) if edited else len(spec.strategy.steps)
    # A rollout that holds at a step has a present step; any other may be past the last one.
    last = steps - 1 if rollout.state in AT_A_STEP else steps
    return replace(
        rollout,
        step_index=max(0, min(rollout.step_index, last)),
        steps=steps,
        started_at=_past(rollout.started_at, now),
        step_started_at=_past(rollout.step_started_at, now),
        progress_at=_past(rollout.progress_at, now),
        capacity_since=_past(rollout.capacity_since, now) if rollout.capacity_since else None,
    )


def _is_table(table: Traffic) -> bool:
    shadow = table.twin_shadow
    sound = all(route.match for route in table.header_routes) and (shadow is None or is_shadow(shadow))
    return sound and bool(table.backends) and 1 <= table.generation < MAX_GENERATION and not refusal(table)


def is_shadow(shadow: TwinShadow) -> bool:
    """Whether gateways use a table with this twin shadow, and the twin is another revision."""
    return shadow.revision != shadow.twin and not shadow_refusal(shadow)


def _revisions(listed: tuple[RevisionStatus, ...], spec: Spec, now: datetime) -> tuple[RevisionStatus, ...]:
    """The revisions; none of them waits longer for its scale-down than the spec allows."""
    delay_s = max(spec.strategy.scale_down_delay_s, spec.strategy.abort_scale_down_delay_s)
    latest = now + timedelta(seconds=delay_s)
    return tuple(
        replace(item, scale_down_at=min(item.scale_down_at, latest)) if item.scale_down_at else item for item in listed
    )
