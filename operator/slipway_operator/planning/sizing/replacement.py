"""Pods that are replaced while nothing is rolled out: those older than spec.restartAt, and those on drained nodes.

One pod more than usual is desired, so the service never has fewer; then old pods leave one at a time.
"""

from datetime import timedelta

from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Pod
from slipway_operator.model.cluster.plan import Evict
from slipway_operator.planning.facts import groups
from slipway_operator.planning.facts.situation import Course, Situation


def extra_pods(course: Course, at: Situation, revision: str) -> int:
    """Pods or groups above the replicas that stable has for replacements.

    1 while pods are to be replaced and no rollout is in flight; after that, the groups that are held.
    """
    return 1 if _old_pods(course, at, revision) else _held_groups(course, at, revision)


def _held_groups(course: Course, at: Situation, revision: str) -> int:
    """Groups above the replicas that stay, because a LeaderWorkerSet removes its highest ones, whichever are ready.

    A group that was evicted is created again under its index; on a lost node only when that is gone for good. Until
    then one of the highest groups serves in its place.
    """
    workload = at.workload(revision)
    if workload is None or workload.kind != labels.LEADER_WORKER_SET or course.rollout is not None:
        return 0
    lower = sum(pod.ready for pod in workload.pods if groups.index_of(pod) < at.replicas)
    upper = any(pod.ready for pod in workload.pods if groups.index_of(pod) >= at.replicas)
    return max(0, workload.desired - at.replicas) if upper and lower < at.replicas else 0


def evictions(course: Course, at: Situation) -> tuple[Evict, ...]:
    """The next pod to leave: pods that are not ready first, then the oldest; one at a time."""
    revision = course.stable or ""
    old = _old_pods(course, at, revision)
    workload = at.workload(revision)
    if not old or workload is None or not at.traffic_synced:
        return ()
    broken = [pod for pod in old if not pod.ready]
    if broken:
        return (_evict(broken[0]),)
    spare = workload.desired > at.replicas and workload.ready >= workload.desired == workload.replicas
    return (_evict(old[0]),) if spare else ()


def min_available(course: Course, at: Situation, desired: int) -> int:
    """The pods that an eviction by others must leave: all `desired` replicas of the stable revision but one.

    Where the operator sees drains, the only pod stays until its replacement is ready. Where it does not, nothing would
    replace that pod, and its node could never be drained, so the pod may leave. It may also leave when a replacement
    is not ready within the progress deadline.
    """
    snapshot = at.observed.snapshots.get(course.stable or "")
    size = snapshot.inputs.engine.parallelism.nodes if snapshot else 1
    if _replacement_is_late(course, at):
        return groups.kept_pods(max(0, at.replicas - 1), desired, size)
    protected = 1 if at.observed.sees_drains and course.rollout is None and at.replicas > 0 else 0
    return groups.kept_pods(max(protected, desired - 1), desired, size)


def _replacement_is_late(course: Course, at: Situation) -> bool:
    workload = at.workload(course.stable or "")
    pods = workload.pods if workload else ()
    patience = timedelta(seconds=at.spec.progress_deadline_s)
    late = (pod for pod in pods if not pod.ready and not pod.leaving and at.now - pod.created_at >= patience)
    return any(pod.leaving for pod in pods) and any(late)


def _evict(pod: Pod) -> Evict:
    return Evict(pod.name, why_old(pod), with_group=bool(pod.group), uid=pod.uid)


def why_old(pod: Pod) -> str:
    """Why a pod is replaced."""
    return "its node is drained or unreachable" if pod.leaving else "spec.restartAt"


def _old_pods(course: Course, at: Situation, revision: str) -> list[Pod]:
    workload = at.workload(revision)
    idle = course.rollout is None and revision == course.stable and at.replicas > 0
    return [pod for pod in workload.pods if is_old(pod, at)] if idle and workload else []


def is_old(pod: Pod, at: Situation) -> bool:
    """Whether a pod is older than spec.restartAt, or on a drained node."""
    moment = at.spec.restart_at
    restarted = moment is not None and pod.created_at < moment <= at.now and not at.holds
    return restarted or pod.leaving
