"""What the status tells people: phase, message, step and conditions. Derived from decisions, never one itself."""

from collections.abc import Callable, Sequence
from datetime import datetime

from slipway_operator.api.v1alpha1.routes import Traffic
from slipway_operator.api.v1alpha1.status import Condition, Mode, Phase, Rollout, SleepState, State
from slipway_operator.model import wire
from slipway_operator.model.deployment.strategy import Pause
from slipway_operator.planning.analysis import findings, runs
from slipway_operator.planning.facts import causes, scheduling, serving
from slipway_operator.planning.facts.conditions import FOREIGN_OBJECTS, NAME_CONFLICT, UNKNOWN_FIELD, condition, is_ill
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of, step_now
from slipway_operator.planning.reporting import model_name
from slipway_operator.planning.rollout import hooks
from slipway_operator.planning.rollout.guards import analysis_ends, pause_ends
from slipway_operator.planning.scaling import sleep
from slipway_operator.planning.sizing import baseline, canary, capacity
from slipway_operator.planning.sizing.replicas import needed_replicas, retired, room_for_target


def phase(course: Course, at: Situation) -> Phase:
    """One word for `kubectl get`."""
    if course.state in (State.ABORTING, State.ABORTED):
        return Phase.DEGRADED
    if course.rollout is None:
        settled = _settled_phase(course, at)
        return Phase.DEGRADED if settled is Phase.HEALTHY and model_name.is_elsewhere(at) else settled
    if course.state is State.INITIALIZING:
        return _first_phase(course, at)
    waits = hooks.is_waiting(course, at) or runs.is_undecided(course, at)
    holds = course.state is State.PAUSED or at.spec.paused or waits
    return Phase.PAUSED if holds else Phase.PROGRESSING


def message(course: Course, at: Situation) -> str:
    """What is happening, what is waited for, and why."""
    sentence = _sentence(course, at)
    held = "held by spec.paused; " if at.spec.paused and course.rollout else ""
    about = (_rolled_back, baseline.sentence, _within, _unsynced, serving.sentence, _draining)
    return "".join((held, sentence, _mirrored(at), *(say(course, at) for say in about), model_name.sentence(at)))


def step(rollout: Rollout | None) -> str | None:
    """Step of how many, counted from 1, for `kubectl get`."""
    if rollout is None or rollout.steps == 0 or rollout.state is State.INITIALIZING:
        return None
    return f"{min(rollout.step_index + 1, rollout.steps)}/{rollout.steps}"


def conditions(course: Course, at: Situation, traffic: Traffic | None) -> list[Condition]:
    """All conditions as they are now; that of the canary only where there is one."""
    revision = _serving(course)
    healthy = course.stable is not None and capacity.stable_healthy(course, at)
    rows = (
        ("Accepted", True, "Valid", "the spec is valid"),
        ("Ready", *_readiness(course, at, traffic)),
        ("Available", *_availability(revision, at)),
        ("Progressing", _progressing(course, at), *_progress_reason(course, at)),
        ("TrafficSynced", *_synchrony(at, traffic)),
        ("StableHealthy", healthy, "Carries" if healthy else "PodsMissing", _stable_sentence(course, at)),
        *([("CanaryHealthy", *_canary_health(course, at))] if course.stable and course.target else []),
        ("CapacityAvailable", *_capacity(course, at)),
    )
    return [condition(kind, holds, reason, text, at.now) for kind, holds, reason, text in rows]


def reason(told: Sequence[Condition], rollout: Rollout | None) -> str | None:
    """One word for `kubectl get`: of the first condition that says what is wrong, else where a rollout is."""
    ill = {item.type: item.reason for item in told if is_ill(item) and item.reason not in _UNSAID}
    return next((ill[kind] for kind in _TELLING if kind in ill), str(rollout.state) if rollout else None)


def ready_of_wanted(at: Situation, desired: dict[str, int]) -> str:
    """Ready pods of those wanted, over all revisions that are to have pods."""
    return f"{sum(at.ready(revision) for revision in desired)}/{sum(desired.values())}"


# Conditions by how much they explain, and reasons that only say that something is on its way.
_OF_SERVING = ("Accepted", "CanaryHealthy", "Available", "Ready", NAME_CONFLICT)
_TELLING = (*_OF_SERVING, "Progressing", "CapacityAvailable", "Autoscaling", FOREIGN_OBJECTS, UNKNOWN_FIELD)
_UNSAID = frozenset({causes.PLAIN, "NoReadyPods", "Starting"})


