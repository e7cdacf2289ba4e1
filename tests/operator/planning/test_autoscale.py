"""The number of pods changes during rollouts; and which autoscaler may change it, with the condition about it."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.observed import Autoscaler, ScalerCondition
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.deployment import status as status_room
from tests.support.model_cluster import SETTINGS, START, ModelCluster, healthy, model
from tests.support.planned import plan

TOLERANCE = 0.1
WANTED = {"maxReplicas": 8, "metrics": [{"type": "QueueDepth", "target": "4"}]}
STRATEGIES: dict[str, dict[str, Any]] = {
    "canary": {"canary": {"steps": [{"setWeight": 10}, {"pause": {"duration": "5s"}}, {"setWeight": 50}]}},
    "blue-green": {"blueGreen": {}},
    "one by one": {"canary": {"steps": [{"setWeight": 30}]}, "capacity": {"maxSurge": 1}},
    "in place": {"canary": {"steps": [{"setWeight": 25}, {"setWeight": 75}]}, "capacity": {"maxSurge": 0}},
}


# --- the controller's arithmetic, after replica_calculator.go of Kubernetes 1.36 --------------------------------------


def by_demand(world: ModelCluster, demand: float, target: float) -> int:
    """An AverageValue of an Object or External metric: within the tolerance it leaves status.replicas as they are."""
    present = world.status.get("replicas", 0)
    ratio = demand / (target * present) if present else math.inf
    return present if abs(1 - ratio) <= TOLERANCE else math.ceil(demand / target)


def by_usage(world: ModelCluster, usage: Callable[[str], float], target: float) -> int:
    """A Resource metric: the mean over ready pods of the selector, times their number; else spec.replicas stay."""
    selected = world.status["selector"].rpartition(" in (")[2].rstrip(")").split(",")
    used = [usage(name) for name, item in world.pods.items() if name in selected for _ in range(item.ready)]
    if not used:
        return int(world.spec["replicas"])
    ratio = sum(used) / len(used) / target
    return int(world.spec["replicas"]) if abs(1 - ratio) <= TOLERANCE else math.ceil(ratio * len(used))


def rollout(world: ModelCluster, name: str, each_second: Callable[[int], None]) -> None:
    """A new version is rolled out, and promoted, reverted or replaced on its way."""
    world.edit(model=model("v2"))
    for second in range(90):
        if second == 8 and name == "abort":
            world.edit(rollout__abort=f"{world.parsed().current_revision}/1")
        if second == 8 and name == "supersede":
            world.edit(model=model("v3"))
        each_second(second)
        world.reconcile()
        world.pass_time()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("what", ["promotion", "abort", "supersede"])
def test_constant_demand_requests_the_same_pods_during_a_rollout(strategy: str, what: str) -> None:
    """Neither the pods that a rollout adds nor those that drain after it are taken for capacity that is needed.

    One pod more of ten is within the tolerance: counted in status.replicas, it would be added, then one more.
    """
    world = healthy(replicas=10, strategy=STRATEGIES[strategy])
    requested: set[int] = set()
    most: list[int] = []

    def hpa(_: int) -> None:
        requested.add(number := by_demand(world, demand=40, target=4))
        world.edit(replicas=number)
        most.append(sum(item.replicas for item in world.pods.values()))

    rollout(world, what, hpa)
    assert requested == {10}
    assert max(most) > 10 or strategy == "in place", (
        "there was a moment at which counting all pods would have been wrong"
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_constant_cpu_load_requests_the_same_pods_during_a_rollout(strategy: str) -> None:
    """Load follows the weight. Pods of former revisions, busy with their last streams, are not in the selector."""
    world = healthy(replicas=5, strategy=STRATEGIES[strategy])
    requested: set[int] = set()

    drained: set[str] = set()

    def share(name: str) -> float:
        parsed = world.parsed()
        if name not in (parsed.stable_revision, parsed.canary_revision):
            drained.add(name)
            return 60
        return 5 * 60 * (parsed.traffic.weight(name) / 100 if parsed.traffic else 0) / world.pods[name].ready

    def hpa(_: int) -> None:
        requested.add(number := by_usage(world, share, target=60))
        world.edit(replicas=number)

    rollout(world, "promotion", hpa)
    assert requested == {5}
    assert not drained, "their usage is never read"


@pytest.mark.parametrize("seed", range(8))
def test_hpa_random_walk_during_rollout(seed: int) -> None:
    """The world asserts I1-I7 on every write; this test asserts that it ends at the last demand and the spec."""
    chance = Random(seed)
    strategy = chance.choice(sorted(STRATEGIES))
    world = healthy(replicas=3, strategy=STRATEGIES[strategy])
    world.surge_changed = True  # a smaller number of pods has a smaller surge, and pods that must drain first
    world.delays_changed = world.replicas_walk = True

    def hpa(_: int) -> None:
        if chance.random() < 0.5:
            world.edit(replicas=max(1, min(8, by_demand(world, demand=chance.uniform(0, 40), target=4))))
        if chance.random() < 0.05:
            world.places = chance.choice((None, 8, 16))
        if chance.random() < 0.1:
            world.inflight = dict.fromkeys(world.pods, chance.randrange(3))

    rollout(world, chance.choice(("promotion", "abort", "supersede")), hpa)
    world.places, world.inflight = None, {}
    world.edit(replicas=4)
    world.run(200)
    parsed = world.parsed()
    assert world.state() in (None, "Aborted")
    assert {name: item.ready for name, item in world.pods.items()} == {parsed.stable_revision: 4}
    assert (parsed.replicas, world.spec["replicas"]) == (4, 4)


# --- autoscalers ------------------------------------------------------------------------------------------------------


def scaled(**spec: Any) -> ModelCluster:
    return healthy(autoscaling=WANTED, **spec)


def scaling_condition(world: ModelCluster) -> Condition:
    return next(item for item in world.parsed().conditions if item.type == "Autoscaling")


def hpa(name: str = "theirs", **fields: Any) -> Autoscaler:
    working = (ScalerCondition("AbleToScale", "True", "", ""), ScalerCondition("ScalingActive", "True", "", ""))
    return Autoscaler(name, False, True, START, {"minReplicas": 2, "maxReplicas": 6}, working, **fields)


def set_conditions(world: ModelCluster, *conditions: tuple[str, str, str, str]) -> None:
    """What the controller writes into the status of ours."""
    ours = world.autoscalers["chat-autoscaler"]
    world.autoscalers[ours.name] = replace(ours, conditions=tuple(ScalerCondition(*item) for item in conditions))


def test_without_an_autoscaler_there_is_no_condition() -> None:
    world = healthy()
    assert not [item for item in world.parsed().conditions if item.type == "Autoscaling"]


def test_autoscaler_comes_and_goes_with_the_field() -> None:
    world = healthy()
    world.edit(autoscaling=WANTED)
    world.reconcile()
    assert world.autoscalers["chat-autoscaler"].spec["maxReplicas"] == 8
    calls = world.calls
    world.reconcile()
    world.reconcile()
    assert world.calls == calls + 1, "the status alone: it is looked at now, and is not applied again"
    world.edit(autoscaling=None)
    world.run(2)
    assert not world.autoscalers
    assert not [item for item in world.parsed().conditions if item.type == "Autoscaling"]


def test_an_edit_by_hand_is_corrected_and_a_deletion_undone() -> None:
    world = scaled()
    ours = world.autoscalers["chat-autoscaler"]
    world.autoscalers[ours.name] = replace(ours, spec={**ours.spec, "maxReplicas": 99})
    world.reconcile()
    assert world.autoscalers[ours.name].spec["maxReplicas"] == 8
    world.autoscalers.clear()
    world.reconcile()
    assert "chat-autoscaler" in world.autoscalers


def test_the_spec_is_never_written() -> None:
    world = scaled(replicas=3)
    before = json.dumps(world.spec)
    world.run(30)
    assert json.dumps(world.spec) == before


@pytest.mark.parametrize(
    ("rival", "named"),
    [
        (hpa(), "HorizontalPodAutoscaler theirs and spec.autoscaling"),
        (hpa("keda-hpa-x", scaled_object="x"), "HorizontalPodAutoscaler keda-hpa-x of ScaledObject x and"),
    ],
)
def test_own_autoscaler_yields_to_a_rival_and_returns(rival: Autoscaler, named: str) -> None:
    world = scaled()
    world.autoscalers[rival.name] = rival
    world.run(2)
    assert set(world.autoscalers) == {rival.name}
    condition = scaling_condition(world)
    assert (condition.status, condition.reason) == ("False", "TwoScalers")
    assert condition.message.startswith(named)
    assert condition.message.endswith("until then spec.autoscaling steps back")
    del world.autoscalers[rival.name]
    world.run(2)
    assert set(world.autoscalers) == {"chat-autoscaler"}


def test_a_users_own_autoscaler_alone_works_and_two_of_them_do_not() -> None:
    world = healthy()
    world.autoscalers["theirs"] = hpa()
    world.run(2)
    assert (scaling_condition(world).status, scaling_condition(world).reason) == ("True", "ScalingActive")
    assert "theirs keeps 2 to 6 pods" in scaling_condition(world).message
    world.autoscalers["others"] = hpa("others")
    world.run(2)
    assert (scaling_condition(world).status, scaling_condition(world).reason) == ("False", "TwoScalers")
    assert "theirs and HorizontalPodAutoscaler others" in scaling_condition(world).message
    assert set(world.autoscalers) == {"theirs", "others"}, "those are not ours to delete"


def test_an_orphan_of_ours_is_adopted_where_one_is_wanted() -> None:
    """As any controller does; the rest of it may equal what we would write."""
    world = scaled()
    (ours,) = world.autoscalers.values()
    orphan = replace(ours, ours=False, orphan=True)
    world.autoscalers = {orphan.name: orphan}
    world.reconcile()
    assert world.autoscalers[ours.name].ours and scaling_condition(world).reason != "NameTaken"
    unwanted = healthy()
    unwanted.autoscalers = {orphan.name: orphan}
    unwanted.run(2)
    assert unwanted.autoscalers == {orphan.name: orphan}, "it is adopted only where one is wanted"


def test_foreign_autoscaler_with_our_name_is_kept() -> None:
    world = healthy()
    world.autoscalers["chat-autoscaler"] = replace(hpa("chat-autoscaler"), aims_here=False)
    world.edit(autoscaling=WANTED)
    world.run(2)
    assert scaling_condition(world).reason == "NameTaken"
    assert not world.autoscalers["chat-autoscaler"].ours


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (
            [("AbleToScale", "True", "", ""), ("ScalingActive", "True", "ValidMetricFound", "fine")],
            ("True", "ScalingActive", "keeps 1 to 8 pods and writes spec.replicas"),
        ),
        (
            [("AbleToScale", "True", "", ""), ("ScalingActive", "False", "FailedGetObjectMetric", "no fresh value")],
            ("False", "FailedGetObjectMetric", "no fresh value"),
        ),
        (
            [("AbleToScale", "False", "FailedGetScale", "forbidden"), ("ScalingActive", "True", "", "")],
            ("False", "FailedGetScale", "forbidden"),
        ),
        ([], ("False", "Starting", "was not looked at yet")),
    ],
)
def test_conditions_of_the_controller_are_shown(conditions: list[Any], expected: tuple[str, str, str]) -> None:
    world = scaled()
    set_conditions(world, *conditions)
    world.autoscalers["chat-autoscaler"] = replace(world.autoscalers["chat-autoscaler"], created_at=world.now)
    world.reconcile()
    condition = scaling_condition(world)
    assert (condition.status, condition.reason) == expected[:2]
    assert expected[2] in condition.message


def test_ignored_autoscaler_is_found_without_an_event() -> None:
    world = scaled()
    world.autoscalers["chat-autoscaler"] = replace(world.autoscalers["chat-autoscaler"], created_at=world.now)
    waits_s = world.reconcile().requeue_after_s
    assert waits_s is not None and waits_s <= 60
    world.pass_time(60)
    world.reconcile()
    assert scaling_condition(world).reason == "Inert"
    assert "does kube-controller-manager run its controller?" in scaling_condition(world).message
    assert world.reconcile().requeue_after_s is None, "then only an event can change it"


# --- which API the metrics come from ----------------------------------------------------------------------------------


def planned(world: ModelCluster, **providers: str) -> Plan:
    groups = {f"{name}.metrics.k8s.io": provider for name, provider in providers.items()}
    observed = replace(world.observed(), metrics_providers=groups)
    return plan(world.obj(), world.parsed(), observed, SETTINGS, world.now)


@pytest.mark.parametrize(
    ("providers", "kind"),
    [
        ({}, "Object"),
        ({"custom": "", "external": ""}, "Object"),
        ({"custom": "", "external": "keda"}, "Object"),
        ({"custom": "adapter", "external": ""}, "External"),
        ({"custom": "adapter", "external": "keda"}, "Object"),
    ],
)
def test_metrics_are_read_from_the_group_that_we_serve(providers: dict[str, str], kind: str) -> None:
    world = healthy()
    world.edit(autoscaling=WANTED)
    desired = planned(world, **providers).autoscaler
    assert desired
    created = desired.manifest
    assert [metric["type"] for metric in created["spec"]["metrics"]] == [kind]


def test_when_others_serve_both_groups_they_are_named() -> None:
    world = scaled()
    set_conditions(
        world, ("AbleToScale", "True", "", ""), ("ScalingActive", "False", "FailedGetObjectMetric", "not found")
    )
    decided = planned(world, custom="Service a/b (APIService x)", external="Service k/m (APIService y)")
    (condition,) = [item for item in decided.status.conditions if item.type == "Autoscaling"]
    assert (condition.status, condition.reason) == ("False", "MetricsApiTaken")
    for word in ("custom.metrics.k8s.io is served by Service a/b", "Service k/m", "not found"):
        assert word in condition.message


# --- other writers of spec.replicas -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "who"),
    [
        (
            {
                "managedFields": [
                    {"manager": "argocd", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
                ]
            },
            "argocd",
        ),
        (
            {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"spec":{"replicas":2}}'}},
            "kubectl apply",
        ),
        ({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"replicas": oops'}}, ""),
        ({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"spec":7,"replicas":1}'}}, ""),
        ({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"replicas":' + "[" * 50_000}}, ""),
        ({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"spec":{"a":{"replicas":2}}}'}}, ""),
        (
            {
                "managedFields": [
                    {
                        "manager": "kube-controller-manager",
                        "operation": "Update",
                        "subresource": "scale",
                        "fieldsV1": {"f:spec": {"f:replicas": {}}},
                    }
                ]
            },
            "",
        ),
    ],
    ids=["server-side", "client-side", "malformed", "no-map", "deep", "another-field", "the-autoscaler-itself"],
)
def test_a_manifest_that_also_sets_replicas_is_named(metadata: dict[str, Any], who: str) -> None:
    world = scaled()
    set_conditions(world, ("AbleToScale", "True", "", ""), ("ScalingActive", "True", "", ""))
    obj = world.obj()
    obj["metadata"] |= metadata
    decided = plan(obj, world.parsed(), world.observed(), SETTINGS, world.now)
    (condition,) = [item for item in decided.status.conditions if item.type == "Autoscaling"]
    assert condition.status == "True"
    assert (f"spec.replicas is also set by {who}:" in condition.message) is bool(who)
    assert ("also set" in condition.message) is bool(who)


def test_the_status_with_it_survives_the_wire() -> None:
    world = scaled()
    assert status_room.parse(status_room.render(world.parsed())) == world.parsed()
    assert world.now > START + timedelta(0)
