"""Baseline pods: fresh pods of stable that the canary is compared with, and that carry no other traffic."""

import copy
from typing import Any

import pytest

from slipway_operator.model.labels import baseline_of
from tests.operator.planning.test_analysis import BAD, QUICK, event_message, reasons, run_of, step
from tests.support.model_cluster import ModelCluster, healthy, model

STEPS = ({"setWeight": 20}, step(maxDuration="10m"), {"setWeight": 50}, {"pause": {}})


def deployed(*steps: dict[str, Any], replicas: int = 4, warmup_s: int = 0, **capacity: Any) -> ModelCluster:
    """v1 serves under load, and its spec requires baselines."""
    canary = {"steps": list(steps or STEPS), "baselinePod": True, "scaleDownDelaySeconds": 5}
    world = healthy(replicas=replicas, strategy={"canary": canary, "capacity": {"surgeTimeoutSeconds": 20, **capacity}})
    world.templates = {"quick": copy.deepcopy(QUICK)}
    world.templates["quick"]["minSamples"]["warmupSeconds"] = warmup_s
    world.rate = 10
    world.run(30)
    return world


def releasing(*steps: dict[str, Any], **options: Any) -> ModelCluster:
    world = deployed(*steps, **options)
    world.edit(model=model("v2"))
    return world


def baseline(world: ModelCluster) -> str:
    return baseline_of(world.parsed().stable_revision or "")


def pods(world: ModelCluster) -> int:
    return world.pods[baseline(world)].desired if baseline(world) in world.pods else 0


def shares(world: ModelCluster) -> list[int]:
    """Weights as the table lists them: canary, stable, baseline."""
    traffic = world.parsed().traffic
    return [item.weight for item in traffic.backends] if traffic else []


def test_a_baseline_has_the_canarys_pods_and_weight_and_is_compared_with() -> None:
    world = releasing({"setWeight": 30}, step(maxDuration="10m"), {"setWeight": 40})
    world.run_until("Analyzing")
    assert (pods(world), shares(world)) == (2, [30, 40, 30])
    roles = {item.role: (item.ready, item.weight, item.version) for item in world.parsed().revisions}
    assert roles == {"canary": (2, 30, "v2"), "stable": (4, 40, "v1"), "baseline": (2, 30, "v1")}
    assert "compared with 2 of 2 baseline pods of stable ready, weight 30" in world.parsed().message
    world.run(20)
    canary = world.parsed().canary_revision
    sides = [sample.revisions for g in world.gateways for sample in g.samples.values() if canary in sample.weights]
    epochs = run_of(world).counts[0].epochs
    assert {epoch.weight for epoch in epochs} == {50}, "both have as many requests"
    counted = [sum(side[name].requests for side in sides if name in side) for name in (canary, baseline(world))]
    assert (
        0 < sum(epoch.canary_units for epoch in epochs) <= counted[0]
        and 0 < sum(epoch.stable_units for epoch in epochs) <= counted[1]
    )
    world.run_until("Promoting", 400)
    assert shares(world)[1] == 100 - shares(world)[0], "nothing is left to compare"
    world.run_until(None)
    world.run(60)
    assert list(world.pods) == [world.parsed().stable_revision] and world.weights() == {"v2": 100}


def test_weights_of_both_change_at_once_when_both_are_ready() -> None:
    world = releasing()
    tables = []
    for _ in range(15):
        tables.append(world.reconcile().status.traffic)
        world.pass_time()
    seen = list(dict.fromkeys(tuple(item.weight for item in table.backends) for table in tables if table))
    assert seen[:2] == [(0, 100), (20, 60, 20)]


@pytest.mark.parametrize("beside", [False, True])
def test_cold_pods_are_compared_with_cold_ones(beside: bool) -> None:
    """A healthy canary whose pods are slow for their first ten minutes, with a template that allows for no warm-up."""
    world = deployed()
    world.edit(strategy__canary__baselinePod=beside)
    world.rate, rate = 0, world.rate
    world.pass_time(700)
    world.rate, world.cold_s = rate, 600
    world.edit(model=model("v2"))
    world.run(400)
    assert ("AnalysisRunFailed" in reasons(world)) is not beside
    assert ("AnalysisRunSuccessful" in reasons(world)) is beside


def test_a_worse_canary_is_rejected_beside_a_baseline() -> None:
    world = releasing()
    world.bad = {BAD: 0.3}
    world.run_until("Aborted")
    assert "errors" in event_message(world, "AnalysisRunFailed")
    world.run(60)
    assert list(world.pods) == [world.parsed().stable_revision]


