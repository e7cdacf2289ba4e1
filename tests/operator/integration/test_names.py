"""Model names have owners (safety 14, S2): a real operator and gateway, and a namespace that claims others' names."""

import asyncio
import contextlib
import json

import aiohttp
import pytest
from aiohttp import web

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, NotFound
from slipway_operator.kube.resources import CONFIG_MAPS, EVENTS, MODEL_DEPLOYMENTS, PODS, REPLICA_SETS
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.pods import MERGE, has_pod
from testkit.world.rights import limited_kubeconfig, operator_rules
from testkit.world.slipway import Cluster

from .conftest import MANIFEST

pytestmark = [pytest.mark.integration, pytest.mark.finding(14, "S2")]

RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Town(Cluster):
    """An operator and a gateway in a namespace of their own, and two namespaces that they serve."""

    def __init__(self, client: Client, home, kubeconfig, operator_kubeconfig, folder, tenants, flags=()):
        served = f"--namespaces={','.join(tenants)}"
        super().__init__(client, home, kubeconfig, operator_kubeconfig, folder, operator_flags=(served, *flags))
        self.gateway._order[1].append(served)
        self.tenants = tenants
        self.ports: dict[str, int] = {}  # of the server of each namespace
        self.received: list[tuple[str, dict]] = []  # namespace and body of each request at a server

    async def run_pods(self):
        """Every ReplicaSet is ready, and the server of its namespace answers for its pods."""
        while True:
            for namespace in self.tenants:
                with contextlib.suppress(ApiError):  # deleted between list and patch
                    for item in await self.client.list(REPLICA_SETS, namespace):
                        await self._report_in(namespace, item)
            await asyncio.sleep(0.05)

    async def _report_in(self, namespace, item):
        wanted = item["spec"].get("replicas", 1)
        status = {"replicas": wanted, "readyReplicas": wanted, "fullyLabeledReplicas": wanted}
        if {key: item.get("status", {}).get(key, 0) for key in status} != status:
            path = REPLICA_SETS.path(namespace, item["metadata"]["name"], "status")
            await self.client.request("PATCH", path, [], {"status": status}, MERGE)
        await has_pod(self.client, item, own_address(), self.ports[namespace])

    async def deploy(self, namespace, name="chat", model="chat"):
        spec = MANIFEST["spec"] | {"model": MANIFEST["spec"]["model"] | {"name": model}}
        manifest = MANIFEST | {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
        await self.client.create(MODEL_DEPLOYMENTS, manifest)

    async def delete(self, namespace, name="chat"):
        """As kubectl does, and as the garbage collector does after it."""
        found = await self.client.get(MODEL_DEPLOYMENTS, namespace, name)
        await self.client.delete(MODEL_DEPLOYMENTS, namespace, name, found["metadata"]["uid"])
        for resource in (REPLICA_SETS, PODS):
            for item in await self.client.list(resource, namespace, f"slipway.dev/modeldeployment={name}"):
                with contextlib.suppress(NotFound):
                    await self.client.delete(resource, namespace, item["metadata"]["name"], item["metadata"]["uid"])

    async def status(self, namespace, name="chat"):
        return (await self.client.get(MODEL_DEPLOYMENTS, namespace, name)).get("status") or {}

    async def reaches_status(self, namespace, what, condition, name="chat"):
        async def status():
            assert self.operator.runs(), self.operator.log()
            return await self.status(namespace, name)

        def shown(seen):
            return f"{seen}\n{self.operator.log()}\n{self.gateway.log()}"

        return await until_async(status, what, holds=condition, shown=shown)

    async def name_conflicts(self, namespace):
        """The Events about a lost name; the operator posts them after the status."""

        async def found():
            return [one for one in await self.client.list(EVENTS, namespace) if one["reason"] == "NameConflict"]

        return await until_async(found, "an Event about the lost name")

    async def ask(self, model):
        """Which namespace's server answered a request for a model; the status where none did."""
        body = {"model": model, "messages": [{"role": "user", "content": "a secret"}]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body) as answer,
        ):
            return (await answer.json())["namespace"] if answer.status == 200 else answer.status

    async def reaches_server(self, model, namespace):
        async def ask():
            with contextlib.suppress(aiohttp.ClientError):  # it has not started yet
                return await self.ask(model) == namespace

        await until_async(ask, f"{model} reaches {namespace}")

    async def models(self):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}/v1/models") as answer,
        ):
            return {one["id"] for one in (await answer.json())["data"]}

    async def owners(self):
        found = await self.client.get(CONFIG_MAPS, self.namespace, "slipway-model-names")
        return json.loads(found["data"]["names.json"])


def conflict(status):
    return next((one for one in status.get("conditions") or () if one["type"] == "NameConflict"), None)


