"""spec.restartAt: old pods make way one by one, and the service never has fewer."""

from tests.support.model_cluster import ModelCluster, healthy, model

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
