"""Routes from a real API server: follow, survive its death, list again, wait for the CRD."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
import yaml

from devcluster.controlplane import ControlPlane
from devcluster.errors import DevclusterError
from slipway_gateway.routing.cluster import ClusterSource
from slipway_gateway.routing.table import RouteTable
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.cluster.api import Api
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.pods import pod, ready_status
from tests.support.failing_control_plane import FailingControlPlane, Forwarder, kubeconfig_through

from .harness import echo, upstream
from .test_process import gateway as gateway_process

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
GROUP = "/apis/slipway.dev/v1alpha1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = yaml.safe_load((ROOT / "crds" / "modeldeployments.yaml").read_text())


class World(FailingControlPlane):
    """A control plane of this module's own: its API server is killed here."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        self.api = Api(plane.kubeconfig)
        self._namespaces = 0

    async def install_crd(self) -> None:
        assert self.api.apply(f"{CRDS}/{CRD['metadata']['name']}", CRD).ok
        await until_async(lambda: self.api.get(f"{GROUP}/modeldeployments").ok)

    def namespace(self) -> str:
        self._namespaces += 1
        name = f"gateway-{self._namespaces}"
        made = self.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        assert made.ok, made.message
        return name

    def deploy(self, namespace: str, name: str = "chat") -> None:
        spec = {"model": {"uri": "file:///opt/slipway/models/tiny-v1"}}
        kind = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment"}
        made = self.api.post(_path(namespace), kind | {"metadata": {"name": name}, "spec": spec})
        assert made.ok, made.message

    def set_traffic(self, namespace: str, generation: int, weights: dict[str, int], name: str = "chat") -> None:
        backends = [{"revision": revision, "version": "v", "weight": weight} for revision, weight in weights.items()]
        traffic = {"generation": generation, "model": f"{namespace}-{name}", "salt": "s", "backends": backends}
        written = self.api.merge(f"{_path(namespace)}/{name}/status", {"status": {"traffic": traffic}})
        assert written.ok, written.message

    def own_names(self, namespace: str, owners: dict[str, str]) -> None:
        """What the operator keeps in its own namespace."""
        text = json.dumps({name: {"owner": owner, "since": "2026-01-01T00:00:00Z"} for name, owner in owners.items()})
        path = f"/api/v1/namespaces/{namespace}/configmaps/slipway-model-names"
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slipway-model-names"}}
        written = self.api.apply(path, body | {"data": {"names.json": text}})
        assert written.ok, written.message

    def set_endpoints(self, namespace: str, revision: str, *ready: bool, port: int = 8000, name: str = "chat") -> None:
        """Pods that a ReplicaSet controls, ready or not."""
        replica_set = {
            "metadata": {
                "name": f"{name}-{revision}",
                "namespace": namespace,
                "uid": f"uid-of-{revision}",
                "labels": {"slipway.dev/modeldeployment": name, "slipway.dev/revision": revision},
            }
        }
        path = f"/api/v1/namespaces/{namespace}/pods"
        for number, one in enumerate(ready):
            made = pod(replica_set, port, name=f"{name}-{revision}-{number}")
            if not self.api.get(f"{path}/{made['metadata']['name']}").ok:
                created = self.api.post(path, made)
                assert created.ok, created.message
            status = ready_status(own_address() if number == 0 else f"10.9.9.{number}", ready=one)
            written = self.api.merge(f"{path}/{made['metadata']['name']}/status", {"status": status})
            assert written.ok, written.message

    def delete_endpoints(self, namespace: str, revision: str) -> None:
        assert self.api.delete(f"/api/v1/namespaces/{namespace}/pods/chat-{revision}-0").ok


def _path(namespace: str) -> str:
    return f"{GROUP}/namespaces/{namespace}/modeldeployments"


@pytest.fixture(scope="module")
def plane() -> Iterator[World]:
    try:
        control_plane = ControlPlane()
    except DevclusterError as error:
        pytest.fail(str(error))  # `make tools` builds it
    with control_plane:
        made = World(control_plane)
        yield made
        made.api.close()


@pytest.fixture
async def world(plane: World) -> World:
    await plane.install_crd()
    return plane


class Watched:
    """A running source and what it published last."""

    def __init__(self, kubeconfig: Path, *namespaces: str) -> None:
        self.tables: list[RouteTable] = []
        self.source = ClusterSource(str(kubeconfig), namespaces, self.tables.append, GatewayMetrics("test"))

    def routes(self) -> dict[str, tuple[int, dict[str, int]]]:
        """Generation and endpoints per revision, by route."""
        table = self.tables[-1] if self.tables else RouteTable()
        return {
            name: (route.generation, {b.revision: len(table.urls(route, b.revision)) for b in route.backends})
            for name, route in table.routes.items()
        }


