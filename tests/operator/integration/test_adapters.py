"""ModelAdapters on a real API server, over HTTP with pods that report what they loaded: no pod more, and no right of
the base. ReplicaSet controller, kubelets and gateways are played."""

import aiohttp
import pytest

from devcluster.ports import reserve_port
from slipway_operator.adapters import runner
from slipway_operator.kube.resources import (
    ANALYSIS_RUNS,
    CONTROLLER_REVISIONS,
    EVENTS,
    MODEL_ADAPTERS,
    MODEL_DEPLOYMENTS,
    NETWORK_POLICIES,
    PODS,
    REPLICA_SETS,
    SERVICES,
)
from tests.support.adapters import DIGEST, AdapterWorld, ReportingPod

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ADDRESSES = ("127.0.0.21", "127.0.0.22")
STEPS = {"canary": {"steps": [{"setWeight": 50}, {"pause": {}}], "scaleDownDelaySeconds": 0}}
API = {"apiVersion": "slipway.dev/v1alpha1"}


@pytest.fixture
async def world(client, namespace):
    async with aiohttp.ClientSession() as session:
        port = reserve_port()
        made = AdapterWorld(client, session, namespace, port)
        made.pods = [ReportingPod(made.file) for _ in ADDRESSES]
        servers = [await pod.serve(address, port) for pod, address in zip(made.pods, ADDRESSES, strict=True)]
        spec = {"model": {"uri": "file:///m"}, "adapters": {"maxLoaded": 4}, "replicas": 2, "strategy": STEPS}
        metadata = {"name": "chat", "namespace": namespace}
        await client.create(MODEL_DEPLOYMENTS, {**API, "kind": "ModelDeployment", "metadata": metadata, "spec": spec})
        await made.step()
        await made.play_pods(ADDRESSES)
        await made.until("chat", lambda now: now.get("phase") == "Healthy")
        yield made
        for server in servers:
            await server.cleanup()


async def adapt(world, name="support", uri="https://files.example.com/v1.tar", **spec):
    metadata = {"name": name, "namespace": world.namespace}
    spec = {"deploymentRef": {"name": "chat"}, "model": {"uri": uri}} | spec
    world.keys.append((world.namespace, f"{name}.adapter"))
    return await world.client.create(
        MODEL_ADAPTERS, {**API, "kind": "ModelAdapter", "metadata": metadata, "spec": spec}
    )


async def edit(world, name="support", **spec):
    await world.client.patch(MODEL_ADAPTERS, world.namespace, name, {"spec": spec})


async def first_serves(world):
    await adapt(world)
    return await world.until("support.adapter", lambda now: now.get("phase") == "Healthy")


async def test_a_version_is_promoted_without_a_pod_more(world):
    first = await first_serves(world)
    stable = first["stableRevision"]
    assert first["traffic"]["base"] == "chat" and first["traffic"]["model"] == "support"
    pods = await world.client.list(PODS, world.namespace)
    await edit(world, model={"uri": "https://files.example.com/v2.tar"})
    paused = await world.until("support.adapter", lambda now: (now.get("rollout") or {}).get("state") == "Paused")
    canary = paused["canaryRevision"]
    assert {backend["revision"]: backend["weight"] for backend in paused["traffic"]["backends"]} == {
        canary: 50,
        stable: 50,
    }
    assert {entry["revision"] for entry in (await world.file())["adapters"]} == {canary, stable}
    await edit(world, rollout={"promote": paused["rollout"]["token"]})
    await world.until("support.adapter", lambda now: now.get("stableRevision") == canary and not now.get("rollout"))
    await world.until("support.adapter", lambda now: len(now["revisions"]) == 1)
    await world.step()
    assert [entry["revision"] for entry in (await world.file())["adapters"]] == [canary], "the former one is unloaded"
    [entry] = (await world.file())["adapters"]
    assert entry["digest"] == DIGEST, "what the first pod loaded is what all others must"
    assert len(await world.client.list(PODS, world.namespace)) == len(pods) == 2
    assert not [
        item for item in await world.client.list(SERVICES, world.namespace) if "adapter" in item["metadata"]["name"]
    ]
    assert not await world.client.list(NETWORK_POLICIES, world.namespace)


async def test_its_objects_and_events_name_the_adapter(world):
    await first_serves(world)
    made = await world.client.get(MODEL_ADAPTERS, world.namespace, "support")
    selector = "slipway.dev/modeldeployment=support.adapter"
    for kind in (REPLICA_SETS, CONTROLLER_REVISIONS):
        [item] = await world.client.list(kind, world.namespace, selector)
        [owner] = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("ModelAdapter", "support", made["metadata"]["uid"])
    [record] = await world.client.list(CONTROLLER_REVISIONS, world.namespace, selector)
    assert record["data"]["inputs"] == {
        "base": "chat",
        "model": {"name": "support", "uri": "https://files.example.com/v1.tar"},
    }
    posted = [item["involvedObject"] for item in await world.client.list(EVENTS, world.namespace)]
    assert {"ModelAdapter"} == {about["kind"] for about in posted if about["name"] == "support"}
    assert not [about for about in posted if about["name"] == "support.adapter"]


