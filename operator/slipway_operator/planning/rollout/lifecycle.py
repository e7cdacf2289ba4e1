"""Rows that begin a rollout, promote its revision, and end a rejection."""

from dataclasses import replace

from slipway_operator.api.v1alpha1.status import Rollout, State
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.facts.revision import attempt_of, in_window, steps_hash
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of
from slipway_operator.planning.rollout.progress import entering, pausing
from slipway_operator.planning.rollout.row import ABORTED, FIRST, IDLE, PROMOTING, Outcome, row
from slipway_operator.planning.sizing.sizes import Sizes


@row(
    "first-revision",
    "There is no stable revision: the one that the spec describes comes up, without steps.",
    IDLE,
)
def first_revision(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    return _start_first(course, at) if course.stable is None else None


@row(
    "first-serves-and-changes",
    "The first revision serves and the spec names another: it becomes stable, the other goes out by steps.",
    FIRST,
)
def first_serves_and_changes(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    first = rollout_of(course).revision
    serves = at.weight(first) == 100 and at.traffic_synced
    return _promote(course) if serves and first != at.wanted else None


@row(
    "first-replaced",
    "The spec names another revision before the first one served: that one comes up in its place.",
    FIRST,
)
def first_replaced(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    first = rollout_of(course).revision
    return _start_first(course, at) if at.weight(first) == 0 and first != at.wanted else None


@row(
    "first-ready",
    "All pods of the first revision are ready and every gateway routes to them: it is stable.",
    FIRST,
)
def first_ready(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    return _promote(course) if _fully_shifted(course, at, sizes) else None


@row(
    "new-revision",
    "The spec names another revision than the stable one: its rollout begins.",
    IDLE,
)
def new_revision(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    return _start(course, at) if at.wanted != course.stable else None


@row(
    "promoted",
    "All pods are ready and every gateway sends all requests to them: the revision is stable.",
    PROMOTING,
)
def promoted(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    return _promote(course) if _fully_shifted(course, at, sizes) else None


@row(
    "retry",
    "spec.rollout.retry names a further attempt of the rejected revision: it begins.",
    ABORTED,
)
def retry(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    revision, _, attempt = (at.spec.intents.retry or "").partition("/")
    named = revision == rollout.revision == at.wanted and attempt.isdigit()
    if not named or int(attempt) <= rollout.attempt:
        return None
    started = _started(course, at)
    text = f"revision {at.wanted} is tried again, attempt {started.attempt}"
    return replace(course, rollout=started), (Event("Normal", "RolloutRetry", text), *pausing(started))


@row(
    "reverted-after-abort",
    "The spec describes the stable revision again: the rejection is settled.",
    ABORTED,
)
def reverted_after_abort(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    return (replace(course, rollout=None), ()) if at.wanted == course.stable else None


@row(
    "changed-after-abort",
    "The spec names a further revision: its rollout begins.",
    ABORTED,
)
def changed_after_abort(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    return _start(course, at) if rollout_of(course).revision != at.wanted else None


def _fully_shifted(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether enough pods are ready and all gateways send all requests to them."""
    target = rollout_of(course).revision
    enough = at.ready(target) >= max(sizes.enough, 1)
    return enough and at.weight(target) == 100 and at.traffic_synced and not at.holds


def _promote(course: Course) -> Outcome:
    target = rollout_of(course).revision
    done = replace(course, rollout=None, stable=target, previous=course.stable or course.previous)
    return done, (Event("Normal", "RolloutCompleted", f"revision {target} is stable and serves all requests"),)


def _start_first(course: Course, at: Situation) -> Outcome:
    rollout = _new_rollout(course, at, State.INITIALIZING)
    return replace(course, rollout=rollout), (
        Event("Normal", "RolloutUpdated", f"first revision {at.wanted} comes up"),
    )


def _start(course: Course, at: Situation) -> Outcome:
    rollout = _started(course, at)
    way = "without steps" if rollout.skip_steps else f"in {rollout.steps} steps"
    text = f"revision {at.wanted} goes out {way}, attempt {rollout.attempt}; {course.stable} is stable"
    return replace(course, rollout=rollout), (Event("Normal", "RolloutUpdated", text), *pausing(rollout))


def _started(course: Course, at: Situation) -> Rollout:
    rollout = _new_rollout(course, at, State.PROVISIONING)
    return entering(replace(rollout, skip_steps=_goes_back(course, at)), at, 0)


def _goes_back(course: Course, at: Situation) -> bool:
    """Whether the revision served before, so that steps would give no new information."""
    served = not any(token.startswith(f"{at.wanted}/") for token in course.aborted)
    window = in_window(at.observed.snapshots, course.stable, at.wanted, at.spec.rollback_window)
    still_up = at.wanted == course.previous and at.ready(at.wanted) >= at.replicas
    return at.rolled_back or (served and window) or (at.spec.strategy.blue_green and still_up)


def _new_rollout(course: Course, at: Situation, state: State) -> Rollout:
    steps = at.spec.strategy.steps
    return Rollout(
        state=state,
        revision=at.wanted,
        attempt=_next_attempt(course, at),
        started_at=at.now,
        step_started_at=at.now,
        progress_at=at.now,
        steps=len(steps),
        steps_hash=steps_hash(steps),
    )


def _next_attempt(course: Course, at: Situation) -> int:
    """The attempt that spec.rollout.retry names; else one that no earlier attempt had.

    Intents stay in the spec after they took effect, and this attempt is new: those of its revision name earlier ones.
    """
    intents, snapshot = at.spec.intents, at.observed.snapshots.get(at.wanted)
    tokens = (*course.aborted, intents.promote, intents.promote_full, intents.abort)
    former = max(attempt_of(token, at.wanted) for token in tokens)
    recorded = snapshot.history.attempts if snapshot else 0
    return max(former + 1, recorded + 1, attempt_of(intents.retry, at.wanted))
