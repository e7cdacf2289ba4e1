"""Renders what kind and the node read: cluster configuration, static CNI file, base spec of every container (pure)."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

import yaml

from devcluster.node import quiet

POD_SUBNET = "10.245.0.0/16"
SERVICE_SUBNET = "10.97.0.0/16"
GATEWAY_NODE_PORT = 30080
TORCH_SETS = "/opt/torch-sets"  # in the node: every installed set, and `current`, a link to the one in use
TORCH = "/opt/torch"  # in every container
LAYOUT = "/kind/layout"  # in the node: images that wait to be loaded
BASE_SPEC = "/etc/containerd/cri-slipway.json"
_CRI = 'plugins."io.containerd.grpc.v1.cri"'


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What differs from host to host."""

    name: str
    image: str
    gateway_port: int
    api_port: int  # of the API server; below the ephemeral range: the engine redirects it on this machine
    patches_folder: str
    layout_folder: str
    cni_folder: str | None  # with a folder for each node; None: the image brings kindnet
    torch_folder: str | None  # None: torch is a layer of the server image
    base_spec: str | None
    cgroup_v1: bool
    can_raise_limits: bool
    workers: int = 0  # nodes beside the control plane, which runs pods, too


def kind_config(node: NodeSettings) -> str:
    """kind's cluster configuration with the host's limits as patches, and none on an ordinary host."""
    networking: dict[str, Any] = {"podSubnet": POD_SUBNET, "serviceSubnet": SERVICE_SUBNET}
    networking["apiServerPort"] = node.api_port
    if node.cni_folder:
        networking["disableDefaultCNI"] = True
    config = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": node.name,
        "networking": networking,
        "nodes": [
            {
                "role": "control-plane",
                "image": node.image,
                "extraMounts": _mounts(node, 0),
                "extraPortMappings": [
                    {"containerPort": GATEWAY_NODE_PORT, "hostPort": node.gateway_port, "listenAddress": "127.0.0.1"}
                ],
            },
            *(
                {"role": "worker", "image": node.image, "extraMounts": _mounts(node, number)}
                for number in range(1, node.workers + 1)
            ),
        ],
        "containerdConfigPatches": _containerd_patches(node),
        "kubeadmConfigPatches": _kubeadm_patches(node),
    }
    return yaml.safe_dump(config, sort_keys=False)


def _mounts(node: NodeSettings, number: int) -> list[dict[str, Any]]:
    pairs = (
        (node.patches_folder, quiet.PATCHES),
        (node.layout_folder, LAYOUT),
        (f"{node.cni_folder}/{number}" if node.cni_folder else None, "/etc/cni/net.d"),
        (node.torch_folder, TORCH_SETS),
        (node.base_spec, BASE_SPEC),
    )
    return [{"hostPath": host, "containerPath": path, "readOnly": True} for host, path in pairs if host]


def _containerd_patches(node: NodeSettings) -> list[str]:
    lines = []
    if not node.can_raise_limits:
        # Without CAP_SYS_RESOURCE no score can be lowered, and every sandbox would fail for it.
        lines += [f"[{_CRI}]", "  restrict_oom_score_adj = true"]
    if node.base_spec:
        lines += [f"[{_CRI}.containerd.runtimes.runc]", f'  base_runtime_spec = "{BASE_SPEC}"']
    return ["\n".join(lines)] if lines else []


def _kubeadm_patches(node: NodeSettings) -> list[str]:
    kubelet: dict[str, Any] = {"kind": "KubeletConfiguration"}
    if node.cgroup_v1:
        kubelet["failCgroupV1"] = False
    init: dict[str, Any] = {"kind": "InitConfiguration", "patches": {"directory": quiet.PATCHES}}
    if node.workers:
        init["nodeRegistration"] = {"taints": []}  # kind leaves the taint of the control plane where there are workers
    return [yaml.safe_dump(one) for one in (quiet.cluster_configuration(), init, kubelet)]


def pod_subnet(number: int) -> str:
    """The addresses of the pods of one node; the control plane is node 0."""
    return f"10.245.{number}.0/24"


def cni_config(number: int = 0) -> str:
    """A bridge, addresses and host ports; routes to other nodes are set where there are any."""
    bridge = {
        "type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pod_subnet(number)}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }  # fmt: skip
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, portmap]}, indent=1)


def base_spec_with_torch(spec: str) -> str:
    """The node's own base spec of containers plus one read-only mount: pods see torch and their manifests do not."""
    document = copy.deepcopy(json.loads(spec))
    mount = {"destination": TORCH, "type": "bind", "source": f"{TORCH_SETS}/current", "options": ["rbind", "ro"]}
    document["mounts"] = [*document.get("mounts", []), mount]
    return json.dumps(document)
