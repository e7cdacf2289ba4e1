"""A version of the same weights in fewer bits is a canary like any other: pairs say what it changes."""

import re
from collections.abc import Callable

import pytest

from e2e import faults, weights
from testkit.cluster.deployment import START_S, Deployment, Json, model_of, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.flow import Flow, Shape

VERDICT_S = 420
BEFORE = 120  # streams, of which stable's quantile is known
# A loop is detected from 256 bytes on. Not streamed: those are compared by the tokens of their texts.
LOAD = Shape(rate=4, streamed=0.5, max_tokens=270)
# Decides fast: what it does is tested, not how sure it is.
TEMPLATE: Json = {
    "minSamples": {"pairs": 100, "warmupSeconds": 20},
    "metrics": [
        {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 0.8, "maxExtra": 100},
        {"name": "flips", "kind": "PairedEvent", "event": "TokensFlip", "share": 0.2, "maxDisagreement": 0.2},
    ],
}
ANALYSIS: Json = {"templates": [{"templateName": "quantized"}], "twinShadow": {"percentage": 100}, "maxDuration": "10m"}
STRATEGY: Json = {
    "canary": {"baselinePod": True, "steps": [{"analysis": ANALYSIS}, {"pause": {}}]},
    "capacity": {"maxSurge": 2},
}


@pytest.mark.extended
@pytest.mark.timeout(4 * START_S + 2 * VERDICT_S, func_only=True)
def test_int4_passes_its_bound_and_waits_for_a_person_and_wrong_scales_are_rejected_before_a_client_sees_them(
    slipway: Installation,
    namespace: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
) -> None:
    slipway.kube.apply(faults.template("quantized", **TEMPLATE), namespace)
    chat = deploy("v1", strategy=STRATEGY)
    weights.begin(slipway.kube, namespace, slipway.images.server)
    chat.until_stable("v1")
    running = flow(chat, LOAD)
    running.wait_for(lambda seen: len(seen) >= BEFORE, 90, "answers of stable")

    chat.edit(model={**model_of("v1"), "version": "int4", "quantization": "int4"})
    decided = chat.until("there is a verdict", is_over, START_S + VERDICT_S)
    passed = verdict_of(chat, decided, "int4")
    message = passed["message"]
    assert state_of(decided) == "Paused" and passed["outcome"] == "Pass", message
    assert re.search(r"flips: [\d.]+% of the tokens that stable chooses .*% at most \(maxDisagreement 0\.2\)", message)
    # A model that knows its texts by heart may answer as before.
    assert re.search(r"tokens of stable [\d.]+% are not canary's first choice.* [\d,]+ of [\d,]+ texts differ", message)
    chat.promote()
    promoted = chat.until_stable("int4")
    assert not promoted.get("rollout")

    weights.await_made(slipway.kube, namespace)
    chat.edit(model={"uri": f"{weights.URI}/misscaled", "version": "misscaled", "quantization": None})
    rejected = chat.until_state("Aborted", START_S + VERDICT_S)
    seen = running.stop()
    assert rejected["rollout"]["abort"]["reason"] == "AnalysisFailed", rejected["message"]
    failed = verdict_of(chat, rejected, "misscaled")
    assert (failed["outcome"], failed["metric"]) == ("Fail", "flips"), failed["message"]
    assert weights_of(rejected) == {"int4": 100}
    assert not [item for item in seen if item.trouble], "no request failed"
    assert rejected["rollout"]["revision"] not in {item.revision for item in seen}, "no client was served by it"


def is_over(status: Json) -> bool:
    return state_of(status) in ("Aborting", "Aborted", "Paused")


def verdict_of(chat: Deployment, status: Json, version: str) -> Json:
    """The verdict of the last analysis of a version."""
    verdict: Json = chat.analysis(status)["verdict"]
    print(f"{version}: {verdict['outcome']}, {verdict['message']}")
    return verdict
