"""Blue-green: preview, gates, one switch, a way back at once; and the canary's other steps."""

from typing import Any

from slipway_contracts.route_table import HeaderMatch, HeaderRoute
from tests.support.model_cluster import ModelCluster, healthy, model

PREVIEW = {"match": [{"headerName": "X-Preview", "headerValue": {"exact": "1"}}]}


def green(replicas: int = 3, **blue_green: Any) -> ModelCluster:
    """v1 serves, v2 is on its way by blue-green."""
    world = healthy(replicas=replicas, strategy={"blueGreen": blue_green})
    world.edit(model=model("v2"))
    return world


def pods(world: ModelCluster) -> list[int]:
    return sorted(item.desired for item in world.pods.values())


def routes(world: ModelCluster) -> tuple[HeaderRoute, ...]:
    traffic = world.parsed().traffic
    return traffic.header_routes if traffic else ()


def token(world: ModelCluster) -> str:
    rollout = world.parsed().rollout
    assert rollout
    return rollout.token


def test_switches_at_once_when_all_pods_are_ready() -> None:
    world = green()
    seen = set()
    for _ in range(60):
        world.reconcile()
        seen.add(tuple(sorted(world.weights().items())))
        world.pass_time()
    assert seen <= {(("v1", 100),), (("v1", 100), ("v2", 0)), (("v1", 0), ("v2", 100)), (("v2", 100),)}
    assert world.weights() == {"v2": 100}


def test_preview_replicas_and_route_before_the_promotion() -> None:
    world = green(previewReplicaCount=1, previewRoute=PREVIEW, autoPromotionEnabled=False)
    world.run_until("Paused")
    assert pods(world) == [1, 3]
    assert world.weights() == {"v2": 0, "v1": 100}
    canary = world.parsed().canary_revision or ""
    assert routes(world) == (HeaderRoute("preview", canary, (HeaderMatch("x-preview", exact="1"),)),)
    world.edit(rollout__promote=token(world))
    world.run_until(None)
    assert (world.weights(), routes(world)) == ({"v2": 100}, ())


def test_promotion_waits_for_full_size() -> None:
    world = green(previewReplicaCount=1, autoPromotionEnabled=False)
    world.run_until("Paused")
    world.edit(rollout__promote=token(world))
    world.reconcile()
    world.pass_time(pods=False)
    world.run(0)
    assert pods(world) == [3, 3]
    assert world.weights() == {"v2": 0, "v1": 100}


def test_auto_promotion_after_a_delay() -> None:
    world = green(autoPromotionSeconds=30)
    world.run_until("Paused")
    world.run(20)
    assert world.weights() == {"v2": 0, "v1": 100}
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_way_back_is_instant_while_the_old_pods_are_there() -> None:
    world = green(scaleDownDelaySeconds=600, autoPromotionEnabled=False)
    world.run_until("Paused")
    world.edit(rollout__promote=token(world))
    world.run_until(None)
    world.edit(model=model("v1"))
    world.run(4)
    assert world.weights()["v1"] == 100, "no gate and no pod to wait for"
    world.run_until(None)
    assert world.weights() == {"v1": 100}


def test_abort_during_the_preview_cuts_the_route_at_once() -> None:
    world = green(previewRoute=PREVIEW, autoPromotionEnabled=False)
    world.run_until("Paused")
    assert routes(world)
    world.edit(rollout__abort=token(world).rsplit("/", 1)[0])
    world.reconcile()
    assert routes(world) == ()
    world.run_until("Aborted")


def test_switch_between_canary_and_blue_green_keeps_the_weight() -> None:
    world = healthy(replicas=4)
    world.edit(model=model("v2"))
    world.run_until("Paused")
    assert world.weights()["v2"] == 10
    world.edit(strategy={"blueGreen": {}})
    world.reconcile()
    assert world.weights()["v2"] >= 10
    world.run_until(None)
    assert world.weights() == {"v2": 100}


# --- steps of a canary ------------------------------------------------------------------------------------------------


def canary(*steps: dict[str, Any], replicas: int = 4, **spec: Any) -> ModelCluster:
    world = healthy(replicas=replicas, steps=list(steps), **spec)
    world.edit(model=model("v2"))
    world.run_until("Paused")
    return world


