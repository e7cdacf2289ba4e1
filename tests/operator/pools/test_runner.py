"""The looks at ModelPools: what goes wrong with one of them, and which members are reconciled."""

from datetime import UTC, datetime
from typing import Any

import pytest

from slipway_operator.kube.errors import NotFound, Refused, Unavailable
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.resources import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    MODEL_DEPLOYMENTS,
    MODEL_POOLS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
)
from slipway_operator.model.pool_views import EntryState, PoolPod
from slipway_operator.pools import runner as looks
from slipway_operator.pools.runner import PoolAccess, PoolRunner, PoolSettings

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Server:
    """An API server with pools; `refuses` maps a kind to what its writes raise."""

    def __init__(self, *pools: str) -> None:
        self.pools = {name: {"metadata": _metadata(name, "uid"), "spec": {}} for name in pools}
        self.refuses: dict[Any, Exception] = {}
        self.listing: Exception | None = None
        self.applied: list[Any] = []
        self.pods: list[Any] = []
        self.annotated: list[str] = []

    async def list(self, resource: Any, namespace: str | None, *_: Any, **__: Any) -> list[Any]:
        if resource is MODEL_POOLS and self.listing:
            raise self.listing
        return {
            MODEL_POOLS: list(self.pools.values()),
            PODS: [one for one in self.pods if namespace in (None, one["metadata"]["namespace"])],
        }.get(resource, [])

    async def patch(self, resource: Any, namespace: str, name: str, body: Any) -> Any:
        if resource in self.refuses:
            raise self.refuses[resource]
        [found] = [one for one in self.pods if one["metadata"]["name"] == name]
        found["metadata"] |= {"annotations": body["metadata"]["annotations"]}
        self.annotated.append(name)

    async def apply(self, resource: Any, manifest: Any, **_: Any) -> Any:
        if resource in self.refuses:
            raise self.refuses[resource]
        self.applied.append((resource, manifest))
        return manifest

    async def get(self, resource: Any, namespace: str, name: str) -> Any:
        owner = {"uid": "uid", "controller": True}
        return {"metadata": _metadata(name, f"set-of-{name}") | {"ownerReferences": [owner]}}

    async def put_status(self, resource: Any, body: Any) -> Any:
        self.pools[body["metadata"]["name"]] = body
        return body


def _metadata(name: str, uid: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "team", "uid": uid, "resourceVersion": "1", "generation": 1} | more


def runner_of(server: Server, cache: ObjectCache | None = None) -> tuple[PoolRunner, list[Any]]:
    changed: list[Any] = []
    access = PoolAccess(server, cache or ObjectCache(), None)  # type: ignore[arg-type]
    settings = PoolSettings("slipway-server:1")
    return PoolRunner(access, settings, lambda: True, changed.append, lambda: NOW), changed


def member(cache: ObjectCache, name: str, pool: str) -> None:
    """A ModelDeployment whose only revision is an entry of a pool."""
    model = {"uri": "file:///m", "task": "predict"}
    cache.update(MODEL_DEPLOYMENTS, {"metadata": _metadata(name, name), "spec": {"pool": {"name": pool}}})
    labels = {"slipway.dev/modeldeployment": name, "slipway.dev/revision": f"r-{name}"}
    owned = {"labels": labels, "ownerReferences": [{"uid": name, "controller": True}]}
    owned["creationTimestamp"] = "2026-01-01T00:00:00Z"
    marks = {"annotations": {"slipway.dev/pool-replicas": "1"}}
    cache.update(REPLICA_SETS, {"metadata": _metadata(f"{name}-r", f"{name}-rs", **owned, **marks), "spec": {}})
    data = {"inputs": {"model": model, "pool": {"name": pool}}, "image": "", "drainTimeoutSeconds": 1}
    record = {"data": data | {"templateVersion": 3}, "revision": 1}
    cache.update(CONTROLLER_REVISIONS, {"metadata": _metadata(f"{name}-r", f"{name}-cr", **owned), **record})


async def test_an_entry_of_each_member_is_in_the_file_of_its_pool() -> None:
    server, cache = Server("one", "two"), ObjectCache()
    for name, pool in (("a", "one"), ("b", "two"), ("c", "gone")):
        member(cache, name, pool)
    runner, changed = runner_of(server, cache)
    await runner.look()
    [made] = [manifest for resource, manifest in server.applied if resource is CONFIG_MAPS]
    assert set(made["data"]) == {"one.json", "two.json"}
    assert '"version":"r-a"' in made["data"]["one.json"] and "r-b" not in made["data"]["one.json"]
    assert changed == [("team", "a"), ("team", "b"), ("team", "c")]
    assert server.pools["one"]["status"]["models"] == 1
    await runner.look()
    assert len(changed) == 3, "nothing changed"
    assert len([one for one in server.applied if one[0] is STATEFUL_SETS]) == 2, "applied once each"


