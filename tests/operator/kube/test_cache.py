"""The cache, for any order of lists, watch events and answers to writes."""

import asyncio

import pytest

from slipway_operator.kube.errors import Unavailable
from slipway_operator.kube.reading.cache import GONE_KEPT, KINDS, SUBJECTS, ObjectCache
from slipway_operator.kube.resources import (
    AUTOSCALERS,
    CONTROLLER_REVISIONS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    SERVICES,
)


def child(version, name="chat-r1", uid="u1", owner="chat", **content):
    metadata = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(version), "managedFields": []}
    metadata["labels"] = {"slipway.dev/modeldeployment": owner} if owner else {}
    return {"metadata": metadata, **content}


class Cluster:
    """Lists of services at a version, in two pages; lists of other kinds are empty."""

    def __init__(self, version=100, *items):
        self.version, self.items, self.failures, self.listed, self.of = version, list(items), [], [], ""

    async def pages(self, resource, namespace, selector, *, cached):
        assert selector == ("" if resource in SUBJECTS else f"slipway.dev/modeldeployment{self.of}")
        assert cached == (bool(self.of) and resource in (PODS, SERVICES))
        self.listed.append((resource.plural, namespace))
        if self.failures:
            raise self.failures.pop()
        items = self.items if resource is SERVICES else []
        for part in (items[:1], items[1:]):
            yield {"metadata": {"resourceVersion": str(self.version)}, "items": part or None}


def versions(cache, kind=SERVICES, name="chat"):
    return [int(item["metadata"]["resourceVersion"]) for item in cache.children(("default", name))[kind]]


EVENTS = {
    "a newer word counts": ([("ADDED", 5), ("MODIFIED", 6)], [6]),
    "an older word counts nothing": ([("write", 6), ("ADDED", 5)], [6]),
    "the same word twice": ([("write", 5), ("ADDED", 5)], [5]),
    "gone": ([("ADDED", 5), ("DELETED", 6)], []),
    "gone before the answer to a write comes": ([("ADDED", 5), ("DELETED", 7), ("write", 6)], []),
    "gone before it was known": ([("DELETED", 7), ("ADDED", 5)], []),
    "without our label for a while": ([("ADDED", 5), ("DELETED", 6), ("ADDED", 8)], [8]),
    "listed again": ([("ADDED", 5), (None, 9)], [9]),
}


@pytest.mark.parametrize(("events", "left"), EVENTS.values(), ids=EVENTS)
def test_newest_resource_version_wins(events, left):
    cache = ObjectCache()
    for kind, version in events:
        if kind == "write":
            cache.update(SERVICES, child(version))
        else:
            cache.on_event(SERVICES, kind, child(version))
    assert versions(cache) == left


def test_a_namesake_takes_the_place_and_outlives_the_end_of_its_predecessor():
    cache = ObjectCache()
    cache.update(SERVICES, child(5))
    cache.update(SERVICES, child(9, uid="u2"))
    cache.on_event(SERVICES, "DELETED", child(8))
    assert versions(cache) == [9]


def test_children_are_found_by_the_owner_in_their_label():
    cache = ObjectCache()
    cache.update(SERVICES, child(5))
    cache.update(SERVICES, child(6, owner="code"))
    cache.update(SERVICES, child(7, name="chat-r2", uid="u2"))
    assert (versions(cache), versions(cache, name="code")) == ([7], [6])
    cache.update(SERVICES, child(8, owner=""))
    assert versions(cache, name="code") == []
    cache.update(AUTOSCALERS, child(5))
    assert not any(cache.children(("default", "absent")).values())


def test_only_fields_that_are_read_are_cached():
    cache = ObjectCache()
    template = {"spec": {"containers": []}}
    cache.update(REPLICA_SETS, child(5, spec={"replicas": 2, "template": template}, status={"replicas": 1}))
    cache.update(PODS, child(5, spec={"nodeName": "n"}, status={"phase": "Running", "qosClass": "x", "hostIP": "y"}))
    cache.update(CONTROLLER_REVISIONS, child(5, data={"inputs": {}}, revision=3, kind="ControllerRevision"))
    kept = {kind: dict(items[0]) for kind, items in cache.children(("default", "chat")).items() if items}
    assert all("managedFields" not in item.pop("metadata") for item in kept.values())
    assert kept == {
        REPLICA_SETS: {"spec": {"replicas": 2}, "status": {"replicas": 1}},
        PODS: {"spec": {"nodeName": "n"}, "status": {"phase": "Running"}},
        CONTROLLER_REVISIONS: {"data": {"inputs": {}}, "revision": 3},
    }


