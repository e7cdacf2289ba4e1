"""What may happen to an object: it is deleted, emptied, replaced by an older copy, or taken by another owner."""

import contextlib
import json
from typing import Any

import pytest

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Exists, Refused, Stale
from slipway_operator.kube.resources import (
    ANALYSIS_RUNS,
    ANALYSIS_TEMPLATES,
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    ENDPOINT_SLICES,
    LEASES,
    REPLICA_SETS,
    SECRETS,
    SERVICES,
    TENANTS,
    Resource,
)
from slipway_operator.model.cluster import names
from testkit.world.pods import MERGE

Object = dict[str, Any]

ANOTHER = "another"  # holder of a Lease

# Merge patches that leave a kind without what it is there for. A ControllerRevision cannot be changed.
EMPTY: dict[Resource, Object] = {
    REPLICA_SETS: {"metadata": {"annotations": None}, "spec": {"replicas": 0}},
    SERVICES: {"spec": {"selector": None}},
    ANALYSIS_TEMPLATES: {"spec": {"metrics": []}},
    ANALYSIS_RUNS: {"status": {"measured": None, "verdict": None}},
    ENDPOINT_SLICES: {"endpoints": []},
    LEASES: {"spec": None},
    SECRETS: {"data": None},
    CONFIG_MAPS: {"data": None},
    TENANTS: {"spec": {"auth": None, "models": ["none"]}},
}
_YAML = "application/yaml"  # which is read into JSON without spaces, with sorted names
_OF_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")


class Hands:
    """A user with all rights in a namespace, who knows an older copy of each object."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace

    async def damage(self, kind: Resource, item: Object, damage: str, older: Object) -> None:
        """Do the damage to an object as it was read last; `older`: a copy from before."""
        if damage == "deleted":
            await self.delete(kind, item)
        elif damage == "foreign owner":
            await self._give_away(kind, item)
        elif kind is CONTROLLER_REVISIONS:
            await self._make_again(kind, item, {**older, "data": {}} if damage == "emptied" else older)
        elif kind is ANALYSIS_TEMPLATES and damage == "emptied":
            with pytest.raises(Refused, match="metrics"):  # its schema takes no empty one
                await self._patch(kind, item, EMPTY[kind])
        elif damage == "emptied":
            await self._patch(kind, item, EMPTY[kind])
        else:
            await self.put_back(kind, older)

    async def put_back(self, kind: Resource, copy: Object) -> None:
        """The object has the content of a copy, whether it is there or not."""
        found = without_server_fields(copy)
        if kind is ANALYSIS_RUNS:  # which is all status
            found["status"] = copy["status"]
        try:
            await self._create(kind, found)
        except Exists:
            path = kind.path(found["metadata"].get("namespace"), found["metadata"]["name"])
            live = await self._client.request("GET", path, [])
            found["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
            with contextlib.suppress(Stale):  # its owner wrote at the same moment: that copy is as good
                await self._client.request("PUT", path, [], found)

    async def remove(self, kind: Resource, name: str) -> None:
        """Delete an object that belongs to no namespace."""
        await self.delete(kind, await self._client.request("GET", kind.path(None, name), []))

    async def _make_again(self, kind: Resource, item: Object, copy: Object) -> None:
        await self.delete(kind, item)
        with contextlib.suppress(Exists):  # the operator was faster
            await self._create(kind, without_server_fields(copy))

    async def _create(self, kind: Resource, body: Object) -> None:
        """As tools in Go do: the API server keeps the bytes of a record's data, and compares them with later ones."""
        text: Any = json.dumps(body)
        await self._client.request("POST", kind.path(body["metadata"].get("namespace")), [], text, _YAML)

    async def delete(self, kind: Resource, item: Object) -> None:
        """Delete an object as it was read."""
        metadata = item["metadata"]
        await self._client.delete(kind, metadata.get("namespace"), metadata["name"], metadata["uid"])

    async def _give_away(self, kind: Resource, item: Object) -> None:
        """To a ConfigMap that is there; a Lease to another holder."""
        if kind is LEASES:
            await self._patch(kind, item, {"spec": {"holderIdentity": ANOTHER}})
        if item["metadata"].get("namespace"):  # what belongs to no namespace has no owner in one
            await self._patch(kind, item, {"metadata": {"ownerReferences": [await self._keeper()]}})

    async def _patch(self, kind: Resource, item: Object, change: Object) -> None:
        path = kind.path(item["metadata"].get("namespace"), item["metadata"]["name"])
        await self._client.request("PATCH", path, [], change, MERGE)

    async def _keeper(self) -> Object:
        with contextlib.suppress(Exists):
            await self._client.create(CONFIG_MAPS, {"metadata": {"name": "keeper", "namespace": self._namespace}})
        found = await self._client.get(CONFIG_MAPS, self._namespace, "keeper")
        named = {"apiVersion": "v1", "kind": "ConfigMap", "name": "keeper", "uid": found["metadata"]["uid"]}
        return named | {"controller": True}


def is_whole(kind: Resource, live: Object, before: Object) -> bool:
    """Whether an object that the operator keeps has what it is there for: a holder, keys, the owners as before."""
    if kind is LEASES:
        return (live.get("spec") or {}).get("holderIdentity") not in (None, ANOTHER)
    if kind is CONFIG_MAPS:
        return _owners(live) == _owners(before)
    return bool(live.get("data"))


def _owners(names_map: Object) -> dict[str, str]:
    text = (names_map.get("data") or {}).get(names.DATA_KEY)
    return {name: claim.owner for name, claim in names.decode(text).items()} if text else {}


def without_server_fields(item: Object) -> Object:
    """A copy of an object as a backup writes it back."""
    metadata = {key: value for key, value in item["metadata"].items() if key not in _OF_THE_SERVER}
    return {key: value for key, value in item.items() if key != "status"} | {"metadata": metadata}


def without_owners(item: Object) -> Object:
    """A copy of an object as Velero restores it: the uid of an owner is another one than in the backup."""
    copy = without_server_fields(item)
    copy["metadata"].pop("ownerReferences", None)
    return copy
