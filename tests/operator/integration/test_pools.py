"""A ModelPool and its members on a real API server, with a real gateway, a real pool server and its fetcher.

The StatefulSet controller and the kubelet are played here: they give the server's process the pool's file, as a kubelet
when the pod starts and whenever its annotations change. The period of a real one would hide that nothing changes them.
"""

import asyncio
import contextlib
import json
import shutil
import sys
from datetime import UTC, datetime

import aiohttp
import pytest

from devcluster.ports import reserve_port
from slipway_operator import explain
from slipway_operator.kube.errors import ApiError, NotFound
from slipway_operator.kube.resources import CONFIG_MAPS, MODEL_DEPLOYMENTS, MODEL_POOLS, PODS, STATEFUL_SETS
from testkit import ROOT
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.pods import set_ready
from tests.operator.integration.test_hands import SETTINGS, NoGateways
from tests.server.process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(300)]

IRIS = ROOT / "examples" / "models" / "iris-onnx"
STEPS = {"strategy": {"canary": {"steps": [{"setWeight": 50}, {"pause": {}}]}}}
FETCHER = [sys.executable, "-c", "from slipway_fetcher.pool import main; main()"]
ROW = {"features": [5.1, 3.5, 1.4, 0.2]}


@pytest.fixture
def port():
    return reserve_port()


@pytest.fixture
async def node(client, namespace, tmp_path, port):
    """One pod of each StatefulSet of a pool, in front of one server and one fetcher."""
    file, models = tmp_path / "pool.json", tmp_path / "models"
    file.write_text('{"models": []}')
    models.mkdir()
    flags = ("--task", "predict", "--pool-config", str(file), "--host", own_address(), "--port", str(port))

    async def run():
        while True:
            with contextlib.suppress(ApiError):
                for item in await client.list(STATEFUL_SETS, namespace):
                    await follow(client, item, file, port)
            await asyncio.sleep(0.2)

    with ServerProcess(models, *flags) as server:
        await asyncio.to_thread(server.wait_ready)
        fetcher = await asyncio.create_subprocess_exec(*FETCHER, "--pool-config", str(file), "--dest", str(models))
        task = asyncio.create_task(run())
        yield server
        task.cancel()
        fetcher.terminate()
        await fetcher.wait()


async def follow(client, item, file, port):
    """The pod, which is ready at once, and what the kubelet mounts."""
    metadata, template = item["metadata"], item["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": metadata["name"], "uid": metadata["uid"]}
    name = f"{metadata['name']}-0"
    body = {
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"],
            "ownerReferences": [owner | {"controller": True}],
        },
        "spec": {"containers": [{"name": "a", "image": "b", "ports": [{"name": "http", "containerPort": port}]}]},
    }
    with contextlib.suppress(ApiError):  # it is there
        await client.create(PODS, body)
        await set_ready(client, metadata["namespace"], name, own_address())
    pod = await client.get(PODS, metadata["namespace"], name)
    await mount(client, template, metadata["namespace"], file, json.dumps(pod["metadata"].get("annotations")))


async def mount(client, template, namespace, file, annotations):
    """The pool's file of the ConfigMap, when the annotations are others than at the last time."""
    synced = file.with_name("synced")
    if synced.is_file() and synced.read_text() == annotations:
        return
    [mounted] = [one for one in template["spec"]["volumes"] if one["name"] == "pool"]
    [key] = [one["key"] for one in mounted["configMap"]["items"]]
    made = await client.get(CONFIG_MAPS, namespace, mounted["configMap"]["name"])
    (file.parent / "new").write_text(made["data"][key])
    (file.parent / "new").rename(file)
    synced.write_text(annotations)


async def deploy(client, namespace, name="chat", pool="shared", uri=f"file://{IRIS}", **spec):
    body = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"uri": uri, "task": "predict"}, "pool": {"name": pool}} | STEPS | spec,
    }
    return await client.create(MODEL_DEPLOYMENTS, body)


async def make_pool(client, namespace, name="shared", **spec):
    metadata = {"name": name, "namespace": namespace}
    return await client.create(
        MODEL_POOLS, {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelPool", "metadata": metadata, "spec": spec}
    )


async def predicted(cluster, name="chat", headers=None):
    """Status and revision of a response."""
    body = {"model": f"{cluster.namespace}/{name}", "input": ROW}
    url = f"http://127.0.0.1:{cluster.port}/api/v1/predict"
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers or {}) as answer:
        return answer.status, answer.headers.get("X-Slipway-Revision")


