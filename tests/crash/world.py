"""An API server with all that surrounds an operator: a gateway, pods as if, a proxy, and where operators come from."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from devcluster.ports import reserve_port
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS, REPLICA_SETS, Resource
from testkit import ROOT
from testkit.world.addresses import own_address
from testkit.world.forked import ForkedProgram
from testkit.world.pods import has_pod
from testkit.world.rights import operator_rules
from tests.crash.proxy import Proxy

Object = dict[str, Any]

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_MERGE = "application/merge-patch+json"
MAX_EVENT_BYTES = 32 << 20  # of one event of a watch


class Operator:
    """One operator process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None
        self.ended = asyncio.Event()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def kill(self) -> None:
        """As a node that loses power does."""
        self.send(signal.SIGKILL)
        await self.ended.wait()


class Nursery:
    """Operators for the price of a fork; see tests/crash/nursery.py."""

    async def __aenter__(self) -> "Nursery":
        paths = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "process", "contracts", "."))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.crash.nursery",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            cwd=ROOT, env=os.environ | {"PYTHONPATH": paths},
        )  # fmt: skip
        self._unborn: dict[int, asyncio.Future[Operator]] = {}
        self._living: dict[int, Operator] = {}
        self._ids = itertools.count()
        self._listens = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        await self._process.wait()
        await self._listens

    async def start(self, arguments: list[str], environment: dict[str, str], log: Path) -> Operator:
        """A new operator, from the point on where its program is imported."""
        assert self._process.stdin
        number = next(self._ids)
        born = self._unborn[number] = asyncio.get_running_loop().create_future()
        order = {"id": number, "arguments": arguments, "environment": environment, "log": str(log)}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return await born

    async def _listen(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            event = json.loads(line)
            if "started" in event:
                operator = self._living[event["started"]] = Operator(event["started"])
                awaited = self._unborn.pop(event["id"])
                if awaited.cancelled():  # it is not needed any more
                    operator.send(signal.SIGKILL)
                else:
                    awaited.set_result(operator)
            else:
                dead = self._living.pop(event["ended"])
                dead.code = event["code"]
                dead.ended.set()


class World:
    """What all histories share."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._kubeconfig, self.folder = kubeconfig, folder
        self.objects: dict[str, Object] = {}  # the ModelDeployment of each namespace, as it was last seen
        self.changed = asyncio.Condition()
        self.gateway_port = reserve_port()
        self._home = ""  # the gateway's own namespace; each operator has one of its own

    async def __aenter__(self) -> "World":
        self._stack = contextlib.AsyncExitStack()
        configuration = kubernetes_client.Configuration()
        loader: Any = kubernetes_config
        await loader.load_kube_config(config_file=str(self._kubeconfig), client_configuration=configuration)
        self.client = await self._stack.enter_async_context(Client(configuration))
        tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        self.proxy = await self._stack.enter_async_context(Proxy(configuration.host, tls))
        tls_admin = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        tls_admin.load_cert_chain(configuration.cert_file, configuration.key_file)
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                configuration.host,
                connector=aiohttp.TCPConnector(ssl=tls_admin),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        )
        self.nursery = await self._stack.enter_async_context(Nursery())
        self._token = await self._make_account()
        gateway = ForkedProgram(
            "slipway_gateway", self._gateway_arguments(), self._kubeconfig, self.folder / "gateway.log"
        )
        await gateway.start()
        self._stack.push_async_callback(gateway.stop)
        for task in (self._follow(REPLICA_SETS, self._report_ready), self._follow(MODEL_DEPLOYMENTS, self._remember)):
            self._stack.push_async_callback(_cancelled, asyncio.create_task(task))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def operator_kubeconfig(self, tap: str) -> Path:
        """How an operator connects: through the proxy, with the documented rights and no other."""
        config = yaml.safe_load(self._kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": f"{self.proxy.url}/{tap}"}
        config["users"][0]["user"] = {"token": self._token}
        path = self.folder / f"{tap}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    async def _make_account(self) -> str:
        made = await self.post("/api/v1/namespaces", {"metadata": {"generateName": "slipway-"}})
        home = self._home = made["metadata"]["name"]
        # What a gateway waits for. Its operators each own names elsewhere: no client sends requests here.
        owners = {"metadata": {"name": "slipway-model-names"}, "data": {"names.json": "{}"}}
        await self.post(f"/api/v1/namespaces/{home}/configmaps", owners)
        metadata = {"name": home}
        subject = {"kind": "ServiceAccount", "name": home, "namespace": home}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": home}
        account = f"/api/v1/namespaces/{home}/serviceaccounts"
        await self.post(account, {"metadata": metadata})
        await self.post(f"{_RBAC}/clusterroles", {"metadata": metadata, "rules": operator_rules()})
        binding = {"metadata": metadata, "roleRef": role, "subjects": [subject]}
        await self.post(f"{_RBAC}/clusterrolebindings", binding)
        request = {"spec": {"audiences": [], "expirationSeconds": 6 * 3600}}
        return str((await self.post(f"{account}/{home}/token", request))["status"]["token"])

    async def post(self, path: str, body: Object) -> Object:
        """Create something by path, as an administrator."""
        return await self.client.request("POST", path, [], body)

    def _gateway_arguments(self) -> list[str]:
        ports = [f"--port={reserve_port()}", f"--admin-port={self.gateway_port}"]
        return [f"--kubeconfig={self._kubeconfig}", f"--own-namespace={self._home}", *ports]

    async def _follow(self, resource: Resource, on_event: Callable[[Object], Awaitable[None]]) -> None:
        """List and watch, for ever."""
        while True:
            listed = await self.client.request("GET", resource.path())
            for item in listed["items"]:
                await on_event(item)
            version = listed["metadata"]["resourceVersion"]
            query = {"watch": "true", "resourceVersion": version}
            async with self._session.get(resource.path(), params=query) as stream:
                while line := await stream.content.readline(max_line_length=MAX_EVENT_BYTES):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    if event["type"] != "DELETED":
                        await on_event(event["object"])

    async def _report_ready(self, item: Object) -> None:
        """No controller manager runs here to create pods; report that all are there and ready."""
        wanted = item["spec"].get("replicas", 1)
        status = {"replicas": wanted, "readyReplicas": wanted, "fullyLabeledReplicas": wanted}
        if {key: item.get("status", {}).get(key, 0) for key in status} != status:
            path = REPLICA_SETS.path(item["metadata"]["namespace"], item["metadata"]["name"], "status")
            with contextlib.suppress(ApiError):  # deleted meanwhile
                await self.client.request("PATCH", path, [], {"status": status}, _MERGE)
            await has_pod(self.client, item, own_address())

    async def _remember(self, item: Object) -> None:
        self.objects[item["metadata"]["namespace"]] = item
        async with self.changed:
            self.changed.notify_all()


@contextlib.asynccontextmanager
async def at_most(seconds: float, what: str) -> AsyncIterator[None]:
    """An AssertionError that names what did not happen in time."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AssertionError(f"not within {time.monotonic() - started:.0f} s: {what}") from None


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
