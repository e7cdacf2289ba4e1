"""Feedback end to end: a real operator, gateway and API server, a real classic model in the pod of each revision."""

import asyncio
import base64
import contextlib
import json
from random import Random

import aiohttp
import pytest

from slipway_operator.kube.resources import ANALYSIS_TEMPLATES, MODEL_DEPLOYMENTS, REPLICA_SETS
from slipway_operator.model.deployment.compact import expanded
from slipway_operator.model.labels import REVISION
from testkit.irises import GOOD, POOR, classifier, irises
from testkit.world.addresses import own_address
from testkit.world.pods import MERGE, has_pod
from testkit.world.rights import limited_kubeconfig
from testkit.world.slipway import Cluster
from tests.server.process import ServerProcess

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
V2 = {"model": {"uri": "file:///opt/slipway/models/tiny-v2"}}
FLAGS = ("--task", "predict", "--served-model-name", "chat")
AT_ONCE = 10


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Right for nearly all irises, and for about half of them."""
    root = tmp_path_factory.mktemp("models")
    for name, features in (("good", GOOD), ("poor", POOR)):
        (root / name).mkdir()
        (root / name / "model.onnx").write_bytes(classifier(features))
    return root


class Pair(Cluster):
    """Stable and canary have a server each."""

    stable = canary = 0
    first = ""

    async def _report(self, item):
        revision = item["metadata"]["labels"][REVISION]
        self.first = self.first or revision
        wanted = item["spec"].get("replicas", 1)
        status = {"replicas": wanted, "readyReplicas": wanted, "fullyLabeledReplicas": wanted}
        if {key: item.get("status", {}).get(key, 0) for key in status} != status:
            path = REPLICA_SETS.path(self.namespace, item["metadata"]["name"], "status")
            await self.client.request("PATCH", path, [], {"status": status}, MERGE)
            await has_pod(self.client, item, own_address(), self.stable if revision == self.first else self.canary)


def port_of(server):
    return int(server.wait_ready().url.rpartition(":")[2])


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
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    cluster = Pair(client, namespace, api_server, limited, tmp_path, gateway_flags=flags)
    host = ("--host", own_address())
    with (
        ServerProcess(models / "good", *FLAGS, *host) as old,
        ServerProcess(models / canary, *FLAGS, *host) as new,
    ):
        cluster.stable, cluster.canary = await asyncio.to_thread(port_of, old), await asyncio.to_thread(port_of, new)
        async with cluster.running():
            decided, results = await rolled_out(cluster, state)
    verdict = (expanded(decided)[0]["rollout"]["analysis"])["verdict"]
    assert verdict["outcome"] == ("Pass" if state == "Paused" else "Fail"), verdict["message"]
    assert len(results) > 40 and set(results) <= {"accepted", "expired"} and results.count("accepted") > 40
    if state == "Aborted":
        assert verdict["metric"] == "wrong" and "bad" in verdict["message"]


async def rolled_out(cluster, state):
    """The status when the new revision's analysis has its verdict, and the results of the labels."""
    metadata = {"name": "labels", "namespace": cluster.namespace}
    kind = {"apiVersion": "slipway.dev/v1alpha1", "kind": "AnalysisTemplate"}
    await cluster.client.create(ANALYSIS_TEMPLATES, {**kind, "metadata": metadata, "spec": TEMPLATE})
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}}
    manifest["spec"] = manifest["spec"] | {"strategy": STRATEGY}
    await cluster.client.create(MODEL_DEPLOYMENTS, manifest)
    first = await cluster.reaches("chat is stable", lambda status: status.get("phase") == "Healthy")
    assert "feedback" not in first["traffic"]
    await cluster.edit(V2)
    async with labelled(cluster.port) as results:
        decided = await cluster.reaches(
            "the verdict", lambda status: ((status.get("rollout") or {}).get("state")) == state
        )
    return decided, results