def _rolled_back(course: Course, at: Situation) -> str:
    held = at.rolled_back and at.wanted in (course.stable, course.target)
    return f"; rollback to it holds in place of {at.current}, which spec.model describes" if held else ""


# --- sentences by state -----------------------------------------------------------------------------------------------


def _idle(course: Course, at: Situation) -> str:
    if slept := sleep.sentence(course, at):
        return slept
    if at.replicas == 0:
        return f"scaled to zero; revision {course.stable} serves again when spec.replicas is raised"
    return f"serving revision {course.stable}: {_pods(course.stable, at.replicas, at)}"


def _initializing(course: Course, at: Situation) -> str:
    if at.replicas == 0:
        return "scaled to zero; the first revision comes up when spec.replicas is raised"
    target = rollout_of(course).revision
    late = "no progress within the deadline; " if _overdue(course, at) else ""
    return f"{late}first revision {target} comes up: {_pods(target, at.replicas, at)}"


def _provisioning(course: Course, at: Situation) -> str:
    target, needed = rollout_of(course).revision, needed_replicas(course, at)
    if at.replicas == 0:
        return f"{_step_of(course)}: scaled to zero; the rollout goes on when spec.replicas is raised"
    if room_for_target(course, at) < needed:
        return f"{_step_of(course)}: revision {target} waits until pods of other revisions have left"
    if at.ready(target) >= needed and baseline.is_awaited(course, at):
        why = _why(at, baseline.name(course))
        return f"{_step_of(course)}: revision {target} is ready and waits for its baseline{why}"
    if at.ready(target) >= needed:
        return f"{_step_of(course)}: {_stable_sentence(course, at)}"
    return f"{_step_of(course)}: revision {target} comes up: {_pods(target, needed, at)}"


def _capacity_wait(course: Course, at: Situation) -> str:
    rollout = rollout_of(course)
    since = wire.format_time(rollout.capacity_since or at.now)
    lacking = capacity.shortage(course, at, rollout.revision)
    return f"{_step_of(course)}: revision {rollout.revision} waits for capacity since {since}: {lacking}"


def _shifting(course: Course, at: Situation) -> str:
    target = rollout_of(course).revision
    if not capacity.stable_healthy(course, at):
        return f"{_step_of(course)}: {_stable_sentence(course, at)}"
    asked = canary.weight_at(at.spec.strategy.steps, rollout_of(course).step_index)
    return f"{_step_of(course)}: the weight of revision {target} goes to {asked}"


def _paused(course: Course, at: Situation) -> str:
    rollout = rollout_of(course)
    step = step_now(at.spec, rollout)
    share = f"{_step_of(course)}: revision {rollout.revision} has weight {at.weight(rollout.revision)}"
    share += _without(course, at)
    if isinstance(step, Pause) and step.duration_s is not None:
        return f"{share}; pausing until {wire.format_time(pause_ends(rollout, at))}"
    undecided = f"; no verdict: {_last_words(rollout)}" if runs.step_of(rollout, at) else ""
    return f"{share}{undecided}; waits for a promotion: set spec.rollout.promote to {rollout.step_token}"


def _last_words(rollout: Rollout) -> str:
    verdict = rollout.analysis.verdict if rollout.analysis else None
    return f"{verdict.reason}: {verdict.message}" if verdict else "nothing was counted"


def _analyzing(course: Course, at: Situation) -> str:
    rollout = rollout_of(course)
    share = f"{_step_of(course)}: revision {rollout.revision} has weight {at.weight(rollout.revision)}"
    share += _without(course, at) + _cut_off(at, rollout.revision)
    until = f"until {wire.format_time(analysis_ends(rollout, at))}"
    if at.replicas > 0 and not capacity.stable_healthy(course, at):
        return f"{share}; {_stable_sentence(course, at)}"
    if why := runs.problem(course, at):
        return f"{share}; the analysis waits {until}: {why}"
    step = runs.step_of(rollout, at)
    name = step.template if step else ""
    return f"{share}; analysis {name}, {until}: {findings.sentence(runs.verdict_of_step(course, at))}"


def _without(course: Course, at: Situation) -> str:
    """What the revision under test lacks where its step needs pods; empty when it has what it needs."""
    if at.replicas == 0:
        return "; scaled to zero: the rollout goes on when spec.replicas is raised"
    target, needed = rollout_of(course).revision, needed_replicas(course, at)
    return "" if at.ready(target) >= needed else f"; {_pods(target, needed, at)}"


