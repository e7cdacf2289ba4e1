"""The table that gateways route by: weights follow readiness, and change only with a new generation."""

from dataclasses import replace

from slipway_contracts.route_table import Backend, HeaderRoute, MirrorRoute, Traffic
from slipway_contracts.twin_shadow import PredictionTolerance, TwinShadow
from slipway_operator.api.v1alpha1.status import Mode, Rollout, SleepState, State
from slipway_operator.model import labels
from slipway_operator.model.analysis.spec import AnalysisSpec
from slipway_operator.model.analysis.template import found
from slipway_operator.model.deployment.autoscaling import HOLD_S
from slipway_operator.model.deployment.strategy import CapacityPolicy, TwinAnalysis
from slipway_operator.model.engine_types import SALTED_ENGINES
from slipway_operator.model.inputs.pod_inputs import PodInputs
from slipway_operator.planning.facts import accuracy
from slipway_operator.planning.facts.recall import MAX_GENERATION, promoted_at
from slipway_operator.planning.facts.restore import is_shadow
from slipway_operator.planning.facts.situation import Course, Situation, step_now
from slipway_operator.planning.sizing import baseline, canary, gates
from slipway_operator.planning.sizing.sizes import Sizes

STEP_HOLDS_WEIGHT = (State.SHIFTING, State.PAUSED, State.ANALYZING)


def next_traffic(course: Course, at: Situation, sizes: Sizes, model: str) -> Traffic | None:
    """The table to publish; the one in force when nothing changes. None before any pod is ready."""
    backends = _backends(course, at, sizes)
    if not backends:
        return at.status.traffic
    present = at.status.traffic
    salt = course.rollout.salt if course.rollout else (present.salt if present else "")
    acked, ready = at.acknowledged
    mirrors = _mirror_routes(course, at)
    table = Traffic(0, model, salt, backends, _header_routes(course, at), _hold_s(at), mirror_routes=mirrors)
    logged = at.spec.inference_log
    shadow = _twin_shadow(course, at)
    table = replace(table, forward_headers=at.spec.forward_headers, twin_shadow=shadow, inference_log=logged)
    table = replace(table, slo=at.spec.slo.levels if at.spec.slo else None, accuracy=accuracy.counting(course, at))
    table = replace(table, prefix_affinity=at.spec.prefix_affinity or None, fallback=at.spec.fallback)
    first_byte_s = at.spec.first_byte_s if at.spec.fallback or at.spec.circuit_breaker else None
    table = replace(table, first_byte_seconds=first_byte_s, cache=at.spec.cache, external=at.spec.external)
    table = replace(table, circuit_breaker=at.spec.circuit_breaker, retry_budget=at.spec.retry_budget)
    table = replace(table, degradation=at.spec.degradation, guards=at.spec.guards)
    table = replace(table, generation_log=at.spec.generation_log)
    table = replace(table, base=at.spec.inputs.base or None)
    templates = _templates(course, at)
    feedback = any(spec.compares_feedback for spec in templates) or None
    predictions = any(spec.compares_predictions for spec in templates) or None
    table = _slept(replace(table, feedback=feedback, predictions=predictions), at)
    highest = _highest_generation(at)
    if present and present.generation >= highest and replace(present, generation=0, acknowledged="") == table:
        return replace(present, acknowledged=f"{acked}/{ready}")
    return replace(table, generation=highest + 1, acknowledged=f"0/{ready}")


def _highest_generation(at: Situation) -> int:
    """The highest generation in the status, in records, and of all that gateways route by or count for; 0 without any.

    Gateways count requests by generation. Where a status was lost or an old one restored, its number would be used
    twice, and counts of two tables would be added up. Numbers from MAX_GENERATION on are ignored: gateways report them
    after they accepted a forged table, and they identify tables by digest.
    """
    routed = [gateway.generation or 0 for gateway in at.observed.gateways]
    counted = [sample.generation for gateway in at.observed.gateways for sample in gateway.samples]
    written = at.status.traffic.generation if at.status.traffic else 0
    return max(
        number for number in (written, 0, promoted_at(at.observed), *routed, *counted) if number < MAX_GENERATION
    )


