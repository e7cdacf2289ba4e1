"""The scripts in Redis and the buckets of one gateway decide alike, over any history."""

import itertools
from typing import Any

import pytest
import redis as client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway_gateway.quotas.tenant import INPUT, REQUESTS, LimitReached, Limits, Reservation, TenantQuota
from slipway_gateway.sharing import scripts
from tests.support.redis import RedisServer

pytestmark = pytest.mark.integration

_NUMBERS = itertools.count()
BEGIN_S = 1000.0
_LIMITS = (
    Limits(requests_per_minute=60, input_tokens_per_minute=600, concurrency=3),
    Limits(requests_per_minute=7, input_tokens_per_minute=1001, burst_s=10),
    Limits(requests_per_minute=1, input_tokens_per_minute=100_000_000),
)


def at(text: str) -> str:
    """The script by a clock of the test."""
    assert scripts.NOW in text
    return text.replace(scripts.NOW, "local now = tonumber(table.remove(ARGV))\n")


RESERVE, SETTLE = at(scripts.RESERVE), at(scripts.SETTLE)
steps = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "settle", "change"]),
        st.integers(0, 20),  # which of the running ones, or which limits
        st.sampled_from([0, 1, 10, 100, 700, 20_000]),  # reserved or used
        st.sampled_from([0.0, 0.001, 0.5, 3.0, 20.0, 100.0]),  # later
    ),
    max_size=25,
)


class Twin:
    """Both sides, by one clock."""

    def __init__(self, server: "client.Redis[Any]") -> None:
        self.server = server
        self.keys = [f"{next(_NUMBERS)}:{name}" for name in ("buckets", "running", "holds")]
        self.now_s, self.limits = BEGIN_S, _LIMITS[0]
        self.quota = TenantQuota(self.limits)
        self.running: dict[str, Reservation] = {}

    def reserve(self, amount: int) -> None:
        amounts, id_ = {REQUESTS: 1, INPUT: amount}, str(next(_NUMBERS))
        here = self.quota.reserve(amounts, self.now_s)
        given = [
            value
            for name, rate in self.limits.rates().items()
            for value in (name, repr(rate.interval_s), rate.burst, amounts[name])
        ]
        arguments = [id_, 1e6, self.limits.concurrency, *given, repr(self.now_s)]
        taken, reached, wait_s, *full_s = self.server.eval(RESERVE, 3, *self.keys, *arguments)
        if isinstance(here, LimitReached):
            assert (taken, reached.decode()) == (0, here.limit)
            assert float(wait_s) == pytest.approx(here.wait_s, abs=1e-6)
        else:
            assert taken == 1
            self.running[id_] = here
        for found, bucket in zip(full_s, self.quota._buckets.values(), strict=True):
            assert float(found) == pytest.approx(bucket.full_in_s(self.now_s), abs=1e-6)

    def settle(self, which: int, used: int) -> None:
        if not self.running:
            return
        id_ = list(self.running)[which % len(self.running)]
        self.quota.settle(self.running.pop(id_), {INPUT: used}, self.now_s)
        arguments = [id_, INPUT, used, repr(self.now_s)]
        assert self.server.eval(SETTLE, 3, *self.keys, *arguments) == 1
        assert self.server.eval(SETTLE, 3, *self.keys, *arguments) == 0, "only once"

    def change(self, which: int) -> None:
        """The server learns of it with the next request."""
        self.limits = _LIMITS[which % len(_LIMITS)]
        self.quota.change(self.limits, self.now_s)


@pytest.fixture(scope="module")
def server(redis_or_valkey: RedisServer) -> "client.Redis[Any]":
    return client.Redis.from_url(redis_or_valkey.url)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_the_scripts_decide_as_buckets_of_one_gateway_do(server: "client.Redis[Any]", steps: list[Any]) -> None:
    twin = Twin(server)
    for kind, which, amount, later_s in steps:
        twin.now_s += later_s
        if kind == "reserve":
            twin.reserve(amount)
        elif kind == "settle":
            twin.settle(which, amount)
        else:
            twin.change(which)
            twin.reserve(amount)


@pytest.mark.finding("F3")
def test_a_bucket_that_owes_years_heals_with_the_next_request(server: "client.Redis[Any]") -> None:
    """An earlier release wrote it, after one report of 2^40 tokens; a restart of the gateways changed nothing."""
    twin = Twin(server)
    years_s = 41 * 365 * 86400
    rates = twin.limits.rates()
    for name, rate in rates.items():
        pack = "redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack({tonumber(ARGV[2]), 0, 0, tonumber(ARGV[3])}))"
        server.eval(pack, 1, twin.keys[0], name, twin.now_s + years_s, repr(rate.interval_s))
    server.expire(twin.keys[0], years_s)
    arguments = [
        "a",
        30,
        0,
        *(value for name, rate in rates.items() for value in (name, repr(rate.interval_s), rate.burst, 1)),
    ]
    taken, _, wait_s, *_ = server.eval(RESERVE, 3, *twin.keys, *arguments, repr(twin.now_s))
    assert (taken, float(wait_s) <= 62) == (0, True)
    later_s = twin.now_s + float(wait_s) + 1
    assert server.eval(RESERVE, 3, *twin.keys, *arguments, repr(later_s))[0] == 1
    assert server.ttl(twin.keys[0]) < 2 * 86400


@pytest.mark.finding("F3")
def test_one_full_bucket_of_debt_is_the_most_there_too(server: "client.Redis[Any]") -> None:
    twin = Twin(server)
    for _ in range(3):
        twin.reserve(1)
    for _ in range(3):
        twin.settle(0, (1 << 40) - 1)
    twin.reserve(1)
    assert twin.quota._buckets[INPUT].wait_s(1, twin.now_s) <= 62
