"""Two gateways admit together what one may, within the stated bound; a server that is away loses no request."""

import asyncio
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import redis as client

from slipway_gateway.quotas.tenant import INPUT, OUTPUT, REQUESTS, Limits
from slipway_gateway.sharing import redis_counters
from slipway_gateway.sharing.limiter import Limiter, LimitRefusal, Taken
from slipway_gateway.sharing.ready_gateways import ReadyGateways
from slipway_gateway.sharing.redis_counters import RedisCounters
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.until import until_async
from tests.support.redis import RedisServer

from .limiters import TIMEOUT_S, connected, gateways, limiters, running

pytestmark = pytest.mark.integration

RUNS = 200
MOST_GATEWAYS = 4
ONE = {REQUESTS: 1}


async def reserve(
    limiter: Limiter, tenant: str, limits: Limits, amounts: Mapping[str, int] = ONE
) -> Taken | LimitRefusal:
    return await limiter.reserve(tenant, uuid.uuid4().hex, limits, amounts)


def draw(chance: random.Random) -> Limits:
    return Limits(
        requests_per_minute=chance.choice([0, 1, 30, 600]),
        input_tokens_per_minute=chance.choice([0, 100, 6000]),
        output_tokens_per_minute=chance.choice([0, 50, 3000]),
        burst_s=chance.choice([1.0, 10.0, 60.0]),
    )


