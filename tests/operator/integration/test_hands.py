"""Client, observe, apply and events against a real API server."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from slipway_operator import explain
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.kube.errors import Exists, Leaving, NotFound, Refused, Stale
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.observe import Observer
from slipway_operator.kube.reading.pods import parse_pod
from slipway_operator.kube.resources import (
    CONTROLLER_REVISIONS,
    EVENTS,
    JOBS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    SERVICES,
)
from slipway_operator.kube.writing import apply, events
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.prefetch import prefetch_job
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Observed, PodTrouble, Snapshot
from slipway_operator.model.cluster.plan import Create, Delete, Event, Plan, Scale
from slipway_operator.model.deployment import status
from slipway_operator.model.deployment.spec import parse
from slipway_operator.model.inputs.pod_inputs import parse_inputs
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.planning.facts.revision import TEMPLATE_VERSION
from testkit.until import until_async
from tests.support.planned import plan
from tests.support.reconciling import NoGateways

pytestmark = pytest.mark.integration

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SETTINGS = PlanSettings("slipway-server:test", "http://gateway/v1")


async def seen(client, chat):
    """The snapshot of a reconcile with an empty cache."""
    children = await ObjectCache().read(client, (chat["metadata"]["namespace"], chat["metadata"]["name"]))
    return await Observer(client, NoGateways()).observe(chat, parse(chat), children)


def first_plan(chat):
    return plan(chat, Status(), Observed(), SETTINGS, NOW)


async def made(client, chat):
    """Execute the first plan; the ModelDeployment as it is then, and its revision."""
    planned = first_plan(chat)
    await apply.execute(client, chat, planned, NOW)
    return await reread(client, chat), planned.status.current_revision


async def reread(client, obj):
    return await client.get(MODEL_DEPLOYMENTS, obj["metadata"]["namespace"], obj["metadata"]["name"])


async def test_created_children_are_observed_as_planned(client, chat):
    live, revision = await made(client, chat)
    observed = await seen(client, live)
    assert set(observed.snapshots) == set(observed.workloads) == set(observed.services) == {revision}
    snapshot = observed.snapshots[revision]
    assert (snapshot.ordinal, snapshot.image, snapshot.drain_timeout_s) == (1, "slipway-server:test", 600)
    assert snapshot.inputs.model.name == "chat"
    workload = observed.workloads[revision]
    assert (workload.desired, workload.replicas, workload.ready, workload.stuck_deleting) == (1, 0, 0, False)


async def test_executing_a_plan_twice_changes_nothing(client, chat):
    await made(client, chat)
    namespace = chat["metadata"]["namespace"]
    first = {kind: await client.list(kind, namespace) for kind in (REPLICA_SETS, SERVICES, CONTROLLER_REVISIONS)}
    live = await reread(client, chat)
    await apply.execute(client, live, replace(first_plan(chat), events=()), NOW)
    assert {kind: await client.list(kind, namespace) for kind in first} == first
    assert await reread(client, chat) == live


async def test_the_status_survives_the_round_trip_through_the_schema(client, chat):
    planned = first_plan(chat)
    live, _ = await made(client, chat)
    assert status.parse(live["status"]) == planned.status


async def test_a_status_on_top_of_a_newer_object_is_stale(client, chat):
    await client.patch(MODEL_DEPLOYMENTS, chat["metadata"]["namespace"], "chat", {"spec": {"replicas": 3}})
    with pytest.raises(Stale):
        await apply.execute(client, chat, first_plan(chat), NOW)
    assert (await reread(client, chat))["status"] == {"observedGeneration": -1}, "the default alone"


@pytest.mark.finding(26)
async def test_an_equal_status_is_not_written(client, chat):
    """Safety 26: it asserted nothing. A write of this stale object would be refused, as that of another status is."""
    live, _ = await made(client, chat)
    same = Plan(status=status.parse(live["status"]))
    stale = {**live, "metadata": {**live["metadata"], "resourceVersion": "1"}}
    assert await apply.execute(client, stale, same, NOW)
    assert await reread(client, chat) == live
    with pytest.raises(Stale):
        await apply.execute(client, stale, Plan(status=replace(same.status, message="another")), NOW)
    assert await reread(client, chat) == live


async def test_scaling_touches_replicas_alone(client, chat):
    live, revision = await made(client, chat)
    namespace, name = chat["metadata"]["namespace"], f"chat-{revision}"
    before = await client.get(REPLICA_SETS, namespace, name)
    await apply.execute(client, live, Plan(status.parse(live["status"]), scale=(Scale(name, 4),)), NOW)
    after = await client.get(REPLICA_SETS, namespace, name)
    assert after["spec"] == before["spec"] | {"replicas": 4}
    with pytest.raises(Stale):
        await apply.execute(client, live, Plan(status.parse(live["status"]), scale=(Scale("chat-gone", 4),)), NOW)


async def test_deletion_costs_are_written_before_pods_may_go(client, chat):
    live, revision = await made(client, chat)
    namespace, name = chat["metadata"]["namespace"], f"chat-{revision}"
    template = (await client.get(REPLICA_SETS, namespace, name))["spec"]["template"]
    metadata = {**template["metadata"], "name": "busy", "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    await client.create(PODS, pod)
    smaller = Scale(name, 2, costs=(("gone", 9), ("busy", 3)))
    await apply.execute(client, live, Plan(status.parse(live["status"]), scale=(smaller,)), NOW)
    there = await client.get(PODS, namespace, "busy")
    assert there["metadata"]["annotations"][labels.DELETION_COST] == "3"
    assert parse_pod(there, ()).deletion_cost == 3
    assert (await client.get(REPLICA_SETS, namespace, name))["spec"]["replicas"] == 2


async def test_a_role_without_the_right_to_write_costs_scales_all_the_same(client, chat, monkeypatch):
    live, revision = await made(client, chat)
    patch = client.patch

    async def without_pods(resource, *others):
        if resource is PODS:
            raise Refused(403, "pods is forbidden")
        return await patch(resource, *others)

    monkeypatch.setattr(client, "patch", without_pods)
    smaller = Scale(f"chat-{revision}", 2, costs=(("busy", 3),))
    await apply.execute(client, live, Plan(status.parse(live["status"]), scale=(smaller,)), NOW)
    assert (await client.get(REPLICA_SETS, chat["metadata"]["namespace"], smaller.name))["spec"]["replicas"] == 2


async def test_the_api_server_takes_a_prefetch_with_the_image_of_another_engine(client, chat):
    model, engine = {"uri": "hf://org/m", "cache": "node"}, {"type": "custom", "image": "a/b:1"}
    inputs = parse_inputs({"model": model, "engine": engine}, "chat")
    snapshot = Snapshot("aaaaaaaaaa", 1, inputs, "a/b:1", 600, TEMPLATE_VERSION, fetcher_image="fetcher:1")
    job = await client.create(JOBS, prefetch_job(Owner.of(chat), snapshot, "node-a"))
    assert [one["image"] for one in job["spec"]["template"]["spec"]["containers"]] == ["fetcher:1", "a/b:1"]


def deletion(live, name, kind="Service", version="v1"):
    return Plan(status.parse(live.get("status")), delete=(Delete(version, kind, name),))


async def test_delete_removes_our_children_and_accepts_missing_ones(client, chat):
    live, revision = await made(client, chat)
    for _ in range(2):
        await apply.execute(client, live, deletion(live, f"chat-{revision}"), NOW)
    with pytest.raises(NotFound):
        await client.get(SERVICES, chat["metadata"]["namespace"], f"chat-{revision}")


async def test_delete_keeps_foreign_objects(client, chat):
    namespace = chat["metadata"]["namespace"]
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "chat-foreign",
            "namespace": namespace,
            "labels": {"slipway.dev/modeldeployment": "chat", "slipway.dev/revision": "foreign"},
        },
        "spec": {"ports": [{"port": 80}]},
    }
    await client.create(SERVICES, foreign)
    await apply.execute(client, chat, replace(deletion(chat, "chat-foreign"), status=Status(model="chat")), NOW)
    assert await client.get(SERVICES, namespace, "chat-foreign")
    assert not (await seen(client, chat)).services


async def test_delete_has_the_uid_as_precondition(client, chat):
    _, revision = await made(client, chat)
    with pytest.raises(Stale):
        await client.delete(SERVICES, chat["metadata"]["namespace"], f"chat-{revision}", "another-uid")


async def test_children_of_a_former_namesake_are_not_observed(client, chat):
    await made(client, chat)
    namesake = {**chat, "metadata": {**chat["metadata"], "uid": "11111111-2222-3333-4444-555555555555"}}
    assert await seen(client, namesake) == Observed()


async def test_refused_child_is_reported_with_its_message(client, chat):
    namespace = chat["metadata"]["namespace"]
    bad = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "Bad_Name", "namespace": namespace}, "spec": {}}
    with pytest.raises(apply.CannotCreate, match=r"Service Bad_Name cannot be created: .*Bad_Name") as refused:
        await apply.execute(client, chat, Plan(Status(model="chat"), create=(Create(bad),)), NOW)
    assert refused.value.status == 422
    assert (await reread(client, chat))["status"] == {"observedGeneration": -1}, "the default alone"


async def test_exhausted_quota_is_reported_with_the_message_of_the_api_server(client, chat):
    namespace = chat["metadata"]["namespace"]
    quota = {"metadata": {"name": "none", "namespace": namespace}, "spec": {"hard": {"count/replicasets.apps": "0"}}}
    await client.request("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", [], quota)
    used = {"status": {"hard": {"count/replicasets.apps": "0"}, "used": {"count/replicasets.apps": "0"}}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/none/status"
    # No controller manager runs here to count objects: set the count.
    await client.request("PATCH", path, [], used, "application/merge-patch+json")
    with pytest.raises(apply.CannotCreate, match=r"ReplicaSet chat-.* exceeded quota: none") as refused:
        await made(client, chat)
    assert refused.value.status == 403


async def test_repeated_events_count_up(client, chat):
    namespace = chat["metadata"]["namespace"]
    for minute in range(3):
        await events.post(client, chat, Event("Normal", "Promoted", "rev1 is stable"), NOW.replace(minute=minute))
    await events.post(client, chat, Event("Normal", "Promoted", "rev2 is stable"), NOW)
    found = sorted(await client.list(EVENTS, namespace), key=lambda event: event["message"])
    assert [(event["message"], event["count"]) for event in found] == [("rev1 is stable", 3), ("rev2 is stable", 1)]
    assert found[0]["firstTimestamp"] == "2026-11-21T12:00:00Z"
    assert found[0]["lastTimestamp"] == "2026-11-21T12:02:00Z"
    assert found[0]["eventTime"] == "2026-11-21T12:02:00.000000Z", "as the last one, for --sort-by"
    assert found[0]["involvedObject"]["uid"] == chat["metadata"]["uid"]


@pytest.mark.finding("L10")
async def test_events_of_one_second_have_an_order(client, chat):
    """Generation 6 came before 5, and a pause before the step before it was complete."""
    namespace, reasons = chat["metadata"]["namespace"], ["Paused", "Completed", "Began", "Advanced"]
    planned = [Event("Normal", reason, f"step of {reason}") for reason in reasons]
    await apply.execute(client, chat, Plan(Status(model="chat"), events=tuple(planned[:2])), NOW)
    chat = await reread(client, chat)
    later = NOW.replace(microsecond=NOW.microsecond + 50_000)
    await apply.execute(client, chat, Plan(Status(model="chat"), events=tuple(planned[2:])), later)
    found = sorted(await client.list(EVENTS, namespace), key=lambda event: event["eventTime"])
    assert [event["reason"] for event in found] == reasons
    assert len({event["lastTimestamp"] for event in found}) == 1


async def test_an_event_of_a_former_release_counts_up_too(client, chat):
    """It has no time in microseconds."""
    event = Event("Normal", "Promoted", "rev1 is stable")
    former = events.render(chat, event, NOW)
    for field in ("eventTime", "action", "reportingInstance"):
        del former[field]
    await client.create(EVENTS, former)
    await events.post(client, chat, event, NOW.replace(minute=1))
    [found] = await client.list(EVENTS, chat["metadata"]["namespace"])
    assert (found["count"], found["eventTime"]) == (2, "2026-11-21T12:01:00.000000Z")


async def test_event_posted_twice_is_one_event(client, chat):
    """As after a lost answer, or by an operator that does not know the Events of its predecessor."""
    namespace = chat["metadata"]["namespace"]
    for _ in range(2):
        await events.post(client, chat, Event("Normal", "Promoted", "rev1 is stable"), NOW)
    [found] = await client.list(EVENTS, namespace)
    assert found["count"] == 1


async def test_in_a_namespace_that_is_being_deleted_creating_is_given_up(client, chat):
    namespace = chat["metadata"]["namespace"]
    await client.request("DELETE", f"/api/v1/namespaces/{namespace}", [], {})
    with pytest.raises(Leaving):
        await made(client, chat)


async def test_an_event_that_cannot_be_posted_stops_nothing(client, chat, caplog):
    nowhere = {**chat, "metadata": {**chat["metadata"], "namespace": "not-there"}}
    await events.post(client, nowhere, Event("Normal", "Promoted", "rev1"), NOW)
    assert "event Promoted was not posted" in caplog.text


async def test_problems_of_pods_are_observed(client, chat):
    live, revision = await made(client, chat)
    namespace = chat["metadata"]["namespace"]
    replica_set = await client.get(REPLICA_SETS, namespace, f"chat-{revision}")
    await make_pod(client, replica_set, "chat-a")
    await make_pod(client, {**replica_set, "metadata": {**replica_set["metadata"], "uid": "foreign"}}, "chat-b")
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    init = [{"name": "fetch", "state": waiting, "ready": False, "restartCount": 0, "image": "i", "imageID": ""}]
    path = PODS.path(namespace, "chat-a", "status")
    await client.request("PATCH", path, [], {"status": {"initContainerStatuses": init}}, "application/merge-patch+json")
    workload = (await seen(client, live)).workloads[revision]
    assert workload.troubles == (PodTrouble("chat-a", "ImagePullBackOff", "container fetch: no such image"),)
    assert workload.replicas == 1


async def make_pod(client, replica_set, name):
    """What the ReplicaSet controller would make."""
    template = replica_set["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}
    owner |= {key: replica_set["metadata"][key] for key in ("name", "uid")}
    metadata = {"name": name, "namespace": replica_set["metadata"]["namespace"], "ownerReferences": [owner]}
    await client.create(PODS, {"metadata": {**template["metadata"], **metadata}, "spec": template["spec"]})


async def test_explain_reads_the_cluster_and_writes_nothing(client, chat):
    live, revision = await made(client, chat)
    obj = await reread(client, chat)
    explained = await explain.from_cluster(client, NoGateways(), obj, SETTINGS, NOW)
    assert json.loads(explain.to_text(explained))["observed"]["services"] == {revision: f"chat-{revision}"}
    assert await reread(client, chat) == live


async def test_keys_names_and_misses(client, chat):
    namespace = chat["metadata"]["namespace"]
    # They come from the API server's cache, which may be a moment behind a write.
    await until_async(
        lambda: client.keys(MODEL_DEPLOYMENTS, namespace), holds=lambda found: found == [(namespace, "chat")]
    )
    await until_async(lambda: client.keys(MODEL_DEPLOYMENTS, None), holds=lambda found: (namespace, "chat") in found)
    assert await client.list(MODEL_DEPLOYMENTS, namespace, "a=b") == []
    with pytest.raises(NotFound):
        await client.get(MODEL_DEPLOYMENTS, namespace, "other")
    with pytest.raises(Exists):
        await client.create(
            MODEL_DEPLOYMENTS,
            {key: chat[key] for key in ("apiVersion", "kind", "spec")}
            | {"metadata": {"name": "chat", "namespace": namespace}},
        )


async def test_a_bad_status_is_refused_by_the_schema(client, chat):
    with pytest.raises(Refused, match="Dancing"):
        await apply.execute(client, chat, Plan(status=Status(phase="Dancing")), NOW)
