"""When a row of the rollout's table applies."""

from datetime import datetime, timedelta

from slipway_operator.api.v1alpha1.analysis_run import Outcome, Reason
from slipway_operator.api.v1alpha1.status import Mode, Rollout, State
from slipway_operator.model.deployment.strategy import Pause, Policy
from slipway_operator.planning.analysis import runs
from slipway_operator.planning.facts.revision import steps_hash
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of, step_now
from slipway_operator.planning.sizing import baseline, capacity, gates
from slipway_operator.planning.sizing.replicas import enough_replicas, needed_replicas
from slipway_operator.planning.sizing.traffic import asked_weight

HELD = "held"  # noted as progress while others are waited for
LOST = "lost"  # the same while an analysis has no ready pod to judge

IDLE = frozenset({None})
FIRST = frozenset({State.INITIALIZING})
WAITING = frozenset({State.CAPACITY_WAIT})
STEPPING = frozenset({State.PROVISIONING, State.SHIFTING, State.PAUSED, State.ANALYZING}) | WAITING
COMING_UP = frozenset({State.PROVISIONING, State.PROMOTING})
IN_FLIGHT = STEPPING | {State.PROMOTING}


def no_stable(course: Course, at: Situation) -> bool:
    return course.stable is None


def target_changed(course: Course, at: Situation) -> bool:
    return rollout_of(course).revision != at.wanted


def serves_but_changed(course: Course, at: Situation) -> bool:
    serves = at.weight(rollout_of(course).revision) == 100 and at.traffic_synced
    return serves and target_changed(course, at)


def unserved_and_changed(course: Course, at: Situation) -> bool:
    return at.weight(rollout_of(course).revision) == 0 and target_changed(course, at)


def fully_shifted(course: Course, at: Situation) -> bool:
    """All pods ready, all requests there, on every gateway."""
    target = rollout_of(course).revision
    enough = at.ready(target) >= max(enough_replicas(course, at), 1)
    return enough and at.weight(target) == 100 and at.traffic_synced and not at.spec.paused


def reverted(course: Course, at: Situation) -> bool:
    return at.wanted == course.stable


def abort_asked(course: Course, at: Situation) -> bool:
    return at.spec.intents.abort == rollout_of(course).attempt_token


def deadline_passed(course: Course, at: Situation) -> bool:
    rollout = rollout_of(course)
    waiting = at.ready(rollout.revision) < needed_replicas(course, at) and rollout.progress not in ("", HELD)
    return waiting and at.elapsed_s(rollout.progress_at) >= at.spec.progress_deadline_s


def analysis_lost(course: Course, at: Situation) -> bool:
    """Whether there was nothing to judge for as long as pods may take to come up."""
    rollout = rollout_of(course)
    lost = rollout.progress == LOST and has_none(course, at)
    return lost and at.elapsed_s(rollout.progress_at) >= at.spec.progress_deadline_s


def has_none(course: Course, at: Situation) -> bool:
    """Whether the revision under test needs pods and has no ready one."""
    return at.ready(rollout_of(course).revision) == 0 < needed_replicas(course, at)


def no_node(course: Course, at: Situation) -> bool:
    target = rollout_of(course).revision
    lacking = at.ready(target) < needed_replicas(course, at)
    if gates.holds_pods(course, at):  # a gate is waited for, and no deadline of capacity runs
        return False
    return lacking and (capacity.lacks_node(course, at, target) or capacity.may_add_none(course, at))


def node_found(course: Course, at: Situation) -> bool:
    return not no_node(course, at)


def _waited_s(course: Course, at: Situation) -> float:
    return at.elapsed_s(rollout_of(course).capacity_since or at.now)


def capacity_deadline_passed(course: Course, at: Situation) -> bool:
    return not at.spec.paused and _waited_s(course, at) >= at.spec.strategy.capacity.deadline_s


def may_fall_back(course: Course, at: Situation) -> bool:
    """Surge failed for long enough, and the spec allows to go on within the pods there are."""
    limits = at.spec.strategy.capacity
    allowed = limits.policy is not Policy.REQUIRE_SURGE and capacity.fallback(at) is not None
    helps = capacity.mode(course, at) is Mode.SURGE and capacity.would_be_helped(at, rollout_of(course).revision)
    return helps and allowed and not at.spec.paused and _waited_s(course, at) >= limits.surge_timeout_s


def steps_changed(course: Course, at: Situation) -> bool:
    return rollout_of(course).steps_hash != steps_hash(at.spec.strategy.steps)


