"""Rows about room for pods: waiting for nodes, falling back to the existing pods, and giving up a baseline."""

from dataclasses import replace

from slipway_operator.api.v1alpha1.status import Mode, State
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.strategy import CapacityPolicy
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of
from slipway_operator.planning.rollout.progress import place
from slipway_operator.planning.rollout.row import COMING_UP, PROVISIONING, STEPPING, WAITING, Outcome, row
from slipway_operator.planning.sizing import baseline, capacity, gates
from slipway_operator.planning.sizing.sizes import Sizes


@row(
    "baseline-yields",
    "A pod of stable or, for spec.strategy.capacity.surgeTimeoutSeconds, of the step finds no node: the baseline's "
    "pods leave, and the attempt goes on without one.",
    STEPPING,
)
def baseline_yields(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    """A rollout that waits for a node starts its wait again, because the baseline's nodes become free."""
    whose = baseline.stands_in_the_way(course, at, sizes)
    if whose is None:
        return None
    given_up, events = _without_baseline(course, f"pods of {whose} found no node")
    since = at.now if given_up.state is State.CAPACITY_WAIT else rollout_of(given_up).capacity_since
    return replace(given_up, rollout=replace(rollout_of(given_up), capacity_since=since)), events


@row(
    "baseline-given-up",
    "The pods of the step are ready and, for spec.strategy.capacity.surgeTimeoutSeconds, those of the baseline are "
    "not: the attempt goes on without one.",
    PROVISIONING,
)
def baseline_given_up(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout = rollout_of(course)
    alone = at.ready(rollout.revision) >= sizes.enough and baseline.is_awaited(course, at, sizes)
    if not alone or at.holds or at.now < baseline.given_up_at(rollout, at):
        return None
    why = at.trouble(baseline.name(course)) or "its pods give no reason"
    waited_s = at.spec.strategy.capacity.surge_timeout_s
    return _without_baseline(course, f"it was not ready {waited_s} s after the pods of the new revision: {why}")


@row(
    "no-capacity",
    "A pod that the step needs finds no node: the rollout waits. The message has the missing amounts.",
    COMING_UP,
)
def no_capacity(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    if not _lacks_capacity(course, at, sizes):
        return None
    rollout = replace(rollout_of(course), state=State.CAPACITY_WAIT, capacity_since=at.now)
    text = capacity.shortage(at, sizes.mode, rollout.revision)
    return replace(course, rollout=rollout), (Event("Warning", "CapacityUnavailable", text),)


@row(
    "capacity-found",
    "Every pod found a node: the step goes on.",
    WAITING,
)
def capacity_found(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    if _lacks_capacity(course, at, sizes):
        return None
    rollout = rollout_of(course)
    promoting = rollout.skip_steps or rollout.step_index >= rollout.steps
    state = State.PROMOTING if promoting else State.PROVISIONING
    found = replace(rollout, state=state, capacity_since=None, progress="", progress_at=at.now)
    return replace(course, rollout=found), ()


@row(
    "capacity-fallback",
    "No node for spec.strategy.capacity.surgeTimeoutSeconds: pods of stable make way, where the policy allows it "
    "and it could help: not for a resource that no node has, nor against labels and taints.",
    WAITING,
)
def capacity_fallback(course: Course, at: Situation, sizes: Sizes) -> Outcome | None:
    rollout, limits, mode = rollout_of(course), at.spec.strategy.capacity, capacity.fallback(at)
    if mode is None or limits.policy is CapacityPolicy.REQUIRE_SURGE or at.holds:
        return None
    helps = sizes.mode is Mode.SURGE and capacity.would_be_helped(at, rollout.revision)
    if not helps or at.elapsed_s(rollout.capacity_since or at.now) < limits.surge_timeout_s:
        return None
    text = f"no further pods for {limits.surge_timeout_s} s: going on in mode {mode}"
    fallen_back = replace(rollout, capacity_mode=mode, capacity_since=at.now)
    return replace(course, rollout=fallen_back), (Event("Warning", "CapacityModeChanged", text),)


def _lacks_capacity(course: Course, at: Situation, sizes: Sizes) -> bool:
    target = rollout_of(course).revision
    if gates.holds_pods(course, at, sizes.mode):  # the rollout waits for a gate, so no capacity deadline applies
        return False
    unplaced = capacity.lacks_node(at, target) or capacity.may_add_none(at, sizes.mode)
    return at.ready(target) < sizes.needed and unplaced


def _without_baseline(course: Course, why: str) -> Outcome:
    rollout = replace(rollout_of(course), without_baseline=why)
    text = f"revision {rollout.revision} goes on without a baseline at {place(rollout)}: {why}"
    return replace(course, rollout=rollout), (Event("Warning", "BaselineGivenUp", text),)
