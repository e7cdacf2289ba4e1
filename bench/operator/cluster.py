"""An API server with the CRDs and, where pods are wanted, a gateway, the controllers of pods and kwok's nodes."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import yaml

from bench.operator import fleet
from bench.operator.analyses import adds_requests
from bench.operator.programs import Program
from devcluster.controlplane import ControlPlane
from devcluster.places import Places, places
from devcluster.ports import reserve_port
from slipway_operator.kube import auth
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS, Resource
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.pods import announce_gateway
from testkit.world.rights import operator_rules

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("kube-controller-manager", "kube-scheduler", "kwok")
CRDS = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
SPACES = Resource("v1", "Namespace", "namespaces")
NODES = Resource("v1", "Node", "nodes")
ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
ROLES = Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles")
BINDINGS = Resource("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings")
STAGES = Path(__file__).with_name("stages.yaml")
AT_ONCE = 12  # calls of ours
READY_S = 60.0
TOKEN_S = 6 * 3600
# API server and controllers share the cores with the operator here, and have memory: less time for their garbage.
GOGC = "400"


class Cluster:
    """One control plane, for one measurement."""

    def __init__(self, control_plane: ControlPlane, client: Client, folder: Path) -> None:
        self.control_plane, self.client, self.folder = control_plane, client, folder
        self.programs: list[Program] = []
        self.all_rights = Path()  # kubeconfig of the controllers and the gateway

    async def start(self, program: Program) -> Program:
        await program.start()
        self.programs.append(program)
        return program

    async def operator(self) -> Program:
        """The operator with the rights that it documents, not started yet."""
        role = {"apiVersion": ROLES.api_version, "kind": ROLES.kind, "metadata": {"name": "operator"}}
        await self.client.apply(ROLES, {**role, "rules": operator_rules()})
        kubeconfig = await self._account("operator", "operator")
        admin = reserve_port()
        arguments = [f"--own-namespace={fleet.HOME}", f"--admin-port={admin}", "--log-level=warning"]
        program = self._ours("slipway_operator", ["run", *arguments], kubeconfig)
        program.admin_url = f"http://127.0.0.1:{admin}"
        return program

    async def start_gateway(self) -> str:
        """One gateway: the URL of its admin port."""
        port, admin = reserve_port(), reserve_port()
        arguments = [f"--kubeconfig={self.all_rights}", f"--port={port}", f"--admin-port={admin}"]
        arguments.append(f"--own-namespace={fleet.HOME}")
        await self.start(self._ours("slipway_gateway", arguments, self.all_rights))
        return f"http://{own_address()}:{admin}"

    async def start_pods(self, where: Places) -> None:
        """The real controllers of ReplicaSets and of placement, and kwok's nodes."""
        for number in range(fleet.NODES):
            await self.client.apply(NODES, fleet.node(number))
            # What the API server taints new nodes with, the controller of nodes would take away.
            untainted = {"spec": {"taints": None}}
            await self.client.request(
                "PATCH", NODES.path(None, f"node-{number}"), [], untainted, "application/merge-patch+json"
            )
        kubeconfig = f"--kubeconfig={self.all_rights}"
        shared = ["--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=2000"]
        for name, arguments in {
            "kube-controller-manager": [
                kubeconfig, *shared, "--controllers=replicaset-controller", "--concurrent-replicaset-syncs=10",
                f"--secure-port={reserve_port()}", f"--cert-dir={self.folder}",
            ],
            "kube-scheduler": [
                kubeconfig, *shared, f"--secure-port={reserve_port()}", f"--cert-dir={self.folder}",
                f"--authentication-kubeconfig={self.all_rights}", f"--authorization-kubeconfig={self.all_rights}",
            ],
            "kwok": [
                kubeconfig, f"--config={STAGES}", "--manage-all-nodes=true", "--node-lease-duration-seconds=0",
                "--server-address=",
            ],
        }.items():  # fmt: skip
            await self.start(Program(name, [str(where.binary(name)), *arguments], self.folder / f"{name}.log"))
        await until_async(self._nodes_are_ready, "kwok's nodes are ready", holds=lambda ready: ready)

    async def _nodes_are_ready(self) -> bool:
        for program in self.programs:
            program.check()
        nodes = await self.client.list(NODES, None)
        return len(nodes) == fleet.NODES and all(_is_ready(node) for node in nodes)

    async def make_accounts(self) -> None:
        self.all_rights = await self._account("controllers", "cluster-admin")

    async def _account(self, name: str, role: str) -> Path:
        """A kubeconfig with a token, as pods have: a certificate would be verified again with each call."""
        metadata = {"name": name, "namespace": fleet.HOME}
        group = BINDINGS.api_version.partition("/")[0]
        binding = {
            "apiVersion": BINDINGS.api_version,
            "kind": BINDINGS.kind,
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": ROLES.kind, "name": role},
            "subjects": [{"kind": ACCOUNTS.kind, **metadata}],
        }
        await self.client.apply(ACCOUNTS, {"apiVersion": "v1", "kind": ACCOUNTS.kind, "metadata": metadata})
        await self.client.apply(BINDINGS, binding)
        request = {"spec": {"audiences": [], "expirationSeconds": TOKEN_S}}
        path = ACCOUNTS.path(fleet.HOME, name, "token")
        token = (await self.client.request("POST", path, [], request))["status"]["token"]
        config = yaml.safe_load(self.control_plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        kubeconfig = self.folder / f"{name}.kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        return kubeconfig

    def _ours(self, package: str, arguments: list[str], kubeconfig: Path) -> Program:
        paths = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "gateway"))
        environment = {
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": paths,
            "POD_NAMESPACE": "",
            "POD_ID": "slipway-1",
        }
        return Program(
            package, [sys.executable, "-m", package, *arguments], self.folder / f"{package}.log", environment
        )


@contextlib.asynccontextmanager
async def cluster(folder: Path, *, pods: bool) -> AsyncIterator[Cluster]:
    """Everything that surrounds the operator, and nothing of it afterwards.

    Raises:
        DevclusterError: when a program that is needed is not built.
    """
    where = places()
    os.environ["GOGC"] = GOGC
    with ControlPlane(where) as control_plane:
        os.environ["KUBECONFIG"] = str(control_plane.kubeconfig)
        async with Client(await auth.load(str(control_plane.kubeconfig)), timeout_s=60.0) as client:
            made = Cluster(control_plane, client, folder)
            try:
                await _install(client)
                await made.make_accounts()
                if not pods:
                    yield made
                    return
                await made.start_pods(where)
                async with adds_requests(await made.start_gateway()) as port:
                    # As the endpoint controller announces it: rollouts wait for what the gateway reports.
                    await announce_gateway(client, fleet.HOME, port)
                    yield made
            finally:
                await asyncio.gather(*(program.stop() for program in made.programs))


async def _install(client: Client) -> None:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        await client.apply(CRDS, yaml.safe_load(path.read_text()))
    for name in fleet.namespaces():
        await client.apply(SPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    async def served() -> bool:
        try:
            await client.keys(MODEL_DEPLOYMENTS, None)
        except ApiError:
            return False
        return True

    await until_async(served, "the CRD is served", holds=lambda found: found)


async def each(keys: Iterable[fleet.Key], act: Callable[[fleet.Key], Awaitable[object]]) -> None:
    """Do something for each key, some at a time."""
    waiting = iter(list(keys))

    async def one_by_one() -> None:
        for key in waiting:
            await act(key)

    await asyncio.gather(*(one_by_one() for _ in range(AT_ONCE)))


def _is_ready(node: fleet.Json) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)
