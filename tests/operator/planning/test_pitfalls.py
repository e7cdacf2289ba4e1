"""What others stumbled over: each pitfall once, by name."""

import random
from typing import Any

import pytest

from tests.support.model_cluster import ModelCluster, healthy, model

STEPS: list[dict[str, Any]] = [
    {"setCanaryScale": {"replicas": 2}},
    {"setWeight": 10},
    {"pause": {"duration": "4s"}},
    {"setWeight": 50},
    {"pause": {"duration": "4s"}},
]


def begun(seconds: int, *, replicas: int = 4, **capacity: Any) -> ModelCluster:
    """v2 has been on its way for so long."""
    delays = {"scaleDownDelaySeconds": 3, "abortScaleDownDelaySeconds": 3}
    world = healthy(replicas=replicas, strategy={"canary": {"steps": STEPS, **delays}, "capacity": capacity})
    world.edit(model=model("v2"))
    world.run(seconds)
    return world


def at_rest(world: ModelCluster) -> ModelCluster:
    world.run(120)
    return world


def abort(world: ModelCluster) -> None:
    rollout = world.parsed().rollout
    assert rollout
    world.edit(rollout__abort=f"{rollout.revision}/{rollout.attempt}")


@pytest.mark.parametrize("maxSurge", ["100%", 1, 0])
@pytest.mark.parametrize("second", range(0, 14, 2))
def test_abort_at_every_step(second: int, maxSurge: int | str) -> None:
    world = begun(second, maxSurge=maxSurge)
    if world.parsed().rollout is None:
        return
    abort(world)
    assert at_rest(world).weights() == {"v1": 100}
    assert [item.ready for item in world.pods.values()] == [4], "pods of the rejected revision left"


@pytest.mark.parametrize("maxSurge", ["100%", 1, 0])
@pytest.mark.parametrize("second", range(0, 14, 2))
def test_supersede_at_every_state(second: int, maxSurge: int | str) -> None:
    world = begun(second, maxSurge=maxSurge)
    world.edit(model=model("v3"))
    assert at_rest(world).weights() == {"v3": 100}
    assert [item.ready for item in world.pods.values()] == [4]


@pytest.mark.parametrize("second", range(0, 14, 2))
def test_revert_creates_no_pods(second: int) -> None:
    world = begun(second)
    if world.parsed().rollout is None:
        return
    before = set(world.pods)
    world.edit(model=model("v1"))
    at_rest(world)
    assert (world.weights(), world.parsed().phase) == ({"v1": 100}, "Healthy")
    assert set(world.pods) <= before


@pytest.mark.parametrize("seed", range(6))
def test_hpa_random_walk_during_rollout(seed: int) -> None:
    walk = random.Random(seed)
    world = begun(1, replicas=2)
    for _ in range(40):
        world.edit(replicas=max(1, min(6, int(world.spec["replicas"]) + walk.choice((-1, 0, 1)))))
        world.run(1)
    world.edit(replicas=3)
    assert at_rest(world).weights() == {"v2": 100}
    assert [item.ready for item in world.pods.values()] == [3]


def test_scaling_does_not_move_the_step_clock() -> None:
    world = begun(0, replicas=2)
    world.run_until("Paused")
    started = world.parsed().rollout.step_started_at  # type: ignore[union-attr]
    world.edit(replicas=4)
    world.run(2)
    assert world.parsed().rollout.step_started_at == started  # type: ignore[union-attr]


def test_spec_and_replicas_change_at_the_same_time() -> None:
    world = healthy(replicas=2)
    world.edit(model=model("v2"), replicas=5)
    world.run_until("Paused")
    assert sorted(item.desired for item in world.pods.values()) == [1, 5]


def test_tokens_replay_and_reorder() -> None:
    world = healthy(replicas=2, steps=[{"setWeight": 10}, {"pause": {}}, {"setWeight": 50}, {"pause": {}}])
    world.edit(model=model("v2"))
    world.run_until("Paused")
    first = world.parsed().rollout.token  # type: ignore[union-attr]
    world.edit(rollout__promote=first)
    world.run_until("Paused")
    for stale in (first, first.replace("/1/1", "/1/0"), first.replace("/1/1", "/2/3")):
        world.edit(rollout__promote=stale)
        world.run(20)
        assert world.weights() == {"v2": 50, "v1": 50}, stale


def test_stable_without_a_ready_pod_delays_an_abort_and_is_reported() -> None:
    world = begun(0, replicas=2)
    world.run_until("Paused")
    stable = world.parsed().stable_revision or ""
    world.broken = {"file:///models/v1"}
    world.pods[stable].ready = 0
    abort(world)
    world.run(5)
    assert world.weights()["v2"] > 0, "the only pods that answer keep their requests"
    assert "waits for ready pods of stable" in world.parsed().message
    world.broken = set()
    assert at_rest(world).weights() == {"v1": 100}


def without_stable(world: ModelCluster) -> None:
    """All pods of stable v1 are gone, and new ones do not start."""
    world.broken = {"file:///models/v1"}
    world.pods[world.parsed().stable_revision or ""].ready = 0


TIMED: list[dict[str, Any]] = [{"setWeight": 10}, {"pause": {"duration": "5s"}}, {"setWeight": 50}]


