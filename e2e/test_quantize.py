"""A version of the same weights in fewer bits is a canary like any other: pairs say what it changes."""

import re
from collections.abc import Callable

import pytest

from e2e import faults
from testkit.cluster.deployment import START_S, Deployment, Json, model_of, state_of
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
        {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 1.0, "maxExtra": 100},
        {"name": "flips", "kind": "PairedEvent", "event": "TokensFlip", "dryRun": True},
    ],
}
ANALYSIS: Json = {"templates": [{"templateName": "quantized"}], "twinShadow": {"percentage": 100}, "maxDuration": "10m"}
STRATEGY: Json = {
    "canary": {"baselinePod": True, "steps": [{"analysis": ANALYSIS}, {"pause": {}}]},
    "capacity": {"maxSurge": 2},
}


@pytest.mark.extended
@pytest.mark.timeout(3 * START_S + VERDICT_S, func_only=True)
def test_int4_waits_for_a_person_with_what_it_changes_and_is_promoted(
    slipway: Installation,
    namespace: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
) -> None:
    slipway.kube.apply(faults.template("quantized", **TEMPLATE), namespace)
    chat = deploy("v1", strategy=STRATEGY)
    chat.until_stable("v1")
    running = flow(chat, LOAD)
    running.wait_for(lambda seen: len(seen) >= BEFORE, 90, "answers of stable")

    chat.edit(model={**model_of("v1"), "version": "int4", "quantization": "int4"})
    decided = chat.until("there is a verdict", is_over, START_S + VERDICT_S)
    message = verdict_of(chat, decided, "int4")["message"]
    assert state_of(decided) == "Paused", message
    # A model that knows its texts by heart may answer as before.
    assert re.search(r"tokens of stable [\d.]+% are not canary's first choice.* [\d,]+ of [\d,]+ texts differ", message)
    chat.promote()
    promoted = chat.until_stable("int4")
    seen = running.stop()
    assert not [item for item in seen if item.trouble], "no request failed"
    assert not promoted.get("rollout")


def is_over(status: Json) -> bool:
    return state_of(status) in ("Aborting", "Aborted", "Paused")


def verdict_of(chat: Deployment, status: Json, version: str) -> Json:
    """The verdict of the last analysis of a version."""
    verdict: Json = chat.analysis(status)["verdict"]
    print(f"{version}: {verdict['outcome']}, {verdict['message']}")
    return verdict