def _cut_off(at: Situation, revision: str) -> str:
    """Gateways that send the revision nothing: as long as they do, nothing counts there."""
    cut = sum(gateway.cut_off == revision for gateway in at.observed.gateways if gateway.ready)
    return f"; {cut} of {at.acknowledged[1]} gateways send it nothing, for it fails hard" if cut else ""


def _promoting(course: Course, at: Situation) -> str:
    target = rollout_of(course).revision
    return f"promoting revision {target}: {_pods(target, at.replicas, at)}, weight {at.weight(target)}"


def _aborting(course: Course, at: Situation) -> str:
    rollout = rollout_of(course)
    why = rollout.abort.message if rollout.abort else ""
    left = at.weight(rollout.revision)
    returning = f"; weight {left} returns to stable {course.stable}" if left else ""
    blocked = "; waits for ready pods of stable" if left and at.ready(course.stable) == 0 else ""
    return f"rejecting revision {rollout.revision}: {why}{returning}{blocked}"


def _aborted(course: Course, at: Situation) -> str:
    rollout = rollout_of(course)
    why = rollout.abort.message if rollout.abort else ""
    serves = sleep.sentence(course, at) or f"serving stable {course.stable}"
    return f"{serves}; revision {rollout.revision} was rejected: {why}"


_SENTENCES: dict[State | None, Callable[[Course, Situation], str]] = {
    None: _idle,
    State.INITIALIZING: _initializing,
    State.PROVISIONING: _provisioning,
    State.CAPACITY_WAIT: _capacity_wait,
    State.SHIFTING: _shifting,
    State.PAUSED: _paused,
    State.ANALYZING: _analyzing,
    State.PROMOTING: _promoting,
    State.ABORTING: _aborting,
    State.ABORTED: _aborted,
}


def _sentence(course: Course, at: Situation) -> str:
    """What is waited for explains the state better than the state itself."""
    held = runs.holds(course, at)
    unwatched = f"waits for its background analysis: {held}" if held and course.state is not State.ANALYZING else None
    if unwatched and runs.is_undecided(course, at):
        unwatched += "; spec.rollout.promoteFull goes on without it, spec.rollout.abort rejects the revision"
    return hooks.sentence(course, at) or unwatched or _SENTENCES[course.state](course, at)


# --- parts ------------------------------------------------------------------------------------------------------------


def _settled_phase(course: Course, at: Situation) -> Phase:
    ready = at.ready(course.stable)
    if at.asleep:
        return Phase.ASLEEP
    if at.sleep and at.sleep.state is SleepState.WAKING:
        return Phase.DEGRADED if sleep.is_late(at) else Phase.PROGRESSING
    if serving.trouble(course, at):
        return Phase.DEGRADED
    if ready >= at.replicas:
        return Phase.HEALTHY
    return Phase.PROGRESSING if ready > 0 else Phase.DEGRADED


def _first_phase(course: Course, at: Situation) -> Phase:
    if _overdue(course, at):
        return Phase.DEGRADED
    return Phase.PROGRESSING if at.ready(rollout_of(course).revision) else Phase.PENDING


def _overdue(course: Course, at: Situation) -> bool:
    rollout = course.rollout
    late = rollout is not None and at.elapsed_s(rollout.progress_at) >= at.spec.progress_deadline_s
    return late and rollout is not None and at.ready(rollout.revision) < at.replicas


def _serving(course: Course) -> str | None:
    return course.stable or course.target


def _step_of(course: Course) -> str:
    rollout = rollout_of(course)
    return f"step {min(rollout.step_index + 1, rollout.steps)} of {rollout.steps}"


def _pods(revision: str | None, wanted: int, at: Situation) -> str:
    ready = at.ready(revision)
    return f"{ready} of {wanted} pods ready" + (_why(at, revision) if ready < wanted else "")


def _why(at: Situation, revision: str | None) -> str:
    why = at.trouble(revision)
    return f"; {why}" if why else ""


def _stable_sentence(course: Course, at: Situation) -> str:
    if course.stable is None:
        return "no revision was promoted yet"
    if capacity.stable_healthy(course, at):
        return f"stable {course.stable} carries its weight"
    return f"waits for pods of stable {course.stable}: {_pods(course.stable, at.replicas, at)}"


