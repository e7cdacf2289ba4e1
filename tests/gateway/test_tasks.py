"""Each long-lived task of the gateway's composition root ends by an unexpected exception, and is at work again."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.ports import reserve_port
from slipway_gateway import __main__ as program
from slipway_gateway.authentication.last_tenants import LastTenants
from slipway_gateway.experiments.exposures import Experiments
from slipway_gateway.grpc_api.listener import GrpcServer
from slipway_gateway.guards.checks import GuardChecks
from slipway_gateway.ledger.store import LedgerStore
from slipway_gateway.ledger.writer import Ledger
from slipway_gateway.mirror.probes import Probes
from slipway_gateway.routing.cluster import ClusterSource
from slipway_gateway.routing.last_table import LastTable
from slipway_gateway.routing.reflector import Reflector
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.sharing.redis_budgets import RedisBudgets
from slipway_gateway.sharing.redis_counters import RedisCounters
from slipway_gateway.upstream.adapter_reports import AdapterReports
from slipway_gateway.upstream.warmup import Warmup
from slipway_process import collector
from slipway_process.supervisor import OnFailure
from testkit.until import until_async
from tests.support.tasks import Started, fail, page_of, reasons

pytestmark = [pytest.mark.finding("F4"), pytest.mark.timeout(120)]

# By task: what its loop calls, and of which object; None: of any.
LOOPS: dict[str, tuple[Any, str, str | None]] = {
    "routes": (ClusterSource, "_publish_changes", None),
    "tenants": (Reflector, "run", "tenants"),
    "gateways": (Reflector, "run", "endpointslices"),
    "ledger": (Ledger, "flush", None),
    "limits": (RedisCounters, "_pause", None),
    "budgets": (RedisBudgets, "_sync", None),
    "collector": (collector, "_resident_bytes", None),
    "warm-up": (Warmup, "renew", None),
    "last-table": (LastTable, "_read", None),
    "last-tenants": (LastTenants, "_read", None),
    "probes": (Probes, "send_due", None),
    "grpc-connections": (GrpcServer, "run", None),
    "exposures": (Experiments, "run", None),
    "guards": (GuardChecks, "run", None),
    "adapters": (AdapterReports, "read_due", None),
}


@contextlib.asynccontextmanager
async def process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, port: int = 0, admin_port: int = 0
) -> AsyncIterator[tuple[Started, "asyncio.Task[int]"]]:
    """The gateway as `main` runs it; its API server and its Redis are away, which no task ends for."""
    away = f"127.0.0.1:{reserve_port()}"
    cluster = {"name": "a", "cluster": {"server": f"http://{away}"}}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": "a", "user": {"token": "t"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    settings = GatewaySettings(
        host="127.0.0.1",
        port=port,
        admin_host="127.0.0.1",
        admin_port=admin_port,
        grpc_port=reserve_port(),
        kubeconfig=str(folder / "kubeconfig"),
        state_dir=str(folder),
        gateway_service="gateways",
        redis_url=f"redis://{away}",
        auth_mode="required",
        drain_delay_s=0,
    )
    Started.replace(monkeypatch, program)
    store = LedgerStore(f"sqlite:///{folder}/ledger.db")
    running = asyncio.create_task(program.run(settings, store))
    try:
        await until_async(lambda: running.done() or (Started.made and Started.made[0].tasks))
        assert not running.done(), await running
        yield Started.made[0], running
    finally:
        if not running.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 60)


async def test_each_task_of_the_process_is_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with process(tmp_path, monkeypatch) as (tasks, _):
        assert set(tasks.tasks) - {"plane"} == set(LOOPS)  # its thread is ended in test_plane.py


@pytest.mark.parametrize("name", LOOPS)
async def test_a_task_that_ends_is_at_work_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ports = reserve_port(), reserve_port()
    owner, method, of = LOOPS[name]
    calls = fail(monkeypatch, owner, method, name=of)
    async with process(tmp_path, monkeypatch, *ports) as (tasks, running):
        await until_async(lambda: "worked" in calls, within_s=60)
        assert tasks.restarts == [name] and reasons(caplog) == {name}
        assert name in tasks.tasks
        assert not running.done()
        _, page = await page_of(ports[1], "/metrics")
        assert f'slipway_task_restarts_total{{task="{name}"}} 1.0' in page
        # Requests go on, to the refusal that they get while its API server is away.
        assert (await page_of(ports[0], "/v1/models"))[0] == 503


@pytest.mark.parametrize("name", ["routes", "ledger", "warm-up"])
async def test_where_that_does_not_help_the_process_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer of the ledger was dead, charges waited for ever, and /readyz was ok."""
    owner, method, of = LOOPS[name]
    fail(monkeypatch, owner, method, 10**9, name=of)
    async with process(tmp_path, monkeypatch) as (tasks, running):
        kind = tasks.tasks[name]
        await until_async(lambda: tasks.trouble or tasks.missing, within_s=60)
        assert name in (tasks.missing if kind is OnFailure.SHOW else tasks.trouble)
        if kind is OnFailure.EXIT:
            assert await asyncio.wait_for(running, 60) == 1
