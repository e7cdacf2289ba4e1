"""A twin shadow on a real cluster: pairs decide before any client is served by the new revision."""

import random
import time
from collections.abc import Callable

import pytest

from e2e import faults
from testkit.cluster.deployment import START_S, Deployment, Json, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.flow import Flow, Shape

VERDICT_S = 420
BEFORE = 120  # streams, of which stable's quantile is known
# The length is left to the server: with 24 tokens an eighth of the answers is cut, with fewer sequences none.
LOAD = Shape(rate=12, streamed=1, max_tokens=None)
FEW = Shape(rate=3, streamed=1, max_tokens=None)  # so that a bad version is not rejected before the kill
# Decides fast: what it does is tested, not how sure it is.
RELEASE: Json = {
    "minSamples": {"pairs": 100, "warmupSeconds": 20},
    "metrics": [
        {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 0.6, "maxExtra": 50},
        {"name": "truncated", "kind": "PairedEvent", "event": "TruncatedAnswer", "share": 0.4, "maxExtra": 50},
        {"name": "live-bad", "event": "BadResponse", "share": 1.0, "maxExtra": 100},
    ],
}
CUT: Json = {"env": [{"name": "SLIPWAY_MAX_MODEL_LEN", "value": "24"}]}
SAME: Json = {"args": ["--max-num-seqs", "8"]}
TEMPLATES = [{"templateName": "pairs"}]
SHADOW: Json = {"templates": TEMPLATES, "twinShadow": {"percentage": 100}, "maxDuration": "10m"}
RAMP: Json = {"auto": {"maxHarm": 30, "bake": "15s"}, "templates": TEMPLATES, "maxDuration": "10m"}
ON_FAILURE = SHADOW | {"twinShadow": {"percentage": 100, "reference": "OnFailure"}}
COMPARED: Json = {
    "canary": {"canary": {"baselinePod": True, "steps": [{"analysis": SHADOW}, {"pause": {}}]}},
    "blueGreen": {
        "blueGreen": {"prePromotionAnalysis": SHADOW, "previewReplicaCount": 1, "autoPromotionEnabled": False}
    },
    "on-failure": {"canary": {"steps": [{"analysis": ON_FAILURE}, {"pause": {}}]}},
}
RAMPED: Json = {
    "canary": {"baselinePod": True, "steps": [{"analysis": SHADOW}, {"ramp": RAMP}]},
    "capacity": {"maxSurge": 2},
}


@pytest.mark.extended
@pytest.mark.timeout(3 * START_S + VERDICT_S, func_only=True)
@pytest.mark.parametrize(("engine", "passes"), [(SAME, True), (CUT, False)], ids=["as-good", "cut-answers"])
@pytest.mark.parametrize("kind", ["canary", "blueGreen", "on-failure"])
def test_pairs_decide_before_any_client_is_served(
    kind: str,
    engine: Json,
    passes: bool,
    slipway: Installation,
    namespace: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
) -> None:
    slipway.kube.apply(faults.template("pairs", **RELEASE), namespace)
    chat = deploy("v1", strategy=COMPARED[kind] | {"capacity": {"maxSurge": 2}})
    stable = chat.until_stable("v1")["stableRevision"]
    running = flow(chat, LOAD)
    running.wait_for(lambda seen: len(seen) >= BEFORE, 90, "answers of stable")

    chat.edit(engine=engine)
    shadowed = chat.until("copies are sent", lambda status: bool(status["traffic"].get("twinShadow")), START_S)
    shadow, tested = shadowed["traffic"]["twinShadow"], shadowed["rollout"]["revision"]
    assert (shadow["revision"], shadow["twin"], shadow["percentage"]) == (tested, stable, 100)
    assert weights_of(shadowed) == {"v1": 100}
    decided = chat.until("there is a verdict", is_over, VERDICT_S)
    seen = running.stop()
    assert not [item for item in seen if item.trouble] and {item.revision for item in seen} == {stable}
    verdict = chat.analysis(decided)["verdict"]
    print(f"{engine}: {verdict['outcome']}, {verdict['message']}")
    how = "failed by stable too" if kind == "on-failure" else "prompts answered twice"
    assert how in verdict["message"]
    if passes:
        assert (verdict["outcome"], state_of(decided)) == ("Pass", "Paused"), decided["message"]
        assert not decided["traffic"].get("twinShadow"), "the copies end with the step"
    else:
        settled = chat.until_state("Aborted")
        assert (verdict["outcome"], settled["rollout"]["abort"]["reason"]) == ("Fail", "AnalysisFailed")
        assert verdict["metric"] == "truncated"
    assert weights_of(chat.status) == {"v1": 100}


