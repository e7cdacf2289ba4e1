"""The revisions of ModelAdapters that pods are to hold, from the cache."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.api.v1alpha1.status import State
from slipway_operator.kube.ownership import is_leaving
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.observe import is_owned, pool_entry, snapshot
from slipway_operator.kube.resources import CONTROLLER_REVISIONS, REPLICA_SETS
from slipway_operator.model.adapter_views import AdapterRevision
from slipway_operator.model.deployment.adapter_spec import base_of

NO_ROLLOUT = ("", State.ABORTED, State.ABORTING)


def members(
    cache: ObjectCache,
) -> tuple[Mapping[ObjectKey, list[AdapterRevision]], Mapping[ObjectKey, set[str]]]:
    """Revisions by ModelDeployment, and by it the names of all ModelAdapters that name it, also without a revision."""
    revisions: dict[ObjectKey, list[AdapterRevision]] = defaultdict(list)
    named: dict[ObjectKey, set[str]] = defaultdict(set)
    for key in cache.adapters():
        obj = cache.get(key)
        if obj is None or is_leaving(obj):
            continue
        base = (key[0], base_of(obj))
        named[base].add(key[1])
        revisions[base] += _revisions(cache, key, obj)
    return revisions, named


def _revisions(cache: ObjectCache, key: ObjectKey, obj: Object) -> Iterator[AdapterRevision]:
    children, metadata = cache.children(key), obj["metadata"]
    owned = (pool_entry(child) for child in children[REPLICA_SETS] if is_owned(child, metadata["uid"]))
    wanted = {entry.revision for entry in owned if entry and entry.desired}
    if not wanted:
        return
    status = obj.get("status") or {}
    stable, rollout = status.get("stableRevision"), status.get("rollout") or {}
    target = rollout.get("revision") if stable and rollout.get("state", "") not in NO_ROLLOUT else None
    for child in children[CONTROLLER_REVISIONS]:
        record = snapshot(child, key[1]) if is_owned(child, metadata["uid"]) else None
        if record and record.revision in wanted and record.inputs.base:
            begun = str(rollout.get("startedAt") or "") if record.revision == target else ""
            created = str(metadata.get("creationTimestamp") or "")
            yield AdapterRevision(key[1], record, created, record.revision == stable, begun)
