"""The conditions of the status: derived from decisions, never an input of one."""

from slipway_contracts.route_table import Traffic
from slipway_operator.api.v1alpha1.status import Condition, SleepState, State
from slipway_operator.planning.facts import causes, downloads, scheduling, serving
from slipway_operator.planning.facts.conditions import condition
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.reporting import model_name
from slipway_operator.planning.reporting.message import initializing, overdue, sentence, stable_sentence
from slipway_operator.planning.scaling import sleep
from slipway_operator.planning.sizing import capacity
from slipway_operator.planning.sizing.sizes import Sizes


def conditions(course: Course, at: Situation, sizes: Sizes, traffic: Traffic | None) -> list[Condition]:
    """All conditions as they are now; that of the canary only where there is one."""
    revision = _serving(course)
    healthy = course.stable is not None and sizes.stable_carries
    rows = (
        ("Accepted", True, "Valid", "the spec is valid"),
        ("Ready", *_readiness(course, at, traffic)),
        ("Available", *_availability(revision, at)),
        ("Progressing", _progressing(course, at), *_progress_reason(course, at, sizes)),
        ("TrafficSynced", *_synchrony(at, traffic)),
        ("StableHealthy", healthy, _stable_reason(sizes, healthy=healthy), stable_sentence(course, at, sizes)),
        *([("CanaryHealthy", *_canary_health(course, at, sizes))] if course.stable and course.target else []),
        ("CapacityAvailable", *_capacity(course, at, sizes)),
    )
    return [condition(kind, holds, reason, text, at.now) for kind, holds, reason, text in rows]


def _stable_reason(sizes: Sizes, *, healthy: bool) -> str:
    if healthy:
        return "Carries"
    return "StableLost" if sizes.stable_lost else "PodsMissing"


def _progressing(course: Course, at: Situation) -> bool:
    if course.rollout is None:
        return True
    return course.state is not State.ABORTED and not (course.state is State.INITIALIZING and overdue(course, at))


def _progress_reason(course: Course, at: Situation, sizes: Sizes) -> tuple[str, str]:
    rollout = course.rollout
    if rollout is None:
        return "RolloutCompleted", f"revision {course.stable} is stable"
    if rollout.abort:
        return rollout.abort.reason, rollout.abort.message
    if course.state is State.INITIALIZING and overdue(course, at):
        return "ProgressDeadlineExceeded", initializing(course, at, sizes)
    return str(rollout.state), sentence(course, at, sizes)


def _readiness(course: Course, at: Situation, traffic: Traffic | None) -> tuple[bool, str, str]:
    """The condition Ready. A newer table without acknowledgement changes nothing: the former one has the same pods."""
    if at.asleep:
        return True, "Asleep", "the next request waits until it is awake"
    if at.sleep and at.sleep.state is SleepState.WAKING and not sleep.is_late(at):
        return True, "Waking", "requests wait for the first pod"
    if at.ready(_serving(course)) == 0 or traffic is None:
        return False, "NoReadyPods", "no pod of the serving revision is ready"
    if unserved := serving.trouble(course, at):
        return False, *unserved
    if traffic.generation <= 1 and not at.traffic_synced:
        return False, "GatewaysBehind", "no gateway knows the model yet"
    return (
        True,
        serving.SERVING,
        f"requests for {model_name.model(at)} are served" if model_name.is_elsewhere(at) else "requests are served",
    )


def _availability(revision: str | None, at: Situation) -> tuple[bool, str, str]:
    if at.asleep:
        return True, "Asleep", "it has no pods until the next request"
    ready, wanted = at.ready(revision), at.replicas
    counted = f"{min(ready, wanted)} of {wanted} pods of revision {revision} are ready"
    if ready >= wanted:
        return wanted > 0, "PodsReady" if wanted > 0 else causes.PLAIN, counted
    cause = at.cause(revision)
    why = cause.message if cause else downloads.sentence(at, revision)
    return False, cause.reason if cause else causes.PLAIN, f"{counted}; {why}" if why else counted


def _canary_health(course: Course, at: Situation, sizes: Sizes) -> tuple[bool, str, str]:
    """The condition CanaryHealthy: the problem of the revision under test, and whether stable still serves."""
    cause = at.cause(course.target) if at.ready(course.target) < sizes.needed else None
    if cause is None or cause.reason == causes.PLAIN:
        return True, "AsExpected", f"no pod of revision {course.target} is in trouble"
    serves = f"; stable {course.stable} serves on with {at.ready(course.stable)} of {at.replicas} pods"
    return False, cause.reason, cause.message + (serves if at.ready(course.stable) else "")


def _synchrony(at: Situation, traffic: Traffic | None) -> tuple[bool, str, str]:
    acked, gateways = at.acknowledged
    synced = at.traffic_synced and traffic is not None
    text = f"{acked} of {gateways} ready gateways route by the present table"
    return synced, "Acknowledged" if synced else "Waiting", text


def _capacity(course: Course, at: Situation, sizes: Sizes) -> tuple[bool, str, str]:
    revisions = [name for name in (course.target, course.stable) if name]
    short = [name for name in revisions if (found := at.workload(name)) and found.unschedulable]
    if course.state is State.CAPACITY_WAIT or short:
        revision = short[0] if short else revisions[0]
        cause = at.cause(revision)
        known = cause is not None and cause.reason in causes.UNPLACED
        word = cause.reason if cause and known else scheduling.TOO_LITTLE_FREE
        return False, word, capacity.shortage(at, sizes.mode, revision)
    return True, "Scheduled", "every pod has a node"


def _serving(course: Course) -> str | None:
    return course.stable or course.target
