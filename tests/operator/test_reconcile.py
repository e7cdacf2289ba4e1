"""What a reconcile does when the API server does not do its part; the good paths run against a real one."""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest

from slipway_contracts.adapters import subject_name
from slipway_operator.adapters.runner import AdapterRunner
from slipway_operator.kube.errors import Leaving, NotFound, Refused, Stale, Unavailable
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.resources import AUTOSCALERS, EVENTS, MODEL_ADAPTERS, MODEL_DEPLOYMENTS, REPLICA_SETS
from slipway_operator.reconcile import REPORT_AGAIN_S
from slipway_operator.telemetry.metrics import Metrics
from tests.support.reconciling import RecordedHooks, reconciler_of

KEY = ("default", "chat")
NOW = datetime(2026, 11, 21, tzinfo=UTC)
CREATED = "2026-11-21T00:00:00Z"


def chat(**metadata):
    return {
        "metadata": {"name": "chat", "namespace": "default", "uid": "u1", "generation": 1, **metadata},
        "spec": {"model": {"uri": "file:///m"}},
    }


class FailingClient:
    """A client that raises the given failure in the given method."""

    def __init__(self, obj=None, **failures):
        self.obj, self.failures, self.calls = obj, failures, []

    def _call(self, name, answer):
        self.calls.append(name)
        if name in self.failures:
            raise self.failures[name]
        return answer

    async def get(self, resource, namespace, name):
        assert resource is MODEL_DEPLOYMENTS
        return self._call("get", self.obj)

    async def list(self, resource, namespace, selector="", cached=False):
        return self._call("list", [])

    async def pages(self, resource, namespace, selector="", *, cached=False):
        yield {"metadata": {"resourceVersion": "10"}, "items": self._call("list", [])}

    async def apply(self, resource, manifest):
        return self._call("apply", manifest)

    async def put_status(self, resource, body):
        return self._call("put_status", body)

    async def create(self, resource, body):
        assert resource is EVENTS
        self.event = body
        return self._call("create", body)


async def reconcile(client, failures=0, *components):
    metrics = Metrics("test")
    try:
        return await reconciler_of(client, lambda: NOW, components, metrics=metrics)(KEY, failures)
    finally:
        results = [
            sample.labels["result"]
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == "slipway_operator_reconcile_total"
        ]
        client.result = results[0]


def test_a_change_of_the_lease_drops_what_is_known_of_deployments_and_adapters():
    cache, hooks = ObjectCache(), RecordedHooks()
    metadata = {"name": "sql", "namespace": "default", "uid": "u2", "resourceVersion": "1"}
    cache.on_event(MODEL_DEPLOYMENTS, "ADDED", chat(resourceVersion="1"))
    cache.on_event(MODEL_ADAPTERS, "ADDED", {"metadata": metadata, "spec": {}})
    adapters = AdapterRunner(FailingClient(), cache, None, lambda: True, lambda key: None)
    adapters.views = {KEY: "of a former lease"}
    reconciler_of(FailingClient(), lambda: NOW, (hooks, adapters), cache=cache).reset()
    assert set(hooks.forgotten) == {KEY, ("default", subject_name("sql"))}
    assert adapters.views is None


async def test_a_new_model_deployment_gets_its_children_before_its_status():
    client = FailingClient(chat())
    await reconcile(client)
    kinds = [call for call in client.calls if call != "list"]
    assert kinds == ["get", "apply", "apply", "apply", "put_status", "create"]
    assert client.result == "ok"


@pytest.mark.parametrize("obj", [None, chat(deletionTimestamp="2026-01-01T00:00:00Z")], ids=["gone", "leaving"])
async def test_deleted_object_is_left_alone(obj):
    client, hooks = FailingClient(obj) if obj else FailingClient(get=NotFound("no")), RecordedHooks()
    assert await reconcile(client, 0, hooks) is None
    assert client.calls == ["get"]
    assert hooks.forgotten == [KEY]


async def test_stale_means_again_at_once():
    client = FailingClient(chat(), put_status=Stale("newer"))
    assert await reconcile(client) <= 0.1
    assert client.result == "stale"


async def test_conflicts_of_each_write_make_no_busy_loop():
    client = FailingClient(chat(), put_status=Stale("a webhook refuses it"))
    reconcile_it = reconciler(client)
    pauses = [await reconcile_it(KEY, 0) for _ in range(9)]
    assert pauses[0] <= 0.1 and pauses == sorted(pauses) and pauses[-1] == 5.0
    del client.failures["put_status"]
    await reconcile_it(KEY, 0)
    client.failures["put_status"] = Stale("newer")
    assert await reconcile_it(KEY, 0) == pauses[0], "one conflict after a success is nothing special"


async def test_an_api_server_that_is_away_means_backoff():
    client = FailingClient(chat(), list=Unavailable("503"))
    with pytest.raises(Unavailable):
        await reconcile(client)
    assert client.result == "unavailable"


