"""Ramps: the weight follows what is proved, the harm stays within maxHarm, and a revision bakes at the end."""

import copy
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.analysis_run import RampRun
from slipway_operator.planning.analysis import retrial
from tests.operator.planning.test_analysis import BAD, reasons
from tests.operator.planning.test_twin_shadow import decided, deployed, look, releasing, shadowed
from tests.support.model_cluster import ModelCluster, hook, model

WEIGHTS = (1, 2, 5, 10, 25, 50)


def ramp(duration: str = "20m", **auto: Any) -> dict[str, Any]:
    return {"ramp": {"auto": auto, "templates": [{"templateName": "quick"}], "maxDuration": duration}}


def ramping(**auto: Any) -> ModelCluster:
    """v2 has passed its twin shadow, and ramps."""
    return copy.deepcopy(_ramping(tuple((auto or {"bake": "1m"}).items())))


@lru_cache
def _ramping(auto: tuple[tuple[str, Any], ...], replicas: int = 4) -> ModelCluster:
    world = releasing(shadowed(), ramp(**dict(auto)), replicas=replicas)
    until_ramp(world)
    return world


def until_ramp(world: ModelCluster) -> None:
    for _ in range(400):
        world.run(5, step=5)
        if of_run(world):
            return
    raise AssertionError(f"{world.state()}: {world.parsed().message}")


def of_run(world: ModelCluster) -> RampRun | None:
    run = world.run_now()
    return run.ramp if run else None


def watched(world: ModelCluster, seconds: int) -> list[RampRun]:
    """The ramp at each reading, until it ends."""
    seen = []
    for _ in range(0, seconds, 5):
        world.run(5, step=5)
        if (found := of_run(world)) is None or world.state() != "Analyzing":
            break
        seen.append(found)
    return seen


def messages(world: ModelCluster) -> list[str]:
    return [event.message for event in world.events if event.reason == "AnalysisRunSuccessful"]


def test_a_healthy_revision_ramps_up_bakes_and_is_promoted() -> None:
    world = ramping()
    first = of_run(world)
    assert first and first.weight == 1 and first.shadow_at_most and first.at_most == first.shadow_at_most <= 30
    assert [one["weight"] for one in world.status["traffic"]["backends"]][:1] == [1]
    seen = watched(world, 1200)
    before = [one for one in seen if one.passed_at is None]
    assert {one.weight for one in before} <= set(WEIGHTS) and max(one.weight for one in before) >= 10
    assert all(one.spent <= one.max_harm for one in seen)
    baked = [one for one in seen if one.passed_at]
    assert baked and {one.weight for one in baked} == {90}
    ends = {one.bake_until for one in baked} - {None}
    assert len(ends) == 1, "the bake begins once, when the gateways route by its weight"
    assert "Baking until " in (world.parsed().reason or "") or world.state() != "Analyzing"
    world.run(60)
    assert world.state() is None and world.weights() == {"v2": 100}
    assert "passed the ramp at step 2 of 2" in messages(world)[-1] and "may have cost " in messages(world)[-1]
    assert {"TrafficWeightUpdated", "RampWeightChanged"} <= set(reasons(world))


def test_the_weight_waits_for_the_rate_of_requests_and_for_a_look() -> None:
    world = ramping()
    started = of_run(world)
    assert started
    (next_one, *_) = watched(world, 10)
    assert next_one.weight == 1, "the rate is not known before a reading"
    seen = [one for one in watched(world, 200) if one.passed_at is None]
    changes = sorted({(one.changed_at, one.weight) for one in seen if one.changed_at})
    gaps = [
        (after - before).total_seconds()
        for (before, lower), (after, higher) in pairwise(changes)
        if higher > lower  # a lower weight is in force at once
    ]
    assert gaps and all(gap >= 10 for gap in gaps)


def test_the_rate_of_requests_is_never_too_low_while_gateways_forget_generations() -> None:
    """Their sum of assigned requests decreases then; with a rate that is too low a weight may cost too much."""
    rates = [one.rate for one in watched(ramping(), 60) if one.passed_at is None]
    assert len(rates) > 8 and min(rates[2:]) >= 19


def test_the_weight_never_exceeds_max_weight_before_the_verdict() -> None:
    world = ramping(maxWeight=7, bake="0s")
    world.templates["quick"]["minSamples"]["canaryRequests"] = 100
    seen = watched(world, 1200)
    assert max(one.weight for one in seen if one.passed_at is None) == 7
    world.run(120)
    assert world.weights() == {"v2": 100}


def test_a_revision_that_is_bad_to_clients_only_costs_little_and_is_rejected() -> None:
    world = ramping()
    world.bad = {BAD: 0.5}
    seen = watched(world, 1200)
    assert world.state() in ("Aborting", "Aborted")
    assert all(one.passed_at is None for one in seen)
    served = sum(
        side.assigned
        for gateway in world.gateways
        for sample in gateway.samples.values()
        for name, side in sample.revisions.items()
        if name == (world.parsed().rollout or pytest.fail("no rollout")).revision and sample.weights.get(name)
    )
    assert served <= 60, "looks risk about five requests each, by the responses to clients alone"


