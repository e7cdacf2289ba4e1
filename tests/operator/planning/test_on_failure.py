"""Twin shadows without a twin: canary alone gets the copies, and stable what canary fails."""

import copy
from typing import Any

import pytest

from slipway_operator.planning.analysis import retrial
from tests.operator.planning.test_analysis import BAD, event_message
from tests.operator.planning.test_twin_shadow import (
    PROBES,
    QUICK,
    decided,
    releasing,
    run_of,
    shadow_of,
    shadowed,
    switching,
)
from tests.support.model_cluster import ModelCluster, healthy, model

STEPS: tuple[dict[str, Any], ...] = (shadowed(reference="OnFailure"), {"setWeight": 20}, {"pause": {}})


def without_twin(*steps: dict[str, Any], replicas: int = 4, **fields: Any) -> ModelCluster:
    """v2 comes with room for one further pod, and without baseline pods."""
    canary = {"steps": list(steps or STEPS), "scaleDownDelaySeconds": 5, **fields}
    world = healthy(
        replicas=replicas, strategy={"canary": canary, "capacity": {"surgeTimeoutSeconds": 20, "maxSurge": 1}}
    )
    world.templates, world.rate = {"quick": copy.deepcopy(QUICK)}, 10
    world.run(30)
    world.edit(model=model("v2"))
    return world


def test_a_healthy_canary_passes_without_a_twin_and_latencies_are_left_out() -> None:
    world = without_twin()
    world.run_until("Analyzing")
    status = world.parsed()
    assert sorted(world.pods) == sorted((status.canary_revision, status.stable_revision)), "there is no further pod"
    world.run(5)
    shadow = shadow_of(world)
    assert shadow and (shadow.reference, shadow.percentage, shadow.latencies) == ("OnFailure", 25, ())
    assert {item.metric for item in run_of(world).counts} <= {"bad", "errors", "bad/withheld", "bad/probes"}
    decided(world, "Paused")
    message = event_message(world, "AnalysisRunSuccessful")
    assert "prompts answered, those that failed by stable too; bad: " in message and "ttft" not in message
    assert world.weights()["v2"] == 20 and world.parsed().rollout.shadow_at_most < 33  # type: ignore[union-attr]


def test_a_worse_canary_is_rejected_without_a_twin() -> None:
    world = without_twin()
    world.bad = {BAD: 0.3}
    decided(world, "Aborted")
    assert "on canary alone, " in event_message(world, "AnalysisRunFailed")
    assert "v2" not in {name for name, weight in world.weights().items() if weight}


def test_an_outage_of_both_rejects_nothing() -> None:
    world = without_twin()
    world.bad = dict.fromkeys((BAD, model("v1")["uri"]), 0.3)
    world.run_until("Analyzing")
    world.run(600, step=5)
    assert world.state() == "Analyzing"


def test_it_takes_the_place_of_baseline_pods_only_where_there_is_no_room_for_them() -> None:
    for surge, reference in ((1, "OnFailure"), (2, None)):
        world = releasing(*STEPS, maxSurge=surge)
        world.run_until("Analyzing")
        world.run(5)
        shadow = shadow_of(world)
        assert shadow and shadow.reference == reference
        decided(world, "Paused")
        assert "NoTwin" not in world.parsed().message and world.weights()["v2"] == 20


def test_blue_green_does_without_baseline_pods_too() -> None:
    world = switching()
    assert world.spec
    world.edit(strategy__blueGreen__prePromotionAnalysis__twinShadow={"reference": "OnFailure"})
    decided(world, "Analyzing")
    world.run(5)
    shadow = shadow_of(world)
    assert shadow and shadow.reference == "OnFailure"


def test_the_mode_of_a_run_stays_when_its_template_changes() -> None:
    world = without_twin()
    world.run_until("Analyzing")
    world.run(30)
    before = run_of(world)
    world.templates["quick"]["minSamples"]["pairs"] = 200
    world.run(30)
    after = run_of(world)
    assert after.template_hash != before.template_hash
    assert before.shadow and after.shadow and before.shadow.on_failure and after.shadow.on_failure


def test_a_template_of_latencies_alone_is_named() -> None:
    world = without_twin()
    world.templates = {"quick": {"metrics": [copy.deepcopy(QUICK["metrics"][1])]}}
    world.run_until("Analyzing")
    world.run(10)
    assert "OnFailure latencies, tokens, scores and predictions are not compared, and nothing else decides" in (
        world.parsed().message
    )


def test_probes_are_pairs_of_both_sides_there_too() -> None:
    world = without_twin(shadowed(reference="OnFailure", probes=PROBES), {"pause": {}})
    world.rate = 0
    decided(world, "Paused")
    verdict = run_of(world).verdict
    assert verdict and verdict.outcome == "Pass" and verdict.pairs and verdict.pairs.users == 0


def test_the_saved_run_gives_the_same_verdict_again() -> None:
    world = without_twin()
    world.run_until("Analyzing")
    world.run(90, step=5)
    run = retrial.parse(world.saved_run())
    again = retrial.again(world.obj(), run, world.templates["quick"])
    assert again.notes == () and len(again.looks) > 3 and again.run.verdict
    assert again.verdict["message"] == again.run.verdict.message


@pytest.mark.parametrize("stable", [True, False])
def test_without_a_ready_pod_of_stable_no_copy_is_sent(stable: bool) -> None:
    world = without_twin()
    world.run_until("Analyzing")
    world.run(10)
    status = world.parsed()
    revision = status.stable_revision if stable else status.canary_revision
    world.pods[revision or ""].ready = 0
    world.reconcile()
    assert shadow_of(world) is None
