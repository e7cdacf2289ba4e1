"""Scale to zero: gateways first, then the status, then the pods; and wake by a request."""

from dataclasses import replace
from typing import Any

import pytest

from slipway_contracts.gateway_report import ServiceReport
from slipway_operator.api.v1alpha1.status import Sleep, SleepState
from slipway_operator.model.cluster.observed import Observed
from tests.support.model_cluster import START, ModelCluster, ModelGateway, healthy, model

IDLE_S = 8
SCALED: dict[str, Any] = {
    "minReplicas": 0,
    "maxReplicas": 4,
    "idleSeconds": IDLE_S,
    "metrics": [{"type": "InFlight", "target": "4"}],
}


def sleepy(**options: Any) -> ModelCluster:
    """A deployment that serves and may sleep; its first idle second is now."""
    return healthy(autoscaling=dict(SCALED), **options)


def asleep(**options: Any) -> ModelCluster:
    world = sleepy(**options)
    until(world, SleepState.ASLEEP)
    world.run(2)
    return world


def until(world: ModelCluster, state: SleepState, limit_s: int = 60) -> None:
    for _ in range(limit_s):
        world.reconcile()
        if (sleep := world.parsed().sleep) and sleep.state is state:
            return
        world.pass_time()
    raise AssertionError(f"not {state} within {limit_s} s: {world.parsed().message}")


def state(world: ModelCluster) -> str | None:
    sleep = world.parsed().sleep
    return sleep.state.value if sleep else None


def pods(world: ModelCluster) -> int:
    return sum(item.desired for item in world.pods.values())


def reasons(world: ModelCluster) -> list[str]:
    known = ("ScaledToZero", "WakeStarted", "WakeCompleted", "StableUnavailable")
    return [event.reason for event in world.events if event.reason in known]


def condition(world: ModelCluster, kind: str) -> tuple[str, str]:
    return next((item.status, item.reason) for item in world.parsed().conditions if item.type == kind)


def test_scale_to_zero_updates_gateways_first_and_no_spec() -> None:
    world = sleepy(replicas=2)
    seen = []
    for _ in range(IDLE_S + 10):
        world.reconcile()
        traffic = world.parsed().traffic
        seen.append((state(world), bool(traffic and traffic.asleep), pods(world)))
        world.pass_time()
    order = list(dict.fromkeys(seen))
    assert order == [
        ("Awake", False, 2),
        ("FallingAsleep", True, 2),
        ("Asleep", True, 2),
        ("Asleep", True, 0),
    ]
    assert world.spec["replicas"] == 2
    parsed = world.parsed()
    assert (parsed.phase, parsed.replicas, parsed.ready) == ("Asleep", 0, "0/0")
    assert parsed.message.startswith("asleep since 2026-01-01T00:00:")
    assert condition(world, "Ready") == ("True", "Asleep")
    assert condition(world, "Available") == ("True", "Asleep")
    assert reasons(world) == ["ScaledToZero"]
    assert world.parsed().traffic.hold_seconds == 300  # type: ignore[union-attr]


@pytest.mark.parametrize("moment", range(IDLE_S + 12))
@pytest.mark.parametrize("gateway", [0, 1])
def test_request_at_any_second_of_the_scale_down_is_answered(moment: int, gateway: int) -> None:
    """Also between the snapshot of the operator and its write: the request comes after the snapshot."""
    for before_reconcile in (True, False):
        world = sleepy()
        for _ in range(moment):
            world.reconcile()
            world.pass_time()
        if before_reconcile:
            world.gateways[gateway].visit(world)
        world.reconcile()
        if not before_reconcile:
            world.gateways[gateway].visit(world)
        world.pass_time()
        world.run(5)
        visited = world.gateways[gateway]
        assert (visited.served, visited.refused, visited.held) == (1, 0, 0)
        assert state(world) == "Awake"


