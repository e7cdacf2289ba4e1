"""spec.slo end to end: a real operator, gateway and API server; no server listens in the pods, so requests fail."""

import asyncio

import aiohttp
import pytest

from slipway_operator.kube.resources import MODEL_DEPLOYMENTS
from testkit.until import until_async

from .conftest import MANIFEST

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SLO = {"availability": "99", "latencyP99": "2s"}
CANARY = {"steps": [{"setWeight": 50}, {"pause": {"duration": "1s"}}], "holdOnBudget": True, "scaleDownDelaySeconds": 0}
REQUESTS = 12


async def _fail(port, times):
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}

    async def post(session):
        async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer:
            assert answer.status in (502, 503), await answer.text()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(post(session) for _ in range(times)))


async def _is_ready(port):
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def _counted(requests):
    """Whether so many requests count in the availability, and all of them missed it."""

    def holds(status):
        found = status["slo"]["objectives"][-1]
        return (found["objective"], found["requests"], found["missed"]) == ("availability", requests, requests)

    return holds


def _held(status):
    found = next((one for one in status["conditions"] if one["type"] == "ErrorBudgetSpent"), {})
    return found.get("reason") == "RolloutHeld" and status["phase"] == "Paused"


async def test_a_budget_is_spent_holds_a_rollout_and_survives_restarts(cluster, namespace):
    spec = {**MANIFEST["spec"], "slo": SLO, "strategy": {"canary": CANARY}}
    metadata = {"name": "chat", "namespace": namespace}
    await cluster.client.create(MODEL_DEPLOYMENTS, {**MANIFEST, "metadata": metadata, "spec": spec})
    first = await cluster.reaches("serves", lambda seen: seen.get("phase") == "Healthy" and seen.get("slo"))
    assert first["traffic"]["slo"] == {"latencyMilliseconds": 2000, "availability": True}
    await _fail(cluster.port, REQUESTS)
    await cluster.edit({"model": {"uri": "file:///opt/slipway/models/tiny-v2"}})
    held = await cluster.reaches("is held", _held)
    # A reading may be as old as a report is kept, so the first step may have begun.
    assert held["traffic"]["backends"][0]["weight"] in (0, 50) and "held by holdOnBudget" in held["message"]
    # Another target: what was counted counts on, and is written at once.
    await cluster.edit({"slo": {"availability": "98"}})
    await cluster.reaches("all are counted", _counted(REQUESTS))
    await cluster.operator.stop()
    await cluster.gateway.stop()
    await cluster.gateway.start()
    await cluster.operator.start()
    await until_async(lambda: _is_ready(cluster.gateway_admin_port), "the gateway is ready")
    await _fail(cluster.port, 5)
    await cluster.edit({"slo": {"availability": "97"}})
    again = await cluster.reaches("counts on", _counted(REQUESTS + 5))
    assert again["slo"]["objectives"][-1]["target"] == 97 and "abortedRevisions" not in again and _held(again)
    await cluster.edit({"slo": None})
    done = await cluster.reaches("goes on", lambda seen: seen["phase"] == "Healthy")
    assert done["stableRevision"] == held["currentRevision"] and "slo" not in done and "slo" not in done["traffic"]
