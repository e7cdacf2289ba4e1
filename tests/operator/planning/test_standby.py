"""Standby pods: they wait with a loaded model, serve when there are more replicas, and wait again when fewer."""

from dataclasses import replace

import pytest

from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Pod, Snapshot, Workload
from slipway_operator.model.inputs.pod_inputs import parse_inputs
from slipway_operator.planning.facts import standby
from tests.support.model_cluster import Crashed, ModelCluster, cluster, healthy, model


def waiting(count: int = 1, **options: object) -> ModelCluster:
    """A cluster whose only revision serves, and whose standby pods have loaded."""
    world = healthy(standbyReplicas=count, **options)  # type: ignore[arg-type]
    world.run(10)
    return world


def counts(world: ModelCluster) -> tuple[int, int, int]:
    """Pods of stable's own ReplicaSet, its standby pods that serve, and those that wait with a loaded model."""
    stable = world.parsed().stable_revision or ""
    pods = world.standby[stable].pods if stable in world.standby else []
    return world.pods[stable].desired, len(world.serving(stable)), sum(pod.loaded and not pod.serves for pod in pods)


def shown(world: ModelCluster) -> tuple[int, int, int] | None:
    status = world.parsed().standby
    return (status.replicas, status.ready, status.serving) if status else None


def reasons(world: ModelCluster) -> list[str]:
    return [event.reason for event in world.events if event.reason.startswith("Standby")]


def test_without_the_field_there_are_no_standby_pods() -> None:
    world = healthy()
    world.run(10)
    assert (world.standby, shown(world)) == ({}, None)


def test_pods_wait_beside_the_replicas_and_count_as_none() -> None:
    world = waiting(2, replicas=3)
    status = world.parsed()
    assert counts(world) == (3, 0, 2)
    assert (status.replicas, status.ready, shown(world)) == (3, "3/3", (2, 2, 0))
    assert status.revisions[0].standby_uid == "uid-" + world.standby[status.revisions[0].revision].name


def test_they_are_only_made_once_there_is_a_stable_revision() -> None:
    world = cluster(standbyReplicas=1, replicas=2)
    world.broken.add("file:///models/v1")
    world.run(10)
    assert (world.parsed().stable_revision, world.standby) == (None, {})
    world.broken.clear()
    world.run(10)
    assert (counts(world), reasons(world)) == ((2, 0, 1), [])


def test_with_more_replicas_a_standby_pod_serves_at_once_and_no_other_pod_is_made() -> None:
    world = waiting(1, replicas=2)
    world.edit(replicas=3)
    world.reconcile()
    assert counts(world) == (2, 1, 0)
    world.pass_time()
    world.reconcile()
    assert (world.parsed().replicas, world.parsed().ready) == (3, "3/3"), "one second later"
    world.run(10)
    assert (counts(world), shown(world), reasons(world)) == ((2, 1, 1), (1, 1, 1), ["StandbyPodsServing"])


def test_replicas_beyond_the_loaded_pods_are_new_ones() -> None:
    world = waiting(2, replicas=1)
    world.edit(replicas=6)
    world.reconcile()
    assert counts(world) == (4, 2, 0)


def test_a_pod_that_has_not_loaded_serves_nothing() -> None:
    world = waiting(1, replicas=1)
    world.standby_loads_s = 1000
    world.edit(standbyReplicas=3)
    world.run(3)
    world.edit(replicas=4)
    world.reconcile()
    assert counts(world) == (3, 1, 0)


def test_with_fewer_replicas_standby_pods_wait_again_before_any_other_pod_leaves() -> None:
    world = waiting(2, replicas=2)
    world.edit(replicas=4)
    world.run(10)
    assert counts(world) == (2, 2, 2)
    served = {pod.name for pod in world.serving(world.parsed().stable_revision or "")}
    world.edit(replicas=3)
    world.run(10)
    assert counts(world) == (2, 1, 2)
    world.edit(replicas=1)
    world.run(10)
    assert (counts(world), shown(world)) == ((1, 0, 2), (2, 2, 0))
    assert "StandbyPodsWaiting" in reasons(world) and served


def test_of_fewer_replicas_pods_that_only_start_leave_before_one_that_serves() -> None:
    world = waiting(1, replicas=2)
    world.edit(replicas=5)
    world.reconcile()
    world.pass_time(pods=False)
    world.run_until(None)
    assert counts(world)[:2] == (4, 1)
    stable = world.pods[world.parsed().stable_revision or ""]
    stable.ready = 2
    world.edit(replicas=3)
    world.reconcile()
    assert counts(world)[:2] == (2, 1)
    world.edit(replicas=2)
    world.reconcile()
    assert counts(world)[:2] == (2, 0)


def test_up_and_down_again_starts_no_pod_of_the_revision_itself() -> None:
    world = waiting(1, replicas=2)
    made = list(world.pods[world.parsed().stable_revision or ""].made)
    for replicas in (3, 2, 3, 2):
        world.edit(replicas=replicas)
        world.run(5)
    assert world.pods[world.parsed().stable_revision or ""].made == made


def test_a_standby_pod_serves_in_place_of_one_that_is_gone() -> None:
    """A pod that served with the low priority, whose node others took."""
    world = waiting(1, replicas=2)
    world.edit(replicas=3)
    world.run(10)
    stable = world.parsed().stable_revision or ""
    world.standby[stable].pods = [pod for pod in world.standby[stable].pods if not pod.serves]
    world.reconcile()
    assert counts(world)[:2] == (2, 1)
    world.run(10)
    assert (counts(world), world.parsed().ready) == ((2, 1, 1), "3/3")


