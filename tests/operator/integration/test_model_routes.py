"""ModelRoutes at a real API server: an operator gives names and consents, and a gateway sends requests by the rules."""

import contextlib

import aiohttp
import pytest

from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import EVENTS, MODEL_DEPLOYMENTS, MODEL_ROUTES, REFERENCE_GRANTS
from testkit.until import until_async
from testkit.world.pods import MERGE
from testkit.world.rights import limited_kubeconfig

from .test_names import Town, allow, servers

pytestmark = pytest.mark.integration

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP, VERSION = REFERENCE_GRANTS.group_version
# As the Gateway API has it, without its limits.
OPEN = {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
GRANT_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"{REFERENCE_GRANTS.plural}.{GROUP}",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "ReferenceGrant", "plural": REFERENCE_GRANTS.plural, "singular": "referencegrant"},
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["from", "to"],
                                "properties": {"from": OPEN, "to": OPEN},
                            }
                        },
                    }
                },
            }
        ],
    },
}


class RoutedTown(Town):
    """A town with ModelRoutes."""

    async def route(self, namespace, name, *rules, **fields):
        spec = {"rules": list(rules), **fields}
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelRoute", "metadata": metadata, "spec": spec}
        await self.client.create(MODEL_ROUTES, body)

    async def change(self, namespace, name, **fields):
        await self.client.request("PATCH", MODEL_ROUTES.path(namespace, name), [], {"spec": fields}, MERGE)

    async def remove(self, namespace, name):
        found = await self.client.get(MODEL_ROUTES, namespace, name)
        await self.client.delete(MODEL_ROUTES, namespace, name, found["metadata"]["uid"])

    async def conditions(self, namespace, name, **expected):
        """Waits until conditions have these reasons; returns their messages by type."""

        async def found():
            assert self.operator.runs(), self.operator.log()
            obj = await self.client.get(MODEL_ROUTES, namespace, name)
            return {one["type"]: one for one in (obj.get("status") or {}).get("conditions") or ()}

        def holds(seen):
            return all((seen.get(kind) or {}).get("reason") == reason for kind, reason in expected.items())

        seen = await until_async(found, f"{name} has {expected}", holds=holds)
        return {kind: one["message"] for kind, one in seen.items()}

    async def sent(self, model, **headers):
        """Status of a request, the namespace and model to which it came, and the rules that led there."""
        before = len(self.received)
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body, headers=headers) as answer,
        ):
            await answer.read()
            reached = [(namespace, seen["model"]) for namespace, seen in self.received[before:]]
            return answer.status, reached, answer.headers.get("X-Slipway-Route", "")

    async def reaches(self, model, expected, **headers):
        async def seen():
            with contextlib.suppress(aiohttp.ClientError):  # it has not started yet
                return await self.sent(model, **headers)

        await until_async(seen, f"{model} comes to {expected}", holds=lambda found: found == expected)


def rest(name, **fields):
    return {"name": "rest", "backendRefs": [{"name": name, **fields}]}


def tier(target):
    match = {"headers": [{"name": "X-Tier", "exact": "gold"}]}
    return {"name": "gold", "matches": [match], "backendRefs": [{"name": target}]}


@pytest.fixture
async def town(client, namespace, api_server, tmp_path):
    tenants = (f"{namespace}-prod", f"{namespace}-other")
    for tenant in tenants:
        await client.request("POST", "/api/v1/namespaces", [], {"metadata": {"name": tenant}})
        await allow(client, namespace, tenant)
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    made = RoutedTown(client, namespace, api_server, limited, tmp_path, tenants)
    async with servers(made), made.running():
        yield made


@pytest.fixture
async def reference_grants(client):
    """The CRD of the Gateway API, for as long as a test."""

    async def served():
        with contextlib.suppress(NotFound):
            return await client.list(REFERENCE_GRANTS, "default") is not None

    async def install():
        await client.request("POST", CRDS, [], GRANT_CRD)
        await until_async(served, "ReferenceGrants are served")

    yield install
    with contextlib.suppress(NotFound):
        await client.request("DELETE", f"{CRDS}/{GRANT_CRD['metadata']['name']}", [])


