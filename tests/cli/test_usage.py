"""`slipway usage`: sums over real gateways, which the real API server forwards to."""

import asyncio
import contextlib
import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from slipway_cli.cluster import ledgers
from slipway_cli.objects import usage
from slipway_gateway.quotas.policy import Policy
from slipway_gateway.quotas.prices import Price, micro
from testkit.cluster.api import Api
from testkit.world.addresses import own_address
from tests.gateway import tenants as known
from tests.gateway.harness import Gateway, gateway, upstream
from tests.support.postgres import Postgres, postgres

from .conftest import Run

KEYS = {"team-a": known.make_key("aaaaaa"), "team-b": known.make_key("bbbbbb")}
USAGE = {"prompt_tokens": 1000, "completion_tokens": 10}
ROW = {"tenant": "a", "key": "k", "model": "m", "revision": "r1", "hour": 494_000, "cost_nano": 10_000_000}
ROW |= dict.fromkeys(usage.COUNTS, 1)


async def whole(request: web.Request) -> web.StreamResponse:
    return web.json_response({"choices": [], "usage": USAGE})


@contextlib.asynccontextmanager
async def serving(ledger_url: str, address: str, server_url: str) -> AsyncIterator[Gateway]:
    price = (Price("*", input_micro=micro("2")),)
    found = []
    for name, key in KEYS.items():
        tenant = known.tenant(name, key)
        found.append(type(tenant)(tenant.name, keys=tenant.keys, policy=Policy(prices=price)))
    options: dict[str, Any] = {"ledger_url": ledger_url, "admin_host": address}
    async with gateway(tenants=found, pepper=known.PEPPER, **options) as edge:
        edge.route(("r1", 100, [server_url]))
        yield edge


