"""Predictions end to end: a real operator, gateway and API server, a real classic model in the pod of each revision."""

import asyncio
import contextlib
from random import Random

import aiohttp
import pytest

from slipway_operator.kube.resources import ANALYSIS_TEMPLATES, MODEL_DEPLOYMENTS
from slipway_operator.model.deployment.compact import expanded
from testkit.irises import GOOD, classifier, irises
from testkit.world.addresses import own_address
from testkit.world.rights import limited_kubeconfig
from tests.server.process import ServerProcess

from .conftest import MANIFEST
from .test_feedback import FLAGS, STRATEGY, V2, Pair, port_of

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(300)]

AT_ONCE = 20
ERRORS = {"name": "errors", "event": "FirstAttemptError", "share": 0.5, "okBelow": 0.2}
REPORT = {"name": "drift", "event": "PredictionDrift", "dryRun": True}
BOUNDED = {"name": "drift", "event": "PredictionDrift", "share": 0.5, "maxPsi": 0.1}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One whose labels are as frequent as the species, and one with the same label for all."""
    root = tmp_path_factory.mktemp("models")
    for name, features in (("good", GOOD), ("blind", ())):
        (root / name).mkdir()
        (root / name / "model.onnx").write_bytes(classifier(features))
    return root


@contextlib.asynccontextmanager
async def classified(port):
    """Irises of one species more often than of the others are classified, some at a time, on each path."""
    over, chance, known = asyncio.Event(), Random(5), irises()
    known += [one for one in known if one[1] == "1"] * 4
    url = f"http://127.0.0.1:{port}"

    async def classify(session, place):
        features, _ = chance.choice(known)
        tensor = {"name": "X", "shape": [1, 4], "datatype": "FP32", "data": features}
        path, body = (
            ("/api/v1/predict", {"model": "chat", "input": {"features": features}}),
            ("/v1/models/chat:predict", {"instances": [features]}),
            ("/v2/models/chat/infer", {"inputs": [tensor]}),
        )[place % 3]
        async with session.post(url + path, json=body) as answer:
            assert answer.status == 200, await answer.text()

    async def run():
        async with aiohttp.ClientSession() as session:
            while not over.is_set():
                await asyncio.gather(*(classify(session, place) for place in range(AT_ONCE)))
                await asyncio.sleep(0.1)

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        over.set()
        await running


@pytest.mark.parametrize(
    ("canary", "metric", "state"),
    [("good", BOUNDED, "Paused"), ("blind", BOUNDED, "Aborted"), ("blind", REPORT, "Paused")],
)
async def test_predictions_decide_about_a_classifier_where_a_bound_is_given(
    client, namespace, api_server, tmp_path, models, canary, metric, state
):
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    cluster = Pair(client, namespace, api_server, limited, tmp_path, gateway_flags=("--auth-mode=off",))
    host = ("--host", own_address())
    with (
        ServerProcess(models / "good", *FLAGS, *host) as old,
        ServerProcess(models / canary, *FLAGS, *host) as new,
    ):
        cluster.stable, cluster.canary = await asyncio.to_thread(port_of, old), await asyncio.to_thread(port_of, new)
        async with cluster.running():
            decided = await rolled_out(cluster, metric, state)
    verdict = (expanded(decided)[0]["rollout"]["analysis"])["verdict"]
    assert verdict["outcome"] == ("Pass" if state == "Paused" else "Fail"), verdict["message"]
    found = verdict["predictions"]
    assert min(found["canary"], found["stable"]) >= 40 and found.get("unread", 0) == 0
    assert "population stability index" in verdict["message"]
    if canary == "blind":
        assert found["psi"] > 0.5 and found["differs"]
    else:
        assert found["psi"] < 0.1 and not found.get("differs")
    if state == "Aborted":
        assert verdict["metric"] == "drift"


async def rolled_out(cluster, metric, state):
    """The status when the new revision's analysis has its verdict."""
    template = {"minSamples": {"canaryRequests": 300, "warmupSeconds": 0}, "metrics": [ERRORS, metric]}
    kind = {"apiVersion": "slipway.dev/v1alpha1", "kind": "AnalysisTemplate"}
    metadata = {"name": "labels", "namespace": cluster.namespace}
    await cluster.client.create(ANALYSIS_TEMPLATES, {**kind, "metadata": metadata, "spec": template})
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}}
    manifest["spec"] = manifest["spec"] | {"strategy": STRATEGY}
    await cluster.client.create(MODEL_DEPLOYMENTS, manifest)
    first = await cluster.reaches("chat is stable", lambda status: status.get("phase") == "Healthy")
    assert "predictions" not in first["traffic"]
    await cluster.edit(V2)
    async with classified(cluster.port):
        return await cluster.reaches(
            "the verdict", lambda status: ((status.get("rollout") or {}).get("state")) == state
        )
