"""Scale to zero: when a deployment without requests loses its pods, and when it gets them again.

Gateways hold new requests first. When each reports that, and no request in flight, the status records that the
deployment is asleep; only then do its pods leave. `spec.replicas` is not changed.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from slipway_contracts.api.times import format_time
from slipway_operator.api.v1alpha1.status import Sleep, SleepState, State
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.rollout.table import next_row
from slipway_operator.planning.sizing import replacement
from slipway_operator.planning.sizing.sizes import sizes_of

GATEWAY_POLL_S = 0.5
LATER_S = 10.0  # until the next look while something other than requests keeps the deployment awake
# Gateways report a waiting request at once; this is for reports that were lost.
ASLEEP_POLL_S = 60.0
# For times that are cut to whole seconds, and for a report that is slightly older than the decision.
SLACK_S = 2.0


def next_sleep(course: Course, at: Situation) -> Sleep | None:
    """The next sleep state, at most one further than in the status.

    None without a stable revision, with spec.replicas 0, or while awake without an idle limit.
    """
    former = at.status.sleep
    if course.stable is None or at.spec.replicas == 0:
        return None
    if former is None:
        return None if _limit_s(at) is None else Sleep(SleepState.AWAKE, at.now)
    return _NEXT[former.state](former, course, at)


def idle_s(at: Situation) -> float | None:
    """Seconds for which certainly no gateway had a request; None when one does not report it, or none is ready."""
    present = [gateway for gateway in at.observed.gateways if not gateway.gone]
    known = all(item.reachable and (item.idle_s is not None or not item.ready) for item in present)
    if not known or not any(gateway.ready for gateway in present):
        return None
    known_s = ((item, item.idle_s) for item in at.observed.gateways if item.idle_s is not None)
    return min(
        (0.0 if item.held or any(item.inflight.values()) else seconds for item, seconds in known_s), default=None
    )


def look_again_s(course: Course, at: Situation) -> float | None:
    """Seconds until time alone may change the sleep state; None when only an event may."""
    sleep, limit_s = at.sleep, _limit_s(at)
    if sleep is None or sleep.state is SleepState.WAKING:
        return None
    if sleep.state is SleepState.ASLEEP:
        return ASLEEP_POLL_S
    if sleep.state is SleepState.FALLING_ASLEEP:
        return GATEWAY_POLL_S
    if limit_s is None or not _is_settled(course, at):
        return None
    left_s = limit_s - min(idle_s(at) or 0.0, _settled_s(sleep, course, at))
    return left_s if left_s > 0 else LATER_S


def moments(at: Situation) -> tuple[datetime, ...]:
    """When a wake that is in progress becomes late."""
    waking = at.sleep is not None and at.sleep.state is SleepState.WAKING
    return (at.sleep.since + timedelta(seconds=at.spec.progress_deadline_s),) if at.sleep and waking else ()


# --- states -----------------------------------------------------------------------------------------------------------


def _awake(sleep: Sleep, course: Course, at: Situation) -> Sleep | None:
    limit_s = _limit_s(at)
    if limit_s is None:
        return None
    idle = _is_idle(course, at) and _settled_s(sleep, course, at) >= limit_s
    return sleep.to(SleepState.FALLING_ASLEEP, at.now) if idle else sleep


def _falling_asleep(sleep: Sleep, course: Course, at: Situation) -> Sleep:
    """The next state. Meanwhile the pods that still exist serve requests."""
    if not _is_idle(course, at):
        return sleep.to(SleepState.AWAKE, at.now)
    return sleep.to(SleepState.ASLEEP, at.now) if _all_hold(at) else sleep


def _asleep(sleep: Sleep, course: Course, at: Situation) -> Sleep:
    """The next state. A new spec wakes the deployment too: a rollout has to see that its revision becomes ready."""
    stays = _limit_s(at) is not None and _is_settled(course, at) and not _is_called(sleep, at)
    return sleep if stays else sleep.to(SleepState.WAKING, at.now)


def _waking(sleep: Sleep, course: Course, at: Situation) -> Sleep:
    backends = at.status.traffic.backends if at.status.traffic else ()
    serves = any(at.ready(backend.revision) for backend in backends if backend.weight)
    return sleep.to(SleepState.AWAKE, at.now) if serves else sleep


_NEXT: dict[SleepState, Callable[[Sleep, Course, Situation], Sleep | None]] = {
    SleepState.AWAKE: _awake,
    SleepState.FALLING_ASLEEP: _falling_asleep,
    SleepState.ASLEEP: _asleep,
    SleepState.WAKING: _waking,
}


# --- guards -----------------------------------------------------------------------------------------------------------


def _limit_s(at: Situation) -> int | None:
    return at.spec.autoscaling.idle_s if at.spec.autoscaling else None


def _is_settled(course: Course, at: Situation) -> bool:
    """Whether no rollout is in flight or about to begin."""
    return course.state in (None, State.ABORTED) and next_row(course, at, sizes_of(course, at)) is None


def _settled_s(sleep: Sleep, course: Course, at: Situation) -> float:
    """Seconds awake without a rollout: pods that just started are kept for a while."""
    return at.elapsed_s(max([sleep.since, *(item.at for item in course.decisions[-1:])]))


def _is_idle(course: Course, at: Situation) -> bool:
    limit_s, idle = _limit_s(at), idle_s(at)
    well = at.ready(course.stable) > 0 and not replacement.extra_pods(course, at, course.stable or "")
    return limit_s is not None and idle is not None and idle >= limit_s and well and _is_settled(course, at)


def _all_hold(at: Situation) -> bool:
    """Whether every gateway, also a terminating one, routes by the table that holds all requests."""
    traffic = at.status.traffic
    if traffic is None or not traffic.asleep or not at.traffic_synced:
        return False
    routing = [item.digest for item in at.observed.gateways if not item.gone and item.generation is not None]
    return all(digest == traffic.digest for digest in routing)


def _is_called(sleep: Sleep, at: Situation) -> bool:
    """Whether a request waits, or came since sleep began. A new gateway has had none yet."""
    asleep_s = at.elapsed_s(sleep.since) + SLACK_S
    reporting = [item for item in at.observed.gateways if item.reachable]
    return any(item.held or (item.last_request_s is not None and item.last_request_s < asleep_s) for item in reporting)


# --- messages ---------------------------------------------------------------------------------------------------------


def is_late(at: Situation) -> bool:
    """Whether a wake takes longer than spec.progressDeadlineSeconds."""
    waking = at.sleep is not None and at.sleep.state is SleepState.WAKING
    return waking and at.sleep is not None and at.elapsed_s(at.sleep.since) >= at.spec.progress_deadline_s


def sentence(course: Course, at: Situation) -> str:
    """The message about a deployment that is not awake; else empty."""
    if at.sleep is None or at.sleep.state is SleepState.AWAKE:
        return ""
    since, expected = format_time(at.sleep.since), at.sleep.expected_s
    if at.sleep.state is SleepState.FALLING_ASLEEP:
        return f"no request for {_limit_s(at)} s: gateways hold new requests"
    if at.sleep.state is SleepState.ASLEEP:
        takes = f", which takes about {expected} s" if expected else ""
        return f"asleep since {since}; the next request wakes revision {course.stable}{takes}"
    ready, why = at.ready(course.stable), at.trouble(course.stable or "")
    return f"waking since {since}: {ready} of {at.replicas} pods ready" + (f"; {why}" if why else "")


def events(course: Course, at: Situation) -> tuple[Event, ...]:
    """The Event for a change of the sleep state; none where it begins or ceases to fall asleep."""
    before, now = at.status.sleep, at.sleep
    if before is None or now is None or before.state is now.state:
        return ()
    if now.state is SleepState.ASLEEP:
        text = f"no request for {_limit_s(at)} s: revision {course.stable} has no pods until the next request"
        return (Event("Normal", "ScaledToZero", text),)
    if now.state is SleepState.WAKING:
        why = "a request waits" if _is_called(before, at) else "the spec changed"
        return (Event("Normal", "WakeStarted", f"{why}: {at.replicas} pods of revision {course.stable} come up"),)
    if before.state is SleepState.WAKING:
        return (Event("Normal", "WakeCompleted", f"awake after {now.wake_seconds[-1]} s"),)
    return ()
