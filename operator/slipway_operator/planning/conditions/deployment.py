"""Conditions about the ModelDeployment itself: its spec, what serves, and its rollout."""

from slipway_operator.api.v1alpha1.status import Condition, SleepState, State
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type
from slipway_operator.planning.facts import causes, downloads, model_name, scheduling, serving
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.message import initializing, overdue, sentence, stable_sentence
from slipway_operator.planning.scaling import sleep
from slipway_operator.planning.sizing import capacity

NO_READY_PODS = "NoReadyPods"


def _pods_failing(before: Condition | None, now: Condition | None) -> Event | None:
    """Why pods are not ready, when the cause differs from the former one."""
    if now is None or not _has_new_reason(before, now) or now.reason not in causes.REASONS:
        return None
    return Event("Warning", "PodsFailing", f"{now.reason}: {now.message}")


def _not_serving(before: Condition | None, now: Condition | None) -> Event | None:
    """Why ready pods do not serve, when the reason differs from the former one."""
    if now is None or not _has_new_reason(before, now) or now.reason not in serving.REASONS:
        return None
    return Event("Warning", "NotServing", f"{now.reason}: {now.message}")


def _has_new_reason(before: Condition | None, now: Condition) -> bool:
    return before is None or before.reason != now.reason


# False is the plan of reporting/refused.py, whose Event is one for each new spec and not for each change.
@condition_type("Accepted", rank=10, event=None)
def accepted(_: ConditionFacts) -> ConditionState:
    """True in every plan that follows the spec."""
    return ConditionState(True, "Valid", "the spec is valid")


@condition_type(serving.READY, rank=40, event=_not_serving, starting=frozenset({NO_READY_PODS}), without_spec=True)
def ready(facts: ConditionFacts) -> ConditionState:
    """A newer table without acknowledgement changes nothing: the former one has the same pods."""
    course, at, traffic = facts.course, facts.at, facts.traffic
    if at.asleep:
        return ConditionState(True, "Asleep", "the next request waits until it is awake")
    if at.sleep and at.sleep.state is SleepState.WAKING and not sleep.is_late(at):
        return ConditionState(True, "Waking", "requests wait for the first pod")
    if at.ready(_serving(course)) == 0 or traffic is None:
        return ConditionState(False, NO_READY_PODS, "no pod of the serving revision is ready")
    if trouble := serving.trouble(course, at):
        return ConditionState(False, *trouble)
    if traffic.generation <= 1 and not at.traffic_synced:
        return ConditionState(False, "GatewaysBehind", "no gateway knows the model yet")
    name = f" for {model_name.model(at)}" if model_name.is_elsewhere(at) else ""
    return ConditionState(True, serving.SERVING, f"requests{name} are served")


@condition_type("Available", rank=30, event=_pods_failing, starting=frozenset({causes.PLAIN}), without_spec=True)
def available(facts: ConditionFacts) -> ConditionState:
    """Whether the serving revision has all its pods."""
    at, revision = facts.at, _serving(facts.course)
    if at.asleep:
        return ConditionState(True, "Asleep", "it has no pods until the next request")
    ready_pods, replicas = at.ready(revision), at.replicas
    counted = f"{min(ready_pods, replicas)} of {replicas} pods of revision {revision} are ready"
    if ready_pods >= replicas:
        return ConditionState(replicas > 0, "PodsReady" if replicas > 0 else causes.PLAIN, counted)
    cause = at.cause(revision)
    why = cause.message if cause else downloads.sentence(at, revision)
    return ConditionState(False, cause.reason if cause else causes.PLAIN, f"{counted}; {why}" if why else counted)


@condition_type("Progressing", rank=70, event=None)
def progressing(facts: ConditionFacts) -> ConditionState:
    """Whether the rollout makes progress, or none is due."""
    course, at, sizes = facts.course, facts.at, facts.sizes
    rollout = course.rollout
    if rollout is None:
        return ConditionState(True, "RolloutCompleted", f"revision {course.stable} is stable")
    late = course.state is State.INITIALIZING and overdue(course, at)
    holds = course.state is not State.ABORTED and not late
    if rollout.abort:
        return ConditionState(holds, rollout.abort.reason, rollout.abort.message)
    if late:
        return ConditionState(holds, "ProgressDeadlineExceeded", initializing(course, at, sizes))
    return ConditionState(holds, str(rollout.state), sentence(course, at, sizes))


# The state of the rollout, which REASON shows meanwhile, is that gateways apply a weight.
@condition_type(serving.TRAFFIC_SYNCED, rank=None, event=None, without_spec=True)
def traffic_synced(facts: ConditionFacts) -> ConditionState:
    """Whether every ready gateway routes by the newest table."""
    acked, gateways = facts.at.acknowledged
    synced = facts.at.traffic_synced and facts.traffic is not None
    text = f"{acked} of {gateways} ready gateways route by the present table"
    return ConditionState(synced, "Acknowledged" if synced else "Waiting", text)


# Why pods of stable are not ready is the reason of Available.
@condition_type("StableHealthy", rank=None, event=None)
def stable_healthy(facts: ConditionFacts) -> ConditionState:
    """Whether the stable revision carries its weight."""
    course, sizes = facts.course, facts.sizes
    text = stable_sentence(course, facts.at, sizes)
    if course.stable is not None and sizes.stable_carries:
        return ConditionState(True, "Carries", text)
    return ConditionState(False, "StableLost" if sizes.stable_lost else "PodsMissing", text)


@condition_type("CanaryHealthy", rank=20, event=_pods_failing)
def canary_healthy(facts: ConditionFacts) -> ConditionState | None:
    """The problem of the revision under test, and whether stable still serves; only where there are both."""
    course, at = facts.course, facts.at
    if not course.stable or not course.target:
        return None
    cause = at.cause(course.target) if at.ready(course.target) < facts.sizes.needed else None
    if cause is None or cause.reason == causes.PLAIN:
        return ConditionState(True, "AsExpected", f"no pod of revision {course.target} is in trouble")
    serves = f"; stable {course.stable} serves on with {at.ready(course.stable)} of {at.replicas} pods"
    return ConditionState(False, cause.reason, cause.message + (serves if at.ready(course.stable) else ""))


@condition_type("CapacityAvailable", rank=80, event=None)
def capacity_available(facts: ConditionFacts) -> ConditionState:
    """Whether every pod has a node."""
    course, at = facts.course, facts.at
    short = _unschedulable(course, at)
    if course.state is State.CAPACITY_WAIT or short:
        revision = short[0] if short else _live(course)[0]
        cause = at.cause(revision)
        reason = cause.reason if cause and cause.reason in causes.UNPLACED else scheduling.TOO_LITTLE_FREE
        return ConditionState(False, reason, capacity.shortage(at, facts.sizes.mode, revision))
    return ConditionState(True, "Scheduled", "every pod has a node")


def _unschedulable(course: Course, at: Situation) -> list[str]:
    workloads = ((revision, at.workload(revision)) for revision in _live(course))
    return [revision for revision, workload in workloads if workload and workload.unschedulable]


def _live(course: Course) -> list[str]:
    return [revision for revision in (course.target, course.stable) if revision]


def _serving(course: Course) -> str | None:
    return course.stable or course.target


TYPES = (
    accepted,
    ready,
    available,
    progressing,
    traffic_synced,
    stable_healthy,
    canary_healthy,
    capacity_available,
)
