"""Mirrored requests on a real cluster: no client sees them, no counter of clients has them, and they measure drift."""

from collections.abc import Callable

import pytest

from testkit.cluster.deployment import START_S, Deployment, Json, canary, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.flow import Flow, Shape

VERDICT_S = 240
BEFORE = 20
ANALYSIS: Json = {"analysis": {"templates": [{"templateName": "llm-shadow-drift"}], "maxDuration": "10m"}}
STEPS: tuple[Json, ...] = (
    {"setCanaryScale": {"replicas": 1}},
    {"setMirrorRoute": {"percentage": 100}},
    ANALYSIS,
    {"pause": {}},
)
# The length is left to the server: with 24 tokens an eighth of them is cut, with fewer sequences none.
LOAD = Shape(rate=12, streamed=0.25, max_tokens=None)
CUT: Json = {"env": [{"name": "SLIPWAY_MAX_MODEL_LEN", "value": "24"}]}
SAME: Json = {"args": ["--max-num-seqs", "8"]}


@pytest.mark.extended
@pytest.mark.timeout(3 * START_S + VERDICT_S, func_only=True)
@pytest.mark.parametrize(("engine", "drifts"), [(CUT, True), (SAME, False)], ids=["other-answers", "same-answers"])
def test_mirrored_requests_measure_drift_and_are_no_requests_of_clients(
    engine: Json,
    drifts: bool,
    slipway: Installation,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
) -> None:
    chat = deploy("v1", replicas=2, strategy=canary(*STEPS))
    stable = chat.until_stable("v1")["stableRevision"]
    running = flow(chat, LOAD)
    running.wait_for(lambda seen: len(seen) >= BEFORE, 60, "answers of stable")

    chat.edit(engine=engine)
    decided = chat.until("there is a verdict", lambda status: is_over(status), VERDICT_S)
    seen = running.stop()
    assert not [item for item in seen if item.trouble] and {item.revision for item in seen} == {stable}
    verdict = chat.analysis(decided)["verdict"]
    print(f"{engine}: {verdict['outcome']}, {verdict['message']}")
    if drifts:
        settled = chat.until_state("Aborted")
        assert settled["rollout"]["abort"]["reason"] == "AnalysisFailed", settled["message"]
        assert (verdict["outcome"], verdict["metric"]) == ("Fail", decided_by(verdict))
    else:
        assert (verdict["outcome"], state_of(decided)) == ("Pass", "Paused"), decided["message"]
    assert weights_of(chat.status) == {"v1": 100}
    counted_apart(slipway, chat, len(seen), decided["rollout"]["revision"])


def counted_apart(slipway: Installation, chat: Deployment, sent: int, tested: str) -> None:
    """Gateways counted what clients sent, once each, and copies beside it."""
    gateways = list(slipway.ready("gateway"))
    outcomes = [slipway.outcomes(name, chat.model) for name in gateways]
    assert sum(sum(found.values()) for found in outcomes) == sent
    copies = [slipway.mirrored(name, chat.model) for name in gateways]
    compared = sum(found.get("compared", 0) for found in copies)
    print(f"{sent} requests of clients; copies: {copies}")
    assert 0 < compared < sum(sum(found.values()) for found in copies) <= sent
    for name in gateways:
        of_canary = slipway.route(name, chat.route)["revisions"].get(tested, {})
        assert (of_canary.get("requests", 0), of_canary.get("inflight", 0)) == (0, 0), "a copy is no first attempt"


def is_over(status: Json) -> bool:
    return state_of(status) in ("Aborting", "Aborted", "Paused")


def decided_by(verdict: Json) -> str:
    """The metric that compares answers, and is no dry run."""
    return str(verdict["metrics"][0]["name"])