@pytest.mark.parametrize(("failures", "reported"), [(0, False), (1, False), (2, True), (7, True)])
async def test_a_refusal_that_lasts_becomes_a_warning(failures, reported):
    client = FailingClient(chat(), apply=Refused(403, "exceeded quota: gpus"))
    with pytest.raises(Refused):
        await reconcile(client, failures)
    assert ("create" in client.calls) is reported
    assert ("put_status" in client.calls) is reported
    if reported:
        assert (client.event["type"], client.event["reason"]) == ("Warning", "CreateFailed")
        assert client.event["message"].endswith("cannot be created: exceeded quota: gpus")


async def test_a_bug_is_counted_and_raised():
    client = FailingClient({"metadata": {}})
    with pytest.raises(KeyError):
        await reconcile(client)
    assert client.result == "error"


def with_event_hook():
    obj = chat()
    obj["spec"]["strategy"] = {"hooks": [{"name": "log", "type": "event", "url": "http://log.tools.svc/"}]}
    return obj


async def test_hooks_are_called_when_the_status_is_written_and_not_before():
    client, hooks = FailingClient(with_event_hook(), put_status=Stale("newer")), RecordedHooks()
    await reconcile(client, 0, hooks)
    assert (hooks.followed, hooks.notified) == (None, []), "no call before its status is written"
    client = FailingClient(with_event_hook())
    await reconcile(client, 0, hooks)
    assert hooks.followed == ()
    assert [call.payload["metadata"]["eventReason"] for call in hooks.notified] == ["RolloutUpdated"]


async def test_event_hooks_get_the_event_of_a_refusal():
    client, hooks = FailingClient(with_event_hook(), apply=Refused(403, "exceeded quota")), RecordedHooks()
    with pytest.raises(Refused):
        await reconcile(client, 7, hooks)
    assert [call.payload["metadata"]["eventReason"] for call in hooks.notified] == ["CreateFailed"]


async def test_calls_beyond_the_limit_are_requeued_soon():
    assert await reconcile(FailingClient(chat()), 0, RecordedHooks(room=False)) <= 5


class Remembering(FailingClient):
    """Keeps the status that was written, and the events."""

    def __init__(self, obj, **failures):
        super().__init__(obj, **failures)
        self.posted = []

    async def put_status(self, resource, body):
        self.obj = {**self.obj, "status": body["status"]}
        return self._call("put_status", body)

    async def create(self, resource, body):
        self.posted.append(body["reason"])
        return self._call("create", body)


def reconciler(client, seconds=0, cache=None):
    then = NOW + timedelta(seconds=seconds)
    return reconciler_of(client, lambda: then, cache=cache)


class Making(Remembering):
    """Answers an apply with the object, and lists the objects of `there`."""

    def __init__(self, obj):
        super().__init__(obj)
        self.made, self.there, self.scaled, self.listed = {}, {}, [], set()

    async def apply(self, resource, manifest):
        metadata = manifest["metadata"] | {
            "uid": f"u{len(self.made)}",
            "resourceVersion": "5",
            "creationTimestamp": CREATED,
        }
        self.made[resource] = {**manifest, "metadata": metadata}
        return self._call("apply", self.made[resource])

    async def pages(self, resource, namespace, selector="", *, cached=False):
        self.listed.add(resource)
        items = self._call("list", [self.there[resource]] if resource in self.there else [])
        yield {"metadata": {"resourceVersion": "10"}, "items": items}

    async def patch(self, resource, namespace, name, body):
        if "spec" in body:
            self.scaled.append(body["spec"]["replicas"])
        return self._call("patch", body)


@pytest.mark.parametrize(("really", "scaled"), [(1, []), (3, [1])], ids=["it is not", "it is"])
async def test_scale_down_is_decided_on_fresh_reads(really, scaled):
    client, cache = Making(chat(resourceVersion="5")), ObjectCache()
    await reconciler(client, cache=cache)(KEY, 0)
    assert REPLICA_SETS not in client.listed, "cached objects are not listed"
    for resource, item in client.made.items():
        client.there[resource] = item
        cache.update(resource, item)
    cache.update(REPLICA_SETS, at(client.made[REPLICA_SETS], "6", replicas=3))
    client.there[REPLICA_SETS] = at(client.made[REPLICA_SETS], "7", replicas=really)
    again = reconciler(client, cache=cache)
    assert await again(KEY, 0) == 0.0
    assert (client.scaled, client.listed & {REPLICA_SETS}) == ([], set())
    await again(KEY, 0)
    assert REPLICA_SETS in client.listed
    assert client.scaled == scaled


def at(obj, version, status=None, **spec):
    """The object as it is at a version."""
    metadata = obj["metadata"] | {"resourceVersion": version}
    return {**obj, "metadata": metadata, "spec": {**obj["spec"], **spec}, "status": status or {}}