def test_canary_scale_brings_pods_without_weight() -> None:
    world = canary({"setCanaryScale": {"replicas": 3}}, {"pause": {}}, {"setWeight": 25})
    assert (pods(world), world.weights()["v2"]) == ([3, 4], 0)
    world = canary({"setCanaryScale": {"weight": 50}}, {"setWeight": 10}, {"pause": {}})
    assert (pods(world), world.weights()["v2"]) == ([2, 4], 10)


def test_canary_scale_never_goes_below_the_weight_and_can_follow_it_again() -> None:
    world = canary({"setWeight": 50}, {"setCanaryScale": {"replicas": 1}}, {"pause": {}})
    assert pods(world) == [2, 4]
    follow = {"setCanaryScale": {"matchTrafficWeight": True}}
    world = canary({"setCanaryScale": {"replicas": 4}}, {"setWeight": 25}, follow, {"pause": {}})
    assert pods(world) == [1, 4]


def test_header_route_is_set_changed_and_ended_by_name() -> None:
    def route(value: str) -> dict[str, Any]:
        match = [{"headerName": "X-Team", "headerValue": {"prefix": value}}]
        return {"setHeaderRoute": {"name": "testers", "match": match}}

    world = canary(
        route("qa-"),
        {"pause": {}},
        route("dev-"),
        {"pause": {}},
        {"setHeaderRoute": {"name": "testers"}},
        {"pause": {}},
    )
    for expected in (["qa-"], ["dev-"], []):
        assert [match.prefix for item in routes(world) for match in item.match] == expected
        world.edit(rollout__promote=token(world))
        world.run(5)
    assert world.state() is None


def test_header_route_waits_for_every_gateway() -> None:
    match = [{"headerName": "X-Team", "headerValue": {"exact": "qa"}}]
    world = healthy(steps=[{"setHeaderRoute": {"name": "testers", "match": match}}, {"pause": {}}])
    world.edit(model=model("v2"))
    for _ in range(20):
        world.reconcile()
        world.pass_time(gateways=False)
    assert world.state() == "Shifting"
    world.run_until("Paused")


def test_rollback_window_goes_without_steps_but_not_without_pods() -> None:
    world = canary({"setWeight": 10}, {"pause": {}}, rollbackWindow={"revisions": 1})
    world.edit(rollout__promoteFull=world.parsed().canary_revision)
    world.run_until(None)
    world.run(60)
    world.edit(model=model("v1"))
    world.reconcile()
    world.pass_time(pods=False)
    world.reconcile()
    assert world.weights().get("v1", 0) == 0, "no pod of it is ready yet"
    world.run_until(None)
    assert world.weights() == {"v1": 100}


def test_rollback_window_does_not_reach_a_rejected_revision() -> None:
    world = canary({"setWeight": 10}, {"pause": {}}, rollbackWindow={"revisions": 5})
    world.edit(rollout__abort=token(world).rsplit("/", 1)[0])
    world.run_until("Aborted")
    world.edit(model=model("v3"))
    world.run_until("Paused")
    world.edit(rollout__promoteFull=world.parsed().canary_revision)
    world.run_until(None)
    world.edit(model=model("v2"))
    world.run_until("Paused")


def test_a_rollback_outside_of_the_window_takes_its_steps() -> None:
    world = canary({"setWeight": 10}, {"pause": {}}, rollbackWindow={"revisions": 0})
    world.edit(rollout__promoteFull=world.parsed().canary_revision)
    world.run_until(None)
    world.edit(model=model("v1"))
    world.run_until("Paused")


# --- analyses around the switch ---------------------------------------------------------------------------------------

SCORE: dict[str, Any] = {
    "name": "score",
    "provider": {"web": {"url": "http://quality.tools.svc/score"}},
    "successCondition": "result >= 0.8",
    "interval": "10s",
    "count": 3,
}
TEMPLATES = {"before": {"metrics": [SCORE]}, "after": {"metrics": [{**SCORE, "name": "live"}]}}


def analysed(*fields: str, values: dict[str, float], **blue_green: Any) -> ModelCluster:
    """Blue-green with `before` and `after` the switch, as far as `fields` name them."""
    named = {"prePromotionAnalysis": "before", "postPromotionAnalysis": "after"}
    chosen = {field: {"templates": [{"templateName": named[field]}]} for field in fields}
    world = healthy(replicas=3, strategy={"blueGreen": {**chosen, **blue_green}})
    world.templates, world.values, world.delays_changed = dict(TEMPLATES), dict(values), True
    world.edit(model=model("v2"))
    return world


