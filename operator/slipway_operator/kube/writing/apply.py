"""Executes a Plan exactly and in order: create, annotate, gates, scale, status, delete, evict, events."""

import logging
from datetime import datetime

from slipway_operator.api.objects import Object
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.kube import subjects
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Exists, Leaving, NotFound, Refused, Stale, Unavailable
from slipway_operator.kube.ownership import foreign_controller, is_controlled, is_controlled_by, is_leaving
from slipway_operator.kube.resources import (
    CONTROLLER_REVISIONS,
    LEADER_WORKER_SETS,
    PODS,
    WORKLOADS,
    Resource,
    child,
)
from slipway_operator.kube.writing import events
from slipway_operator.model import labels
from slipway_operator.model.cluster.plan import Annotate, Create, Delete, Evict, Gate, Plan, Scale
from slipway_operator.model.deployment.status import render

INVALID = 422  # HTTP status: the object is invalid, or a changed field is immutable

log = logging.getLogger(__name__)


class CannotCreate(Refused):
    """The API server rejected a child; the message is for the user."""


class NameTaken(CannotCreate):
    """An object that can never be ours has the name of a child; the child needs another name."""


async def execute(client: Client, obj: Object, plan: Plan, now: datetime) -> bool:
    """Execute the plan; returns False when only an Event could not be posted.

    Every step may be repeated: after a crash the next reconcile plans the same again.

    Raises:
        Stale: when the ModelDeployment or a child changed since it was read.
        NameTaken: when a child of a revision needs another name.
        CannotCreate: when quota, admission or permissions forbid a child.
        Leaving: when the namespace is being deleted.
    """
    for create in plan.create:
        await create_child(client, obj, create)
    for item in plan.annotate:
        await _annotate(client, obj, item)
    for gate in plan.gates:
        await _set_gate(client, obj, gate)
    for scale in plan.scale:
        await _set_costs(client, obj, scale)
        await _scale(client, obj, scale)
    await write_status(client, obj, plan.status)
    for delete in plan.delete:
        await _delete(client, obj, delete)
    for evict in plan.evict:
        await _evict(client, obj, evict)
    return await events.post_all(client, obj, plan.events, now)


async def autoscale(client: Client, create: Create) -> str:
    """Create or update the autoscaler; returns why the API server refuses it, empty when it does not.

    Raises:
        Leaving: when the namespace is being deleted.
    """
    resource, manifest = child(create.manifest["apiVersion"], create.manifest["kind"]), create.manifest
    try:
        await client.apply(resource, manifest)
    except Leaving:
        raise
    except (Refused, Unavailable) as error:  # for example an admission webhook that is down
        return f"{manifest['kind']} {manifest['metadata']['name']} cannot be created: {error}"
    except NotFound as error:
        raise Stale(str(error)) from error
    return ""


async def create_child(client: Client, obj: Object, create: Create) -> None:
    """Create or adopt one child of the plan.

    Raises:
        NameTaken: when a foreign object has its name.
        CannotCreate: when quota, admission or permissions forbid it.
        Stale: when the namespace is gone or not known yet.
        Leaving: when the namespace is being deleted.
    """
    resource = child(create.manifest["apiVersion"], create.manifest["kind"])
    manifest = await _named(client, obj, resource, create)
    what = f"{manifest['kind']} {manifest['metadata']['name']}"
    try:
        live = await _apply(client, obj, resource, manifest)
    except (Leaving, NameTaken):
        raise
    except Refused as error:
        if error.status == INVALID and (why := await _why_taken(client, obj, resource, manifest)):
            raise NameTaken(error.status, f"{what} {why}") from error
        raise CannotCreate(error.status, f"{what} cannot be created: {error.message}") from error
    except NotFound as error:
        # The namespace is gone or not known yet: read again.
        raise Stale(str(error)) from error
    if is_leaving(live) and _is_of_revision(manifest):
        raise NameTaken(0, f"{what} is being deleted, and a finalizer holds it")


