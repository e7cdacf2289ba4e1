"""spec.restartAt: every pod created before that time is replaced, by a new one that is ready first.

One pod more than usual is desired, so the service never has fewer; then old pods leave one at a time.
"""

from slipway_operator.model.cluster.observed import Pod
from slipway_operator.model.cluster.plan import Evict
from slipway_operator.planning.facts.situation import Course, Situation


def extra_pods(course: Course, at: Situation, revision: str) -> int:
    """1 while pods of the stable revision are to be replaced and no rollout is in flight."""
    return 1 if _old_pods(course, at, revision) else 0


def evictions(course: Course, at: Situation) -> tuple[Evict, ...]:
    """The next pod to leave: pods that are not ready first, then the oldest; one at a time."""
    revision = course.stable or ""
    old = _old_pods(course, at, revision)
    workload = at.workload(revision)
    if not old or workload is None or not at.traffic_synced:
        return ()
    broken = [pod for pod in old if not pod.ready]
    if broken:
        return (Evict(broken[0].name),)
    spare = workload.desired > at.replicas and workload.ready >= workload.desired == workload.replicas
    return (Evict(old[0].name),) if spare else ()


def _old_pods(course: Course, at: Situation, revision: str) -> list[Pod]:
    workload, moment = at.workload(revision), at.spec.restart_at
    idle = course.rollout is None and revision == course.stable and at.replicas > 0
    if not idle or workload is None or moment is None or moment > at.now or at.spec.paused:
        return []
    return [pod for pod in workload.pods if pod.created_at < moment]
