"""Certificates on a real API server: the operator makes and restores them, and pods of a new revision mount them."""

import asyncio
import base64
import contextlib

import pytest

from devcluster.ports import reserve_port
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import ENDPOINT_SLICES, MODEL_DEPLOYMENTS, REPLICA_SETS, SECRETS
from slipway_operator.model.cluster import authorities
from slipway_operator.model.cluster.certificates import Issued
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.rights import limited_kubeconfig
from testkit.world.slipway import Cluster
from tests.support.certificates import install

from .conftest import MANIFEST

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(2, 14)]

CA, GATEWAY, PODS = "slipway-internal-ca", "slipway-gateway-internal-tls", "slipway-pod-tls"


@pytest.fixture
def operator_flags():
    return (f"--internal-ca-secret={CA}", "--tls-new-revisions=on")


async def found(client, namespace, name):
    async def look():
        try:
            return await client.get(SECRETS, namespace, name)
        except NotFound:
            return None

    return await until_async(look, f"the Secret {name}")


async def test_the_operator_makes_certificates_before_the_pods_that_mount_them_and_restores_them(cluster, chat):
    release = await found(cluster.client, cluster.namespace, CA)
    assert len(authorities.parse(release["data"])) == 1
    gateways = await found(cluster.client, cluster.namespace, GATEWAY)
    pods = await found(cluster.client, cluster.namespace, PODS)
    assert pods["data"]["ca.crt"] == gateways["data"]["ca.crt"] == release["data"]["ca.crt"]

    async def replica_sets():
        return await cluster.client.list(REPLICA_SETS, cluster.namespace)

    (replica_set,) = await until_async(replica_sets, "the pods' ReplicaSet")
    assert replica_set["metadata"]["creationTimestamp"] >= pods["metadata"]["creationTimestamp"]
    pod = replica_set["spec"]["template"]["spec"]
    assert [port["name"] for port in pod["containers"][0]["ports"]] == ["https", "probe"]
    assert PODS in [volume.get("secret", {}).get("secretName") for volume in pod["volumes"]]
    assert authorities.parse(release["data"])[0].seed not in cluster.operator.log()

    await cluster.operator.kill()
    for name, item in ((PODS, pods), (GATEWAY, gateways)):
        await cluster.client.delete(SECRETS, cluster.namespace, name, item["metadata"]["uid"])
    await cluster.operator.start()
    assert (await found(cluster.client, cluster.namespace, PODS))["data"] == pods["data"]
    assert (await found(cluster.client, cluster.namespace, GATEWAY))["data"] == gateways["data"]
    assert await cluster.client.get(MODEL_DEPLOYMENTS, cluster.namespace, "chat")


async def test_a_gateway_acknowledges_by_tls_alone(client, namespace, api_server, tmp_path, operator_flags):
    """The gateway has the files that the operator wrote, and the operator knows no other port of it."""
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    port, folder = reserve_port(), tmp_path / "internal-tls"
    gateway_flags = ("--auth-mode=off", f"--internal-tls-dir={folder}", f"--internal-port={port}")
    flags = {"operator_flags": operator_flags, "gateway_flags": gateway_flags}
    cluster = Cluster(client, namespace, api_server, limited, tmp_path, **flags)
    await client.create(ENDPOINT_SLICES, slice_of(namespace, port))
    await cluster.operator.start()
    pods = asyncio.create_task(cluster.run_pods())
    try:
        data = (await found(client, namespace, GATEWAY))["data"]
        install(folder, Issued(*(base64.b64decode(data[name]).decode() for name in ("tls.crt", "tls.key", "ca.crt"))))
        await cluster.gateway.start()
        await client.create(MODEL_DEPLOYMENTS, MANIFEST | {"metadata": {"name": "chat", "namespace": namespace}})
        status = await cluster.reaches("healthy", lambda status: status.get("phase") == "Healthy")
        assert [backend["weight"] for backend in status["traffic"]["backends"]] == [100]
        assert status["traffic"]["acknowledged"]
    finally:
        pods.cancel()
        await asyncio.gather(cluster.operator.stop(), cluster.gateway.stop())
        with contextlib.suppress(asyncio.CancelledError):
            await pods


def slice_of(namespace, port):
    labels = {"kubernetes.io/service-name": "slipway-gateway-admin"}
    return {
        "metadata": {"name": "slipway-gateway-admin-1", "namespace": namespace, "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
        "ports": [{"name": "internal", "port": port}],
    }
