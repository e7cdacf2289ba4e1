"""Twin shadows: copies go to canary and to a baseline pod at once; their pairs decide before any client is served."""

import copy
from datetime import timedelta
from typing import Any

import pytest

from slipway_contracts.twin_shadow import TwinProbes, TwinShadow
from slipway_operator.api.v1alpha1.analysis_run import RunStatus
from slipway_operator.model.labels import baseline_of
from slipway_operator.planning.analysis import retrial
from tests.operator.planning.test_analysis import BAD, event_message, reasons
from tests.support.model_cluster import Crashed, ModelCluster, healthy, model

SLOW = model("v2")["uri"]
BESIDE = ("bad/withheld", "bad/probes")  # columns of pairs that are no metric
QUICK: dict[str, Any] = {
    "minSamples": {"pairs": 100, "warmupSeconds": 20},
    "metrics": [
        {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 0.5, "maxExtra": 30},
        {
            "name": "ttft",
            "kind": "PairedEvent",
            "event": "Slower(ttft, stable.p95)",
            "share": 0.25,
            "maxSlowdown": 0.2,
        },
        {"name": "errors", "kind": "PairedEvent", "event": "FirstAttemptError", "share": 0.25},
        {"name": "live", "event": "BadResponse", "share": 1.0, "maxExtra": 100},
    ],
}


def shadowed(**fields: Any) -> dict[str, Any]:
    """An analysis step with a twin shadow."""
    return {"analysis": {"templates": [{"templateName": "quick"}], "twinShadow": fields, "maxDuration": "20m"}}


STEPS: tuple[dict[str, Any], ...] = (shadowed(), {"setWeight": 20}, {"pause": {}})


def deployed(*steps: dict[str, Any], replicas: int = 4, **capacity: Any) -> ModelCluster:
    """v1 serves under load."""
    canary = {"steps": list(steps or STEPS), "baselinePod": True, "scaleDownDelaySeconds": 5}
    world = healthy(replicas=replicas, strategy={"canary": canary, "capacity": {"surgeTimeoutSeconds": 20, **capacity}})
    world.templates = {"quick": copy.deepcopy(QUICK)}
    world.rate = 10
    world.run(30)
    return world


def releasing(*steps: dict[str, Any], **options: Any) -> ModelCluster:
    world = deployed(*steps, **options)
    world.edit(model=model("v2"))
    return world


def decided(world: ModelCluster, *states: str, limit_s: int = 1800) -> None:
    """Run in the rhythm of readings until the rollout is in one of these states."""
    for _ in range(0, limit_s, 5):
        for _ in range(3):  # a write is followed by the next reconcile at once
            world.reconcile()
        if world.state() in states:
            return
        world.pass_time(5)
    raise AssertionError(f"{world.state()}: {world.parsed().message}")


def shadow_of(world: ModelCluster) -> TwinShadow | None:
    traffic = world.parsed().traffic
    return traffic.twin_shadow if traffic else None


def run_of(world: ModelCluster) -> RunStatus:
    run = world.run_now()
    assert run and run.shadow
    return run


def test_a_healthy_canary_passes_by_pairs_before_any_client_is_served() -> None:
    world = releasing()
    world.run_until("Analyzing")
    status = world.parsed()
    assert status.traffic and [item.weight for item in status.traffic.backends] == [0, 100]
    twin = baseline_of(status.stable_revision or "")
    assert world.pods[twin].ready == 1 and world.pods[status.canary_revision or ""].ready == 1
    world.run(5)
    assert shadow_of(world) == TwinShadow(status.canary_revision or "", status.stable_revision or "", 25, 10)
    assert "copied to it and to its twin: 25 % of the sessions" in world.parsed().message
    world.run(45)
    assert (world.parsed().reason or "").startswith("Analyzing, ") and (world.parsed().reason or "").endswith(" left")
    decided(world, "Paused")
    assert shadow_of(world) is None
    message = event_message(world, "AnalysisRunSuccessful")
    assert "prompts answered twice; bad: " in message and " extra per 1,000 (limit 30, 95%)" in message
    assert "ttft: less than 20% slower (95%)" in message
    assert world.weights()["v2"] == 20
    served = sum(
        side.assigned
        for gateway in world.gateways
        for sample in gateway.samples.values()
        for name, side in sample.revisions.items()
        if name == status.canary_revision and sample.weights.get(name) == 0
    )
    assert served == 0


def test_latencies_are_compared_from_the_end_of_the_warm_up_with_stables_own_tail() -> None:
    world = releasing()
    world.run_until("Analyzing")
    world.run(15)
    early = shadow_of(world)
    assert early and early.latencies == ()
    world.run(30)
    late = shadow_of(world)
    assert late and [(one.measure, one.max_slowdown) for one in late.latencies] == [("ttft", 20)]
    (tail,) = late.latencies[0].tail
    assert tail.stratum == "b<4k,stream" and 100_000 <= tail.microseconds <= 1_600_000


