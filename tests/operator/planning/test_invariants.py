"""Random histories of a ModelDeployment: the invariants I1-I8 hold whatever users, pods, gateways and crashes do."""

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway_contracts.api.times import format_time
from slipway_operator.model.cluster.observed import Hold
from tests.support.model_cluster import Crashed, ModelCluster, ModelGateway, cluster, healthy, hook, model

# `make histories` draws 10,000 new ones; the test run repeats the same few, for a reproducible result.
FEW = 25
HISTORIES = int(os.environ.get("SLIPWAY_HISTORIES", FEW))
LOTS = 1 if HISTORIES == FEW else 2  # each is a test, so that two cores share them
VERSIONS = ("v1", "v2", "v3")
STEPS: tuple[list[dict[str, Any]], ...] = (
    [{"setWeight": 10}, {"pause": {"duration": "3s"}}, {"setWeight": 50}, {"pause": {"duration": "3s"}}],
    [{"setWeight": 5}, {"setWeight": 25}, {"pause": {}}, {"setWeight": 100}],
    [{"pause": {}}, {"setWeight": 34}],
    [{"setWeight": 100}],
)
PREVIEW = {"match": [{"headerName": "X-Preview", "headerValue": {"exact": "1"}}]}
HEADER = {"name": "testers", "match": [{"headerName": "X-Team", "headerValue": {"prefix": "qa-"}}]}
# Decides fast: the effect of a verdict is tested.
TEMPLATE: dict[str, Any] = {
    "minSamples": {"canaryRequests": 20, "pairs": 20, "warmupSeconds": 2},
    "metrics": [
        {"name": "errors", "event": "FirstAttemptError", "share": 1.0, "okBelow": 0.2, "maxRatio": 8.0},
        {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 1.0, "maxExtra": 200},
    ],
    "vetoes": [{"name": "PodCrashLoop", "limit": 2}],
}
# With what a ramp needs: a metric of all bad responses to clients.
RELEASE: dict[str, Any] = TEMPLATE | {
    "metrics": [
        {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 1.0, "maxExtra": 200},
        {"name": "live-bad", "event": "BadResponse", "share": 1.0, "maxExtra": 400},
    ],
}
SCORE: dict[str, Any] = {
    "name": "score",
    "provider": {"web": {"url": "http://quality.tools.svc/"}},
    "successCondition": "result > 0.5",
    "interval": "5s",
    "count": 2,
    "consecutiveErrorLimit": 1,
}
MEASURED = {"templates": [{"templateName": "score"}], "maxDuration": "30s"}
JUDGED = {"templates": [{"templateName": "quick"}], "maxDuration": "30s"}
ANALYSIS = {"analysis": {"templates": [{"templateName": "quick"}], "maxDuration": "20s"}}
TWINS = {"analysis": JUDGED | {"twinShadow": {"percentage": 60}}}
PROVES = {"analysis": {"templates": [{"templateName": "release"}], "maxDuration": "60s", "twinShadow": {}}}
# Without a twin where none can be had, and with pairs of the owner's prompts.
PROBES = {"prompts": ["Hello"], "pairsPerMinute": 60}
ALONE = {"analysis": PROVES["analysis"] | {"twinShadow": {"reference": "OnFailure", "probes": PROBES}}}
RAMP = {
    "ramp": {"auto": {"maxHarm": 5, "bake": "6s"}, "templates": [{"templateName": "release"}], "maxDuration": "60s"}
}
MIRROR = {"setMirrorRoute": {"percentage": 20}}
STRATEGIES: tuple[dict[str, Any], ...] = (
    *({"canary": {"steps": steps, "scaleDownDelaySeconds": 5, "abortScaleDownDelaySeconds": 5}} for steps in STEPS),
    {"canary": {"trafficPercent": 20, "scaleDownDelaySeconds": 5, "abortScaleDownDelaySeconds": 5}},
    {"canary": {"trafficPercent": 60, "scaleDownDelaySeconds": 5, "abortScaleDownDelaySeconds": 5}},
    {"blueGreen": {"scaleDownDelaySeconds": 5, "abortScaleDownDelaySeconds": 5}},
    {"blueGreen": {"autoPromotionEnabled": False, "scaleDownDelaySeconds": 5, "abortScaleDownDelaySeconds": 5}},
    {"blueGreen": {"previewReplicaCount": 1, "previewRoute": PREVIEW, "autoPromotionSeconds": 4}},
    {
        "canary": {"steps": [{"setCanaryScale": {"replicas": 2}}, {"setHeaderRoute": HEADER}, MIRROR, *STEPS[0]]},
        "capacity": {"maxSurge": 1, "surgeTimeoutSeconds": 5},
    },
    {"canary": {"steps": STEPS[1]}, "capacity": {"maxSurge": 0}},
    {
        "canary": {"steps": STEPS[0]},
        "capacity": {"policy": "AllowRecreate", "surgeTimeoutSeconds": 3, "deadlineSeconds": 20},
    },
    {"canary": {"steps": STEPS[0]}, "capacity": {"policy": "RequireSurge", "deadlineSeconds": 20}},
    {
        "canary": {
            "steps": [{"setWeight": 20}, ANALYSIS, {"setWeight": 50}, {"analysis": JUDGED | {"untilVerdict": False}}]
        }
    },
    {"canary": {"steps": STEPS[0], "analysis": JUDGED | {"startingStep": 1}}},
    {"canary": {"trafficPercent": 30, "analysis": JUDGED}},
    {"blueGreen": {"prePromotionAnalysis": MEASURED, "postPromotionAnalysis": MEASURED, "scaleDownDelaySeconds": 5}},
    {"canary": {"steps": [*STEPS[0][:2], {"analysis": MEASURED}], "analysis": MEASURED}},
    {"canary": {"steps": [{"setWeight": 20}, ANALYSIS, {"setWeight": 40}, ANALYSIS], "baselinePod": True}},
    {"canary": {"steps": [TWINS, {"setWeight": 20}, ANALYSIS], "baselinePod": True}},
    {"canary": {"steps": [PROVES, RAMP, {"pause": {}}], "baselinePod": True}},
    {"canary": {"steps": [ALONE, RAMP]}},
    {"canary": {"steps": [ALONE, {"pause": {}}], "baselinePod": True}, "capacity": {"maxSurge": 2}},
    {"blueGreen": {"previewReplicaCount": 1, "prePromotionAnalysis": PROVES["analysis"], "scaleDownDelaySeconds": 5}},
    {"canary": {"steps": [PROVES, RAMP], "baselinePod": True}, "capacity": {"maxSurge": 2, "surgeTimeoutSeconds": 5}},
    {
        "canary": {"steps": [{"setWeight": 0}, TWINS, *STEPS[0]], "analysis": JUDGED, "baselinePod": True},
        "capacity": {"maxSurge": 2, "surgeTimeoutSeconds": 5},
    },
    {
        "canary": {"steps": [MIRROR, *STEPS[1]], "analysis": JUDGED, "baselinePod": True},
        "capacity": {"maxSurge": 2, "surgeTimeoutSeconds": 5},
    },
    {
        "canary": {"trafficPercent": 30, "analysis": JUDGED, "baselinePod": True},
        "capacity": {"policy": "AllowRecreate", "surgeTimeoutSeconds": 3},
    },
)
FOLLOWS = {"type": "QueueDepth", "target": "4"}
KINDS = (
    *("confirm-rollout", "pre-rollout", "rollout", "confirm-traffic-increase", "confirm-promotion"),
    *("post-rollout", "rollback"),
)

