"""spec.restartAt and drains of nodes: old pods make way one by one, and the service never has fewer."""

import pytest

from tests.support.model_cluster import ModelCluster, healthy, model
from tests.support.planned import plan

MOMENT = "2026-01-01T00:01:00Z"


def restarted(replicas: int, seconds: int = 120) -> tuple[ModelCluster, int]:
    """The world after a requested restart, and the fewest pods that were ready on the way."""
    world = healthy(replicas=replicas)
    world.edit(restartAt=MOMENT)
    least = replicas
    for _ in range(seconds):
        world.reconcile()
        least = min(least, *(item.ready for item in world.pods.values()))
        world.pass_time()
    return world, least


def test_every_old_pod_is_replaced_and_none_is_missed() -> None:
    for replicas in (1, 3):
        world, least = restarted(replicas)
        (pods,) = world.pods.values()
        assert (len(pods.made), pods.desired, least) == (replicas, replicas, replicas)
        assert all(made.minute >= 1 for made in pods.made)
        assert [event.reason for event in world.events].count("PodRestarted") == replicas


def test_nothing_happens_before_the_moment_nor_after_it_is_done() -> None:
    world = healthy()
    world.edit(restartAt=MOMENT)
    world.run(20)
    assert "PodRestarted" not in [event.reason for event in world.events]
    world, _ = restarted(2)
    calls = world.calls
    world.run(60)
    assert world.calls == calls


def test_a_pod_that_is_not_ready_goes_first_and_at_once() -> None:
    world = healthy(replicas=2)
    world.edit(restartAt=MOMENT)
    world.pass_time(120)
    (pods,) = world.pods.values()
    pods.ready = 1
    world.reconcile()
    assert len(pods.made) == 1


def test_a_rollout_makes_new_pods_anyway() -> None:
    world = healthy()
    world.pass_time(70)
    world.edit(model=model("v2"), restartAt=MOMENT)
    world.run_until("Paused")
    assert "PodRestarted" not in [event.reason for event in world.events]


# --- drains -----------------------------------------------------------------------------------------------------------


def budget(world: ModelCluster) -> int | None:
    """The pods that evictions by others must leave."""
    return plan(world.obj(), world.parsed(), world.observed(), world.settings, world.now).min_available


def drained(replicas: int, **options: object) -> ModelCluster:
    """A cluster in which every node that has a pod is drained."""
    world = healthy(replicas=replicas, **options)  # type: ignore[arg-type]
    world.pass_time(60)
    world.drained_before = world.now
    return world


@pytest.mark.parametrize("replicas", [1, 3])
def test_each_pod_of_a_drained_node_goes_when_another_is_ready(replicas: int) -> None:
    world = drained(replicas)
    least = replicas
    for _ in range(120):
        world.reconcile()
        least = min(least, *(item.ready for item in world.pods.values()))
        world.pass_time()
    (pods,) = world.pods.values()
    assert (len(pods.made), pods.desired, least) == (replicas, replicas, replicas)
    assert world.drained_before and all(made >= world.drained_before for made in pods.made)
    messages = [event.message for event in world.events if event.reason == "PodRestarted"]
    assert len(messages) == replicas and all(
        one.endswith("makes way: its node is drained or unreachable") for one in messages
    )


def test_a_paused_deployment_leaves_a_drained_node_too() -> None:
    world = drained(1)
    world.edit(paused=True)
    world.run(30)
    (pods,) = world.pods.values()
    assert world.drained_before and pods.made[0] >= world.drained_before and len(pods.made) == 1


@pytest.mark.parametrize(("replicas", "seen", "expected"), [(1, True, 1), (1, False, 0), (2, True, 1), (4, True, 3)])
def test_others_may_evict_one_pod_but_never_the_only_one(replicas: int, seen: bool, expected: int) -> None:
    world = healthy(replicas=replicas)
    world.sees_drains = seen
    assert budget(world) == expected


def test_the_only_pod_is_kept_until_its_successor_is_ready() -> None:
    world = drained(1)
    world.reconcile()
    (pods,) = world.pods.values()
    assert (pods.desired, budget(world)) == (2, 1)


def test_the_only_pod_may_be_evicted_when_no_node_takes_another_one_in_time() -> None:
    world = drained(1)
    world.places = 1
    world.run(30)
    (pods,) = world.pods.values()
    assert (pods.replicas, pods.ready, budget(world)) == (2, 1, 1)
    world.run(60)
    assert budget(world) == 0 and pods.ready == 1, "the operator itself does not take the only pod"


def test_without_replicas_nothing_is_protected() -> None:
    world = healthy()
    world.edit(replicas=0)
    world.run(30)
    assert budget(world) == 0


def test_a_refused_spec_leaves_the_budget_as_it_is() -> None:
    world = healthy(replicas=1)
    world.edit(pod={"schedulerName": "own"})
    assert budget(world) is None
