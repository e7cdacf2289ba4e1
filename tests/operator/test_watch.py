"""The start check, the resync and the settings of the watches; the watches themselves run in the integration tests."""

import asyncio

import kopf
import pytest

from slipway_operator import watch
from slipway_operator.kube.errors import NotFound, Unavailable
from slipway_operator.kube.reading.cache import CHILDREN, SUBJECTS, ObjectCache
from slipway_operator.kube.reading.nodes import UNREACHABLE, Nodes
from slipway_operator.kube.resources import MODEL_DEPLOYMENTS, PODS, SERVICES


class Listing:
    """A client that can only list ModelDeployments; there are no children."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def pages(self, resource, namespace, selector, *, cached):
        found = await self.keys(resource, namespace) if resource is MODEL_DEPLOYMENTS else []
        yield {"metadata": {"resourceVersion": "10"}, "items": found}

    async def keys(self, resource, namespace):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    pause = asyncio.sleep
    monkeypatch.setattr(watch.asyncio, "sleep", lambda seconds: pause(0))


async def test_the_crd_may_come_late():
    await watch.wait_for_crd(Listing(NotFound("x"), Unavailable("x"), []), ())


async def test_missing_crd_is_reported_with_a_message():
    expected = "does not know modeldeployments.slipway.dev: install crds/modeldeployments.yaml; gave up after 0 s"
    with pytest.raises(watch.CrdMissing, match=expected):
        await watch.wait_for_crd(Listing(NotFound("x")), (), patience_s=0.05)


async def test_missing_rights_are_distinguished_from_a_missing_crd():
    with pytest.raises(watch.CrdMissing, match="cannot be listed: forbidden"):
        await watch.wait_for_crd(Listing(Unavailable("forbidden")), ("a",), patience_s=0.05)


async def test_a_resync_adds_every_key_spread_over_time_and_outlives_failures():
    added, enough = {}, asyncio.Event()

    def add_after(key, delay_s):
        added[key] = delay_s
        enough.set()

    cache = ObjectCache()
    cache.update(MODEL_DEPLOYMENTS, deployment("missed", 3))
    client = Listing(Unavailable("away"), [deployment("x", 5), deployment("y", 6)])
    task = asyncio.create_task(watch.resync(client, cache, Nodes(), 300.0, add_after))
    await asyncio.wait_for(enough.wait(), 5)
    task.cancel()
    assert set(added) == {("a", "x"), ("a", "y"), ("a", "missed")}
    assert all(0.0 <= delay_s <= 75.0 for delay_s in added.values())


async def test_a_resync_forgets_nodes_whose_deletion_was_missed():
    kept = asyncio.Event()

    class Named(Listing):
        async def metadata(self, resource, namespace):
            return [{"metadata": {"name": "here"}}]

    nodes = Nodes()
    nodes.watched = True
    for name in ("here", "gone"):
        nodes.on_event("ADDED", {"metadata": {"name": name}, "spec": {"unschedulable": True}})
    cache = ObjectCache()
    resync = watch.resync(Named([deployment("x", 5)]), cache, nodes, 300.0, lambda *_: kept.set())
    task = asyncio.create_task(resync)
    await asyncio.wait_for(kept.wait(), 5)
    task.cancel()
    assert nodes.leaving == {"here"}


async def test_an_event_of_one_node_queues_the_deployments_of_all_nodes_that_it_concerns():
    cache, added = ObjectCache(), []
    nodes = Nodes()
    nodes.watched = True
    for place, name in enumerate("abcd"):
        labels = {"slipway.dev/modeldeployment": f"on-{name}"}
        metadata = {"name": f"pod-{name}", "namespace": "ns", "uid": name, "resourceVersion": str(place + 1)}
        cache.update(PODS, {"metadata": metadata | {"labels": labels}, "spec": {"nodeName": name}})
    listeners = watch.Listeners(added.append, added.append, lambda kind: None, cache, lambda _: None, nodes)
    handler = watch.registry(None, listeners, asyncio.Event())._watching.get_all_handlers()[-1]

    async def queued(name, *taints):
        spec = {"taints": [{"key": key} for key in taints]}
        await handler.fn(event={"type": "MODIFIED", "object": {"metadata": {"name": name}, "spec": spec}}, name=name)
        found, added[:] = [name for _, name in added], []
        return found

    assert [await queued(name) for name in "abcd"] == [[], [], [], []]
    assert [await queued(name, UNREACHABLE) for name in "abc"] == [["on-a"], ["on-b"], ["on-a", "on-b"]]
    assert await queued("c") == ["on-a", "on-b"]


def deployment(name, version):
    metadata = {"name": name, "namespace": "a", "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}}


def test_kopf_is_an_event_source_and_nothing_else():
    settings = watch.settings()
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    assert settings.queueing.worker_limit is None
    assert settings.process.ultimate_exiting_timeout == 25
    assert set(settings.watching.label_selectors.values()) == {"slipway.dev/modeldeployment"}
    assert sum(settings.networking.error_backoffs) > 400
    assert settings.watching.chunk_size == 5
    assert settings.queueing.idle_timeout < 1
    registry = watch.registry(None, listeners([], []), asyncio.Event())
    assert isinstance(registry, kopf.OperatorRegistry)
    assert len(registry._watching.get_all_handlers()) == 7
    for other in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert not other.get_all_handlers()


def listeners(added, forgotten):
    return watch.Listeners(added.append, added.append, lambda kind: None, ObjectCache(), forgotten.append)


async def test_child_is_cached_before_its_parent_is_queued():
    cache, seen = ObjectCache(), []

    def add(key):
        seen.append(len(cache.children(key)[SERVICES]))

    listeners = watch.Listeners(add, print, lambda kind: None, cache, print)
    handlers = watch.registry(None, listeners, asyncio.Event())._watching.get_all_handlers()
    handler = handlers[len(SUBJECTS) + CHILDREN.index(SERVICES)]  # the first are the parents'
    metadata = {"name": "chat-r1", "namespace": "default", "uid": "u", "resourceVersion": "7"}
    obj = {"metadata": metadata | {"labels": {"slipway.dev/modeldeployment": "chat"}}}
    for change in (None, "MODIFIED", "DELETED"):
        await handler.fn(event={"type": change, "object": obj}, namespace="default", meta=kopf.Body(obj).meta)
    assert seen == [1, 1, 0]


@pytest.mark.parametrize(("observed", "queue"), [(1, "first"), (2, "all"), (None, "first")])
async def test_deployment_with_an_unobserved_generation_is_queued_first(observed, queue):
    queues, cache = {"all": [], "first": []}, ObjectCache()
    listeners = watch.Listeners(queues["all"].append, queues["first"].append, lambda kind: None, cache, print)
    handler = watch.registry(None, listeners, asyncio.Event())._watching.get_all_handlers()[0]
    obj = deployment("x", 5)
    obj["metadata"]["generation"] = 2
    obj["status"] = {"observedGeneration": observed} if observed else None
    await handler.fn(event={"type": "MODIFIED", "object": obj}, namespace="a", name="x")
    assert {name for name, keys in queues.items() if keys} == {queue}
    assert cache.get(("a", "x"))


class Autoscaler:
    """The handler of autoscalers, called as kopf calls it; which namespaces were forgotten and which keys added."""

    def __init__(self):
        self.forgotten, self.added = [], []
        registry = watch.registry(None, listeners(self.added, self.forgotten), asyncio.Event())
        self._handler = registry._watching.get_all_handlers()[-1]

    async def __call__(self, name="theirs", target="chat", kind="ModelDeployment", change="MODIFIED", **status):
        aim = {"apiVersion": "slipway.dev/v1alpha1", "kind": kind, "name": target}
        body = kopf.Body({"spec": {"scaleTargetRef": aim}, "status": status})
        await self._handler.fn(event={"type": change}, namespace="default", name=name, body=body)
        added, self.added[:] = sorted(self.added), []
        return [name for _, name in added]


def scaling_active(status="True", message=""):
    return [{"type": "ScalingActive", "status": status, "message": message}]


async def test_autoscaler_queues_its_target_only_when_its_conditions_change():
    hpa = Autoscaler()
    assert await hpa(change=None) == ["chat"]
    assert await hpa(currentMetrics=[1]) == []
    assert await hpa(currentMetrics=[2]) == []
    assert await hpa(conditions=scaling_active()) == ["chat"]
    assert await hpa(conditions=scaling_active(message="other words for what works")) == []
    assert await hpa(conditions=scaling_active("False", "no metric")) == ["chat"]
    assert await hpa(conditions=scaling_active("False", "no metric"), change="DELETED") == ["chat"]
    assert await hpa(conditions=scaling_active("False", "no metric")) == ["chat"]
    assert set(hpa.forgotten) == {"default"}


async def test_an_autoscaler_that_turns_to_another_target_wakes_both():
    hpa = Autoscaler()
    await hpa()
    assert await hpa(target="code") == ["chat", "code"]
    assert await hpa(kind="Service") == ["code"]
    assert await hpa(kind="Service") == []
    assert await hpa(name="chat-autoscaler", kind="Service") == ["chat"], "it has the name of ours"
