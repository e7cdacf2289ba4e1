"""The status of Tenants at a real API server, from gateways that report it over HTTP."""

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from devcluster.controlplane import ControlPlane
from slipway_operator.kube import auth
from slipway_operator.kube.client import Client
from slipway_operator.kube.reading.gateways import Endpoint, Gateways
from slipway_operator.tenants import runner
from testkit import ROOT
from testkit.cluster.api import GROUP_PATH, Api
from testkit.until import until, until_async
from testkit.world.slipway import Cluster
from tests.support.api_server import CRD_FILES

pytestmark = pytest.mark.integration

KEY = {"id": "k7Qm2x", "hash": "hmac-sha256:" + "0" * 64}
NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@contextlib.asynccontextmanager
async def gateway(report: dict[str, Any]) -> AsyncIterator[int]:
    async def tenants(request: web.Request) -> web.Response:
        return web.json_response(report)

    app = web.Application()
    app.router.add_get("/internal/tenants", tenants)
    made = web.AppRunner(app)
    await made.setup()
    await web.TCPSite(made, "127.0.0.1", 0).start()
    yield made.addresses[0][1]
    await made.cleanup()


class Loopback(Gateways):
    """An EndpointSlice takes no address of loopback."""

    def __init__(self, client: Client, session: aiohttp.ClientSession, port: int) -> None:
        super().__init__(client, session, "default", "gates")
        self._port = port

    async def endpoints(self) -> list[Endpoint]:
        return [Endpoint("gate", f"http://127.0.0.1:{self._port}", True)]


def install(api: Api, file: Path) -> None:
    crd = yaml.safe_load(file.read_text())
    assert api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}", crd).ok


async def test_the_status_follows_the_gateways_and_events_say_what_is_news() -> None:
    one: dict[str, Any] = {"generation": 1, "last_minute": {"requests": 4}}
    report: dict[str, Any] = {"authenticates": True, "ledger": "", "tenants": {"team-a": one}}
    clock = Clock()
    with ControlPlane() as plane, contextlib.closing(Api(plane.kubeconfig)) as api:
        install(api, ROOT / "crds" / "tenants.yaml")
        until(lambda: api.get(f"{GROUP_PATH}/tenants").ok)
        spec = {"models": ["*"], "auth": {"keys": [KEY]}, "limits": {"requestsPerMinute": 60}}
        body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "team-a"}, "spec": spec}
        assert api.apply(f"{GROUP_PATH}/tenants/team-a", body).ok

        async with (
            gateway(report) as port,
            Client(await auth.load(str(plane.kubeconfig))) as client,
            aiohttp.ClientSession() as session,
        ):
            found = runner.TenantRunner(client, Loopback(client, session, port), session, bool, clock)

            def seen() -> dict[str, Any]:
                return dict(api.get(f"{GROUP_PATH}/tenants/team-a").body["status"])

            def events() -> list[str]:
                listed = api.get("/api/v1/namespaces/default/events").body["items"]
                return [one["reason"] for one in listed if one["involvedObject"]["name"] == "team-a"]

            await found.look()
            assert seen()["use"]["requests"] == "4/60"
            assert {one["type"]: one["status"] for one in seen()["conditions"]} == {
                "Ready": "True",
                "QuotaExhausted": "False",
                "KeyExpiring": "False",
            }
            assert events() == []
            # Use alone waits, a condition does not.
            one["last_minute"] = {"requests": 9}
            await found.look()
            assert seen()["use"]["requests"] == "4/60"
            clock.now += timedelta(seconds=runner.USE_EACH_S)
            await found.look()
            assert seen()["use"]["requests"] == "9/60"
            one["refused"] = {"requests": 3}
            await found.look()
            assert events() == ["QuotaExhausted"]


@pytest.mark.timeout(300)
async def test_operator_and_gateway_as_processes_show_what_hinders_a_tenant(tmp_path: Path) -> None:
    """The gateway has no pepper, so no key is valid."""
    with ControlPlane() as plane, contextlib.closing(Api(plane.kubeconfig)) as api:
        for file in CRD_FILES:
            install(api, file)
        body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "team-a"}}
        path = f"{GROUP_PATH}/tenants/team-a"
        until(lambda: api.apply(path, body | {"spec": {"models": ["*"], "auth": {"keys": [KEY]}}}).ok)
        async with Client(await auth.load(str(plane.kubeconfig))) as client:
            flags = {"operator_flags": ("--tenant-status",), "gateway_flags": ()}
            made = Cluster(client, "default", plane.kubeconfig, plane.kubeconfig, tmp_path, **flags)

            def ready() -> str:
                status = api.get(path).body.get("status") or {}
                return next((one["reason"] for one in status.get("conditions", ()) if one["type"] == "Ready"), "")

            def about() -> set[str]:
                listed = api.get("/api/v1/namespaces/default/events").body["items"]
                return {one["reason"] for one in listed if one["involvedObject"]["kind"] == "Tenant"}

            engine = {"type": "custom", "image": "other:1"}
            deployment = {"metadata": {"name": "chat"}, "spec": {"model": {"uri": "file:///m"}, "engine": engine}}
            body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", **deployment}
            chat = f"{GROUP_PATH}/namespaces/default/modeldeployments/chat"
            assert api.apply(chat, body).ok

            def isolation() -> list[str]:
                conditions = (api.get(chat).body.get("status") or {}).get("conditions", ())
                return [one["reason"] for one in conditions if one["type"] == "TenantIsolationUnknown"]

            async with made.running():
                await until_async(lambda: ready() == "KeyPepperMissing")
                await until_async(lambda: about() == {"KeyPepperMissing"})
                await until_async(lambda: isolation() == ["UnknownEngine"])
                assert api.delete(path).ok
                await until_async(lambda: isolation() == [])


async def test_a_tenant_that_cannot_be_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """As of a later release, whose CRD allows more; the other Tenants get their status."""
    crd = yaml.safe_load((ROOT / "crds" / "tenants.yaml").read_text())
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    with ControlPlane() as plane, contextlib.closing(Api(plane.kubeconfig)) as api:
        assert api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}", crd).ok
        until(lambda: api.get(f"{GROUP_PATH}/tenants").ok)
        specs = {"team-a": {"models": ["*"], "auth": {"keys": [KEY]}}, "later": {"models": 3}}
        for name, spec in specs.items():
            body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec}
            assert api.apply(f"{GROUP_PATH}/tenants/{name}", body).ok
        async with (
            gateway({"authenticates": True, "ledger": "", "tenants": {}}) as port,
            Client(await auth.load(str(plane.kubeconfig))) as client,
            aiohttp.ClientSession() as session,
        ):
            found = runner.TenantRunner(client, Loopback(client, session, port), session, bool, Clock())
            for _ in range(3):
                await found.look()
        logged = [one.getMessage() for one in caplog.records if one.name == runner.__name__]
        assert len(logged) == 1 and logged[0].startswith("Tenant later cannot be read") and "models" in logged[0]
        assert api.get(f"{GROUP_PATH}/tenants/team-a").body["status"]["conditions"]