async def _named(client: Client, obj: Object, resource: Resource, create: Create) -> Object:
    """Return the manifest with the name of the existing object (`create.uid`), which may differ from the plan's."""
    metadata = create.manifest["metadata"]
    there = await client.metadata(resource, metadata["namespace"]) if create.uid else []
    former = (item for item in there if item["metadata"]["uid"] == create.uid)
    names = (item["metadata"]["name"] for item in former if not foreign_controller(item, obj) and not is_leaving(item))
    return {**create.manifest, "metadata": {**metadata, "name": next(names, metadata["name"])}}


async def _why_taken(client: Client, obj: Object, resource: Resource, manifest: Object) -> str:
    """Return why an existing object cannot become the child; empty when there is none, or it is about to go."""
    if not _is_of_revision(manifest):
        return ""
    try:
        live = await client.get(resource, manifest["metadata"]["namespace"], manifest["metadata"]["name"])
    except NotFound:
        return ""
    if controller := foreign_controller(live, obj):
        return f"is controlled by {controller}"
    is_namesakes = is_controlled(live) and not is_controlled_by(live, obj["metadata"]["uid"])
    return "" if is_namesakes else "is there with another content, which cannot be changed"


async def _apply(client: Client, obj: Object, resource: Resource, manifest: Object) -> Object:
    """Create the child or update it, in whatever order others write.

    A change of a LeaderWorkerSet restarts its pods. So one is updated only if it is ours, as the object that was read.
    """
    if resource is not LEADER_WORKER_SETS:
        return await client.apply(resource, manifest)
    metadata = manifest["metadata"]
    try:
        live = await client.get(resource, metadata["namespace"], metadata["name"])
    except NotFound:
        return await _create(client, resource, manifest)
    if why := _why_not_ours(live, obj, manifest):
        raise NameTaken(0, f"{manifest['kind']} {metadata['name']} {why}")
    return await client.apply(resource, {**manifest, "metadata": {**metadata, "uid": live["metadata"]["uid"]}})


async def _create(client: Client, resource: Resource, manifest: Object) -> Object:
    try:
        return await client.create(resource, manifest)
    except Exists as error:  # since it was read
        raise Stale(str(error)) from error


def _why_not_ours(live: Object, obj: Object, manifest: Object) -> str:
    """Return why an existing LeaderWorkerSet is not the child; empty when it is."""
    metadata = manifest["metadata"]
    if controller := foreign_controller(live, obj):
        return f"is controlled by {controller}"
    had, wanted = live["metadata"].get("labels") or {}, metadata["labels"]
    is_named = all(had.get(key) == wanted[key] for key in (labels.MODEL_DEPLOYMENT, labels.REVISION))
    is_ours = is_named or is_controlled_by(live, obj["metadata"]["uid"])
    return "" if is_ours else "is there and belongs to no ModelDeployment"


def _is_of_revision(manifest: Object) -> bool:
    """Whether the child may have another name, because it is found by its revision label."""
    return labels.REVISION in manifest["metadata"].get("labels", {})


async def _annotate(client: Client, obj: Object, item: Annotate) -> None:
    """Write what helps after a loss. A refusal is logged: nothing else waits for it."""
    body: Object = {"metadata": {"annotations": {item.annotation: item.text}}}
    [resource] = (one for one in (*WORKLOADS, CONTROLLER_REVISIONS) if one.kind == item.kind)
    try:
        await client.patch(resource, obj["metadata"]["namespace"], item.name, body)
    except NotFound as error:
        raise Stale(str(error)) from error
    except Leaving:
        raise
    except Refused as error:
        log.warning("%s %s has no annotation %s: %s", item.kind, item.name, item.annotation, error)


