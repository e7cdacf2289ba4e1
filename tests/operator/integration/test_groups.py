"""Replicas of several pods on a real API server with LeaderWorkerSet's own CRD; its controller is played here."""

import asyncio
import contextlib
from datetime import UTC, datetime

import pytest
import yaml

from devcluster.node.leader_worker_set import crd
from devcluster.places import places
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.kube.errors import ApiError, NotFound, Stale
from slipway_operator.kube.resources import (
    EVENTS,
    LEADER_WORKER_SETS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from slipway_operator.kube.writing import apply
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.planning.decided import PlanSettings
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.pods import set_ready
from tests.support.planned import plan

pytestmark = pytest.mark.integration

CRDS = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
NAME = "leaderworkersets.leaderworkerset.x-k8s.io"
LABELS = "leaderworkerset.sigs.k8s.io"
ENGINE = {"type": "custom", "image": "engine:1", "command": ["serve"], "parallelism": {"nodes": 2}}
SPEC = {
    "model": {"uri": "file:///opt/slipway/models/tiny-v1"},
    "replicas": 1,
    "engine": ENGINE,
    "strategy": {"canary": {"steps": [{"setWeight": 50}, {"pause": {}}]}},
}


@pytest.fixture
async def kind(client):
    """A switch that installs LeaderWorkerSet's CRD; the API server is without it before and after."""
    await _remove(client)

    async def install():
        made = yaml.safe_load(crd(places()).read_text())
        await client.apply(CRDS, made)
        await until_async(lambda: _served(client), "the kind is served", 30)

    yield install
    await _remove(client)


async def _served(client):
    try:
        await client.list(LEADER_WORKER_SETS, "default")
    except NotFound:
        return False
    return True


async def _remove(client):
    with contextlib.suppress(NotFound):
        found = await client.get(CRDS, None, NAME)
        await client.delete(CRDS, None, NAME, found["metadata"]["uid"])

    async def gone():
        return not await _served(client)

    await until_async(gone, "the kind is not served", 30)


async def deploy(client, namespace, **spec):
    metadata = {"name": "chat", "namespace": namespace}
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "metadata": metadata, "spec": SPEC | spec}
    return await client.create(MODEL_DEPLOYMENTS, body)


@pytest.fixture
async def controller(client, namespace):
    """What LeaderWorkerSet's controller and the kubelets make of each set: a StatefulSet, leaders and workers."""

    async def run():
        while True:
            with contextlib.suppress(ApiError):
                for item in await client.list(LEADER_WORKER_SETS, namespace):
                    await follow(client, item)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(run())
    yield
    task.cancel()


async def follow(client, item):
    metadata, replicas = item["metadata"], item["spec"]["replicas"]
    namespace, name = metadata["namespace"], metadata["name"]
    owner = {"apiVersion": item["apiVersion"], "kind": item["kind"], "name": name, "uid": metadata["uid"]}
    leaders = await _stateful_set(client, namespace, name, owner)
    for group in range(replicas):
        await _pod(client, item, "leaderTemplate", f"{name}-{group}", group, leaders)
        workers = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"{name}-{group}", "uid": "workers"}
        await _pod(client, item, "workerTemplate", f"{name}-{group}-1", group, workers)
    for pod in await client.list(PODS, namespace, f"{LABELS}/name={name}"):
        if int(pod["metadata"]["labels"][f"{LABELS}/group-index"]) >= replicas:
            await client.delete(PODS, namespace, pod["metadata"]["name"], pod["metadata"]["uid"])


async def _stateful_set(client, namespace, name, owner):
    selector = {"matchLabels": {f"{LABELS}/name": name}}
    template = {"metadata": {"labels": {f"{LABELS}/name": name}}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner | {"controller": True}]},
        "spec": {"serviceName": name, "selector": selector, "template": template},
    }
    made = await client.apply(STATEFUL_SETS, body)
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": made["metadata"]["uid"]}


async def _pod(client, item, template, name, group, owner):
    made = item["spec"]["leaderWorkerTemplate"][template]
    index = "0" if template == "leaderTemplate" else "1"
    marks = {f"{LABELS}/name": item["metadata"]["name"], f"{LABELS}/group-index": str(group)}
    labels = made["metadata"]["labels"] | marks | {f"{LABELS}/worker-index": index}
    namespace = item["metadata"]["namespace"]
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": labels,
        "ownerReferences": [owner | {"controller": True}],
    }
    container = {"name": "server", "image": "none", "ports": [{"name": "http", "containerPort": 8000}]}
    with contextlib.suppress(ApiError):  # it is there
        await client.create(PODS, {"metadata": metadata, "spec": {"containers": [container]}})
    await set_ready(client, namespace, name, own_address())


async def sets(client, namespace):
    return {item["metadata"]["name"]: item for item in await client.list(LEADER_WORKER_SETS, namespace)}


async def test_it_waits_for_the_installation_and_is_served_by_groups_then(cluster, client, kind, controller):
    namespace = cluster.namespace
    await deploy(client, namespace)
    refused = await cluster.reaches("it is refused", lambda now: now.get("reason") == "LeaderWorkerSetNotInstalled")
    assert "helm install lws" in refused["message"]
    assert await client.list(REPLICA_SETS, namespace) == []
    await kind()

    async def phase():
        return (await cluster.chat())["status"].get("phase")

    await until_async(phase, "it serves", 60, holds=lambda found: found == "Healthy")
    [made] = (await sets(client, namespace)).values()
    status = (await cluster.chat())["status"]
    [revision] = status["revisions"]
    leaders = await client.get(STATEFUL_SETS, namespace, made["metadata"]["name"])
    assert (revision["ready"], revision["replicaSetUid"]) == (1, leaders["metadata"]["uid"])
    assert await client.list(REPLICA_SETS, namespace) == []
    assert not await client.list(SERVICES, namespace, "slipway.dev/modeldeployment=chat"), "LeaderWorkerSet makes one"
    scale = await client.request("GET", MODEL_DEPLOYMENTS.path(namespace, "chat", "scale"))
    assert scale["status"]["selector"].endswith(",app.kubernetes.io/component=server")