ARGO_PATCHES: tuple[dict[str, Any], ...] = (
    {"abort": True},
    {"abort": False},
    {"promoteFull": True},
    {"pauseConditions": None},
)

ACTS = st.one_of(
    st.tuples(st.just("version"), st.sampled_from(VERSIONS)),
    st.tuples(st.just("strategy"), st.sampled_from(STRATEGIES)),
    st.tuples(st.just("hooks"), st.lists(st.sampled_from(KINDS), unique=True, max_size=4)),
    st.tuples(st.just("answers"), st.tuples(st.sampled_from(KINDS), st.booleans())),
    st.tuples(st.just("replicas"), st.integers(0, 5)),
    st.tuples(st.just("paused"), st.booleans()),
    st.tuples(st.just("intent"), st.sampled_from(("promote", "promoteFull", "abort", "retry", "rollbackTo"))),
    st.tuples(st.just("status"), st.sampled_from(ARGO_PATCHES)),
    st.tuples(st.just("lose_pods"), st.integers(0, 3)),
    st.tuples(st.just("break"), st.sampled_from(VERSIONS)),
    st.tuples(st.just("mend"), st.sampled_from(VERSIONS)),
    st.tuples(st.just("lose_gateway"), st.integers(0, 1)),
    st.tuples(st.just("inflight"), st.integers(0, 2)),
    st.tuples(st.just("crash"), st.integers(0, 4)),
    st.tuples(st.just("rate"), st.sampled_from((0, 5, 20))),
    st.tuples(st.just("sicken"), st.tuples(st.sampled_from(VERSIONS), st.sampled_from((0.01, 0.3, 0.9)))),
    st.tuples(st.just("template"), st.sampled_from((None, "Pause", "Continue", "Abort"))),
    st.tuples(st.just("score"), st.sampled_from((0.9, 0.1, float("nan"), None, "much"))),
    st.tuples(st.just("deafen"), st.tuples(st.integers(0, 1), st.booleans())),
    st.tuples(st.just("wear"), st.tuples(st.sampled_from(VERSIONS), st.integers(0, 4))),
    st.tuples(st.just("idle"), st.sampled_from((None, 5, 8))),
    st.tuples(st.just("visit"), st.integers(0, 1)),
    st.tuples(st.just("places"), st.sampled_from((None, 3, 4, 6))),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("time"), st.integers(1, 8)),
    st.tuples(st.just("jump"), st.integers(10, 90)),
    st.tuples(st.just("reconcile"), st.just(0)),
)