def lost(reason):
    return lambda status: (conflict(status) or {}).get("reason") == reason and status.get("phase") == "Degraded"


def healthy(status):
    return status.get("phase") == "Healthy" and conflict(status) is None


@contextlib.asynccontextmanager
async def servers(town):
    """A model server in each namespace, whose answers name the namespace."""
    async with contextlib.AsyncExitStack() as stack:
        for namespace in town.tenants:

            async def answer(request, namespace=namespace):
                town.received.append((namespace, await request.json()))
                return web.json_response({"namespace": namespace})

            app = web.Application()
            app.router.add_post("/v1/chat/completions", answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "0.0.0.0", 0)
            await site.start()
            town.ports[namespace] = runner.addresses[0][1]
        yield


async def allow(client, home, tenant):
    """The operator's rights in a namespace that it serves."""
    metadata = {"name": "operator", "namespace": tenant}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": home}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    await client.request(
        "POST", f"{RBAC}/namespaces/{tenant}/roles", [], {"metadata": metadata, "rules": operator_rules()}
    )
    binding = {"metadata": metadata, "roleRef": role, "subjects": [subject]}
    await client.request("POST", f"{RBAC}/namespaces/{tenant}/rolebindings", [], binding)


@pytest.fixture
def retention_s():
    """How long names are kept; a test that waits for the end overrides it."""
    return 86400


@pytest.fixture
async def town(client, namespace, api_server, tmp_path, retention_s):
    tenants = (f"{namespace}-victim", f"{namespace}-hostile")
    for tenant in tenants:
        await client.request("POST", "/api/v1/namespaces", [], {"metadata": {"name": tenant}})
        await allow(client, namespace, tenant)
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    flags = (f"--name-retention-seconds={retention_s}",)
    made = Town(client, namespace, api_server, limited, tmp_path, tenants, flags)
    async with servers(made), made.running():
        yield made


async def annotate(town, namespace, names):
    body = {"metadata": {"annotations": {"slipway.dev/model-names": names}}}
    await town.client.request("PATCH", f"/api/v1/namespaces/{namespace}", [], body, MERGE)


@pytest.mark.attack_class(22)
async def test_second_claimant_gets_a_condition_and_is_reached_by_namespace_and_name(town):
    """Safety 14, S2: the loser was `Healthy`, and no client reached it by any name."""
    victim, hostile = town.tenants
    await town.deploy(victim)
    await town.reaches_status(victim, "the owner is healthy", healthy)
    await town.deploy(hostile)
    status = await town.reaches_status(hostile, "the loser has a condition", lost("ModelNameTaken"))

    condition = conflict(status)
    assert condition["status"] == "True"
    assert condition["message"] in status["message"]
    assert f"belongs to {victim}/chat" in condition["message"]
    assert f"clients reach this model as {hostile}/chat only" in condition["message"]
    assert (status["reason"], status["model"]) == ("ModelNameTaken", f"{hostile}/chat")
    events = await town.name_conflicts(hostile)
    assert [(one["type"], condition["message"] in one["message"]) for one in events] == [("Warning", True)]

    await town.reaches_server("chat", victim)
    await town.reaches_server(f"{hostile}/chat", hostile)
    await town.reaches_server(f"{victim}/chat", victim)
    assert {model for namespace, body in town.received if namespace == hostile for model in [body["model"]]} == {"chat"}
    assert await town.models() == {"chat", f"{hostile}/chat"}
    assert healthy(await town.status(victim))


@pytest.mark.attack_class(22)
async def test_name_is_kept_for_an_owner_that_is_deleted_and_created_again(town):
    """Safety 14, S2: one second after the owner was deleted, its prompts went to the next claimant."""
    victim, hostile = town.tenants
    await town.deploy(victim)
    await town.reaches_server("chat", victim)
    await town.deploy(hostile)
    await town.reaches_status(hostile, "the loser has a condition", lost("ModelNameTaken"))
    await town.reaches_server(f"{hostile}/chat", hostile)
    town.received.clear()

    # The same without an operator: it is killed before the owner is deleted.
    await town.operator.kill()
    await town.delete(victim)
    await town.operator.start()
    status = await town.reaches_status(hostile, "the name is kept", lost("ModelNameReserved"))
    assert f"belonged to {victim}/chat, which is gone, and is kept for it until" in conflict(status)["message"]
    for _ in range(20):
        assert await town.ask("chat") == 404
    assert await town.models() == {f"{hostile}/chat"}

    await town.deploy(victim)
    await town.reaches_server("chat", victim)
    await town.reaches_status(victim, "the owner is healthy", healthy)
    assert {namespace for namespace, _ in town.received} == {victim}
    assert (await town.owners())["chat"]["owner"] == f"{victim}/chat"


