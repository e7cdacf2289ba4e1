"""A real API server whose CRDs serve v1beta1, and the webhook that it calls."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.controlplane import ControlPlane
from devcluster.ports import reserve_port
from slipway_operator.conversion.server import ConversionCertificate, ConversionPort
from slipway_operator.kube import auth
from slipway_operator.kube.client import Client
from slipway_operator.kube.writing import conversion_webhook
from slipway_operator.model.cluster.webhook_host import WebhookHost
from testkit.cluster.api import Api
from testkit.until import until, until_async
from tests.support.api_server import install_crds

NAMESPACE = "slipway-system"
HOST = WebhookHost(NAMESPACE, "slipway-conversion", "slipway-conversion-ca")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Webhook:
    """The webhook of one operator, in a thread with an event loop of its own, as in another process."""

    def __init__(self, kubeconfig: Path, port: int, may_write: bool = True) -> None:
        self._kubeconfig, self._port, self._may_write = kubeconfig, port, may_write
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self.statuses: list[int] = []

    def start(self) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        until(lambda: self._end, "the webhook's loop runs")

    def stop(self) -> None:
        if self._thread:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()
            self._thread = None

    async def _run(self) -> None:
        self._loop, end = asyncio.get_running_loop(), asyncio.Event()
        configuration = await auth.load(str(self._kubeconfig))
        async with Client(configuration, may_write=lambda: self._may_write) as client:
            certificate = ConversionCertificate(client, HOST)
            port = ConversionPort(self._port, certificate, self.statuses.append)
            tasks = [asyncio.create_task(component.run()) for component in (certificate, port)]
            self._end = end
            await end.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # TLS ends a connection in a few exchanges. A loop that ends before leaves sockets to the garbage collector, and
        # its warning fails another test. asyncio has no public list of them; one is the loop's own.
        sockets: Any = self._loop
        await until_async(
            lambda: sockets._selector.get_map(), "all connections are closed", holds=lambda those: len(those) <= 1
        )


@pytest.fixture(scope="package")
def beta_server() -> Iterator[Path]:
    """Kubeconfig of an API server of these tests alone: the CRDs of the other one are as they are installed."""
    with ControlPlane() as control_plane:
        install_crds(control_plane.kubeconfig)
        yield control_plane.kubeconfig


@pytest.fixture(scope="package")
def beta(beta_server: Path) -> Iterator[Api]:
    with contextlib.closing(Api(beta_server)) as session:
        session.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        service = {"metadata": {"name": HOST.service}, "spec": {"type": "ExternalName", "externalName": "localhost"}}
        assert session.post(f"/api/v1/namespaces/{NAMESPACE}/services", service).ok
        yield session


@pytest.fixture(scope="package")
def port(beta: Api) -> Iterator[int]:
    """Of the webhook. The API server dials the Service's port, and here no kube-proxy leads from 443 to ours."""
    with pytest.MonkeyPatch.context() as patch:
        number = reserve_port()
        patch.setattr(conversion_webhook, "_PORT", number)
        yield number


@pytest.fixture
def webhook(beta_server: Path, beta: Api, port: int) -> Iterator[Webhook]:
    """The running webhook, once the API server has v1beta1 from it.

    CRDs that a former test left serve v1beta1 at once, and an empty list needs no conversion: its port says more.
    """
    running = Webhook(beta_server, port)
    running.start()
    until(lambda: _is_open(port), "the webhook listens")
    for plural in conversion_webhook.PLURALS:
        until(
            lambda plural=plural: beta.get(f"/apis/slipway.dev/v1beta1/{plural}"),
            f"v1beta1 of {plural} is served",
            holds=lambda answer: answer.ok,
        )
    yield running
    running.stop()


def _is_open(port: int) -> bool:
    with contextlib.closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def space(beta: Api) -> str:
    """A namespace of its own for one test."""
    created = beta.post("/api/v1/namespaces", {"metadata": {"generateName": "test-"}})
    assert created.ok, created.message
    return str(created.body["metadata"]["name"])