def test_wake_ends_with_the_first_ready_pod_and_its_duration_is_reported() -> None:
    world = asleep(replicas=2)
    world.gateways[1].visit(world)
    world.reconcile()
    assert (state(world), pods(world), world.parsed().phase) == ("Waking", 2, "Progressing")
    traffic = world.parsed().traffic
    assert traffic is not None
    assert (traffic.asleep, traffic.hold_seconds, traffic.wake_seconds) == (None, 300, 0)
    assert world.parsed().message.startswith("waking since")
    world.pass_time(7, pods=False)
    world.reconcile()
    assert state(world) == "Waking"
    world.pass_time()
    world.reconcile()
    world.pass_time()
    sleep, traffic = world.parsed().sleep, world.parsed().traffic
    assert sleep is not None
    assert traffic is not None
    assert (sleep.state, sleep.wake_seconds) == (SleepState.AWAKE, (8,))
    assert (traffic.hold_seconds, traffic.wake_seconds) == (None, None)
    assert world.gateways[1].served == 1
    assert reasons(world) == ["ScaledToZero", "WakeStarted", "WakeCompleted"]
    world.run(IDLE_S - 3)
    assert state(world) == "Awake", "pods that just came up are worth a while"
    until(world, SleepState.ASLEEP)
    assert world.parsed().traffic.wake_seconds == 8  # type: ignore[union-attr]
    assert "which takes about 8 s" in (world.reconcile() and world.parsed().message)


def test_the_expected_time_is_the_median_of_the_last_five_wakes() -> None:
    sleep = Sleep(SleepState.WAKING, START, (100, 5, 6, 600, 7))
    ended = sleep.to(SleepState.AWAKE, START)
    assert ended.wake_seconds == (5, 6, 600, 7, 1)
    assert ended.expected_s == 6
    assert Sleep(SleepState.ASLEEP, START).expected_s is None


def keep_busy(world: ModelCluster) -> None:
    world.inflight = dict.fromkeys(world.pods, 1)


def lose_gateways(world: ModelCluster) -> None:
    for gateway in world.gateways:
        gateway.ready = False


@pytest.mark.parametrize(
    "keep",
    [
        lambda world: setattr(world.gateways[0], "reachable", False),
        lambda world: setattr(world.gateways[0], "since", world.now),
        lambda world: setattr(world.gateways[1], "last", world.now),
        lambda world: world.edit(model=model("v2")),
        lambda world: world.broken.add(model("v1")["uri"]) or [setattr(x, "ready", 0) for x in world.pods.values()],
        lambda world: world.edit(replicas=0),
        lambda world: world.edit(autoscaling=None),
        keep_busy,
        lose_gateways,
    ],
    ids=["silent", "new", "visited", "rollout", "broken", "by-hand", "not-wanted", "stream", "no-gateway"],
)
def test_conditions_that_keep_a_deployment_awake(keep: Any) -> None:
    world = sleepy()
    world.run(IDLE_S - 4)
    keep(world)
    world.run(6)
    assert state(world) in ("Awake", None)
    assert not (world.parsed().traffic and world.parsed().traffic.asleep)  # type: ignore[union-attr]


def test_pods_stay_until_the_last_gateway_holds_also_one_that_leaves() -> None:
    world = sleepy()
    until(world, SleepState.FALLING_ASLEEP)
    world.gateways[1].ready = False
    for _ in range(10):
        world.reconcile()
        world.pass_time(gateways=False)
    assert (state(world), pods(world)) == ("FallingAsleep", 2)
    world.run(3)
    assert (state(world), pods(world)) == ("Asleep", 0)


def test_refused_request_wakes_and_a_new_gateway_does_not() -> None:
    world = asleep()
    world.gateways[0] = ModelGateway("new", None, since=world.now)
    world.run(30)
    assert state(world) == "Asleep"
    world.gateways[0].last = world.now  # holding is off: it was refused, and is there no more
    world.run(2)
    assert state(world) == "Awake"


