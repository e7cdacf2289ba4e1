"""The complete status that a plan writes; it replaces the former one."""

from dataclasses import replace

from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.status import (
    MOST_REVISIONS,
    EngineStatus,
    RevisionStatus,
    Rollout,
    Status,
)
from slipway_operator.model import labels
from slipway_operator.model.engine_types import capabilities_of
from slipway_operator.model.inputs.pod_inputs import SLIPWAY, PodInputs
from slipway_operator.planning.conditions.condition_type import ConditionFacts
from slipway_operator.planning.conditions.table import conditions
from slipway_operator.planning.decided import Decided, PlanSettings
from slipway_operator.planning.facts import accuracy, downloads, error_budget, groups, model_name, registry, weights
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.message import message
from slipway_operator.planning.reporting import standby_pods, summary
from slipway_operator.planning.rollout import argo
from slipway_operator.planning.scaling import objective
from slipway_operator.planning.sizing import baseline
from slipway_operator.planning.sizing.replicas import scale_down_at
from slipway_operator.planning.sizing.sizes import Sizes


def generation_of(obj: Json) -> int:
    """metadata.generation: it grows with each change of the spec."""
    return int(obj["metadata"].get("generation", 0))


def status_of(decided: Decided, at: Situation, obj: Json, settings: PlanSettings) -> Status:
    """The complete status."""
    course, sizes, desired = decided.course, decided.sizes, decided.desired
    generation = generation_of(obj)
    shown = conditions(ConditionFacts(course, at, sizes, decided.traffic, obj))
    live = [item for item in (course.stable, course.target) if item]
    return Status(
        observed_generation=generation,
        phase=summary.phase(course, at, sizes),
        message=message(course, at, sizes),
        step=summary.step(course.rollout),
        weight=_shown_weight(course, at),
        ready=summary.ready_of_wanted(at, {name: desired[name] for name in live}),
        model=model_name.model(at),
        endpoint=settings.endpoint,
        # Pods that a rollout adds for a time are no capacity: an autoscaler that counted them would keep them.
        replicas=min(at.replicas, sum(item.replicas for name, item in at.observed.workloads.items() if name in live)),
        selector=None if at.spec.inputs.base else labels.live_selector(at.name, live, grouped=_is_grouped(at)),
        current_revision=at.current,
        stable_revision=course.stable,
        previous_revision=course.previous,
        canary_revision=course.target if course.stable else None,
        rollout=_shown(course, sizes),
        traffic=decided.traffic,
        sleep=at.sleep,
        slo=error_budget.counted(at),
        autoscaling=objective.shown(at),
        accuracy=accuracy.counted(course, at),
        registry=registry.status_of(at),
        standby=standby_pods.shown(decided, at),
        revisions=tuple(_revision_status(decided, at, name) for name in _listed(decided, at)),
        aborted_revisions=course.aborted,
        decisions=course.decisions,
        collision_count=at.status.collision_count,
        pause_conditions=argo.pause_conditions(course, at.spec, at.status),
        controller_pause=argo.controller_pause(course),
        ended=decided.ended,
        conditions=shown,
        reason=summary.reason(shown, course.rollout, at),
        lease=settings.lease or None,
    )


def _is_grouped(at: Situation) -> bool:
    return groups.used(at.spec, at.observed)


def _shown(course: Course, sizes: Sizes) -> Rollout | None:
    rollout = course.rollout
    return replace(rollout, token=rollout.step_token, capacity_mode=sizes.mode) if rollout else None


def _shown_weight(course: Course, at: Situation) -> int | None:
    """The canary's weight as acknowledged; until the gateways follow, the former value."""
    if course.target is None or course.stable is None:
        return None
    return at.weight(course.target) if at.traffic_synced else at.status.weight or 0


def _revision_status(decided: Decided, at: Situation, name: str) -> RevisionStatus:
    course, sizes, traffic = decided.course, decided.sizes, decided.traffic
    roles = {name: "old", course.target: "canary", course.stable: "stable"}
    role = "baseline" if baseline.is_one(course, at, sizes, name) else roles[name]
    weight = traffic.weight(name) if traffic else 0
    workload = at.workload(name)
    loaded = weights.of(at.observed.snapshots.get(labels.what_runs(name)), workload) if workload else None
    return RevisionStatus(
        revision=name,
        role=role,
        replicas=decided.desired[name],
        ready=at.ready(name),
        weight=weight,
        version=_version(at, name),
        registry=registry.uri_of(at, labels.what_runs(name)),
        # Only for retired ones: for the others it changes with every request, and each change would be a write.
        inflight=at.observed.inflight(name) if role == "old" else None,
        replica_set_uid=_uid(at, name),
        standby_uid=_standby_uid(at, name),
        scale_down_at=scale_down_at(course, at, sizes, name, weight) if role == "old" else None,
        commit=(loaded.commit or None) if loaded else None,
        digest=loaded.digest if loaded else None,
        engine=_engine(at, name),
        fetching=downloads.shown(at, name),
        nodes=downloads.nodes(at, name),
    )


def _listed(decided: Decided, at: Situation) -> list[str]:
    """The revisions that a status has room for: lasting ones first, then those that leave."""
    course, desired = decided.course, decided.desired
    beside = (name for name in desired if baseline.is_one(course, at, decided.sizes, name))
    lasting = {course.stable, course.target, *beside}
    return sorted(sorted(desired, key=lambda name: (name not in lasting, name))[:MOST_REVISIONS])


def _uid(at: Situation, name: str) -> str | None:
    workload = at.workload(name)
    return workload.uid or None if workload else None


def _standby_uid(at: Situation, name: str) -> str | None:
    workload = at.observed.standby.get(name)
    return workload.uid or None if workload else None


def _version(at: Situation, name: str) -> str | None:
    inputs = _inputs(at, name)
    return inputs.model.version if inputs else None


def _engine(at: Situation, name: str) -> EngineStatus | None:
    inputs = _inputs(at, name)
    if inputs is None or inputs.engine.type == SLIPWAY:
        return None
    return EngineStatus(inputs.engine.type, capabilities_of(inputs.engine))


def _inputs(at: Situation, name: str) -> PodInputs | None:
    """What a revision runs; for a new one it is read from the spec until its snapshot exists."""
    snapshot = at.observed.snapshots.get(labels.what_runs(name))
    return snapshot.inputs if snapshot else at.spec.inputs if name == at.current else None
