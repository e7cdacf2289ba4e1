"""Standby pods with a real API server, the operator and a gateway as processes; kubelets are played."""

import asyncio
import contextlib

import aiohttp
import pytest
from aiohttp import web

from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS, PODS, REPLICA_SETS
from slipway_operator.model import labels
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.pods import MERGE, owner_of

from .conftest import MANIFEST

pytestmark = pytest.mark.integration


class Pods:
    """The ReplicaSet controller, the kubelet and the containers of a namespace: one server with a port for each pod."""

    def __init__(self, client, namespace):
        self._client, self._namespace = client, namespace
        self.requests = []  # names of the pods that were sent each
        self._ports, self._runners, self._made = {}, [], 0

    async def run(self):
        while True:
            with contextlib.suppress(ApiError):  # it changed meanwhile
                for replica_set in await self._client.list(REPLICA_SETS, self._namespace):
                    await self._follow(replica_set)
            await asyncio.sleep(0.05)

    async def close(self):
        for runner in self._runners:
            await runner.cleanup()

    async def _follow(self, replica_set):
        uid, wanted = replica_set["metadata"]["uid"], replica_set["spec"]["replicas"]
        pods = [pod for pod in await self._client.list(PODS, self._namespace) if _controller(pod) == uid]
        for pod in sorted(pods, key=lambda pod: (_ready(pod), _loaded(pod)))[: max(0, len(pods) - wanted)]:
            await self._client.delete(PODS, self._namespace, pod["metadata"]["name"], pod["metadata"]["uid"])
            pods.remove(pod)
        for _ in range(wanted - len(pods)):
            await self._create(replica_set)
        for pod in pods:
            await self._report(pod)
        status = {"replicas": len(pods), "readyReplicas": sum(map(_ready, pods)), "fullyLabeledReplicas": len(pods)}
        if any(replica_set["status"].get(key, 0) != value for key, value in status.items()):
            path = REPLICA_SETS.path(self._namespace, replica_set["metadata"]["name"], "status")
            await self._client.request("PATCH", path, [], {"status": status}, MERGE)

    async def _create(self, replica_set):
        self._made += 1
        name = f"{replica_set['metadata']['name']}-{self._made}"
        template = replica_set["spec"]["template"]
        port = await self._serve(name)
        container = {"name": "server", "image": "none", "ports": [{"name": "http", "containerPort": port}]}
        gates = {"readinessGates": template["spec"].get("readinessGates", [])}
        metadata = {"name": name, "namespace": self._namespace, "ownerReferences": [owner_of(replica_set)]}
        metadata["labels"] = template["metadata"]["labels"]
        await self._client.create(PODS, {"metadata": metadata, "spec": {"containers": [container], **gates}})

    async def _serve(self, name):
        async def completion(request):
            self.requests.append(name)
            return web.json_response({"id": "1", "object": "text_completion", "choices": [], "model": "chat"})

        application = web.Application()
        application.router.add_post("/v1/completions", completion)
        runner = web.AppRunner(application)
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, own_address(), 0)
        await site.start()
        return site._server.sockets[0].getsockname()[1]

    async def _report(self, pod):
        """What a kubelet reports: containers that run, and Ready when each readiness gate is open too."""
        gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
        ready = all(_condition(pod, gate) for gate in gates)
        if _loaded(pod) and _ready(pod) == ready:
            return
        address = own_address()
        kept = [one for one in pod["status"].get("conditions") or () if one["type"] in gates]
        conditions = [*kept, _met("ContainersReady", True), _met("PodScheduled", True), _met("Ready", ready)]
        running = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        # A condition that the operator sets meanwhile is not to be lost: the version makes that a conflict.
        body = {"metadata": {"resourceVersion": pod["metadata"]["resourceVersion"]}, "status": running}
        path = PODS.path(self._namespace, pod["metadata"]["name"], "status")
        await self._client.request("PATCH", path, [], body, MERGE)


def _controller(pod):
    return next((one["uid"] for one in pod["metadata"].get("ownerReferences") or () if one.get("controller")), "")


def _met(kind, met):
    return {"type": kind, "status": "True" if met else "False"}


def _condition(pod, kind):
    return any(one["type"] == kind and one["status"] == "True" for one in pod["status"].get("conditions") or ())


def _ready(pod):
    return _condition(pod, "Ready")


def _loaded(pod):
    return _condition(pod, "ContainersReady")


@pytest.fixture
async def pods(cluster, monkeypatch):
    """The pods of the namespace; `run_pods` of the cluster, which reports all of them ready, does not run."""
    played = Pods(cluster.client, cluster.namespace)
    monkeypatch.setattr(cluster, "_report", _nothing)
    task = asyncio.create_task(played.run())
    yield played
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await played.close()


async def _nothing(replica_set):
    """Another hand plays this ReplicaSet."""


async def created(cluster, **spec):
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}}
    manifest = manifest | {"spec": MANIFEST["spec"] | spec}
    await cluster.client.create(MODEL_DEPLOYMENTS, manifest)