@pytest.mark.parametrize("maxSurge", ["100%", 1, 0])
def test_a_stable_without_a_ready_pod_holds_its_replacement_no_longer_than_the_deadline(maxSurge: int | str) -> None:
    world = healthy(replicas=4, strategy={"canary": {"steps": TIMED}, "capacity": {"maxSurge": maxSurge}})
    without_stable(world)
    world.edit(model=model("v2"))
    world.run(40)
    assert world.parsed().stable_revision != world.parsed().current_revision
    assert (
        "waits for pods of stable" in world.parsed().message and "goes on without them from" in world.parsed().message
    )
    world.run(90)
    assert (world.weights(), world.parsed().phase) == ({"v2": 100}, "Healthy")


def test_a_stable_that_is_back_before_the_deadline_is_waited_for() -> None:
    world = healthy(replicas=4, strategy={"canary": {"steps": TIMED}})
    without_stable(world)
    world.edit(model=model("v2"))
    for _ in range(3):
        world.run(40)
        stable = world.parsed().stable_revision or ""
        world.pods[stable].ready = 1
        world.run(1)
        world.pods[stable].ready = 0
    assert world.state() in ("Provisioning", "Shifting") and world.parsed().rollout
    world.broken = set()
    at_rest(world)
    assert world.weights() == {"v2": 100}


def test_a_pause_waits_for_its_promotion_though_stable_has_no_pods() -> None:
    world = begun(0, replicas=2)
    world.edit(strategy__canary__steps=[{"setWeight": 10}, {"pause": {}}, {"setWeight": 50}])
    world.run_until("Paused")
    without_stable(world)
    world.run(200)
    assert world.state() == "Paused"
    condition = next(one for one in world.parsed().conditions if one.type == "StableHealthy")
    assert (condition.status, condition.reason) == ("False", "StableLost")
    assert world.parsed().rollout
    world.edit(rollout__promote=world.parsed().rollout.step_token)  # type: ignore[union-attr]
    assert at_rest(world).weights() == {"v2": 100}


@pytest.mark.parametrize("aborted", [True, False])
def test_a_third_revision_goes_out_though_stable_has_no_ready_pod(*, aborted: bool) -> None:
    """The second one was rejected, or the third one supersedes it: its weight cannot return."""
    world = begun(0, replicas=2)
    world.run_until("Paused")
    without_stable(world)
    world.run(1)
    second = world.parsed().canary_revision
    if aborted:
        abort(world)
        world.run(200)
        assert world.state() == "Aborting" and world.weights()["v2"] > 0
    world.edit(model=model("v3"), strategy__canary__steps=[{"setWeight": 10}, {"pause": {}}])
    world.run_until("Paused")
    assert world.parsed().stable_revision == second and set(world.weights()) == {"v3", "v2"}
    assert "StableReplaced" in [event.reason for event in world.events]
    world.edit(rollout__promote=world.parsed().rollout.step_token)  # type: ignore[union-attr]
    assert at_rest(world).weights() == {"v3": 100}


def test_an_abort_of_what_is_already_stable_does_nothing() -> None:
    world = begun(0, replicas=2)
    world.run_until("Paused")
    token = f"{world.parsed().canary_revision}/1"
    world.run_until(None)
    world.edit(rollout__abort=token)
    assert at_rest(world).weights() == {"v2": 100}
    assert [item.ready for item in world.pods.values()] == [2]


def test_consecutive_canaries_fall_back_to_the_last_good_revision() -> None:
    world = healthy(replicas=2, strategy={"canary": {"steps": STEPS}})
    world.edit(model=model("v2"))
    world.run_until(None)
    at_rest(world)
    world.broken = {"file:///models/v3"}
    world.edit(model=model("v3"))
    world.run_until("Aborted")
    assert world.weights() == {"v2": 100}
    world.broken = set()
    world.edit(model=model("v4"))
    world.run_until("Paused")
    assert set(world.weights()) == {"v4", "v2"}


def test_a_rejected_revision_gets_no_pods_back_when_replicas_change() -> None:
    world = begun(0, replicas=2)
    world.run_until("Paused")
    rejected = world.parsed().canary_revision
    abort(world)
    at_rest(world)
    world.edit(replicas=5)
    at_rest(world)
    assert rejected not in world.pods


def test_a_promotion_in_progress_does_not_fall_back_to_weight_zero() -> None:
    world = begun(0, replicas=4)
    world.run_until("Promoting")
    world.edit(replicas=5)
    for _ in range(10):
        world.reconcile()
        assert world.weights()["v2"] >= 40, "two of five pods carry so much"
        world.pass_time(pods=False)


def test_one_node_that_never_gets_ready_does_not_stop_a_promotion_for_ever() -> None:
    world = healthy(replicas=4, steps=[{"setWeight": 50}])
    world.edit(model=model("v2"), strategy__canary__replicaProgressThreshold={"type": "Percent", "value": 75})
    world.places = 7
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_a_slow_load_is_progress_as_long_as_pods_come() -> None:
    world = healthy(replicas=4, steps=[{"setWeight": 100}], progressDeadlineSeconds=20)
    world.edit(model=model("v2"))
    world.reconcile()
    target = world.parsed().canary_revision or ""
    for ready in range(4):
        for _ in range(15):
            world.reconcile()
            world.pass_time(pods=False)
        world.pods[target].ready = ready + 1
    world.run_until(None)
    assert world.weights() == {"v2": 100}