def _backends(course: Course, at: Situation, sizes: Sizes) -> tuple[Backend, ...]:
    """The backends, the revision under test first, so that a higher weight only moves users towards it."""
    if course.stable is None:
        target = course.target
        serves = target is not None and (at.ready(target) > 0 or at.weight(target) > 0)
        return (_backend(at, target, 100),) if target and serves else ()
    weight = gates.ceiling(course, at, sizes.mode, target_weight(course, at, sizes))
    if course.target is None:
        return (_backend(at, course.stable, 100),)
    beside = baseline.weight(course, at, sizes, weight)
    tested, stable = _backend(at, course.target, weight), _backend(at, course.stable, 100 - weight - beside)
    # The baseline is last, so that a higher weight moves no user between it and the canary.
    return (tested, stable, *((_backend(at, baseline.name(course), beside),) if beside else ()))


def target_weight(course: Course, at: Situation, sizes: Sizes) -> int:
    """Percent of new requests for the revision under test."""
    rollout = course.rollout
    if rollout is None or course.target is None:
        return 0
    present = at.weight(rollout.revision)
    returning = _returning(course, at, sizes, present)
    if rollout.state is State.ABORTING:
        return returning
    # A higher spec.replicas makes the pods of both sides too few: no weight moves until pods are ready to carry it.
    return max(_wanted_weight(course, at, sizes, present), returning)


def _wanted_weight(course: Course, at: Situation, sizes: Sizes, present: int) -> int:
    carried = _carried(course, at, sizes, present)
    if course.state is State.PROMOTING:
        return carried
    if course.state in STEP_HOLDS_WEIGHT or _goes_by_pods(course, at, sizes):
        return min(step_weight(course, at, sizes), carried)
    return min(present, carried)


def _carried(course: Course, at: Situation, sizes: Sizes, present: int) -> int:
    """Percent that the ready pods of the target carry; pods that reach the progress threshold count as all."""
    carriers, ready = sizes.carriers, at.ready(course.target)
    counted = max(ready, sizes.needed) if ready >= sizes.enough else ready
    return canary.weight_carried(counted, carriers) if carriers and ready else 0 if carriers else present


def step_weight(course: Course, at: Situation, sizes: Sizes) -> int:
    """Percent that the step sets; 100 where the only pod is the target's."""
    rollout = course.rollout
    if rollout is None:
        return 0
    if sizes.mode is Mode.RECREATE and at.ready(rollout.revision) > 0:
        return 100
    weight = canary.weight_now(at.spec.strategy.steps, rollout)
    return min(weight, canary.BRAKED) if canary.is_braked(rollout) else weight


