"""A stranger with rights in the namespace edits status, labels, owners and endpoints; operator and gateway are real.

After each edit the deployment serves again within 30 s, from its own pods, and is never Healthy while no request is
answered (stories S1 and S5, safety 1 and 19).
"""

import asyncio
import contextlib
import os
import time
from random import Random

import aiohttp
import pytest
from aiohttp import web

from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS, PODS, REPLICA_SETS
from slipway_operator.model import labels
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.pods import MERGE, announce_gateway, pod, set_ready
from testkit.world.rights import limited_kubeconfig
from testkit.world.slipway import Cluster
from tests.support.stranger import MADE_UP, Stranger, controller, uid_of_controller

from .conftest import MANIFEST

pytestmark = [pytest.mark.integration, pytest.mark.finding(1, 19, "S1", "S5")]

EDITS = 14
SETTLES_S = 30.0
# A gateway holds a request for 5 s, a failing route is seen as one within 20 s at the rate of these requests.
UNSAID_S = 12.0


class Controllers:
    """Does as ReplicaSet controller, garbage collector and kubelet do with the pods of a namespace, and as the pods."""

    def __init__(self, cluster):
        self._cluster, self._made = cluster, 0
        self.genuine, self.foreign = 0, 0
        self.own_port, self.foreign_port = 0, 0

    @contextlib.asynccontextmanager
    async def running(self):
        async def own(_):
            self.genuine += 1
            return web.json_response({"ok": True})

        async def foreign(_):
            self.foreign += 1
            return web.json_response({"ok": True})

        runners = []
        for handler in (own, foreign):
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", handler)
            runners.append(web.AppRunner(app, access_log=None))
            await runners[-1].setup()
            await web.TCPSite(runners[-1], "0.0.0.0", 0).start()
        self.own_port, self.foreign_port = (runner.addresses[0][1] for runner in runners)
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            if task.done():
                task.result()
            task.cancel()
            await asyncio.gather(task, *(runner.cleanup() for runner in runners), return_exceptions=True)

    async def _run(self):
        while True:
            with contextlib.suppress(ApiError):
                await self._look()
            await asyncio.sleep(0.1)

    async def _look(self):
        client, namespace = self._cluster.client, self._cluster.namespace
        sets = await client.list(REPLICA_SETS, namespace)
        pods = await client.list(PODS, namespace)
        alive = {item["metadata"]["uid"] for item in sets}
        for item in pods:
            owner = controller(item)
            if owner and owner["kind"] == "ReplicaSet" and owner["uid"] not in alive:
                await client.delete(PODS, namespace, item["metadata"]["name"], item["metadata"]["uid"])
        for item in sets:
            if uid_of_controller(item) == MADE_UP:  # an owner that is not there
                await client.delete(REPLICA_SETS, namespace, item["metadata"]["name"], item["metadata"]["uid"])
                continue
            await self._follow(item, [one for one in pods if is_own(one, item)])

    async def _follow(self, item, own):
        """One pod represents all: as many are reported ready as are desired."""
        client, namespace = self._cluster.client, self._cluster.namespace
        wanted = item["spec"].get("replicas", 1)
        leaves = "deletionTimestamp" in item["metadata"]  # its controller counts its pods, and makes none
        for one in own[1 if wanted else 0 :] if not leaves else ():
            await client.delete(PODS, namespace, one["metadata"]["name"], one["metadata"]["uid"])
        if wanted and not own and not leaves:
            self._made += 1
            port = self.own_port if (controller(item) or {}).get("kind") == "ModelDeployment" else self.foreign_port
            made = pod(item, port, name=f"{item['metadata']['name']}-{self._made}")
            made["metadata"]["labels"] = item["spec"]["selector"]["matchLabels"]
            await client.create(PODS, made)
            await set_ready(client, namespace, made["metadata"]["name"], own_address())
            own = [made]
        ready = wanted if own else 0
        status = {"replicas": ready, "readyReplicas": ready, "fullyLabeledReplicas": ready}
        if {key: item.get("status", {}).get(key, 0) for key in status} != status:
            path = REPLICA_SETS.path(namespace, item["metadata"]["name"], "status")
            await client.request("PATCH", path, [], {"status": status}, MERGE)


def is_own(item, replica_set):
    wanted, owner = replica_set["spec"]["selector"]["matchLabels"], controller(item)
    found = item["metadata"].get("labels", {})
    same = all(found.get(key) == value for key, value in wanted.items())
    return bool(same and owner and owner["uid"] == replica_set["metadata"]["uid"])