def test_where_no_standby_pod_is_left_a_new_pod_is_one_of_the_revision_itself() -> None:
    world = waiting(1, replicas=2)
    world.edit(replicas=3)
    world.run(10)
    stable = world.parsed().stable_revision or ""
    world.standby[stable].pods = []
    world.run(10)
    assert (counts(world), world.parsed().ready) == ((3, 0, 1), "3/3")


def test_a_canary_has_none_and_the_promoted_revision_gets_them() -> None:
    world = waiting(2, replicas=2)
    world.edit(replicas=3)
    world.run(5)
    former = world.parsed().stable_revision or ""
    world.edit(model=model("v2"))
    world.run_until("Paused")
    canary = world.parsed().canary_revision or ""
    assert set(world.standby) == {former} and canary != former
    world.edit(rollout__promoteFull=canary)
    world.run_until(None)
    world.run(120)
    assert set(world.standby) == {canary}, "those of the former revision are gone"
    assert counts(world) == (3, 0, 2)


def test_they_go_with_the_field() -> None:
    world = waiting(2, replicas=1)
    world.edit(standbyReplicas=None)
    world.run(5)
    assert (world.standby, shown(world)) == ({}, None)


def test_those_that_serve_go_on_without_the_field() -> None:
    world = waiting(1, replicas=1)
    world.edit(replicas=2)
    world.run(5)
    world.edit(standbyReplicas=None)
    world.run(5)
    assert (counts(world), shown(world)) == ((1, 1, 0), (0, 0, 1))


def test_a_sleeping_deployment_keeps_them_and_wakes_by_them() -> None:
    autoscaling = {"minReplicas": 0, "maxReplicas": 4, "idleSeconds": 60, "metrics": []}
    metrics = [{"type": "QueueDepth", "target": "4"}]
    world = waiting(1, replicas=1, autoscaling=autoscaling | {"metrics": metrics})
    world.run(200)
    assert (world.parsed().phase, counts(world)) == ("Asleep", (0, 0, 1))
    world.edit(model=model("v1") | {"version": "v1"}, replicas=2)
    for gateway in world.gateways:
        gateway.held = 1
    world.run(4)
    assert counts(world)[:2] == (1, 1)


def test_stopped_by_its_owner_it_has_none() -> None:
    world = waiting(1, replicas=1)
    world.edit(replicas=0)
    world.run(5)
    assert world.standby == {}


def test_a_pod_older_than_restart_at_or_on_a_drained_node_is_made_again() -> None:
    world = waiting(2, replicas=1)
    stable = world.parsed().stable_revision or ""
    before = {pod.name for pod in world.standby[stable].pods}
    world.run(60)
    world.drained_before = world.now
    world.run(30)
    assert not before & {pod.name for pod in world.standby[stable].pods}
    assert counts(world)[2] == 2
    world.drained_before, before = None, {pod.name for pod in world.standby[stable].pods}
    world.run(60)
    world.edit(restartAt=world.now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    world.run(60)
    assert not before & {pod.name for pod in world.standby[stable].pods}


@pytest.mark.parametrize("calls", range(1, 14))
def test_killed_at_any_call_it_comes_to_the_same_end(calls: int) -> None:
    """The label and the gate of a pod are two writes."""
    ends = []
    for crash in (None, calls):
        world = waiting(2, replicas=2)
        world.calls_until_crash = None if crash is None else world.calls + crash
        for replicas in (4, 3, 2):
            world.edit(replicas=replicas)
            for _ in range(6):
                try:
                    world.reconcile()
                except Crashed:
                    world.calls_until_crash = None
                world.pass_time()
        world.run(10)
        ends.append((counts(world), shown(world), world.fixpoint()))
    assert ends[0] == ends[1] and ends[0][0] == (2, 0, 2)


def test_a_label_or_gate_that_others_changed_is_put_right() -> None:
    world = waiting(2, replicas=1)
    stable = world.parsed().stable_revision or ""
    pods = world.standby[stable].pods
    world.standby[stable].pods = [replace(pods[0], serves=True), replace(pods[1], gate_open=True)]
    world.run(5)
    assert (counts(world), any(pod.gate_open for pod in world.standby[stable].pods)) == ((1, 0, 2), False)


# --- the parts --------------------------------------------------------------------------------------------------------


def pod(name: str, *, serves: bool, ready: bool = True) -> Pod:
    return Pod(name, healthy().now, ready, uid=name, loaded=True, serves=serves)


def test_of_standby_pods_only_those_that_serve_count() -> None:
    own = Workload("a", 2, 2, 1, pods=(pod("x", serves=True), pod("y", serves=True, ready=False)), name="chat-a")
    beside = (pod("s", serves=True), pod("t", serves=False, ready=False))
    [joined], others = standby.joined(
        [own, Workload(labels.standby_of("a"), 2, 2, 1, pods=beside, scheduled=("s", "t"))]
    )
    assert (joined.desired, joined.replicas, joined.ready, joined.scheduled) == (3, 3, 2, ("s",))
    assert [one.name for one in joined.pods] == ["s", "x", "y"]
    assert list(others) == ["a"]


@pytest.mark.parametrize(
    "fields", [{"engine": {"type": "vllm", "parallelism": {"nodes": 2}}}, {"pool": {"name": "models"}}]
)
def test_a_revision_without_pods_of_its_own_has_none(fields: dict[str, object]) -> None:
    assert not standby.may_have(None)
    plain = Snapshot("a", 1, parse_inputs({"model": {"uri": "file:///m"}}, "chat"), "image", 600, 3)
    assert standby.may_have(plain)
    task = {"task": "predict"} if "pool" in fields else {}
    inputs = parse_inputs({"model": {"uri": "file:///m", **task}, **fields}, "chat")
    assert not standby.may_have(replace(plain, inputs=inputs))