def do(world: ModelCluster, act: str, value: Any) -> None:
    """One thing that happens to a ModelDeployment."""
    DEEDS[act](world, value)


def lose_pods(world: ModelCluster, count: int) -> None:
    for pods in world.pods.values():
        pods.ready = max(0, pods.ready - count)


def be_asked(world: ModelCluster, requests: int) -> None:
    world.inflight = dict.fromkeys(world.pods, requests)


def lose_gateway(world: ModelCluster, index: int) -> None:
    world.gateways[index] = ModelGateway("new", None, ready=True)


def live(world: ModelCluster, seconds: int) -> None:
    for _ in range(seconds):
        world.reconcile()
        world.pass_time()


def set_places(world: ModelCluster, places: int | None) -> None:
    """Nodes come and go; a pod that has a place keeps it."""
    world.places = places


def intend(world: ModelCluster, kind: str) -> None:
    rollout, stable = world.parsed().rollout, world.parsed().stable_revision
    if kind == "rollbackTo":
        if stable and world.parsed().previous_revision:
            world.edit(rollout__rollbackTo=f"{world.parsed().current_revision}/{world.parsed().previous_revision}")
    elif rollout:
        tokens = {
            "promote": rollout.step_token,
            "promoteFull": rollout.attempt_token,
            "abort": rollout.attempt_token,
            "retry": f"{rollout.revision}/{rollout.attempt + 1}",
        }
        world.edit(**{f"rollout__{kind}": tokens[kind]})


def crash(world: ModelCluster, calls: int) -> None:
    world.calls, world.calls_until_crash = 0, calls
    try:
        world.reconcile()
    except Crashed:
        pass
    finally:
        world.calls_until_crash = None


def set_template(world: ModelCluster, on_inconclusive: str | None) -> None:
    """It comes, changes and goes."""
    known = {"quick": TEMPLATE, "release": RELEASE, "score": {"metrics": [SCORE]}} if on_inconclusive else {}
    world.templates = {name: {**spec, "onInconclusive": on_inconclusive} for name, spec in known.items()}


def may_sleep(world: ModelCluster, idle_s: int | None) -> None:
    scaled = {"minReplicas": 0, "maxReplicas": 5, "idleSeconds": idle_s, "metrics": [FOLLOWS]}
    world.edit(autoscaling=None if idle_s is None else scaled)


def deafen(world: ModelCluster, value: tuple[int, bool]) -> None:
    """A ready gateway does not answer the operator, or does again."""
    index, reachable = value
    world.gateways[index].reachable = reachable