def test_deployments_are_found_by_the_node_of_their_pods():
    cache = ObjectCache()
    cache.update(PODS, child(5, spec={"nodeName": "n"}))
    assert cache.deployments_on({"m", "n"}) == {("default", "chat")} and cache.deployments_on({"m"}) == set()


def test_model_deployment_is_cached_with_managed_fields_of_applies_only():
    cache = ObjectCache()
    obj = child(5, name="chat", spec={"replicas": 2}, status={"phase": "Healthy"})
    applied = {"operation": "Apply", "manager": "argocd-controller"}
    obj["metadata"]["managedFields"] = [{"operation": "Update", "manager": "slipway-operator"}, applied]
    cache.update(MODEL_DEPLOYMENTS, obj)
    kept = cache.get(("default", "chat"))
    assert kept["metadata"].pop("managedFields") == [applied]
    assert (kept["spec"], kept["status"]) == (obj["spec"], obj["status"])
    assert list(cache.deployments()) == [("default", "chat")]
    cache.on_event(MODEL_DEPLOYMENTS, "DELETED", obj)
    assert cache.get(("default", "chat")) is None


async def test_list_adds_and_removes_objects_unless_the_cache_is_newer():
    cache = ObjectCache(["default"])
    cache.update(SERVICES, child(50, name="gone-r1", uid="gone", owner="gone"))
    cache.update(SERVICES, child(101, name="new-r1", uid="new", owner="new"))
    cluster = Cluster(100, child(60), child(70, name="chat-r2", uid="u2"))
    assert await cache.relist(cluster, [SERVICES]) == {("default", "gone")}
    assert versions(cache) == [60, 70]
    assert (versions(cache, name="gone"), versions(cache, name="new")) == ([], [101])
    assert cluster.listed == [("services", "default")]
    await cache.relist(Cluster(200), [SERVICES])
    assert (versions(cache), versions(cache, name="new")) == ([], [])


async def test_after_a_read_older_events_of_that_deployment_are_ignored():
    cache, cluster = ObjectCache(), Cluster(100, child(60), child(70, name="chat-r2", uid="u2"))
    cluster.of = "=chat"
    cache.update(SERVICES, child(50))
    cache.update(SERVICES, child(40, name="chat-r0", uid="went"))
    cache.update(SERVICES, child(80, name="chat-r2", uid="u2"))
    cache.update(SERVICES, child(30, name="other-r1", uid="other", owner="other"))
    children = await cache.read(cluster, ("default", "chat"))
    assert [int(item["metadata"]["resourceVersion"]) for item in children[SERVICES]] == [60, 80]
    assert sorted(cluster.listed) == sorted((kind.plural, "default") for kind in KINDS[len(SUBJECTS) :])
    cache.update(SERVICES, child(55))
    cache.update(SERVICES, child(41, name="chat-r0", uid="went"))
    assert (versions(cache), versions(cache, name="other")) == ([60, 80], [30])


async def test_all_kinds_are_listed_at_first():
    cluster = Cluster(100)
    assert await ObjectCache().relist(cluster) == set()
    assert cluster.listed == [(kind.plural, None) for kind in KINDS]
    assert cluster.listed[0][0] == "modeldeployments"


async def test_objects_deleted_during_a_gap_of_the_watch_are_noticed(monkeypatch):
    pause, woken = asyncio.sleep, asyncio.Queue()
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: pause(0))
    cache, cluster = ObjectCache(), Cluster(100, child(60))
    cluster.failures.append(Unavailable("503"))
    cache.update(SERVICES, child(50, name="gone-r1", uid="gone", owner="gone"))
    minding = asyncio.create_task(cache.run(cluster, woken.put_nowait))
    cache.on_event(SERVICES, None, child(60))
    assert await asyncio.wait_for(woken.get(), 5) == ("default", "gone")
    minding.cancel()
    assert versions(cache) == [60]
    assert cluster.listed == [("services", None)] * 2, "after a failure once more"


def test_ends_are_remembered_for_a_while():
    cache = ObjectCache()
    for number in range(GONE_KEPT + 1):
        cache.on_event(SERVICES, "DELETED", child(5, uid=f"u{number}"))
    assert len(cache._gone) == GONE_KEPT


def test_a_child_that_changes_owner_concerns_both():
    """The former owner was reconciled only at the resync."""
    cache = ObjectCache()
    assert cache.on_event(SERVICES, "ADDED", child(1)) == {("default", "chat")}
    assert cache.on_event(SERVICES, "MODIFIED", child(2, owner="other")) == {("default", "chat"), ("default", "other")}
    assert cache.on_event(SERVICES, "MODIFIED", child(3, owner="other")) == {("default", "other")}
    assert cache.on_event(SERVICES, "DELETED", child(4, owner="")) == {("default", "other")}