class Fleet:
    """Gateways without Redis, of which some come and go, at random."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.use, self.limits = chance, Use(), draw(chance)
        self.now_s, self.count, self.changes = 0.0, 2, 0
        self._known: list[ReadyGateways] = []
        self._limiters: list[Limiter] = []
        self._follow()

    def _follow(self) -> None:
        """All of them know how many are ready."""
        for one in self._known:
            one.seen("/slice", [f"gateway-{number}" for number in range(self.count)])
        for rank in range(len(self._known), self.count):
            self._known.append(gateways(self.count, rank))
            self._limiters.append(Limiter(lambda: self.now_s, self._known[-1]))

    async def step(self) -> None:
        chance = self.chance
        self.now_s += chance.choice([0, 0, 0.01, 1, 30])
        if chance.random() < 0.02:
            self.changes += 1
            self.count = chance.choice([number for number in range(1, MOST_GATEWAYS + 1) if number != self.count])
            self._follow()
        place = chance.randrange(self.count)
        amounts = {REQUESTS: 1, INPUT: chance.randint(0, 300), OUTPUT: chance.randint(0, 100)}
        taken = await reserve(self._limiters[place], "team-a", self.limits, amounts)
        if isinstance(taken, Taken):
            used = {name: chance.randint(0, amount) for name, amount in amounts.items()} | ONE
            part = self.limits.part(self._known[place].share)
            self._limiters[place].settle(taken, self.use.add(part, used))


def bound(limits: Limits, elapsed_s: float) -> dict[str, float]:
    """What may be used in this time: a full bucket, and what flows back."""
    return {name: rate.burst + elapsed_s / rate.interval_s + 1e-6 for name, rate in limits.rates().items()}


@dataclass
class Use:
    """Of one tenant, of all its limiters."""

    of: dict[str, int] = field(default_factory=dict)

    def add(self, limits: Limits, used: Mapping[str, int]) -> dict[str, int]:
        """A request reserves a full bucket at most: here it uses no more. Returns what it used."""
        within = {name: min(used[name], rate.burst) for name, rate in limits.rates().items()}
        for name, amount in within.items():
            self.of[name] = self.of.get(name, 0) + amount
        return within

    def over(self, within: Mapping[str, float]) -> dict[str, float]:
        return {name: self.of.get(name, 0) - allowed for name, allowed in within.items()}


async def test_two_gateways_with_redis_admit_what_one_may(redis: RedisServer) -> None:
    """Requests that use less than they reserve, in any interleaving: no overshoot in any of the runs."""
    loop = asyncio.get_running_loop()

    async def run(seed: int, both: list[tuple[Limiter, RedisCounters]]) -> None:
        chance, tenant, use = random.Random(seed), f"t{seed}", Use()
        limits, began_s = draw(chance), loop.time()

        async def request(limiter: Limiter) -> None:
            amounts = {REQUESTS: 1, INPUT: chance.randint(0, 300), OUTPUT: chance.randint(0, 100)}
            taken = await reserve(limiter, tenant, limits, amounts)
            if isinstance(taken, Taken):
                await asyncio.sleep(chance.choice([0, 0.01]))
                used = {name: chance.randint(0, amount) for name, amount in amounts.items()} | ONE
                limiter.settle(taken, use.add(limits, used))

        await asyncio.gather(*(request(chance.choice(both)[0]) for _ in range(30)))
        over = use.over(bound(limits, loop.time() - began_s))
        assert all(value <= 0 for value in over.values()), (seed, limits, over)

    async with limiters(redis, 2) as both:
        for first in range(0, RUNS, 20):
            await asyncio.gather(*(run(seed, both) for seed in range(first, first + 20)))
        assert not any(counters.away for _, counters in both)


async def test_gateways_without_redis_divide_and_a_change_costs_one_bucket_at_most() -> None:
    """200 histories of two to four gateways, of which some come and go: the bound of docs/tenants.md holds."""

    for seed in range(RUNS):
        fleet = Fleet(random.Random(seed))
        for _ in range(fleet.chance.randint(1, 200)):
            await fleet.step()
        # A part of a bucket is one unit at least.
        buckets = 1 + fleet.changes
        allowed = {
            name: buckets * max(rate.burst, MOST_GATEWAYS) + fleet.now_s / rate.interval_s + 1e-6
            for name, rate in fleet.limits.rates().items()
        }
        over = fleet.use.over(allowed)
        assert all(value <= 0 for value in over.values()), (seed, fleet.limits, over)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_add_up_to_the_limits(parts: int) -> None:
    limits = Limits(requests_per_minute=10, input_tokens_per_minute=1001, concurrency=9)
    shares = [limits.part(gateways(parts, rank).share) for rank in range(parts)]
    assert sum(one.concurrency for one in shares) == 9
    for name, rate in limits.rates().items():
        assert sum(1 / one.rates()[name].interval_s for one in shares) == pytest.approx(1 / rate.interval_s)
        assert sum(one.rates()[name].burst for one in shares) <= rate.burst
    alone = [Limits(concurrency=1).part(gateways(3, rank).share).concurrency for rank in range(3)]
    assert alone == [1, 1, 1], "none is without"


async def test_concurrency_is_of_all_gateways_and_ends_with_the_request(redis: RedisServer) -> None:
    limits = Limits(concurrency=2)
    async with limiters(redis, 2) as ((one, at_one), (two, _)):
        first, second = await reserve(one, "team-a", limits), await reserve(two, "team-a", limits)
        assert isinstance(first, Taken)
        assert isinstance(second, Taken)
        assert isinstance(await reserve(two, "team-a", limits), LimitRefusal)
        one.settle(first, ONE)
        await until_async(lambda: not at_one._waiting)
        assert isinstance(await reserve(two, "team-a", limits), Taken)


async def test_a_client_with_one_request_after_the_other_is_never_refused(redis: RedisServer) -> None:
    limits = Limits(concurrency=1)
    async with limiters(redis, 2) as both:
        for number in range(40):
            limiter = both[number % 2][0]
            taken = await reserve(limiter, "team-a", limits)
            assert isinstance(taken, Taken), number
            limiter.settle(taken, ONE)


async def test_what_was_not_used_is_given_back_to_all(redis: RedisServer) -> None:
    limits = Limits(output_tokens_per_minute=1000)
    async with limiters(redis, 2) as ((one, at_one), (two, _)):
        taken = await reserve(one, "team-a", limits, {OUTPUT: 1000})
        assert isinstance(taken, Taken)
        refusal = await reserve(two, "team-a", limits, {OUTPUT: 500})
        assert isinstance(refusal, LimitRefusal)
        assert refusal.reached.limit == OUTPUT
        assert 20 < refusal.reached.wait_s <= 30
        assert refusal.headers["x-ratelimit-limit-tokens"] == "1000"
        one.settle(taken, {OUTPUT: 10})
        await until_async(lambda: not at_one._waiting)
        again = await reserve(two, "team-a", limits, {OUTPUT: 500})
        assert isinstance(again, Taken)
        assert int(again.headers["x-ratelimit-remaining-tokens"]) >= 490


async def test_leases_of_a_gateway_that_is_gone_end(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_counters, "LEASE_S", 5.0)
    limits = Limits(concurrency=1)
    async with limiters(redis, 1) as ((two, _),):
        prefix = two._counters._prefix if two._counters else ""
        counters, _ = connected(redis, prefix)
        async with running(counters):
            assert isinstance(await reserve(Limiter(lambda: 0.0, counters=counters), "team-a", limits), Taken)
        await counters.close()
        assert isinstance(await reserve(two, "team-a", limits), LimitRefusal)
        await until_async(lambda: reserve(two, "team-a", limits), holds=lambda answer: isinstance(answer, Taken))


async def test_running_requests_renew_their_lease(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_counters, "LEASE_S", 2.0)
    monkeypatch.setattr(redis_counters, "RENEW_EACH_S", 0.1)
    limits = Limits(concurrency=1)
    async with limiters(redis, 2) as ((one, _), (two, _)):
        assert isinstance(await reserve(one, "team-a", limits), Taken)
        await asyncio.sleep(2.5)
        assert isinstance(await reserve(two, "team-a", limits), LimitRefusal)


async def test_a_client_that_leaves_while_it_is_counted_gives_all_back(redis: RedisServer) -> None:
    limits = Limits(requests_per_minute=1, concurrency=1)
    async with limiters(redis, 1) as ((limiter, counters),):
        leaving = asyncio.create_task(reserve(limiter, "team-a", limits))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await until_async(lambda: not counters._waiting)

        async def taken() -> bool:
            return isinstance(await reserve(limiter, "team-a", limits), Taken)

        assert leaving.cancelled()
        await until_async(taken)


async def test_a_server_that_is_killed_and_back_loses_no_request(redis: RedisServer) -> None:
    """Each request gets an answer while the server dies, freezes and returns; afterwards it counts again."""
    limits = Limits(requests_per_minute=1_000_000, concurrency=500)
    async with limiters(redis, 2, timeout_s=0.3) as both:
        answers: list[float] = []
        stop = asyncio.Event()

        async def client_of(limiter: Limiter) -> None:
            while not stop.is_set():
                began_s = asyncio.get_running_loop().time()
                taken = await reserve(limiter, "team-a", limits)
                assert isinstance(taken, Taken)
                answers.append(asyncio.get_running_loop().time() - began_s)
                await asyncio.sleep(0.005)
                limiter.settle(taken, ONE)

        clients = [asyncio.create_task(client_of(limiter)) for limiter, _ in both for _ in range(5)]
        for stop_it, start_it in ((redis.kill, redis.start), (redis.freeze, redis.thaw)):
            await asyncio.sleep(0.2)
            stop_it()
            await until_async(lambda: all(counters.away for _, counters in both))
            before = len(answers)
            await until_async(lambda before=before: len(answers) > before + 20)
            start_it()
            await until_async(lambda: not any(counters.away for _, counters in both))
        stop.set()
        await asyncio.gather(*clients)
        await until_async(lambda: not any(counters._waiting for _, counters in both))
        server, prefix = client.Redis.from_url(redis.url), both[0][1]._prefix
        assert server.zcard(f"{prefix}:{{team-a}}:running") == 0
        assert server.hlen(f"{prefix}:{{team-a}}:holds") == 0
        for limiter, _ in both:
            quota = limiter.quotas.find("team-a")
            assert quota is not None and quota.running == 0


async def test_away_each_gateway_has_its_part(redis: RedisServer) -> None:
    limits = Limits(requests_per_minute=10)
    counters, metrics = connected(redis, uuid.uuid4().hex)
    limiter = Limiter(lambda: 0.0, gateways(2), counters)
    away = [await reserve(limiter, "team-a", limits) for _ in range(11)]
    assert sum(isinstance(one, Taken) for one in away) == 5
    assert metrics.registry.get_sample_value("slipway_gateway_shared_limits") == 0
    async with running(counters):
        shared = [await reserve(limiter, "team-a", limits) for _ in range(11)]
        assert sum(isinstance(one, Taken) for one in shared) == 10
        assert metrics.registry.get_sample_value("slipway_gateway_shared_limits") == 1
    await counters.close()


async def test_a_server_that_refuses_scripts_is_away_and_said_so(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    admin = client.Redis.from_url(redis.url)
    admin.execute_command("ACL", "SETUSER", "weak", "on", ">weak", "~*", "+@all", "-eval", "-evalsha")
    metrics = GatewayMetrics("test")
    url = redis.url.replace(":secret@", "weak:weak@")
    counters = RedisCounters(url, uuid.uuid4().hex, TIMEOUT_S, metrics)
    task = asyncio.create_task(counters.run())
    await until_async(lambda: "NoPermissionError" in caplog.text)
    assert counters.away
    assert "secret" not in caplog.text
    assert "weak:weak" not in caplog.text
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await counters.close()


async def test_a_settlement_for_which_there_is_no_room_is_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_counters, "MAX_WAITING", 6)
    metrics = GatewayMetrics("test")
    counters = RedisCounters("redis://127.0.0.1:1", "x", 0.1, metrics)
    for number in range(5):
        counters.begin("team-a", str(number), sent=True)
        counters.settle("team-a", str(number), ONE)
    assert [id_ for _, id_, _ in counters._waiting] == ["0", "1", "2"]
    assert metrics.registry.get_sample_value("slipway_gateway_settlements_lost_total") == 2
    await counters.close()
