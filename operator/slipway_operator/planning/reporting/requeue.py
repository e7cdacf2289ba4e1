"""When a ModelDeployment is reconciled again without an event: time passes, and gateways are polled."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from slipway_contracts.route_table import Traffic
from slipway_operator.api.v1alpha1.status import Rollout, State
from slipway_operator.model.cluster import downloads
from slipway_operator.model.deployment.strategy import Pause
from slipway_operator.planning.analysis import measuring, runs
from slipway_operator.planning.conditions.references import certificate_is_awaited
from slipway_operator.planning.facts import accuracy, error_budget, serving, weights
from slipway_operator.planning.facts.situation import Course, Situation, step_now
from slipway_operator.planning.rollout import hook_calls
from slipway_operator.planning.rollout.progress import pause_ends
from slipway_operator.planning.rollout.row import IN_FLIGHT
from slipway_operator.planning.scaling import autoscale, sleep
from slipway_operator.planning.sizing import baseline, replacement
from slipway_operator.planning.sizing.replicas import leaves_at_latest, retired
from slipway_operator.planning.sizing.sizes import Sizes

GATEWAY_POLL_S = 0.5
NO_GATEWAY_POLL_S = 5.0  # all ModelDeployments wait for a gateway then, so they poll less often
DRAIN_POLL_S = 2.0
# No event of ours reports why the kubelet creates no container: soon for young pods, and seldom after a minute.
CREATING_POLL_S, STILL_CREATING_POLL_S, YOUNG = 5.0, 30.0, timedelta(minutes=1)
FETCHING_POLL_S = 5.0  # no event reports how far a download is
CERTIFICATE_POLL_S = 30.0  # no event reports that cert-manager issues a certificate
RESTART_POLL_S = 5.0  # no event reports that a disruption budget allows an eviction again


def after_s(course: Course, at: Situation, sizes: Sizes, traffic: Traffic | None) -> float | None:
    """Seconds until the next reconcile; None when only an event can change anything."""
    ahead = (moment for moment in _moments(course, at, sizes) if moment > at.now)
    delays = [*_polls(course, at, sizes, traffic), *((moment - at.now).total_seconds() for moment in ahead)]
    return min(delays, default=None)


def _polls(course: Course, at: Situation, sizes: Sizes, traffic: Traffic | None) -> Iterator[float]:
    if traffic and (not at.traffic_synced or traffic != at.status.traffic):
        yield GATEWAY_POLL_S if at.acknowledged[1] else NO_GATEWAY_POLL_S
    if any(at.observed.workloads[name].replicas for name in retired(course, at, sizes)):
        yield DRAIN_POLL_S
    for creating in (item for item in at.observed.workloads.values() if item.creating):
        young = any(at.now - pod.created_at < YOUNG for pod in creating.pods if not pod.ready)
        yield CREATING_POLL_S if young else STILL_CREATING_POLL_S
    if downloads.fetching(at.observed):
        yield FETCHING_POLL_S
    if replacement.extra_pods(course, at, course.stable or "") or weights.evictions(at.observed):
        yield RESTART_POLL_S
    if certificate_is_awaited(course, at):
        yield CERTIFICATE_POLL_S
    if any(runs.ongoing(course, at)):
        yield runs.READ_S
    readers = (serving.look_again_s, sleep.look_again_s, error_budget.look_again_s, accuracy.look_again_s)
    yield from (delay_s for look_again_s in readers if (delay_s := look_again_s(course, at)) is not None)


def _moments(course: Course, at: Situation, sizes: Sizes) -> Iterator[datetime]:
    """Ends of pauses, deadlines and delays; past ones had their effect in this plan."""
    rollout = course.rollout
    if at.spec.restart_at:
        yield at.spec.restart_at
    if rollout and rollout.state in IN_FLIGHT | {State.INITIALIZING}:
        yield rollout.progress_at + timedelta(seconds=at.spec.progress_deadline_s)
    if rollout and rollout.state is State.PROVISIONING and baseline.is_awaited(course, at, sizes):
        yield baseline.given_up_at(rollout, at)
    if rollout and _pauses_for_a_time(rollout, at):
        yield pause_ends(rollout, at)
    if rollout and rollout.state is State.ANALYZING:
        yield runs.ends_at(rollout, at)
    if rollout and rollout.state is State.CAPACITY_WAIT and rollout.capacity_since:
        limits = at.spec.strategy.capacity
        yield rollout.capacity_since + timedelta(seconds=limits.surge_timeout_s)
        yield rollout.capacity_since + timedelta(seconds=limits.deadline_s)
    yield from hook_calls.moments(course, at, sizes)
    yield from _of_analyses(course, at)
    yield from autoscale.moments(at)
    yield from sleep.moments(at)
    for name in retired(course, at, sizes):
        settled = at.status.scale_down_at(name)
        if settled:
            yield settled if at.now < settled else leaves_at_latest(at, settled)


def _of_analyses(course: Course, at: Situation) -> Iterator[datetime]:
    for run, spec in runs.under_way(course, at):
        yield from measuring.moments(run, spec)
        if run.ramp and run.ramp.bake_until:
            yield run.ramp.bake_until


def _pauses_for_a_time(rollout: Rollout, at: Situation) -> bool:
    here = step_now(at.spec, rollout)
    return rollout.state is State.PAUSED and isinstance(here, Pause) and here.duration_s is not None
