"""Pages against a real API server: what each shows, what a viewer may see of it, and what the viewer lacks."""

import re
from typing import Any

import aiohttp
import pytest

from testkit.cluster.api import GROUP_PATH, Api
from tests.console.conftest import SignIn
from tests.console.world import (
    CANARY,
    RUN,
    STABLE,
    VIEWER,
    Console,
    analysis_reference,
    create_deployment,
    create_run,
    in_flight,
    path,
    set_status,
    token_of,
)

pytestmark = pytest.mark.integration


async def text_of(client: aiohttp.ClientSession, where: str, status: int = 200) -> str:
    async with client.get(where) as answer:
        text = await answer.text()
        assert answer.status == status, text
        return text


def visible(page: str) -> str:
    """The text of a page, without its tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


async def test_a_deployment_has_its_revisions_steps_requests_conditions_and_events(
    api: Api, namespace: str, viewer: str, sign_in: SignIn
) -> None:
    made = create_deployment(api, namespace)
    event = {
        "metadata": {"generateName": "chat-"},
        "involvedObject": {"uid": made["metadata"]["uid"], "namespace": namespace},
        "reason": "CanaryBraked",
        "message": "the weight is 1",
        "type": "Warning",
        "lastTimestamp": "2026-01-01T11:58:00Z",
    }
    assert api.post(f"/api/v1/namespaces/{namespace}/events", event).ok
    client = await sign_in(viewer)
    page = await text_of(client, f"/deployments/{namespace}/chat")
    seen = visible(page)
    assert f"stable v1 {STABLE} 90 % 2 of 2 ready 7" in seen and f"canary v2 {CANARY} 10 % 1 of 1 ready 1" in seen
    assert "done setWeight 10 now pause until it is promoted ahead setWeight 50" in seen
    assert "Accepted True Valid The spec is valid." in seen
    assert "CanaryBraked the weight is 1" in seen
    assert "begin revision bbbbbbbbbb, attempt 1, begins" in seen
    assert "kubectl-create" in seen and "slipway-operator" in seen and "spec.model.uri" in seen


async def test_a_deployment_has_its_standby_pods_and_what_each_does(
    api: Api, namespace: str, viewer: str, sign_in: SignIn
) -> None:
    there = {"revision": STABLE, "role": "stable", "weight": 100, "ready": 2, "replicas": 2, "standbyUid": "s1"}
    standby = {"replicas": 1, "ready": 1, "serving": 1}
    create_deployment(api, namespace, status=in_flight(revisions=[there], standby=standby))
    labels = {"slipway.dev/modeldeployment": "chat", "app.kubernetes.io/managed-by": "slipway"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat-s", "uid": "s1"}
    for name, revision in (("chat-waits", f"{STABLE}-standby"), ("chat-serves", STABLE)):
        metadata = {"name": name, "labels": labels | {"slipway.dev/revision": revision}, "ownerReferences": [owner]}
        made = {"metadata": metadata, "spec": {"containers": [{"name": "server", "image": "x"}]}}
        assert api.post(f"/api/v1/namespaces/{namespace}/pods", made).ok
        ready = [{"type": "ContainersReady", "status": "True"}]
        status = {"status": {"phase": "Running", "conditions": ready}}
        assert api.merge(f"/api/v1/namespaces/{namespace}/pods/{name}/status", status).ok
    client = await sign_in(viewer)
    seen = visible(await text_of(client, f"/deployments/{namespace}/chat"))
    assert "2 of 2 ready; standby 1/1 wait, 1 more serve" in seen
    assert "Pod chat-waits (standby: has loaded, and waits): Running" in seen
    assert "Pod chat-serves (standby pod that serves): Running" in seen


async def test_the_list_has_deployments_of_a_namespace_in_pages(
    api: Api, namespace: str, viewer: str, sign_in: SignIn
) -> None:
    for number in range(53):
        create_deployment(api, namespace, f"chat-{number:02}")
    client = await sign_in(viewer)
    first = await text_of(client, f"/deployments?namespace={namespace}")
    [more] = re.findall(r'href="(/deployments\?namespace=[^"]+continue=[^"]+)"', first)
    second = await text_of(client, more.replace("&amp;", "&"))
    names = [re.findall(rf'href="/deployments/{namespace}/(chat-\d+)"', page) for page in (first, second)]
    assert [len(one) for one in names] == [50, 3] and len({*names[0], *names[1]}) == 53
    assert "(3 more)" in first


async def test_who_may_not_list_all_namespaces_names_one(
    api: Api, namespace: str, viewer: str, sign_in: SignIn
) -> None:
    create_deployment(api, namespace)
    client = await sign_in(viewer)
    page = await text_of(client, "/deployments", 403)
    assert "Your token may not list modeldeployments.slipway.dev in all namespaces." in visible(page)
    assert "by a ClusterRole with the verb list" in page and 'name="namespace"' in page
    everywhere = token_of(api, namespace, "everywhere", (), VIEWER)
    client, where, found = await sign_in(everywhere), "/deployments", []
    while where:  # those of other tests are there too
        page = await text_of(client, where)
        found += re.findall(r'href="(/deployments/[^"?]+)"', page)
        where = next(iter(re.findall(r'href="(/deployments\?continue=[^"]+)"', page)), "")
    assert f"/deployments/{namespace}/chat" in found and len(found) == len({*found})


async def test_a_page_without_some_rights_shows_the_rest_and_names_what_is_missing(
    api: Api, namespace: str, sign_in: SignIn
) -> None:
    create_deployment(api, namespace)
    token = token_of(api, namespace, "few", VIEWER[:1])
    seen = visible(await text_of(await sign_in(token), f"/deployments/{namespace}/chat"))
    assert "waits for a promotion" in seen
    assert f"This page lacks its pods. Your token may not list pods in the namespace {namespace}." in seen
    assert "This page lacks Events about it." in seen
    assert "This page lacks its former revisions." in seen


async def test_what_is_not_there_is_named(namespace: str, viewer: str, sign_in: SignIn) -> None:
    client = await sign_in(viewer)
    page = visible(await text_of(client, f"/deployments/{namespace}/none", 404))
    assert f"There is no modeldeployments.slipway.dev none in the namespace {namespace}." in page
    await text_of(client, f"/deployments/{namespace}/%2E%2E", 404)
    await text_of(client, "/deployments/UPPER/chat", 404)
    await text_of(client, "/nothing", 404)


async def test_the_evidence_has_the_bound_against_its_limit_harm_the_verdict_and_the_decisions(
    api: Api, namespace: str, viewer: str, sign_in: SignIn
) -> None:
    run = create_run(api, namespace)
    rollout = in_flight()["rollout"] | {"analysis": analysis_reference(run)}
    create_deployment(api, namespace, status=in_flight() | {"rollout": rollout})
    client = await sign_in(viewer)
    for where in (f"/deployments/{namespace}/chat", f"/deployments/{namespace}/chat/analyses/{RUN}"):
        page = await text_of(client, where)
        seen = visible(page)
        assert "live-bad: at most 6.3 extra bad responses per 1,000 (limit 10), 95%" in seen
        assert "at most 6.31 extra bad responses per 1,000 compared with stable: below the limit of 10" in seen
        assert "The ramp may have cost 5.4 of 20 extra bad responses (27%); weight 10 %." in seen
        assert "Nothing was counted yet for ttft." in seen
        assert "texts: 37 of 400 pairs differ" in seen and "13 of 3150 (0.41 %)" in seen
        assert "2026-01-01 11:57:10 UTC Inconclusive WarmUp: the warm-up lasts" in seen
        assert page.count('<svg class="chart"') == 3 and "style=" not in page
    assert f'href="/deployments/{namespace}/chat/analyses/{RUN}"' in await text_of(
        client, f"/deployments/{namespace}/chat"
    )


async def test_a_run_of_another_deployment_is_not_shown_as_its_own(
    api: Api, namespace: str, viewer: str, sign_in: SignIn
) -> None:
    create_run(api, namespace)
    client = await sign_in(viewer)
    page = await text_of(client, f"/deployments/{namespace}/other/analyses/{RUN}", 404)
    assert "is about chat, not about other" in visible(page)


async def test_an_empty_status_has_a_page(api: Api, namespace: str, viewer: str, sign_in: SignIn) -> None:
    create_deployment(api, namespace, status={})
    seen = visible(await text_of(await sign_in(viewer), f"/deployments/{namespace}/chat"))
    assert "the operator has not looked at it yet" in seen and "No revision has pods." in seen


async def test_tenants_have_their_use_against_limits(api: Api, namespace: str, sign_in: SignIn) -> None:
    name, hidden = f"team-{namespace}", "hmac-sha256:" + "ab" * 32
    spec: dict[str, Any] = {"models": ["*"], "auth": {"keys": [{"id": "k7Qm2x", "hash": hidden}]}}
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec}
    assert api.post(f"{GROUP_PATH}/tenants", body).ok
    use = {"requests": "412/600", "inputTokens": "88120/200000", "running": "7/64", "spentToday": "12.31/50"}
    done = api.merge(f"{GROUP_PATH}/tenants/{name}/status", {"status": {"use": use}})
    assert done.ok, done.message
    rule = {"apiGroups": ["slipway.dev"], "resources": ["tenants"], "verbs": ["list"]}
    page = await text_of(await sign_in(token_of(api, namespace, "admin", (), (rule,))), "/tenants")
    assert "412 of 600" in visible(page) and '<meter min="0" max="600.0" value="412.0"' in page
    assert hidden not in page
    refused = await text_of(await sign_in(token_of(api, namespace, "viewer", VIEWER)), "/tenants", 403)
    assert "Your token may not list tenants.slipway.dev." in visible(refused)


async def test_pools_have_their_models(api: Api, namespace: str, viewer: str, sign_in: SignIn) -> None:
    body = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": "trees"},
        "spec": {"resources": {"cpu": "1", "memory": "1Gi"}, "replicas": 1},
    }
    made = api.post(path(namespace, "modelpools"), body)
    assert made.ok, made.message
    entry = {"model": "fraud", "modelDeployment": "fraud", "revision": STABLE, "stable": True, "loaded": 1}
    status = {"ready": "1/1", "models": 1, "loaded": 1, "memoryBytes": 1 << 20, "entries": [entry]}
    done = api.merge(path(namespace, "modelpools", "trees", "status"), {"status": status})
    assert done.ok, done.message
    client = await sign_in(viewer)
    assert f"/pools/{namespace}/trees" in await text_of(client, f"/pools?namespace={namespace}")
    seen = visible(await text_of(client, f"/pools/{namespace}/trees"))
    assert "1 of 1 models in memory; 1.0 MiB of" in seen and f"fraud fraud {STABLE} stable in memory in 1" in seen


async def test_a_large_object_is_refused_with_a_sentence(
    api: Api, namespace: str, viewer: str, sign_in: SignIn
) -> None:
    """A stranger who may write a status decides how large it is."""
    create_deployment(api, namespace)
    texts = [f"2026-01-01T11:55:00Z row: {'<' * 2000}" for _ in range(20)]
    set_status(api, namespace, "chat", {"decisions": texts, "message": "&" * 4000})
    page = await text_of(await sign_in(viewer), f"/deployments/{namespace}/chat")
    assert "&lt;&lt;" in page and "<<" not in page


async def test_the_admin_port_has_probes_and_nothing_else(console: Console) -> None:
    async with aiohttp.ClientSession() as client:
        for where, status in (("/healthz", 200), ("/readyz", 200), ("/deployments", 404)):
            async with client.get(console.admin_url + where) as answer:
                assert answer.status == status