DEEDS: dict[str, Callable[[ModelCluster, Any], Any]] = {
    "version": lambda world, value: world.edit(model=model(value)),
    "strategy": lambda world, value: world.edit(strategy=copy.deepcopy(value)),
    "hooks": lambda world, value: world.edit(strategy__hooks=[hook(kind) for kind in value]),
    "answers": lambda world, value: world.hook_answers.update([value]),
    "replicas": lambda world, value: world.edit(replicas=value),
    "paused": lambda world, value: world.edit(paused=value),
    "intent": intend,
    "status": lambda world, value: world.patch_status(**value),
    "lose_pods": lose_pods,
    "break": lambda world, value: world.broken.add(model(value)["uri"]),
    "mend": lambda world, value: world.broken.discard(model(value)["uri"]),
    "lose_gateway": lose_gateway,
    "inflight": be_asked,
    "crash": crash,
    "rate": lambda world, value: setattr(world, "rate", value),
    "sicken": lambda world, value: world.bad.update([(model(value[0])["uri"], value[1])]),
    "template": set_template,
    "score": lambda world, value: world.values.update(score=value),
    "deafen": deafen,
    "idle": may_sleep,
    "visit": lambda world, value: world.gateways[value].visit(world),
    "wear": lambda world, value: world.restarts.update([(model(value[0])["uri"], value[1])]),
    "places": set_places,
    "restart": lambda world, value: world.edit(restartAt=format_time(world.now)),
    "time": live,
    "jump": lambda world, value: world.pass_time(value),
    "reconcile": lambda world, value: world.reconcile(),
    "hold": lambda world, value: setattr(world, "hold", value),
}