def test_epochs_are_those_of_the_counts_and_give_each_session_a_new_pair() -> None:
    world = releasing()
    world.bad = {BAD: 0.02}
    world.templates["quick"]["minSamples"]["pairs"] = 100_000
    world.run_until("Analyzing")
    epochs = []
    for _ in range(60):
        world.run(5, step=5)
        shadow = shadow_of(world)
        assert shadow
        epochs.append(shadow.epoch)
    assert sorted(set(epochs)) == [0, 1, 2] and epochs == sorted(epochs)
    assert set(run_of(world).clocks) == {0, 1, 2}


@pytest.mark.parametrize(
    ("trouble", "blamed"),
    [({"bad": {BAD: 0.3}}, "bad"), ({"slow": {SLOW}, "slowness": 2}, "ttft"), ({"hangs": {BAD: 0.5}}, "bad")],
)
def test_a_worse_canary_is_rejected_and_no_client_was_served(trouble: dict[str, Any], blamed: str) -> None:
    world = releasing()
    for name, value in trouble.items():
        setattr(world, name, value)
    decided(world, "Aborted")
    message = event_message(world, "AnalysisRunFailed")
    assert f"{blamed}: " in message or "errors: " in message
    assert ("on its twin alone, of " in message) or ("slower than its twin in " in message)
    assert "v2" not in {name for name, weight in world.weights().items() if weight}
    assert shadow_of(world) is None
    world.run(60)
    assert list(world.pods) == [world.parsed().stable_revision]


def test_pairs_that_have_not_ended_hold_a_pass_and_no_further_one_is_sent() -> None:
    world = releasing()
    world.pair_seconds = 40
    world.run_until("Analyzing")
    held = False
    for _ in range(300):
        world.run(5, step=5)
        if world.state() != "Analyzing":
            break
        verdict = run_of(world).verdict
        if verdict and verdict.reason == "PairsOpen":
            held = True
            assert "pairs have not ended, and no further one is sent until they have" in verdict.message
    assert held, "a pair takes 40 s, so some are always open"
    decided(world, "Paused")


def test_withheld_pairs_are_starvation_and_the_message_has_its_end() -> None:
    world = releasing()
    world.busy = 0.3
    world.run_until("Analyzing")
    world.run(120, step=5)
    verdict = run_of(world).verdict
    assert verdict and (verdict.outcome, verdict.reason) == ("Inconclusive", "ShadowStarved")
    assert "pairs were withheld because pods or gateways were busy, and 1% may be: about" in verdict.message
    assert reasons(world).count("ShadowStarved") == 1
    world.busy = 0.0
    world.edit(strategy__canary__steps=[*STEPS])
    world.run(30)
    assert world.state() == "Analyzing"


def test_without_requests_no_pair_comes_and_the_status_says_so() -> None:
    world = releasing()
    world.rate = 0
    world.run_until("Analyzing")
    world.run(30)
    verdict = run_of(world).verdict
    assert verdict and verdict.reason == "NoData"
    world.run(60)
    verdict = run_of(world).verdict
    assert verdict and verdict.reason == "ShadowStarved"
    assert "no request came that can be copied" in verdict.message
    decided(world, "Paused")
    assert "no verdict: ShadowStarved" in world.parsed().message


def test_without_room_for_a_twin_the_step_ends_at_once_without_a_verdict() -> None:
    world = releasing(maxSurge=1)
    world.run_until("Paused", 60)
    assert shadow_of(world) is None
    message = world.parsed().message
    assert "no verdict: NoTwin: no baseline pod of stable answers the copies: it takes 2 pods more" in message
    assert "maxSurge allows 1" in message
    world.edit(rollout__promote=world.parsed().rollout.step_token)  # type: ignore[union-attr]
    world.run(30)
    assert world.weights()["v2"] == 20


def test_where_the_only_pod_is_replaced_there_is_no_twin() -> None:
    """No node takes a second pod, so the canary has none before its first weight."""
    world = releasing(replicas=1, policy="AllowRecreate", surgeTimeoutSeconds=5)
    world.places = 1
    decided(world, "Paused", limit_s=120)
    assert "no verdict: NoTwin: " in world.parsed().message


def test_a_twin_that_is_lost_stops_the_pairs_until_it_is_back() -> None:
    world = releasing()
    world.run_until("Analyzing")
    world.run(10)
    twin = baseline_of(world.parsed().stable_revision or "")
    world.pods[twin].ready = 0
    world.reconcile()
    assert shadow_of(world) is None and world.state() == "Analyzing"
    world.run(15)
    assert shadow_of(world) is not None


