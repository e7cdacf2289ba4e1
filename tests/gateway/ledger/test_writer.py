"""How charges come to the ledger: in time, once, and also when the gateway or the database ends."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from slipway_gateway.ledger.store import LedgerStore
from slipway_gateway.ledger.tables import open_engine
from slipway_gateway.ledger.writer import MAX_WAITING, Ledger
from slipway_gateway.quotas.estimate import Estimate
from slipway_gateway.quotas.meter import Charge, Meter
from slipway_gateway.quotas.policy import Budget
from slipway_gateway.quotas.prices import Price, micro
from slipway_gateway.quotas.usage import Usage
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_process.database_urls import parse_url
from testkit.until import until_async
from tests.gateway import tenants
from tests.gateway.harness import upstream
from tests.plane.native import needs_plane
from tests.support.postgres import Postgres

ONE_FOR_EACH = Price("*", micro("1000000"), micro("1000000"))


def meter(id_: str = "a", tenant: str = "team-a") -> Meter:
    return Meter(id_, tenant, "k1", estimate=Estimate(10, 20), price=ONE_FOR_EACH, model="chat", hour=494_000)


def answered(one: Meter, output: int = 5) -> Meter:
    one.begin("r1", {})
    one.add_body(b'{"usage":{"prompt_tokens":3,"completion_tokens":%d}}' % output)
    return one


@contextlib.asynccontextmanager
async def ledger(url: str = "sqlite://") -> AsyncIterator[Ledger]:
    made = Ledger(LedgerStore(url), GatewayMetrics("test"), unix_time=lambda: 494_000 * 3600.0)
    try:
        yield made
    finally:
        await made.close_down()


async def rows(one: Ledger) -> list[dict[str, Any]]:
    return (await one.usage(0, 1 << 30, ""))[1]


def value(one: Ledger, name: str) -> float:
    return one._metrics.registry.get_sample_value(f"slipway_gateway_{name}") or 0.0


async def test_a_running_request_holds_what_it_may_cost_and_then_what_it_does() -> None:
    async with ledger() as one:
        running = meter()
        one.open(running)
        of = lambda: one.spending.of("team-a", 494_000).day_nano // 10**9  # noqa: E731
        assert of() == 30
        answered(running)
        await one.flush()  # 8 are written, and 22 still expected
        assert of() == 30
        one.close(running)
        assert of() == 8
        await one.flush()
        assert of() == 8
        assert one.exhausted("team-a", Budget(day_nano=8 * 10**9)) == "day"
        assert one.exhausted("team-a", Budget(month_nano=8 * 10**9)) == "month"
        assert one.exhausted("team-a", Budget(day_nano=9 * 10**9)) == ""
        assert one.exhausted("team-b", Budget(day_nano=1)) == ""


async def test_spending_of_other_gateways_counts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with ledger(url) as one, ledger(url) as other:
        for place in (one, other):
            running = meter(place.__hash__().__str__())
            place.open(running)
            place.close(answered(running))
            await place.flush()
        one._read_s = float("-inf")
        await one.flush()
        assert one.spending.of("team-a", 494_000).day_nano == 16 * 10**9


async def test_a_request_without_a_response_leaves_nothing_behind() -> None:
    async with ledger() as one:
        running = meter()
        one.open(running)
        one.close(running)
        assert one.spending.of("team-a", 494_000).day_nano == 0
        assert await rows(one) == []


async def test_the_queue_is_bounded_and_what_is_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.ledger.writer.MAX_WAITING", 6)
    assert MAX_WAITING > 6
    async with ledger() as one:
        for number in range(5):
            running = meter(str(number))
            one.open(running)
            one.close(answered(running))
        assert value(one, "ledger_waiting") == 3
        assert value(one, "ledger_lost_total") == 2
        assert sum(row["requests"] for row in await rows(one)) == 3


def a_sum(id_: str, requests: int = 3, tenant: str = "team-a", key: str = "k1") -> Charge:
    """Of the fast lane: 3 input tokens and 5 output tokens of each request."""
    usage = Usage(3 * requests, 5 * requests)
    return Charge(id_, tenant, key, "chat", "r1", 494_000, usage, 8 * requests * 10**9, 1, requests)


async def test_sums_of_the_fast_lane_are_written_once_and_costs_move_with_them() -> None:
    """As its own charges; the lane has counted their costs as not written yet."""
    async with ledger() as one:
        taken = [a_sum("first"), a_sum("second"), a_sum("third", key="k2")]
        one._take_sums = lambda: [one.gather(charge) for charge in taken] and taken.clear()  # type: ignore[assignment]
        one.spending.expect("team-a", 72 * 10**9)
        for _ in range(2):
            await one.flush()
            assert one.spending.of("team-a", 494_000).day_nano == 72 * 10**9
            assert one.spending.own("team-a", 494_000).unwritten_nano == 0
        by_key = {row["key"]: (row["requests"], row["input_tokens"], row["estimated"]) for row in await rows(one)}
        assert by_key == {"k1": (6, 18, 2), "k2": (3, 9, 1)}
        assert value(one, "ledger_waiting") == 0


async def test_sums_that_come_while_the_database_is_away_are_few_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipway_gateway.ledger.writer.MAX_WAITING", 12)

    def away(charges: object) -> dict[str, int]:
        raise OperationalError("", {}, OSError("away"))

    async with ledger() as one:
        apply, one._store.apply = one._store.apply, away  # type: ignore[method-assign]
        for number in range(200):
            for tenant in ("team-a", "team-b", "team-c"):
                one.gather(a_sum(f"{number}-{tenant}", 1, tenant))
            assert not await one.flush()
        assert value(one, "ledger_waiting") <= 6
        one._store.apply = apply  # type: ignore[method-assign]
        while value(one, "ledger_waiting"):
            assert await one.flush()
        assert {row["tenant"]: row["requests"] for row in await rows(one)} == dict.fromkeys(
            ("team-a", "team-b", "team-c"), 200
        )
        assert value(one, "ledger_lost_total") == 0


async def test_a_tenant_with_sums_of_many_keys_has_its_share_of_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipway_gateway.ledger.writer.MAX_WAITING", 6)
    async with ledger() as one:
        for number in range(5):
            one.spending.expect("team-a", 8 * 10**9)
            one.gather(a_sum(str(number), 1, key=f"k{number}"))
        assert (value(one, "ledger_waiting"), value(one, "ledger_lost_total")) == (3, 2)
        assert one.spending.of("team-a", 494_000).day_nano == 24 * 10**9
        one.gather(a_sum("other", 1, "team-b"))
        assert sum(row["requests"] for row in await rows(one)) == 4
        assert one._places.used == 0


@pytest.mark.integration
async def test_charges_wait_while_the_database_is_away(server: Postgres) -> None:
    empty(server.url)
    async with ledger(server.url) as one:
        first, second = meter("first"), meter("second")
        one.open(first)
        one.close(answered(first))
        assert await one.flush()
        await asyncio.to_thread(server.stop)
        try:
            one.open(second)
            one.close(answered(second))
            assert not await one.flush()
            assert value(one, "ledger_waiting") == 1
            assert value(one, "ledger_failures_total") == 1
        finally:
            await asyncio.to_thread(server.start)
        await until_async(one.flush, "the ledger is written again")
        assert sum(row["requests"] for row in await rows(one)) == 2


def empty(url: str) -> None:
    engine = open_engine(parse_url(url))
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS slipway_ledger, slipway_responses, slipway_usage"))
    engine.dispose()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "plane"),
    [("sqlite", "off"), ("postgres", "off"), pytest.param("sqlite", "required", marks=needs_plane)],
)
async def test_a_killed_gateway_loses_no_response_that_ended_a_second_ago(
    kind: str, plane: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    if kind == "postgres":
        url = request.getfixturevalue("server").url
        empty(url)
    key = tenants.make_key()

    async def serve(http: web.Request) -> web.StreamResponse:
        if http.path == "/v1/embeddings":
            return web.json_response({"usage": {"prompt_tokens": 7}})
        head = {
            "Content-Type": "text/event-stream",
            "X-Slipway-Stream": f"1-2-{'0' * 32}",
            "X-Slipway-Prompt-Tokens": "7",
        }
        out = web.StreamResponse(headers=head)
        await out.prepare(http)
        for position in range(1, 12):
            await out.write(b': %d.00000000 1\ndata: {"choices":[]}\n\n' % position)
        await asyncio.Event().wait()
        raise AssertionError

    async with upstream(serve) as server, aiohttp.ClientSession(headers=tenants.bearer(key)) as client:
        command = [sys.executable, "-m", "tests.gateway.ledger.served", url, server.url, key, plane]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout
        try:
            base = (await process.stdout.readline()).decode().strip()
            for _ in range(20):
                async with client.post(f"{base}/v1/embeddings", json={"model": "chat", "input": "a"}) as done:
                    assert done.status == 200
            running = await client.post(f"{base}/v1/completions", json={"model": "chat", "stream": True})
            read = b""
            while b".11." not in read:
                read += await running.content.readany()
            store = LedgerStore(url)
            # Half a second and the time of a write; on a busy machine that is longer, so that it is waited for here.
            try:
                await until_async(lambda: written(store, url) == (21, 21 * 7, 11), "all is written")
                process.send_signal(signal.SIGKILL)
                await process.wait()
                assert written(store, url) == (21, 21 * 7, 11)
            finally:
                store.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def written(store: LedgerStore, url: str) -> tuple[int, int, int]:
    try:
        found = store.usage(0, 1 << 30)
    except Exception:
        return (0, 0, 0)  # the tables are not there yet
    names = ("requests", "input_tokens", "output_tokens")
    return tuple(sum(row[name] for row in found) for name in names)  # type: ignore[return-value]
