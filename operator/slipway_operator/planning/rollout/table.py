"""The rollout's state machine: one table of (states, guard, act) rows, of which one reconcile takes at most one.

Each transition is written to the status before the next is considered, so an operator that dies between any two calls
goes on from where it was.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from slipway_operator.api.v1alpha1.status import Decision, State
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.rollout import acts, guards, hooks
from slipway_operator.planning.rollout.acts import Outcome
from slipway_operator.planning.rollout.guards import COMING_UP, FIRST, IDLE, IN_FLIGHT, STEPPING, WAITING

MAX_REJECTIONS = 5  # of MAX_DECISIONS, that stay while others are dropped
MAX_DECISIONS = 20  # ten and more transitions: some are told by two Events
MESSAGE_LIMIT = 1024  # the API server's, of an Event


@dataclass(frozen=True, slots=True)
class Row:
    """In one of `states`, when `guard` holds, `act`. `name` and `says` are for tests, status and docs."""

    name: str
    says: str
    states: frozenset[State | None]
    guard: Callable[[Course, Situation], bool]
    act: Callable[[Course, Situation], Outcome]


def advance(course: Course, at: Situation) -> Outcome:
    """Take the first row that applies; else only note progress."""
    row = matching_row(course, at)
    if row is None:
        return acts.note_progress(course, at), ()
    changed, events = row.act(course, at)
    return replace(changed, decisions=_remembered(course, at, row, changed, events)), events


def _remembered(
    course: Course, at: Situation, row: Row, changed: Course, events: tuple[Event, ...]
) -> tuple[Decision, ...]:
    """The last decisions with the new one; events say best what was decided."""
    if not events and changed.state is course.state:  # a question to a hook, or the same answer again
        return course.decisions
    told = (Decision(at.now, row.name, item.message[:MESSAGE_LIMIT], item.reason, item.type) for item in events)
    silent = Decision(at.now, row.name, f"{course.state or 'Idle'} -> {changed.state or 'Idle'}")
    return _trimmed((*course.decisions, *(told if events else (silent,))))


def _trimmed(decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """Without the oldest ones, except for the last rejections: people ask for their reasons long after."""
    rejections = [index for index, item in enumerate(decisions) if _is_rejection(item)][-MAX_REJECTIONS:]
    others = [index for index in range(len(decisions)) if index not in rejections]
    dropped = set(others[: max(0, len(decisions) - MAX_DECISIONS)])
    return tuple(item for index, item in enumerate(decisions) if index not in dropped)


def _is_rejection(item: Decision) -> bool:
    return item.type == "Warning" and ", is rejected: " in item.message


def matching_row(course: Course, at: Situation) -> Row | None:
    """The row that applies, if any."""
    return next((row for row in TABLE if course.state in row.states and row.guard(course, at)), None)


# Order matters: what ends an attempt comes before what carries it on.
TABLE: tuple[Row, ...] = (
    Row(
        "first-revision",
        "There is no stable revision: the one that the spec describes comes up, without steps.",
        IDLE,
        guards.no_stable,
        acts.start_first,
    ),
    Row(
        "first-serves-and-changes",
        "The first revision serves and the spec names another: it becomes stable, the other goes out by steps.",
        FIRST,
        guards.serves_but_changed,
        acts.promote,
    ),
    Row(
        "first-replaced",
        "The spec names another revision before the first one served: that one comes up in its place.",
        FIRST,
        guards.unserved_and_changed,
        acts.start_first,
    ),
    Row(
        "first-ready",
        "All pods of the first revision are ready and every gateway routes to them: it is stable.",
        FIRST,
        guards.fully_shifted,
        acts.promote,
    ),
    Row(
        "new-revision",
        "The spec names another revision than the stable one: its rollout begins.",
        IDLE,
        guards.new_wanted,
        acts.start,
    ),
    Row(
        "reverted-to-stable",
        "The spec went back to the stable revision: the rollout ends as an abort does, and in peace.",
        IN_FLIGHT,
        guards.reverted,
        acts.abort_because(
            "RevertedToStable", "RolloutAborted", acts.says("the spec went back to the stable revision")
        ),
    ),
    Row(
        "user-abort",
        "spec.rollout.abort names this attempt: it is rejected.",
        IN_FLIGHT,
        guards.abort_asked,
        acts.abort_because("UserAbort", "RolloutAborted", acts.says("aborted by spec.rollout.abort")),
    ),
    Row(
        "superseded",
        "The spec names a third revision: this attempt ends as an abort does, then the third one begins.",
        IN_FLIGHT,
        guards.target_changed,
        acts.abort_because("Superseded", "RevisionSuperseded", acts.superseded_sentence),
    ),
    Row(
        "deadline",
        "No progress for spec.progressDeadlineSeconds: the revision is rejected, with the reason that a pod gives.",
        COMING_UP,
        guards.deadline_passed,
        acts.abort_because("ProgressDeadlineExceeded", "RolloutAborted", acts.deadline_sentence),
    ),
    Row(
        "analysis-lost",
        "No pod was ready during an analysis for spec.progressDeadlineSeconds: the revision is rejected as above.",
        frozenset({State.ANALYZING}),
        guards.analysis_lost,
        acts.abort_because("ProgressDeadlineExceeded", "RolloutAborted", acts.deadline_sentence),
    ),
    Row(
        "capacity-deadline",
        "No node took the pods for spec.strategy.capacity.deadlineSeconds: the revision is rejected.",
        WAITING,
        guards.capacity_deadline_passed,
        acts.abort_because("InsufficientCapacity", "RolloutAborted", acts.capacity_sentence),
    ),
    Row(
        "hook-rollback",
        "A rollback hook answered 2xx: the revision is rejected.",
        IN_FLIGHT,
        hooks.rollback_asked,
        acts.abort_because("HookRollback", "RolloutAborted", hooks.rollback_sentence),
    ),
    Row(
        "hook-failed",
        "A pre-rollout or rollout hook had no 2xx in any of its tries: the revision is rejected.",
        IN_FLIGHT,
        hooks.failed,
        acts.abort_because("HookFailed", "RolloutAborted", hooks.failure_sentence),
    ),
    Row(
        "analysis-failed",
        "An analysis, of the step or in the background, found the revision worse than stable, or one of its metrics "
        "missed its limits: it is rejected.",
        IN_FLIGHT,
        guards.analysis_failed,
        acts.fail_analysis,
    ),
    Row(
        "promote-full",
        "spec.rollout.promoteFull names this revision: its remaining steps are skipped. Readiness is still waited for.",
        IN_FLIGHT,
        guards.skip_asked,
        acts.skip,
    ),
    Row(
        "steps-changed",
        "The steps were edited: the weight stays, and the rollout goes on at the first step that reaches it.",
        IN_FLIGHT,
        guards.steps_changed,
        acts.remap,
    ),
    Row(
        "hook-answered",
        "A hook answered: what it said is written down before anything is done because of it.",
        IN_FLIGHT,
        hooks.is_answered,
        hooks.note,
    ),
    Row(
        "hook-due",
        "It is the turn of a gate or a check: the question is written down, then put.",
        IN_FLIGHT,
        hooks.newly_due,
        hooks.ask,
    ),
    Row(
        "analysis-begins",
        "It is the turn of an analysis and its template is there: counters are noted as they are.",
        IN_FLIGHT,
        guards.analysis_begins,
        acts.begin_analysis,
    ),
    Row(
        "analysis-counted",
        "Gateways counted more, or a provider answered: it is written down with the verdict, before anything is done "
        "because of it.",
        IN_FLIGHT,
        guards.analysis_news,
        acts.count_analysis,
    ),
    Row(
        "baseline-yields",
        "A pod of stable or, for spec.strategy.capacity.surgeTimeoutSeconds, of the step finds no node: the baseline's "
        "pods leave, and the attempt goes on without one.",
        STEPPING,
        guards.baseline_in_the_way,
        acts.yield_baseline,
    ),
    Row(
        "baseline-given-up",
        "The pods of the step are ready and, for spec.strategy.capacity.surgeTimeoutSeconds, those of the baseline are "
        "not: the attempt goes on without one.",
        frozenset({State.PROVISIONING}),
        guards.baseline_overdue,
        acts.give_up_baseline,
    ),
    Row(
        "no-capacity",
        "A pod that the step needs finds no node: the rollout waits, and says how much of what is missing.",
        COMING_UP,
        guards.no_node,
        acts.wait_for_capacity,
    ),
    Row("capacity-found", "Every pod found a node: the step goes on.", WAITING, guards.node_found, acts.go_on),
    Row(
        "capacity-fallback",
        "No node for spec.strategy.capacity.surgeTimeoutSeconds: pods of stable make way, where the policy allows it "
        "and it could help: not for a resource that no node has, nor against labels and taints.",
        WAITING,
        guards.may_fall_back,
        acts.fall_back,
    ),
    Row(
        "pods-ready",
        "The pods of the step are ready and stable carries its share: gateways are told weight and header routes.",
        frozenset({State.PROVISIONING}),
        guards.pods_ready,
        acts.shift,
    ),
    Row(
        "pods-lost",
        "Pods were lost on the way: they are waited for again.",
        frozenset({State.SHIFTING}),
        guards.pods_lost,
        acts.provision,
    ),
    Row(
        "step-done",
        "Every ready gateway routes by the weight of the step: the next step begins.",
        frozenset({State.SHIFTING}),
        guards.weight_reached,
        acts.next_step,
    ),
    Row(
        "pause-over",
        "The pause lasted as long as it says, or spec.rollout.promote names it: the next step begins.",
        frozenset({State.PAUSED}),
        guards.pause_over,
        acts.resume,
    ),
    Row(
        "analysis-skipped",
        "spec.rollout.promote names the analysis step: the next step begins without a verdict.",
        frozenset({State.ANALYZING}),
        guards.analysis_skipped,
        acts.skip_analysis,
    ),
    Row(
        "analysis-passed",
        "No metric is worse than stable by its margin, and all that is measured is good: the next step begins.",
        frozenset({State.ANALYZING}),
        guards.analysis_passed,
        acts.pass_analysis,
    ),
    Row(
        "analysis-inconclusive",
        "maxDuration is over without a verdict, or a metric ended inconclusive: the template's onInconclusive pauses, "
        "goes on or rejects.",
        frozenset({State.ANALYZING}),
        guards.analysis_inconclusive,
        acts.end_inconclusive,
    ),
    Row(
        "promoted",
        "All pods are ready and every gateway sends all requests to them: the revision is stable.",
        frozenset({State.PROMOTING}),
        guards.fully_shifted,
        acts.promote,
    ),
    Row(
        "weight-returned",
        "No gateway sends requests to the rejected revision any more.",
        frozenset({State.ABORTING}),
        guards.target_left,
        acts.settle,
    ),
    Row(
        "retry",
        "spec.rollout.retry names a further attempt of the rejected revision: it begins.",
        frozenset({State.ABORTED}),
        guards.retry_asked,
        acts.retry,
    ),
    Row(
        "reverted-after-abort",
        "The spec describes the stable revision again: the rejection is settled.",
        frozenset({State.ABORTED}),
        guards.reverted,
        acts.forget,
    ),
    Row(
        "changed-after-abort",
        "The spec names a further revision: its rollout begins.",
        frozenset({State.ABORTED}),
        guards.target_changed,
        acts.start,
    ),
)
