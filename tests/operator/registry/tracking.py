"""A tracking server that answers as MLflow's REST API does, and fails in ways that a real one does not on request."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from aiohttp import web

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import SECRETS, Resource
from slipway_operator.model.deployment.spec import parse
from slipway_operator.outbound.addresses import EgressPolicy
from slipway_operator.outbound.dialer import Dialer
from slipway_operator.registry.client import MlflowClient
from slipway_operator.registry.runner import AUTO, RegistryRunner

NOW = datetime(2026, 12, 1, tzinfo=UTC)
API = "/api/2.0/mlflow/"


@dataclass
class Tracking:
    """Registered models by name. `fault`: a response in place of the right one, by path."""

    aliases: dict[str, dict[str, str]] = field(default_factory=dict)  # version by alias, by model
    created: int = 1
    source: str = "runs:/r{version}/model"
    tags: dict[str, dict[str, str]] = field(default_factory=dict)  # by model/version
    fault: dict[str, Callable[[web.Request], Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    authorizations: set[str] = field(default_factory=set)
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix(API)
        self.calls.append(path)
        self.authorizations.add(request.headers.get("Authorization", ""))
        if path in self.fault:
            found = self.fault[path](request)
            return cast(web.StreamResponse, await found if asyncio.iscoroutine(found) else found)
        return await self._right(path, request)

    async def _right(self, path: str, request: web.Request) -> web.Response:
        name, version = request.query.get("name", ""), request.query.get("version", "")
        match path:
            case "registered-models/get" if name in self.aliases:
                aliases = [{"alias": alias, "version": number} for alias, number in self.aliases[name].items()]
                model = {"name": name, "creation_timestamp": self.created, "aliases": aliases, "description": "of all"}
                return web.json_response({"registered_model": model})
            case "model-versions/get" if name in self.aliases:
                return web.json_response({"model_version": self._version(name, version)})
            case "model-versions/get-download-uri":
                return web.json_response({"artifact_uri": self.source.format(version=version)})
            case "runs/get":
                return web.json_response({"run": _run(request.query["run_id"])})
            case "model-versions/set-tag":
                content = await request.json()
                key = f"{content['name']}/{content['version']}"
                self.tags.setdefault(key, {})[content["key"]] = content["value"]
                return web.json_response({})
        return web.json_response({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "<b>secret</b>"}, status=404)

    def _version(self, name: str, version: str) -> dict[str, Any]:
        tags = [{"key": key, "value": value} for key, value in self.tags.get(f"{name}/{version}", {}).items()]
        return {"name": name, "version": version, "run_id": f"r{version}", "status": "READY", "tags": tags}


def _run(run: str) -> dict[str, Any]:
    metrics = [{"key": "loss", "value": 0.25}, {"key": "odd", "value": "NaN"}, {"key": "\u202eacc", "value": 1}]
    return {
        "info": {"run_id": run, "user_id": "ann\n\x1b[31m", "artifact_uri": f"mlflow-artifacts:/1/{run}/artifacts"},
        "data": {"metrics": metrics},
        "inputs": {"dataset_inputs": [{"dataset": {"name": "wiki", "digest": "d1"}}]},
    }


@dataclass
class Api:
    """The API server as the runner reads and writes it."""

    secrets: dict[tuple[str, str], Any] = field(default_factory=dict)  # a Secret, or the error of reading it
    events: list[Object] = field(default_factory=list)
    posted: asyncio.Event = field(default_factory=asyncio.Event)

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        assert resource == SECRETS
        found = self.secrets.get((namespace, name), NotFound("no such Secret"))
        if isinstance(found, Exception):
            raise found
        return cast(Object, found)

    async def create(self, resource: Resource, obj: Object) -> Object:
        self.events.append(obj)
        self.posted.set()
        return obj


@dataclass
class Bench:
    """A runner at work. `woken` has the ModelDeployments that it wants to be reconciled."""

    tracking: Tracking
    api: Api
    runner: RegistryRunner
    woken: "asyncio.Queue[ObjectKey]"

    async def next(self) -> ObjectKey:
        async with asyncio.timeout(20):
            return await self.woken.get()

    def due(self) -> None:
        """All looks and writes are due now: in place of the time that passes between them."""
        for lookup in self.runner._lookups.values():
            lookup.due_at = 0.0
        for written in self.runner._verdicts.values():
            written.due_at = 0.0
        self.runner._news.set()


@asynccontextmanager
async def bench(
    tracking: Tracking, api: Api | None = None, *, policy: EgressPolicy | None = None, writes: str = AUTO
) -> AsyncIterator[Bench]:
    """A runner with this tracking server. `policy`: which addresses it may call; without one this machine too."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", tracking.answer)
    site_runner = web.AppRunner(app, shutdown_timeout=0.1)
    await site_runner.setup()
    site = web.TCPSite(site_runner, "127.0.0.1", 0)
    await site.start()
    tracking.url = f"http://127.0.0.1:{site_runner.addresses[0][1]}"
    api, woken = api or Api(), asyncio.Queue[ObjectKey]()
    client = MlflowClient(Dialer(policy or EgressPolicy(loopback=True), "look-ups of models"), tracking.url)
    runner = RegistryRunner(
        cast(Client, api), client, woken.put_nowait, lambda: True, lambda: NOW, poll_s=3600.0, writes=writes
    )
    task = asyncio.create_task(runner.run())
    try:
        yield Bench(tracking, api, runner, woken)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.close()
        await site_runner.cleanup()


def deployment(
    name: str, uri: str, secret: str = "", namespace: str = "ns", status: dict[str, Any] | None = None
) -> ReconciledDeployment:
    """A ModelDeployment with this URI."""
    model = {"uri": uri} | ({"secretRef": {"name": secret}} if secret else {})
    metadata = {"name": name, "namespace": namespace, "uid": name}
    obj = {"metadata": metadata, "spec": {"model": model}, "status": status or {}}
    return ReconciledDeployment((namespace, name), obj, parse(obj))
