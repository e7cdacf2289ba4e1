"""The file of a pool: one entry for each revision that is a member. docs/predict.md describes it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.pool_views import MAX_ENTRIES

CONFIG_MAP = "slipway-model-pools"  # the same in each namespace, so that the operator's Role can name this ConfigMap


@dataclass(frozen=True, slots=True)
class PoolMemberRevision:
    """A revision that is to be an entry. `stable`: it is the default version of its model name in the pool."""

    deployment: str
    snapshot: Snapshot
    stable: bool = False


def chosen(members: Iterable[PoolMemberRevision]) -> tuple[list[PoolMemberRevision], int]:
    """Return the members that become entries, stable ones first, at most MAX_ENTRIES; and how many are left out."""
    found: dict[tuple[str, str], PoolMemberRevision] = {}
    for one in sorted(members, key=lambda one: (not one.stable, one.deployment, one.snapshot.ordinal)):
        # Two ModelDeployments with the same inputs and name are the same entry.
        found.setdefault((one.snapshot.inputs.model.name, one.snapshot.revision), one)
    listed = list(found.values())
    return listed[:MAX_ENTRIES], max(0, len(listed) - MAX_ENTRIES)


def pool_file(members: Sequence[PoolMemberRevision]) -> str:
    """Return the file as JSON, as slipway-server and slipway-pool-fetcher read it."""
    defaults = {one.snapshot.inputs.model.name: one.snapshot.revision for one in reversed(members)}
    models = [_entry(one, defaults) for one in members]
    return json.dumps({"models": sorted(models, key=lambda one: (one["name"], one["version"]))}, separators=(",", ":"))


def _entry(one: PoolMemberRevision, defaults: dict[str, str]) -> dict[str, Any]:
    inputs, revision = one.snapshot.inputs, one.snapshot.revision
    member, model, store = inputs.pool, inputs.model, inputs.model.object_store
    assert member, "only revisions with a pool are its members"
    source = {"uri": model.uri, "revision": model.revision, "endpoint": store.endpoint, "region": store.region}
    entry = {
        "name": model.name,
        "version": revision,
        "shown_version": model.version or revision,
        "path": revision,
        "task": model.task,
        "format": model.format,
        "default": defaults[model.name] == revision,
        "pinned": member.pinned or None,
        "max_in_flight": member.max_in_flight,
        "max_memory_bytes": member.max_memory_bytes or None,
        "threads": member.threads,
        "source": _given(source | {"account": store.account}),
    }
    return _given(entry)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
