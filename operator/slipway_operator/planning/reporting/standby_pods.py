"""What users see of standby pods: how many wait and serve, and Events when some begin or cease to serve."""

from slipway_operator.api.v1alpha1.status import StandbyStatus
from slipway_operator.model.cluster.observed import NOT_READY
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.decided import Decided
from slipway_operator.planning.facts import standby
from slipway_operator.planning.facts.situation import Situation


def shown(decided: Decided, at: Situation) -> StandbyStatus | None:
    """The standby pods of stable; None where there are none, and none are wanted."""
    stable = decided.course.stable
    share = decided.shares.get(stable or "")
    if stable is None or share is None or not share.standby:
        return None
    serve = {pod.name for pod in share.serving}
    ready = (
        sum(pod.loaded and pod.name not in serve for pod in at.observed.standby[stable].pods) if _has(at, stable) else 0
    )
    return StandbyStatus(share.waiting, ready, len(serve), _trouble(at, stable) if ready < share.waiting else "")


def events(decided: Decided) -> tuple[Event, ...]:
    """An Event for pods that begin to serve, and for those that wait again."""
    found = []
    for revision, share in decided.shares.items():
        if share.woken:
            text = f"{len(share.woken)} standby pods of revision {revision} serve, with {share.own} others"
            found.append(Event("Normal", "StandbyPodsServing", text))
        if share.returned:
            text = f"{len(share.returned)} standby pods of revision {revision} take no more requests"
            found.append(Event("Normal", "StandbyPodsWaiting", text))
    return tuple(found)


def _has(at: Situation, revision: str) -> bool:
    return revision in at.observed.standby


def _trouble(at: Situation, revision: str) -> str:
    """Why a pod that should wait does not: the first cause; empty without one."""
    serving = {pod.name for pod in standby.serving(at.observed, revision)}
    troubles = at.observed.standby[revision].troubles if _has(at, revision) else ()
    found = (one for one in troubles if one.pod not in serving and one.reason != NOT_READY)
    return next((f"{one.pod}: {one.reason}: {one.message}" for one in found), "")
