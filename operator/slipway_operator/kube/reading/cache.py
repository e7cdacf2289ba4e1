"""A cache of ModelDeployments and their children, from lists, watches and the responses to our own writes."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from slipway_contracts import verdict_statements
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.kube import subjects
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, NotFound, Refused
from slipway_operator.kube.resources import (
    CONTROLLER_REVISIONS,
    MODEL_ADAPTERS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    SERVICES,
    Resource,
)
from slipway_operator.model import labels
from slipway_operator.model.cluster import history, weights

ByKind = Mapping[Resource, list[Object]]

CHILDREN = (REPLICA_SETS, CONTROLLER_REVISIONS, PODS, SERVICES)
SUBJECTS = (MODEL_DEPLOYMENTS, MODEL_ADAPTERS)
KINDS = (*SUBJECTS, *CHILDREN)
GONE_KEPT = 8192  # deleted objects whose late versions are still recognised
SETTLE_S = 1.0  # kopf reports a list object by object, and does not report its end
RETRY_S = 5.0

_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences",
    "creationTimestamp", "deletionTimestamp",
)  # fmt: skip
RECORDED = (weights.ANNOTATION, history.ANNOTATION, verdict_statements.ANNOTATION)  # annotations of ControllerRevisions
_POD_STATUS = ("phase", "reason", "message", "podIP", "conditions", "initContainerStatuses", "containerStatuses")

log = logging.getLogger(__name__)


class ObjectCache:
    """The newest version of each ModelDeployment, ModelAdapter and child. Memory is bounded by their number.

    Versions come from lists, from watches and from the responses to our own writes, in any order: the higher
    resourceVersion counts, so the cache is never older than what this process wrote or read. A watch may be late, or
    dead without an error, so decisions that remove something need a read. Callers must not modify returned objects.
    """

    def __init__(self, namespaces: Sequence[str] = ()) -> None:
        self._namespaces = tuple(namespaces) or (None,)
        self._objects: dict[Resource, dict[ObjectKey, Object]] = {kind: {} for kind in KINDS}
        self._names: dict[Resource, dict[ObjectKey, set[str]]] = {kind: {} for kind in CHILDREN}  # by ModelDeployment
        self._gone: OrderedDict[str, int] = OrderedDict()  # resourceVersion at deletion, by uid
        self._listed: set[Resource] = set()  # kinds whose watches restarted
        self._is_listed = asyncio.Event()

    def deployments(self) -> Iterable[ObjectKey]:
        """Return namespace and name of all ModelDeployments."""
        return tuple(self._objects[MODEL_DEPLOYMENTS])

    def adapters(self) -> Iterable[ObjectKey]:
        """Return namespace and name of all ModelAdapters; the names are those of `kube.subjects`."""
        return tuple(self._objects[MODEL_ADAPTERS])

    def subjects(self) -> Iterable[ObjectKey]:
        """Return what is reconciled: all ModelDeployments and ModelAdapters."""
        return (*self.deployments(), *self.adapters())

    def get(self, key: ObjectKey) -> Object | None:
        """Return a ModelDeployment or a ModelAdapter; None when it is not in the cache."""
        return self._objects[subjects.resource_of(key[1])].get(key)

    def children(self, key: ObjectKey) -> ByKind:
        """Return the children of a ModelDeployment."""
        return {
            kind: [self._objects[kind][key[0], name] for name in sorted(self._names[kind].get(key, ()))]
            for kind in CHILDREN
        }

    def deployments_on(self, nodes: Collection[str]) -> set[ObjectKey]:
        """Return namespace and name of the ModelDeployments that have a pod on one of these nodes."""
        if not nodes:
            return set()
        pods = self._objects[PODS].values()
        return {(pod["metadata"]["namespace"], _owner(pod)) for pod in pods if pod["spec"].get("nodeName") in nodes}

    def on_event(self, resource: Resource, event: str | None, obj: Object) -> set[ObjectKey]:
        """Apply an event of a watch; an event without a type is from the initial list of a restarted watch.

        Returns the ModelDeployments that it concerns: the one in a child's label, and the one in its former label.
        """
        metadata = subjects.as_subject(resource, obj)["metadata"]
        former = self._objects[resource].get((metadata["namespace"], metadata["name"]))
        owners = {_owner(item) for item in (obj, former) if item} if resource in self._names else {metadata["name"]}
        concerned = {(metadata["namespace"], owner) for owner in owners if owner}
        if event == "DELETED":
            self.remove(resource, obj)
            return concerned
        if event is None:
            self._listed.add(resource)
            self._is_listed.set()
        self.update(resource, obj)
        return concerned

    def update(self, resource: Resource, obj: Object) -> None:
        """Cache a version of an object; one that is older than the cached one is ignored."""
        if resource not in self._objects:
            return
        obj = subjects.as_subject(resource, obj)
        metadata = obj["metadata"]
        key = metadata["namespace"], metadata["name"]
        former = self._objects[resource].get(key)
        version = _version(obj)
        if self._gone.get(metadata["uid"], 0) >= version or (former and _version(former) >= version):
            return
        # A watch by label also reports an object that lost the label as deleted; it can get the label back.
        self._gone.pop(metadata["uid"], None)
        self._forget(resource, key)
        if resource in self._names and not (owner := _owner(obj)):
            return
        self._objects[resource][key] = _kept(resource, obj)
        if resource in self._names:
            self._names[resource].setdefault((key[0], owner), set()).add(key[1])

    def remove(self, resource: Resource, obj: Object, version: int = 0) -> None:
        """Remove an object that was deleted or is no longer ours; `version`: that of a list that lacks it."""
        metadata = subjects.as_subject(resource, obj)["metadata"]
        self._gone[metadata["uid"]] = max(version, _version(obj), self._gone.get(metadata["uid"], 0))
        if len(self._gone) > GONE_KEPT:
            self._gone.popitem(last=False)
        key = metadata["namespace"], metadata["name"]
        former = self._objects[resource].get(key)
        if former and former["metadata"]["uid"] == metadata["uid"]:
            self._forget(resource, key)

    async def read(self, client: Client, key: ObjectKey) -> ByKind:
        """Read the children of a ModelDeployment from the API server, cache and return them."""
        await asyncio.gather(*(self._list(client, kind, *key) for kind in CHILDREN))
        return self.children(key)

    async def relist(self, client: Client, resources: Sequence[Resource] = KINDS) -> set[ObjectKey]:
        """List these kinds into the cache; returns the ModelDeployments with a deletion that a watch missed."""
        lost: set[ObjectKey] = set()
        for resource in resources:
            for namespace in self._namespaces:
                try:
                    lost |= await self._list(client, resource, namespace)
                except (NotFound, Refused):
                    if resource is not MODEL_ADAPTERS:  # the operator was upgraded before this CRD, or before its Role
                        raise
        return lost

    async def run(self, client: Client, add: Callable[[ObjectKey], None]) -> None:
        """List again after each restart of a watch, until cancelled: kopf reports no deletion that a watch missed."""
        while True:
            await self._is_listed.wait()
            await asyncio.sleep(SETTLE_S)
            resources, self._listed = sorted(self._listed, key=lambda item: item.plural), set()
            self._is_listed.clear()
            try:
                for key in await self.relist(client, resources):
                    add(key)
            except Exception as error:
                self._listed.update(resources)  # also where this task ends: the next one lists again
                self._is_listed.set()
                if not isinstance(error, ApiError):
                    raise
                log.warning("a list failed: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _list(self, client: Client, resource: Resource, namespace: str | None, name: str = "") -> set[ObjectKey]:
        """List a kind into the cache, of one ModelDeployment if `name`; returns those where a deletion was missed."""
        selector = labels.selector(name) if name else labels.MODEL_DEPLOYMENT if resource in CHILDREN else ""
        # ControllerRevisions and ReplicaSets must be up to date; a list of pods or Services is soon outdated anyway.
        cached = bool(name) and resource in (PODS, SERVICES)
        present: set[str] = set()
        version = 0
        async for page in client.pages(resource, namespace, selector, cached=cached):
            version = version or _version(page)
            for item in page.get("items") or ():
                self.update(resource, item)
                present.add(item["metadata"]["uid"])
        found = self.children((str(namespace), name))[resource] if name else self._in(resource, namespace)
        missed = [item for item in found if item["metadata"]["uid"] not in present and _version(item) <= version]
        for item in missed:
            self.remove(resource, item, version)
        return {(item["metadata"]["namespace"], _owner(item) or item["metadata"]["name"]) for item in missed}

    def _in(self, resource: Resource, namespace: str | None) -> list[Object]:
        return [item for (where, _), item in self._objects[resource].items() if namespace in (None, where)]

    def _forget(self, resource: Resource, key: ObjectKey) -> None:
        former = self._objects[resource].pop(key, None)
        if former is None or resource not in self._names:
            return
        owner = key[0], _owner(former)
        names = self._names[resource][owner]
        names.discard(key[1])
        if not names:
            del self._names[resource][owner]


def _owner(item: Object) -> str:
    """Return the name of the ModelDeployment in the label of a child; empty without one."""
    return str((item["metadata"].get("labels") or {}).get(labels.MODEL_DEPLOYMENT) or "")


def _version(item: Object) -> int:
    """Return the resourceVersion: a number that grows over all objects of a kind (KEP-5504)."""
    return int(item["metadata"]["resourceVersion"])


def _kept(resource: Resource, obj: Object) -> Object:
    """Return the parts of an object that a reconcile reads or writes."""
    if resource in SUBJECTS:
        # Messages name the managers that applied fields; entries of other writes are long and not used.
        applied = [entry for entry in obj["metadata"].get("managedFields") or () if entry.get("operation") == "Apply"]
        return {**obj, "metadata": {**obj["metadata"], "managedFields": applied}}
    kept: Object = {"metadata": _part(obj["metadata"], _METADATA)}
    if resource is REPLICA_SETS:
        kept["spec"] = _part(obj["spec"], ("replicas",))
        kept["status"] = obj.get("status") or {}
        if entry := _part(obj["metadata"].get("annotations") or {}, (labels.POOL_REPLICAS, labels.RECORD)):
            kept["metadata"]["annotations"] = entry
    elif resource is SERVICES:
        kept["spec"] = _part(obj.get("spec") or {}, ("selector",))
    elif resource is PODS:
        kept["status"] = _part(obj.get("status") or {}, _POD_STATUS)
        kept["spec"] = _part(obj.get("spec") or {}, ("nodeName",))
        if marks := _part(obj["metadata"].get("annotations") or {}, (labels.DELETION_COST, labels.POOL_ENTRIES)):
            kept["metadata"]["annotations"] = marks
    elif resource is CONTROLLER_REVISIONS:
        kept |= _part(obj, ("data", "revision"))
        kept["metadata"]["annotations"] = _part(obj["metadata"].get("annotations") or {}, RECORDED)
    return kept


def _part(whole: Object, names: Sequence[str]) -> Object:
    return {name: whole[name] for name in names if name in whole}