class Prober:
    """A client that sends requests all the time, and compares the answers with the status."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.answered_at = time.monotonic()
        self.lies = []
        self.what = ""

    async def run(self):
        async with aiohttp.ClientSession() as session:
            while True:
                await self._ask(session)
                await asyncio.sleep(0.1)

    async def _ask(self, session):
        url, body = f"http://127.0.0.1:{self._cluster.port}/v1/completions", {"model": "chat"}
        with contextlib.suppress(aiohttp.ClientError):
            async with session.post(url, json=body) as answer:
                if answer.status == 200:
                    self.answered_at = time.monotonic()
        with contextlib.suppress(ApiError):
            silent_s, status = time.monotonic() - self.answered_at, (await self._cluster.chat()).get("status") or {}
            if silent_s > UNSAID_S and status.get("phase") == "Healthy":
                self.lies.append((self.what, round(silent_s, 1), status.get("message")))


def serves(status):
    ready = {item["type"]: item["status"] for item in status.get("conditions", ())}.get("Ready")
    table = status.get("traffic", {})
    return status.get("phase") == "Healthy" and ready == "True" and table.get("acknowledged") == "1/1"


async def settled(cluster, prober, since):
    """Seconds until the status is serving, and a request was answered after that."""
    await asyncio.sleep(0.5)  # the edit takes a moment to have an effect
    while time.monotonic() < since + SETTLES_S:
        status = (await cluster.chat()).get("status") or {}
        asked_at = time.monotonic()
        if serves(status):
            await asyncio.sleep(0.3)
            if prober.answered_at > asked_at:
                return time.monotonic() - since
        await asyncio.sleep(0.1)
    return None


async def survives(client, namespace, api_server, folder, edits, seed):
    limited = await limited_kubeconfig(client, namespace, api_server, folder)
    cluster = Cluster(client, namespace, api_server, limited, folder)
    controllers = Controllers(cluster)
    await announce_gateway(cluster.client, cluster.namespace, cluster.gateway_admin_port)
    await asyncio.gather(cluster.operator.start(), cluster.gateway.start())
    prober = Prober(cluster)
    async with controllers.running():
        manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": namespace}}
        await client.create(MODEL_DEPLOYMENTS, manifest)
        probing = asyncio.create_task(prober.run())
        try:
            await cluster.reaches("chat serves", serves)
            stranger = Stranger(cluster, controllers.foreign_port, Random(seed))
            took = await _edits(cluster, stranger, prober, edits)
            await until_async(lambda: has_one_replica_set(cluster), "one ReplicaSet of chat alone")
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            await asyncio.gather(cluster.operator.stop(), cluster.gateway.stop())
    print(f"{len(took)} edits, settled after {sum(took) / len(took):.1f} s in the mean, {max(took):.1f} s at most")
    print(f"lies {len(prober.lies)}, requests at foreign pods {controllers.foreign}, at ours {controllers.genuine}")
    print(dict(sorted(stranger.done.items())))
    assert not prober.lies, prober.lies
    assert controllers.foreign == 0, f"{controllers.foreign} requests reached a foreign pod"
    assert controllers.genuine > edits


async def has_one_replica_set(cluster):
    """No replaced object stays beside its replacement."""
    uid, listed = (await cluster.chat())["metadata"]["uid"], await cluster.client.list(REPLICA_SETS, cluster.namespace)
    return len([item for item in listed if uid_of_controller(item) == uid and is_made_by_the_operator(item)]) == 1


def is_made_by_the_operator(item):
    """By its selector, which is immutable; without those that are being deleted."""
    return labels.REVISION in item["spec"]["selector"]["matchLabels"] and "deletionTimestamp" not in item["metadata"]


async def _edits(cluster, stranger, prober, edits):
    took = []
    for number in range(edits):
        stranger.former = [*stranger.former[-20:], (await cluster.chat())["status"]]
        since = time.monotonic()
        prober.what = await stranger.edit()
        found = await settled(cluster, prober, since)
        if found is None:
            print(number, prober.what, (await cluster.chat())["status"], cluster.operator.log()[-6000:], sep="\n")
        assert found is not None, f"{prober.what}: {(await cluster.chat())['status'].get('message')}"
        took.append(found)
    return took


async def test_edits_by_a_stranger_converge(client, namespace, api_server, tmp_path):
    await survives(client, namespace, api_server, tmp_path, EDITS, seed=7)


@pytest.mark.extended
@pytest.mark.timeout(3600)
async def test_two_hundred_edits_by_a_stranger_converge(client, namespace, api_server, tmp_path):
    edits, seed = (
        int(os.environ.get(f"SLIPWAY_STRANGER_{name}", usual)) for name, usual in (("EDITS", 200), ("SEED", 15))
    )
    await survives(client, namespace, api_server, tmp_path, edits, seed)
