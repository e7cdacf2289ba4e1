"""Capacity modes: how many pods a rollout may use, and what is missing when no node takes them.

Surge adds pods beside a full stable revision. Replace removes a stable pod for each pod of the new one, so one pod
fewer carries the traffic meanwhile. Recreate has one pod only: the old one leaves before the new one starts.
"""

from slipway_operator.api.v1alpha1.status import Mode
from slipway_operator.model.cluster.observed import UNSCHEDULABLE
from slipway_operator.model.deployment.strategy import CapacityPolicy
from slipway_operator.planning.facts import causes, scheduling
from slipway_operator.planning.facts.situation import Course, Situation


def mode(course: Course, at: Situation) -> Mode:
    """The mode in force: a rollout that fell back to the existing pods keeps that mode."""
    if course.rollout is None:
        return Mode.SURGE
    may_add = at.spec.strategy.capacity.surge(at.replicas) > 0
    surging = course.rollout.capacity_mode is Mode.SURGE and may_add
    return Mode.SURGE if surging else fallback(at) or Mode.SURGE


def fallback(at: Situation) -> Mode | None:
    """The mode without additional pods; None when the spec's policy does not allow it."""
    if at.replicas > 1:
        return Mode.REPLACE
    return Mode.RECREATE if at.spec.strategy.capacity.policy is CapacityPolicy.ALLOW_RECREATE else None


def surge(at: Situation, mode: Mode) -> int:
    """Pods above the replicas that all revisions together may have now."""
    return at.spec.strategy.capacity.surge(at.replicas) if mode is Mode.SURGE else 0


def carriers(at: Situation, mode: Mode) -> int:
    """Ready pods that together carry all traffic."""
    return at.replicas - 1 if mode is Mode.REPLACE else at.replicas


def lacks_node(at: Situation, revision: str) -> bool:
    """Whether pods of a revision find no node, and not only because pods of ours are still terminating.

    A pod whose PersistentVolumeClaim is missing does not count: that is no lack of capacity, and no node would help.
    """
    leaving = any(item.replicas > item.desired for item in at.observed.workloads.values())
    return waits_for_node(at, revision) and not leaving


def waits_for_node(at: Situation, revision: str | None) -> bool:
    """Whether pods of a revision would start if there were a node for them."""
    workload, cause = at.workload(revision or ""), at.cause(revision)
    return workload is not None and workload.unschedulable > 0 and (cause is None or cause.reason not in causes.UNBOUND)


def would_be_helped(at: Situation, revision: str) -> bool:
    """Whether other pods could make room by leaving: not on a node that would not fit even when empty."""
    cause = at.cause(revision)
    return cause is None or cause.reason not in (scheduling.ON_NO_NODE, scheduling.NO_MATCH)


def may_add_none(at: Situation, mode: Mode) -> bool:
    """Whether the spec itself leaves no room: no pod may be added, and the only one may not leave."""
    return at.replicas > 0 and surge(at, mode) == 0 and mode is Mode.SURGE


def shortage(at: Situation, mode: Mode, revision: str) -> str:
    """A message with the missing amounts, and where they are missing."""
    if may_add_none(at, mode):
        return (
            "no pod may be added and the only one may not leave: raise spec.strategy.capacity.maxSurge, "
            "or set spec.strategy.capacity.policy to AllowRecreate"
        )
    workload = at.workload(revision)
    pods = workload.unschedulable if workload else 0
    words = next((item.message for item in workload.troubles if item.reason == UNSCHEDULABLE), "") if workload else ""
    return scheduling.sentence(words, pods, at.resources(revision))
