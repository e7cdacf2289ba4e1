"""Requests of the fast lane that are counted at a Redis server: none is lost, and none is counted that does not run."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from redis import Redis

from slipway_gateway.quotas.policy import Policy
from slipway_gateway.quotas.tenant import Limits
from slipway_gateway.sharing.lane_calls import LaneCalls
from testkit.until import until_async
from tests.gateway import tenants
from tests.gateway.harness import gateway, upstream
from tests.gateway.test_fast_lane import PATH, answer, fast, reasons
from tests.plane.native import needs_plane
from tests.support.redis import RedisServer

from .limiters import TIMEOUT_S, connected, running

pytestmark = pytest.mark.integration

LIMITS = Limits(requests_per_minute=1, concurrency=1, burst_s=600.0)
AMOUNTS = [1, 0, 0]
Answers = dict[int, list[float] | None]


def calls_of(counters: object, answers: Answers, left: Callable[[int], bool] = lambda ticket: False) -> LaneCalls:
    """`left`: whether nothing waits for the answer of a ticket any more."""

    def take(given: list[tuple[int, list[float] | None]]) -> list[int]:
        answers.update(given)
        return [ticket for ticket, _ in given if left(ticket)]

    return LaneCalls(counters, lambda tenant, budget: True, take)  # type: ignore[arg-type]


def policy(_: str) -> Policy:
    return Policy(LIMITS)


async def until_answered(calls: LaneCalls, answers: Answers, ticket: int, tenant: str = "team-a") -> list[float] | None:
    calls.take([(ticket, tenant, uuid.uuid4().hex, AMOUNTS)], policy)
    await until_async(lambda: ticket in answers)
    return answers[ticket]


async def test_a_request_is_taken_refused_and_settled_as_those_of_python(redis: RedisServer) -> None:
    counters, _ = connected(redis, uuid.uuid4().hex)
    answers: Answers = {}
    async with running(counters):
        calls = calls_of(counters, answers)
        calls.take(
            [(1, "team-a", "first", AMOUNTS), (2, "team-a", "second", AMOUNTS), (3, "gone", "x", AMOUNTS)], policy
        )
        calls.take([(4, "gone", "y", AMOUNTS)], lambda tenant: None)
        await until_async(lambda: len(answers) == 4)
        assert (answers[1], answers[2], answers[3], answers[4]) == ([60.0], None, [60.0], None)
        calls.settle([("team-a", "first", [1, None, None])])
        full_s = await until_answered(calls, answers, 5)
        assert full_s is not None and full_s[0] == pytest.approx(120, abs=5)
    await counters.close()


async def test_an_answer_that_comes_too_late_is_given_back(redis: RedisServer) -> None:
    counters, _ = connected(redis, uuid.uuid4().hex)
    answers: Answers = {}
    async with running(counters):
        calls = calls_of(counters, answers, lambda ticket: ticket == 1)
        assert await until_answered(calls, answers, 1) == [60.0]
        await until_async(lambda: not counters._waiting and not counters._running)
        # Neither its place nor its request is taken.
        assert await until_answered(calls, answers, 2) == [pytest.approx(60, abs=1)]
    await counters.close()


async def test_what_the_server_has_against_one_call_stops_no_other_one_of_the_batch(redis: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    counters, _ = connected(redis, prefix)
    Redis.from_url(redis.url).set(f"{prefix}:{{broken}}:buckets", "no hash")
    answers: Answers = {}
    async with running(counters):
        calls = calls_of(counters, answers)
        calls.take([(1, "team-a", "a", AMOUNTS), (2, "broken", "b", AMOUNTS), (3, "team-b", "c", AMOUNTS)], policy)
        await until_async(lambda: len(answers) == 3)
        assert answers == {1: [60.0], 2: None, 3: [60.0]}
    await counters.close()


async def test_while_the_server_is_away_nothing_is_taken(redis: RedisServer) -> None:
    counters, _ = connected(redis, uuid.uuid4().hex)
    answers: Answers = {}
    assert counters.away
    assert await until_answered(calls_of(counters, answers), answers, 1) is None
    assert not counters._running
    await counters.close()


@needs_plane
async def test_a_server_that_stands_still_delays_a_request_by_a_second_and_counts_it_once(redis: RedisServer) -> None:
    """The lane gives the request to Python, which counts it by itself; what the server does later is given back."""
    key = tenants.make_key()
    one = replace(
        tenants.tenant("team-a", key), policy=Policy(Limits(requests_per_minute=1, concurrency=1, burst_s=6e5))
    )
    options = {"auth_mode": "required", "redis_url": redis.url, "redis_prefix": uuid.uuid4().hex, "plane": "required"}
    async with (
        upstream(answer) as server,
        gateway(tenants=[one], pepper=tenants.PEPPER, redis_timeout_s=TIMEOUT_S, **options) as gate,  # type: ignore[arg-type]
    ):
        gate.route(("r1", 100, [server.url]))
        counters = gate.admission.counters
        assert counters is not None
        await until_async(lambda: not counters.away)

        async def ask() -> int:
            async with await gate.post({"model": "chat"}, PATH, headers=tenants.bearer(key)) as response:
                await response.read()
                return response.status

        assert await ask() == 200
        await until_async(lambda: fast(gate) == 1)
        redis.freeze()
        try:
            waiting = asyncio.create_task(ask())
            await until_async(lambda: reasons(gate) == {"shared": 1})
        finally:
            redis.thaw()
        assert await waiting == 200
        await until_settled(gate.admission.counters)
        assert await ask() == 200
        # The last one may run in the fast lane, which counts it when its client has the last byte already.
        await until_async(gate.outcomes, holds=lambda outcomes: outcomes == {"ok": 3})
        await until_async(lambda: requests_of(gate.ledger), holds=lambda requests: requests == 3)


async def until_settled(counters: object) -> None:
    await until_async(lambda: not counters._waiting and not counters._running)  # type: ignore[attr-defined]


async def requests_of(ledger: object) -> int:
    usage: Callable[..., Awaitable[tuple[str, list[dict[str, int]]]]] = ledger.usage  # type: ignore[attr-defined]
    return sum(row["requests"] for row in (await usage(0, 1 << 30, ""))[1])
