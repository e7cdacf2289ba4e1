"""From what is asked, remembered and observed to what is to be done: the table of contents of all decisions."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from slipway_operator.api.v1alpha1.routes import Traffic
from slipway_operator.api.v1alpha1.status import (
    MOST_REVISIONS,
    Condition,
    RevisionStatus,
    Rollout,
    State,
    Status,
)
from slipway_operator.manifests.history import controller_revision
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.service import headless_service
from slipway_operator.manifests.workload import replica_set
from slipway_operator.model import labels, wire
from slipway_operator.model.cluster.observed import Child, Observed, Snapshot
from slipway_operator.model.cluster.plan import Create, Delete, Event, Plan, Scale
from slipway_operator.model.deployment.spec import Invalid, Json, parse
from slipway_operator.model.deployment.status import parse as parse_status
from slipway_operator.planning.analysis import measuring, runs
from slipway_operator.planning.facts import conditions, restore, revision, weights
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.reporting import describe, foreign, model_name, requeue, unknown_fields
from slipway_operator.planning.reporting.events import news, troubles
from slipway_operator.planning.reporting.refused import refused
from slipway_operator.planning.rollout import argo, hooks
from slipway_operator.planning.rollout.table import advance
from slipway_operator.planning.scaling import sleep
from slipway_operator.planning.scaling.autoscale import scaling
from slipway_operator.planning.sizing import baseline, capacity, restart
from slipway_operator.planning.sizing.replicas import desired_replicas, retired, scale_down_at
from slipway_operator.planning.sizing.traffic import next_traffic


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What the installation adds to every ModelDeployment."""

    server_image: str  # image of revisions whose spec names none
    endpoint: str  # base URL of the gateways for OpenAI clients
    lease: str = ""  # namespace/name of the Lease of the operator that plans; empty where none does


def plan(obj: Json, status: Status, observed: Observed, settings: PlanSettings, now: datetime) -> Plan:
    """One step towards what the spec asks for. Pure: the same arguments give the same plan.

    `now` is cut to whole seconds, as the status keeps them.
    """
    spec = parse(obj)
    now = now.replace(microsecond=0)
    generation = _generation(obj)
    if isinstance(spec, Invalid):
        return refused(obj, status, observed, spec.message, now)
    spec, translated = argo.translate(spec, obj.get("status") or {}, status)
    wanted, current = revision.wanted_revision(spec, observed.snapshots)
    read, status = status, restore.restored(status, spec, observed, wanted, now)
    owner = replace(Owner.of(obj), collision_count=status.collision_count or 0)
    at = Situation(spec, wanted, current, status, observed, now, owner.uid)
    before = _course(status)
    at = replace(at, sleep=sleep.next_sleep(before, at))
    course, decided = advance(before, at)
    ended, told = hooks.follow_end(before, course, at)
    traffic = next_traffic(course, at, spec.inputs.model.name)
    desired = desired_replicas(course, at)
    ignored = _ignored_intents(course, at) if generation != status.observed_generation else ()
    evicted = restart.evictions(course, at)
    gone = [name for name in retired(course, at) if _is_gone(at, name)]
    scaler = scaling(owner, at, obj)
    also = [*scaler.told, *unknown_fields.conditions(obj, now)]
    now_said = _conditions(course, at, traffic, also, generation)
    said = (*model_name.news(status.conditions, now_said), *unknown_fields.news(status.conditions, now_said))
    told_so = _status(course, at, traffic, desired, settings.endpoint, obj)
    reason = describe.reason(now_said, course.rollout)
    renewed = replace(told_so, ended=ended, conditions=now_said, reason=reason, lease=settings.lease or None)
    moved = (*news(course, at, desired, traffic, renewed.revisions, evicted), *sleep.news(course, at))
    return Plan(
        status=renewed,
        pins=weights.pins(owner.name, observed),
        create=_creations(owner, course, at, desired, settings),
        autoscaler=scaler.create,
        scale=_scalings(at, desired),
        delete=(*_deletions(course, at, gone), *scaler.delete),
        evict=(*evicted, *weights.evictions(observed)),
        events=(
            *restore.lost(read, status),
            *translated,
            *decided,
            *told,
            *moved,
            *troubles(status.conditions, now_said),
            *said,
            *ignored,
        ),
        calls=hooks.calls(owner, course, ended, at),
        questions=tuple(measuring.questions(owner, course, at, runs.under_way(course, at))),
        requeue_after_s=0.0 if course != before or at.sleep != status.sleep else requeue.after_s(course, at, traffic),
    )