async def test_members_wait_for_their_pool_and_roll_out_in_its_pods(cluster, client, node, tmp_path):
    namespace = cluster.namespace
    await deploy(client, namespace)
    missing = await cluster.reaches("the pool is missing", lambda now: "there is no ModelPool shared" in str(now))
    assert any(one["reason"] == "PoolNotFound" for one in missing["conditions"])
    await make_pool(client, namespace)
    serving = await cluster.reaches("it serves", lambda now: now.get("phase") == "Healthy")
    [revision] = serving["revisions"]
    owned = await client.get(STATEFUL_SETS, namespace, "shared-pool")
    assert revision["replicaSetUid"] == owned["metadata"]["uid"]
    await until_async(lambda: predicted(cluster), "requests are served", holds=lambda seen: seen[0] == 200)
    assert [one["metadata"]["name"] for one in await client.list(PODS, namespace)] == ["shared-pool-0"]

    second = tmp_path / "iris-v2"
    shutil.copytree(IRIS, second)
    await cluster.edit({"model": {"uri": f"file://{second}", "task": "predict"}})
    paused = await cluster.reaches("it pauses", lambda now: (now.get("rollout") or {}).get("state") == "Paused")
    canary, stable = paused["canaryRevision"], paused["stableRevision"]
    assert await session_revisions(cluster) == {canary, stable}
    await explains(client, namespace, canary)
    await cluster.edit({"rollout": {"promote": paused["rollout"]["token"]}})
    await cluster.reaches("it is promoted", lambda now: now.get("stableRevision") == canary)
    await until_async(lambda: session_revisions(cluster), "all go to it", holds=lambda seen: seen == {canary})

    pool = await client.get(MODEL_POOLS, namespace, "shared")
    assert pool["status"]["ready"] == "1/1" and pool["status"]["memoryBytes"] > 0


async def explains(client, namespace, canary):
    """`explain` sees the entries without a connection to the pods."""
    obj = await client.get(MODEL_DEPLOYMENTS, namespace, "chat")
    explained = await explain.from_cluster(client, NoGateways(), obj, SETTINGS, datetime.now(UTC))
    seen = explained["observed"]["workloads"]
    assert {revision: one["ready"] for revision, one in seen.items()} == dict.fromkeys(seen, 1)
    entries = {one["revision"]: one for one in explained["pools"]["shared"]["entries"]}
    assert entries.keys() == seen.keys() and entries[canary]["proved"] == 1


async def session_revisions(cluster):
    """Where twenty sessions go."""
    found = [await predicted(cluster, headers={"X-Session-Id": str(one)}) for one in range(20)]
    assert {status for status, _ in found} == {200}
    return {revision for _, revision in found}


async def test_a_revision_that_cannot_be_loaded_is_rejected_and_stable_serves_on(cluster, client, node, tmp_path):
    namespace = cluster.namespace
    await make_pool(client, namespace)
    await deploy(client, namespace, progressDeadlineSeconds=15)
    serving = await cluster.reaches("it serves", lambda now: now.get("phase") == "Healthy")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"no model")
    await cluster.edit({"model": {"uri": f"file://{broken}", "task": "predict"}})
    rejected = await cluster.reaches("it is rejected", lambda now: now.get("abortedRevisions"))
    assert rejected["stableRevision"] == serving["stableRevision"]
    assert await predicted(cluster) == (200, serving["stableRevision"])


async def test_a_member_that_is_gone_leaves_the_pool(cluster, client, node):
    namespace = cluster.namespace
    await make_pool(client, namespace)
    made = await deploy(client, namespace)
    await cluster.reaches("it serves", lambda now: now.get("phase") == "Healthy")
    await client.delete(MODEL_DEPLOYMENTS, namespace, "chat", made["metadata"]["uid"])

    async def entries():
        with contextlib.suppress(NotFound):
            return (await client.get(MODEL_POOLS, namespace, "shared")).get("status", {}).get("models")

    await until_async(entries, "the pool has no entry", holds=lambda found: found == 0)
