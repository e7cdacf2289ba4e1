"""A rollout of a classifier: a real operator, gateway and API server, and a real model server for each revision."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from random import Random

import aiohttp

from slipway_operator.kube.resources import ANALYSIS_RUNS, ANALYSIS_TEMPLATES, MODEL_DEPLOYMENTS, REPLICA_SETS
from slipway_operator.model.labels import REVISION
from testkit.irises import classifier, irises
from testkit.world.addresses import own_address
from testkit.world.pods import MERGE, has_pod
from testkit.world.rights import limited_kubeconfig
from testkit.world.slipway import Cluster
from tests.server.process import ServerProcess

V2 = {"model": {"uri": "file:///opt/slipway/models/tiny-v2"}}
FLAGS = ("--task", "predict", "--served-model-name", "chat")
AT_ONCE = 20


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

    async def deploy(self, manifest, template, strategy):
        """Stable serves, with a template `labels`; its status."""
        metadata = {"name": "labels", "namespace": self.namespace}
        kind = {"apiVersion": "slipway.dev/v1alpha1", "kind": "AnalysisTemplate"}
        await self.client.create(ANALYSIS_TEMPLATES, {**kind, "metadata": metadata, "spec": template})
        made = manifest | {"metadata": {"name": "chat", "namespace": self.namespace}}
        made["spec"] = made["spec"] | {"strategy": strategy}
        await self.client.create(MODEL_DEPLOYMENTS, made)
        return await self.reaches("chat is stable", lambda status: status.get("phase") == "Healthy")

    async def decided(self, state):
        """The status when the rollout is paused, as it passed, or aborted, as it failed; and the verdict of that."""
        status = await self.reaches("the verdict", lambda now: ((now.get("rollout") or {}).get("state")) == state)
        run = await self.client.get(ANALYSIS_RUNS, self.namespace, status["rollout"]["analysis"]["run"])
        verdict = run["status"]["verdict"]
        assert verdict["outcome"] == {"Paused": "Pass", "Aborted": "Fail"}[state], verdict["message"]
        return status, verdict


def save_classifiers(root, **learned: Sequence[int]):
    """A folder for each name, with a model that has learned from these features."""
    for name, features in learned.items():
        (root / name).mkdir()
        (root / name / "model.onnx").write_bytes(classifier(features))
    return root


@contextlib.asynccontextmanager
async def serving(world, stable, canary, flags=("--auth-mode=off",), operator_flags=()):
    """A cluster in which the first revision is served from one folder, and the next one from another.

    Args:
        world: client, namespace, API server and a folder.
        stable: of the model of the first revision.
        canary: of the model of the next one.
        flags: of the gateway.
        operator_flags: of the operator.
    """
    client, namespace, api_server, folder = world
    limited = await limited_kubeconfig(client, namespace, api_server, folder)
    cluster = Pair(client, namespace, api_server, limited, folder, gateway_flags=flags, operator_flags=operator_flags)
    host = ("--host", own_address())
    with ServerProcess(stable, *FLAGS, *host) as old, ServerProcess(canary, *FLAGS, *host) as new:
        cluster.stable, cluster.canary = [await asyncio.to_thread(_port_of, one) for one in (old, new)]
        async with cluster.running():
            yield cluster


def _port_of(server):
    return int(server.wait_ready().url.rpartition(":")[2])


@contextlib.asynccontextmanager
async def classified(port):
    """Irises of one species more often than of the others are classified, some at a time, on each path.

    Yields how many responses clients have of each revision.
    """
    over, chance, known, served = asyncio.Event(), Random(5), irises(), Counter()
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
            served[answer.headers["X-Slipway-Revision"]] += 1

    async def run():
        async with aiohttp.ClientSession() as session:
            while not over.is_set():
                await asyncio.gather(*(classify(session, place) for place in range(AT_ONCE)))
                await asyncio.sleep(0.1)

    running = asyncio.create_task(run())
    try:
        yield served
    finally:
        over.set()
        await running
