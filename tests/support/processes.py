"""Real operator and gateway processes against the API server of the test, and the hands of the missing controllers."""

import asyncio
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import aiohttp
import yaml

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.resources import ENDPOINT_SLICES, MODEL_DEPLOYMENTS, REPLICA_SETS

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


class Process:
    """A program of ours, with its log in a file."""

    def __init__(self, package, arguments, kubeconfig, log):
        self._command = [sys.executable, "-m", package, *arguments]
        paths = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "gateway"))
        self._environment = os.environ | {
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": paths,
            "POD_NAMESPACE": "",
            "POD_ID": "slipway-1",
        }
        self._log = log
        self.process = None

    async def start(self):
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, env=self._environment, stdout=log, stderr=log
            )

    async def kill(self):
        """As a node that loses power does."""
        self.process.kill()
        await self.process.wait()

    async def end(self):
        """As a kubelet does; the exit code and the seconds that it took."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(self.process.wait(), 30)
        return code, time.monotonic() - started

    async def stop(self):
        if self.process and self.process.returncode is None:
            await self.kill()

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

    def __init__(self, client: Client, namespace, kubeconfig, operator_kubeconfig, folder):
        self.client, self.namespace = client, namespace
        self.admin_port, self._gateway_port = free_port(), free_port()
        self.operator = Process(
            "slipway_operator",
            ["run", f"--namespaces={namespace}", f"--own-namespace={namespace}", f"--admin-port={self.admin_port}"],
            operator_kubeconfig,
            folder / "operator.log",
        )
        self.gateway = Process(
            "slipway_gateway",
            [
                f"--kubeconfig={kubeconfig}",
                f"--namespaces={namespace}",
                f"--port={free_port()}",
                f"--admin-port={self._gateway_port}",
            ],
            kubeconfig,
            folder / "gateway.log",
        )
        self._ready = True

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

    def pods_fail(self):
        self._ready = False

    async def chat(self):
        return await self.client.get(MODEL_DEPLOYMENTS, self.namespace, "chat")

    async def edit(self, spec):
        await self.client.patch(MODEL_DEPLOYMENTS, self.namespace, "chat", {"spec": spec})

    async def reaches(self, what, condition):
        """Wait until the status of chat fulfils a condition; the status then."""

        async def ask():
            assert self.operator.process.returncode is None, self.operator.log()
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
