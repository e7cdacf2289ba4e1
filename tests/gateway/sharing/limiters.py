"""Limiters at a Redis server, as a gateway has one."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

from slipway_gateway.quotas.tenant import Share
from slipway_gateway.sharing.limiter import Limiter
from slipway_gateway.sharing.ready_gateways import ReadyGateways
from slipway_gateway.sharing.redis_counters import RedisCounters
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.until import until_async
from tests.support.redis import RedisServer

# Of a machine with other work: what a slow answer does has tests of its own.
TIMEOUT_S = 20.0


def gateways(parts: int, rank: int = 0) -> ReadyGateways:
    found = ReadyGateways(f"gateway-{rank}")
    found.seen("/slice", [f"gateway-{number}" for number in range(parts)])
    assert found.share == Share(parts, rank)
    return found


def connected(server: RedisServer, prefix: str, timeout_s: float = TIMEOUT_S) -> tuple[RedisCounters, GatewayMetrics]:
    metrics = GatewayMetrics("test")
    return RedisCounters(server.url, prefix, timeout_s, metrics), metrics


@contextlib.asynccontextmanager
async def running(*made: RedisCounters) -> AsyncIterator[None]:
    """As in a gateway; afterwards they are as those of one that was killed."""
    tasks = [asyncio.create_task(counters.run()) for counters in made]
    try:
        await until_async(lambda: not any(counters.away for counters in made))
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def limiters(
    server: RedisServer, count: int, timeout_s: float = TIMEOUT_S
) -> AsyncIterator[list[tuple[Limiter, RedisCounters]]]:
    """Gateways that share limits, each with its own connections."""
    prefix = uuid.uuid4().hex
    made = [connected(server, prefix, timeout_s)[0] for _ in range(count)]
    clock = asyncio.get_running_loop().time
    try:
        async with running(*made):
            yield [(Limiter(clock, gateways(count, rank), counters), counters) for rank, counters in enumerate(made)]
    finally:
        for counters in made:
            await counters.close()
