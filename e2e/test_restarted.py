"""The operator or a gateway is killed at a random second of an analysis: the verdict is the same as without."""

import random
import time
from collections.abc import Callable

import pytest

from e2e import faults
from e2e.test_healthy_twenty import QUICK
from testkit.cluster.deployment import START_S, Deployment, Json, model_of, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.flow import Flow, Shape

VERDICT_S = 240
# Of the time from the first counts on; without a kill the verdict on either takes longer than this from there.
EARLIEST_S, LATEST_S = 0.5, 6.0
THRESHOLD_STREAMS = 120
BEFORE = 10

BAD: Json = {"model": {**model_of("v1"), "version": "short", "maxModelLen": 24}}
HEALTHY: Json = {"model": {**model_of("v1"), "version": "as-good"}}
# Clients that leave the length to the server: a short context cuts their answers.
FEW, MANY = Shape(rate=2, max_tokens=None), Shape(rate=20, streamed=1)


@pytest.mark.extended
@pytest.mark.timeout(3 * START_S + VERDICT_S, func_only=True)
@pytest.mark.parametrize("victim", ["operator", "gateway"])
@pytest.mark.parametrize("version", ["bad", "healthy"])
def test_a_kill_during_an_analysis_changes_no_verdict(
    version: str,
    victim: str,
    slipway: Installation,
    namespace: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
) -> None:
    slipway.kube.apply(faults.template("quick", **QUICK), namespace)
    bad = version == "bad"
    chat = deploy("v1", strategy=faults.strategy(20 if bad else 50, "quick"))
    stable = chat.until_stable("v1")["stableRevision"]
    running = flow(chat, FEW if bad else MANY)
    enough = BEFORE if bad else THRESHOLD_STREAMS
    running.wait_for(lambda seen: len(seen) >= enough, 90, "enough answers of stable")

    chat.edit(**(BAD if bad else HEALTHY))
    chat.until("its analysis counts", lambda status: counted(chat.analysis(status)) > 0, START_S)
    second = random.uniform(EARLIEST_S, LATEST_S)
    time.sleep(second)
    before, killed = chat.status, next(iter(slipway.ready(victim)))
    former = chat.analysis(before)
    assert state_of(before) == "Analyzing", (
        f"the verdict was there before the kill, {second:.1f} s after the first counts"
    )
    slipway.kill(killed)
    print(f"{version}: {victim} killed {second:.1f} s after the first counts, with {counted(former)} counted")

    ended = chat.until("there is a verdict", lambda status: is_decided(status, stable), VERDICT_S)
    reference = (ended.get("rollout") or {}).get("analysis") or {}  # a promotion forgets it
    run = chat.analysis(ended)
    if run and not reference.get("lost"):  # it is lost if the operator died between its two writes
        assert (run["id"], run["startedAt"]) == (former["id"], former["startedAt"]), "it is the same analysis"
        assert counted(run) >= counted(former), "what was counted is kept"
    if bad:
        abort = chat.until_state("Aborted")["rollout"]["abort"]
        assert abort["reason"] == "AnalysisFailed" and "truncated: " in abort["message"], abort
        assert weights_of(chat.status) == {"v1": 100}
    else:
        chat.until_stable("as-good")
    slipway.until_well()
    troubles = [item for item in running.stop() if item.trouble]
    assert victim == "gateway" or not troubles, troubles[:5]
    assert all("ServerDisconnected" in item.trouble or "Client" in item.trouble for item in troubles), troubles[:5]


def is_decided(status: Json, stable: str) -> bool:
    """A version that waits for a person has no verdict, and never will."""
    assert state_of(status) != "Paused", f"no verdict came: {status['message']}"
    return state_of(status) in ("Aborting", "Aborted", "Promoting") or status["stableRevision"] != stable


def counted(run: Json) -> int:
    """Requests of both sides that the analysis has counted."""
    epochs = (epoch for item in run.get("counts") or () for epoch in item["epochs"])
    return sum(epoch.get("canaryUnits", 0) + epoch.get("stableUnits", 0) for epoch in epochs)
