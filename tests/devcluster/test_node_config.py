"""What kind and the node are given to read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import yaml

from devcluster.node.config import (
    BASE_SPEC,
    LAYOUT,
    NodeSettings,
    base_spec_with_torch,
    cni_config,
    kind_config,
    pod_subnet,
)
from devcluster.node.quiet import PATCHES, patches

STOCK = NodeSettings(
    name="slipway", image="kindest/node:v1", gateway_port=18080, api_port=20123, patches_folder="/s/patches",
    layout_folder="/c/layout", cni_folder=None, torch_folder=None, base_spec=None, cgroup_v1=False,
    can_raise_limits=True,
)  # fmt: skip


def rendered(node: NodeSettings) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(kind_config(node))
    return document


def patched(node: NodeSettings) -> dict[str, Any]:
    """Kind → the patch of kubeadm's document of this kind."""
    documents = [yaml.safe_load(text) for text in rendered(node)["kubeadmConfigPatches"]]
    return {document["kind"]: document for document in documents}


def test_an_ordinary_host_gets_what_every_node_gets() -> None:
    config = rendered(STOCK)
    assert config["containerdConfigPatches"] == []
    assert patched(STOCK)["KubeletConfiguration"] == {"kind": "KubeletConfiguration"}
    assert "disableDefaultCNI" not in config["networking"]
    assert {mount["containerPath"] for mount in config["nodes"][0]["extraMounts"]} == {PATCHES, LAYOUT}


def test_leader_election_is_off_for_single_replicas() -> None:
    cluster = patched(STOCK)["ClusterConfiguration"]
    for part in ("controllerManager", "scheduler"):
        assert {"name": "leader-elect", "value": "false"} in cluster[part]["extraArgs"]
    # Lists of a patch replace kind's own: its own items have to be repeated.
    assert {"name": "enable-hostpath-provisioner", "value": "true"} in cluster["controllerManager"]["extraArgs"]


def test_kubeadm_finds_the_patches_where_they_are_mounted() -> None:
    assert patched(STOCK)["InitConfiguration"]["patches"] == {"directory": PATCHES}
    targets = {"kube-apiserver", "etcd", "kube-scheduler", "corednsdeployment"}
    assert set(patches()) == {f"{name}.yaml" for name in targets}
    for name in targets - {"corednsdeployment"}:
        [container] = yaml.safe_load(patches()[f"{name}.yaml"])["spec"]["containers"]
        # A patch finds its container by this name, and would add one for any other.
        assert container["name"] == name and container["readinessProbe"]["periodSeconds"] > 1


def test_the_gateway_port_is_on_loopback_only() -> None:
    mapping = rendered(replace(STOCK, gateway_port=18099))["nodes"][0]["extraPortMappings"]
    assert mapping == [{"containerPort": 30080, "hostPort": 18099, "listenAddress": "127.0.0.1"}]


def test_the_port_of_the_api_server_is_ours_to_choose() -> None:
    """kind's own choice is an ephemeral port, which other programs get while the engine redirects it."""
    assert rendered(STOCK)["networking"]["apiServerPort"] == 20123


def test_a_small_host_gets_its_limits_as_patches() -> None:
    config = rendered(replace(STOCK, cgroup_v1=True, can_raise_limits=False))
    assert "restrict_oom_score_adj = true" in config["containerdConfigPatches"][0]
    limited = patched(replace(STOCK, cgroup_v1=True))["KubeletConfiguration"]
    assert limited == {"kind": "KubeletConfiguration", "failCgroupV1": False}


def test_a_built_image_gets_the_static_network_and_mounts() -> None:
    config = rendered(replace(STOCK, cni_folder="/s/cni", torch_folder="/c/torch", base_spec="/s/base.json"))
    assert config["networking"]["disableDefaultCNI"] is True
    mounts = {mount["containerPath"]: mount for mount in config["nodes"][0]["extraMounts"]}
    assert set(mounts) == {"/etc/cni/net.d", "/opt/torch-sets", BASE_SPEC, PATCHES, LAYOUT}
    assert all(mount["readOnly"] for mount in mounts.values())
    assert BASE_SPEC in config["containerdConfigPatches"][0]


def test_pods_lie_inside_the_pod_subnet() -> None:
    bridge = json.loads(cni_config())["plugins"][0]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.245.0.0/24"}]]


def test_torch_is_added_to_the_base_spec_and_nothing_else_changes() -> None:
    before = {"process": {"cwd": "/"}, "mounts": [{"destination": "/proc"}]}
    after = json.loads(base_spec_with_torch(json.dumps(before)))
    assert after["process"] == before["process"] and after["mounts"][:1] == before["mounts"]
    assert after["mounts"][1]["destination"] == "/opt/torch" and "ro" in after["mounts"][1]["options"]


def test_workers_run_pods_beside_the_control_plane() -> None:
    node = replace(STOCK, cni_folder="/s/cni", workers=2)
    config = rendered(node)
    assert [one["role"] for one in config["nodes"]] == ["control-plane", "worker", "worker"]
    networks = [
        mount["hostPath"] for one in config["nodes"] for mount in one["extraMounts"] if "cni" in mount["hostPath"]
    ]
    assert networks == ["/s/cni/0", "/s/cni/1", "/s/cni/2"]
    assert [pod_subnet(number) in cni_config(number) for number in range(3)] == [True] * 3
    assert patched(node)["InitConfiguration"]["nodeRegistration"] == {"taints": []}
    assert "nodeRegistration" not in patched(STOCK)["InitConfiguration"]