async def test_a_route_takes_its_name_sends_by_rules_and_gives_the_name_back(town):
    prod, other = town.tenants
    for name in ("chat", "large"):
        await town.deploy(prod, name, model=name)
    await town.reaches("chat", (200, [(prod, "chat")], ""))
    await town.route(prod, "front", tier("large"), rest("chat"), model="chat", aliases=["gpt-4o"])
    await town.conditions(prod, "front", Accepted="Accepted", ResolvedRefs="ResolvedRefs")
    for name in ("chat", "gpt-4o"):
        await town.reaches(name, (200, [(prod, "chat")], "rest"))
        await town.reaches(name, (200, [(prod, "large")], "gold"), **{"X-Tier": "gold"})
    assert await town.models() == {f"{prod}/chat", "chat", "gpt-4o", "large"}
    # The ModelDeployment is in order, and is reached by its full name.
    status = await town.reaches_status(prod, "yields its name", lambda seen: seen.get("model") == f"{prod}/chat")
    assert not [one for one in status["conditions"] if one["type"] == "NameConflict" and one["status"] == "True"]
    await town.reaches(f"{prod}/chat", (200, [(prod, "chat")], ""))
    # Another namespace gets none of the names, and learns why.
    await town.route(other, "theirs", rest("chat"), model="chat", aliases=["mine"])
    messages = await town.conditions(other, "theirs", Accepted="ModelNameTaken", ResolvedRefs="BackendNotFound")
    assert f"belongs to ModelRoute/{prod}/front" in messages["Accepted"]
    assert (await town.client.get(MODEL_ROUTES, other, "theirs"))["status"]["names"] == ["mine"]
    await town.reaches("mine", (503, [], "rest"))
    assert await town.sent("chat") == (200, [(prod, "chat")], "rest")

    async def noted():
        return {one["reason"] for one in await town.client.list(EVENTS, other)} >= {"ModelNameTaken", "BackendNotFound"}

    await until_async(noted, "Events about both")
    # A change of a rule is followed, and a deleted route gives the name back.
    await town.change(prod, "front", rules=[rest("large")])
    await town.reaches("chat", (200, [(prod, "large")], "rest"))
    await town.remove(prod, "front")
    await town.reaches("chat", (200, [(prod, "chat")], ""))
    await town.reaches_status(prod, "has its name again", lambda seen: seen.get("model") == "chat")
    await town.reaches("gpt-4o", (404, [], ""))


async def test_a_foreign_target_gets_no_request_before_its_namespace_allows_it(town, reference_grants):
    prod, other = town.tenants
    await town.deploy(other, "large", model="large")
    await town.reaches("large", (200, [(other, "large")], ""))
    await town.route(prod, "front", rest("large", namespace=other))
    messages = await town.conditions(prod, "front", Accepted="Accepted", ResolvedRefs="RefNotPermitted")
    assert "install the CRDs of the Gateway API" in messages["ResolvedRefs"]
    await town.reaches("front", (503, [], "rest"))
    await reference_grants()
    grant = {
        "apiVersion": REFERENCE_GRANTS.api_version,
        "kind": REFERENCE_GRANTS.kind,
        "metadata": {"name": "from-prod", "namespace": other},
        "spec": {
            "from": [{"group": "slipway.dev", "kind": "ModelRoute", "namespace": prod}],
            "to": [{"group": "slipway.dev", "kind": "ModelDeployment", "name": "large"}],
        },
    }
    made = await town.client.create(REFERENCE_GRANTS, grant)
    await town.conditions(prod, "front", ResolvedRefs="ResolvedRefs")
    await town.reaches("front", (200, [(other, "large")], "rest"))
    await town.client.delete(REFERENCE_GRANTS, other, "from-prod", made["metadata"]["uid"])
    await town.conditions(prod, "front", ResolvedRefs="RefNotPermitted")
    await town.reaches("front", (503, [], "rest"))


async def test_a_circle_is_said_and_serves_nobody_and_a_restart_takes_no_name(town):
    prod, other = town.tenants
    await town.deploy(prod, "small", model="small")
    await town.route(prod, "a", tier("small"), rest("b", kind="ModelRoute"))
    await town.route(prod, "b", rest("a", kind="ModelRoute"))
    for name in ("a", "b"):
        messages = await town.conditions(prod, name, Accepted="RouteLoop")
        assert f"{prod}/a to {prod}/b" in messages["Accepted"] or f"{prod}/b to {prod}/a" in messages["Accepted"]
    await town.reaches("a", (503, [], "rest, rest, rest, rest"))
    await town.reaches("a", (200, [(prod, "small")], "gold"), **{"X-Tier": "gold"})
    await town.change(prod, "b", rules=[rest("small")])
    await town.conditions(prod, "a", Accepted="Accepted")
    await town.reaches("a", (200, [(prod, "small")], "rest, rest"))
    # A name of a ModelRoute stays with it while an operator starts.
    await town.deploy(prod, "a", model="a")
    owners = await town.owners()
    await town.operator.end()
    await town.operator.start()
    await town.deploy(other, "late", model="late")
    await until_async(town.owners, "the new operator gives names", holds=lambda found: "late" in found)
    assert (await town.owners())["a"]["owner"] == owners["a"]["owner"] == f"ModelRoute/{prod}/a"
    assert (await town.client.get(MODEL_DEPLOYMENTS, prod, "a"))["metadata"]["name"] == "a"
