"""A tool that applies the same manifest for ever, beside people who promote, abort and undo.

The tool is a loop of server-side applies, as Argo CD and Flux send them; operator, gateway and API server are real.
"""

import asyncio
import contextlib
from copy import deepcopy

import pytest
import yaml

from slipway_cli.cluster.client import FIELD_MANAGER
from slipway_cli.objects.deployment import read_deployment
from slipway_cli.objects.history import read_records
from slipway_cli.rollouts import intents
from slipway_operator.kube.resources import CONTROLLER_REVISIONS, MODEL_DEPLOYMENTS
from testkit import ROOT
from testkit.cluster.api import GROUP_PATH
from testkit.world.pods import MERGE

pytestmark = pytest.mark.integration

APPLY, JSON_PATCH = "application/apply-patch+yaml", "application/json-patch+json"
ARGO_CD, FLUX = "argocd-controller", "kustomize-controller"
TIMES = 100
V1, V2 = "file:///opt/slipway/models/tiny-v1", "file:///opt/slipway/models/tiny-v2"
CANARY = {"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 50}, {"pause": {}}], "scaleDownDelaySeconds": 0}
# What fills in defaults: of fields, of items of lists, of maps that are left out.
KINDS = {
    "modeldeployments": "canary.yaml",
    "modeladapters": "adapters.yaml",
    "modelpools": "pool.yaml",
    "modelroutes": "model-route.yaml",
    "experiments": "experiment.yaml",
}


def manifest(namespace, uri=V1, **spec):
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"model": {"uri": uri}, "strategy": {"canary": deepcopy(CANARY)}, **spec},
    }


class Tool:
    """Applies one manifest again and again, and takes over what people changed as Flux does where it `takes_over`."""

    def __init__(self, client, wanted, *, manager=ARGO_CD, takes_over=False):
        self.client, self.wanted, self.applied = client, wanted, 0
        self._manager, self._takes_over = manager, takes_over
        self._synced = asyncio.Event()
        self._path = MODEL_DEPLOYMENTS.path(wanted["metadata"]["namespace"], wanted["metadata"]["name"])

    async def apply(self):
        """One sync; the object then."""
        if self._takes_over and self.applied:
            await self._take_over()
        query = [("fieldManager", self._manager), ("force", "true")]
        found = await self.client.request("PATCH", self._path, query, self.wanted, APPLY)
        self.applied += 1
        self._synced.set()
        return found

    @contextlib.asynccontextmanager
    async def running(self):
        """It heals for as long as the block lasts."""
        task = asyncio.create_task(self._heal())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def applies(self, times):
        """Wait until it has applied this often from now on."""
        for _ in range(times):
            self._synced.clear()
            await asyncio.wait_for(self._synced.wait(), 20)

    async def _heal(self):
        while True:
            await self.apply()
            await asyncio.sleep(0.05)

    async def _take_over(self):
        """Fields that kubectl set become the tool's own, so that the next apply removes those that git lacks."""
        obj = await self.client.request("GET", self._path)
        entries = obj["metadata"]["managedFields"]
        renamed = [
            {**one, "manager": self._manager, "operation": "Apply"}
            if one["manager"].startswith("kubectl") and not one.get("subresource")
            else one
            for one in entries
        ]
        if renamed != entries:
            patch = [{"op": "replace", "path": "/metadata/managedFields", "value": renamed}]
            await self.client.request("PATCH", self._path, [], patch, JSON_PATCH)


async def person(cluster, decide, manager=FIELD_MANAGER):
    """A command of a person, sent as the command line sends it, or by kubectl as `manager`."""
    obj = await cluster.chat()
    change = decide(read_deployment(obj))
    assert isinstance(change, intents.Change), change
    path = MODEL_DEPLOYMENTS.path(cluster.namespace, "chat")
    await cluster.client.request("PATCH", path, [("fieldManager", manager)], {"spec": change.spec}, MERGE)
    return change.spec["rollout"]


async def undone(cluster):
    obj = await cluster.chat()
    records = read_records(await cluster.client.list(CONTROLLER_REVISIONS, cluster.namespace), obj["metadata"]["uid"])
    return lambda of: intents.undo(of, records, None)


def idle(status):
    return status.get("phase") == "Healthy" and not status.get("rollout")


def paused_at(step):
    return lambda status: status.get("phase") == "Paused" and status.get("step") == step


async def canary_of_v2(cluster, tool):
    """The tool brought up v1, and v2 is in its first pause."""
    await tool.apply()
    await cluster.reaches("v1 serves", idle)
    tool.wanted = manifest(cluster.namespace, V2)
    await tool.apply()
    await cluster.reaches("v2 is in its pause", paused_at("2/4"))


@pytest.mark.parametrize("plural", KINDS)
def test_a_manifest_that_is_applied_a_hundred_times_changes_nothing(api, namespace, plural):
    documents = yaml.safe_load_all((ROOT / "examples" / KINDS[plural]).read_text())
    wanted = next(one for one in documents if f"{one['kind'].lower()}s" == plural)
    wanted["metadata"]["namespace"] = namespace
    path = f"{GROUP_PATH}/namespaces/{namespace}/{plural}/{wanted['metadata']['name']}"
    _applied_for_ever(api, path, wanted)


def test_a_tenant_that_is_applied_a_hundred_times_changes_nothing(api, namespace):
    wanted = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": namespace},  # Tenants belong to no namespace
        "spec": {"models": ["*"], "disabled": True},
    }
    path = f"{GROUP_PATH}/tenants/{namespace}"
    try:
        _applied_for_ever(api, path, wanted)
    finally:
        api.delete(path)