async def test_groups_that_cannot_be_created_have_the_reason_of_their_controller(cluster, client, kind):
    """A quota, an admission policy: only Events of the StatefulSet have it."""
    namespace = cluster.namespace
    await kind()
    await deploy(client, namespace)
    await until_async(lambda: sets(client, namespace), "a set is made", 30)
    [item] = (await sets(client, namespace)).values()
    name = item["metadata"]["name"]
    owner = {"apiVersion": item["apiVersion"], "kind": item["kind"], "name": name, "uid": item["metadata"]["uid"]}
    leaders = await _stateful_set(client, namespace, name, owner)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = f'create Pod {name}-0 in StatefulSet {name} failed error: pods "{name}-0" is forbidden: exceeded quota: gpus'
    event = {
        "metadata": {"name": f"{name}.refused", "namespace": namespace},
        "involvedObject": {**leaders, "namespace": namespace},
        "reason": "FailedCreate",
        "message": text,
        "type": "Warning",
        "firstTimestamp": now,
        "lastTimestamp": now,
    }
    await client.create(EVENTS, event)
    status = await cluster.reaches("the reason is shown", lambda found: found.get("reason") == "QuotaExceeded")
    [available] = [one for one in status["conditions"] if one["type"] == "Available"]
    assert text in available["message"]


async def test_a_canary_of_groups_is_another_set_and_the_template_of_the_first_never_changes(
    cluster, client, kind, controller
):
    namespace = cluster.namespace
    await kind()
    await deploy(client, namespace)
    await cluster.reaches("it serves", lambda now: now.get("phase") == "Healthy")
    [(name, first)] = (await sets(client, namespace)).items()
    await cluster.edit({"replicas": 2})
    await cluster.reaches("two groups are ready", lambda now: now.get("ready") == "2/2")
    await cluster.edit({"model": {"uri": "file:///opt/slipway/models/tiny-v2"}})
    paused = await cluster.reaches("it pauses", lambda now: (now.get("rollout") or {}).get("state") == "Paused")
    now = await sets(client, namespace)
    assert len(now) == 2
    assert now[name]["spec"]["replicas"] == 2
    assert now[name]["spec"]["leaderWorkerTemplate"] == first["spec"]["leaderWorkerTemplate"]
    await cluster.edit({"rollout": {"promote": paused["rollout"]["token"]}, "replicas": 1})
    await cluster.reaches("it is promoted", lambda now: now.get("stableRevision") == paused["canaryRevision"])


async def test_a_foreign_set_keeps_its_name_and_its_template(cluster, client, kind, controller):
    namespace = cluster.namespace
    await kind()
    await deploy(client, namespace, replicas=0)
    await until_async(lambda: sets(client, namespace), "a set is made", 30)
    [(name, ours)] = (await sets(client, namespace)).items()
    other = {"apiVersion": ours["apiVersion"], "kind": ours["kind"], "metadata": {"name": name, "namespace": namespace}}

    async def taken():
        """The operator may make its set again before the foreign one is there: then that one goes too."""
        if (now := (await sets(client, namespace)).get(name)) and now["metadata"].get("labels"):
            await client.delete(LEADER_WORKER_SETS, namespace, name, now["metadata"]["uid"])
        await client.apply(LEADER_WORKER_SETS, other | {"spec": ours["spec"] | {"replicas": 5}})
        return not (await sets(client, namespace))[name]["metadata"].get("labels")

    await until_async(taken, "the name is a foreign set's", 30)
    await cluster.edit({"replicas": 1})  # sets are not watched, and one without groups has no pod whose end is seen

    async def named():
        return set(await sets(client, namespace)) - {name}

    [replacement] = await until_async(named, "ours has another name", 60)
    found = await sets(client, namespace)
    assert found[name]["spec"]["replicas"] == 5 and not found[name]["metadata"].get("labels")
    assert replacement.startswith("chat-")


class Late:
    """A client for which the foreign set is made right after its name was found free."""

    def __init__(self, client, foreign):
        self._client, self._foreign = client, foreign

    def __getattr__(self, name):
        return getattr(self._client, name)

    async def get(self, resource, namespace, name):
        try:
            return await self._client.get(resource, namespace, name)
        except NotFound:
            if resource is LEADER_WORKER_SETS:
                await self._foreign(name)
            raise


async def test_a_foreign_set_that_is_made_while_ours_is_made_stays_as_it_is(client, namespace, kind):
    await kind()
    chat = await deploy(client, namespace)
    planned = plan(
        chat, Status(), Observed(), PlanSettings("slipway-server:test", "http://gateway/v1"), datetime.now(UTC)
    )
    [create] = (item for item in planned.create if item.manifest["kind"] == LEADER_WORKER_SETS.kind)
    spec = create.manifest["spec"] | {"replicas": 5}

    async def foreign(name):
        metadata = {"name": name, "namespace": namespace}
        await client.create(LEADER_WORKER_SETS, create.manifest | {"metadata": metadata, "spec": spec})

    with pytest.raises(Stale):
        await apply.create_child(Late(client, foreign), chat, create)
    with pytest.raises(apply.NameTaken, match="belongs to no ModelDeployment"):
        await apply.create_child(client, chat, create)
    [found] = (await sets(client, namespace)).values()
    assert found["spec"]["replicas"] == 5 and "ownerReferences" not in found["metadata"]
