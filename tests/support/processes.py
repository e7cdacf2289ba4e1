"""Real operator and gateway processes against the API server of the test, and the hands of the missing controllers."""

import asyncio
import contextlib
import functools
import importlib
import multiprocessing
import os
import re
import socket
import sys
import time
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import aiohttp
import pytest
import yaml

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.resources import ENDPOINT_SLICES, MODEL_DEPLOYMENTS, REPLICA_SETS
from tests.support.pods import has_pod

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
MERGE = "application/merge-patch+json"


async def until(question, what):
    """Ask until the answer is true; the deadline is there for failures alone."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := await question()):
        assert time.monotonic() < deadline, f"still not: {what}"
        await asyncio.sleep(0.05)
    return answer


def free_port():
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def own_address():
    """An address of this machine that an EndpointSlice may hold: the API server refuses loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))  # sends nothing
        return one.getsockname()[0]


PROGRAMS = ("slipway_operator", "slipway_gateway")
PATHS = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "gateway", "process", "."))


@functools.cache
def nursery():
    """Starts our programs at the price of a fork: of a process that has imported all that they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *(f"{program}.__main__" for program in PROGRAMS)])
    with mock.patch.dict(os.environ, PYTHONPATH=PATHS):
        forkserver.ensure_running()
    return context


def become(program, arguments, environment, log):
    """What `python -m PROGRAM` does."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *arguments]
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(importlib.import_module(f"{program}.__main__").main())


class Process:
    """A program of ours, with its log in a file."""

    def __init__(self, program, arguments, kubeconfig, log):
        environment = os.environ | {"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": "", "POD_ID": "slipway-1"}
        self._order = program, arguments, environment, log
        self._log = log
        self._process = None

    async def start(self):
        self._process = nursery().Process(target=become, args=self._order, daemon=True)
        await asyncio.to_thread(self._process.start)

    async def kill(self):
        """As a node that loses power does."""
        self._process.kill()
        await asyncio.to_thread(self._process.join)

    async def end(self):
        """As a kubelet does; the exit code and the seconds that it took."""
        started = time.monotonic()
        self._process.terminate()
        await asyncio.to_thread(self._process.join, 30)
        return self._process.exitcode, time.monotonic() - started

    async def stop(self):
        if self.runs():
            await self.kill()

    def runs(self):
        return self._process is not None and self._process.is_alive()

    def log(self):
        return self._log.read_text()


def operator_rules():
    """What docs/operator.md says that the operator must be allowed."""
    blocks = re.findall(r"```yaml\n(rules:.*?)```", (ROOT / "docs" / "operator.md").read_text(), re.DOTALL)
    return [rule for block in blocks for rule in yaml.safe_load(block)["rules"]]


async def limited_kubeconfig(client, namespace, admin, folder):
    """A service account that may do what docs/operator.md lists, and nothing else."""
    rbac, metadata = "/apis/rbac.authorization.k8s.io/v1", {"name": "operator", "namespace": namespace}
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    subject = {"kind": "ServiceAccount", **metadata}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    binding = {"metadata": metadata, "roleRef": role, "subjects": [subject]}
    await client._call("POST", account, [], {"metadata": metadata})
    await client._call(
        "POST", f"{rbac}/namespaces/{namespace}/roles", [], {"metadata": metadata, "rules": operator_rules()}
    )
    await client._call("POST", f"{rbac}/namespaces/{namespace}/rolebindings", [], binding)
    request = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    token = (await client._call("POST", f"{account}/operator/token", [], request))["status"]["token"]
    config = yaml.safe_load(admin.read_text())
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


class Cluster:
    """One namespace with an operator, a gateway and nobody who runs pods: `run_pods` does as if."""

    def __init__(self, client: Client, namespace, kubeconfig, operator_kubeconfig, folder, *, operator_flags=()):
        self.client, self.namespace = client, namespace
        self.admin_port, self._gateway_port, self.port = free_port(), free_port(), free_port()
        self.operator = Process(
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
        self.gateway = Process(
            "slipway_gateway",
            [
                f"--kubeconfig={kubeconfig}",
                f"--namespaces={namespace}",
                f"--own-namespace={namespace}",
                f"--port={self.port}",
                f"--admin-port={self._gateway_port}",
            ],
            kubeconfig,
            folder / "gateway.log",
        )
        self._ready = True

    @contextlib.asynccontextmanager
    async def running(self):
        """Operator and gateway are started, and pods come up; all of it ends with the block."""
        await self.announce_gateway()
        await asyncio.gather(self.operator.start(), self.gateway.start())
        pods = asyncio.create_task(self.run_pods())
        try:
            yield self
        finally:
            pods.cancel()
            await asyncio.gather(self.operator.stop(), self.gateway.stop())
            with contextlib.suppress(asyncio.CancelledError):
                await pods

    async def announce_gateway(self):
        """What the endpoint controller makes of the headless Service."""
        metadata = {
            "name": "slipway-gateway-admin-1",
            "namespace": self.namespace,
            "labels": {"kubernetes.io/service-name": "slipway-gateway-admin"},
        }
        endpoint = {"addresses": [own_address()], "conditions": {"ready": True}}
        ports = [{"name": "admin", "port": self._gateway_port}]
        await self.client.create(
            ENDPOINT_SLICES, {"metadata": metadata, "addressType": "IPv4", "endpoints": [endpoint], "ports": ports}
        )

    async def run_pods(self):
        """Report every ReplicaSet of the namespace as ready, for ever; while `pods_fail`, with no pod ready."""
        while True:
            try:
                for item in await self.client.list(REPLICA_SETS, self.namespace):
                    await self._report(item)
            except ApiError:  # deleted between list and patch
                pass
            await asyncio.sleep(0.05)

    async def _report(self, item):
        wanted = item["spec"].get("replicas", 1)
        ready = wanted if self._ready else 0
        status = {"replicas": wanted, "readyReplicas": ready, "fullyLabeledReplicas": wanted}
        if {key: item.get("status", {}).get(key, 0) for key in status} != status:
            path = REPLICA_SETS.path(self.namespace, item["metadata"]["name"], "status")
            await self.client._call("PATCH", path, [], {"status": status}, MERGE)
            if ready or not wanted:
                await has_pod(self.client, item, own_address())

    def pods_fail(self):
        self._ready = False

    async def chat(self):
        return await self.client.get(MODEL_DEPLOYMENTS, self.namespace, "chat")

    async def edit(self, spec):
        await self.client.patch(MODEL_DEPLOYMENTS, self.namespace, "chat", {"spec": spec})

    async def reaches(self, what, condition):
        """Wait until the status of chat fulfils a condition; the status then."""

        async def ask():
            assert self.operator.runs(), self.operator.log()
            status = (await self.chat()).get("status") or {}
            return status if condition(status) else None

        try:
            return await until(ask, what)
        except AssertionError:
            print(await self.chat(), self.operator.log(), self.gateway.log(), sep="\n")
            raise

    async def admin(self, path):
        """Status and text of an admin page of the operator; 0 when nobody answers."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.admin_port}{path}") as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""


@pytest.fixture
def operator_flags():
    """What `cluster` tells its operator beside the usual; a module that needs something says it here."""
    return ()


@pytest.fixture
async def cluster(client, namespace, api_server, tmp_path, operator_flags):
    """An operator with the rights that its documentation lists, and a gateway, in the namespace of the test."""
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    made = Cluster(client, namespace, api_server, limited, tmp_path, operator_flags=operator_flags)
    async with made.running():
        yield made