async def _scale(client: Client, obj: Object, scale: Scale) -> None:
    """Set the replicas of a workload.

    For a revision that a pool serves, set the annotation that makes it an entry; its ReplicaSet stays without pods.
    """
    pooled = scale.kind == labels.POOL_KIND
    body: Object = {"spec": {"replicas": scale.replicas}}
    if pooled:
        body = {"metadata": {"annotations": {labels.POOL_REPLICAS: str(scale.replicas)}}}
    if scale.uid:
        body = {**body, "metadata": {"uid": scale.uid}}
    [resource] = (item for item in WORKLOADS if item.kind == ("ReplicaSet" if pooled else scale.kind))
    try:
        await client.patch(resource, obj["metadata"]["namespace"], scale.name, body)
    except NotFound as error:
        raise Stale(str(error)) from error


async def _set_gate(client: Client, obj: Object, gate: Gate) -> None:
    """Let a standby pod take requests, or no more.

    The label decides: gateways find pods by it. So the gate is open before the label says that the pod serves, and the
    label says that it does not before the gate is closed.
    """
    namespace = obj["metadata"]["namespace"]
    marks: Object = {"metadata": {"uid": gate.uid, "labels": {labels.REVISION: gate.revision}}}
    try:
        if gate.serves:
            await client.set_condition(PODS, namespace, gate.pod, gate.uid, labels.SERVING, met=True)
        await client.patch(PODS, namespace, gate.pod, marks)
        if not gate.serves:
            await client.set_condition(PODS, namespace, gate.pod, gate.uid, labels.SERVING, met=False)
    except NotFound as error:
        raise Stale(str(error)) from error
    except Leaving:
        raise
    except Refused as error:
        # Without it replicas would be missing: the status has to show why.
        raise CannotCreate(error.status, f"standby pod {gate.pod} cannot be changed: {error.message}") from error


async def _set_costs(client: Client, obj: Object, scale: Scale) -> None:
    """Write the pods' deletion costs, the highest first. A refusal is logged; the ReplicaSet then chooses by age."""
    for pod, cost in sorted(scale.costs, key=lambda item: -item[1]):
        annotations = {labels.DELETION_COST: str(cost)}
        try:
            await client.patch(PODS, obj["metadata"]["namespace"], pod, {"metadata": {"annotations": annotations}})
        except NotFound:
            continue
        except (Refused, Unavailable) as error:
            log.warning("pods of %s have no deletion costs, so busy ones may go first: %s", scale.name, error)
            return


async def write_status(client: Client, obj: Object, status: Status) -> None:
    """Replace the status unless it is unchanged.

    Raises:
        Stale: when the ModelDeployment changed since it was read.
    """
    rendered = render(status)
    if rendered == (obj.get("status") or {}):
        return
    try:
        # The object has the resourceVersion that was read: a write over a newer version raises Stale.
        resource = subjects.resource_of(obj["metadata"]["name"])
        await client.put_status(resource, {**subjects.as_stored(obj), "status": rendered})
    except NotFound as error:
        raise Stale(str(error)) from error


async def _delete(client: Client, obj: Object, delete: Delete) -> None:
    metadata = obj["metadata"]
    resource = child(delete.api_version, delete.kind)
    try:
        live = await client.get(resource, metadata["namespace"], delete.name)
        if not _is_ours(live, obj):
            log.warning("%s %s is not ours: it stays", delete.kind, delete.name)
        elif not is_leaving(live):
            await client.delete(resource, metadata["namespace"], delete.name, live["metadata"]["uid"])
    except NotFound:
        return


async def _evict(client: Client, obj: Object, evict: Evict) -> None:
    """Evict a pod; where a disruption budget forbids it now, the next plan retries."""
    try:
        # A worker of the former group, started again, would join the new leader, which has the same address.
        await client.evict(obj["metadata"]["namespace"], evict.pod, evict.uid, with_dependents=evict.with_group)
    except NotFound:
        return
    except (Refused, Stale, Unavailable) as error:
        log.info("pod %s may not leave yet: %s", evict.pod, error)


def _is_ours(live: Object, obj: Object) -> bool:
    label = (live["metadata"].get("labels") or {}).get(labels.MODEL_DEPLOYMENT)
    return label == obj["metadata"]["name"] and is_controlled_by(live, obj["metadata"]["uid"])
