"""Brings the kind cluster up and takes it away; remembers on disk what it is about to do before it does it."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from rich.console import Console

from devcluster import pins
from devcluster.engine.choice import Facts
from devcluster.engine.engine import ENGINE_PROGRAMS, Engine, find, missing_packages
from devcluster.engine.facts import cgroup_v1
from devcluster.errors import DevclusterError
from devcluster.gobuild import drop_build_caches, has_build_caches
from devcluster.images import nodeimage
from devcluster.images.pullable import can_pull
from devcluster.keys import key_of
from devcluster.node import host, quiet
from devcluster.node.config import GATEWAY_NODE_PORT as GATEWAY_NODE_PORT
from devcluster.node.config import NodeSettings, base_spec_with_torch, cni_config, kind_config, pod_subnet
from devcluster.node.network import own_networks
from devcluster.places import PACKAGE, Places, demand_space, exclusive, write_whole
from devcluster.ports import LOOPBACK, free_port_near, is_free, reserve_port
from devcluster.processes import run, succeeds
from devcluster.steps.progress import print_line, run_steps
from devcluster.steps.schedule import Step
from devcluster.tools import tool, tool_steps

GATEWAY_PORT = 18080
NODE_READY = "wait for the node and its DNS"
_GIGABYTES_TO_BUILD = 10
_READY_WITHIN_S = 240.0


@dataclass(frozen=True, slots=True)
class Record:
    """What is written down about a cluster: enough to use it and to take it away."""

    engine: str
    node_image: str
    gateway_port: int
    mounts_torch: bool
    settings_key: str
    had_network: bool
    workers: int = 0


def read_record(places: Places) -> Record | None:
    """The record of the running (or half-made) cluster, if any."""
    path = places.state / "cluster.json"
    return Record(**json.loads(path.read_text())) if path.exists() else None


def is_healthy(places: Places, workers: int = 0) -> bool:
    """Whether our cluster is there with enough nodes, complete, made by this version of devcluster, and answers."""
    record = read_record(places)
    if (
        record is None
        or record.workers < workers
        or record.settings_key != _settings_key()
        or not places.kubeconfig.exists()
    ):
        return False
    return (places.state / "complete").exists() and answers(places)


def answers(places: Places) -> bool:
    """Whether the API server of our kubeconfig is ready; without kubectl: that is ten times slower."""
    server = yaml.safe_load(places.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = base64.b64decode(server["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    try:
        with urllib.request.urlopen(f"{server['server']}/readyz", context=context, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


Beside = Callable[[Places, Engine, Record], list[Step]]


def up(
    places: Places,
    console: Console,
    *,
    port: int | None,
    torch_mount: bool,
    beside: Beside | None = None,
    workers: int = 0,
) -> Record:
    """A running cluster: at once when there is one, else from whatever exists already.

    `beside` gives more steps, in lanes of their own, for a cluster that has to be brought up first.
    """
    record = read_record(places)
    if record and is_healthy(places, workers):
        return record
    with exclusive(places):
        record = read_record(places)
        if record and is_healthy(places, workers):  # the other one may have brought it up meanwhile
            return record
        return _up_locked(places, console, port, torch_mount, beside, workers)


def down(places: Places, console: Console) -> bool:
    """Takes the cluster away with everything it changed; False when there was nothing."""
    if not places.state.exists() and not host.memory(places).exists():
        return False
    host.stop_strays(places.cluster)
    with exclusive(places):
        engine, _ = find(places)
        print_line(console, f"taking the cluster {places.cluster} away ...")
        _take_away(places, engine)
    return True


def _up_locked(
    places: Places, console: Console, port: int | None, torch_mount: bool, beside: Beside | None, workers: int
) -> Record:
    engine, facts = find(places)
    if read_record(places):
        print_line(
            console, f"the cluster {places.cluster} does not answer, is of an older make or lacks nodes: starting again"
        )
        _take_away(places, engine)
    # Before anything changes: `down` must know what to take back, whenever this run is killed.
    host.remember(places)
    _refuse_foreign(places, engine)
    pulled = can_pull(places, engine)
    record = Record(
        engine=engine.name,
        node_image=pins.KIND_NODE_IMAGE if pulled else nodeimage.reference(places),
        gateway_port=_gateway_port(port),
        mounts_torch=torch_mount,
        settings_key=_settings_key(),
        had_network=engine.has_network(engine.network),
        workers=workers,
    )
    write_whole(places.state / "cluster.json", json.dumps(asdict(record), indent=1))
    steps = [*_image_steps(places, engine, facts, pulled=pulled), *_cluster_steps(places, engine, facts, record)]
    run_steps([*steps, *(beside(places, engine, record) if beside else ())], console)
    return record


def _gateway_port(wanted: int | None) -> int:
    if wanted and not is_free(wanted, LOOPBACK):
        raise DevclusterError(f"--port {wanted}: a program or a firewall rule has this port of {LOOPBACK} already.")
    return wanted or free_port_near(GATEWAY_PORT)


def _image_steps(places: Places, engine: Engine, facts: Facts, *, pulled: bool) -> list[Step]:
    if pulled:
        return [
            *tool_steps(places),
            Step(nodeimage.NODE_IMAGE, lambda: engine.has_image(pins.KIND_NODE_IMAGE),
                 lambda: engine.run("pull", pins.KIND_NODE_IMAGE),
                 f"pulls {pins.KIND_NODE_IMAGE.split('@')[0]}, about 400 MB", lane=nodeimage.LANE),
            Step("remove build caches", lambda: not has_build_caches(places), lambda: drop_build_caches(places),
                 lane="removal", after=("compile kube", "compile helm")),
        ]  # fmt: skip
    packages = missing_packages(ENGINE_PROGRAMS)
    if packages and not (facts.apt_get and facts.root):
        raise DevclusterError(
            "No registry answers, so the node image is built here, and that needs: " + ", ".join(packages) + ". "
            f"Install them (`sudo apt-get install {' '.join(packages)}`) and try again."
        )
    made = nodeimage.steps(places, engine)
    if made:
        demand_space(places.cache, _GIGABYTES_TO_BUILD, "Building the node image")
    return made or tool_steps(places)


def _cluster_steps(places: Places, engine: Engine, facts: Facts, record: Record) -> list[Step]:
    def always() -> bool:
        return False

    return [
        Step("prepare the host", always, lambda: _prepare(places, engine, facts, record), lane=nodeimage.LANE,
             after=nodeimage.COMPILED),
        Step("start the node", always, lambda: _create(places, engine, record), "kind create cluster",
             lane=nodeimage.LANE),
        Step(NODE_READY, always, lambda: _wait_until_ready(places), lane=nodeimage.LANE),
    ]  # fmt: skip


def _prepare(places: Places, engine: Engine, facts: Facts, record: Record) -> None:
    host.prepare()
    built = not record.node_image.startswith("kindest/")
    torch = places.cache / "torch"
    if record.mounts_torch:
        prepare_torch_folder(torch)
        base = engine.run("run", "--rm", "--net=none", "--entrypoint", "cat", record.node_image,
                          "/etc/containerd/cri-base.json")  # fmt: skip
        write_whole(places.state / "base-spec.json", base_spec_with_torch(base))
    if built:
        for number in range(record.workers + 1):
            write_whole(places.state / "cni" / str(number) / "10-bridge.conflist", cni_config(number))
    places.layout.mkdir(parents=True, exist_ok=True)
    for name, patch in quiet.patches().items():
        write_whole(places.state / "patches" / name, patch)
    settings = NodeSettings(
        name=places.cluster,
        image=record.node_image,
        gateway_port=record.gateway_port,
        api_port=reserve_port(),
        patches_folder=str(places.state / "patches"),
        layout_folder=str(places.layout),
        cni_folder=str(places.state / "cni") if built else None,
        torch_folder=str(torch) if record.mounts_torch else None,
        base_spec=str(places.state / "base-spec.json") if record.mounts_torch else None,
        cgroup_v1=cgroup_v1(),
        can_raise_limits=facts.can_raise_limits,
        workers=record.workers,
    )
    write_whole(places.state / "kind.yaml", kind_config(settings))


def prepare_torch_folder(folder: Path) -> None:
    """The mount must exist before torch does: `current` leads to an empty folder until a set is installed."""
    (folder / "empty").mkdir(parents=True, exist_ok=True)
    if not (folder / "current").is_symlink():
        (folder / "current").symlink_to("empty")


def _create(places: Places, engine: Engine, record: Record) -> None:
    run(
        [tool(places, "kind"), "create", "cluster", "--config", places.state / "kind.yaml",
         "--kubeconfig", places.kubeconfig],
        env=engine.env,
    )  # fmt: skip
    if not record.node_image.startswith("kindest/"):
        _route_between_nodes(engine, engine.containers(places.cluster))


def _route_between_nodes(engine: Engine, nodes: list[str]) -> None:
    """Give each node a route to the pods of every other one: the static network plug-in sets none."""
    addresses = {name: _ipv4(engine.run("exec", name, "hostname", "-i")) for name in nodes}
    for name in nodes:
        for number, other in enumerate(nodes):
            if other != name:
                engine.run("exec", name, "ip", "route", "replace", pod_subnet(number), "via", addresses[other])


def _ipv4(addresses: str) -> str:
    return next(address for address in addresses.split() if "." in address)


def _wait_until_ready(places: Places) -> None:
    kubectl: list[str | Path] = [tool(places, "kubectl"), "--kubeconfig", places.kubeconfig]
    within = f"--timeout={_READY_WITHIN_S:.0f}s"
    run([*kubectl, "wait", "--for=condition=Ready", "node", "--all", within])
    run([*kubectl, "-n", "kube-system", "rollout", "status", "deployment/coredns", within])
    # New pods are refused until the controller has made this account.
    _eventually(lambda: succeeds([*kubectl, "get", "serviceaccount", "default"]), 60)
    write_whole(places.state / "complete", "")


def _eventually(condition: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise DevclusterError("The cluster runs, but its default service account does not appear.")
        time.sleep(0.5)


def _take_away(places: Places, engine: Engine) -> None:
    record = read_record(places)
    networks = own_networks(places) if engine.own_store else []
    if record:  # without it a cluster of this name is not ours
        _delete_node(places, engine)
    build = f"slipway-node-build-{places.cluster}"
    if engine.succeeds("container", "inspect", build):
        engine.run("rm", "-f", build)
    last = not _other_clusters(places)
    if last and record and not record.had_network:
        # A foreign kind cluster may use it by now; then the engine refuses, rightly.
        engine.succeeds("network", "rm", engine.network)
    if engine.own_store:
        engine.succeeds("volume", "prune", "-f")
        for name in engine.run("network", "ls", "--format", "{{.Name}}").split() if last else ():
            engine.succeeds("network", "rm", name)  # refuses the default one
        succeeds(["buildah", "rm", "--all"], env=engine.env)  # what a killed image build was working in
    shutil.rmtree(places.state, ignore_errors=True)
    if last:
        host.restore(places, networks)
        host.remove_if_empty(places.state_root)


def _delete_node(places: Places, engine: Engine) -> None:
    kind = tool(places, "kind", must_exist=False)
    if kind.exists():
        delete: list[str | Path] = [kind, "delete", "cluster", "--name", places.cluster]
        succeeds([*delete, "--kubeconfig", places.kubeconfig], env=engine.env)
    for name in engine.containers(places.cluster):
        engine.run("rm", "-f", "-v", name)


def _other_clusters(places: Places) -> list[Path]:
    return [path for path in places.state_root.glob("*/cluster.json") if path.parent != places.state]


def _refuse_foreign(places: Places, engine: Engine) -> None:
    found = engine.containers(places.cluster)
    if found:
        raise DevclusterError(
            f"There is a kind cluster called {places.cluster} that devcluster did not make ({', '.join(found)}). "
            "It is left alone: set SLIPWAY_CLUSTER to another name and try again."
        )


def _settings_key() -> str:
    """Changes when a cluster made by the code of today would be another one."""
    code = [(PACKAGE / "node" / name).read_bytes() for name in ("config.py", "quiet.py")]
    return key_of([pins.KUBERNETES, *code])