def _progressing(course: Course, at: Situation) -> bool:
    if course.rollout is None:
        return True
    return course.state is not State.ABORTED and not (course.state is State.INITIALIZING and _overdue(course, at))


def _progress_reason(course: Course, at: Situation) -> tuple[str, str]:
    rollout = course.rollout
    if rollout is None:
        return "RolloutCompleted", f"revision {course.stable} is stable"
    if rollout.abort:
        return rollout.abort.reason, rollout.abort.message
    if course.state is State.INITIALIZING and _overdue(course, at):
        return "ProgressDeadlineExceeded", _initializing(course, at)
    return str(rollout.state), _sentence(course, at)


def _readiness(course: Course, at: Situation, traffic: Traffic | None) -> tuple[bool, str, str]:
    """A later table that is still on its way takes nothing from readiness: the former one routes to the same pods."""
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
        return True, "Asleep", "it is to have no pods until somebody asks"
    ready, wanted = at.ready(revision), at.replicas
    counted = f"{ready} of {wanted} pods of revision {revision} are ready"
    if ready >= wanted:
        return wanted > 0, "PodsReady" if wanted > 0 else causes.PLAIN, counted
    cause = at.cause(revision)
    return False, cause.reason if cause else causes.PLAIN, f"{counted}; {cause.message}" if cause else counted


def _canary_health(course: Course, at: Situation) -> tuple[bool, str, str]:
    """What ails the revision under test, and that the former one serves on, where it does."""
    cause = at.cause(course.target) if at.ready(course.target) < needed_replicas(course, at) else None
    if cause is None or cause.reason == causes.PLAIN:
        return True, "AsExpected", f"no pod of revision {course.target} is in trouble"
    serves = f"; stable {course.stable} serves on with {at.ready(course.stable)} of {at.replicas} pods"
    return False, cause.reason, cause.message + (serves if at.ready(course.stable) else "")


def _synchrony(at: Situation, traffic: Traffic | None) -> tuple[bool, str, str]:
    acked, gateways = at.acknowledged
    synced = at.traffic_synced and traffic is not None
    text = f"{acked} of {gateways} ready gateways route by the present table"
    return synced, "Acknowledged" if synced else "Waiting", text


def _mirrored(at: Situation) -> str:
    mirrors = at.status.traffic.mirror_routes if at.status.traffic else ()
    shares = (f"{one.percentage} %{' of some' if one.match else ''}" for one in mirrors)
    return f"; mirrored to it: {', '.join(shares)} of stable's requests" if mirrors else ""


def _within(course: Course, at: Situation) -> str:
    mode = capacity.mode(course, at)
    return "" if mode is Mode.SURGE else f"; capacity mode {mode}"


def _capacity(course: Course, at: Situation) -> tuple[bool, str, str]:
    revisions = [name for name in (course.target, course.stable) if name]
    short = [name for name in revisions if (found := at.workload(name)) and found.unschedulable]
    if course.state is State.CAPACITY_WAIT or short:
        revision = short[0] if short else revisions[0]
        cause = at.cause(revision)
        known = cause is not None and cause.reason in causes.UNPLACED
        word = cause.reason if cause and known else scheduling.TOO_LITTLE_FREE
        return False, word, capacity.shortage(course, at, revision)
    return True, "Scheduled", "every pod has a node"


def _unsynced(course: Course, at: Situation) -> str:
    if at.traffic_synced:
        return ""
    acked, ready = at.acknowledged
    return "; waits for a ready gateway" if ready == 0 else f"; {acked} of {ready} gateways acknowledged"


def _draining(course: Course, at: Situation) -> str:
    parts = [part for revision in retired(course, at) if (part := _leaving(at, revision))]
    return "; " + "; ".join(parts) if parts else ""


def _leaving(at: Situation, revision: str) -> str:
    workload = at.observed.workloads[revision]
    settled: datetime | None = at.status.scale_down_at(revision)
    if workload.replicas == 0 or settled is None:
        return ""
    if at.now < settled:
        return f"former revision {revision} leaves at {wire.format_time(settled)}"
    inflight = at.observed.inflight(revision)
    if workload.desired > 0 and inflight != 0:
        counted = {None: "its requests", 1: "1 request"}.get(inflight, f"{inflight} requests")
        return f"former revision {revision} finishes {counted}"
    return f"former revision {revision} is leaving"
