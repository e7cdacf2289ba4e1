"""The ConfigMap with the entries of pools on a real API server, with the rights that docs/operator.md lists."""

import contextlib

import pytest

from slipway_operator.kube import auth
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.resources import CONFIG_MAPS, MODEL_POOLS
from slipway_operator.manifests.pools.entries import CONFIG_MAP
from slipway_operator.pools.runner import PoolAccess, PoolRunner, PoolSettings
from testkit.until import until_async
from testkit.world.rights import limited_kubeconfig

from .matrix.cells import DAMAGES
from .matrix.damages import Hands

pytestmark = pytest.mark.integration


@pytest.fixture
async def runner(api_server, client, namespace, tmp_path):
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    async with Client(await auth.load(str(limited))) as operator:
        await until_async(lambda: operator.may("list", MODEL_POOLS, namespace, ""), "the role takes effect")
        access = PoolAccess(operator, ObjectCache(), None)  # no pod is ready, so it makes no request to pods
        yield PoolRunner(access, PoolSettings("slipway-server:1", (namespace,)), lambda: True, lambda key: None)


async def make_pool(client, namespace, name):
    metadata = {"name": name, "namespace": namespace}
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelPool", "metadata": metadata, "spec": {}}
    return (await client.create(MODEL_POOLS, body))["metadata"]["uid"]


async def test_the_pools_that_are_there_own_the_file_of_their_entries(client, namespace, runner):
    """So garbage collection, which does not run here, deletes it after the last one."""

    async def owners():
        await runner.look()
        with contextlib.suppress(NotFound):
            return (await client.get(CONFIG_MAPS, namespace, CONFIG_MAP))["metadata"].get("ownerReferences")

    async def owned_by(*uids):
        # The list of pools comes from the API server's cache, which may be late.
        await until_async(owners, "pools own it", holds=lambda found: [one["uid"] for one in found or ()] == list(uids))

    one, two = await make_pool(client, namespace, "one"), await make_pool(client, namespace, "two")
    await owned_by(one, two)
    await client.delete(MODEL_POOLS, namespace, "one", one)
    await owned_by(two)
    await client.delete(MODEL_POOLS, namespace, "two", two)
    collected = await client.get(CONFIG_MAPS, namespace, CONFIG_MAP)
    await client.delete(CONFIG_MAPS, namespace, CONFIG_MAP, collected["metadata"]["uid"])
    await owned_by(await make_pool(client, namespace, "one"))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.finding("L1")
async def test_a_damaged_file_of_entries_is_written_again(client, namespace, runner, damage, monkeypatch):
    """Pods follow the file: what it lacks is served no more. An older copy lacks the second pool."""
    monkeypatch.setattr("slipway_operator.pools.runner.APPLY_AGAIN_S", 0.0)

    async def written():
        await runner.look()
        with contextlib.suppress(NotFound):
            return await client.get(CONFIG_MAPS, namespace, CONFIG_MAP)

    async def has(*pools):
        files = {f"{pool}.json": '{"models":[]}' for pool in pools}
        return await until_async(written, "the file", holds=lambda found: found and found.get("data") == files)

    await make_pool(client, namespace, "one")
    older = await has("one")
    await make_pool(client, namespace, "two")
    whole = await has("one", "two")
    await Hands(client, namespace).damage(CONFIG_MAPS, whole, damage, older)
    assert (await has("one", "two"))["metadata"]["labels"] == whole["metadata"]["labels"]