async def test_a_version_that_a_pod_cannot_load_is_rejected_with_its_reason(world):
    first = await first_serves(world)
    await edit(world, model={"uri": "https://files.example.com/v2.tar"}, progressDeadlineSeconds=5)
    begun = await world.until("support.adapter", lambda now: now.get("canaryRevision"))
    world.pods[1].broken[begun["canaryRevision"]] = "r is 64, and spec.adapters.maxRank is 16"
    rejected = await world.until("support.adapter", lambda now: now.get("abortedRevisions"), passes=400)
    assert rejected["stableRevision"] == first["stableRevision"]
    assert "r is 64, and spec.adapters.maxRank is 16" in rejected["message"]
    assert rejected["traffic"]["backends"][-1] == {
        "revision": first["stableRevision"],
        "weight": 100,
        "version": first["stableRevision"],
    }


async def test_an_adapter_waits_while_its_base_rolls_out_and_holds_one_that_cannot_load_it(world):
    first = await first_serves(world)
    await world.client.patch(
        MODEL_DEPLOYMENTS, world.namespace, "chat", {"spec": {"model": {"uri": "file:///n"}, "replicas": 2}}
    )
    await world.until("chat", lambda now: now.get("canaryRevision"))
    await edit(world, model={"uri": "https://files.example.com/v2.tar"})
    waiting = await world.until("support.adapter", lambda now: now.get("reason") == "BaseRollingOut")
    assert "the ModelDeployment chat rolls out revision" in waiting["message"]
    assert first["stableRevision"] == waiting["stableRevision"]
    server = ReportingPod(world.file)
    server.broken[first["stableRevision"]] = "no module model.layers.9 in this model"
    running = await server.serve("127.0.0.23", world.adapters._port)
    await world.play_pods(["127.0.0.23"])
    held = await world.until("chat", lambda now: now.get("reason") == "AdaptersFailed")
    [condition] = [item for item in held["conditions"] if item["type"] == "AdaptersLoaded"]
    assert "cannot load the adapters support: no module model.layers.9" in condition["message"]
    for _ in range(3):
        await world.step()
    now = await world.until("chat", lambda now: now)
    assert now["traffic"]["backends"][0]["weight"] == 0, "no step is taken"
    server.broken.clear()
    await world.until("chat", lambda now: (now.get("rollout") or {}).get("state") == "Paused")
    await running.cleanup()


async def test_pods_that_are_silent_for_a_moment_change_nothing(world, monkeypatch):
    first = await first_serves(world)
    world.pods[0].silent = world.pods[1].silent = True
    for _ in range(3):
        await world.step()
    now = await world.until("support.adapter", lambda now: now)
    assert now["phase"] == "Healthy" and now["stableRevision"] == first["stableRevision"]
    monkeypatch.setattr(runner, "KEPT_S", 0.0)
    now = await world.until("support.adapter", lambda now: now["phase"] != "Healthy")
    assert now["traffic"] == first["traffic"], "gateways know better which pods have it"


async def test_a_base_that_is_missing_or_has_no_room_is_named(world):
    await adapt(world, "alone", deploymentRef={"name": "other"})
    now = await world.until("alone.adapter", lambda now: now.get("reason") == "DeploymentNotFound")
    assert "there is no ModelDeployment other in this namespace" in now["message"]
    metadata = {"name": "other", "namespace": world.namespace}
    spec = {"model": {"uri": "file:///m"}}
    await world.client.create(MODEL_DEPLOYMENTS, {**API, "kind": "ModelDeployment", "metadata": metadata, "spec": spec})
    now = await world.until("alone.adapter", lambda now: now.get("reason") == "AdaptersNotEnabled")
    assert "add spec.adapters to it" in now["message"]


async def test_an_analysis_of_pairs_compares_both_versions_on_the_same_pods(world):
    await first_serves(world)
    steps = [{"analysis": {"templates": [{"templateName": "llm-release"}], "twinShadow": {}}}, {"setWeight": 50}]
    await edit(world, model={"uri": "https://files.example.com/v2.tar"}, strategy={"canary": {"steps": steps}})
    now = await world.until("support.adapter", lambda now: (now.get("traffic") or {}).get("twinShadow"))
    shadow = now["traffic"]["twinShadow"]
    assert (shadow["revision"], shadow["twin"]) == (now["canaryRevision"], now["stableRevision"])
    assert shadow["percentage"] == 10
    [run] = await world.client.list(ANALYSIS_RUNS, world.namespace)
    subject = run["spec"]["subjectRef"]
    assert (subject["kind"], subject["name"]) == ("ModelAdapter", "support")
    assert run["metadata"]["name"].startswith("support.adapter-")
