"""The plan from spec, status and observed state: the overview of all decisions."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from slipway_contracts.api.writing import to_json
from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.deployment.spec import Invalid, Spec
from slipway_operator.model.deployment.status import parse as parse_status
from slipway_operator.planning.analysis import continuing, measuring, runs
from slipway_operator.planning.children import annotations, creations, deletions, scalings
from slipway_operator.planning.conditions import table
from slipway_operator.planning.decided import Decided, PlanSettings
from slipway_operator.planning.facts import groups, needs, references, registry, restore, revision, weights
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.reporting import events, requeue
from slipway_operator.planning.reporting.refused import refused
from slipway_operator.planning.reporting.status import generation_of, status_of
from slipway_operator.planning.rollout import argo, hook_calls
from slipway_operator.planning.rollout.table import advance
from slipway_operator.planning.scaling import sleep
from slipway_operator.planning.scaling.autoscale import scaling
from slipway_operator.planning.sizing import prefetching, replacement, standby
from slipway_operator.planning.sizing.replicas import desired_replicas
from slipway_operator.planning.sizing.sizes import sizes_of
from slipway_operator.planning.sizing.traffic import next_traffic


def plan(
    obj: Json, spec: Spec | Invalid, status: Status, observed: Observed, settings: PlanSettings, now: datetime
) -> Plan:
    """One step towards the spec. Pure. `now` is cut to whole seconds, as the status keeps them."""
    now, spec = now.replace(microsecond=0), registry.resolved(spec, status, observed)
    if isinstance(spec, Invalid):
        return refused(obj, status, observed, spec, now)

    # What is known
    spec, translated = argo.translate(spec, obj.get("status") or {}, status)
    wanted, current = revision.wanted_revision(spec, observed.snapshots, status)
    if problem := needs.problem(spec, current, observed, settings.policy, obj["metadata"]["namespace"]):
        return refused(obj, status, observed, problem, now)
    read, sound = status, restore.restored(status, spec, observed, wanted, now)
    owner, writable = replace(Owner.of(obj), collision_count=sound.collision_count or 0), not observed.run_refusal
    rollout, going = continuing.continued(sound.rollout, observed.analysis_runs, owner, writable=writable)
    status = replace(sound, rollout=rollout)
    before, at = _situated(Situation(spec, wanted, current, status, observed, now, owner.uid, name=owner.name), going)

    # What is decided: one row of the rollout's table, then what follows from the course
    course, transition = advance(before, at)
    traffic = next_traffic(course, at, sizes := sizes_of(course, at), spec.inputs.model.name)
    ended, end = hook_calls.follow_end(before, course, at)
    pods = desired_replicas(course, at, sizes)
    decided = Decided(course, sizes, traffic, pods, ended, standby.shares(course, at, pods))
    evicted, scaler = replacement.evictions(course, at), scaling(owner, at)

    # What users see of it
    renewed = status_of(decided, at, obj, settings)
    settled = (course, at.sleep) == (before, status.sleep)
    return Plan(
        status=renewed,
        runs=tuple(continuing.writes(course.rollout, course.runs, observed.analysis_runs)),
        loses_run=continuing.loses(sound.rollout, rollout),
        pins=weights.pins(owner.name, observed),
        create=creations(owner, decided, at, settings),
        annotate=annotations(at),
        autoscaler=scaler.create,
        gates=standby.gates(at, decided.shares),
        scale=scalings(at, decided.shares),
        delete=(*deletions(decided, at), *scaler.delete),
        evict=(*evicted, *standby.evictions(at), *weights.evictions(observed)),
        prefetch=prefetching.jobs(owner, course, at),
        grouped=groups.used(spec, observed),
        min_available=replacement.min_available(course, at, decided.desired.get(course.stable or "", 0)),
        events=(
            *restore.lost(read, sound, observed, wanted),
            *translated,
            *transition,
            *end,
            *events.movements(decided, at, renewed, evicted),
            *sleep.events(course, at),
            *table.events(status.conditions, renewed.conditions),
            *events.restored(observed),
            *(events.ignored_intents(course, at) if generation_of(obj) != status.observed_generation else ()),
        ),
        calls=hook_calls.calls(owner, course, ended, at, sizes),
        questions=tuple(measuring.questions(owner, course, at, runs.under_way(course, at))),
        requeue_after_s=requeue.after_s(course, at, sizes, traffic) if settled else 0.0,
    )


def explain(
    obj: Json, spec: Spec | Invalid, observed: Observed, settings: PlanSettings, now: datetime
) -> dict[str, Any]:
    """The inputs of a plan and the plan itself, as JSON: a bug report that can be replayed."""
    status = parse_status(dict(obj.get("status") or {}))
    decided = plan(obj, spec, status, observed, settings, now)
    return {
        "spec": to_json(spec),
        "status": to_json(status),
        "observed": to_json(observed),
        "plan": to_json(decided),
    }


def _situated(at: Situation, going: continuing.Runs) -> tuple[Course, Situation]:
    """The course by the status, and the situation with what follows from it: a hold, what is missing, and sleep."""
    wanted, current = revision.wanted_revision(at.spec, at.observed.snapshots, at.status)
    missing = references.missing(at.spec, current, at.observed, at.status)
    before, at = _course(at.status, going), replace(at, wanted=wanted, missing=missing)
    return before, replace(at, sleep=sleep.next_sleep(before, at))


def _course(status: Status, going: continuing.Runs) -> Course:
    return Course(
        status.rollout,
        status.stable_revision,
        status.previous_revision,
        status.aborted_revisions,
        status.decisions,
        going,
    )
