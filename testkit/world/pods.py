"""Pods as a kubelet and the ReplicaSet controller leave them: gateways find endpoints by these."""

import contextlib
from typing import Any

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, NotFound
from slipway_operator.kube.resources import ENDPOINT_SLICES, PODS
from testkit.world.addresses import own_address

Object = dict[str, Any]
MERGE = "application/merge-patch+json"


def owner_of(replica_set: Object) -> Object:
    """The controller reference that the ReplicaSet controller gives its pods."""
    metadata = replica_set["metadata"]
    named = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": metadata["name"], "uid": metadata["uid"]}
    return named | {"controller": True, "blockOwnerDeletion": True}


def pod(replica_set: Object, port: int = 8000, owner: Object | None = None, name: str = "") -> Object:
    """A pod of a ReplicaSet; `owner`: another controller than that."""
    metadata = replica_set["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name or f"{metadata['name']}-0",
            "namespace": metadata["namespace"],
            "labels": metadata.get("labels") or {},
            "ownerReferences": [owner or owner_of(replica_set)],
        },
        "spec": {
            "containers": [
                {"name": "server", "image": "none", "ports": [{"name": "http", "containerPort": port}]},
            ]
        },
    }


def ready_status(address: str, *, ready: bool = True) -> Object:
    """What a kubelet reports of a pod that runs."""
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "True" if ready else "False"},
    ]
    return {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}


async def set_ready(client: Client, namespace: str, name: str, address: str, *, ready: bool = True) -> None:
    """Report a pod as running at an address."""
    path = PODS.path(namespace, name, "status")
    await client.request("PATCH", path, [], {"status": ready_status(address, ready=ready)}, MERGE)


async def has_pod(client: Client, replica_set: Object, address: str, port: int = 8000) -> None:
    """A ReplicaSet that wants pods has a ready one, any other none."""
    namespace, made = replica_set["metadata"]["namespace"], pod(replica_set, port)
    with contextlib.suppress(ApiError):  # deleted meanwhile
        if replica_set["spec"].get("replicas", 1):
            with contextlib.suppress(ApiError):  # it is there
                await client.create(PODS, made)
            await set_ready(client, namespace, made["metadata"]["name"], address)
            return
        with contextlib.suppress(NotFound):
            live = await client.get(PODS, namespace, made["metadata"]["name"])
            await client.delete(PODS, namespace, live["metadata"]["name"], live["metadata"]["uid"])


async def announce_gateway(client: Client, namespace: str, admin_port: int) -> None:
    """What the endpoint controller makes of the headless Service, for one gateway on this machine."""
    metadata = {
        "name": "slipway-gateway-admin-1",
        "namespace": namespace,
        "labels": {"kubernetes.io/service-name": "slipway-gateway-admin"},
    }
    endpoint = {"addresses": [own_address()], "conditions": {"ready": True}}
    ports = [{"name": "admin", "port": admin_port}]
    body = {"metadata": metadata, "addressType": "IPv4", "endpoints": [endpoint], "ports": ports}
    await client.create(ENDPOINT_SLICES, body)
