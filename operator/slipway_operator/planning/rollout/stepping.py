"""Rows that carry a rollout from step to step: pods, weight, pauses, and steps that users skip or edit."""

from dataclasses import replace

from slipway_operator.api.v1alpha1.status import Rollout, State
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.strategy import Pause, Ramp, TwinAnalysis
from slipway_operator.planning.facts.revision import steps_hash
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of, step_now
from slipway_operator.planning.rollout.progress import (
    entering,
    may_step,
    next_step,
    pause_ends,
    pausing,
    place,
    provisioned,
)
from slipway_operator.planning.rollout.row import IN_FLIGHT, PAUSED, PROVISIONING, SHIFTING, Outcome, row
from slipway_operator.planning.sizing import baseline, canary, gates
from slipway_operator.planning.sizing.sizes import Sizes
from slipway_operator.planning.sizing.traffic import step_weight


@row(
    "promote-full",
    "spec.rollout.promoteFull names this attempt: its remaining steps are skipped. Readiness is still waited for.",
    IN_FLIGHT,
)
def promote_full(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    """Applies while steps remain, or gates that hold the promotion: these are skipped with the steps."""
    rollout = rollout_of(course)
    left = rollout.state is not State.PROMOTING or gates.holds_weight(course, at, sizes.mode)
    if not _is_named(rollout, at.spec.intents.promote_full) or rollout.skip_steps or not left:
        return None
    skipped = entering(replace(rollout, skip_steps=True), at, rollout.steps)
    text = f"the steps of revision {rollout.revision} are skipped, as requested"
    return replace(course, rollout=skipped), (Event("Normal", "SkipSteps", text),)


def _is_named(rollout: Rollout, token: str | None) -> bool:
    """Whether a token names the attempt; a revision alone, as former releases had it, is its first attempt."""
    return token == rollout.attempt_token or (token == rollout.revision and rollout.attempt == 1)


@row(
    "steps-changed",
    "The steps were edited: the weight stays, and the rollout goes on at the first step that reaches it.",
    IN_FLIGHT,
)
def steps_changed(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    """Steps that come from trafficPercent start again at the first one, so their weight may also decrease."""
    rollout, strategy = rollout_of(course), at.spec.strategy
    if rollout.steps_hash == steps_hash(strategy.steps):
        return None
    index = 0 if strategy.by_hand else canary.step_reaching(strategy.steps, at.weight(rollout.revision))
    if rollout.skip_steps:
        index = len(strategy.steps)
    renewed = replace(rollout, steps=len(strategy.steps), steps_hash=steps_hash(strategy.steps))
    text = f"the steps were edited: going on at step {min(index + 1, renewed.steps)} of {renewed.steps}"
    entered = entering(renewed, at, index)
    return replace(course, rollout=entered), (Event("Normal", "StepsChanged", text), *pausing(entered))


@row(
    "pods-ready",
    "The pods of the step are ready and stable carries its share: gateways get weight and header routes.",
    PROVISIONING,
)
def pods_ready(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    ready = at.ready(rollout.revision) >= sizes.enough and not baseline.is_awaited(course, at, sizes)
    if not ready or not may_step(course, at, sizes) or gates.holds_shift(course, at, sizes.mode):
        return None
    return replace(course, rollout=replace(rollout, state=State.SHIFTING)), ()


@row(
    "pods-lost",
    "Pods were lost on the way: they are waited for again.",
    SHIFTING,
)
def pods_lost(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    if at.ready(rollout.revision) >= sizes.enough:
        return None
    provisioning = replace(rollout, state=State.PROVISIONING, progress="", progress_at=at.now)
    return replace(course, rollout=provisioning), ()


@row(
    "step-done",
    "Every ready gateway routes by the weight of the step: the next step begins, or the comparison of pairs or a ramp.",
    SHIFTING,
)
def step_done(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    reached = at.weight(course.target) == step_weight(course, at, sizes) and at.traffic_synced
    if not reached or not may_step(course, at, sizes) or gates.holds_step(course, at, sizes.mode):
        return None
    if isinstance(step_now(at.spec, rollout_of(course)), TwinAnalysis | Ramp):
        return provisioned(course, at)
    return next_step(course, at)


@row(
    "pause-over",
    "The pause lasted for its duration, or spec.rollout.promote names it: the next step begins.",
    PAUSED,
)
def pause_over(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    if at.holds or at.replicas == 0:
        return None
    if at.spec.intents.promote != rollout.step_token:
        step = step_now(at.spec, rollout)
        timed = isinstance(step, Pause) and step.duration_s is not None
        if not timed or at.now < pause_ends(rollout, at) or not may_step(course, at, sizes):
            return None
    text = f"revision {rollout.revision} goes on after the pause at {place(rollout)}"
    entered, events = next_step(course, at)
    return entered, (Event("Normal", "RolloutResumed", text), *events)
