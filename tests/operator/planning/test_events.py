"""Events about pods, weights and drains: once per change, and never a false one."""

from slipway_operator.model.cluster.plan import Event
from tests.support.model_cluster import ModelCluster, healthy, model

CANARY = {"steps": [{"setWeight": 50}, {"pause": {}}], "scaleDownDelaySeconds": 5, "abortScaleDownDelaySeconds": 5}


def paused() -> ModelCluster:
    """v1 is stable, v2 waits for a promotion at half of the requests."""
    world = healthy(replicas=2, strategy={"canary": CANARY})
    world.edit(model=model("v2"))
    world.run_until("Paused")
    world.events.clear()
    return world


def events_of(world: ModelCluster, *reasons: str) -> list[Event]:
    return [event for event in world.events if event.reason in reasons]


def test_drain_has_an_event_at_its_start_and_its_end() -> None:
    world = paused()
    stable = world.parsed().stable_revision or ""
    world.edit(rollout={"promote": world.parsed().rollout.token})  # type: ignore[union-attr]
    world.run(60)
    drain = events_of(world, "DrainStarted", "DrainCompleted", "DrainTimedOut")
    assert [(event.type, event.reason) for event in drain] == [("Normal", "DrainStarted"), ("Normal", "DrainCompleted")]
    assert all(stable in event.message for event in drain)


def test_drain_that_times_out_reports_the_requests_left() -> None:
    world = paused()
    stable = world.parsed().stable_revision or ""
    world.inflight[stable] = 3
    world.edit(rollout={"promote": world.parsed().rollout.token}, drain={"timeoutSeconds": 20})  # type: ignore[union-attr]
    world.run(60)
    (late,) = events_of(world, "DrainCompleted", "DrainTimedOut")
    assert (late.type, late.reason) == ("Warning", "DrainTimedOut")
    assert late.message == f"the pods of revision {stable} leave with 6 requests in progress"  # three at each gateway


def test_end_of_a_pause_has_an_event() -> None:
    world = paused()
    world.edit(rollout={"promote": world.parsed().rollout.token})  # type: ignore[union-attr]
    world.run(5)
    (resumed,) = events_of(world, "RolloutResumed")
    assert resumed.message.endswith("goes on after the pause at step 2 of 2, attempt 1")


def test_lost_stable_revision_has_one_event_and_blocks_an_abort() -> None:
    world = paused()
    status = world.parsed()
    world.broken.add("hf://org/v1")
    world.broken.add(status.stable_revision or "")
    world.pods[status.stable_revision or ""].ready = 0
    for _ in range(5):
        world.reconcile()
    assert [event.type for event in events_of(world, "StableUnavailable")] == ["Warning"]
    assert not events_of(world, "AbortBlocked")

    world.edit(rollout={"abort": status.rollout.attempt_token})  # type: ignore[union-attr]
    for _ in range(5):
        world.reconcile()
        world.pass_time(pods=False)
    (blocked,) = events_of(world, "AbortBlocked")
    assert f"keeps weight 50 until a pod of stable {status.stable_revision} is ready" in blocked.message
    assert len(events_of(world, "StableUnavailable")) == 1
