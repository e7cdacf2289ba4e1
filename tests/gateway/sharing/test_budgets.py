"""Budgets at a Redis server: gateways together spend no more than stated, also while it is away."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from slipway_gateway.ledger.periods import day_begin
from slipway_gateway.ledger.spending import Spending
from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import Price, nano
from slipway_gateway.quotas.tenant import Limits
from slipway_gateway.sharing import redis_budgets
from slipway_gateway.sharing.counters import CountersAway
from slipway_gateway.sharing.redis_budgets import RedisBudgets
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.until import until_async
from tests.gateway.harness import Gateway, gateway, upstream
from tests.support.redis import RedisServer

from .limiters import TIMEOUT_S
from .test_gateways import settings_of, statuses, whole

pytestmark = pytest.mark.integration

RUNS = 100
HOUR = 24 * 400 + 5
ONE = nano("1")
TENANT = "team-a"


class Spender:
    """What a gateway has of budgets: its ledger's spending, and the server's counts."""

    def __init__(self, server: RedisServer, prefix: str, timeout_s: float = TIMEOUT_S) -> None:
        self.hour, self.parts = HOUR, 2
        self.spending, self.metrics = Spending(), GatewayMetrics("test")
        shared = (server.url, prefix, timeout_s, self.metrics)
        self.budgets = RedisBudgets(
            *shared, own=lambda tenant: self.spending.own(tenant, self.hour), hour=lambda: self.hour
        )

    async def admits(self, budget: Budget, expected: int, tenant: str = TENANT) -> str:
        """Empty, or the period that is exhausted: as a gateway does it, with no pause before it is counted."""
        period = await self.budgets.exhausted(tenant, budget, self.parts)
        if not period:
            self.spending.expect(tenant, expected)
        return period

    def ended(self, expected: int, cost: int, tenant: str = TENANT) -> None:
        self.spending.expect(tenant, -expected)
        self.spending.written({tenant: cost}, self.hour)


@contextlib.asynccontextmanager
async def spenders(server: RedisServer, count: int, prefix: str = "", **options: float) -> AsyncIterator[list[Spender]]:
    shared = prefix or uuid.uuid4().hex
    made = [Spender(server, shared, **options) for _ in range(count)]
    tasks = [asyncio.create_task(one.budgets.run()) for one in made]
    try:
        await until_async(lambda: not any(one.budgets.away for one in made))
        yield made
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in made:
            await one.budgets.close()


async def spend(one: Spender, budget: Budget, count: int, cost: int = ONE) -> int:
    """How many of so many requests, one after the other, were taken."""
    taken = 0
    for _ in range(count):
        if not await one.admits(budget, cost):
            one.ended(cost, cost)
            taken += 1
    return taken


def written(one: Spender) -> int:
    """What the server has of it."""
    share = one.budgets._followed[TENANT].share
    return share.own.total_nano if share else 0


@pytest.mark.timeout(400)
async def test_gateways_together_exceed_a_budget_by_one_request_each_at_most(redis: RedisServer) -> None:
    """Any number of requests at once, in any interleaving, that cost what they were expected to, or less."""

    async def run(seed: int, both: list[Spender]) -> None:
        chance, tenant = random.Random(seed), f"t{seed}"
        amount = nano(str(chance.choice([0, 1, 7, 40])))
        budget = Budget(day_nano=amount) if chance.random() < 0.5 else Budget(month_nano=amount)
        largest, refused = 0, 0

        async def request(one: Spender) -> None:
            nonlocal largest, refused
            expected = nano(f"{chance.uniform(0, 5):.6f}")
            await asyncio.sleep(chance.choice([0, 0, 0.01, 0.1]))
            if await one.admits(budget, expected, tenant):
                refused += 1
                return
            largest = max(largest, expected)
            await asyncio.sleep(chance.choice([0, 0.01, 0.05]))
            one.ended(expected, chance.choice([0, expected // 2, expected]), tenant)

        await asyncio.gather(*(request(chance.choice(both)) for _ in range(60)))
        spent = sum(one.spending.own(tenant, HOUR).total_nano for one in both)
        assert spent < amount + len(both) * largest + 1, (seed, spent, amount, largest)
        assert spent >= amount or not refused or amount - spent < ONE * 1000, (seed, spent, amount)

    for count in (2, 3):
        async with spenders(redis, count) as made:
            for one in made:
                one.parts = count
            for first in range(0, RUNS, 20):
                await asyncio.gather(*(run(seed, made) for seed in range(first, first + 20)))
            assert not any(one.budgets.away for one in made)


async def test_a_refusal_names_the_period_and_the_next_one_is_another_budget(redis: RedisServer) -> None:
    budget = Budget(day_nano=5 * ONE, month_nano=8 * ONE)
    async with spenders(redis, 2) as (one, two):
        assert await spend(one, budget, 20) >= 5
        assert await two.admits(budget, ONE) == "day"
        assert two.budgets.last_known(TENANT) == "day"
        for spender in (one, two):
            spender.hour = day_begin(HOUR) + 24
        assert 3 <= await spend(two, budget, 20) <= 4
        assert await one.admits(budget, ONE) == "month"
        assert await one.admits(replace(budget, month_nano=None), ONE) == ""  # the Tenant was changed


async def test_the_rest_of_a_budget_is_spent_by_whoever_comes(redis: RedisServer) -> None:
    """What one gateway reserved and does not use comes back within some seconds."""
    budget = Budget(day_nano=1000 * ONE)
    async with spenders(redis, 2) as (one, two):
        assert await one.admits(budget, 0) == ""
        async with asyncio.timeout(30):
            taken = 0
            while taken < 1000:
                taken += await spend(two, budget, 1100 - taken)
        assert 1000 <= taken <= 1001


async def test_a_gateway_that_was_killed_leaves_what_it_spent_and_not_what_it_expected(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_budgets, "LEASE_S", 1.5)
    budget, prefix = Budget(month_nano=10 * ONE), uuid.uuid4().hex
    async with spenders(redis, 1, prefix) as (killed,):
        killed.spending.written({TENANT: 4 * ONE}, HOUR)
        assert await killed.admits(budget, 6 * ONE) == ""
        await until_async(lambda: written(killed) == 10 * ONE)
    async with spenders(redis, 1, prefix) as (left,):
        left.parts, taken = 1, 0
        async with asyncio.timeout(30):
            while taken < 6:  # until the lease ends, which may be between two requests
                taken += await spend(left, budget, 20)
        assert taken == 6 and await spend(left, budget, 20) == 0


async def test_while_redis_is_away_each_gateway_has_its_part_of_what_was_left(redis: RedisServer) -> None:
    budget = Budget(day_nano=20 * ONE)
    async with spenders(redis, 2, timeout_s=0.5) as (one, two):
        assert await spend(one, budget, 8) == 8
        assert await two.admits(budget, 0) == ""
        await until_async(lambda: written(one) == 8 * ONE)
        redis.kill()
        try:
            await until_async(lambda: one.budgets.away and two.budgets.away)
            taken = [await spend(used, budget, 20) for used in (one, two)]
            assert all(1 <= each <= 7 for each in taken) and sum(taken) <= 14, taken
            async with asyncio.timeout(5):
                with pytest.raises(CountersAway):  # nothing is known of another tenant
                    await one.budgets.exhausted("another", budget, 2)
        finally:
            redis.start()  # and has lost all
        await until_async(lambda: not (one.budgets.away or two.budgets.away))
        more = [await spend(used, budget, 20) for used in (one, two)]
        assert 20 <= 8 + sum(taken) + sum(more) <= 22, (taken, more)
        assert await one.admits(budget, ONE) == await two.admits(budget, ONE) == "day"


async def test_a_slow_answer_and_a_frozen_server_delay_a_request_by_a_bounded_time(redis: RedisServer) -> None:
    budget = Budget(day_nano=1000 * ONE)
    async with spenders(redis, 1, timeout_s=0.3) as (one,):
        assert await one.admits(budget, ONE) == ""
        redis.freeze()
        try:
            async with asyncio.timeout(20):
                assert await spend(one, budget, 900) == 500 - 1
            assert one.budgets.away
        finally:
            redis.thaw()
        await until_async(lambda: not one.budgets.away)
        assert await spend(one, budget, 900) >= 499


async def test_two_gateways_with_redis_share_a_budget_and_go_on_when_it_dies(redis: RedisServer) -> None:
    policy = Policy(Limits(), (Price("*", request_nano=ONE),), Budget(day_nano=20 * ONE))
    prefix = uuid.uuid4().hex
    one_of, two_of = (settings_of(redis, policy, rank, prefix) for rank in (0, 1))
    async with upstream(whole) as server, gateway(**one_of) as one, gateway(**two_of) as two:  # type: ignore[arg-type]
        for edge in (one, two):
            edge.route(("r1", 100, [server.url]))
        await until_async(lambda: sharing(one) and sharing(two))
        assert await statuses(two, count=1) == {200: 1}
        assert await statuses(one, count=14) == {200: 14}  # without Redis it would be 10
        redis.kill()
        await until_async(lambda: not (sharing(one) or sharing(two)))
        found = [await statuses(one, two, count=4)]
        redis.start()
        await until_async(lambda: sharing(one) and sharing(two))
        found.append(await statuses(one, two, count=30))
        served = 15 + sum(each[200] for each in found)
        assert 20 <= served <= 22 and found[1][429] >= 23, found


def sharing(edge: Gateway) -> bool:
    return bool(edge.metrics.registry.get_sample_value("slipway_gateway_shared_budgets"))