async def test_pods_that_a_read_found_ready_are_not_lost_again_while_watches_are_silent():
    client, cache = Making(chat(resourceVersion="5")), ObjectCache()
    reconcile_it = reconciler(client, cache=cache)
    await reconcile_it(KEY, 0)
    for resource, item in client.made.items():
        cache.update(resource, item)
        client.there[resource] = item
    client.there[REPLICA_SETS] = at(client.made[REPLICA_SETS], "7", {"replicas": 1, "readyReplicas": 1})
    client.failures["put_status"] = Stale("another write came first")
    for _ in range(2):
        await reconcile_it(KEY, 0)
    [replica_set] = cache.children(KEY)[REPLICA_SETS]
    assert replica_set["status"]["readyReplicas"] == 1


async def test_cached_objects_are_read_again_only_after_a_failure():
    cache, obj = ObjectCache(), chat(resourceVersion="5")
    cache.update(MODEL_DEPLOYMENTS, obj)
    client = Remembering({**obj, "metadata": obj["metadata"] | {"resourceVersion": "9"}}, put_status=Stale("newer"))
    reconcile_it = reconciler(client, cache=cache)
    await reconcile_it(KEY, 0)
    assert "get" not in client.calls
    client.failures["put_status"] = Unavailable("away")
    with pytest.raises(Unavailable):
        await reconcile_it(KEY, 0)
    assert client.calls.count("get") == 1
    assert cache.get(KEY)["metadata"]["resourceVersion"] == "9"
    del client.failures["put_status"]
    for _ in range(2):
        await reconcile_it(KEY, 0)
    assert client.calls.count("get") == 2


@pytest.mark.parametrize("failure", [Stale("the answer was lost"), Unavailable("reset"), KeyboardInterrupt()])
async def test_event_is_posted_once_when_the_answer_to_the_status_write_is_lost(failure):
    client = Remembering(chat(), put_status=failure)
    with contextlib.suppress(Unavailable, KeyboardInterrupt):
        await reconciler(client)(KEY, 0)
    assert client.posted == []
    del client.failures["put_status"]
    following = reconciler(client)
    for _ in range(3):
        await following(KEY, 0)
    assert client.posted == ["RolloutUpdated"]


async def test_an_event_that_could_not_be_posted_is_posted_soon():
    client = Remembering(chat(), create=Unavailable("reset"))
    reconcile_it = reconciler(client)
    assert 0 <= await reconcile_it(KEY, 0) <= REPORT_AGAIN_S
    del client.failures["create"]
    client.posted.clear()
    for _ in range(2):
        await reconcile_it(KEY, 0)
    assert client.posted == ["RolloutUpdated"]


async def test_starting_operator_posts_no_event_for_an_old_decision():
    client = Remembering(chat())
    await reconciler(client)(KEY, 0)
    assert client.posted == ["RolloutUpdated"]
    await reconciler(client, seconds=3600)(KEY, 0)
    assert client.posted == ["RolloutUpdated"]


async def test_in_a_terminating_namespace_nothing_is_retried():
    client = Remembering(chat(), apply=Leaving(403, "unable to create new content: it is being terminated"))
    reconcile_it = reconciler(client)
    for _ in range(3):
        assert await reconcile_it(KEY, 0) is None
    assert client.calls.count("apply") == 1
    client.obj = chat(uid="u2")  # one of the same name, in a later namespace of the same name
    await reconcile_it(KEY, 0)
    assert client.calls.count("apply") == 2


class WithoutAutoscalers(Making):
    """An API server that refuses only autoscalers."""

    async def apply(self, resource, manifest):
        if resource is AUTOSCALERS:
            raise Refused(422, "metadata.name: must not contain '/'")
        return await super().apply(resource, manifest)


async def test_refused_autoscaler_is_reported_and_pods_are_created_anyway():
    obj = chat()
    obj["spec"]["autoscaling"] = {"maxReplicas": 4, "metrics": [{"type": "QueueDepth", "target": "4"}]}
    client = WithoutAutoscalers(obj)
    again_after_s = await reconciler(client)(KEY, 0)
    assert again_after_s is not None and again_after_s <= 60, "no watch reports that a quota has room again"
    assert REPLICA_SETS in client.made
    [condition] = [item for item in client.obj["status"]["conditions"] if item["type"] == "Autoscaling"]
    assert (condition["status"], condition["reason"]) == ("False", "Refused")
    assert condition["message"].endswith("must not contain '/'")


async def test_unreadable_parts_of_a_status_are_reported():
    client = Remembering(chat())
    reconcile_it = reconciler(client)
    await reconcile_it(KEY, 0)
    rollout = client.obj["status"]["rollout"] | {"startedAt": "1969-01-01T00:00:00Z"}
    client.obj = {**client.obj, "status": {**client.obj["status"], "rollout": rollout}}
    client.posted.clear()
    for _ in range(2):
        await reconcile_it(KEY, 0)
    assert client.posted.count("StatusRestored") == 2, "that it was lost, and what it is now; both once"
    assert client.obj["status"]["rollout"]["startedAt"] == "2026-11-21T00:00:00Z"
