"""Tenants from a real API server: followed at once, kept while it is away, none without the CRD."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from devcluster.controlplane import ControlPlane
from slipway_gateway.authentication.known_tenants import KnownTenants
from slipway_gateway.authentication.tenant_source import TenantSource
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit import ROOT
from testkit.cluster.api import Api
from testkit.until import until_async
from tests.support.failing_control_plane import FailingControlPlane, Forwarder, kubeconfig_through

from .harness import echo, gateway, upstream
from .tenants import PEPPER, bearer, entry, make_key

pytestmark = pytest.mark.integration

CRD = yaml.safe_load((ROOT / "crds" / "tenants.yaml").read_text())
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATH = "/apis/slipway.dev/v1alpha1/tenants"
REVOKED_WITHIN_S = 2.0


class World(FailingControlPlane):
    """A control plane of each test's own: one starts without the CRD, the other cuts its connection."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        self.api = Api(plane.kubeconfig)

    def write(self, name: str, *keys: str) -> None:
        listed = [{"id": one.id, "hash": one.hash} for one in map(entry, keys)]
        body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name}}
        written = self.api.apply(f"{PATH}/{name}", body | {"spec": {"models": ["*"], "auth": {"keys": listed}}})
        assert written.ok, written.message


@pytest.fixture
def world() -> Iterator[World]:
    with ControlPlane() as plane:
        made = World(plane)
        yield made
        made.api.close()


@contextlib.asynccontextmanager
async def following(kubeconfig: Path, known: KnownTenants) -> AsyncIterator[TenantSource]:
    source = TenantSource(str(kubeconfig), known, GatewayMetrics("test"))
    running = asyncio.create_task(source.run())
    try:
        yield source
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_tenants_of_an_api_server(world: World) -> None:
    """Without the CRD there are no tenants; then keys count and are revoked within two seconds, at both gateways."""
    key, next_key = make_key("first1"), make_key("second")
    async with (
        upstream(echo) as server,
        gateway(None, PEPPER) as one,
        gateway(None, PEPPER) as two,
        following(world.plane.kubeconfig, one.known),
        following(world.plane.kubeconfig, two.known),
    ):

        async def statuses(key: str) -> tuple[int, int]:
            found = []
            for gate in (one, two):
                async with await gate.post(headers=bearer(key)) as answer:
                    found.append(answer.status)
            return found[0], found[1]

        for gate in (one, two):
            gate.route(("rev", 100, [server.url]))
        await until_async(lambda: one.known.current is not None and two.known.current is not None)
        assert await statuses(key) == (200, 200)
        assert world.api.apply(f"{CRDS}/{CRD['metadata']['name']}", CRD).ok
        await until_async(lambda: world.api.get(PATH).ok)
        world.write("team-a", key)
        await until_async(lambda: all(gate.known.current and gate.known.current.tenants for gate in (one, two)))
        assert await statuses(key) == (200, 200) and await statuses(next_key) == (401, 401)
        world.write("team-a", key, next_key)
        deadline = time.monotonic() + REVOKED_WITHIN_S
        while await statuses(next_key) != (200, 200):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        world.write("team-a", next_key)
        deadline = time.monotonic() + REVOKED_WITHIN_S
        while await statuses(key) != (401, 401):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert await statuses(next_key) == (200, 200)


async def test_the_last_tenants_stay_while_the_api_server_is_away(world: World) -> None:
    assert world.api.apply(f"{CRDS}/{CRD['metadata']['name']}", CRD).ok
    await until_async(lambda: world.api.get(PATH).ok)
    key = make_key("stays1")
    world.write("team-b", key)
    known = KnownTenants(lambda: PEPPER)
    server = yaml.safe_load(world.plane.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    way = Forwarder(server)
    async with way.running() as url, following(kubeconfig_through(url, world.plane.kubeconfig), known):
        await until_async(lambda: known.current is not None and "team-b" in known.current.tenants)
        await way.cut()
        await until_async(known.trouble)
        assert known.current is not None and "team-b" in known.current.tenants
