"""The baseline: new pods of stable beside the canary, with the same number and the same weight.

Where they exist, a canary is compared with them: pods as young, as cold and as busy as its own. Baseline pods are only
for the comparison, and stable does not depend on them: it keeps pods for their share of requests, and the baseline
leaves first when room is short.
"""

from datetime import datetime, timedelta
from typing import Any

from slipway_operator.api.v1alpha1.status import Rollout, State
from slipway_operator.manifests.groups.leader_worker_set import workload
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.service import headless_service
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Workload
from slipway_operator.model.deployment.strategy import Analysis, Ramp, TwinAnalysis
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.sizing import canary, capacity
from slipway_operator.planning.sizing.sizes import Sizes

_STEPPING = (State.PROVISIONING, State.CAPACITY_WAIT, State.SHIFTING, State.PAUSED, State.ANALYZING)
HALF = 50  # percent: from this weight on there is no second share of the same size


def name(course: Course) -> str:
    """The revision label of the baseline's pods: its key in the table, in counts and in the status."""
    return labels.baseline_of(course.stable or "")


def twin(course: Course, at: Situation) -> str:
    """The revision with which pairs compare the canary: the baseline; of an adapter stable, on the same pods."""
    return course.stable or "" if at.spec.inputs.base else name(course)


def replicas(course: Course, at: Situation, sizes: Sizes) -> int:
    """Pods that the baseline should have; 0 where there should be none."""
    tested = _tested(course, at)
    if tested is None or not _is_due(course, at, sizes) or _is_left_over(course, at):
        return 0
    present = _present(course, at)
    # A node that both could use is for the canary.
    placed = tested.replicas >= tested.desired and not tested.unschedulable
    return min(tested.desired, max(present, min(tested.desired, _room(course, at, sizes)) if placed else present))


def is_one(course: Course, at: Situation, sizes: Sizes, revision: str) -> bool:
    """Whether `revision` is the baseline's label, and a baseline should exist."""
    return revision == name(course) and replicas(course, at, sizes) > 0


def weight(course: Course, at: Situation, sizes: Sizes, tested: int) -> int:
    """Percent of new requests for the baseline: `tested`, as for the canary, or 0 while its pods cannot carry that."""
    carried = canary.replicas_for(tested, sizes.carriers)
    there = replicas(course, at, sizes) > 0 and at.ready(name(course)) >= max(1, carried)
    return tested if there and tested < HALF else 0


def compared(course: Course, at: Situation) -> str:
    """The revision that the canary is compared with by the weights in force: the baseline, or stable itself."""
    return name(course) if at.weight(name(course)) else course.stable or ""