def test_a_percentage_and_a_rate_of_the_step_are_those_of_the_table() -> None:
    world = releasing(shadowed(percentage=60, maxPairsPerSecond=3), {"pause": {}})
    world.run_until("Analyzing")
    world.run(5)
    shadow = shadow_of(world)
    assert shadow and (shadow.percentage, shadow.max_pairs_per_second) == (60, 3)


@pytest.mark.parametrize(
    ("metrics", "steps", "why"),
    [
        ([QUICK["metrics"][3]], STEPS, "the step has twinShadow, and no metric of kind PairedEvent decides"),
        (
            QUICK["metrics"][:3],
            ({"setWeight": 20}, {"analysis": {"templates": [{"templateName": "quick"}]}}),
            "the analysis has no twinShadow, and only metrics of kind PairedEvent decide",
        ),
    ],
)
def test_a_template_without_a_metric_for_the_step_is_named(
    metrics: list[dict[str, Any]], steps: tuple[dict[str, Any], ...], why: str
) -> None:
    world = releasing(*steps)
    world.templates = {"quick": {"metrics": copy.deepcopy(metrics)}}
    world.run_until("Analyzing")
    world.run(10)
    assert why in world.parsed().message


def test_the_metrics_of_requests_decide_after_the_shadow() -> None:
    world = releasing(
        shadowed(), {"setWeight": 30}, {"analysis": {"templates": [{"templateName": "quick"}], "maxDuration": "20m"}}
    )
    world.run_until("Analyzing")
    world.run(10)
    paired = run_of(world)
    assert {item.metric for item in paired.counts} <= {"bad", "ttft", "errors", "ttft/tail", *BESIDE}
    for _ in range(300):
        world.run(5, step=5)
        rollout, run = world.parsed().rollout, world.run_now()
        if rollout and rollout.step_index == 2 and run and run.counts:
            break
    assert run and run.shadow is None and [item.metric for item in run.counts] == ["live"]
    for _ in range(300):
        world.run(5, step=5)
    assert world.weights() == {"v2": 100}


def test_the_run_alone_gives_the_same_verdict_again() -> None:
    world = releasing()
    world.run_until("Analyzing")
    world.run(90, step=5)
    saved = world.saved_run()
    again = retrial.again(world.obj(), retrial.parse(saved), world.templates["quick"])
    assert (again.verdict, again.notes) == (saved["status"]["verdict"], ())
    assert len(again.looks) > 3


def look(world: ModelCluster, moment: int, *, restarted: bool) -> None:
    """One reconcile, and time after every second one. `restarted`: the operator dies at every third one."""
    if restarted and moment % 3 == 0:
        world.calls_until_crash = world.calls + moment % 2
    try:
        world.reconcile()
    except Crashed:
        world.calls_until_crash = None
        world.reconcile()
    world.calls_until_crash = None
    world.pass_time(5 * (moment % 2))


@pytest.mark.parametrize("fails", [0.01, 0.06])
def test_restarts_in_the_middle_change_no_bit_of_the_verdict(fails: float) -> None:
    """The operator dies at every third reconcile, before its first or second call; gateways do not notice."""
    ends = []
    for restarted in (False, True):
        world = releasing()
        world.bad = {BAD: fails}
        for moment in range(800):
            look(world, moment, restarted=restarted)
            if world.state() in ("Paused", "Aborted"):
                break
        run = world.run_now()
        assert run and run.verdict
        ends.append((world.state(), world.now, run.verdict, run.counts))
    assert ends[0] == ends[1]
    assert ends[0][0] == ("Paused" if fails < 0.05 else "Aborted")


def assigned(world: ModelCluster) -> int:
    """Requests that gateways assigned to any revision."""
    return sum(
        side.assigned
        for gateway in world.gateways
        for sample in gateway.samples.values()
        for side in sample.revisions.values()
    )


PROBES: dict[str, Any] = {"prompts": ["one", "two"], "pairsPerMinute": 120, "maxTokens": 16}


@pytest.mark.parametrize(
    ("rate", "part"), [(0.1, " pairs a minute, and "), (0, "no pair in 30 s, and 1,000 take more than 8 h: ")]
)
def test_few_requests_get_a_forecast_and_the_offer_of_probes_within_the_first_minute(rate: float, part: str) -> None:
    world = releasing()
    world.templates["quick"]["minSamples"]["pairs"] = 1000
    world.rate = rate
    world.run_until("Analyzing")
    world.run(55)
    verdict = run_of(world).verdict
    assert verdict and world.now - run_of(world).started_at < timedelta(seconds=60)
    assert part in verdict.message
    assert verdict.message.endswith(": twinShadow.probes sends prompts of yours as further pairs")
    assert verdict.message in world.parsed().message