def test_a_revision_that_turns_bad_while_it_bakes_is_rejected() -> None:
    world = ramping(bake="10m")
    for _ in range(240):
        world.run(5, step=5)
        if (found := of_run(world)) and found.bake_until:
            break
    world.bad = {BAD: 0.5}
    world.run(120, step=5)
    assert world.state() in ("Aborting", "Aborted")
    world.run(30)
    assert world.weights() == {"v1": 100}


def test_without_a_bound_of_copies_the_harm_is_spent_and_the_ramp_pauses() -> None:
    """Copies proved nothing here: their analysis was skipped."""
    world = deployed(shadowed(), ramp(maxHarm=5))
    world.edit(model=model("v2"))
    world.run_until("Analyzing")
    rollout = world.parsed().rollout
    assert rollout
    world.edit(rollout={"promote": rollout.step_token})
    until_ramp(world)
    first = of_run(world)
    assert first and first.shadow_at_most is None and first.at_most == 1000
    decided(world, "Paused")
    message = world.parsed().message
    assert "HarmSpent" in message and "of 5 extra bad responses, and no weight fits the rest" in message
    spent = of_run(world)
    assert spent and spent.weight == 0 and spent.spent <= 6


def test_the_weight_waits_for_pods_that_carry_it() -> None:
    """Pods come as the weight needs them; the published weight is never more than the ready ones carry."""
    world = copy.deepcopy(_ramping((("bake", "0s"),), replicas=8))
    seen = []
    while world.state() == "Analyzing":
        world.run(5, step=5)
        traffic, canary = world.parsed().traffic, (world.parsed().rollout or pytest.fail("no rollout")).revision
        if not traffic or world.state() != "Analyzing":
            break
        ready, weight = world.pods[canary].ready, traffic.weight(canary)
        assert weight <= -(-100 * ready // 8), f"{ready} pods do not carry {weight} percent"
        seen.append((ready, weight))
    assert max(seen) > (1, 10)
    world.run(120)
    assert world.weights() == {"v2": 100}


@pytest.mark.parametrize(("replicas", "surge"), [(2, 2), (6, 3)])
def test_a_ramp_gets_through_without_room_for_a_second_set(replicas: int, surge: int) -> None:
    """Pods of stable make way for those of the next weight."""
    world = releasing(shadowed(), ramp(bake="30s"), replicas=replicas, maxSurge=surge)
    until_ramp(world)
    watched(world, 600)
    world.run(60)
    assert world.state() is None and world.weights()["v2"] == 100


def test_a_paused_deployment_keeps_its_weight() -> None:
    world = ramping(bake="10s")
    world.edit(paused=True)
    assert {one.weight for one in watched(world, 120) if one.passed_at is None} == {1}
    world.edit(paused=None)
    watched(world, 1200)
    world.run(120)
    assert world.weights() == {"v2": 100}


def test_requests_while_a_gateway_does_not_respond_are_spent_and_the_weight_waits() -> None:
    world = ramping(bake="10m")
    while (before := of_run(world)) and before.weight < 5:
        world.run(5, step=5)
    world.gateways[1].reachable = False
    seen = watched(world, 40)
    assert before and {one.weight for one in seen} == {before.weight} and seen[-1].spent > before.spent
    (stale, *_) = watched(world, 60)[-1:]
    assert stale.weight == 1, "what is not counted may be bad"


def test_a_template_that_changes_starts_the_ramp_again_with_what_it_has_spent() -> None:
    world = ramping(bake="10m")
    for _ in range(100):
        world.run(5, step=5)
        if (found := of_run(world)) and found.spent > 0:
            break
    before = of_run(world)
    world.templates["quick"]["minSamples"]["canaryRequests"] = 5000
    world.run(5)
    after = of_run(world)
    assert before and after and after.weight == 1 and after.spent >= before.spent > 0


def test_each_higher_weight_needs_the_gate_of_its_hook() -> None:
    world = ramping()
    world.edit(strategy__hooks=[hook("confirm-traffic-increase")])
    world.hook_answers["confirm-traffic-increase"] = False
    for _ in range(30):
        world.run(5, step=5)
    canary = world.parsed().canary_revision
    traffic = world.parsed().traffic
    assert traffic and traffic.weight(canary) == 1 and "waits for gate" in world.parsed().message
    world.hook_answers["confirm-traffic-increase"] = True
    watched(world, 1200)
    world.run(120)
    assert world.weights() == {"v2": 100}


def test_restarts_in_the_middle_change_no_bit_of_the_ramp() -> None:
    """The operator dies at every third reconcile, before its first or second call; gateways do not notice."""
    ends = []
    for restarted in (False, True):
        world = ramping(bake="10m")
        for moment in range(90):
            look(world, moment, restarted=restarted)
        found = of_run(world)
        assert found and found.spent > 0
        ends.append((world.state(), world.now, found))
    assert ends[0] == ends[1]


def test_the_ramp_in_the_status_is_judged_again_as_it_was() -> None:
    world = ramping()
    watched(world, 60)
    saved = world.saved_run()
    again = retrial.again(world.obj(), retrial.parse(saved), world.templates["quick"])
    assert saved["status"]["ramp"]["maxHarm"] == 20
    assert not again.notes
    assert again.ramp.startswith("weight ") and "extra bad responses" in again.ramp
