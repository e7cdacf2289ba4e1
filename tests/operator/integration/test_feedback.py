"""Feedback end to end: a real operator, gateway and API server, a real classic model in the pod of each revision."""

import asyncio
import base64
import contextlib
import json
from random import Random

import aiohttp
import pytest

from testkit.irises import GOOD, POOR, irises
from tests.support.classifiers import V2, save_classifiers, serving

from .conftest import MANIFEST

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(300)]

# Decides in a few readings: the way from a label to the verdict is tested, not how sure it is.
TEMPLATE = {
    "minSamples": {"canaryRequests": 40, "warmupSeconds": 0},
    "metrics": [{"name": "wrong", "event": "WrongAnswer", "share": 1.0, "okBelow": 0.25}],
}
ANALYSIS = {"analysis": {"templates": [{"templateName": "labels"}], "maxDuration": "10m"}}
STRATEGY = {
    "canary": {
        "steps": [{"setWeight": 50}, ANALYSIS, {"pause": {}}],
        "scaleDownDelaySeconds": 0,
        "abortScaleDownDelaySeconds": 0,
    }
}
AT_ONCE = 10


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Right for nearly all irises, and for about half of them."""
    return save_classifiers(tmp_path_factory.mktemp("models"), good=GOOD, poor=POOR)


@contextlib.asynccontextmanager
async def labelled(port):
    """Irises are classified, a few at a time, and their labels sent; what came of the labels."""
    results, over, chance = [], asyncio.Event(), Random(5)
    known = irises()
    url = f"http://127.0.0.1:{port}"

    async def classify(session):
        features, label = chance.choice(known)
        body = {"model": "chat", "input": {"features": features}}
        async with session.post(f"{url}/api/v1/predict", json=body) as answer:
            assert answer.status == 200, await answer.text()
            token = answer.headers.get("X-Slipway-Feedback")
            return {"id": token, "label": label} if token else None

    async def run():
        async with aiohttp.ClientSession() as session:
            while not over.is_set():
                found = await asyncio.gather(*(classify(session) for _ in range(AT_ONCE)))
                if entries := [entry for entry in found if entry]:
                    async with session.post(f"{url}/v1/feedback", json=entries) as answer:
                        assert answer.status == 200, await answer.text()
                        results.extend(one["status"] for one in (await answer.json())["data"])
                await asyncio.sleep(0.2)

    running = asyncio.create_task(run())
    try:
        yield results
    finally:
        over.set()
        await running


@pytest.mark.parametrize(("canary", "state"), [("good", "Paused"), ("poor", "Aborted")])
async def test_labels_of_clients_decide_about_a_classifier(
    client, namespace, api_server, tmp_path, models, canary, state
):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"id": "k1", "key": base64.urlsafe_b64encode(b"a" * 32).decode()}]}))
    flags = ("--auth-mode=off", f"--tenant-keys-file={keys}")
    world = client, namespace, api_server, tmp_path
    async with serving(world, models / "good", models / canary, flags) as cluster:
        first = await cluster.deploy(MANIFEST, TEMPLATE, STRATEGY)
        assert "feedback" not in first["traffic"]
        await cluster.edit(V2)
        async with labelled(cluster.port) as results:
            _, verdict = await cluster.decided(state)
    assert len(results) > 40 and set(results) <= {"accepted", "expired"} and results.count("accepted") > 40
    if state == "Aborted":
        assert verdict["metric"] == "wrong" and "bad" in verdict["message"]
