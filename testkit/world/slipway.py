"""An operator and a gateway against the API server of the test, and the hands of the missing controllers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp

from devcluster.ports import reserve_port
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, NotFound
from slipway_operator.kube.resources import ANALYSIS_RUNS, MODEL_DEPLOYMENTS, REPLICA_SETS
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.forked import ForkedProgram
from testkit.world.pods import MERGE, announce_gateway, has_pod

Object = dict[str, Any]


class Cluster:
    """One namespace with an operator, a gateway and no kubelet: `run_pods` writes the status of pods."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        kubeconfig: Path,
        operator_kubeconfig: Path,
        folder: Path,
        *,
        operator_flags: Sequence[str] = (),
        # Tenants belong to no namespace: with those of other tests at this API server, requests would need keys.
        gateway_flags: Sequence[str] = ("--auth-mode=off",),
    ) -> None:
        self.client, self.namespace = client, namespace
        self.admin_port, self.gateway_admin_port, self.port = (reserve_port() for _ in range(3))
        self.operator = ForkedProgram(
            "slipway_operator",
            [
                "run",
                f"--namespaces={namespace}",
                f"--own-namespace={namespace}",
                f"--admin-port={self.admin_port}",
                *operator_flags,
            ],
            operator_kubeconfig,
            folder / "operator.log",
        )
        self.gateway = ForkedProgram(
            "slipway_gateway",
            [
                f"--kubeconfig={kubeconfig}",
                f"--namespaces={namespace}",
                f"--own-namespace={namespace}",
                f"--port={self.port}",
                f"--admin-port={self.gateway_admin_port}",
                *gateway_flags,
            ],
            kubeconfig,
            folder / "gateway.log",
        )
        self._pods_are_ready = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Operator and gateway are started, and pods come up; all of it ends with the block."""
        await announce_gateway(self.client, self.namespace, self.gateway_admin_port)
        await asyncio.gather(self.operator.start(), self.gateway.start())
        pods = asyncio.create_task(self.run_pods())
        try:
            yield self
        finally:
            pods.cancel()
            await asyncio.gather(self.operator.stop(), self.gateway.stop())
            with contextlib.suppress(asyncio.CancelledError):
                await pods

    async def run_pods(self) -> None:
        """Report every ReplicaSet of the namespace as ready, for ever; while `pods_fail`, with no pod ready."""
        while True:
            try:
                for item in await self.client.list(REPLICA_SETS, self.namespace):
                    await self._report(item)
            except ApiError:  # deleted between list and patch
                pass
            await asyncio.sleep(0.05)

    async def _report(self, item: Object) -> None:
        wanted = item["spec"].get("replicas", 1)
        ready = wanted if self._pods_are_ready else 0
        status = {"replicas": wanted, "readyReplicas": ready, "fullyLabeledReplicas": wanted}
        if {key: item.get("status", {}).get(key, 0) for key in status} != status:
            path = REPLICA_SETS.path(self.namespace, item["metadata"]["name"], "status")
            await self.client.request("PATCH", path, [], {"status": status}, MERGE)
            if ready or not wanted:
                await has_pod(self.client, item, own_address())

    def pods_fail(self) -> None:
        self._pods_are_ready = False

    async def chat(self) -> Object:
        return await self.client.get(MODEL_DEPLOYMENTS, self.namespace, "chat")

    async def edit(self, spec: Object) -> None:
        await self.client.patch(MODEL_DEPLOYMENTS, self.namespace, "chat", {"spec": spec})

    async def reaches(self, what: str, condition: Callable[[Object], object]) -> Object:
        """Wait until the status of chat fulfils a condition; the status then."""

        async def status() -> Object:
            assert self.operator.runs(), self.operator.log()
            return await self.with_runs((await self.chat()).get("status") or {})

        def shown(seen: Object) -> str:
            return f"{seen}\n{self.operator.log()}\n{self.gateway.log()}"

        return await until_async(status, what, holds=lambda seen: seen and condition(seen), shown=shown)

    async def with_runs(self, status: Object) -> Object:
        """The status, with what the AnalysisRuns that it names have in their place."""
        rollout = dict(status.get("rollout") or {})
        for field in ("analysis", "background"):
            if name := (rollout.get(field) or {}).get("run"):
                with contextlib.suppress(NotFound):
                    run = await self.client.get(ANALYSIS_RUNS, self.namespace, name)
                    rollout[field] = {**rollout[field], **run["status"]}
        return {**status, "rollout": rollout} if rollout else status

    async def admin(self, path: str) -> tuple[int, str]:
        """Status and text of an admin page of the operator; 0 without a response."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.admin_port}{path}") as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""