@pytest.mark.parametrize("change", [{"model": model("v2")}, {"autoscaling": None}], ids=["rollout", "no-more"])
def test_a_change_of_the_spec_wakes_it(change: dict[str, Any]) -> None:
    """A new revision shows that it gets ready before anything moves, as Knative's initial scale does."""
    world = asleep(steps=[{"setWeight": 50}])
    world.edit(**change)
    world.reconcile()
    assert state(world) == "Waking"
    if "model" not in change:
        world.run(3)
        assert state(world) is None
        assert pods(world) == 2
        return
    former = world.parsed().stable_revision
    world.run_until(None)
    assert world.parsed().stable_revision != former
    until(world, SleepState.ASLEEP)
    world.run(60)
    assert pods(world) == 0
    assert not world.gateways[0].refused


def test_a_rejected_rollout_sleeps_and_wakes_as_it_is() -> None:
    world = sleepy(steps=[{"setWeight": 50}, {"pause": {}}])
    world.edit(model=model("v2"))
    world.run_until("Paused")
    world.run(3 * IDLE_S)
    assert state(world) == "Awake", "a rollout in flight is not idle"
    world.edit(rollout__abort=world.parsed().rollout.attempt_token)  # type: ignore[union-attr]
    world.run_until("Aborted")
    until(world, SleepState.ASLEEP)
    world.run(60)
    assert (pods(world), world.state(), world.parsed().phase) == (0, "Aborted", "Degraded")
    assert "was rejected" in world.parsed().message
    world.gateways[0].visit(world)
    world.run(3)
    assert (state(world), world.state(), world.gateways[0].served) == ("Awake", "Aborted", 1)


def test_wake_without_pods_is_reported_in_time() -> None:
    world = asleep()
    world.broken.add(model("v1")["uri"])
    world.gateways[0].visit(world)
    world.run(30)
    assert condition(world, "Ready") == ("True", "Waking")
    world.run(60)
    assert condition(world, "Ready") == ("False", "NoReadyPods")
    assert world.parsed().phase == "Degraded"
    assert "CrashLoopBackOff" in world.parsed().message


def test_replicas_zero_in_the_spec_is_no_sleep() -> None:
    world = asleep()
    world.edit(replicas=0)
    world.gateways[0].visit(world)
    world.run(10)
    assert (state(world), pods(world)) == (None, 0)
    assert world.parsed().message.startswith("scaled to zero")


def test_requeue_is_when_something_can_change() -> None:
    world = sleepy()
    world.reconcile()
    assert 0 < (world.reconcile().requeue_after_s or 0) <= IDLE_S
    until(world, SleepState.FALLING_ASLEEP)
    world.run(3)
    assert state(world) == "Asleep"
    world.run(60)  # the condition about its ignored autoscaler is there by then
    assert world.reconcile().requeue_after_s == 60.0
    calls = world.calls
    world.run(120)
    assert world.calls == calls, "nothing is written while it sleeps"


class Unserved(ModelCluster):
    """A cluster whose gateways report for how long there has been no pod."""

    def observed(self) -> Observed:
        seen = super().observed()
        service = ServiceReport(unserved_s=3600.0)
        return replace(seen, gateways=tuple(replace(item, service=service) for item in seen.gateways))


def test_counts_of_gateways_from_the_sleep_are_ignored_after_the_wake() -> None:
    """Degraded and a Warning at the second reconcile after each wake: Ready stayed True since before the sleep."""
    world = asleep()
    for gateway in world.gateways:
        gateway.visit(world)
    world.__class__ = Unserved
    until(world, SleepState.WAKING)
    world.pass_time()
    until(world, SleepState.AWAKE)
    for _ in range(3):
        world.reconcile()
        assert condition(world, "Ready") == ("True", "Serving")
    world.pass_time(6)
    world.reconcile()
    assert condition(world, "Ready") == ("False", "NoEndpoints"), "a problem that lasts is shown"
