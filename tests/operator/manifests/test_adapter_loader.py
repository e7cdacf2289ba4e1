"""Pods with room for adapters: the engine's flags, the container that loads them, and what both share."""

from dataclasses import replace
from typing import Any

import pytest

from slipway_operator.manifests.network_policy import NetworkPolicySettings, network_policy
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.adapters import AdapterRoom
from slipway_operator.model.inputs.pod_inputs import Engine, Model, PodInputs

OWNER = Owner("chat", "default", "u1")
INPUTS = PodInputs(Model("hf://org/m", "chat"), adapters=AdapterRoom(4, 32, "2Gi", "hub"))
SNAPSHOT = Snapshot("abcdefghij", 1, INPUTS, "server:1", 600, 3)


def pod(engine: Engine | None = None, **changes: Any) -> Any:
    inputs = replace(INPUTS, **({"engine": engine} if engine else {}))
    return replica_set(OWNER, replace(SNAPSHOT, inputs=inputs, **changes), 1)["spec"]["template"]["spec"]


def flags(container: Any) -> str:
    return " ".join(container["args"])


def test_slipway_server_gets_room_and_reads_the_folder_that_the_loader_writes() -> None:
    server, loader = pod()["containers"]
    assert "--max-loras 4 --max-lora-rank 32 --max-lora-bytes 2147483648 --lora-root /mnt/adapters" in flags(server)
    assert flags(loader) == (
        "--adapters-config /etc/slipway/adapters/adapters.json --dest /mnt/adapters "
        "--engine-url http://127.0.0.1:8001 --engine slipway --port 8004"
    )
    [shared] = [mount for mount in server["volumeMounts"] if mount["name"] == "adapters"]
    assert shared == {"name": "adapters", "mountPath": "/mnt/adapters", "readOnly": True}
    assert {"name": "adapters", "mountPath": "/mnt/adapters"} in loader["volumeMounts"]
    assert loader["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "adapters"}
    assert loader["ports"] == [{"name": "adapters", "containerPort": 8004, "protocol": "TCP"}]


def test_the_file_may_be_late_and_credentials_are_the_loaders_alone() -> None:
    made = pod()
    [file] = [volume["configMap"] for volume in made["volumes"] if volume["name"] == "adapters-file"]
    assert file == {
        "name": "slipway-adapters",
        "optional": True,
        "items": [{"key": "chat.json", "path": "adapters.json"}],
    }
    server, loader = made["containers"]
    assert "hub" not in str(server) and "HF_TOKEN" in str(loader["env"])
    assert all(item["valueFrom"]["secretKeyRef"]["optional"] for item in loader["env"] if "valueFrom" in item)
    assert loader["securityContext"]["readOnlyRootFilesystem"] and loader["resources"]["limits"]["memory"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("vllm", "--enable-lora --max-loras 4 --max-lora-rank 32"),
        ("sglang", "--enable-lora --max-lora-rank 32 --max-loras-per-batch 4 --lora-target-modules all"),
    ],
)
def test_other_engines_get_their_own_flags_and_our_image_loads(kind: str, expected: str) -> None:
    server, loader = pod(Engine("engine:1", kind), image="engine:1", fetcher_image="server:1")["containers"]
    assert expected in flags(server) and f"--engine-url http://127.0.0.1:8000 --engine {kind} " in flags(loader)
    assert (server["image"], loader["image"]) == ("engine:1", "server:1")
    allowed = {item["name"]: item.get("value") for item in server["env"]}.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING")
    assert allowed == ("1" if kind == "vllm" else None)


def test_a_user_cannot_take_the_variable_away() -> None:
    mine = Engine("engine:1", "vllm", env=(("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0"),))
    server = pod(mine, image="engine:1", fetcher_image="server:1")["containers"][0]
    assert [item["value"] for item in server["env"] if item["name"] == "VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == ["1"]


def test_pods_without_room_are_as_they_were() -> None:
    made = replica_set(OWNER, replace(SNAPSHOT, inputs=PodInputs(Model("hf://org/m", "chat"))), 1)
    assert "lora" not in str(made) and "adapters" not in str(made)


def test_with_tls_the_loader_is_beside_the_server() -> None:
    server, loader = pod(tls=True)["containers"]
    assert "--ssl-certfile" in flags(server) and "ssl" not in flags(loader)


def test_only_gateways_and_the_operator_reach_its_port() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    policy = network_policy(OWNER, NetworkPolicySettings("slipway", (("app", "slipway"),), (peer,)))
    [api, adapters] = policy["spec"]["ingress"]
    assert adapters["ports"] == [{"port": 8004, "protocol": "TCP"}]
    assert len(api["from"]) == 3 and len(adapters["from"]) == 2
