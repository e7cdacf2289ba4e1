"""Children without a controller, as a backup tool restores them, become ours again, as in Kubernetes' controllers."""

import logging
from collections.abc import Iterable
from datetime import datetime

from slipway_operator.api.objects import Object
from slipway_operator.kube import subjects
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Leaving, NotFound, Refused, Stale
from slipway_operator.kube.ownership import is_controlled, is_leaving
from slipway_operator.kube.reading.cache import ByKind
from slipway_operator.kube.reading.observe import is_proved
from slipway_operator.kube.resources import (
    CONTROLLER_REVISIONS,
    REPLICA_SETS,
    SERVICES,
    Resource,
)
from slipway_operator.kube.writing import events
from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels
from slipway_operator.model.cluster.plan import Event

KINDS = (CONTROLLER_REVISIONS, SERVICES, REPLICA_SETS)
MOST_DIGITS = 4  # of a count of collisions

log = logging.getLogger(__name__)


async def adopt(client: Client, obj: Object, children: ByKind, now: datetime) -> bool:
    """Make the orphans among the children of a ModelDeployment ours; returns whether there were any that are now.

    Raises:
        Stale: when one of them, or the ModelDeployment, changed since it was read.
        Leaving: when the namespace is being deleted.
    """
    orphans = list(orphans_of(children, obj["metadata"]["name"]))
    if not orphans:
        return False
    await _check_owner(client, obj)
    adopted = [
        f"{kind.kind} {item['metadata']['name']}" for kind, item in orphans if await _adopt(client, kind, obj, item)
    ]
    if adopted:
        text = f"{', '.join(adopted)} had no controller, and is controlled by this ModelDeployment now"
        await events.post(client, obj, Event("Normal", "OrphansAdopted", text), now)
    return bool(adopted)


def orphans_of(children: ByKind, name: str) -> Iterable[tuple[Resource, Object]]:
    """Yield what was a child of this ModelDeployment: by labels and name, and by the hash of what a revision runs."""
    for kind in KINDS:
        for item in children[kind]:
            if is_orphan(item, name) and is_proved(kind, item, children, name):
                yield kind, item


async def _check_owner(client: Client, obj: Object) -> None:
    """As the API server has it: a ModelDeployment that is deleted, or a former one of its name, adopts nothing."""
    metadata = obj["metadata"]
    try:
        live = await subjects.read(client, (metadata["namespace"], metadata["name"]))
    except NotFound as error:
        raise Stale(str(error)) from error
    if live["metadata"]["uid"] != metadata["uid"] or is_leaving(live):
        raise Stale(f"{metadata['namespace']}/{metadata['name']} is another object now, or is being deleted")


async def _adopt(client: Client, kind: Resource, obj: Object, item: Object) -> bool:
    metadata = item["metadata"]
    # With the version that was read: of two controllers the second one gets a conflict.
    change = {
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
        "ownerReferences": [*(metadata.get("ownerReferences") or ()), Owner.of(obj).reference()],
    }
    try:
        await client.patch(kind, metadata["namespace"], metadata["name"], {"metadata": change})
    except NotFound as error:
        raise Stale(str(error)) from error
    except Leaving:
        raise
    except Refused as error:
        log.warning("%s %s cannot be adopted: %s", kind.kind, metadata["name"], error)
        return False
    return True


def is_orphan(item: Object, name: str) -> bool:
    """Whether an object has the labels and the name of a child of this ModelDeployment, and no controller."""
    metadata = item["metadata"]
    marks = metadata.get("labels") or {}
    revision = str(marks.get(labels.REVISION) or "")
    is_marked = (marks.get(labels.MODEL_DEPLOYMENT), marks.get(labels.MANAGED_BY)) == (name, "slipway")
    is_free = not is_controlled(item) and not is_leaving(item)
    return is_free and is_marked and bool(revision) and _is_named(metadata["name"], name, revision)


def _is_named(child: str, name: str, revision: str) -> bool:
    """Whether a child has its plain name, or the one with the count of collisions; see status.collisionCount."""
    count = child.removesuffix(revision.removeprefix(labels.what_runs(revision))).rpartition("-")[2]
    collisions = int(count) if count.isdecimal() and len(count) <= MOST_DIGITS else 0
    return child in (labels.child_name(name, revision), labels.child_name(name, revision, collisions))