def test_pre_promotion_analysis_gates_the_switch_on_the_preview() -> None:
    world = analysed("prePromotionAnalysis", values={"score": 0.9}, previewReplicaCount=1, previewRoute=PREVIEW)
    world.run_until("Analyzing")
    assert (pods(world), world.weights(), len(routes(world))) == ([1, 3], {"v2": 0, "v1": 100}, 1)
    world.run_until(None, 200)
    assert world.weights() == {"v2": 100}
    assert len(world.measured) == 3


def test_pre_promotion_analysis_that_fails_keeps_every_request_where_it_is() -> None:
    world = analysed("prePromotionAnalysis", values={"score": 0.1})
    seen = set()
    for _ in range(120):
        world.reconcile()
        seen.add(world.weights().get("v2", 0))
        world.pass_time()
    assert (world.state(), seen) == ("Aborted", {0})
    assert "analysis before: score: 1 failed" in world.parsed().message


def test_pre_promotion_analysis_comes_before_the_pause_of_a_manual_promotion() -> None:
    world = analysed("prePromotionAnalysis", values={"score": 0.9}, autoPromotionEnabled=False)
    world.run_until("Analyzing")
    world.run_until("Paused", 200)
    assert world.weights() == {"v2": 0, "v1": 100}
    world.edit(rollout__promote=token(world))
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_post_promotion_analysis_holds_the_old_pods_and_then_their_delay_begins() -> None:
    world = analysed("postPromotionAnalysis", values={"live": 0.9}, scaleDownDelaySeconds=1)
    world.run_until("Analyzing")
    assert (world.weights(), pods(world)) == ({"v2": 100, "v1": 0}, [3, 3])
    while world.state() == "Analyzing":
        assert pods(world) == [3, 3], "held for as long as the analysis runs, whatever scaleDownDelaySeconds is"
        world.reconcile()
        world.pass_time()
    world.run(60)
    assert (world.state(), world.weights(), pods(world)) == (None, {"v2": 100}, [3])


def test_post_promotion_analysis_that_fails_switches_back_at_once() -> None:
    world = analysed("postPromotionAnalysis", values={"live": 0.9}, scaleDownDelaySeconds=1)
    world.run_until("Analyzing")
    world.run(15)
    world.values["live"] = 0.1
    while world.state() == "Analyzing":
        world.reconcile()
        world.pass_time()
    assert world.state() == "Aborting"
    assert world.weights() == {"v2": 0, "v1": 100}, "in the very plan that rejects it: every old pod is there"
    world.run_until("Aborted")
    status = world.parsed()
    assert "analysis after: live: 1 failed" in status.message
    assert status.stable_revision and status.previous_revision != status.stable_revision


def test_an_edit_back_during_the_post_promotion_analysis_is_a_switch_too() -> None:
    world = analysed("postPromotionAnalysis", values={"live": 0.9})
    world.run_until("Analyzing")
    world.edit(model=model("v1"))
    world.reconcile()
    assert world.weights()["v1"] == 100


def test_verdict_at_weight_0_or_100_is_no_data_with_the_reason() -> None:
    for field, weight in (("prePromotionAnalysis", 0), ("postPromotionAnalysis", 100)):
        world = analysed(field, values={})
        world.templates = {
            name: {"metrics": [{"name": "errors", "event": "FirstAttemptError", "share": 1.0}]} for name in TEMPLATES
        }
        world.rate = 10
        world.run_until("Analyzing")
        world.run(200)
        assert world.state() == "Analyzing"
        verdict = world.run_now().verdict  # type: ignore[union-attr]
        assert verdict and verdict.reason == "NoData"
        assert (
            verdict.message
            == f"no request is split between the two while the weight is {weight}; give the metrics a provider"
        )


def test_both_analyses_are_runs_of_their_own() -> None:
    world = analysed("prePromotionAnalysis", "postPromotionAnalysis", values={"score": 0.9, "live": 0.9})
    world.run_until(None, 400)
    assert world.weights() == {"v2": 100}
    assert [question.metric.name for question in world.measured] == ["score"] * 3 + ["live"] * 3
