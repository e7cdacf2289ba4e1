"""How the server of limits may be set up: with Sentinels, with TLS, and not as a node of a Redis Cluster."""

import asyncio
import contextlib
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis as client

from devcluster.certificates import Authority
from slipway_gateway.quotas.policy import Budget
from slipway_gateway.quotas.tenant import REQUESTS, Limits
from slipway_gateway.sharing.limiter import Limiter, Taken
from slipway_gateway.sharing.redis_client import SentinelUrl, open_client, parse_sentinel
from slipway_gateway.sharing.redis_counters import RedisCounters
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.until import until_async
from tests.support.redis import KINDS, PASSWORD, RedisServer, SentinelGroup, cluster_node, sentinel_group

from .limiters import TIMEOUT_S, connected, gateways, running
from .test_budgets import ONE as UNIT
from .test_budgets import Spender, spend, spenders, written

pytestmark = pytest.mark.integration

# Slow enough that nothing flows back while a test runs.
LIMITS = Limits(requests_per_minute=1, burst_s=40 * 60)
ONE = {REQUESTS: 1}


@pytest.fixture(params=KINDS)
def group(request: pytest.FixtureRequest) -> Iterator[SentinelGroup]:
    with sentinel_group(request.param) as made:
        yield made


@contextlib.asynccontextmanager
async def limiters_at(url: str, timeout_s: float) -> AsyncIterator[list[tuple[Limiter, RedisCounters]]]:
    """Of two gateways."""
    prefix, clock = uuid.uuid4().hex, asyncio.get_running_loop().time
    made = [RedisCounters(url, prefix, timeout_s, GatewayMetrics("test")) for _ in range(2)]
    try:
        async with running(*made):
            yield [(Limiter(clock, gateways(2, rank), counters), counters) for rank, counters in enumerate(made)]
    finally:
        for counters in made:
            await counters.close()


async def take(limiter: Limiter, count: int) -> int:
    """How many of so many requests were taken."""
    found = 0
    for _ in range(count):
        taken = await limiter.reserve("team-a", uuid.uuid4().hex, LIMITS, ONE)
        if isinstance(taken, Taken):
            found += 1
            limiter.settle(taken, ONE)
    return found


def info(server: RedisServer) -> dict[str, object]:
    with client.Redis(port=server.port, password=PASSWORD) as admin:
        return admin.info("replication")  # type: ignore[return-value]


async def replicated(group: SentinelGroup) -> None:
    """The replica has all that the primary has."""
    primary, replica = group.servers
    await until_async(lambda: info(replica).get("master_link_status") == "up")
    await until_async(lambda: info(replica)["slave_repl_offset"] == info(primary)["master_repl_offset"])


async def test_when_the_primary_dies_limits_and_budgets_are_counted_on_at_the_next_one(group: SentinelGroup) -> None:
    """No request is lost meanwhile, and what was counted stays counted."""
    budget = Budget(day_nano=40 * UNIT)
    async with (
        limiters_at(group.url, TIMEOUT_S) as ((one, at_one), (two, at_two)),
        at_sentinels(group) as (spender, other),
    ):
        assert await take(one, 10) + await take(two, 10) == 20
        assert await spend(spender, budget, 10) == 10
        await until_async(lambda: written(spender) == 10 * UNIT)
        await replicated(group)
        group.servers[0].kill()
        assert 1 <= await take(one, 40) <= 20  # of its part
        await until_async(lambda: info(group.servers[1])["role"] == "master")
        await take(two, 1)  # which finds out now, if it has not yet
        await until_async(lambda: not (at_one.away or at_two.away))
        await until_async(lambda: not (spender.budgets.away or other.budgets.away))
        assert await take(one, 40) + await take(two, 40) <= 20
        assert 29 <= await spend(other, budget, 80) <= 31


@contextlib.asynccontextmanager
async def at_sentinels(group: SentinelGroup) -> AsyncIterator[list[Spender]]:
    server = RedisServer.__new__(RedisServer)
    server.url = group.url
    async with spenders(server, 2, timeout_s=TIMEOUT_S) as made:
        yield made