async def test_all_pools_of_a_namespace_own_the_file_of_their_entries_so_that_it_goes_with_the_last_one() -> None:
    server = Server("one", "two")
    runner, _ = runner_of(server)

    async def owners() -> list[Any]:
        await runner.look()
        made = [manifest for resource, manifest in server.applied if resource is CONFIG_MAPS]
        server.applied.clear()
        references = [one["metadata"]["ownerReferences"] for one in made]
        assert not any(item.get("controller") or item.get("blockOwnerDeletion") for one in references for item in one)
        return [[(item["kind"], item["name"], item["uid"]) for item in one] for one in references]

    assert await owners() == [[("ModelPool", "one", "uid"), ("ModelPool", "two", "uid")]]
    del server.pools["two"]
    assert await owners() == [[("ModelPool", "one", "uid")]]
    server.pools.clear()
    assert await owners() == [], "garbage collection deletes it"
    server.pools["one"] = {"metadata": _metadata("one", "again"), "spec": {}}
    assert await owners() == [[("ModelPool", "one", "again")]]


async def test_what_goes_wrong_with_one_pool_leaves_what_is_known_and_the_others() -> None:
    server, cache = Server("one", "two"), ObjectCache()
    member(cache, "a", "one")
    runner, changed = runner_of(server, cache)
    await runner.look()
    assert runner.views is not None
    before, changed[:] = dict(runner.views), []
    for error in (Unavailable("away"), NotFound("no namespace")):
        server.refuses = {CONFIG_MAPS: error}
        member(cache, "b", "two")
        await runner.look()
        assert runner.views == before
    assert ("team", "a") not in changed


@pytest.mark.parametrize("error", [NotFound("no such kind"), Refused(403, "forbidden"), Unavailable("away")])
async def test_pools_that_cannot_be_read_are_not_taken_for_gone(error: Exception) -> None:
    server = Server("one")
    runner, _ = runner_of(server)
    await runner.look()
    server.listing = error
    with pytest.raises(type(error)):
        await runner.look()
    assert runner.views and ("team", "one") in runner.views


async def test_entries_that_cannot_be_written_are_in_the_status_of_the_pool_and_its_members() -> None:
    """For example because all pools of the namespace need more than a ConfigMap holds."""
    server, cache = Server("shared"), ObjectCache()
    member(cache, "iris", "shared")
    server.refuses[CONFIG_MAPS] = Refused(413, "ConfigMap is too long")
    runner, _ = runner_of(server, cache)
    await runner.look()
    assert runner.views and "ConfigMap is too long" in runner.views["team", "shared"].problem
    accepted, *_ = server.pools["shared"]["status"]["conditions"]
    assert (accepted["type"], accepted["status"], accepted["reason"]) == ("Accepted", "False", "EntriesNotWritten")
    assert "ConfigMap is too long" in accepted["message"]
    del server.refuses[CONFIG_MAPS]
    await runner.look()
    assert not runner.views["team", "shared"].problem
    assert server.pools["shared"]["status"]["conditions"][0]["status"] == "True"


async def test_a_changed_file_of_entries_is_in_the_annotation_of_each_pod_once_it_is_written() -> None:
    server, cache = Server("shared"), ObjectCache()
    owner = {"ownerReferences": [{"uid": "set-of-shared-pool", "controller": True}]}
    pods = [{"metadata": _metadata(f"shared-pool-{n}", f"p{n}", **owner)} for n in range(2)]
    server.pods = [one | {"status": {"podIP": f"10.0.0.{n}"}} for n, one in enumerate(pods)]
    runner, _ = runner_of(server, cache)
    await runner.look()
    await runner.look()
    assert server.annotated == ["shared-pool-0", "shared-pool-1"], "once each"
    first = {one["metadata"]["annotations"]["slipway.dev/pool-entries"] for one in server.pods}
    member(cache, "iris", "shared")
    server.refuses[CONFIG_MAPS] = Unavailable("away")
    await runner.look()
    assert len(server.annotated) == 2, "the former file would be written"
    server.refuses = {PODS: Refused(403, "no right")}
    await runner.look()
    assert runner.views and not runner.views["team", "shared"].problem, "the pool is well, its pods only wait"
    del server.refuses[PODS]
    await runner.look()
    second = {one["metadata"]["annotations"]["slipway.dev/pool-entries"] for one in server.pods}
    assert len(server.annotated) == 4 and len(first) == len(second) == 1 and first != second


