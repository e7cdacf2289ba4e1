"""The message of the status: what is happening, what the rollout waits for, and why."""

from collections.abc import Callable
from datetime import datetime, timedelta

from slipway_contracts.api.times import format_time
from slipway_operator.api.v1alpha1.status import Mode, Rollout, State
from slipway_operator.model.analysis.spec import OnInconclusive
from slipway_operator.model.deployment.strategy import Pause, Ramp
from slipway_operator.planning.analysis import findings, ramping, runs
from slipway_operator.planning.facts import downloads, error_budget, model_name, references, serving
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of, step_now
from slipway_operator.planning.rollout import hooks
from slipway_operator.planning.rollout.progress import pause_ends
from slipway_operator.planning.scaling import sleep
from slipway_operator.planning.sizing import baseline, canary, capacity
from slipway_operator.planning.sizing.replicas import retired, room_for_target
from slipway_operator.planning.sizing.sizes import Sizes

_CHOICES = {
    OnInconclusive.PAUSE: "pauses",
    OnInconclusive.CONTINUE: "goes on",
    OnInconclusive.ABORT: "is rejected",
    OnInconclusive.PROMOTE_IF: "pauses",
}


def message(course: Course, at: Situation, sizes: Sizes) -> str:
    """The present activity, what the rollout waits for, and why."""
    parts = (
        references.sentence(at.missing),
        "held by spec.paused; " if at.spec.paused and course.rollout else "",
        error_budget.sentence(course, at),
        f"held: {at.observed.hold.message}; " if at.observed.hold and course.rollout else "",
        sentence(course, at, sizes),
        _mirrored(at),
        _rolled_back(course, at),
        baseline.sentence(course, at, sizes),
        _within(sizes),
        _unsynced(at),
        serving.sentence(course, at),
        _draining(course, at, sizes),
        model_name.sentence(at),
    )
    return "".join(parts)


def _rolled_back(course: Course, at: Situation) -> str:
    held = at.rolled_back and at.wanted in (course.stable, course.target)
    return f"; rollback to it holds in place of {at.current}, which spec.model describes" if held else ""


def _idle(course: Course, at: Situation, sizes: Sizes) -> str:
    if slept := sleep.sentence(course, at):
        return slept
    if at.replicas == 0:
        return f"scaled to zero; revision {course.stable} serves again when spec.replicas is raised"
    return f"serving revision {course.stable}: {_pods(course.stable, at.replicas, at)}"


def initializing(course: Course, at: Situation, sizes: Sizes) -> str:
    if at.replicas == 0:
        return "scaled to zero; the first revision comes up when spec.replicas is raised"
    target = rollout_of(course).revision
    late = "no progress within the deadline; " if overdue(course, at) else ""
    return f"{late}first revision {target} comes up: {_pods(target, at.replicas, at)}"


def _provisioning(course: Course, at: Situation, sizes: Sizes) -> str:
    target, needed = rollout_of(course).revision, sizes.needed
    if at.replicas == 0:
        return f"{_step_of(course)}: scaled to zero; the rollout goes on when spec.replicas is raised"
    if room_for_target(course, at, sizes) < needed:
        return f"{_step_of(course)}: revision {target} waits until pods of other revisions have left"
    if at.ready(target) >= needed and baseline.is_awaited(course, at, sizes):
        why = _why(at, baseline.name(course))
        return f"{_step_of(course)}: revision {target} is ready and waits for its baseline{why}"
    if at.ready(target) >= needed:
        return f"{_step_of(course)}: {stable_sentence(course, at, sizes)}"
    return f"{_step_of(course)}: revision {target} comes up: {_pods(target, needed, at)}"


def _capacity_wait(course: Course, at: Situation, sizes: Sizes) -> str:
    rollout = rollout_of(course)
    since = format_time(rollout.capacity_since or at.now)
    lacking = capacity.shortage(at, sizes.mode, rollout.revision)
    return f"{_step_of(course)}: revision {rollout.revision} waits for capacity since {since}: {lacking}"


def _shifting(course: Course, at: Situation, sizes: Sizes) -> str:
    target = rollout_of(course).revision
    if not sizes.stable_carries:
        return f"{_step_of(course)}: {stable_sentence(course, at, sizes)}"
    weight = canary.weight_now(at.spec.strategy.steps, rollout_of(course))
    return f"{_step_of(course)}: the weight of revision {target} goes to {weight}"


