"""Feedback at several gateways: Redis and Valkey servers let each token count once, and one that is away once each."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from slipway_gateway.sharing.counters import CountersAway
from slipway_gateway.sharing.redis_claims import RETRY_EACH_S, RedisClaims
from tests.support.redis import KINDS, RedisServer, redis_server

from .limiters import TIMEOUT_S

pytestmark = pytest.mark.integration

IDS = [bytes([place]) * 12 for place in range(100)]


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with redis_server(request.param) as made:
        yield made


@contextlib.asynccontextmanager
async def claims_at(url: str, count: int = 2) -> AsyncIterator[list[RedisClaims]]:
    prefix = uuid.uuid4().hex
    made = [RedisClaims(url, prefix, TIMEOUT_S) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            await one.close()


async def test_a_token_is_claimed_once_by_all_gateways(server: RedisServer) -> None:
    async with claims_at(server.url, 3) as gateways:
        found = await asyncio.gather(*(one.claim(IDS, 60) for one in gateways))
        assert [sum(at) for at in zip(*found, strict=True)] == [1] * len(IDS)
        assert await gateways[0].claim([*IDS[:2], b"new", b"new"], 60) == [False, False, True, False]


async def test_a_claim_ends_with_its_time(server: RedisServer) -> None:
    async with claims_at(server.url, 1) as (one,):
        assert await one.claim(IDS[:1], 1) == [True]
        await asyncio.sleep(1.2)
        assert await one.claim(IDS[:1], 1) == [True]


async def test_a_server_that_is_away_is_left_alone_for_a_moment_and_found_again(server: RedisServer) -> None:
    async with claims_at(server.url, 1) as (one,):
        assert await one.claim(IDS[:1], 60) == [True]
        server.kill()
        for _ in range(2):
            with pytest.raises(CountersAway):
                await one.claim(IDS[1:2], 60)
        server.start()
        await asyncio.sleep(RETRY_EACH_S)
        assert await one.claim(IDS[2:3], 60) == [True]