def skip_asked(course: Course, at: Situation) -> bool:
    """While steps are left, or gates that hold the promotion: they are skipped with the steps."""
    rollout = rollout_of(course)
    left = rollout.state is not State.PROMOTING or gates.holds_weight(course, at)
    return at.spec.intents.promote_full == rollout.revision and left and not rollout.skip_steps


def may_step(course: Course, at: Situation) -> bool:
    free = not at.spec.paused and at.replicas > 0 and capacity.stable_healthy(course, at)
    return free and runs.holds(course, at) is None


def pods_ready(course: Course, at: Situation) -> bool:
    ready = at.ready(rollout_of(course).revision) >= enough_replicas(course, at) and not baseline.is_awaited(course, at)
    return may_step(course, at) and ready and not gates.holds_shift(course, at)


def baseline_in_the_way(course: Course, at: Situation) -> bool:
    return baseline.stands_in_the_way(course, at) is not None


def baseline_overdue(course: Course, at: Situation) -> bool:
    """The canary's pods are ready, and those of the baseline are not for as long as nodes are waited for."""
    rollout = rollout_of(course)
    alone = at.ready(rollout.revision) >= enough_replicas(course, at) and baseline.is_awaited(course, at)
    return alone and not at.spec.paused and at.now >= baseline.given_up_at(rollout, at)


def pods_lost(course: Course, at: Situation) -> bool:
    return at.ready(rollout_of(course).revision) < enough_replicas(course, at)


def weight_reached(course: Course, at: Situation) -> bool:
    rollout = rollout_of(course)
    reached = at.weight(rollout.revision) == asked_weight(course, at)
    return may_step(course, at) and reached and at.traffic_synced and not gates.holds_step(course, at)


def pause_over(course: Course, at: Situation) -> bool:
    rollout = rollout_of(course)
    if at.spec.paused or at.replicas == 0:
        return False
    if at.spec.intents.promote == rollout.step_token:
        return True
    step = step_now(at.spec, rollout)
    timed = isinstance(step, Pause) and step.duration_s is not None
    return timed and may_step(course, at) and at.now >= pause_ends(rollout, at)


def pause_ends(rollout: Rollout, at: Situation) -> datetime:
    """When a timed pause is over."""
    step = step_now(at.spec, rollout)
    duration_s = step.duration_s if isinstance(step, Pause) and step.duration_s is not None else 0
    return rollout.step_started_at + timedelta(seconds=duration_s)


def analysis_begins(course: Course, at: Situation) -> bool:
    return runs.next_beginning(course, at) is not None


def analysis_news(course: Course, at: Situation) -> bool:
    return runs.next_reading(course, at) is not None


def analysis_failed(course: Course, at: Situation) -> bool:
    return runs.failed(course, at) is not None


def analysis_skipped(course: Course, at: Situation) -> bool:
    asked = at.spec.intents.promote == rollout_of(course).step_token
    return asked and not at.spec.paused and at.replicas > 0


def analysis_passed(course: Course, at: Situation) -> bool:
    said, step = runs.verdict_of_step(course, at), runs.step_of(rollout_of(course), at)
    passed = said is not None and said.outcome is Outcome.PASS
    enough = step is not None and (not runs.lasts(course, at, step) or analysis_over(course, at))
    return passed and enough and may_step(course, at)


def analysis_inconclusive(course: Course, at: Situation) -> bool:
    """Its time is over without a verdict: nothing was counted, or too little. Or a metric ended without one."""
    said = runs.verdict_of_step(course, at)
    undecided = said is None or said.outcome is Outcome.INCONCLUSIVE
    ended = said is not None and said.reason is Reason.METRIC_INCONCLUSIVE
    return undecided and (ended or analysis_over(course, at)) and may_step(course, at)


def analysis_over(course: Course, at: Situation) -> bool:
    return at.now >= analysis_ends(rollout_of(course), at)


def analysis_ends(rollout: Rollout, at: Situation) -> datetime:
    """When the time of the present analysis step is over."""
    step = runs.step_of(rollout, at)
    return rollout.step_started_at + timedelta(seconds=step.max_duration_s if step else 0)


def target_left(course: Course, at: Situation) -> bool:
    return at.weight(rollout_of(course).revision) == 0 and at.traffic_synced


def retry_asked(course: Course, at: Situation) -> bool:
    rollout = rollout_of(course)
    revision, _, attempt = (at.spec.intents.retry or "").partition("/")
    return revision == rollout.revision == at.wanted and attempt.isdigit() and int(attempt) > rollout.attempt


def new_wanted(course: Course, at: Situation) -> bool:
    return at.wanted != course.stable
