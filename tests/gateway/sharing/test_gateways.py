"""Two gateways with one Redis server: requests of clients, while it is there, dies and returns."""

import asyncio
import uuid
from dataclasses import replace

import pytest
from aiohttp import web

from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import Price, nano
from slipway_gateway.quotas.tenant import Limits
from testkit.until import until_async
from tests.gateway import tenants as known
from tests.gateway.harness import Gateway, gateway, upstream
from tests.support.redis import RedisServer

from .limiters import gateways

pytestmark = pytest.mark.integration

KEY = known.make_key()
# Slow enough that nothing flows back while a test runs.
LIMITS = Limits(requests_per_minute=1, burst_s=40 * 60)


async def whole(request: web.Request) -> web.StreamResponse:
    return web.json_response({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


def settings_of(redis: RedisServer | None, policy: Policy, rank: int, prefix: str) -> dict[str, object]:
    tenant = replace(known.tenant("team-a", KEY), policy=policy)
    found = {"tenants": [tenant], "pepper": known.PEPPER, "auth_mode": "required", "gateways": gateways(2, rank)}
    shared = {"redis_url": redis.url, "redis_prefix": prefix, "redis_timeout_s": 30.0} if redis else {}
    return found | shared


def sharing(edge: Gateway) -> bool:
    return bool(edge.metrics.registry.get_sample_value("slipway_gateway_shared_limits"))


async def statuses(*edges: Gateway, count: int = 60) -> dict[int, int]:
    """Answers to requests at these gateways in turn."""
    found: dict[int, int] = {}
    for number in range(count):
        async with await edges[number % len(edges)].post(headers=known.bearer(KEY)) as answer:
            await answer.read()
            found[answer.status] = found.get(answer.status, 0) + 1
    return found


@pytest.mark.parametrize("shared", [False, True], ids=["without", "with"])
async def test_two_gateways_admit_what_the_tenant_may_with_and_without_redis(redis: RedisServer, shared: bool) -> None:
    prefix, policy = uuid.uuid4().hex, Policy(LIMITS)
    one_of, two_of = (settings_of(redis if shared else None, policy, rank, prefix) for rank in (0, 1))
    async with upstream(whole) as server, gateway(**one_of) as one, gateway(**two_of) as two:  # type: ignore[arg-type]
        for edge in (one, two):
            edge.route(("r1", 100, [server.url]))
        if shared:
            await until_async(lambda: sharing(one) and sharing(two))
        assert await statuses(one, two) == {200: 40, 429: 20}


async def test_redis_dies_and_returns_and_no_request_is_lost(redis: RedisServer) -> None:
    prefix, policy = uuid.uuid4().hex, Policy(replace(LIMITS, burst_s=100_000 * 60))
    one_of, two_of = (settings_of(redis, policy, rank, prefix) for rank in (0, 1))
    async with upstream(whole) as server, gateway(**one_of) as one, gateway(**two_of) as two:  # type: ignore[arg-type]
        for edge in (one, two):
            edge.route(("r1", 100, [server.url]))
        await until_async(lambda: sharing(one) and sharing(two))
        load = asyncio.gather(*(statuses(one, two, count=100) for _ in range(4)))
        await asyncio.sleep(0.1)
        redis.kill()
        before = await statuses(one, two, count=20)
        redis.start()
        await until_async(lambda: sharing(one) and sharing(two))
        after = await statuses(one, two, count=20)
        assert [before, after, *await load] == [{200: 20}] * 2 + [{200: 100}] * 4
        assert one.outcomes()["ok"] + two.outcomes()["ok"] == 440


async def test_a_budget_is_divided_where_each_gateway_has_its_own_ledger(redis: RedisServer) -> None:
    policy = Policy(Limits(), (Price("*", request_nano=nano("1")),), Budget(day_nano=nano("10")))
    one_of, two_of = (settings_of(None, policy, rank, "") for rank in (0, 1))
    async with upstream(whole) as server, gateway(**one_of) as one, gateway(**two_of) as two:  # type: ignore[arg-type]
        for edge in (one, two):
            edge.route(("r1", 100, [server.url]))
        assert await statuses(one, two) == {200: 10, 429: 50}
