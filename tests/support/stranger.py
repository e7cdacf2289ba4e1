"""A user who may write all objects of a namespace but no rights of others, and does so at random."""

import asyncio
from collections import Counter

from slipway_operator.kube.errors import ApiError, NotFound
from slipway_operator.kube.resources import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    ENDPOINT_SLICES,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    SERVICES,
)
from slipway_operator.model import labels
from testkit.world.addresses import own_address
from testkit.world.pods import MERGE, owner_of, pod, set_ready
from tests.support.forgery import forged

MADE_UP = "made-up"  # the uid of an owner that is not there
FINALIZER = "example.com/held"
CHILDREN = (REPLICA_SETS, SERVICES, CONTROLLER_REVISIONS)


def controller(item):
    return next((one for one in item["metadata"].get("ownerReferences", ()) if one.get("controller")), None)


def uid_of_controller(item):
    return (controller(item) or {}).get("uid")


class Stranger:
    """Does one edit at a time."""

    def __init__(self, cluster, foreign_port, random):
        self._cluster, self._random, self._number = cluster, random, 0
        self._client, self._namespace = cluster.client, cluster.namespace
        self._port = foreign_port
        self.former = []
        self.done = Counter()

    async def edit(self):
        """What was done."""
        self._number += 1
        kinds = (
            *[self._status] * 4,
            *[self._labels] * 2,
            *[self._owners] * 3,
            *[self._endpoints] * 2,
            *[self._deletes] * 2,
            *(self._annotations, self._finalizers, self._selectors, self._replicas),
            *(self._records, self._takes_a_name, self._gives_back),
        )
        while True:
            kind = self._random.choice(kinds)
            try:
                what = await kind()
            except ApiError:  # it changed meanwhile, or is gone, or the API server refuses what was made up
                await asyncio.sleep(0.05)
                continue
            self.done[kind.__name__.strip("_")] += 1
            return what

    async def _status(self):
        obj = await self._cluster.chat()
        what, status = forged(obj["status"], self.former, self._random)
        await self._client.put_status(MODEL_DEPLOYMENTS, {**obj, "status": status})
        return what

    async def _labels(self):
        resource, item = await self._some(PODS, *CHILDREN)
        key = self._random.choice((labels.MODEL_DEPLOYMENT, labels.REVISION))
        value = self._random.choice((None, "elsewhere"))
        await self._patch(resource, item, {"metadata": {"labels": {key: value}}})
        return f"label {key} of a {resource.kind} becomes {value}"

    async def _owners(self):
        """Removed, replaced by one that is there or not, or made a mere owner beside another controller."""
        resource, item = await self._some(PODS, *CHILDREN)
        former = [one | {"controller": False} for one in item["metadata"].get("ownerReferences", ())]
        keeper = await self._keeper()
        owners = self._random.choice(([], [self._absent()], [keeper], [*former, keeper], former))
        await self._patch(resource, item, {"metadata": {"ownerReferences": owners}})
        return f"owners of a {resource.kind} become {[(one['kind'], one['controller']) for one in owners]}"

    async def _endpoints(self):
        """A pod of the stranger's with the labels of ours, or an EndpointSlice that names it."""
        _, replica_set = await self._some(REPLICA_SETS)
        name, address = f"foreign-{self._number}", own_address()
        if self._random.random() < 0.3:
            metadata = {"name": name, "namespace": self._namespace, "labels": replica_set["metadata"]["labels"]}
            endpoint = {"addresses": [address], "conditions": {"ready": True}}
            ports = [{"name": "http", "port": self._port}]
            made = {"metadata": metadata, "addressType": "IPv4", "endpoints": [endpoint], "ports": ports}
            await self._client.create(ENDPOINT_SLICES, made)
            return "an EndpointSlice by hand"
        stale = owner_of(replica_set) | {"uid": MADE_UP}
        owner = self._random.choice((self._absent(), await self._keeper(), stale))
        await self._client.create(PODS, pod(replica_set, self._port, owner, name))
        await set_ready(self._client, self._namespace, name, address)
        return "a foreign pod with the labels"

    async def _deletes(self):
        resource, item = await self._some(PODS, *CHILDREN)
        await self._client.delete(resource, self._namespace, item["metadata"]["name"], item["metadata"]["uid"])
        return f"a {resource.kind} is deleted"

    async def _annotations(self):
        """All that is there becomes nonsense: what weights a revision is pinned to, for one."""
        resource, item = await self._some(MODEL_DEPLOYMENTS, PODS, *CHILDREN)
        found = item["metadata"].get("annotations") or {}
        changed = dict.fromkeys(
            [*found, "slipway.dev/weights", "example.com/mine"], self._random.choice(("{", "[]", ""))
        )
        await self._patch(resource, item, {"metadata": {"annotations": changed}})
        return f"annotations of a {resource.kind} become nonsense"

    async def _finalizers(self):
        """What is deleted then stays, with its name."""
        resource, item = await self._some(*CHILDREN)
        await self._patch(resource, item, {"metadata": {"finalizers": [FINALIZER]}})
        await self._client.delete(resource, self._namespace, item["metadata"]["name"], item["metadata"]["uid"])
        if resource is REPLICA_SETS and self._random.random() < 0.5:
            for one in await self._client.list(PODS, self._namespace):
                if uid_of_controller(one) == item["metadata"]["uid"]:
                    await self._client.delete(PODS, self._namespace, one["metadata"]["name"], one["metadata"]["uid"])
            return "a ReplicaSet is deleted and held, and its pods are deleted"
        return f"a {resource.kind} is deleted and held"

    async def _selectors(self):
        resource, item = await self._some(SERVICES)
        await self._patch(resource, item, {"spec": {"selector": {"app": "mine", labels.REVISION: None}}})
        return "a Service selects other pods"

    async def _replicas(self):
        resource, item = await self._some(REPLICA_SETS)
        replicas = self._random.choice((0, 3))
        await self._patch(resource, item, {"spec": {"replicas": replicas}})
        return f"a ReplicaSet gets {replicas} replicas"

    async def _records(self):
        """A ControllerRevision cannot be changed, but deleted and made again with other data."""
        resource, item = await self._some(CONTROLLER_REVISIONS)
        metadata, data = item["metadata"], item["data"]
        others = ({}, {"inputs": {}}, {**data, "inputs": {"model": 5}}, {**data, "drainTimeoutSeconds": "soon"})
        owners = self._random.choice((metadata["ownerReferences"], []))
        made = {key: metadata[key] for key in ("name", "namespace", "labels")} | {"ownerReferences": owners}
        await self._client.delete(resource, self._namespace, metadata["name"], metadata["uid"])
        forged_data = self._random.choice(others)
        await self._client.create(resource, {"metadata": made, "revision": 7, "data": forged_data})
        return f"a ControllerRevision has the data {forged_data}, and {len(owners)} owners"

    async def _takes_a_name(self):
        """A ReplicaSet of another selector takes the place of ours."""
        resource, item = await self._some(REPLICA_SETS)
        metadata, app = item["metadata"], {"app": "mine"}
        owners = self._random.choice(([], [await self._keeper()]))
        template = item["spec"]["template"] | {"metadata": {"labels": app}}
        spec = {"replicas": 1, "selector": {"matchLabels": app}, "template": template}
        made = {key: metadata[key] for key in ("name", "namespace")} | {"ownerReferences": owners}
        await self._client.delete(resource, self._namespace, metadata["name"], metadata["uid"])
        await self._client.create(resource, {"metadata": made, "spec": spec})
        return f"a ReplicaSet has the name of ours, and {len(owners)} owners"

    async def _gives_back(self):
        """What was taken gets our reference again, none, or is let go."""
        resource = self._random.choice(CHILDREN)
        found = [item for item in await self._client.list(resource, self._namespace) if not await self._is_ours(item)]
        if not found:
            raise NotFound(404, "nothing was taken")
        item, obj = self._random.choice(found), await self._cluster.chat()
        ours = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": "chat", "controller": True}
        owners = self._random.choice(([], [ours | {"uid": obj["metadata"]["uid"]}]))
        await self._patch(resource, item, {"metadata": {"ownerReferences": owners, "finalizers": []}})
        return f"a {resource.kind} that was taken gets {len(owners)} owners"

    async def _is_ours(self, item):
        metadata = item["metadata"]
        marked = labels.REVISION in (metadata.get("labels") or {}) and "deletionTimestamp" not in metadata
        return marked and uid_of_controller(item) == (await self._cluster.chat())["metadata"]["uid"]

    async def _keeper(self):
        """A reference to a controller that is there, so that its children are not garbage collected."""
        try:
            found = await self._client.create(
                CONFIG_MAPS, {"metadata": {"name": "keeper", "namespace": self._namespace}}
            )
        except ApiError:
            found = await self._client.get(CONFIG_MAPS, self._namespace, "keeper")
        named = {"apiVersion": "v1", "kind": "ConfigMap", "name": "keeper", "uid": found["metadata"]["uid"]}
        return named | {"controller": True}

    def _absent(self):
        return {"apiVersion": "batch/v1", "kind": "Job", "name": "mine", "uid": MADE_UP, "controller": True}

    async def _some(self, *resources):
        """One of chat's own objects, or of those with its labels."""
        resource = self._random.choice(resources)
        found = await self._client.list(resource, self._namespace)
        if resource in CHILDREN:
            found = [one for one in found if await self._is_ours(one)]
        if not found:
            raise NotFound(404, "none is left")
        return resource, self._random.choice(found)

    async def _patch(self, resource, item, change):
        path = resource.path(self._namespace, item["metadata"]["name"])
        await self._client.request("PATCH", path, [], change, MERGE)