def _goes_by_pods(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether weight moves pod by pod: the target gets its next one when stable, with less weight, removes one."""
    return sizes.tight and not at.holds and (sizes.stable_carries or sizes.stable_lost)


def _returning(course: Course, at: Situation, sizes: Sizes, present: int) -> int:
    """The target's weight if it only decreases, as fast as stable has ready pods for it; 0 without a ready pod (I5)."""
    if at.ready(course.target) == 0 or at.replicas == 0 or sizes.mode is Mode.RECREATE:
        return 0
    return min(present, 100 - canary.weight_carried(at.ready(course.stable), sizes.carriers))


def _header_routes(course: Course, at: Situation) -> tuple[HeaderRoute, ...]:
    """The header routes of the steps so far."""
    rollout = _served_by_steps(course, at)
    if rollout is None:
        return ()
    routes = canary.routes_at(at.spec.strategy.steps, _reached(rollout))
    return tuple(HeaderRoute(route.name, rollout.revision, route.match) for route in routes)


def _mirror_routes(course: Course, at: Situation) -> tuple[MirrorRoute, ...]:
    """The mirror routes of the steps so far; none once the steps are done: a promotion needs pods for real requests."""
    rollout = _served_by_steps(course, at)
    if rollout is None or rollout.state is State.PROMOTING:
        return ()
    mirrors = canary.mirrors_at(at.spec.strategy.steps, _reached(rollout))
    tolerance = _tolerance(course, at)
    return tuple(MirrorRoute(one.name, rollout.revision, one.percentage or 0, one.match, tolerance) for one in mirrors)


def _tolerance(course: Course, at: Situation) -> PredictionTolerance | None:
    """The tolerance for comparing predictions for mirrored requests, of the first template with one; None without."""
    specs = _templates(course, at)
    return next((tolerance for spec in specs if (tolerance := spec.tolerance(paired=False))), None)


def _twin_shadow(course: Course, at: Situation) -> TwinShadow | None:
    """The twin shadow of the present analysis of pairs; None without one, or without a ready pod to compare with."""
    rollout = _served_by_steps(course, at)
    run = course.runs.get("analysis") if rollout and rollout.state is State.ANALYZING else None
    if rollout is None or run is None or run.shadow is None or run.id != rollout.step_token:
        return None
    shadow, step = run.shadow.published, step_now(at.spec, rollout)
    if shadow and isinstance(step, TwinAnalysis):
        # The run keeps the table without its prompts, which the spec has already.
        shadow = replace(shadow, probes=step.probes)
    if shadow is None or (shadow.revision, shadow.twin) != (rollout.revision, course.stable) or not is_shadow(shadow):
        return None
    return shadow if at.ready(course.stable if shadow.reference else baseline.twin(course, at)) else None


def _templates(course: Course, at: Situation) -> list[AnalysisSpec]:
    """Templates by which the revision under test may be compared in any step.

    Gateways count for all of them from the start: feedback comes late, and bins of predictions take a while.
    """
    if _served_by_steps(course, at) is None:
        return []
    templates = (at.observed.templates.get(name) or found(name, None) for name in at.spec.strategy.templates)
    return [one.spec for one in templates if one.spec is not None]


def _served_by_steps(course: Course, at: Situation) -> Rollout | None:
    """The rollout whose steps route requests; None without a ready pod, and from a rejection on."""
    rollout = course.rollout
    if rollout is None or course.stable is None or not rollout.in_flight or at.ready(rollout.revision) == 0:
        return None
    return rollout


def _reached(rollout: Rollout) -> int:
    """Index of the last step that is in force; -1 before the first one is."""
    return rollout.step_index if rollout.state in STEP_HOLDS_WEIGHT else rollout.step_index - 1


def _hold_s(at: Situation) -> int | None:
    """Seconds that requests wait at a gateway where the only pod is replaced by another."""
    limits = at.spec.strategy.capacity
    return limits.hold_s if limits.policy is CapacityPolicy.ALLOW_RECREATE and at.replicas == 1 else None


def _slept(table: Traffic, at: Situation) -> Traffic:
    """The table of a deployment that is not awake: gateways hold requests until pods exist, for a limited time."""
    sleep, scaled = at.sleep, at.spec.autoscaling
    if sleep is None or sleep.state is SleepState.AWAKE:
        return table
    asleep = True if sleep.state is not SleepState.WAKING else None
    hold_s = scaled.hold_s if scaled else HOLD_S
    return replace(table, asleep=asleep, hold_seconds=hold_s, wake_seconds=sleep.expected_s or 0)


def _backend(at: Situation, revision: str, weight: int) -> Backend:
    return Backend(revision, weight, _version(at, revision) or revision, _engine(at, revision))


def _version(at: Situation, revision: str) -> str | None:
    """The version by the revision's record; of one whose record is lost, the version in the present table."""
    inputs, before = _inputs(at, revision), _in_table(at, revision)
    if inputs:
        return inputs.model.version
    return before.version if before else None


def _engine(at: Situation, revision: str) -> str | None:
    """The engine's type if gateways adapt requests to it; of a revision whose record is lost, that in the table."""
    inputs, before = _inputs(at, revision), _in_table(at, revision)
    if inputs and inputs.base:
        return at.spec.base_engine if at.spec.base_engine in SALTED_ENGINES else None
    if inputs:
        return inputs.engine.type if inputs.engine.type in SALTED_ENGINES else None
    return before.engine if before else None


def _inputs(at: Situation, revision: str) -> PodInputs | None:
    runs = labels.what_runs(revision)
    snapshot = at.observed.snapshots.get(runs)
    return (snapshot or at.spec).inputs if snapshot or runs == at.current else None


def _in_table(at: Situation, revision: str) -> Backend | None:
    table = at.status.traffic
    return next((one for one in table.backends if one.revision == revision), None) if table else None