def _paused(course: Course, at: Situation, sizes: Sizes) -> str:
    rollout = rollout_of(course)
    step = step_now(at.spec, rollout)
    share = f"{_step_of(course)}: revision {rollout.revision} has weight {at.weight(rollout.revision)}"
    share += _without(course, at, sizes)
    if isinstance(step, Pause) and step.duration_s is not None:
        return f"{share}; pausing until {format_time(pause_ends(rollout, at))}"
    undecided = f"; no verdict: {_last_words(rollout)}" if runs.step_of(rollout, at) else ""
    return f"{share}{undecided}; waits for a promotion: set spec.rollout.promote to {rollout.step_token}"


def _last_words(rollout: Rollout) -> str:
    verdict = rollout.analysis.verdict if rollout.analysis else None
    return f"{verdict.reason}: {verdict.message}" if verdict else "nothing was counted"


def _analyzing(course: Course, at: Situation, sizes: Sizes) -> str:
    rollout = rollout_of(course)
    share = f"{_step_of(course)}: revision {rollout.revision} has weight {at.weight(rollout.revision)}"
    share += _without(course, at, sizes) + _cut_off(at, rollout.revision) + _braked(rollout)
    until = f"until {format_time(runs.ends_at(rollout, at))}"
    if at.replicas > 0 and not sizes.stable_carries:
        return f"{share}; {stable_sentence(course, at, sizes)}"
    if why := runs.problem(course, at):
        return f"{share}; the analysis waits {until}: {why}"
    step, verdict = runs.step_of(rollout, at), findings.sentence(runs.verdict_of_step(course, at))
    name, then = (step.template, _then(course, at, step.template)) if step else ("", "")
    ramp = rollout.analysis.ramp if rollout.analysis and isinstance(step, Ramp) else None
    if ramp and ramp.passed_at:
        bake = f"bakes until {format_time(ramp.bake_until)}" if ramp.bake_until else f"bakes at {ramp.weight}"
        return f"{share}; it has passed and {bake}: {verdict}"
    ramped = f"; {ramping.sentence(ramp)}" if ramp and ramp.weight else ""
    return f"{share}{ramped}; analysis {name}, {until}, {then}: {verdict}"


def _then(course: Course, at: Situation, template: str) -> str:
    """What happens at the end of an analysis without a verdict."""
    spec = runs.template(at, template).spec
    choice = spec.on_inconclusive if spec else OnInconclusive.PAUSE
    if choice is OnInconclusive.PROMOTE_IF and spec and spec.promote_if_extra is not None:
        return f"then it goes on with at most {spec.promote_if_extra:g} extra bad responses per 1,000, else pauses"
    return f"then it {_CHOICES[choice]}"


def _braked(rollout: Rollout) -> str:
    return " because it is many times slower than stable while it warms up" if canary.is_braked(rollout) else ""


def _without(course: Course, at: Situation, sizes: Sizes) -> str:
    """The pods that the revision under test lacks for its step; empty when it lacks none."""
    if at.replicas == 0:
        return "; scaled to zero: the rollout goes on when spec.replicas is raised"
    target, needed = rollout_of(course).revision, sizes.needed
    return "" if at.ready(target) >= needed else f"; {_pods(target, needed, at)}"


def _cut_off(at: Situation, revision: str) -> str:
    """How many gateways send the revision no requests, for the message: meanwhile nothing is counted there."""
    cut = sum(gateway.cut_off == revision for gateway in at.observed.gateways if gateway.ready)
    return f"; {cut} of {at.acknowledged[1]} gateways send it nothing, for it fails hard" if cut else ""


def _promoting(course: Course, at: Situation, sizes: Sizes) -> str:
    target = rollout_of(course).revision
    return f"promoting revision {target}: {_pods(target, at.replicas, at)}, weight {at.weight(target)}"


def _aborting(course: Course, at: Situation, sizes: Sizes) -> str:
    rollout = rollout_of(course)
    why = rollout.abort.message if rollout.abort else ""
    left = at.weight(rollout.revision)
    returning = f"; weight {left} returns to stable {course.stable}" if left else ""
    blocked = "; waits for ready pods of stable" if left and at.ready(course.stable) == 0 else ""
    return f"rejecting revision {rollout.revision}: {why}{returning}{blocked}"


def _aborted(course: Course, at: Situation, sizes: Sizes) -> str:
    rollout = rollout_of(course)
    why = rollout.abort.message if rollout.abort else ""
    serves = sleep.sentence(course, at) or f"serving stable {course.stable}"
    return f"{serves}; revision {rollout.revision} was rejected: {why}"