@contextlib.asynccontextmanager
async def watching(kubeconfig: Path, *namespaces: str) -> AsyncIterator[Watched]:
    watched = Watched(kubeconfig, *namespaces)
    running = asyncio.create_task(watched.source.run())
    try:
        yield watched
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_follows_the_cluster(world: World) -> None:
    namespace = world.namespace()
    route = f"{namespace}/chat"
    async with watching(world.plane.kubeconfig) as watched:
        await until_async(lambda: watched.tables)
        world.deploy(namespace)
        await until_async(lambda: watched.routes().get(route) == (0, {}))
        world.set_traffic(namespace, 1, {"r1": 100})
        await until_async(lambda: watched.routes()[route] == (1, {"r1": 0}))
        world.set_endpoints(namespace, "r1", True, True, False)
        await until_async(lambda: watched.routes()[route] == (1, {"r1": 2}))
        world.set_endpoints(namespace, "r2", True)
        world.set_traffic(namespace, 2, {"r2": 10, "r1": 90})
        await until_async(lambda: watched.routes()[route] == (2, {"r2": 1, "r1": 2}))
        world.set_endpoints(namespace, "r1", False, True)
        await until_async(lambda: watched.routes()[route] == (2, {"r2": 1, "r1": 1}))
        world.delete_endpoints(namespace, "r2")
        await until_async(lambda: watched.routes()[route] == (2, {"r2": 0, "r1": 1}))
        # A status that was restored: the newest object counts, whatever its number is.
        world.set_traffic(namespace, 1, {"r2": 100})
        world.set_endpoints(namespace, "r2", True)
        await until_async(lambda: watched.routes()[route] == (1, {"r2": 1}))
        # One that was lost takes nothing away.
        lost = world.api.merge(f"{_path(namespace)}/chat/status", {"status": {"traffic": None}})
        assert lost.ok, lost.message
        world.delete_endpoints(namespace, "r2")
        await until_async(lambda: watched.routes()[route] == (1, {"r2": 0}))
        world.set_endpoints(namespace, "r2", True)
        assert world.api.delete(f"{_path(namespace)}/chat").ok
        await until_async(lambda: route not in watched.routes())
        world.deploy(namespace)
        world.set_traffic(namespace, 1, {"r2": 100})
        await until_async(lambda: watched.routes().get(route) == (1, {"r2": 1}))


async def test_only_the_named_namespaces(world: World) -> None:
    seen, unseen = world.namespace(), world.namespace()
    for namespace in (seen, unseen):
        world.deploy(namespace)
        world.set_traffic(namespace, 1, {"r1": 100})
        world.set_endpoints(namespace, "r1", True)
    async with watching(world.plane.kubeconfig, seen) as watched:
        await until_async(lambda: watched.routes() == {f"{seen}/chat": (1, {"r1": 1})})


async def test_serves_while_the_api_server_is_dead(world: World, tmp_path: Path) -> None:
    namespace = world.namespace()
    world.deploy(namespace)
    world.set_traffic(namespace, 1, {"r1": 100})
    world.own_names(namespace, {f"{namespace}-chat": f"{namespace}/chat"})
    flags = ("--kubeconfig", str(world.plane.kubeconfig), f"--own-namespace={namespace}")
    async with (
        upstream(echo, host="0.0.0.0") as server,
        gateway_process(*flags, ready=False) as process,
        aiohttp.ClientSession() as client,
    ):
        world.set_endpoints(namespace, "r1", True, port=server.port)

        async def ask() -> tuple[int, str]:
            body = {"model": f"{namespace}-chat"}
            async with client.post(process.url("api") + "/v1/completions", json=body) as answer:
                return answer.status, answer.headers.get("X-Slipway-Revision", "")

        await until_async(ask, "r1 answers", holds=lambda answer: answer == (200, "r1"))
        killed = world.kill_api_server()
        await until_async(lambda: process.log_entries("the last good table stays in use"))
        for _ in range(20):
            assert await ask() == (200, "r1")
        assert await process.status("/readyz") == 200
        world.start_api_server(killed)
        world.set_endpoints(namespace, "r2", True, port=server.port)
        world.set_traffic(namespace, 2, {"r2": 100, "r1": 0})
        await until_async(ask, "r2 answers", holds=lambda answer: answer == (200, "r2"))
        # Once for each trouble of a watch, not once for each try. A server that starts gives several.
        warned: dict[str, list[str]] = {}
        for entry in process.log_entries("the last good table stays"):
            watch, _, trouble = str(entry["msg"]).partition(":")
            warned.setdefault(watch, []).append(trouble)
        assert warned and all(one != following for logged in warned.values() for one, following in pairwise(logged)), (
            warned
        )


async def test_lists_again_after_compaction(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    namespace = world.namespace()
    for name in ("chat", "gone"):
        world.deploy(namespace, name)
        world.set_traffic(namespace, 1, {"r1": 100}, name)
    forwarder = Forwarder(world.plane.url)
    async with (
        forwarder.running() as url,
        watching(kubeconfig_through(url, world.plane.kubeconfig), namespace) as watched,
    ):
        await until_async(lambda: len(watched.routes()) == 2)
        await forwarder.cut()
        # Without a watch: a deletion, a change, history forgotten, and an API server that starts afresh.
        assert world.api.delete(f"{_path(namespace)}/gone").ok
        world.set_traffic(namespace, 2, {"r1": 100})
        killed = world.kill_api_server()
        world.compact()
        world.start_api_server(killed)
        assert len(watched.routes()) == 2
        await forwarder.start()
        await until_async(lambda: watched.routes() == {f"{namespace}/chat": (2, {"r1": 0})})
        assert "the version of modeldeployments is too old: listing again" in caplog.text


async def test_waits_for_the_crd(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert world.api.delete(f"{CRDS}/{CRD['metadata']['name']}").ok
    await until_async(lambda: world.api.get(f"{GROUP}/modeldeployments").status == 404)
    async with watching(world.plane.kubeconfig) as watched:
        await until_async(lambda: "is the CRD installed?" in watched.source.waiting_for)
        await asyncio.sleep(1)
        assert caplog.text.count("is the CRD installed?") == 1 and not watched.tables
        await world.install_crd()
        await until_async(lambda: watched.tables)
        assert watched.source.waiting_for == ""


async def test_missing_rights_are_named(world: World) -> None:
    async with watching(world.plane.user_kubeconfig("without-rights")) as watched:
        await until_async(lambda: "check the RBAC rules" in watched.source.waiting_for)