@pytest.mark.extended
@pytest.mark.timeout(3 * START_S + VERDICT_S, func_only=True)
def test_probes_decide_about_a_model_that_no_client_calls(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment]
) -> None:
    metrics = [{"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 1.0, "maxExtra": 100}]
    template = {"minSamples": {"pairs": 100, "warmupSeconds": 0}, "metrics": metrics}
    slipway.kube.apply(faults.template("pairs", **template), namespace)
    probes = {"prompts": ["Name three rivers.", "Count to five."], "pairsPerMinute": 120, "maxTokens": 16}
    analysis = {"templates": [{"templateName": "pairs"}], "twinShadow": {"probes": probes}, "maxDuration": "10m"}
    canary = {"baselinePod": True, "steps": [{"analysis": analysis}, {"pause": {}}]}
    chat = deploy("v1", strategy={"canary": canary, "capacity": {"maxSurge": 2}})
    chat.until_stable("v1")
    chat.edit(engine=SAME)
    decided = chat.until("there is a verdict", is_over, START_S + VERDICT_S)
    verdict = chat.analysis(decided)["verdict"]
    print(f"probes: {verdict['outcome']}, {verdict['message']}")
    assert verdict["outcome"] == "Pass", verdict["message"]
    assert verdict["pairs"]["users"] == 0 and verdict["pairs"]["probes"] >= 100


@pytest.mark.extended
@pytest.mark.timeout(4 * START_S + 2 * VERDICT_S, func_only=True)
def test_a_healthy_release_ramps_up_by_itself(
    slipway: Installation,
    namespace: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
) -> None:
    """From the first copy to all clients without a hand: pairs, weights within maxHarm, the bake, the promotion."""
    slipway.kube.apply(faults.template("pairs", **RELEASE), namespace)
    chat = deploy("v1", strategy=RAMPED)
    chat.until_stable("v1")
    running = flow(chat, LOAD)
    running.wait_for(lambda seen: len(seen) >= BEFORE, 90, "answers of stable")

    chat.edit(engine=SAME)
    begun = chat.until("the ramp begins", lambda status: bool(ramp_of(status)), START_S + VERDICT_S)
    assert ramp_of(begun)["weight"] == 1 and ramp_of(begun)["shadowAtMost"] <= 50
    baking = chat.until("it bakes", lambda status: bool(ramp_of(status).get("bakeUntil")), VERDICT_S)
    spent = ramp_of(baking)["spent"]
    assert 0 < spent <= 30 and baking["traffic"]["backends"][0]["weight"] == 90
    print(f"ramp: {baking['message']}")
    promoted = chat.until("it is promoted", lambda status: not status.get("rollout"), START_S)
    seen = running.stop()
    assert not [item for item in seen if item.trouble]
    assert [one["weight"] for one in promoted["traffic"]["backends"] if one["weight"]] == [100]


@pytest.mark.extended
@pytest.mark.timeout(4 * START_S + 2 * VERDICT_S, func_only=True)
@pytest.mark.parametrize("victim", ["operator", "gateway"])
@pytest.mark.parametrize(("engine", "passes"), [(SAME, True), (CUT, False)], ids=["as-good", "cut-answers"])
def test_a_kill_during_a_shadow_and_a_ramp_changes_no_verdict(
    engine: Json,
    passes: bool,
    victim: str,
    slipway: Installation,
    namespace: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
) -> None:
    """The analysis goes on with what it had counted: a good release goes out by itself, a bad one serves no client."""
    slipway.kube.apply(faults.template("pairs", **RELEASE), namespace)
    chat = deploy("v1", strategy=RAMPED)
    stable = chat.until_stable("v1")["stableRevision"]
    running = flow(chat, LOAD if passes else FEW)
    running.wait_for(lambda seen: len(seen) >= BEFORE, 90, "answers of stable")

    chat.edit(engine=engine)
    chat.until("pairs are counted", lambda status: counted(chat.analysis(status)) > 0, START_S)
    before, former_run = kill_one(slipway, victim, chat)
    assert state_of(before) == "Analyzing", "the verdict was there before the kill"
    most = counted(former_run)
    kept = chat.until("the next ones are, too", lambda status: counted(chat.analysis(status)) > most, START_S)
    run = chat.analysis(kept)
    lost = kept["rollout"]["analysis"].get("lost")  # the operator died between its two writes
    assert run["startedAt"] == former_run["startedAt"] or lost or not run.get("shadow")
    if passes:
        begun = chat.until("the ramp begins", lambda status: bool(ramp_of(status)), START_S + VERDICT_S)
        former = ramp_of(kill_one(slipway, victim, chat)[0]) or ramp_of(begun)
        promoted = chat.until("it is promoted", lambda status: not status.get("rollout"), VERDICT_S)
        assert [one["weight"] for one in promoted["traffic"]["backends"] if one["weight"]] == [100]
        assert promoted["stableRevision"] != stable and former["spent"] <= 30
    else:
        settled = chat.until("it is rejected", is_over, VERDICT_S)
        assert settled["rollout"]["abort"]["reason"] == "AnalysisFailed"
    slipway.until_well()
    seen = running.stop()
    assert passes or {item.revision for item in seen if item.revision} == {stable}, "no client was served by it"
    troubles = [item for item in seen if item.trouble]
    assert victim == "gateway" or not troubles, troubles[:5]
    assert all("ServerDisconnected" in item.trouble or "Client" in item.trouble for item in troubles), troubles[:5]


def kill_one(slipway: Installation, victim: str, chat: Deployment) -> tuple[Json, Json]:
    """Kill a process after some seconds; gives the status and the run before."""
    second = random.uniform(0.5, 6.0)
    time.sleep(second)
    before = chat.status
    run = chat.analysis(before)
    slipway.kill(next(iter(slipway.ready(victim))))
    print(f"{victim} killed after {second:.1f} s, with {counted(run)} pairs or requests counted")
    return before, run


def counted(run: Json) -> int:
    """What the present analysis has counted: pairs of a shadow, requests of a ramp."""
    epochs = (epoch for item in run.get("counts") or () for epoch in item["epochs"])
    return sum(epoch.get("canaryUnits", 0) for epoch in epochs)


def ramp_of(status: Json) -> Json:
    found: Json = ((status.get("rollout") or {}).get("analysis") or {}).get("ramp") or {}
    return found


def is_over(status: Json) -> bool:
    return state_of(status) in ("Aborting", "Aborted", "Paused")
