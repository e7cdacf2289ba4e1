"""Events besides those of rows and conditions: changes of pods and weights, drains, a stable revision without pods.

Each comes from the difference between the former status and the present decisions, so once per change. Events are no
decisions: a crash between the writes of the status and of an Event may lose it, and its content is in the status.
"""

from collections.abc import Mapping

from slipway_contracts.api.times import format_time
from slipway_contracts.route_table import Traffic
from slipway_operator.api.v1alpha1.status import RevisionStatus, Rollout, SleepState, State, Status
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Event, Evict
from slipway_operator.planning.decided import Decided
from slipway_operator.planning.facts import registry
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.reporting import standby_pods
from slipway_operator.planning.scaling import objective


def movements(decided: Decided, at: Situation, renewed: Status, evicted: tuple[Evict, ...]) -> tuple[Event, ...]:
    """Changes of pods and weights, in their order. `renewed` is the status to be written."""
    return (
        *registry.moved(at.status.registry, renewed.registry),
        *(Event("Normal", "PodRestarted", f"pod {item.pod} makes way: {item.why}") for item in evicted),
        *objective.events(at),
        *_scaled_and_shifted(at, decided.desired, decided.traffic),
        *standby_pods.events(decided),
        *_drains(at, decided.desired, renewed.revisions),
        *_stable_lost(decided.course, at),
        *_abort_blocked(decided.course, at),
    )


def restored(observed: Observed) -> tuple[Event, ...]:
    """An Event for each lost record of a revision, which is made again."""
    lost = sorted(name for name, snapshot in observed.snapshots.items() if not snapshot.name)
    text = "the ControllerRevision of revision {} was lost, and is made again from the copy at its workload"
    return tuple(Event("Warning", "RecordRestored", text.format(name)) for name in lost)


def _scaled_and_shifted(at: Situation, desired: Mapping[str, int], traffic: Traffic | None) -> tuple[Event, ...]:
    """Events about changed replica counts and changed weights."""
    scaled = tuple(
        Event("Normal", "ScalingReplicaSet", f"revision {name} goes from {workload.desired} to {desired[name]} pods")
        for name, workload in sorted(at.observed.workloads.items())
        if workload.desired != desired[name]
    )
    before = at.status.traffic
    if traffic is None or (before and _weights(before) == _weights(traffic)):
        return scaled
    shares = ", ".join(f"{backend.revision} {backend.weight}%" for backend in traffic.backends)
    return (*scaled, Event("Normal", "TrafficWeightUpdated", f"generation {traffic.generation}: {shares}"))


def _weights(traffic: Traffic) -> list[tuple[str, int]]:
    return [(backend.revision, backend.weight) for backend in traffic.backends]


def _drains(at: Situation, desired: Mapping[str, int], revisions: tuple[RevisionStatus, ...]) -> tuple[Event, ...]:
    """Events about retired revisions, from the last new request to the last pod."""
    events = []
    for item in revisions:
        name, workload = item.revision, at.observed.workloads.get(item.revision)
        if item.scale_down_at and at.status.scale_down_at(name) is None:
            text = f"revision {name} gets no new requests; its pods leave after {format_time(item.scale_down_at)}"
            events.append(Event("Normal", "DrainStarted", text))
        if item.role == "old" and workload and workload.desired > 0 and desired[name] == 0:
            events.append(_drained(name, at.observed.inflight(name)))
    return tuple(events)


def _drained(name: str, inflight: int | None) -> Event:
    if inflight == 0:
        return Event("Normal", "DrainCompleted", f"revision {name} has answered every request; its pods leave")
    left = "an unknown number of" if inflight is None else inflight
    return Event("Warning", "DrainTimedOut", f"the pods of revision {name} leave with {left} requests in progress")


def _stable_lost(course: Course, at: Situation) -> tuple[Event, ...]:
    """An Event when stable loses its last ready pod while it has weight."""
    stable, sleep = course.stable, at.sleep
    if sleep and sleep.state in (SleepState.ASLEEP, SleepState.WAKING):
        return ()
    before = next((item.ready for item in at.status.revisions if item.revision == stable), 0)
    if not before or at.ready(stable) or not at.weight(stable):
        return ()
    why = at.trouble(stable) or "its pods give no reason"
    return (Event("Warning", "StableUnavailable", f"no pod of stable revision {stable} is ready: {why}"),)


def _abort_blocked(course: Course, at: Situation) -> tuple[Event, ...]:
    """An Event when a rejected revision keeps its weight, because stable has no pod to take it."""
    rollout, known = course.rollout, _was_blocked(at.status.rollout, at)
    if rollout is None or rollout.state is not State.ABORTING or known:
        return ()
    weight = at.weight(rollout.revision)
    if not weight or at.ready(course.stable) or at.replicas == 0:
        return ()
    text = f"revision {rollout.revision} keeps weight {weight} until a pod of stable {course.stable} is ready"
    return (Event("Warning", "AbortBlocked", text),)


def _was_blocked(before: Rollout | None, at: Situation) -> bool:
    stable = next((item for item in at.status.revisions if item.role == "stable"), None)
    aborting = before is not None and before.state is State.ABORTING
    return aborting and stable is not None and stable.ready == 0


def ignored_intents(course: Course, at: Situation) -> tuple[Event, ...]:
    """Events of a new spec, for intents that name nothing in flight and have no effect."""
    rollout, intents = course.rollout, at.spec.intents
    names = {rollout.attempt_token, rollout.step_token} if rollout else set()
    names |= {rollout.revision} if rollout and rollout.attempt == 1 else set()
    given = {"promote": intents.promote, "promoteFull": intents.promote_full}
    return tuple(
        Event("Normal", "ControlIgnored", f"spec.rollout.{field} names {token}, which is not in flight now")
        for field, token in given.items()
        if token and token not in names and not _already_served(at, rollout, token)
    )


def _already_served(at: Situation, rollout: Rollout | None, token: str) -> bool:
    """Whether a promotion token has had its effect: it stays in the spec and is no mistake."""
    name, _, rest = token.partition("/")
    if name in (at.status.stable_revision, at.status.previous_revision):
        return True
    served = rest.split("/")
    return rollout is not None and name == rollout.revision and len(served) == 2 and int(served[1]) < rollout.step_index