@pytest.mark.attack_class(22)
async def test_a_forged_status_takes_no_name(town):
    """Safety 14: an older ModelDeployment with another model in its status, by its own people, got the requests."""
    victim, hostile = town.tenants
    await town.deploy(hostile, "older", "older")
    await town.reaches_status(hostile, "the older one is healthy", healthy, "older")
    await asyncio.sleep(1.1)  # creationTimestamp has whole seconds
    await town.deploy(victim)
    await town.reaches_server("chat", victim)
    town.received.clear()

    # What a namespace's own people might write: their status, and a ConfigMap of the same name at home.
    claim = json.dumps({"chat": {"owner": f"{hostile}/older", "since": "2020-01-01T00:00:00Z"}})
    metadata = {"name": "slipway-model-names", "namespace": hostile}
    await town.client.create(CONFIG_MAPS, {"metadata": metadata, "data": {"names.json": claim}})
    path = MODEL_DEPLOYMENTS.path(hostile, "older", "status")
    traffic = (await town.status(hostile, "older"))["traffic"]
    forged = traffic | {"model": "chat", "generation": traffic["generation"] + 5}
    for _ in range(10):
        await town.client.request("PATCH", path, [], {"status": {"traffic": forged, "model": "chat"}}, MERGE)
        for _ in range(5):
            assert await town.ask("chat") == victim
    assert {namespace for namespace, _ in town.received} == {victim}
    assert await town.ask(f"{hostile}/none") == 404
    assert (await town.owners())["chat"]["owner"] == f"{victim}/chat"


@pytest.mark.attack_class(22)
async def test_an_admin_grants_a_name_and_takes_it_back(town):
    """A grant moves the name to the granted namespace at once, and refuses it to all others."""
    victim, hostile = town.tenants
    await town.deploy(hostile)
    await town.reaches_server("chat", hostile)
    await town.deploy(victim)
    await town.reaches_status(victim, "another was faster", lost("ModelNameTaken"))

    await annotate(town, victim, "chat, team-*")
    await town.deploy(hostile, "team-x", "team-x")  # a change queues a reconcile at once
    await town.reaches_status(victim, "the name came", healthy)
    status = await town.reaches_status(hostile, "the name went", lost("ModelNameGranted"))
    assert f"is granted to namespace {victim}, and belongs to {victim}/chat" in conflict(status)["message"]
    await town.reaches_status(hostile, "the beginning counts", lost("ModelNameGranted"), "team-x")
    await town.reaches_server("chat", victim)
    assert await town.ask("team-x") == 404
    await town.reaches_server(f"{hostile}/team-x", hostile)
    events = {one["reason"] for one in await town.client.list(EVENTS, victim)}
    assert {"NameConflict", "NameClaimed"} <= events


@pytest.mark.parametrize("retention_s", [1])
async def test_after_the_retention_a_name_is_free(town):
    """What is kept is kept for the stated time, and no longer."""
    victim, hostile = town.tenants
    await town.deploy(victim)
    await town.reaches_server("chat", victim)
    await town.deploy(hostile)
    await town.reaches_status(hostile, "the loser has a condition", lost("ModelNameTaken"))
    await town.delete(victim)
    await town.reaches_status(hostile, "the name is kept", lost("ModelNameReserved"))
    await asyncio.sleep(1.5)
    await town.deploy(hostile, "other", "other")  # a change queues a reconcile at once
    await town.reaches_status(hostile, "the name came", healthy)
    await town.reaches_server("chat", hostile)


async def test_gateways_keep_the_last_owners_when_the_object_is_lost_and_the_operator_writes_it_again(town):
    """Deleting the claims frees no name: gateways keep the last ones, and the operator writes them again."""
    victim, hostile = town.tenants
    await town.deploy(victim)
    await town.reaches_server("chat", victim)
    found = await town.client.get(CONFIG_MAPS, town.namespace, "slipway-model-names")
    await town.client.delete(CONFIG_MAPS, town.namespace, "slipway-model-names", found["metadata"]["uid"])
    await town.deploy(hostile)
    await town.reaches_status(hostile, "the loser has a condition", lost("ModelNameTaken"))
    await town.reaches_server("chat", victim)
    await town.deploy(hostile, "other", "other")
    await town.reaches_status(hostile, "a new name is claimed", healthy, "other")

    async def written():
        return {name: one["owner"] for name, one in (await town.owners()).items()}

    await until_async(
        lambda: _equal(written(), {"chat": f"{victim}/chat", "other": f"{hostile}/other"}), "both are written"
    )


async def _equal(found, wanted):
    with contextlib.suppress(ApiError):
        return await found == wanted
    return False
