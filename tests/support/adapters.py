"""Pods that report which adapters they have, gateways that follow every status, and passes over both subjects."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from slipway_contracts.adapters import ADAPTERS_PATH
from slipway_operator.adapters.runner import AdapterRunner
from slipway_operator.api.objects import ObjectKey
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.gateways import Answer
from slipway_operator.kube.reading.objects import ObjectReader
from slipway_operator.kube.reading.observe import Observer
from slipway_operator.kube.resources import CONFIG_MAPS, PODS, REPLICA_SETS
from slipway_operator.kube.subjects import read
from slipway_operator.kube.writing.pins import Pins
from slipway_operator.model.deployment import status
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.reconcile import Reconciler
from slipway_operator.telemetry.metrics import Metrics
from testkit.world.pods import owner_of, set_ready

DIGEST = "sha256:" + "0a" * 32


class ReportingPod:
    """A pod's loader, over HTTP: it holds what the file lists at once, but for versions in `broken`."""

    def __init__(self, read_file: Callable[[], Any]) -> None:
        self._read_file, self.broken, self.silent = read_file, dict[str, str](), False  # reasons by revision

    async def serve(self, address: str, port: int) -> web.AppRunner:
        app = web.Application()
        app.router.add_get(ADAPTERS_PATH, self._report)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, address, port).start()
        return runner

    async def _report(self, _: web.Request) -> web.Response:
        if self.silent:
            return web.Response(status=503)
        entries = (await self._read_file()).get("adapters", ())
        return web.json_response({"adapters": [self._state(entry) for entry in entries]})

    def _state(self, entry: Any) -> Any:
        about = {"name": entry["name"], "revision": entry["revision"]}
        if reason := self.broken.get(entry["revision"]):
            return about | {"state": "failed", "reason": reason}
        return about | {"state": "loaded", "digest": DIGEST}


class FollowingGateways:
    """Two gateways that route by whatever the statuses have."""

    def __init__(self, client: Client, keys: list[ObjectKey]) -> None:
        self._client, self._keys = client, keys

    async def answers(self) -> Sequence[Answer]:
        routes = {}
        for key in self._keys:
            try:
                obj = await read(self._client, key)
            except NotFound:
                continue
            if table := status.parse(obj.get("status")).traffic:
                revisions = {backend.revision: {"weight": backend.weight, "inflight": 0} for backend in table.backends}
                route = {"uid": obj["metadata"]["uid"], "generation": table.generation, "digest": table.digest}
                routes["/".join(key)] = msgspec.Raw(json.dumps(route | {"revisions": revisions}).encode())
        return [Answer(name, True, True, routes, incarnation=name) for name in ("a", "b")]


class AdapterWorld:
    """Passes of the operator over a ModelDeployment `chat` and ModelAdapters, with two pods of `chat`."""

    def __init__(self, client: Client, session: aiohttp.ClientSession, namespace: str, port: int) -> None:
        self.client, self.namespace, self.changed = client, namespace, list[ObjectKey]()
        self.cache, self.keys = ObjectCache((namespace,)), [(namespace, "chat")]
        self.adapters = AdapterRunner(client, self.cache, session, lambda: True, self.changed.append, port=port)
        gateways = FollowingGateways(client, self.keys)
        self.reconciler = Reconciler(
            client,
            ObjectReader(client, self.cache),
            Observer(client, gateways),
            (self.adapters, Pins(client)),
            PlanSettings("slipway-server:test", "http://gateway/v1"),
            Metrics("test"),
            lambda: datetime.now(UTC),
        )

    async def file(self) -> Any:
        """The file of `chat`, as its pods see it."""
        try:
            made = await self.client.get(CONFIG_MAPS, self.namespace, "slipway-adapters")
        except NotFound:
            return {}
        return json.loads(made["data"].get("chat.json", "{}"))

    async def step(self) -> None:
        """One pass over everything."""
        await self.cache.relist(self.client)
        await self.adapters.look()
        for key in self.keys:
            await self.reconciler(key, 0)

    async def until(self, name: str, holds: Callable[[Any], Any], passes: int = 60) -> Any:
        """Pass until a status of an object is as wanted."""
        now: Any = None
        for _ in range(passes):
            await self.step()
            now = (await read(self.client, (self.namespace, name))).get("status") or {}
            if holds(now):
                return now
        raise AssertionError(f"not within {passes} passes: {json.dumps(now, indent=1)}")

    async def play_pods(self, addresses: Sequence[str]) -> None:
        """A ready pod at each of these addresses, of the ReplicaSet of `chat` that wants pods."""
        [wanted] = [
            item
            for item in await self.client.list(REPLICA_SETS, self.namespace, "slipway.dev/modeldeployment=chat")
            if item["spec"]["replicas"] and not (item.get("status") or {}).get("readyReplicas")
        ]
        for number, address in enumerate(addresses):
            metadata = {
                "name": f"{wanted['metadata']['name']}-{number}",
                "namespace": self.namespace,
                "labels": wanted["metadata"]["labels"],
                "ownerReferences": [owner_of(wanted)],
            }
            spec = {"containers": [{"name": "server", "image": "none"}]}
            await self.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
            await set_ready(self.client, self.namespace, metadata["name"], address)
        count = len(addresses)
        counts = {"replicas": count, "readyReplicas": count, "availableReplicas": count, "fullyLabeledReplicas": count}
        path = REPLICA_SETS.path(self.namespace, wanted["metadata"]["name"], "status")
        await self.client.request("PATCH", path, [], {"status": counts}, "application/merge-patch+json")
