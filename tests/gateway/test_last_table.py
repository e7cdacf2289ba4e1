"""The last table survives a restart of its gateway while the API server is away (safety 25)."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from slipway_contracts.route_table import Backend, HeaderMatch, HeaderRoute, MirrorRoute
from slipway_contracts.twin_shadow import TailThreshold, TwinLatency, TwinShadow
from slipway_gateway.routing.last_table import FILE, LastTable, decode, encode
from slipway_gateway.routing.table import Problem, RevisionEndpoints, Route, RouteTable, build
from slipway_gateway.serving.admin import AdminApi
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.until import until_async
from tests.support.report import as_json

from .harness import NoSource, echo, gateway, table, upstream

pytestmark = pytest.mark.finding(25)

MATCH = (HeaderMatch("x-team", prefix="qa-"),)
ROUTE = Route(
    "default/chat", "u1", "chat", "2026-01-01T00:00:00Z", 41, "salt",
    (Backend("r1", 25, "v2"), Backend("r2", 75)), (HeaderRoute("t", "r1", MATCH),),
    (MirrorRoute("m", "r1", 20, MATCH),),
    TwinShadow("r1", "r2", 50, 2, 7, (TwinLatency("ttft", 15, (TailThreshold("s", 900_000),)),)),
    30.0, 2, False, None, ("cookie",),
)  # fmt: skip
TABLE = build([ROUTE], [RevisionEndpoints("default/chat", "r1", ("http://10.0.0.1:8000", "http://[::1]:8000"))])


def kept(folder: Path, published: list[RouteTable | None], max_age_s: float = 3600.0) -> LastTable:
    return LastTable(str(folder), max_age_s, published.append, GatewayMetrics("test"))


async def test_table_is_restored_after_a_restart(tmp_path: Path) -> None:
    before: list[RouteTable | None] = []
    last = kept(tmp_path, before)
    running = asyncio.create_task(last.run(grace_s=0.01))
    last.publish(replace(TABLE, as_of_s=time.time()))
    await until_async(lambda: (tmp_path / FILE).exists())
    running.cancel()
    after: list[RouteTable | None] = []
    again = kept(tmp_path, after)
    assert as_json(again.report()) == {"restored": False, "age_s": 0.0}
    running = asyncio.create_task(again.run(grace_s=0.05))
    await until_async(lambda: after)
    assert after == [TABLE] and as_json(again.report())["restored"] and 0 <= as_json(again.report())["age_s"] < 60
    again.publish(build([], []))
    assert after[-1] == build([], []) and not as_json(again.report())["restored"] and again.age_s is None
    running.cancel()


async def test_table_of_the_cluster_replaces_the_file_in_the_grace_period(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(encode(TABLE, time.time()))
    published: list[RouteTable | None] = []
    last = kept(tmp_path, published)
    running = asyncio.create_task(last.run(grace_s=0.3))
    await asyncio.sleep(0)
    assert not published
    last.publish(build([], []))
    await asyncio.sleep(0.4)
    assert published == [build([], [])]
    running.cancel()


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"{",
        b'{"saved_s":1,"routes":[],"endpoints":[],"version":99}',
        encode(TABLE, time.time()).replace(b'"weight":25', b'"weight":26'),
        encode(TABLE, time.time())[:-20],
        b"[" * 5000,
        b"\xff",
    ],
)
async def test_damaged_file_is_not_used_and_logged(
    written: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(written)
    assert isinstance(decode(written), Problem)
    published: list[RouteTable | None] = []
    running = asyncio.create_task(kept(tmp_path, published).run(grace_s=0.01))
    await until_async(lambda: "is not used" in caplog.text)
    await asyncio.sleep(0.1)
    assert not published
    running.cancel()


async def test_old_file_is_not_used(tmp_path: Path) -> None:
    """Its addresses may be those of other pods by then."""
    (tmp_path / FILE).write_bytes(encode(TABLE, time.time() - 100))
    published: list[RouteTable | None] = []
    running = asyncio.create_task(kept(tmp_path, published, max_age_s=50).run(grace_s=0.01))
    await asyncio.sleep(0.1)
    assert not published
    running.cancel()


async def test_restored_table_is_dropped_when_it_gets_too_old(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(encode(TABLE, time.time() - 8))
    published: list[RouteTable | None] = []
    last = LastTable(str(tmp_path), 10, published.append, GatewayMetrics("test"))
    running = asyncio.create_task(last.run(grace_s=0.01))
    await until_async(lambda: len(published) == 2)
    assert published == [TABLE, None]
    running.cancel()


async def test_a_gateway_whose_restored_table_is_too_old_is_not_ready(tmp_path: Path) -> None:
    """Seen: 404 for every model, which clients do not repeat, and /readyz 200."""
    async with upstream(echo) as server, gateway() as gate:
        (tmp_path / FILE).write_bytes(encode(table(7, ("rev", 100, [server.url])), time.time() - 9.0))
        last = LastTable(str(tmp_path), 10.0, gate.balancer.publish, gate.metrics)
        running = asyncio.create_task(last.run(grace_s=0.01))
        await until_async(lambda: gate.balancer.published.current)
        async with await gate.post() as answer:
            assert answer.status == 200
        await until_async(lambda: gate.balancer.published.current is None)
        for path in ("/v1/models", "/v1/models/chat"):
            async with gate.client.get(gate.url + path) as answer:
                assert answer.status == 503
        async with await gate.post() as answer:
            assert answer.status == 503 and answer.headers["Retry-After"]
            assert (await answer.json())["error"]["code"] == "not_ready"
        async with gate.client.get(gate.admin_url + "/readyz") as answer:
            assert answer.status == 503
        async with gate.client.get(gate.admin_url + "/internal/routes") as answer:
            assert (await answer.json())["routes"] == {}
        running.cancel()


async def test_the_file_keeps_the_time_of_the_last_contact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: an unchanged table was written each minute as if the cluster had just confirmed it."""
    monkeypatch.setattr("slipway_gateway.routing.last_table._WRITE_EVERY_S", 0.01)

    def saved_s() -> float:
        found = decode((tmp_path / FILE).read_bytes())
        assert not isinstance(found, Problem)
        return found.saved_s

    published: list[RouteTable | None] = []
    last = kept(tmp_path, published)
    running = asyncio.create_task(last.run(grace_s=0.01))
    contact_s = time.time() - 300
    last.publish(replace(TABLE, as_of_s=contact_s))
    await until_async(lambda: (tmp_path / FILE).exists())
    assert saved_s() == contact_s
    last.publish(replace(TABLE, as_of_s=contact_s + 60))
    await until_async(lambda: saved_s() == contact_s + 60)
    assert len(published) == 1, "the same table, confirmed: nothing changes for requests"
    running.cancel()