def explain(obj: Json, observed: Observed, settings: PlanSettings, now: datetime) -> dict[str, Any]:
    """Everything that went into a plan and the plan itself, as JSON: a bug report that can be replayed."""
    status = parse_status(dict(obj.get("status") or {}))
    decided = plan(obj, status, observed, settings, now)
    return {
        "spec": wire.to_json(parse(obj)),
        "status": wire.to_json(status),
        "observed": wire.to_json(observed),
        "plan": wire.to_json(decided),
    }


def _course(status: Status) -> Course:
    return Course(
        status.rollout,
        status.stable_revision,
        status.previous_revision,
        status.aborted_revisions,
        status.decisions,
    )


def _generation(obj: Json) -> int:
    return int(obj["metadata"].get("generation", 0))


# --- status -----------------------------------------------------------------------------------------------------------


def _status(
    course: Course,
    at: Situation,
    traffic: Traffic | None,
    desired: dict[str, int],
    endpoint: str,
    obj: Json,
) -> Status:
    generation = _generation(obj)
    live = [item for item in (course.stable, course.target) if item]
    return Status(
        observed_generation=generation,
        phase=describe.phase(course, at),
        message=describe.message(course, at),
        step=describe.step(course.rollout),
        weight=_shown_weight(course, at),
        ready=describe.ready_of_wanted(at, {name: desired[name] for name in live}),
        model=model_name.model(at),
        endpoint=endpoint,
        # What a rollout adds for its time is no capacity: an autoscaler that counted it would ask for it for good.
        replicas=min(at.replicas, sum(item.replicas for name, item in at.observed.workloads.items() if name in live)),
        selector=labels.live_selector(obj["metadata"]["name"], live),
        current_revision=at.current,
        stable_revision=course.stable,
        previous_revision=course.previous,
        canary_revision=course.target if course.stable else None,
        rollout=_shown(course, at),
        traffic=traffic,
        sleep=at.sleep,
        revisions=tuple(
            _revision_status(course, at, traffic, name, desired[name]) for name in _listed(desired, course, at)
        ),
        aborted_revisions=course.aborted,
        decisions=course.decisions,
        collision_count=at.status.collision_count,
        pause_conditions=argo.pause_conditions(course, at.spec, at.status),
        controller_pause=argo.controller_pause(course),
    )


def _conditions(
    course: Course, at: Situation, traffic: Traffic | None, also: list[Condition], generation: int
) -> tuple[Condition, ...]:
    fresh = describe.conditions(course, at, traffic)
    named = model_name.condition(at.observed.standing, at.status.conditions, at.now)
    told = [*fresh, *also, *named, *foreign.condition(at.observed.foreign, at.now)]
    return conditions.carry_over(told, at.status.conditions, generation)


def _shown(course: Course, at: Situation) -> Rollout | None:
    rollout = course.rollout
    mode = capacity.mode(course, at)
    return replace(rollout, token=rollout.step_token, capacity_mode=mode) if rollout else None


def _shown_weight(course: Course, at: Situation) -> int | None:
    """The canary's weight as acknowledged: what was shown before stays until the gateways follow."""
    if course.target is None or course.stable is None:
        return None
    return at.weight(course.target) if at.traffic_synced else at.status.weight or 0


def _revision_status(course: Course, at: Situation, traffic: Traffic | None, name: str, desired: int) -> RevisionStatus:
    roles = {name: "old", course.target: "canary", course.stable: "stable"}
    role = "baseline" if baseline.is_one(course, at, name) else roles[name]
    weight = traffic.weight(name) if traffic else 0
    workload = at.workload(name)
    loaded = weights.of(at.observed.snapshots.get(labels.what_runs(name)), workload) if workload else None
    return RevisionStatus(
        revision=name,
        role=role,
        replicas=desired,
        ready=at.ready(name),
        weight=weight,
        version=_version(at, name),
        # Only of those that leave: of the others it changes with every request, and each change would be a write.
        inflight=at.observed.inflight(name) if role == "old" else None,
        replica_set_uid=_uid(at, name),
        scale_down_at=scale_down_at(course, at, name, weight) if role == "old" else None,
        commit=(loaded.commit or None) if loaded else None,
        digest=loaded.digest if loaded else None,
    )


def _listed(desired: dict[str, int], course: Course, at: Situation) -> list[str]:
    """The revisions that a status has room for: those that leave wait for their turn to be listed."""
    lasting = {course.stable, course.target, *(name for name in desired if baseline.is_one(course, at, name))}
    return sorted(sorted(desired, key=lambda name: (name not in lasting, name))[:MOST_REVISIONS])


def _uid(at: Situation, name: str) -> str | None:
    workload = at.workload(name)
    return workload.uid or None if workload else None