_SENTENCES: dict[State | None, Callable[[Course, Situation, Sizes], str]] = {
    None: _idle,
    State.INITIALIZING: initializing,
    State.PROVISIONING: _provisioning,
    State.CAPACITY_WAIT: _capacity_wait,
    State.SHIFTING: _shifting,
    State.PAUSED: _paused,
    State.ANALYZING: _analyzing,
    State.PROMOTING: _promoting,
    State.ABORTING: _aborting,
    State.ABORTED: _aborted,
}


def sentence(course: Course, at: Situation, sizes: Sizes) -> str:
    """The message of the state, or what the rollout waits for, because that is more specific."""
    held = runs.holds(course, at)
    unwatched = f"waits for its background analysis: {held}" if held and course.state is not State.ANALYZING else None
    if unwatched and runs.is_undecided(course, at):
        unwatched += "; spec.rollout.promoteFull goes on without it, spec.rollout.abort rejects the revision"
    return hooks.sentence(course, at, sizes) or unwatched or _SENTENCES[course.state](course, at, sizes)


def overdue(course: Course, at: Situation) -> bool:
    rollout = course.rollout
    late = rollout is not None and at.elapsed_s(rollout.progress_at) >= at.spec.progress_deadline_s
    return late and rollout is not None and at.ready(rollout.revision) < at.replicas


def _step_of(course: Course) -> str:
    rollout = rollout_of(course)
    return f"step {min(rollout.step_index + 1, rollout.steps)} of {rollout.steps}"


def _pods(revision: str | None, wanted: int, at: Situation) -> str:
    ready = at.ready(revision)
    if ready > wanted:
        return f"{wanted} of {wanted} pods ready, {ready - wanted} more than wanted"
    return f"{ready} of {wanted} pods ready" + (_why(at, revision) if ready < wanted else "")


def _why(at: Situation, revision: str | None) -> str:
    return "".join(f"; {why}" for why in (at.trouble(revision), downloads.sentence(at, revision)) if why)


def stable_sentence(course: Course, at: Situation, sizes: Sizes) -> str:
    if course.stable is None:
        return "no revision was promoted yet"
    if sizes.stable_carries:
        return f"stable {course.stable} carries its weight"
    pods = f"{course.stable}: {_pods(course.stable, at.replicas, at)}"
    if sizes.stable_lost:
        return f"goes on without stable {pods}"
    since = course.rollout.stable_lost_at if course.rollout else None
    end = since + timedelta(seconds=at.spec.progress_deadline_s) if since else None
    return f"waits for pods of stable {pods}" + (f"; goes on without them from {format_time(end)}" if end else "")


def _mirrored(at: Situation) -> str:
    mirrors = at.status.traffic.mirror_routes if at.status.traffic else ()
    shares = (f"{one.percentage} %{' of some' if one.match else ''}" for one in mirrors)
    mirrored = f"; mirrored to it: {', '.join(shares)} of stable's requests" if mirrors else ""
    shadow = at.status.traffic.twin_shadow if at.status.traffic else None
    return mirrored + (f"; copied to it and to its twin: {shadow.percentage} % of the sessions" if shadow else "")


def _within(sizes: Sizes) -> str:
    return "" if sizes.mode is Mode.SURGE else f"; capacity mode {sizes.mode}"


def _unsynced(at: Situation) -> str:
    if at.traffic_synced:
        return ""
    acked, ready = at.acknowledged
    return "; waits for a ready gateway" if ready == 0 else f"; {acked} of {ready} gateways acknowledged these weights"


def _draining(course: Course, at: Situation, sizes: Sizes) -> str:
    parts = [part for revision in retired(course, at, sizes) if (part := _leaving(at, revision))]
    return "; " + "; ".join(parts) if parts else ""


def _leaving(at: Situation, revision: str) -> str:
    workload = at.observed.workloads[revision]
    settled: datetime | None = at.status.scale_down_at(revision)
    if workload.replicas == 0 or settled is None:
        return ""
    if at.now < settled:
        return f"former revision {revision} leaves at {format_time(settled)}"
    inflight = at.observed.inflight(revision)
    if workload.desired > 0 and inflight != 0:
        counted = {None: "its requests", 1: "1 request"}.get(inflight, f"{inflight} requests")
        return f"former revision {revision} finishes {counted}"
    return f"former revision {revision} is leaving"
