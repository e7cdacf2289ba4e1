"""Random requests of many tenants at two gateways with one server of limits: the bounds of docs/tenants.md hold.

Each run is a tenant with limits and a budget of its own. Its requests end in all ways, and its model server counts what
it does for them; what the tenant used is compared with what it may use, and with the ledgers of both gateways.
"""

import asyncio
import contextlib
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from slipway_gateway.ledger.periods import day_begin
from testkit.until import until_async
from tests.gateway import tenants
from tests.gateway.harness import Gateway, gateway, upstream
from tests.plane.native import needs_plane
from tests.support.redis import RedisServer

from .limiters import gateways
from .random_runs import REFUSALS, ModelServer, Run, draw, play

pytestmark = pytest.mark.integration
both_lanes = pytest.mark.parametrize("plane", ["off", pytest.param("required", marks=needs_plane)])

RUNS, RUNS_WITH_KILLS = 1000, 300
AT_ONCE = 8
SHARED = ("slipway_gateway_shared_limits", "slipway_gateway_shared_budgets")
FAST, PAIR = "slipway_gateway_fast_requests_total", {"model": "chat", "revision": "r1"}
FAILURES = "slipway_gateway_shared_limits_failures_total"
COUNTS = ("requests", "input_tokens", "output_tokens")