def _version(at: Situation, name: str) -> str | None:
    """The version for people; of a revision just begun the spec knows it before its snapshot exists."""
    snapshot = at.observed.snapshots.get(labels.what_runs(name))
    inputs = snapshot.inputs if snapshot else at.spec.inputs if name == at.current else None
    return inputs.model.version if inputs else None


# --- actions ----------------------------------------------------------------------------------------------------------


def _creations(
    owner: Owner, course: Course, at: Situation, desired: dict[str, int], settings: PlanSettings
) -> tuple[Create, ...]:
    """Snapshot first, workload last: a workload without its record could not be explained later."""
    target = None if course.state is State.ABORTING else course.target
    wanted = [name for name in (course.stable, target) if name]
    manifests: list[dict[str, Any]] = []
    for name in wanted:
        snapshot = at.observed.snapshots.get(name) or _new_snapshot(at, name, settings)
        if snapshot is None:
            continue
        if name not in at.observed.snapshots:
            manifests.append(controller_revision(owner, snapshot))
        if name not in at.observed.services:
            manifests.append(headless_service(owner, name))
        if at.workload(name) is None:
            manifests.append(replica_set(owner, snapshot, desired[name]))
    manifests += baseline.manifests(owner, course, at)
    uids = {item.revision: item.replica_set_uid for item in at.status.revisions}
    return tuple(
        Create(item, uids.get(_made_for(item)) if item["kind"] == "ReplicaSet" else None) for item in manifests
    )


def _made_for(manifest: Json) -> str:
    return str(manifest["metadata"]["labels"][labels.REVISION])


def _new_snapshot(at: Situation, name: str, settings: PlanSettings) -> Snapshot | None:
    """The record of the revision that the spec describes; another one's cannot be made up."""
    if name != at.current:
        return None
    return Snapshot(
        revision=name,
        ordinal=revision.next_ordinal(at.observed.snapshots),
        inputs=at.spec.inputs,
        image=at.spec.inputs.engine.image or settings.server_image,
        drain_timeout_s=at.spec.drain_timeout_s,
        template_version=revision.TEMPLATE_VERSION,
    )


def _scalings(at: Situation, desired: dict[str, int]) -> tuple[Scale, ...]:
    return tuple(
        Scale(workload.name, desired[name])
        for name, workload in sorted(at.observed.workloads.items())
        if desired[name] != workload.desired and not workload.stuck_deleting
    )


def _is_gone(at: Situation, name: str) -> bool:
    workload = at.observed.workloads[name]
    return workload.desired == 0 and workload.replicas == 0


def _deletions(course: Course, at: Situation, gone: list[str]) -> tuple[Delete, ...]:
    """Empty workloads with their services, and history beyond the limit."""
    observed = at.observed
    in_use = {course.stable, course.previous, at.current, at.wanted, *at.observed.workloads}
    in_use |= {course.rollout.revision} if course.rollout else set()
    forgotten = revision.forgotten(at.observed.snapshots, in_use, at.spec.revision_history_limit)
    return (
        *(Delete("v1", "Service", observed.services[name]) for name in gone if name in observed.services),
        *(Delete("apps/v1", "ReplicaSet", observed.workloads[name].name) for name in gone),
        *(Delete("apps/v1", "ControllerRevision", observed.snapshots[name].name) for name in forgotten),
        *(Delete(one.api_version, one.kind, one.name) for one in observed.spare if _may_go(one, at)),
    )


def _may_go(spare: Child, at: Situation) -> bool:
    """Pods only once the status as read sends requests to those of the ReplicaSet that stays."""
    if spare.kind != "ReplicaSet":
        return True
    uids = {item.revision: item.replica_set_uid for item in at.status.revisions}
    workload = at.workload(spare.revision)
    return workload is not None and uids.get(spare.revision) == workload.uid


# --- events -----------------------------------------------------------------------------------------------------------


def _ignored_intents(course: Course, at: Situation) -> tuple[Event, ...]:
    """An intent that names nothing in flight is a no-op; say so once, when it is new."""
    rollout, intents = course.rollout, at.spec.intents
    names = {rollout.attempt_token, rollout.step_token, rollout.revision} if rollout else set()
    asked = {"promote": intents.promote, "promoteFull": intents.promote_full}
    return tuple(
        Event("Normal", "ControlIgnored", f"spec.rollout.{field} names {token}, which is not in flight now")
        for field, token in asked.items()
        if token and token not in names and not _already_served(at, rollout, token)
    )


def _already_served(at: Situation, rollout: Rollout | None, token: str) -> bool:
    """A promotion that did its work stays in the spec and is no mistake."""
    name, _, rest = token.partition("/")
    if name in (at.status.stable_revision, at.status.previous_revision):
        return True
    served = rest.split("/")
    return rollout is not None and name == rollout.revision and len(served) == 2 and int(served[1]) < rollout.step_index