@pytest.mark.timeout(0 if HISTORIES > FEW else 600)
@pytest.mark.parametrize("lot", range(LOTS))
@settings(
    max_examples=HISTORIES // LOTS, derandomize=HISTORIES == FEW, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(history=st.lists(ACTS, min_size=3, max_size=30))
def test_invariants_hold_and_every_history_settles(lot: int, history: list[tuple[str, Any]]) -> None:
    """The world asserts I1-I4, I6, I7 on every write; this test asserts that it comes to rest at the spec (I5)."""
    world = cluster(replicas=3)
    world.delays_changed = world.surge_changed = True  # strategies with several delays and surges are drawn
    for act, value in history:
        do(world, act, value)
    world.broken, world.inflight, world.places, world.hook_answers, world.rate = set(), {}, None, {}, 0
    set_template(world, "Pause")
    for gateway in world.gateways:
        gateway.reachable = True
    world.edit(paused=False, replicas=3, progressDeadlineSeconds=3600, autoscaling=None)
    world.run(150)
    settle_at_rest(world)


def settle_at_rest(world: ModelCluster) -> None:
    before, calls = world.fixpoint(), world.calls
    world.run(150)
    assert world.fixpoint() == before, "a history without acts comes to rest"
    assert world.calls == calls, "nothing is written at rest"
    held = world.parsed().phase == "Paused"  # by a pause, or by a background analysis that ended without a verdict
    assert held or world.state() in (None, "Aborted")
    serving = [backend for backend in world.parsed().traffic.backends if backend.weight]  # type: ignore[union-attr]
    assert all(world.all_ready(backend.revision) for backend in serving)
    kept = [item.revision for item in world.parsed().revisions if item.role != "old"]
    assert sorted(world.pods) == sorted(kept) and len(kept) <= (3 if held else 1), "what does not serve has left"


OF_ADAPTERS = ("version", "hooks", "answers", "paused", "intent", "status", "lose_pods", "break", "mend", "inflight")
HOLD = Hold("BaseRollingOut", "the ModelDeployment base rolls out a revision")
ADAPTER_ACTS = st.one_of(
    ACTS.filter(lambda act: act[0] in (*OF_ADAPTERS, "lose_gateway", "crash", "rate", "sicken", "template", "time")),
    st.tuples(st.just("strategy"), st.sampled_from([one for one in STRATEGIES if "capacity" not in one])),
    st.tuples(st.just("hold"), st.sampled_from((None, HOLD))),
)


@settings(max_examples=HISTORIES, derandomize=HISTORIES == FEW, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=st.lists(ADAPTER_ACTS, min_size=3, max_size=30))
def test_invariants_hold_for_adapters(history: list[tuple[str, Any]]) -> None:
    """The second subject: no Service, no pod of its own, and weights only between versions that are loaded."""
    world = ModelCluster({"model": model("v1"), "deploymentRef": {"name": "base"}, "strategy": {}}, adapter=True)
    world.delays_changed = world.surge_changed = True
    for act, value in history:
        do(world, act, value)
    world.broken, world.inflight, world.hook_answers, world.rate, world.hold = set(), {}, {}, 0, None
    set_template(world, "Pause")
    world.edit(paused=False, progressDeadlineSeconds=3600)
    world.run(150)
    settle_at_rest(world)
    assert not world.services
    assert {table.base for table in [world.parsed().traffic] if table} == {"base"}


def test_an_adapter_takes_no_step_while_it_is_held() -> None:
    steps = [{"setWeight": 10}, {"pause": {"duration": "3s"}}]
    spec = {"model": model("v1"), "deploymentRef": {"name": "base"}, "strategy": {"canary": {"steps": steps}}}
    world = ModelCluster(spec | {"progressDeadlineSeconds": 60}, adapter=True)
    world.run_until(None)
    stable = world.parsed().stable_revision
    world.hold = HOLD
    world.edit(model=model("v2"))
    world.run(120)
    held = world.parsed()
    assert held.stable_revision == stable and held.weight == 0 and held.reason == "BaseRollingOut"
    assert not held.aborted_revisions, "no deadline runs meanwhile"
    world.hold = None
    world.run(30)
    assert world.parsed().stable_revision != stable and "DeploymentAvailable" not in {
        item.type for item in world.parsed().conditions
    }


SCENARIOS = ("promotion", "abort", "supersede", "baseline", "twins", "sleep")


def begun(name: str) -> ModelCluster:
    """The world before a scenario."""
    world = healthy()
    if name == "baseline":
        world.templates = {"quick": TEMPLATE}
        world.edit(strategy__canary__analysis=JUDGED, strategy__canary__baselinePod=True)
    if name == "twins":
        world.templates, world.rate = {"quick": TEMPLATE}, 5
        world.edit(
            strategy__canary__steps=[TWINS, {"setWeight": 10}, {"pause": {}}], strategy__canary__baselinePod=True
        )
    return world


def scenario(name: str, world: ModelCluster) -> None:
    """A whole rollout, or a whole sleep; every reconcile may crash."""
    if name == "sleep":
        sleep_and_wake(world)
        return
    world.edit(model=model("v2"))
    run(world, 12)
    if name == "abort":
        world.edit(rollout__abort=f"{world.parsed().canary_revision}/1")
    elif name == "supersede":
        world.edit(model=model("v3"))
    run(world, 24)  # an analysis may have begun again, because the operator died between the run and the status
    rollout = world.parsed().rollout
    if name != "abort" and rollout:
        world.edit(rollout__promote=rollout.token)
    run(world, 15)
    run(world, 60, step=5)  # only delays are left


def sleep_and_wake(world: ModelCluster) -> None:
    may_sleep(world, 5)
    run(world, 20)
    world.gateways[0].visit(world)
    run(world, 4)
    assert world.gateways[0].served == 1
    run(world, 30)


def run(world: ModelCluster, seconds: int, step: int = 1) -> None:
    for _ in range(0, seconds, step):
        try:
            world.reconcile()
        except Crashed:
            world.calls_until_crash = None
            world.reconcile()
        world.pass_time(step)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_before_or_after_any_call_changes_nothing(name: str) -> None:
    """I8: for every call of a scenario, the operator dies right before it; the end is the same."""
    undisturbed = begun(name)
    first = undisturbed.calls
    scenario(name, undisturbed)
    assert undisturbed.calls > first + 5
    for calls in range(first, undisturbed.calls + 1):
        world = begun(name)
        world.calls_until_crash = calls
        scenario(name, world)
        assert world.fixpoint() == undisturbed.fixpoint(), f"crash at call {calls - first}"