async def test_unwritable_folder_is_logged_and_the_table_is_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published: list[RouteTable | None] = []
    last = kept(tmp_path / "none", published)
    running = asyncio.create_task(last.run(grace_s=0.01))
    last.publish(TABLE)
    await until_async(lambda: "not kept" in caplog.text)
    assert published == [TABLE] and not running.done()
    running.cancel()


async def test_probes_and_reports_show_that_the_table_is_restored(tmp_path: Path) -> None:
    async with upstream(echo) as server, gateway() as gate:
        (tmp_path / FILE).write_bytes(encode(table(7, ("rev", 100, [server.url])), time.time() - 30))
        last = LastTable(str(tmp_path), 3600.0, gate.balancer.publish, gate.metrics)
        running = asyncio.create_task(last.run(grace_s=0.01))
        await until_async(lambda: gate.balancer.published.current)
        admin = AdminApi(gate.edge, gate.balancer, gate.metrics, NoSource(), "i", last=last)
        ready = await admin._readyz(None)  # type: ignore[arg-type]
        assert ready.status == 200 and "restored table, 3" in str(ready.text) and "the test" in str(ready.text)
        report = msgspec.json.decode((await admin._routes(None)).body)  # type: ignore[arg-type]
        assert report["table"]["restored"] and 29 < report["table"]["age_s"] < 60
        async with await gate.post() as answer:
            assert answer.status == 200
        assert (gate.metrics.registry.get_sample_value("slipway_gateway_restored_table_age_seconds") or 0) > 29
        running.cancel()