def publish(api: Api, namespace: str, name: str, admin_url: str) -> None:
    """The pod of a gateway, as a kubelet would report it."""
    address, port = admin_url.removeprefix("http://").split(":")
    container = {"name": "gateway", "image": "a:1", "ports": [{"name": "admin", "containerPort": int(port)}]}
    metadata = {"name": name, "labels": {"app.kubernetes.io/component": "gateway"}}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    answer = api.apply(path, made | {"spec": {"nodeName": "none", "containers": [container]}})
    assert answer.ok, answer.message
    answer = api.merge(
        f"{path}/status", {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    )
    assert answer.ok, answer.message


async def use(edge: Gateway, tenant: str, count: int) -> None:
    for _ in range(count):
        async with await edge.post(headers=known.bearer(KEYS[tenant])) as answer:
            assert answer.status == 200


@pytest.fixture(scope="module")
def database() -> Any:
    with postgres() as started:
        yield started


@pytest.mark.integration
@pytest.mark.parametrize("shared", [False, True], ids=["sqlite", "postgres"])
async def test_usage_adds_up_all_gateways_and_each_ledger_once(
    api: Api, namespace: str, slipway: Run, tmp_path: Path, database: Postgres, shared: bool
) -> None:
    address = own_address()
    urls = [database.url if shared else f"sqlite:///{tmp_path}/{number}.db" for number in (1, 2)]

    async def run(*arguments: str) -> str:
        ended = await asyncio.to_thread(partial(slipway, "usage", "--gateways", namespace, *arguments))
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    async with (
        upstream(whole) as server,
        serving(urls[0], address, server.url) as one,
        serving(urls[1], address, server.url) as two,
    ):
        await use(one, "team-a", 3)
        await use(two, "team-a", 2)
        await use(two, "team-b", 1)
        for name, edge in (("gate-1", one), ("gate-2", two)):
            await edge.ledger.flush()
            await asyncio.to_thread(publish, api, namespace, name, edge.admin_url)
        found = json.loads(await run("--by", "tenant,key", "-o", "json"))
        assert [(row["tenant"], row["key"], row["requests"], row["output_tokens"], row["cost"]) for row in found] == [
            ("team-a", "aaaaaa", 5, 50, "0.01"),
            ("team-b", "bbbbbb", 1, 10, "0.002"),
        ]
        [row] = csv.DictReader(io.StringIO(await run("team-a", "--by", "model,revision,day", "-o", "csv")))
        assert (row["model"], row["revision"], row["requests"]) == ("chat", "r1", "5")
        assert row["day"] == f"{datetime.now(UTC):%Y-%m-%d}" or datetime.now(UTC).hour == 0
        heading, *lines = (await run()).splitlines()
        assert heading.split()[:2] == ["TENANT", "REQUESTS"]
        assert [line.split()[:2] for line in lines] == [["team-a", "5"], ["team-b", "1"]]


@pytest.mark.integration
def test_a_gateway_that_is_silent_is_an_error_in_place_of_a_sum(api: Api, namespace: str, slipway: Run) -> None:
    none = slipway("usage", "--gateways", namespace)
    assert none.returncode == 1
    assert f"no gateway runs in the namespace {namespace}" in none.stderr
    publish(api, namespace, "gate-1", f"http://{own_address()}:9")
    silent = slipway("usage", "--gateways", namespace)
    assert silent.returncode == 1
    assert "the gateway gate-1:9 does not answer, so there is no sum" in silent.stderr


@pytest.mark.integration
def test_a_wrong_column_is_a_usage_error(slipway: Run) -> None:
    wrong = slipway("usage", "--by", "tenant,colour")
    assert wrong.returncode == 2
    assert "'colour' is none of tenant, key, model, revision, day, hour" in wrong.stderr


@pytest.mark.parametrize("by", [("tenant",), ("day", "model"), ("hour",), ("key", "revision")])
def test_sums_of_groups_are_the_sum_of_all(by: tuple[str, ...]) -> None:
    rows = [ROW | {"tenant": tenant, "hour": ROW["hour"] + hour} for tenant in "abc" for hour in range(30)]
    found = usage.add_up(rows, by)
    assert sum(row["requests"] for row in found) == 90
    assert sum(float(row["cost"]) for row in found) == pytest.approx(0.9)
    assert [tuple(row[name] for name in by) for row in found] == sorted(
        {tuple(row[name] for name in by) for row in found}
    )


def test_hours_are_whole_and_costs_exact() -> None:
    now = datetime(2026, 11, 25, 12, 59, tzinfo=UTC)
    first, end = usage.hours(now, 3600)
    assert (first, end) == (int(now.timestamp()) // 3600 - 1, int(now.timestamp()) // 3600 + 1)
    assert [usage.shown_cost(nano) for nano in (0, 10**9, 1, 12_345_000_000)] == [
        "0.00",
        "1.00",
        "0.000000001",
        "12.345",
    ]


def test_a_time_before_all_times_is_the_first_hour() -> None:
    now = datetime(2026, 11, 25, 12, tzinfo=UTC)
    assert usage.hours(now, 1e18) == (0, int(now.timestamp() // 3600) + 1)


def test_a_name_is_no_formula_of_a_spreadsheet() -> None:
    assert (
        usage.to_csv(usage.add_up([ROW | {"tenant": "=1+1"}], ("tenant",)), ("tenant",)).splitlines()[1][:5] == "'=1+1"
    )


class Halves:
    """A gateway that sends the rows of one hour at a time."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def gateway_pods(self, namespace: str) -> list[dict[str, Any]]:
        return [
            {"metadata": {"name": "a"}, "spec": {"containers": [{}]}, "status": {"phase": "Running"}},
            {"metadata": {"name": "b"}, "spec": {"containers": [{}]}, "status": {"phase": "Pending"}},
        ]

    def gateway(self, namespace: str, pod: str, path: str) -> dict[str, Any]:
        self.calls.append(path)
        first, end = (int(part.partition("=")[2]) for part in path.partition("?")[2].split("&"))
        return {"ledger": "x", "rows": [{"hour": first}], "whole": end - first == 1}


def test_more_rows_than_a_gateway_sends_are_read_in_parts() -> None:
    halves = Halves()
    found = ledgers.rows(halves, "system", (10, 15), "")  # type: ignore[arg-type]
    assert [row["hour"] for row in found] == [10, 11, 12, 13, 14]
    assert all("first" in call for call in halves.calls)