async def test_neither_the_tool_nor_the_operator_undoes_what_the_other_wrote(cluster):
    tool = Tool(cluster.client, manifest(cluster.namespace))
    await tool.apply()
    await cluster.reaches("v1 serves", idle)
    await cluster.reaches("the former revision of the table is acknowledged", lambda status: _is_synced(status))
    before = await cluster.chat()
    for _ in range(TIMES):
        await tool.apply()
    after = await cluster.chat()
    assert after["metadata"]["generation"] == before["metadata"]["generation"] == 1
    assert after["spec"] == before["spec"]
    assert after["status"]["currentRevision"] == before["status"]["currentRevision"]
    assert len(await cluster.client.list(CONTROLLER_REVISIONS, cluster.namespace)) == 1


async def test_self_heal_leaves_promotions_aborts_and_rollbacks_of_people(cluster):
    tool = Tool(cluster.client, manifest(cluster.namespace))
    await canary_of_v2(cluster, tool)
    async with tool.running():
        wrote = await person(cluster, intents.promote)
        await cluster.reaches("the next pause", paused_at("4/4"))
        await tool.applies(10)
        assert (await cluster.chat())["spec"]["rollout"] == wrote
        await person(cluster, intents.abort)
        await cluster.reaches("v2 is rejected", lambda status: (status.get("rollout") or {}).get("state") == "Aborted")
        generation = (await cluster.chat())["metadata"]["generation"]
        await tool.applies(20)
        assert (await cluster.chat())["metadata"]["generation"] == generation, "the manifest still names v2"
        assert (await cluster.chat())["status"]["rollout"]["state"] == "Aborted"
        await person(cluster, intents.retry)
        await cluster.reaches("v2 is tried again", paused_at("2/4"))
        await person(cluster, intents.promote_full)
        status = await cluster.reaches("v2 serves", idle)
        v2 = status["stableRevision"]
        await person(cluster, await undone(cluster))
        await cluster.reaches("v1 serves again", lambda status: idle(status) and status["stableRevision"] != v2)
        await tool.applies(20)
        status = (await cluster.chat())["status"]
        assert status["stableRevision"] != v2 and not status.get("rollout")
        assert _true(status) == ["Stalled"], "git describes v2"


async def test_flux_takes_a_token_of_kubectl_away_after_it_has_acted(cluster):
    """Flux removes what kubectl wrote and git lacks. Tokens are commands: once acted upon nothing needs them."""
    tool = Tool(cluster.client, manifest(cluster.namespace), manager=FLUX, takes_over=True)
    await canary_of_v2(cluster, tool)
    await person(cluster, intents.promote, "kubectl-patch")
    await cluster.reaches("the next pause", paused_at("4/4"))
    assert not (await tool.apply())["spec"].get("rollout")
    await cluster.reaches("it stays there", paused_at("4/4"))
    await person(cluster, intents.abort, "kubectl-edit")
    await cluster.reaches("v2 is rejected", lambda status: (status.get("rollout") or {}).get("state") == "Aborted")
    for _ in range(3):
        assert not (await tool.apply())["spec"].get("rollout")
    status = await cluster.reaches("the operator has read it", lambda status: _is_synced(status))
    assert status["rollout"]["state"] == "Aborted", "a rejection is in the status"


async def test_flux_ends_a_rollback_of_kubectl_and_not_one_of_slipway(cluster):
    """A rollback holds for as long as the field is there: so it is written by `slipway undo`, or in git."""
    tool = Tool(cluster.client, manifest(cluster.namespace), manager=FLUX, takes_over=True)
    await canary_of_v2(cluster, tool)
    await person(cluster, intents.promote_full)
    v2 = (await cluster.reaches("v2 serves", idle))["stableRevision"]
    await person(cluster, await undone(cluster))
    await cluster.reaches("v1 serves again", lambda status: idle(status) and status["stableRevision"] != v2)
    kept = await tool.apply()
    assert kept["spec"]["rollout"]["rollbackTo"].startswith(f"{v2}/")
    await person(cluster, await undone(cluster))
    await cluster.reaches("v2 goes out again, by its steps", paused_at("2/4"))
    await person(cluster, intents.promote_full)
    await cluster.reaches("v2 serves", lambda status: idle(status) and status["stableRevision"] == v2)
    await person(cluster, await undone(cluster), "kubectl-patch")
    await cluster.reaches("v1 serves again", lambda status: idle(status) and status["stableRevision"] != v2)
    assert "rollbackTo" not in (await tool.apply())["spec"]["rollout"]
    await cluster.reaches("v2 goes out again, as git describes it", paused_at("2/4"))


def _applied_for_ever(api, path, wanted):
    """The second apply stores the default of the status, which the operator's first write otherwise does."""
    first = api.apply(path, wanted, fieldManager=ARGO_CD)
    assert first.ok, first.message
    second = api.apply(path, wanted, fieldManager=ARGO_CD).body
    changed = {"metadata": second["metadata"] | {"resourceVersion": first.body["metadata"]["resourceVersion"]}}
    assert second | changed == first.body and first.body["metadata"]["generation"] == 1
    versions = {api.apply(path, wanted, fieldManager=ARGO_CD).body["metadata"]["resourceVersion"] for _ in range(TIMES)}
    assert versions == {second["metadata"]["resourceVersion"]}


def _is_synced(status):
    return any(one["type"] == "TrafficSynced" and one["status"] == "True" for one in status.get("conditions") or ())


def _true(status):
    names = ("Reconciling", "Stalled")
    return [one["type"] for one in status["conditions"] if one["type"] in names and one["status"] == "True"]