def is_awaited(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether the rollout waits for baseline pods: canary and baseline get the weight of the step at the same time."""
    tested = _tested(course, at)
    if tested is None or not _is_due(course, at, sizes):
        return False
    enough = at.spec.strategy.progress_threshold.of(tested.desired)
    return _is_left_over(course, at) or at.ready(name(course)) < enough


def given_up_at(rollout: Rollout, at: Situation) -> datetime:
    """When the canary, whose pods are ready, stops waiting for the baseline."""
    return rollout.progress_at + timedelta(seconds=at.spec.strategy.capacity.surge_timeout_s)


def absence(course: Course, at: Situation, sizes: Sizes) -> str:
    """Why this attempt gets no baseline at its present step; empty where it has one or waits for it."""
    rollout, tested = course.rollout, _tested(course, at)
    if rollout is not None and rollout.without_baseline:
        return rollout.without_baseline
    needed = 2 * tested.desired if tested else 2
    if at.replicas == 0 or needed <= sizes.surge:
        return ""
    return f"it takes {needed} pods more than spec.replicas, maxSurge allows {sizes.surge}"


def stands_in_the_way(course: Course, at: Situation, sizes: Sizes) -> str | None:
    """The revision whose pods need the nodes of baseline pods; None without such a revision or such pods."""
    if not _is_due(course, at, sizes) or not _present(course, at):
        return None
    if course.stable and capacity.lacks_node(at, course.stable):
        return f"stable {course.stable}"
    rollout = course.rollout
    waited_s = at.elapsed_s(rollout.capacity_since) if rollout and rollout.capacity_since else 0.0
    waits = course.state is State.CAPACITY_WAIT and waited_s >= at.spec.strategy.capacity.surge_timeout_s
    return f"revision {course.target}" if waits else None


def sentence(course: Course, at: Situation, sizes: Sizes) -> str:
    """The baseline's part of the message; empty where the spec has none, or there is nothing to compare."""
    rollout, tested = course.rollout, _tested(course, at)
    if rollout is None or tested is None or not _may_be(course, at):
        return ""
    if why := absence(course, at, sizes):
        return f"; without a baseline: {why}"
    share = at.weight(name(course))
    ready = f"{at.ready(name(course))} of {tested.desired} baseline pods of stable ready"
    return f"; compared with {ready}, weight {share}" if share else f"; {ready}"


def manifests(owner: Owner, course: Course, at: Situation, sizes: Sizes) -> list[dict[str, Any]]:
    """The baseline's missing Service and workload. It runs the recorded stable revision, under its own label."""
    pods, revision = replicas(course, at, sizes), name(course)
    if not pods or course.stable is None:
        return []
    snapshot = at.observed.snapshots[course.stable]
    lacks_service = revision not in at.observed.services and not snapshot.is_grouped
    service = [headless_service(owner, revision, tls=snapshot.tls)] if lacks_service else []
    made = workload(owner, snapshot, pods, revision)
    return [*service, *([made] if at.workload(revision) is None else [])]


def _is_due(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether there should be a baseline at the present step of the rollout."""
    given_up = course.rollout is None or course.rollout.without_baseline is not None
    return not given_up and _may_be(course, at) and _has_room(course, at, sizes)


def _may_be(course: Course, at: Situation) -> bool:
    """Whether the spec has a baseline, an analysis is ahead, and the weight leaves room for a second share of it."""
    rollout, strategy = course.rollout, at.spec.strategy
    if not strategy.baseline_pod or rollout is None or rollout.state not in _STEPPING or rollout.skip_steps:
        return False
    steps = strategy.steps[rollout.step_index :]
    # In a blue-green rollout only pairs compare the two revisions; a ramp compares with stable itself.
    compares = [step for step in steps if isinstance(step, TwinAnalysis if strategy.blue_green else Analysis)]
    ahead = any(not isinstance(step, Ramp) for step in compares)
    half = canary.weight_now(strategy.steps, rollout) >= HALF
    return (ahead or strategy.background is not None) and not half and course.stable in at.observed.snapshots


def _has_room(course: Course, at: Situation, sizes: Sizes) -> bool:
    """Whether the surge is enough for the canary twice, beside all pods of stable."""
    tested = _tested(course, at)
    return tested is not None and 2 * tested.desired <= sizes.surge


def _room(course: Course, at: Situation, sizes: Sizes) -> int:
    """Pods that the baseline may have now: all revisions together never exceed replicas and surge (invariant I7)."""
    others = sum(
        max(workload.desired, at.replicas) if revision == course.stable else workload.desired
        for revision, workload in at.observed.workloads.items()
        if revision != name(course)
    )
    return max(0, at.replicas + sizes.surge - others)


def _tested(course: Course, at: Situation) -> Workload | None:
    """The canary's workload; None while it should have no pods."""
    workload = at.workload(course.target or "")
    return workload if workload and workload.desired else None


def _present(course: Course, at: Situation) -> int:
    workload = at.workload(name(course))
    return workload.desired if workload else 0


def _is_left_over(course: Course, at: Situation) -> bool:
    """Whether pods of a former attempt still exist: they are older than the canary's."""
    workload, rollout = at.workload(name(course)), course.rollout
    return workload is not None and any(rollout and pod.created_at < rollout.started_at for pod in workload.pods)