async def test_which_models_are_in_memory_is_written_at_a_bounded_rate_and_a_reason_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, cache = Server("shared"), ObjectCache()
    member(cache, "iris", "shared")
    member(cache, "churn", "shared")
    owner = {"ownerReferences": [{"uid": "set-of-shared-pool", "controller": True}]}
    ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    server.pods = [{"metadata": _metadata("shared-pool-0", "p0", **owner), "status": ready}]
    now: dict[str, EntryState] = {}

    async def report(*_: Any) -> PoolPod:
        return PoolPod("shared-pool-0", dict(now), loaded=1)

    async def no_load(*_: Any) -> None:
        return

    monkeypatch.setattr(looks, "read_pod", report)
    monkeypatch.setattr(looks, "load", no_load)
    runner, _ = runner_of(server, cache)

    def loaded() -> dict[str, int]:
        entries = server.pools["shared"]["status"]["entries"]
        return {one["modelDeployment"]: one.get("loaded", 0) for one in entries}

    here, away = EntryState("READY", "", True), EntryState("UNAVAILABLE", "unloaded")
    now |= {"r-iris": here, "r-churn": away}
    await runner.look()
    assert loaded() == {"iris": 1, "churn": 0}
    now |= {"r-iris": away, "r-churn": here}
    await runner.look()
    assert loaded() == {"iris": 1, "churn": 0}, "evictions alone"
    now["r-iris"] = EntryState("UNAVAILABLE", "no ONNX file")
    await runner.look()
    assert loaded() == {"iris": 0, "churn": 1}
    entries = server.pools["shared"]["status"]["entries"]
    assert [one.get("reason") for one in entries if one["modelDeployment"] == "iris"] == [
        "pod shared-pool-0: no ONNX file"
    ]


@pytest.mark.parametrize("who", ["kubelet", "pod"])
async def test_a_reason_that_alternates_is_not_written_at_each_look(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """A container that crashes, and a pod that reports another text each time, had the status written every 2 s."""
    server, cache, clock = Server("one"), ObjectCache(), [1000.0]
    member(cache, "a", "one")
    monkeypatch.setattr(looks.time, "monotonic", lambda: clock[0])
    metadata = _metadata("p0", "p0", ownerReferences=[{"uid": "set-of-one-pool", "controller": True}])

    async def report(*_: Any) -> PoolPod:
        return PoolPod("p0", {"r-a": EntryState("UNAVAILABLE", f"text {clock[0]}")})

    async def no_load(*_: Any) -> None:
        return

    monkeypatch.setattr(looks, "read_pod", report)
    monkeypatch.setattr(looks, "load", no_load)
    runner, changed = runner_of(server, cache)
    written: list[int] = []
    for turn in range(1000):
        waiting = {"reason": "CrashLoopBackOff" if turn % 2 else "CreateContainerError"}
        status: dict[str, Any] = {"containerStatuses": [{"name": "server", "state": {"waiting": waiting}}]}
        if who == "pod":
            status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        server.pods = [{"metadata": metadata, "status": status}]
        before = server.pools["one"].get("status")
        await runner.look()
        if server.pools["one"].get("status") != before:
            written.append(turn)
        clock[0] += looks.LOOK_S
    assert 10 < len(written) < 200, written
    assert 10 < len(changed) < 200, "members show the reason too, and there can be many"
    assert written[:5] == list(range(5)), "the first changes are shown at once"
    server.pools["one"]["metadata"]["generation"] = 7
    await runner.look()
    assert server.pools["one"]["status"]["observedGeneration"] == 7, "what a user changed is shown at once"


async def test_pods_that_are_refused_are_the_reason_of_the_pool() -> None:
    server = Server("one")
    server.refuses = {STATEFUL_SETS: Refused(403, "exceeded quota")}
    runner, _ = runner_of(server)
    await runner.look()
    [ready] = [one for one in server.pools["one"]["status"]["conditions"] if one["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "PoolNotReady") and "exceeded quota" in ready["message"]


async def test_a_spec_that_cannot_be_read_keeps_the_pods() -> None:
    server = Server("one")
    runner, _ = runner_of(server)
    await runner.look()
    server.applied.clear()
    server.pools["one"]["spec"] = {"replicas": "many"}
    await runner.look()
    assert not [one for one in server.applied if one[0] is STATEFUL_SETS]
    [accepted] = [one for one in server.pools["one"]["status"]["conditions"] if one["type"] == "Accepted"]
    assert accepted["reason"] == "InvalidSpec" and "spec.replicas" in accepted["message"]


async def test_an_upgrade_of_the_operator_restarts_no_pool() -> None:
    server = Server("one")
    await runner_of(server)[0].look()
    access = PoolAccess(server, ObjectCache(), None)  # type: ignore[arg-type]
    upgraded = PoolRunner(access, PoolSettings("slipway-server:2"), lambda: True, lambda key: None, lambda: NOW)
    await upgraded.look()
    images = {
        container["image"]
        for resource, manifest in server.applied
        if resource is STATEFUL_SETS
        for container in manifest["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"slipway-server:1"}
