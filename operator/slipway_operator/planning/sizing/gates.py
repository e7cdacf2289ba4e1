"""Hooks that must pass before a rollout continues. A hook has passed when the status, as read, records it."""

from collections.abc import Iterable, Iterator

from slipway_operator.api.v1alpha1.hooks import HookOutcome, HookState, HookType
from slipway_operator.api.v1alpha1.status import Mode, Rollout, State
from slipway_operator.model.deployment.hooks import Hook
from slipway_operator.model.deployment.strategy import SetWeight
from slipway_operator.planning.facts import error_budget
from slipway_operator.planning.facts.situation import Course, Situation, step_now
from slipway_operator.planning.sizing import canary

Matter = tuple[HookType, str]  # a type of hook, and what the call is about

START: Matter = (HookType.CONFIRM_ROLLOUT, "start")
PODS: Matter = (HookType.PRE_ROLLOUT, "pods")
PROMOTION: Matter = (HookType.CONFIRM_PROMOTION, "promotion")


def listens(course: Course) -> Rollout | None:
    """The rollout that calls are about: in flight, with a stable revision to roll back to."""
    rollout = course.rollout
    first = rollout is None or rollout.state is State.INITIALIZING or course.stable is None
    return rollout if rollout and rollout.in_flight and not first else None


def past_steps(rollout: Rollout, at: Situation) -> bool:
    """Whether all steps are done: what is left is the promotion."""
    return rollout.step_index >= len(at.spec.strategy.steps)


def holds_pods(course: Course, at: Situation, mode: Mode) -> bool:
    """Whether the new revision may not have further pods yet."""
    return missing(course, at, before_pods(course, at, mode)) is not None


def holds_shift(course: Course, at: Situation, mode: Mode) -> bool:
    """Whether ready pods may not have their first weight yet."""
    checked = () if mode is Mode.RECREATE else (PODS,)
    return _new(course, at) and missing(course, at, (START, *checked)) is not None


def holds_promotion(course: Course, at: Situation) -> bool:
    """Whether the steps are done and the promotion is not confirmed."""
    rollout = course.rollout
    held = rollout is not None and past_steps(rollout, at) and at.weight(course.target) < 100
    return held and missing(course, at, [PROMOTION]) is not None


def holds_step(course: Course, at: Situation, mode: Mode) -> bool:
    """Whether the present step has a check that did not pass yet."""
    return missing(course, at, after_weight(course, at, mode)) is not None


def ceiling(course: Course, at: Situation, mode: Mode, weight: int) -> int:
    """The weight in percent, or the one in force where a higher one is not confirmed, or a spent budget holds it."""
    present = at.weight(course.target)
    held = weight > present and (holds_weight(course, at, mode) or error_budget.holds(course, at))
    return present if held else weight


def holds_weight(course: Course, at: Situation, mode: Mode) -> bool:
    """Whether the new revision may not get more requests yet."""
    return missing(course, at, before_weight(course, at, mode)) is not None


def before_pods(course: Course, at: Situation, mode: Mode) -> Iterator[Matter]:
    """Calls before pods are created. Where the only pod is replaced, the new one gets all requests at once.

    So calls about weight come before its pod too, except for the check of ready pods.
    """
    if not _new(course, at):
        return
    if mode is not Mode.RECREATE:
        yield START
    else:
        yield from (matter for matter in before_weight(course, at, mode) if matter != PODS)


def before_weight(course: Course, at: Situation, mode: Mode) -> Iterator[Matter]:
    """Calls, in order, before the new revision gets more requests."""
    goal = goal_weight(course, at, mode)
    if _new(course, at):
        yield START
        yield PODS
    if goal > at.weight(course.target):
        yield HookType.CONFIRM_TRAFFIC_INCREASE, f"weight {goal}"
        if goal == 100:
            yield PROMOTION


def after_weight(course: Course, at: Situation, mode: Mode) -> Iterator[Matter]:
    """Calls once every gateway routes by the weight of the present step."""
    rollout = course.rollout
    if rollout and isinstance(step_now(at.spec, rollout), SetWeight):
        yield HookType.ROLLOUT, f"step {rollout.step_index + 1}, weight {goal_weight(course, at, mode)}"


def goal_weight(course: Course, at: Situation, mode: Mode) -> int:
    """Percent of new requests that the new revision gets by the rollout's present step; 100 past the steps."""
    if course.rollout is None or past_steps(course.rollout, at):
        return 100
    weight = canary.weight_now(at.spec.strategy.steps, course.rollout)
    return 100 if weight and mode is Mode.RECREATE else weight


def missing(course: Course, at: Situation, matters: Iterable[Matter]) -> tuple[Hook, str] | None:
    """The first hook that has not passed, with what its call is about. Skipped steps call none.

    Without hooks `matters` is not evaluated.
    """
    rollout = listens(course) if at.spec.hooks else None
    if rollout is None or rollout.skip_steps:
        return None
    remembered = _remembered(rollout, at)
    calls = ((hook, about) for kind, about in matters for hook in at.spec.hooks if hook.type is kind)
    return next(((hook, about) for hook, about in calls if not _passed(remembered, hook, about)), None)


def _new(course: Course, at: Situation) -> bool:
    """Whether no request goes to the new revision."""
    return at.weight(course.target) == 0


def _remembered(rollout: Rollout, at: Situation) -> tuple[HookState, ...]:
    """The hooks in the status as read: a response that is not written yet has no effect."""
    written = at.status.rollout
    return written.hooks if written and written.attempt_token == rollout.attempt_token else ()


def _passed(remembered: tuple[HookState, ...], hook: Hook, about: str) -> bool:
    passed = (hook.name, hook.type, about, HookOutcome.PASSED)
    return any((state.name, state.type, state.about, state.outcome) == passed for state in remembered)
