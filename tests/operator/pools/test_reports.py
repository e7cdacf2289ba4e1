"""What pods of a pool report, also those that send anything."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from slipway_operator.model.pool_views import EntryState, PoolPod
from slipway_operator.pools import reports
from slipway_operator.pools.reports import PoolTarget, load, read_pod

PAGE = b"slipway_server_pool_memory_bytes 1.5e+06\nslipway_server_pool_memory_limit_bytes 4e+09\n"
ENTRY = {"name": "iris", "version": "v1", "revision": "r1", "state": "READY", "reason": ""}

Serve = Callable[[Any, bytes], Any]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def pod(unused_tcp_port_factory: Any) -> AsyncIterator[dict[str, Any]]:
    """A pod whose answers a test sets; `loads` has the paths of the loads."""
    now: dict[str, Any] = {"index": b"[]", "page": PAGE, "status": 200, "loads": []}

    async def index(_: web.Request) -> web.Response:
        return web.Response(body=now["index"], status=now["status"])

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=now["page"])

    async def loads(http: web.Request) -> web.Response:
        now["loads"].append(http.path)
        return web.Response(body=b"{}")

    app = web.Application()
    app.router.add_post("/v2/repository/index", index)
    app.router.add_get("/metrics", page)
    app.router.add_post("/revisions/{tail:.+}", loads)
    runner = web.AppRunner(app)
    await runner.setup()
    port = unused_tcp_port_factory()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    now["target"] = PoolTarget("shared-0", "team", "127.0.0.1", port)
    yield now
    await runner.cleanup()


async def test_entries_and_memory_are_read(session: aiohttp.ClientSession, pod: dict[str, Any]) -> None:
    plain = {"name": "churn", "version": "7", "state": "UNAVAILABLE", "reason": "unloaded"}
    pod["index"] = json.dumps([ENTRY, plain]).encode()
    assert await read_pod(session, pod["target"]) == PoolPod(
        "shared-0",
        {"r1": EntryState("READY", "", True), "7": EntryState("UNAVAILABLE", "unloaded")},
        loaded=1,
        memory_bytes=1_500_000,
        memory_limit_bytes=4_000_000_000,
    )


@pytest.mark.parametrize(
    "index",
    [b"", b"{", b"{}", b"null", b"[" * 100_000, b'"' + b"a" * (reports.LARGEST_BYTES + 1) + b'"', b"\xff"],
    ids=["nothing", "cut off", "an object", "null", "nested", "large", "no text"],
)
async def test_a_pod_that_answers_otherwise_has_no_entries(
    session: aiohttp.ClientSession, pod: dict[str, Any], index: bytes
) -> None:
    pod["index"] = index
    assert await read_pod(session, pod["target"]) == PoolPod("shared-0")


async def test_a_status_of_an_error_and_a_silent_port_are_no_entries(
    session: aiohttp.ClientSession, pod: dict[str, Any], unused_tcp_port: int
) -> None:
    pod["status"] = 503
    assert (await read_pod(session, pod["target"])).entries is None
    assert (await read_pod(session, PoolTarget("a", "team", "127.0.0.1", unused_tcp_port))).entries is None


async def test_each_field_may_hold_anything(session: aiohttp.ClientSession, pod: dict[str, Any]) -> None:
    odd: list[Any] = [1, None, [], {}, {"revision": 5}, {"revision": "x" * 200}, {"revision": "r2", "state": {}}]
    pod["index"] = json.dumps([*odd, {"revision": "r3", "reason": ["a"] * 1000}, ENTRY]).encode()
    pod["page"] = b"slipway_server_pool_memory_bytes 1e999\nslipway_server_pool_memory_limit_bytes e.e\n"
    found = await read_pod(session, pod["target"])
    assert found.entries and set(found.entries) == {"r2", "r3", "r1"}
    assert len(found.entries["r3"].reason) <= reports.LONGEST_REASON
    assert found.memory_bytes <= reports.MAX_BYTES and found.memory_limit_bytes == 0


async def test_a_reason_controls_no_terminal(session: aiohttp.ClientSession, pod: dict[str, Any]) -> None:
    pod["index"] = json.dumps([ENTRY | {"state": "UNAVAILABLE", "reason": "no\x1b[2J\nfile\ud800"}]).encode()
    found = await read_pod(session, pod["target"])
    assert found.entries and found.entries["r1"].trouble == "no [2J file "


async def test_a_load_names_its_entry_and_a_pod_that_is_away_is_no_error(
    session: aiohttp.ClientSession, pod: dict[str, Any], unused_tcp_port: int
) -> None:
    await load(session, pod["target"], "iris:a", "r1")
    assert pod["loads"] == ["/revisions/r1/v2/repository/models/iris:a/load"]
    await load(session, PoolTarget("a", "team", "127.0.0.1", unused_tcp_port), "iris", "r1")


def test_the_port_and_tls_follow_the_containers() -> None:
    def pod(*ports: dict[str, Any]) -> dict[str, Any]:
        spec = {"containers": [{"name": "a"}, {"ports": list(ports)}]}
        return {"metadata": {"name": "p", "namespace": "team"}, "spec": spec, "status": {"podIP": "fd00::1"}}

    assert PoolTarget.of(pod()).origin == "http://[fd00::1]:8000"
    assert PoolTarget.of(pod({"name": "http", "containerPort": 9000})).origin == "http://[fd00::1]:9000"
    encrypted = PoolTarget.of(pod({"name": "https", "containerPort": 8000})).origin
    assert encrypted.startswith("https://") and encrypted.endswith(":8000")
