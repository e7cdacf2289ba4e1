"""Replicas of several pods: one LeaderWorkerSet for each revision, and groups in place of pods in all arithmetic."""

from dataclasses import replace

import pytest

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.planning.facts.groups import kept_pods
from tests.support.model_cluster import ModelCluster, cluster, healthy, model
from tests.support.planned import plan

TWO_NODES = {"type": "custom", "image": "engine:1", "command": ["serve"], "parallelism": {"nodes": 2}}
ONE_NODE = {"type": "custom", "image": "engine:1", "command": ["serve"]}


def accepted(world: ModelCluster) -> Condition:
    return next(item for item in world.parsed().conditions if item.type == "Accepted")


def planned(world: ModelCluster) -> Plan:
    return plan(world.obj(), world.parsed(), world.observed(), world.settings, world.now)


def reasons(world: ModelCluster) -> list[str]:
    return [event.reason for event in world.events]


def test_a_revision_of_groups_is_one_leader_worker_set_without_a_service_of_ours() -> None:
    world = cluster(engine=TWO_NODES)
    [record, group_set] = planned(world).create
    assert record.manifest["kind"] == "ControllerRevision"
    assert group_set.manifest["kind"] == "LeaderWorkerSet"
    assert group_set.manifest["metadata"]["name"] == record.manifest["metadata"]["name"]
    assert group_set.manifest["spec"]["replicas"] == 2
    assert group_set.manifest["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert group_set.uid is None


def test_a_canary_of_groups_is_promoted_and_the_former_revision_goes() -> None:
    world = healthy(engine=TWO_NODES, replicas=3)
    world.edit(model=model("v2"))
    world.run_until("Paused")
    assert {item.kind for item in world.pods.values()} == {"LeaderWorkerSet"}
    assert sorted(item.desired for item in world.pods.values()) == [1, 3], "counts are groups"
    world.edit(rollout={"promote": world.parsed().rollout.step_token})  # type: ignore[union-attr]
    world.run_until(None)
    world.run(1200, step=30)
    [left] = world.pods.values()
    assert (left.kind, left.desired, world.weights()) == ("LeaderWorkerSet", 3, {"v2": 100})


@pytest.mark.parametrize(("before", "after"), [(ONE_NODE, TWO_NODES), (TWO_NODES, ONE_NODE)], ids=["to two", "to one"])
def test_a_rollout_changes_the_kind_of_workload(before: dict[str, object], after: dict[str, object]) -> None:
    world = healthy(engine=before)
    world.edit(engine=after)
    world.run_until("Paused")
    assert sorted(item.kind for item in world.pods.values()) == ["LeaderWorkerSet", "ReplicaSet"]
    world.edit(rollout={"promote": world.parsed().rollout.step_token})  # type: ignore[union-attr]
    world.run_until(None)
    world.run(1200, step=30)
    [left] = world.pods.values()
    assert left.kind == ("LeaderWorkerSet" if after is TWO_NODES else "ReplicaSet")


def test_sleep_and_scaling_change_the_replicas_of_the_leader_worker_set() -> None:
    world = healthy(engine=TWO_NODES, replicas=1)
    world.edit(replicas=3)
    [scale] = planned(world).scale
    assert (scale.kind, scale.replicas) == ("LeaderWorkerSet", 3)


@pytest.mark.parametrize("reason", ["LeaderWorkerSetNotInstalled", "LeaderWorkerSetForbidden"])
def test_without_leader_worker_set_nothing_is_made_and_what_serves_goes_on(reason: str) -> None:
    world = healthy()
    world.no_groups = reason
    world.edit(model=model("v2"), engine=TWO_NODES)
    decided = world.reconcile()
    assert (decided.create, decided.scale, decided.delete) == ((), (), ())
    assert (accepted(world).status, accepted(world).reason, world.parsed().phase) == ("False", reason, "Degraded")
    assert "spec.engine.parallelism.nodes is 2" in accepted(world).message
    assert len(world.snapshots) == 1 and world.weights() == {"v1": 100}
    assert decided.requeue_after_s == 30, "no event reports that it is installed"
    world.reconcile()
    assert reasons(world).count(reason) == 1
    world.no_groups = ""
    world.run_until("Paused")
    assert accepted(world).status == "True"


def test_a_first_revision_waits_for_the_installation_too() -> None:
    world = cluster(engine=TWO_NODES)
    world.no_groups = "LeaderWorkerSetNotInstalled"
    decided = planned(world)
    assert (decided.create, decided.requeue_after_s) == ((), 30)
    assert "helm install lws" in decided.status.message


def test_a_rollout_to_one_machine_goes_on_when_leader_worker_set_is_gone() -> None:
    world = healthy(engine=TWO_NODES)
    world.no_groups = "LeaderWorkerSetNotInstalled"
    world.pods.clear()
    world.edit(engine=ONE_NODE)
    kinds = [item.manifest["kind"] for item in planned(world).create]
    assert "LeaderWorkerSet" not in kinds


def test_autoscalers_count_leaders_alone() -> None:
    assert (healthy(engine=TWO_NODES).parsed().selector or "").endswith(",app.kubernetes.io/component=server")
    assert "component" not in (healthy().parsed().selector or "")


def test_pods_of_groups_may_talk_with_one_another() -> None:
    assert planned(healthy(engine=TWO_NODES)).grouped
    assert not planned(healthy()).grouped


@pytest.mark.parametrize(
    ("groups", "desired", "size", "pods"),
    [(2, 3, 1, 2), (3, 3, 1, 3), (2, 3, 4, 11), (3, 3, 4, 12), (1, 1, 4, 4), (0, 1, 4, 0)],
)
def test_one_eviction_ends_one_group_and_the_next_waits_for_it(groups: int, desired: int, size: int, pods: int) -> None:
    assert kept_pods(groups, desired, size) == pods


@pytest.mark.parametrize(
    ("ready", "kept"),
    [((False, True), 2), ((None, True), 2), ((True, True), 1), ((True, False), 1), ((False, False), 1)],
    ids=["the first starts again", "the first is gone with its node", "all are ready", "the highest is not", "none is"],
)
def test_a_group_that_serves_is_not_removed_for_one_that_does_not(ready: tuple[bool | None, bool], kept: int) -> None:
    """A drained node: group 0 was evicted, and the set would remove group 1, which is its successor."""
    world = healthy(engine=TWO_NODES, replicas=1)
    seen = world.observed()
    [(revision, item)] = seen.workloads.items()
    pods = tuple(
        replace(item.pods[0], name=f"g-{index}", group=str(index), ready=bool(state))
        for index, state in enumerate(ready)
        if state is not None
    )
    grown = replace(item, desired=2, replicas=2, ready=sum(map(bool, ready)), pods=pods)
    seen = replace(seen, workloads={revision: grown})
    decided = plan(world.obj(), world.parsed(), seen, world.settings, world.now)
    assert [scale.replicas for scale in decided.scale] == ([] if kept == 2 else [1])


def test_the_budget_counts_pods() -> None:
    assert planned(healthy(engine=TWO_NODES, replicas=3)).min_available == 5
    assert planned(healthy(engine=TWO_NODES, replicas=1)).min_available == 2


def test_a_group_is_evicted_as_a_whole() -> None:
    world = healthy(engine=TWO_NODES, replicas=1)
    seen = world.observed()
    [(revision, item)] = seen.workloads.items()
    leaders = [replace(item.pods[0], name=f"g-{index}", group=str(index), ready=True) for index in (0, 1)]
    pods = (replace(leaders[0], leaving=True), leaders[1])
    seen = replace(seen, workloads={revision: replace(item, desired=2, replicas=2, ready=2, pods=pods)})
    [evict] = plan(world.obj(), world.parsed(), seen, world.settings, world.now).evict
    assert (evict.pod, evict.with_group) == ("g-0", True)
