"""The plan for a spec that is invalid or not allowed: pods and routes stay, the status says if requests are served."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from slipway_contracts.route_table import Traffic
from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.status import Condition, Phase, Status
from slipway_operator.model.cluster import observed as cluster
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Event, Plan
from slipway_operator.model.deployment import adapter_spec, admin_policy
from slipway_operator.model.deployment.spec import Invalid, parse
from slipway_operator.planning.conditions import table
from slipway_operator.planning.conditions.condition_type import ConditionFacts
from slipway_operator.planning.conditions.deployment import accepted
from slipway_operator.planning.conditions.transitions import READ_BY_KSTATUS, awaited, carry_over, condition, failed
from slipway_operator.planning.facts import needs, registry, restore, serving
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.reporting.status import generation_of
from slipway_operator.planning.sizing.sizes import Sizes, sizes_of
from slipway_operator.planning.sizing.traffic import next_traffic


def refused(obj: Json, status: Status, observed: Observed, problem: Invalid, now: datetime) -> Plan:
    """A plan that keeps everything unchanged, and reports why."""
    generation = generation_of(obj)
    served = _served(obj, status, observed, now)
    traffic, kept, serving_s = _looked_after(*served, obj) if served else (status.traffic, (), None)
    # What an adapter lacks may come with the same apply, and a registry may be away; anything else needs a person.
    for_tools = awaited if problem.reason in (*adapter_spec.REASONS, *registry.PASSING) else failed
    fresh = (
        condition(accepted.name, False, problem.reason, problem.message, now),
        *kept,
        for_tools(problem.reason, problem.message, now),
    )
    missing_s = needs.LOOK_AGAIN_S if problem.reason in (*needs.REASONS, *registry.REASONS) else None
    changed = status.observed_generation != generation
    return Plan(
        status=replace(
            status,
            observed_generation=generation,
            phase=Phase.DEGRADED,
            reason=problem.reason,
            message=problem.message,
            traffic=traffic,
            conditions=carry_over(_with_others(fresh, status), status.conditions),
        ),
        events=(_event(problem),) if changed else (),
        requeue_after_s=min((pause for pause in (serving_s, missing_s) if pause is not None), default=None),
    )


def _event(problem: Invalid) -> Event:
    match problem.reason:
        case admin_policy.NOT_ALLOWED:
            return Event("Warning", "NotAllowed", problem.message)
        case admin_policy.UNKNOWN_TYPE | admin_policy.DEVICE_CONFLICT | needs.CLAIMS_NOT_SERVED:
            return _event_of_devices(problem)
        case admin_policy.NO_NODE_CACHE:
            return Event("Warning", "ModelCacheNotConfigured", problem.message)
        case cluster.NOT_INSTALLED:
            return Event("Warning", "LeaderWorkerSetNotInstalled", problem.message)
        case cluster.FORBIDDEN:
            return Event("Warning", "LeaderWorkerSetForbidden", problem.message)
        case adapter_spec.NO_DEPLOYMENT | adapter_spec.NO_ROOM:
            return Event("Warning", "AdapterNotServed", problem.message)
    is_of_registry = problem.reason in registry.REASONS
    return (
        Event("Warning", "RegistryNotResolved", problem.message)
        if is_of_registry
        else Event("Warning", "InvalidSpec", problem.message)
    )


def _event_of_devices(problem: Invalid) -> Event:
    match problem.reason:
        case admin_policy.UNKNOWN_TYPE:
            return Event("Warning", "UnknownAcceleratorType", problem.message)
        case admin_policy.DEVICE_CONFLICT:
            return Event("Warning", "AcceleratorConflict", problem.message)
    return Event("Warning", "ResourceClaimsNotServed", problem.message)


def _served(obj: Json, status: Status, observed: Observed, now: datetime) -> tuple[Course, Situation] | None:
    """The serving revision, by its record instead of the spec; None where it has no record."""
    first = status.rollout.revision if status.rollout else None
    revision = status.stable_revision if status.stable_revision in observed.snapshots else first
    snapshot, workload = observed.snapshots.get(revision or ""), observed.workloads.get(revision or "")
    plain = {"model": {"uri": "file:///"}, "replicas": workload.desired if workload else 1}
    spec = parse({"metadata": obj["metadata"], "spec": plain})
    if revision is None or snapshot is None or isinstance(spec, Invalid):
        return None
    spec = replace(spec, inputs=snapshot.inputs)
    traffic = restore.restored(status, spec, observed, revision, now).traffic
    seen = replace(status, stable_revision=revision, traffic=traffic)
    uid = str(obj["metadata"].get("uid", ""))
    return Course(stable=revision), Situation(spec, revision, revision, seen, observed, now, uid, status.sleep)


def _looked_after(
    course: Course, at: Situation, obj: Json
) -> tuple[Traffic | None, tuple[Condition, ...], float | None]:
    """The serving revision's table, the conditions about it, and the seconds until the next reconcile, if any."""
    sizes = sizes_of(course, at)
    traffic = _table(course, at, sizes)
    kept = table.conditions(ConditionFacts(course, at, sizes, traffic, obj), table.WITHOUT_SPEC)
    return traffic, kept, _look_again_s(course, at, traffic)


def _table(course: Course, at: Situation, sizes: Sizes) -> Traffic | None:
    """The present table; a new one to the serving revision where it was lost, or names a revision without pods."""
    table = at.status.traffic
    names = [item.revision for item in table.backends if item.weight] if table else []
    if table and all(name in at.observed.workloads for name in names):
        acked, ready = at.acknowledged
        return replace(table, acknowledged=f"{acked}/{ready}")
    return next_traffic(course, at, sizes, at.spec.inputs.model.name) if at.ready(course.stable) else table


def _with_others(fresh: Sequence[Condition], status: Status) -> list[Condition]:
    known = {item.type for item in fresh} | READ_BY_KSTATUS
    return [*fresh, *(item for item in status.conditions if item.type not in known)]


def _look_again_s(course: Course, at: Situation, traffic: Traffic | None) -> float | None:
    """Seconds until the next reconcile: gateways send no event when they have a new table."""
    waits = traffic != at.status.traffic or not at.traffic_synced
    return serving.POLL_S if waits else serving.look_again_s(course, at)
