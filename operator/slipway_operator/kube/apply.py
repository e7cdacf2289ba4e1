"""Executes a Plan to the letter and in order: create, scale, status, delete, evict, events."""

import logging
from datetime import datetime
from typing import Any

from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.kube import events
from slipway_operator.kube.autoscalers import belongs_to
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Leaving, NotFound, Refused, Stale, Unavailable
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS, REPLICA_SETS, child
from slipway_operator.model import labels
from slipway_operator.model.plan import Create, Delete, Evict, Plan, Scale
from slipway_operator.model.status import render

Object = dict[str, Any]

log = logging.getLogger(__name__)


class CannotCreate(Refused):
    """The API server does not let us have a child; the message is for the user."""


async def execute(client: Client, obj: Object, plan: Plan, now: datetime) -> bool:
    """Do what the plan says; False when only an Event could not be told.

    Every step may be repeated: after a crash the next reconcile plans the same again.

    Raises:
        Stale: when the ModelDeployment or a child changed since it was read.
        CannotCreate: when quota, admission or permissions forbid a child.
        Leaving: when the namespace is being deleted.
    """
    for create in plan.create:
        await _create(client, create)
    for scale in plan.scale:
        await _scale(client, obj, scale)
    await write_status(client, obj, plan.status)
    for delete in plan.delete:
        await _delete(client, obj, delete)
    for evict in plan.evict:
        await _evict(client, obj, evict)
    return all([await events.post(client, obj, event, now) for event in plan.events])


async def _create(client: Client, create: Create) -> None:
    manifest = create.manifest
    try:
        await client.apply(child(manifest["apiVersion"], manifest["kind"]), manifest)
    except Leaving:
        raise
    except Refused as error:
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        raise CannotCreate(error.status, f"{what} cannot be created: {error.message}") from error
    except NotFound as error:
        # A namespace that is gone or not known yet: look again.
        raise Stale(str(error)) from error


async def _scale(client: Client, obj: Object, scale: Scale) -> None:
    try:
        await client.patch(
            REPLICA_SETS, obj["metadata"]["namespace"], scale.name, {"spec": {"replicas": scale.replicas}}
        )
    except NotFound as error:
        raise Stale(str(error)) from error


async def write_status(client: Client, obj: Object, status: Status) -> None:
    """Replace the status, unless it is there already.

    Raises:
        Stale: when the ModelDeployment changed since it was read.
    """
    rendered = render(status)
    if rendered == (obj.get("status") or {}):
        return
    try:
        # The object as it was read carries its resourceVersion: a write on top of a newer one becomes Stale.
        await client.put_status(MODEL_DEPLOYMENTS, {**obj, "status": rendered})
    except NotFound as error:
        raise Stale(str(error)) from error


async def _delete(client: Client, obj: Object, delete: Delete) -> None:
    metadata = obj["metadata"]
    resource = child(delete.api_version, delete.kind)
    try:
        live = await client.get(resource, metadata["namespace"], delete.name)
        if not _is_ours(live, obj):
            log.warning("%s %s is not ours: it stays", delete.kind, delete.name)
        elif not live["metadata"].get("deletionTimestamp"):
            await client.delete(resource, metadata["namespace"], delete.name, live["metadata"]["uid"])
    except NotFound:
        return


async def _evict(client: Client, obj: Object, evict: Evict) -> None:
    """A disruption budget may say not now: the plan asks again."""
    try:
        await client.evict(obj["metadata"]["namespace"], evict.pod)
    except NotFound:
        return
    except (Refused, Unavailable) as error:
        log.info("pod %s may not leave yet: %s", evict.pod, error)


def _is_ours(live: Object, obj: Object) -> bool:
    label = (live["metadata"].get("labels") or {}).get(labels.MODEL_DEPLOYMENT)
    return label == obj["metadata"]["name"] and belongs_to(live, obj["metadata"]["uid"])
