"""Rollouts where nodes are short: surge, one by one, one place only, and waiting out loud."""

import pytest

from slipway_operator.planning.sizing.canary import replicas_for, weight_carried
from tests.support.model_cluster import ModelCluster, healthy, model

STEPS = [{"setWeight": 10}, {"pause": {"duration": "5s"}}, {"setWeight": 50}, {"pause": {"duration": "5s"}}]
LIMITS = {"surgeTimeoutSeconds": 20, "deadlineSeconds": 60}


def short(replicas: int, places: int, **capacity: object) -> ModelCluster:
    """v1 serves; the nodes have room for `places` pods in all; v2 is rolled out."""
    canary = {"steps": STEPS, "scaleDownDelaySeconds": 5, "abortScaleDownDelaySeconds": 5}
    world = healthy(replicas=replicas, strategy={"canary": canary, "capacity": {**LIMITS, **capacity}})
    world.places = places
    world.edit(model=model("v2"))
    return world


def least_ready(world: ModelCluster, state: str | None, limit_s: int = 600) -> int:
    """Run until the state; the fewest pods that were ready for the requests at any moment."""
    least = 10**6
    for _ in range(limit_s):
        world.reconcile()
        weights = {b.revision: b.weight for b in world.parsed().traffic.backends}  # type: ignore[union-attr]
        least = min(least, sum(world.pods[name].ready for name, weight in weights.items() if name in world.pods))
        if world.state() == state and len([p for p in world.pods.values() if p.desired]) == 1:
            return least
        world.pass_time()
    raise AssertionError(f"not {state} but {world.state()}: {world.parsed().message}")


@pytest.mark.parametrize("carriers", [1, 2, 3, 4, 7, 10, 64])
def test_weights_and_pods_fit_together_without_a_remainder(carriers: int) -> None:
    for pods in range(carriers + 1):
        weight = weight_carried(pods, carriers)
        assert replicas_for(weight, carriers) == pods
        assert replicas_for(100 - weight, carriers) <= carriers - pods


@pytest.mark.parametrize("spare", [1, 4])
def test_with_spare_nodes_stable_stays_whole(spare: int) -> None:
    surge = {"maxSurge": spare}
    world = short(4, 4 + spare, **surge)
    assert least_ready(world, None) >= 4
    assert "CapacityUnavailable" not in [event.reason for event in world.events]


def test_without_spare_nodes_pods_are_replaced_one_by_one() -> None:
    world = short(4, 4)
    world.run(3)
    status = world.parsed()
    assert (status.rollout and status.rollout.state) == "CapacityWait"
    assert "waits for capacity since 2026-01-01T00:00:" in status.message
    assert "1 pod finds no node: nvidia.com/gpu missing, too little is free on 1 of 1 nodes" in status.message
    assert [c.reason for c in status.conditions if c.type == "CapacityAvailable"] == ["InsufficientCapacity"]
    assert least_ready(world, None) >= 3
    assert world.weights() == {"v2": 100}
    assert "CapacityModeChanged" in [event.reason for event in world.events]
    modes = [decision.message for decision in world.parsed().decisions if decision.row == "capacity-fallback"]
    assert modes == ["no further pods for 20 s: going on in mode Replace"]


def test_max_surge_zero_replaces_at_once() -> None:
    world = short(4, 4, maxSurge=0)
    assert least_ready(world, None) >= 3
    assert "CapacityUnavailable" not in [event.reason for event in world.events]


def test_require_surge_waits_until_the_deadline_and_steps_back() -> None:
    world = short(2, 2, policy="RequireSurge")
    assert least_ready(world, "Aborted") == 2
    assert "no capacity for 60 s" in world.parsed().message
    assert world.weights() == {"v1": 100}


def test_require_surge_goes_on_when_a_node_comes() -> None:
    world = short(2, 2, policy="RequireSurge")
    world.run(30)
    assert world.state() == "CapacityWait"
    world.places = 4
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_only_pod_is_not_replaced_without_allow_recreate() -> None:
    world = short(1, 1)
    assert least_ready(world, "Aborted") == 1
    assert world.weights() == {"v1": 100}


def test_no_surge_with_one_pod_is_refused_with_the_remedy() -> None:
    world = short(1, 1, maxSurge=0)
    world.run(3)
    assert "raise spec.strategy.capacity.maxSurge, or set spec.strategy.capacity.policy to AllowRecreate" in (
        world.parsed().message
    )
    world.run_until("Aborted")


def test_recreate_makes_room_and_gateways_hold_requests() -> None:
    world = short(1, 1, policy="AllowRecreate", holdSeconds=25)
    world.run(2)
    assert world.parsed().traffic.hold_seconds == 25  # type: ignore[union-attr]
    least_ready(world, None)
    assert world.weights() == {"v2": 100}


def test_recreate_of_a_broken_revision_gives_the_place_back() -> None:
    world = short(1, 1, policy="AllowRecreate")
    world.broken = {"file:///models/v2"}
    least_ready(world, "Aborted")
    world.run(30)
    stable = world.parsed().stable_revision or ""
    assert (world.weights(), world.pods[stable].ready) == ({"v1": 100}, 1)


@pytest.mark.parametrize("second", [1, 2, 3, 5, 7, 9, 11])
@pytest.mark.parametrize("places", [4, 5])
def test_abort_at_any_moment_keeps_the_floor(second: int, places: int) -> None:
    world = short(4, places, maxSurge=places - 4)
    world.run(second)
    rollout = world.parsed().rollout
    if rollout is None:
        pytest.skip("the rollout was faster")
    world.edit(rollout__abort=f"{rollout.revision}/1")
    assert least_ready(world, "Aborted") >= 3
    assert world.weights() == {"v1": 100}
    world.run(20)
    assert world.pods[world.parsed().stable_revision or ""].ready == 4


def test_a_wait_for_nodes_does_not_use_up_the_progress_deadline() -> None:
    world = short(2, 2, policy="RequireSurge", deadlineSeconds=600)
    world.run(200)
    assert world.state() == "CapacityWait"


def test_pause_stops_the_capacity_clocks() -> None:
    world = short(2, 2)
    world.run(2)
    world.edit(paused=True)
    world.run(200)
    assert world.state() == "CapacityWait"
    assert world.weights() == {"v2": 0, "v1": 100}


HOPELESS = (
    "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: "
    "0/1 nodes are available: 1 Preemption is not helpful for scheduling."
)


def test_no_pod_is_removed_for_a_pod_that_would_not_fit_anyway() -> None:
    world = short(4, 4)
    world.scheduling_message = HOPELESS
    assert least_ready(world, "Aborted") == 4
    status = world.parsed()
    assert status.rollout and status.rollout.abort and status.rollout.abort.reason == "InsufficientCapacity"
    assert "CapacityModeChanged" not in [event.reason for event in world.events]


def test_a_missing_claim_is_no_lack_of_capacity() -> None:
    world = short(2, 2)
    world.scheduling_message = (
        '0/1 nodes are available: persistentvolumeclaim "weights" not found. preemption: not helpful'
    )
    world.run(5)
    conditions = {item.type: (item.status, item.reason) for item in world.parsed().conditions}
    assert (world.state(), conditions["CanaryHealthy"]) == ("Provisioning", ("False", "ClaimNotFound"))
    assert (world.parsed().reason, conditions["Available"]) == ("ClaimNotFound", ("True", "PodsReady"))
    world.run_until("Aborted")
    assert world.parsed().reason == "ProgressDeadlineExceeded"