def test_where_pairs_come_fast_enough_nothing_is_offered() -> None:
    world = releasing()
    world.templates["quick"]["minSamples"]["pairs"] = 1000
    world.run_until("Analyzing")
    world.run(55)
    verdict = run_of(world).verdict
    assert verdict and "twinShadow.probes" not in verdict.message


@pytest.mark.parametrize("rate", [0.1, 0])
def test_probes_decide_where_clients_send_next_to_nothing_and_are_counted_apart(rate: float) -> None:
    world = releasing(shadowed(probes=PROBES), {"pause": {}})
    world.rate = rate
    world.run_until("Analyzing")
    before = assigned(world)
    world.run(5)
    shadow = shadow_of(world)
    assert shadow and shadow.probes == TwinProbes("/v1/chat/completions", ("one", "two"), 120, 3000, 16)
    world.run(50)
    assert "twinShadow.probes" not in run_of(world).verdict.message  # type: ignore[union-attr]
    decided(world, "Paused")
    run = run_of(world)
    assert run.verdict and run.verdict.outcome == "Pass" and run.verdict.pairs
    sources = run.verdict.pairs
    (bad,) = [item for item in run.counts if item.metric == "bad"]
    assert sources.users + sources.probes == sum(epoch.canary_units for epoch in bad.epochs) and sources.probes > 100
    assert (sources.users > 0) == (rate > 0)
    assert f", {sources.probes:,} of them probes; bad: " in run.verdict.message
    assert (assigned(world) > before) == (rate > 0)


def test_a_worse_canary_is_rejected_by_probes_alone() -> None:
    world = releasing(shadowed(probes=PROBES), {"pause": {}})
    world.rate, world.bad = 0, {BAD: 0.3}
    decided(world, "Aborted")
    verdict = run_of(world).verdict
    assert verdict and verdict.pairs and verdict.pairs.probes_bad_on_canary > 5 and verdict.pairs.users == 0


def test_the_bound_of_a_ramp_is_that_of_clients_pairs_alone() -> None:
    world = releasing(shadowed(probes=PROBES), {"pause": {}})
    world.rate = 0.1
    decided(world, "Paused")
    rollout, verdict = world.parsed().rollout, run_of(world).verdict
    assert rollout and rollout.shadow_at_most and verdict and verdict.extra and verdict.pairs
    assert verdict.extra.at_most <= 30 and 0 < verdict.pairs.users < 60
    assert rollout.shadow_at_most > 60, "few pairs of clients prove little, however many probes there are"


def test_the_table_is_without_prompts_in_the_run_and_with_them_once_in_the_status() -> None:
    world = releasing(shadowed(probes=PROBES), {"pause": {}})
    world.run_until("Analyzing")
    world.run(5)
    shadow = run_of(world).shadow
    assert shadow and shadow.probed and shadow.published and shadow.published.probes is None
    shown = shadow_of(world)
    assert shown and shown.probes


def switching(**blue_green: Any) -> ModelCluster:
    """v2 comes by blue-green, with a twin shadow before the switch."""
    analysis = {"templates": [{"templateName": "quick"}], "twinShadow": {}, "maxDuration": "20m"}
    chosen = {"prePromotionAnalysis": analysis, **blue_green}
    world = healthy(replicas=3, strategy={"blueGreen": chosen, "capacity": {"surgeTimeoutSeconds": 20}})
    world.templates, world.rate = {"quick": copy.deepcopy(QUICK)}, 10
    world.run(30)
    world.edit(model=model("v2"))
    return world


def test_blue_green_compares_pairs_of_a_preview_pod_before_the_switch() -> None:
    world = switching(previewReplicaCount=1)
    decided(world, "Analyzing")
    world.run(5)
    status = world.parsed()
    twin = baseline_of(status.stable_revision or "")
    assert world.pods[twin].ready == 1 and world.pods[status.canary_revision or ""].ready == 1
    assert shadow_of(world) and world.weights() == {"v2": 0, "v1": 100}
    decided(world, "Provisioning")
    assert "prompts answered twice; bad: " in event_message(world, "AnalysisRunSuccessful")
    world.run(120)
    assert world.weights() == {"v2": 100} and list(world.pods) == [world.parsed().stable_revision]


def test_blue_green_rejects_a_worse_preview_and_never_switches() -> None:
    world = switching(previewReplicaCount=1)
    world.bad = {BAD: 0.3}
    decided(world, "Aborted")
    assert world.weights() == {"v1": 100} or world.weights() == {"v2": 0, "v1": 100}
    served = [one.weights for gateway in world.gateways for one in gateway.samples.values()]
    assert not any(weights.get(world.parsed().canary_revision or "", 0) for weights in served)


def test_blue_green_without_room_for_baseline_pods_has_no_twin() -> None:
    """All preview pods at once take the whole surge."""
    world = switching()
    decided(world, "Paused")
    assert "NoTwin" in world.parsed().message and "maxSurge allows 3" in world.parsed().message
