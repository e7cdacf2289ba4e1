"""The revisions that are to be entries of pools, from the cache of ModelDeployments."""

from collections import defaultdict
from collections.abc import Mapping

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.kube.ownership import is_leaving
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.observe import is_owned, pool_entry, snapshot
from slipway_operator.kube.resources import CONTROLLER_REVISIONS, REPLICA_SETS
from slipway_operator.manifests.pools.entries import PoolMemberRevision

Members = Mapping[ObjectKey, list[PoolMemberRevision]]  # by namespace and name of a pool


def members(cache: ObjectCache) -> tuple[Members, Mapping[ObjectKey, set[str]]]:
    """Entries by pool, and by pool the names of all ModelDeployments whose spec names it, also without an entry."""
    entries: dict[ObjectKey, list[PoolMemberRevision]] = defaultdict(list)
    named: dict[ObjectKey, set[str]] = defaultdict(set)
    for key in cache.deployments():
        obj = cache.get(key)
        if obj is None or is_leaving(obj):
            continue
        pool = _named(obj)
        if pool:
            named[key[0], pool].add(key[1])
        for one in _entries(cache, key, obj):
            assert one.snapshot.inputs.pool, "of a member"
            about = (key[0], one.snapshot.inputs.pool.name)
            entries[about].append(one)
            named[about].add(key[1])
    return entries, named


def _named(obj: Object) -> str:
    pool = (obj.get("spec") or {}).get("pool")
    return str(pool.get("name") or "") if isinstance(pool, dict) else ""


def _entries(cache: ObjectCache, key: ObjectKey, obj: Object) -> list[PoolMemberRevision]:
    children, uid = cache.children(key), obj["metadata"]["uid"]
    owned = [pool_entry(one) for one in children[REPLICA_SETS] if is_owned(one, uid)]
    wanted = {one.revision for one in owned if one and one.desired}
    if not wanted:
        return []
    stable = (obj.get("status") or {}).get("stableRevision")
    records = (snapshot(one, key[1]) for one in children[CONTROLLER_REVISIONS] if is_owned(one, uid))
    return [
        PoolMemberRevision(key[1], record, record.revision == stable)
        for record in records
        if record and record.revision in wanted and record.inputs.pool
    ]