def test_a_canary_with_half_of_the_requests_is_compared_with_stable() -> None:
    world = releasing({"setWeight": 50}, step(maxDuration="10m"))
    world.run_until("Analyzing")
    assert (pods(world), shares(world)) == (0, [50, 50])


def test_without_room_for_a_baseline_the_rollout_goes_on_at_once() -> None:
    world = releasing(maxSurge=1)
    world.run(10)
    assert world.state() == "Analyzing" and shares(world) == [20, 80]
    assert "without a baseline: it takes 2 pods more than spec.replicas, maxSurge allows 1" in world.parsed().message


def test_the_only_pod_has_a_baseline_where_maxsurge_is_two() -> None:
    world = releasing(replicas=1, maxSurge=2)
    world.run_until("Analyzing")
    assert (pods(world), shares(world)) == (1, [20, 60, 20])


def test_a_baseline_that_finds_no_node_is_given_up() -> None:
    world = deployed()
    world.places = 5
    world.edit(model=model("v2"))
    world.run(10)
    assert world.state() == "Provisioning" and shares(world) == [0, 100]
    assert "is ready and waits for its baseline; 1 pod finds no node" in world.parsed().message
    world.run(30)
    assert world.state() == "Analyzing" and shares(world) == [20, 80] and pods(world) == 0
    why = "it was not ready 20 s after the pods of the new revision"
    assert why in event_message(world, "BaselineGivenUp") and f"without a baseline: {why}" in world.parsed().message


def test_a_baseline_yields_its_node_to_stable() -> None:
    world = releasing()
    world.run_until("Analyzing")
    world.pods[world.parsed().stable_revision or ""].placed -= 1  # its node is gone, and there is no other
    world.places = 5
    world.run(3)
    assert "pods of stable" in event_message(world, "BaselineGivenUp") and shares(world) == [20, 80]
    world.run(10)
    assert pods(world) == 0 and world.pods[world.parsed().stable_revision or ""].ready == 4


def test_a_baseline_yields_its_node_to_the_canary() -> None:
    """The second pod of the canary finds no node: it gets that of the baseline before pods of stable make way."""
    world = releasing({"setWeight": 20}, {"pause": {"duration": "5s"}}, {"setWeight": 40}, step(maxDuration="10m"))
    world.places = 6
    world.run(15)
    assert world.state() == "CapacityWait" and pods(world) == 1
    world.run_until("Analyzing")
    assert "found no node" in event_message(world, "BaselineGivenUp") and shares(world) == [40, 60]
    assert world.parsed().rollout and world.parsed().rollout.capacity_mode == "Surge"  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["abort", "supersede"])
def test_a_rejected_canary_takes_its_baseline_along_and_the_next_has_a_fresh_one(how: str) -> None:
    world = releasing()
    world.run_until("Analyzing")
    old = world.pods[baseline(world)].made
    world.inflight = {baseline(world): 1}
    if how == "abort":
        world.edit(rollout__abort=f"{world.parsed().canary_revision}/1")
        world.run(20)
        world.edit(rollout__retry=f"{world.parsed().rollout.revision}/2")  # type: ignore[union-attr]
    else:
        world.edit(model=model("v3"))
        world.run(20)
    assert world.pods[baseline(world)].made == old, "it answers its last request"
    assert baseline(world) not in [item.revision for item in world.parsed().traffic.backends]  # type: ignore[union-attr]
    world.inflight = {}
    world.run_until("Analyzing")
    began = world.parsed().rollout.started_at  # type: ignore[union-attr]
    assert shares(world) == [20, 60, 20] and min(world.pods[baseline(world)].made) >= began


def test_lost_baseline_changes_no_weight() -> None:
    """Its requests are stable's until it is ready again: no table that names it, no comparison with it."""
    world = releasing()
    world.run_until("Analyzing")
    world.pods[baseline(world)].ready = 0
    world.reconcile()
    assert shares(world) == [20, 80]
    world.run(3)
    assert shares(world) == [20, 60, 20] and world.state() == "Analyzing"


def test_restart_of_the_operator_changes_no_result_of_an_analysis_with_a_baseline() -> None:
    """All that it knows is read back from the status, at each of its seconds."""
    results = []
    for forgets in (False, True):
        world = releasing()
        world.bad = {BAD: 0.04}
        for _ in range(80):
            world.reconcile()
            world.pass_time()
            if forgets:
                world.patch_status()
        run = run_of(world)
        results.append((run.counts, run.assigned, run.verdict, run.trace, run.load))
    assert results[0] == results[1] and results[0][0][0].epochs[0].weight == 50
