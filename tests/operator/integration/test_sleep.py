"""To zero and back with the operator and a gateway as processes: a request at each moment of the way is answered."""

import asyncio
import contextlib
import time
from collections import Counter

import aiohttp
import pytest
from aiohttp import web

from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.resources import EVENTS, MODEL_DEPLOYMENTS, REPLICA_SETS
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.pods import MERGE, announce_gateway, has_pod
from testkit.world.rights import limited_kubeconfig
from testkit.world.slipway import Cluster

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

IDLE_S = 5
SCALED = {
    "minReplicas": 0,
    "maxReplicas": 2,
    "idleSeconds": IDLE_S,
    "metrics": [{"type": "QueueDepth", "target": "4"}],
}
START_S = 0.5  # of a pod
BEHIND_S = 0.2  # of the endpoints, behind the pods that they list


class Pods:
    """Does as the controllers and the kubelet do: pods start, endpoints list them, and later no longer do."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._since = {}
        self._told = {}
        self.alive = False
        self.answered = Counter()

    async def run(self):
        app = web.Application()
        app.router.add_post("/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "0.0.0.0", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            while True:
                with contextlib.suppress(ApiError):
                    for item in await self._cluster.client.list(REPLICA_SETS, self._cluster.namespace):
                        await self._follow(item, port)
                await asyncio.sleep(0.05)
        finally:
            await runner.cleanup()

    async def _answer(self, request):
        """200 from a running pod, 503 from a deleted one."""
        self.answered["pod" if self.alive else "gone"] += 1
        return web.json_response({"ok": True}, status=200 if self.alive else 503)

    async def _follow(self, item, port):
        client, wanted = self._cluster.client, item["spec"].get("replicas", 1)
        name, now = item["metadata"]["name"], time.monotonic()
        former, since = self._since.get(name, (0, now))
        if bool(former) != bool(wanted):
            since = now
        self._since[name] = (wanted, since)
        ready = wanted if now - since >= START_S else 0
        self.alive = ready > 0
        status = {"replicas": wanted, "readyReplicas": ready, "fullyLabeledReplicas": wanted}
        if {key: item.get("status", {}).get(key, 0) for key in status} != status:
            path = REPLICA_SETS.path(self._cluster.namespace, name, "status")
            await client.request("PATCH", path, [], {"status": status}, MERGE)
        late = since + (START_S if wanted else 0) + BEHIND_S
        if now >= late and self._told.get(name) != bool(wanted):
            self._told[name] = bool(wanted)
            await self._tell(item, port, bool(wanted))

    async def _tell(self, item, port, there):
        await has_pod(self._cluster.client, item | {"spec": {"replicas": int(there)}}, own_address(), port)


@pytest.fixture
async def cluster(client, namespace, api_server, tmp_path):
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    cluster = Cluster(client, namespace, api_server, limited, tmp_path)
    await announce_gateway(cluster.client, cluster.namespace, cluster.gateway_admin_port)
    await asyncio.gather(cluster.operator.start(), cluster.gateway.start())
    cluster.pods = Pods(cluster)
    running = asyncio.create_task(cluster.pods.run())
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": namespace}}
    await client.create(MODEL_DEPLOYMENTS, manifest | {"spec": manifest["spec"] | {"autoscaling": SCALED}})
    yield cluster
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await cluster.operator.stop()
    await cluster.gateway.stop()


def sleeping(state):
    return lambda status: (status.get("sleep") or {}).get("state") == state


async def scaled_down(cluster):
    found = await cluster.client.list(REPLICA_SETS, cluster.namespace)
    return all(item["spec"]["replicas"] == 0 for item in found)


async def ask(cluster):
    """The status of an answer, and the seconds that it took."""
    began = time.monotonic()
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{cluster.port}/v1/completions", json={"model": "chat"}) as answer,
    ):
        return answer.status, time.monotonic() - began


async def reasons(cluster):
    found = await cluster.client.list(EVENTS, cluster.namespace)
    return {item["reason"] for item in found}


async def test_a_request_at_each_moment_of_the_way_to_zero_and_back_is_answered(cluster):
    await cluster.reaches("chat serves", lambda now: now.get("phase") == "Healthy")
    for moment in ("FallingAsleep", "Asleep", "no pods", "gone", "Waking"):
        await cluster.reaches(
            f"the way down to {moment}", sleeping("FallingAsleep" if moment == "FallingAsleep" else "Asleep")
        )
        if moment in ("no pods", "gone", "Waking"):
            await until_async(lambda: scaled_down(cluster), "its pods leave")
        if moment in ("gone", "Waking"):
            await asyncio.sleep(2 * BEHIND_S)
        first = asyncio.create_task(ask(cluster))
        if moment == "Waking":
            await cluster.reaches("the wake", sleeping("Waking"))
        answers = [await ask(cluster), await first]
        print(f"{moment}: {answers}")
        assert [status for status, _ in answers] == [200, 200], moment
        status = await cluster.reaches("awake again", sleeping("Awake"))
    assert status["phase"] == "Healthy"
    assert 1 <= len(status["sleep"]["wakeSeconds"]) <= 5
    assert {"ScaledToZero", "WakeStarted", "WakeCompleted"} <= await reasons(cluster)
    assert (await cluster.chat())["spec"].get("replicas", 1) == 1
    print(f"requests at a pod, and at one that was gone: {cluster.pods.answered}")


async def test_a_request_waits_for_an_operator_that_is_away(cluster):
    status = await cluster.reaches("it sleeps", lambda now: now.get("phase") == "Asleep")
    assert status["traffic"]["asleep"]
    await until_async(lambda: scaled_down(cluster), "its pods leave")
    await cluster.operator.kill()
    request = asyncio.create_task(ask(cluster))
    await asyncio.sleep(0.5)
    assert not request.done()
    await cluster.operator.start()
    assert (await request)[0] == 200
    await cluster.reaches("awake again", lambda now: now.get("phase") == "Healthy")
