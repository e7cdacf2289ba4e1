"""Each long-lived task of the operator's composition root ends by an unexpected exception, and is at work again."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.ports import reserve_port
from slipway_operator import __main__ as program
from slipway_operator import watch
from slipway_operator.adapters.runner import AdapterRunner
from slipway_operator.audit.runner import AuditRunner
from slipway_operator.experiments.runner import ExperimentRunner
from slipway_operator.kube.client import Client
from slipway_operator.kube.lease import Lease
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.calls import Calls
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS
from slipway_operator.kube.secrets.certificates import Certificates
from slipway_operator.kube.secrets.keys import Keys
from slipway_operator.kube.secrets.pepper import Pepper
from slipway_operator.kube.writing.names import Names
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.scaling_runner import ScalingRunner
from slipway_operator.metrics_api.server import MetricsApi
from slipway_operator.model_routes.runner import ModelRouteRunner
from slipway_operator.pools.runner import PoolRunner
from slipway_operator.queue import WorkQueue
from slipway_operator.registry.runner import RegistryRunner
from slipway_operator.settings import parse
from slipway_operator.telemetry.health import Pulse
from slipway_operator.tenants.runner import TenantRunner
from slipway_process.supervisor import OnFailure
from testkit.until import until_async
from tests.support.tasks import Started, fail, page_of, reasons

from .conftest import MANIFEST

pytestmark = [
    pytest.mark.integration,
    pytest.mark.finding("F4"),
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("registrations"),
]

# By task: what its loop calls.
LOOPS: dict[str, tuple[Any, str]] = {
    "pulse": (Pulse, "run"),
    "worker": (WorkQueue, "take"),
    "calls": (Calls, "_found"),
    "resync": (watch, "resync"),
    "cache": (ObjectCache, "run"),
    "lease": (Lease, "renew"),
    "names": (Names, "run"),
    "registry": (RegistryRunner, "_begin"),
    "keys": (Keys, "run"),
    "certificates": (Certificates, "run"),
    "pools": (PoolRunner, "look"),
    "pepper": (Pepper, "run"),
    "audit": (AuditRunner, "run"),
    "tenants": (TenantRunner, "look"),
    "model-routes": (ModelRouteRunner, "look"),
    "experiments": (ExperimentRunner, "look"),
    "sampler": (MetricsSampler, "sample"),
    "metrics-api": (MetricsApi, "_look"),
    "adapters": (AdapterRunner, "look"),
    "scaling": (ScalingRunner, "look"),
}
NOT_HERE = {"calls-of-gateway", "hand-over"}  # one for each gateway; and one that waits for SIGTERM, and ends


@contextlib.asynccontextmanager
async def process(
    api_server: Path, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Started, "asyncio.Task[int]", int]]:
    """The operator as `main` runs it: its tasks, its end, and its admin port."""
    port = reserve_port()
    flags = {
        "namespaces": namespace,
        "own-namespace": namespace,
        "admin-port": port,
        "metrics-api-service": "slipway-metrics",
        "metrics-api-owner": "view",
        "metrics-api-port": reserve_port(),
        "keys-secret": "keys",
        "internal-ca-secret": "ca",
        "gateway-tls-secret": "tls",
        "key-pepper-secret": "pepper",
        "tenant-status": "on",
        "audit": "on",
        "audit-file": folder / "audit",
    }
    monkeypatch.setenv("KUBECONFIG", str(api_server))
    settings = parse([f"--{name}={value}" for name, value in flags.items()]).settings
    Started.replace(monkeypatch, program)
    running = asyncio.create_task(program._run(settings))
    try:
        await until_async(lambda: running.done() or (Started.made and "lease" in Started.made[0].tasks), within_s=90)
        assert not running.done(), await running
        yield Started.made[0], running, port
    finally:
        if not running.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 60)


async def test_each_task_that_ends_is_at_work_again_and_reconciles_go_on(
    api_server: Path,
    client: Client,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All of them at once: a start takes seconds."""
    calls = {name: fail(monkeypatch, *LOOPS[name]) for name in LOOPS if name != "sampler"}
    async with process(api_server, namespace, tmp_path, monkeypatch) as (tasks, running, port):
        assert set(tasks.tasks) - NOT_HERE == set(LOOPS)
        for name, seen in calls.items():
            await until_async(lambda seen=seen: "worked" in seen, name, 60)  # type: ignore[misc]
        assert set(tasks.restarts) == set(calls) == reasons(caplog)
        _, page = await page_of(port, "/metrics")
        assert all(f'slipway_task_restarts_total{{task="{name}"}} 1.0' in page for name in calls)
        await client.create(MODEL_DEPLOYMENTS, MANIFEST | {"metadata": {"name": "chat", "namespace": namespace}})

        async def reconciled() -> bool:
            return "conditions" in (await client.get(MODEL_DEPLOYMENTS, namespace, "chat")).get("status", {})

        await until_async(reconciled, "a reconcile", 60)
        assert not running.done()
        assert not tasks.trouble


async def test_the_sampler_is_at_work_again(
    api_server: Path, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fail(monkeypatch, MetricsSampler, "wanted", 1)
    async with process(api_server, namespace, tmp_path, monkeypatch) as (tasks, _, _):
        await until_async(lambda: "worked" in calls, "it samples", 60)
        assert tasks.restarts == ["sampler"]


@pytest.mark.parametrize("name", ["pools", "keys", "calls"])
async def test_where_that_does_not_help_the_process_says_so(
    name: str, api_server: Path, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, *LOOPS[name], 10**9)
    async with process(api_server, namespace, tmp_path, monkeypatch) as (tasks, running, _):
        kind = tasks.tasks[name]
        await until_async(lambda: tasks.trouble or tasks.missing, "it says so", 60)
        assert name in (tasks.missing if kind is OnFailure.SHOW else tasks.trouble)
        if kind is OnFailure.EXIT:
            assert await asyncio.wait_for(running, 60) == 1