def counts(replicas, ready, serving):
    wanted = {"replicas": replicas, "ready": ready, "serving": serving}
    return lambda now: wanted.items() <= now.get("standby", {}).items()


async def complete(cluster):
    """The status of a request to the gateway."""
    body = {"model": "chat", "prompt": "Hello", "max_tokens": 1}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{cluster.port}/v1/completions", json=body) as response,
    ):
        return response.status


async def standby_pods(cluster):
    found = await cluster.client.list(PODS, cluster.namespace)
    return {pod["metadata"]["name"]: pod for pod in found if labels.STANDBY in pod["metadata"]["labels"]}


async def test_a_waiting_pod_serves_when_replicas_rise_and_waits_when_they_fall_and_no_request_is_lost(cluster, pods):
    """With the rights of docs/operator.md; a request a few milliseconds, all the time."""
    await created(cluster, standbyReplicas=1)
    status = await cluster.reaches("one pod waits", counts(1, 1, 0))
    revision = status["stableRevision"]
    assert (status["replicas"], status["ready"], status["revisions"][0]["replicas"]) == (1, "1/1", 1)
    (first,) = (await standby_pods(cluster)).values()
    name = first["metadata"]["name"]
    assert not _ready(first) and first["metadata"]["labels"][labels.REVISION] == labels.standby_of(revision)

    codes, done = [], asyncio.Event()

    async def load():
        while not done.is_set():
            codes.append(await complete(cluster))
            await asyncio.sleep(0.005)

    await until_async(lambda: complete(cluster), "the gateway serves", holds=lambda code: code == 200)
    loaded = asyncio.create_task(load())
    try:
        assert name not in pods.requests
        await cluster.edit({"replicas": 2})
        await until_async(_sees(pods, name), "the pod gets requests")
        status = await cluster.reaches("it serves, and another one waits", counts(1, 1, 1))
        assert (status["replicas"], status["ready"]) == (2, "2/2")
        own = await cluster.client.get(REPLICA_SETS, cluster.namespace, f"chat-{revision}")
        assert own["spec"]["replicas"] == 1, "no other pod was made"
        await cluster.edit({"replicas": 1})
        await cluster.reaches("it waits again", counts(1, 1, 0))
        await until_async(lambda: standby_pods(cluster), "one of them is gone", holds=lambda left: len(left) == 1)
        (left,) = (await standby_pods(cluster)).values()
        assert not _ready(left) and left["metadata"]["labels"][labels.REVISION] == labels.standby_of(revision)
        before = len(codes)
        await until_async(_length(codes), "requests after that", holds=lambda count: count > before + 20)
    finally:
        done.set()
        await loaded
    assert set(codes) == {200}


def _sees(pods, name):
    async def seen():
        return name in pods.requests

    return seen


def _length(items):
    async def length():
        return len(items)

    return length


async def test_an_operator_that_is_killed_leaves_gates_as_they_are(cluster, pods):
    await created(cluster, standbyReplicas=1)
    await cluster.reaches("one pod waits", counts(1, 1, 0))
    await cluster.edit({"replicas": 2})
    status = await cluster.reaches("it serves", counts(1, 1, 1))
    await cluster.operator.kill()
    await cluster.edit({"replicas": 3})

    async def serving():
        return sum(_ready(pod) for pod in (await standby_pods(cluster)).values())

    assert await serving() == 1
    await cluster.operator.start()
    await cluster.reaches("the other one serves too", counts(1, 1, 2))
    assert status["stableRevision"] == (await cluster.chat())["status"]["stableRevision"]


async def test_a_lost_replica_set_of_standby_pods_is_made_again_and_with_the_field_it_goes(cluster, pods):
    await created(cluster, standbyReplicas=1)
    status = await cluster.reaches("one pod waits", counts(1, 1, 0))
    name = f"chat-{labels.standby_of(status['stableRevision'])}"
    live = await cluster.client.get(REPLICA_SETS, cluster.namespace, name)
    await cluster.client.delete(REPLICA_SETS, cluster.namespace, name, live["metadata"]["uid"])
    for pod in (await standby_pods(cluster)).values():  # as the garbage collector
        metadata = pod["metadata"]
        await cluster.client.delete(PODS, cluster.namespace, metadata["name"], metadata["uid"])

    async def uid():
        found = await cluster.client.list(REPLICA_SETS, cluster.namespace)
        return next((one["metadata"]["uid"] for one in found if one["metadata"]["name"] == name), "")

    await until_async(uid, "another one", holds=lambda seen: seen and seen != live["metadata"]["uid"])
    await cluster.reaches("one pod waits again", counts(1, 1, 0))
    await cluster.edit({"standbyReplicas": 0})
    await until_async(uid, "it is gone", holds=lambda seen: not seen)
    await cluster.reaches("the status has none", lambda now: "standby" not in now)
