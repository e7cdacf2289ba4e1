"""Pods of one tenant that hang, or report anything: neither the operator nor pools of others pay for it."""

import asyncio
import itertools
import time
from typing import Any

import pytest

from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.resources import STATEFUL_SETS
from slipway_operator.model.pool_views import EntryState, PoolPod
from slipway_operator.pools import runner as looks
from slipway_operator.pools.reports import PoolTarget
from testkit.until import until_async
from tests.operator.pools.test_runner import Server, _metadata, member, runner_of


def pod(name: str, of: str = "shared", namespace: str = "team") -> dict[str, Any]:
    owner = {"ownerReferences": [{"uid": f"set-of-{of}-pool", "controller": True}]}
    ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": _metadata(name, name, **owner) | {"namespace": namespace}, "status": ready}


@pytest.fixture(autouse=True)
def no_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_load(*_: Any) -> None:
        return

    monkeypatch.setattr(looks, "load", no_load)


async def test_names_that_no_entry_has_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    server, cache, number = Server("shared"), ObjectCache(), itertools.count()
    member(cache, "iris", "shared")
    server.pods = [pod("shared-pool-0")]

    async def report(*_: Any) -> PoolPod:
        made = {f"{next(number)}": EntryState("READY", "", True) for _ in range(100)}
        return PoolPod("shared-pool-0", made | {"r-iris": EntryState("READY", "", True)})

    monkeypatch.setattr(looks, "read_pod", report)
    runner, _ = runner_of(server, cache)
    for _ in range(5):
        await runner.look()
    assert runner._pools["team", "shared"].loaded == {("shared-pool-0", "r-iris")}


async def test_pods_that_hang_in_one_namespace_delay_pools_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read one after the other they would take a minute here, and an hour of a tenant with many of them."""
    server = Server("one", "two", "three", "shared")
    server.pods = [pod("shared-pool-0")]
    for name in ("one", "two", "three"):
        server.pools[name]["metadata"]["namespace"] = "other"
        server.pods += [pod(f"{name}-{n}", name, "other") for n in range(100)]

    async def report(_: Any, target: PoolTarget) -> PoolPod:
        await asyncio.sleep(3.0 if target.namespace == "other" else 0.0)
        return PoolPod(target.name, {} if target.namespace == "team" else None)

    monkeypatch.setattr(looks, "read_pod", report)
    monkeypatch.setattr(looks, "REPORTS_S", 1.0)
    runner, _ = runner_of(server)
    started = time.monotonic()
    await asyncio.wait_for(runner.look(), 15)
    assert runner.views and [one.entries for one in runner.views["team", "shared"].pods] == [{}]
    assert time.monotonic() - started < 15
    assert {one.entries for one in runner.views["other", "one"].pods} == {None}
    assert len(runner.views["other", "one"].pods) == 100


async def test_pods_that_answer_are_read_before_those_that_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("shared")
    server.pods = [pod(f"p{n:02}") for n in range(30)]

    async def report(_: Any, target: PoolTarget) -> PoolPod:
        hangs = int(target.name[1:]) < 20
        await asyncio.sleep(60.0 if hangs else 0.0)
        return PoolPod(target.name, None if hangs else {})

    monkeypatch.setattr(looks, "read_pod", report)
    monkeypatch.setattr(looks, "REPORTS_S", 0.3)
    runner, _ = runner_of(server)

    async def answered() -> int:
        await runner.look()
        assert runner.views
        return sum(one.entries is not None for one in runner.views["team", "shared"].pods)

    # At first those that hang may have all places. Silent ones take turns, so that those that are well are found.
    await until_async(answered, "all that are well are known", holds=lambda number: number == 10)
    assert [await answered() for _ in range(3)] == [10, 10, 10]


async def test_a_deleted_stateful_set_is_made_again_before_manual_changes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async def report(*_: Any) -> PoolPod:
        return PoolPod("shared-pool-0", {})

    monkeypatch.setattr(looks, "read_pod", report)
    monkeypatch.setattr(looks, "NO_POD_AGAIN_S", 0.0)
    server = Server("shared")
    server.pods = [pod("shared-pool-0")]
    runner, _ = runner_of(server)

    def applied() -> int:
        return sum(resource is STATEFUL_SETS for resource, _ in server.applied)

    await runner.look()
    await runner.look()
    assert applied() == 1
    server.pods = []  # its garbage
    await runner.look()
    await runner.look()
    assert applied() == 2
    server.pools["shared"]["spec"] = {"replicas": 0}
    await runner.look()
    await runner.look()
    assert applied() == 3, "none is wanted"


async def test_what_a_container_leaves_as_its_last_words_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON of as many levels as a message has room for: more than Python reads."""
    ended = {"exitCode": 1, "message": '{"":' * 1024}
    container = {"name": "server", "restartCount": 1, "lastState": {"terminated": ended}, "ready": False}
    broken = pod("shared-pool-0")
    broken["status"] = {"containerStatuses": [container], "conditions": []}
    server = Server("shared")
    server.pods = [broken]
    runner, _ = runner_of(server)
    await runner.look()
    assert runner.views and "shared-pool-0: Restarted: container server: {" in runner.views["team", "shared"].problem


async def test_a_bug_about_one_pool_is_no_end_of_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("one", "two")
    server.pods = [pod("one-pool-0", "one")]

    async def report(*_: Any) -> PoolPod:
        raise KeyError("x")

    monkeypatch.setattr(looks, "read_pod", report)
    runner, _ = runner_of(server)
    await runner.look()
    assert runner.views and "see its log" in runner.views["team", "one"].problem
    assert runner.views["team", "two"].uid == "set-of-two-pool"
    assert "a bug: the ModelPool team/one is not kept" in caplog.text