async def test_one_of_three_sentinels_is_enough_and_a_frozen_one_delays_nothing(group: SentinelGroup) -> None:
    first, second, _ = group.sentinels
    first.freeze()
    second.kill()
    try:
        async with limiters_at(group.url, TIMEOUT_S) as ((one, _), (two, _)):
            async with asyncio.timeout(TIMEOUT_S / 2):
                assert await take(one, 30) + await take(two, 30) == 40
    finally:
        first.thaw()


async def test_a_wrong_password_of_sentinels_is_logged_without_any_password(
    group: SentinelGroup, caplog: pytest.LogCaptureFixture
) -> None:
    counters = RedisCounters(group.url + "-not", uuid.uuid4().hex, TIMEOUT_S, GatewayMetrics("test"))
    task = asyncio.create_task(counters.run())
    await until_async(lambda: "no Sentinel of --redis-url names a primary of 'limits' that is up" in caplog.text)
    assert counters.away
    assert "secret" not in caplog.text
    assert "of-sentinels" not in caplog.text
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await counters.close()


async def test_a_node_of_a_cluster_is_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    with cluster_node() as node:
        counters, _ = connected(node, uuid.uuid4().hex)
        task = asyncio.create_task(counters.run())
        await until_async(lambda: "the server of --redis-url is a node of a Redis Cluster" in caplog.text)
        assert counters.away
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await counters.close()


async def test_tls_is_verified_by_the_authority_in_the_url(tmp_path: Path, redis: RedisServer) -> None:
    authority, other = (Authority.create(tmp_path / name) for name in ("authority", "other"))
    authority.issue("redis", "redis", hosts=["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.path("redis.crt"), authority.path("redis.key"))

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As stunnel before a server without TLS."""
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", redis.port)
        try:
            await asyncio.wait(
                [asyncio.create_task(copy(reader, back_writer)), asyncio.create_task(copy(back_reader, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            back_writer.close()
            writer.close()

    async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"rediss://:{PASSWORD}@127.0.0.1:{port}/0?ssl_ca_certs="
        async with limiters_at(f"{url}{authority.path('ca.crt')}", TIMEOUT_S) as ((one, _), _):
            assert await take(one, 41) == 40
        counters = RedisCounters(f"{url}{other.path('ca.crt')}", "x", TIMEOUT_S, (metrics := GatewayMetrics("test")))
        task = asyncio.create_task(counters.run())
        failures = "slipway_gateway_shared_limits_failures_total"
        await until_async(lambda: metrics.registry.get_sample_value(failures))
        assert counters.away
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await counters.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()


def test_a_url_of_sentinels_has_all_that_both_need() -> None:
    found = parse_sentinel(
        "rediss+sentinel://u:p%40@a,[::1]:5,c:7/my%2Fmain/3?ssl_ca_certs=/ca.pem&sentinel_username=s&sentinel_password=t"
    )
    server = "rediss://u:p%40@sentinel/3?ssl_ca_certs=%2Fca.pem"
    credentials = {"username": "s", "password": "t"}
    assert found == SentinelUrl([("a", 26379), ("::1", 5), ("c", 7)], "my/main", server, credentials)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://:pw@a,b", "the path must name the service"),
        ("redis+sentinel://:pw@a/main/x", "must be the number of a database"),
        ("redis+sentinel://:pw@a:x/main", "each Sentinel must be HOST or HOST:PORT"),
        ("redis+sentinel://:pw@a,/main", "each Sentinel must be HOST or HOST:PORT"),
        ("redis+sentinel://:pw@a/main?db=1", "unknown option 'db'; known ones of redis\\+sentinel"),
        ("redis://:pw@a/0?retry=1", "unknown option 'retry'; known ones of redis: db"),
        ("redis://:pw@a/0?ssl_ca_certs=/x", "unknown option 'ssl_ca_certs'"),
        ("redis://:pw@a:99999/0", "Port out of range"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_by_the_name_of_the_setting(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^--redis-url: .*{message}") as refused:
        open_client(url, 1, 0.1)
    assert "pw" not in str(refused.value)
