"""Operator and gateway have one list+watch each (kopf's, `Reflector`), and both survive a real API server that fails.

A watch continues from the last resourceVersion, that of a bookmark too; when the API server no longer has that version
(410), it lists again and finds what was deleted meanwhile.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import yaml

from devcluster.controlplane import ControlPlane
from slipway_gateway.routing.cluster import ClusterSource
from slipway_gateway.routing.table import RouteTable
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_operator import watch
from slipway_operator.kube import auth
from slipway_operator.kube.client import Client
from slipway_operator.kube.reading.cache import ObjectCache
from testkit.cluster.api import GROUP_PATH, Api
from testkit.until import until_async
from tests.support.api_server import CRD_FILES
from tests.support.failing_control_plane import FailingControlPlane, Forwarder, kubeconfig_through

pytestmark = pytest.mark.integration

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LARGE = {"name": "server", "image": "none"}
SPEC = {"model": {"uri": "file:///opt/slipway/models/tiny-v1"}}
Seen = Callable[[], dict[str, int]]  # generation of status.traffic by namespace/name
Watching = Callable[[Path, str], contextlib.AbstractAsyncContextManager[Seen]]


@contextlib.asynccontextmanager
async def gateway(kubeconfig: Path, namespace: str) -> AsyncIterator[Seen]:
    tables: list[RouteTable] = [RouteTable()]
    source = ClusterSource(str(kubeconfig), [namespace], tables.append, GatewayMetrics("test"))
    async with _running(source.run()):
        yield lambda: {name: route.generation for name, route in tables[-1].routes.items()}


@contextlib.asynccontextmanager
async def operator(kubeconfig: Path, namespace: str) -> AsyncIterator[Seen]:
    cache, stop = ObjectCache([namespace]), asyncio.Event()
    listeners = watch.Listeners(lambda key: None, lambda key: None, lambda plural: None, cache, lambda place: None)
    async with (
        Client(await auth.load(str(kubeconfig))) as client,
        _running(cache.run(client, lambda key: None)),
        _running(watch.run(client, [namespace], listeners, stop)),
    ):
        yield lambda: {"/".join(key): _generation(cache.get(key) or {}) for key in cache.deployments()}
        stop.set()


def _generation(deployment: dict[str, dict[str, dict[str, int]]]) -> int:
    return deployment.get("status", {}).get("traffic", {}).get("generation", 0)


@contextlib.asynccontextmanager
async def _running(coroutine: object) -> AsyncIterator[None]:
    task = asyncio.ensure_future(coroutine)  # type: ignore[call-overload]
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class World(FailingControlPlane):
    """ModelDeployments of one namespace."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        self.api = Api(plane.kubeconfig)
        self._number = 0

    async def prepare(self) -> None:
        for file in CRD_FILES:
            crd = yaml.safe_load(file.read_text())
            assert self.api.apply(f"{CRDS}/{crd['metadata']['name']}", crd).ok
        await until_async(lambda: self.api.get(f"{GROUP_PATH}/modeldeployments").ok)
        self._number += 1
        self.namespace = f"watched-{self._number}"
        assert self.api.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}}).ok

    def deploy(self, name: str, generation: int) -> None:
        kind = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment"}
        made = self.api.post(self._path(), kind | {"metadata": {"name": name}, "spec": SPEC})
        assert made.ok, made.message
        self.write(name, generation)

    def write(self, name: str, generation: int) -> None:
        backends = [{"revision": "r1", "version": "v", "weight": 100}]
        traffic = {"generation": generation, "model": name, "salt": "s", "backends": backends}
        written = self.api.merge(f"{self._path()}/{name}/status", {"status": {"traffic": traffic}})
        assert written.ok, written.message

    def delete(self, name: str) -> None:
        assert self.api.delete(f"{self._path()}/{name}").ok

    def make_large_pod(self, name: str) -> None:
        """A pod of a revision, of 1.2 MB, and of 7 MB in JSON, where each `<` is \\u003c."""
        variables = [{"name": f"V{number}", "value": "<" * 100_000} for number in range(12)]
        marks = {"slipway.dev/modeldeployment": "chat", "slipway.dev/revision": "r1"}
        pod = {"metadata": {"name": name, "labels": marks}, "spec": {"containers": [LARGE | {"env": variables}]}}
        made = self.api.post(f"/api/v1/namespaces/{self.namespace}/pods", pod)
        assert made.ok, made.message

    def _path(self) -> str:
        return f"{GROUP_PATH}/namespaces/{self.namespace}/modeldeployments"


@pytest.fixture(scope="module")
def plane() -> Iterator[World]:
    with ControlPlane() as control_plane:
        made = World(control_plane)
        yield made
        made.api.close()


@pytest.fixture
async def world(plane: World) -> World:
    await plane.prepare()
    return plane


@pytest.mark.parametrize("watching", [gateway, operator])
async def test_a_cut_watch_goes_on_where_it_was(world: World, watching: Watching) -> None:
    forwarder, key = Forwarder(world.plane.url), f"{world.namespace}/chat"
    world.deploy("chat", 1)
    kubeconfig = world.plane.kubeconfig
    async with (
        forwarder.running() as url,
        watching(kubeconfig_through(url, kubeconfig), world.namespace) as seen,
    ):
        await until_async(lambda: seen() == {key: 1})
        await forwarder.cut()
        world.write("chat", 2)
        world.deploy("other", 1)
        await forwarder.start()
        await until_async(lambda: seen() == {key: 2, f"{world.namespace}/other": 1})
        world.delete("other")
        await until_async(lambda: seen() == {key: 2})


@pytest.mark.attack_class(15)
@pytest.mark.parametrize("watching", [gateway, operator])
async def test_an_object_of_a_megabyte_ends_no_watch(world: World, watching: Watching) -> None:
    """The client reads lines of up to 4 MiB: a pod that is longer ended the watch, and with it every gateway."""
    key = f"{world.namespace}/chat"
    world.deploy("chat", 1)
    async with watching(world.plane.kubeconfig, world.namespace) as seen:
        await until_async(lambda: seen() == {key: 1})
        world.make_large_pod("large")
        await asyncio.sleep(1)  # for the event to come
        world.write("chat", 2)
        await until_async(lambda: seen() == {key: 2})


@pytest.mark.parametrize("watching", [gateway, operator])
async def test_a_version_that_is_too_old_lists_again_and_finds_deletions(
    world: World, watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    forwarder, key = Forwarder(world.plane.url), f"{world.namespace}/chat"
    world.deploy("chat", 1)
    world.deploy("gone", 1)
    kubeconfig = world.plane.kubeconfig
    async with (
        forwarder.running() as url,
        watching(kubeconfig_through(url, kubeconfig), world.namespace) as seen,
    ):
        await until_async(lambda: len(seen()) == 2)
        await forwarder.cut()
        # While no watch is open: a deletion, a change, and an API server that starts without a history.
        world.delete("gone")
        world.write("chat", 2)
        killed = world.kill_api_server()
        world.compact()
        world.start_api_server(killed)
        assert len(seen()) == 2
        await forwarder.start()
        await until_async(lambda: seen() == {key: 2})
        # The new watch works as the first one did.
        world.write("chat", 3)
        await until_async(lambda: seen() == {key: 3})