@dataclass
class Changes:
    """When the server of limits went and came, from its first moment until both gateways knew of it."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def during(self, run: Run) -> int:
        return sum(begin_s <= run.ended_s and end_s >= run.began_s for begin_s, end_s in self.spans)


@dataclass
class Pair:
    """Two gateways."""

    both: tuple[Gateway, Gateway]
    runs: dict[int, Run]

    @property
    def counters(self) -> list[Any]:
        return [edge.admission._limiter._counters for edge in self.both]

    def sharing(self, *names: str, wanted: bool = True) -> bool:
        """Both gateways do, or both do not."""
        return all(
            bool(edge.metrics.registry.get_sample_value(name)) is wanted
            for edge in self.both
            for name in names or SHARED
        )

    def note_settlements(self) -> None:
        """Of each tenant, when the server of limits has confirmed them."""
        by_tenant = {run.tenant.name: run for run in self.runs.values()}
        clock = asyncio.get_running_loop().time
        for counters in self.counters:
            settled = counters._settled

            def note(batch: Sequence[tuple[str, ...]], results: Sequence[object], settled: Any = settled) -> None:
                settled(batch, results)
                for name, *_ in batch:
                    by_tenant[name].settled_s.append(clock())

            counters._settled = note

    async def billed(self) -> dict[str, Counter[str]]:
        """By tenant, in both ledgers."""
        found: dict[str, Counter[str]] = {}
        for edge in self.both:
            assert await edge.ledger.flush()
            _, rows = await edge.ledger.usage(0, 1 << 30, "")
            for row in rows:
                found.setdefault(row["tenant"], Counter()).update({name: row[name] for name in COUNTS})
        return found


@contextlib.asynccontextmanager
async def pair(redis: RedisServer, runs: Sequence[Run], plane: str) -> AsyncIterator[Pair]:
    by_seed = dict(enumerate(runs))
    options = {
        "tenants": [run.tenant for run in runs],
        "pepper": tenants.PEPPER,
        "auth_mode": "required",
        "redis_url": redis.url,
        "redis_prefix": uuid.uuid4().hex,
        "redis_timeout_s": 30.0,  # what a slow answer does has tests of its own
        "plane": plane,
    }
    one_of, two_of = (options | {"gateways": gateways(2, rank)} for rank in (0, 1))
    server = ModelServer(by_seed)
    async with upstream(server.answer) as model, gateway(**one_of) as one, gateway(**two_of) as two:  # type: ignore[arg-type]
        made = Pair((one, two), by_seed)
        writing = [asyncio.create_task(edge.ledger.run()) for edge in made.both]
        for edge in made.both:
            edge.route(("r1", 100, [model.url]))
        await until_async(made.sharing)
        try:
            yield made
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)


async def play_all(made: Pair) -> None:
    """Some runs at a time."""
    waiting = list(made.runs.values())

    async def play_some(session: aiohttp.ClientSession) -> None:
        while waiting:
            await play(waiting.pop(), made.both, session)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(play_some(session) for _ in range(AT_ONCE)))


def overshoot(run: Run, in_flight: int, changes: int = 0) -> dict[str, float]:
    """What was used of each limit beyond what the pages allow: each value above 0 is wrong."""
    seconds = run.ended_s - run.began_s
    over = {}
    for name, rate in run.limits.rates().items():
        # While one gateway counts at the server and the other does not, both flow back.
        flow = seconds / rate.interval_s * (1.5 if changes else 1)
        buckets = rate.burst if not changes else (1 + changes) * max(rate.burst, 2)
        over[name] = run.use[name] - buckets - flow - in_flight * run.most_beyond[name] - 1e-6
    if concurrency := run.limits.concurrency:
        over["concurrency"] = run.most_running - (concurrency if not changes else (1 + changes) * max(concurrency, 2))
    return {name: value for name, value in over.items() if value > 0}


def overspent(run: Run, days: int) -> int:
    budget = run.tenant.policy.budget.day_nano
    if budget is None:
        return 0
    return run.spent_nano - days * (budget + 2 * run.largest_nano + run.beyond_nano)


def summed(runs: Sequence[Run]) -> Counter[str]:
    found: Counter[str] = Counter()
    for run in runs:
        found += Counter({"taken": run.taken}) + run.refused
    return found


async def play_and_compare(made: Pair, runs: Sequence[Run]) -> None:
    """The ledgers have what model servers counted, to the token, whatever happens to the server of limits."""
    await play_all(made)
    billed = await made.billed()
    assert {name: +counts for name, counts in billed.items()} == {
        run.tenant.name: +run.billed for run in runs if run.billed
    }


async def check_runs(redis: RedisServer, count: int, plane: str) -> None:
    runs = [draw(seed, beyond=seed % 2 > 0, budgets=True) for seed in range(count)]
    async with pair(redis, runs, plane) as made:
        made.note_settlements()
        first_day = day_begin(made.both[0].ledger.hour)
        await play_and_compare(made, runs)
        await until_async(lambda: all(len(run.settled_s) == run.taken for run in runs if run.limits.any))
        days = 1 + (day_begin(made.both[0].ledger.hour) != first_day)
        assert made.sharing(), "limits were shared all the time"
        assert not any(edge.metrics.registry.get_sample_value(FAILURES) for edge in made.both)
    assert not {run.tenant.name: over for run in runs if (over := overshoot(run, run.most_in_flight()))}
    assert not {run.tenant.name: over for run in runs if (over := overspent(run, days)) > 0}
    if plane == "required":
        served = [int(edge.metrics.registry.get_sample_value(FAST, PAIR) or 0) for edge in made.both]
        assert min(served) > count // 5, "the fast lane has its part in it"
    # The runs are worth something: many requests are taken, and many are refused, by limits and by budgets.
    found = summed(runs)
    assert all(found[name] > 2 * count for name in ("taken", *REFUSALS)), found


async def kill_now_and_then(redis: RedisServer, made: Pair, chance: random.Random) -> Changes:
    """Until it is cancelled. The server of limits forgets all each time."""
    changes, clock, pause_s = Changes(), asyncio.get_running_loop().time, 0.1
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(pause_s)
            pause_s = chance.uniform(0.1, 1.0)
            for change, wanted in ((redis.kill, False), (redis.start, True)):
                began_s = clock()
                changes.spans.append((began_s, float("inf")))
                change()
                await until_async(lambda wanted=wanted: made.sharing(SHARED[0], wanted=wanted))  # type: ignore[misc]
                changes.spans[-1] = began_s, clock()
    return changes


async def check_runs_with_kills(redis: RedisServer, count: int, plane: str) -> None:
    """No request uses more than it reserves here, so that what is beyond a limit comes from the changes alone."""
    runs = [draw(seed, beyond=False, budgets=False) for seed in range(count)]
    async with pair(redis, runs, plane) as made:
        killing = asyncio.create_task(kill_now_and_then(redis, made, random.Random(count)))
        try:
            await play_and_compare(made, runs)
        finally:
            killing.cancel()
            changes = await killing
            redis.kill()
            redis.start()
        await until_async(made.sharing)
        await until_async(lambda: not any(counters._waiting for counters in made.counters))
        for edge in made.both:
            quotas = edge.admission.quotas
            assert not any(quota.running for name in quotas.names() if (quota := quotas.find(name)))
    assert len(changes.spans) >= count / 60, changes.spans
    assert not {run.tenant.name: over for run in runs if (over := overshoot(run, 0, changes.during(run)))}
    found = summed(runs)
    assert all(found[name] > 2 * count for name in ("taken", REFUSALS[0])), found


async def test_requests_of_any_kind_exceed_no_limit_and_no_budget_by_more_than_stated(
    redis_or_valkey: RedisServer,
) -> None:
    await check_runs(redis_or_valkey, 40, "off")


async def test_while_redis_dies_and_returns_a_limit_is_exceeded_by_one_bucket_each_time_at_most(
    redis: RedisServer,
) -> None:
    await check_runs_with_kills(redis, 40, "off")


@needs_plane
async def test_requests_of_the_fast_lane_exceed_none_by_more_than_stated(redis: RedisServer) -> None:
    await check_runs(redis, 40, "required")


@needs_plane
async def test_while_redis_dies_and_returns_a_limit_holds_in_the_fast_lane_too(redis: RedisServer) -> None:
    await check_runs_with_kills(redis, 40, "required")


@pytest.mark.extended
@pytest.mark.timeout(1800)
@both_lanes
async def test_a_thousand_random_runs_exceed_no_limit_and_no_budget_by_more_than_stated(
    redis: RedisServer, plane: str
) -> None:
    await check_runs(redis, RUNS, plane)


@pytest.mark.extended
@pytest.mark.timeout(1800)
@both_lanes
async def test_random_runs_while_redis_dies_and_returns_many_times(redis: RedisServer, plane: str) -> None:
    await check_runs_with_kills(redis, RUNS_WITH_KILLS, plane)
