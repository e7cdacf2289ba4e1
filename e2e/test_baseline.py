"""A canary with a baseline pod on a real cluster: compared with it, promoted, and its removal fails no request."""

from collections.abc import Callable

import pytest

from e2e import faults
from e2e.test_healthy_twenty import QUICK, THRESHOLD_STREAMS
from testkit.cluster.deployment import START_S, Deployment, Json, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.flow import Flow, Shape
from testkit.until import until

WEIGHT, PROMOTED_S = 40, 240


@pytest.mark.extended
@pytest.mark.timeout(3 * START_S + PROMOTED_S, func_only=True)
def test_a_canary_is_compared_with_a_fresh_pod_of_stable(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment], flow: Callable[[Deployment, Shape], Flow]
) -> None:
    slipway.kube.apply(faults.template("quick", **QUICK), namespace)
    strategy = faults.strategy(WEIGHT, "quick") | {"capacity": {"maxSurge": 2}}
    strategy["canary"]["baselinePod"] = True
    chat = deploy("v1", strategy=strategy)
    stable = chat.until_stable("v1")["stableRevision"]
    running = flow(chat, Shape(rate=20, streamed=1))
    running.wait_for(lambda seen: len(seen) >= THRESHOLD_STREAMS, 90, "enough answers of stable")

    chat.edit(model={"version": "as-good"})
    analyzed = chat.until_state("Analyzing")
    backends = {item["revision"]: item["weight"] for item in analyzed["traffic"]["backends"]}
    tested, baseline = analyzed["rollout"]["revision"], f"{stable}-baseline"
    assert backends == {tested: WEIGHT, stable: 100 - 2 * WEIGHT, baseline: WEIGHT}
    roles = {item["revision"]: (item["role"], item["ready"]) for item in analyzed["revisions"]}
    assert roles == {tested: ("canary", 1), stable: ("stable", 1), baseline: ("baseline", 1)}
    run = chat.analysis(chat.until("it counts", lambda status: counts(chat, status), START_S))
    assert {epoch["w"] for item in run["counts"] for epoch in item["epochs"]} == {50}

    chat.until("it is promoted", lambda status: is_promoted(status, stable), PROMOTED_S)
    chat.until_alone()
    seen = running.stop()
    assert not [item for item in seen if item.trouble]
    assert {item.revision for item in seen} == {tested, stable, baseline}
    left = {f"{kind} {chat.name}-{baseline}" for kind in ("ReplicaSet", "Service")}
    until(lambda: not chat.objects().keys() & left, "what the baseline had is gone", 60)


def counts(chat: Deployment, status: Json) -> bool:
    """Some were counted, and no verdict is there yet that would forget them."""
    return bool(chat.analysis(status).get("counts"))


def is_promoted(status: Json, stable: str) -> bool:
    assert state_of(status) not in ("Aborting", "Aborted", "Paused"), status["message"]
    return weights_of(status) == {"as-good": 100} and status["stableRevision"] != stable and not status.get("rollout")
