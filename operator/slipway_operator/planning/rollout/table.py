"""The rollout's state machine: one table of rows, of which one reconcile applies at most one.

A row is one function with a name and a description: it returns what changes, or None where it does not apply. Each
transition is written to the status before the next is considered, so an operator that crashes between any two calls
continues from there.
"""

from dataclasses import replace

from slipway_operator.api.v1alpha1.status import Decision
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.rollout import analyzing, hooks, lifecycle, rejecting, stepping, waiting
from slipway_operator.planning.rollout.progress import note_progress
from slipway_operator.planning.rollout.row import Outcome, Row
from slipway_operator.planning.sizing.sizes import Sizes, sizes_of

MAX_REJECTIONS = 5  # of MAX_DECISIONS, kept while others are dropped
MAX_DECISIONS = 20  # ten transitions or more: some have two Events
MESSAGE_LIMIT = 1024  # the API server's, of an Event

# Order matters: rows that end an attempt come before rows that continue it.
TABLE: tuple[Row, ...] = (
    lifecycle.first_revision,
    lifecycle.first_serves_and_changes,
    lifecycle.first_replaced,
    lifecycle.first_ready,
    lifecycle.new_revision,
    rejecting.reverted_to_stable,
    rejecting.user_abort,
    rejecting.superseded,
    rejecting.deadline,
    rejecting.analysis_lost,
    rejecting.capacity_deadline,
    rejecting.hook_rollback,
    rejecting.hook_failed,
    rejecting.analysis_failed,
    stepping.promote_full,
    stepping.steps_changed,
    hooks.hook_answered,
    hooks.hook_due,
    analyzing.analysis_begins,
    analyzing.analysis_counted,
    waiting.baseline_yields,
    waiting.baseline_given_up,
    waiting.no_capacity,
    waiting.capacity_found,
    waiting.capacity_fallback,
    stepping.pods_ready,
    stepping.pods_lost,
    stepping.step_done,
    stepping.pause_over,
    analyzing.analysis_skipped,
    analyzing.analysis_passed,
    analyzing.ramp_done,
    analyzing.analysis_inconclusive,
    lifecycle.promoted,
    rejecting.stable_replaced,
    rejecting.weight_returned,
    lifecycle.retry,
    lifecycle.reverted_after_abort,
    lifecycle.changed_after_abort,
)


def advance(course: Course, at: Situation) -> Outcome:
    """The outcome of the first row that applies; without one, the course with its progress."""
    sizes = sizes_of(course, at)
    found = next_row(course, at, sizes)
    if found is None:
        return note_progress(course, at, sizes), ()
    row, (changed, events) = found
    return replace(changed, decisions=_remembered(course, at, row, changed, events)), events


def next_row(course: Course, at: Situation, sizes: Sizes) -> tuple[Row, Outcome] | None:
    """The row that applies, with its outcome; None where none does."""
    outcomes = ((row, row.decide(course, at, sizes)) for row in TABLE if course.state in row.states)
    return next(((row, outcome) for row, outcome in outcomes if outcome is not None), None)


def _remembered(
    course: Course, at: Situation, row: Row, changed: Course, events: tuple[Event, ...]
) -> tuple[Decision, ...]:
    """The last decisions with the new one, described by its Events where it has any."""
    if not events and changed.state is course.state:  # a call of a hook, or the same response again
        return course.decisions
    shown = (Decision(at.now, row.name, item.message[:MESSAGE_LIMIT], item.reason, item.type) for item in events)
    silent = Decision(at.now, row.name, f"{course.state or 'Idle'} -> {changed.state or 'Idle'}")
    return _trimmed((*course.decisions, *(shown if events else (silent,))))


def _trimmed(decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """The decisions without the oldest ones, except for the last rejections, which users look up much later."""
    rejections = [index for index, item in enumerate(decisions) if _is_rejection(item)][-MAX_REJECTIONS:]
    others = [index for index in range(len(decisions)) if index not in rejections]
    dropped = set(others[: max(0, len(decisions) - MAX_DECISIONS)])
    return tuple(item for index, item in enumerate(decisions) if index not in dropped)


def _is_rejection(item: Decision) -> bool:
    return item.type == "Warning" and ", is rejected: " in item.message
