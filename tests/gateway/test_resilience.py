"""Circuit breaker, retry budget and degradation: what a deployment that fails or is full gets, and what clients see."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.resilience import CircuitBreaker, Degradation, RetryBudget
from slipway_gateway.balancing.circuit_breaker import CLOSED, HALF_OPEN, OPEN, Breaker
from slipway_gateway.balancing.overload import QUIET_S, RISE_S, Overloads, steps_of
from slipway_gateway.balancing.retry_budgets import RetryBudgets
from slipway_gateway.routing.table import Route
from testkit.until import until_async
from tests.support.report import route_reports

from .harness import Gateway, gateway, refused_url, upstream
from .test_fallback import ASK, SMALL, answered, publish, two
from .test_judged import whole

RULE = CircuitBreaker(3, 10)
FULL = SMALL | {"model": "large"}
LESS = Degradation("small", 16, True)


# -- circuit breaker


def fails(breaker: Breaker, now_s: float, failed: bool | None = True) -> bool:
    return breaker.ended(RULE, now_s, breaker.begin(now_s), failed=failed)


def test_a_breaker_opens_after_failures_in_a_row_and_one_probe_at_a_time_closes_it() -> None:
    breaker = Breaker()
    assert [fails(breaker, 0), fails(breaker, 0, False), fails(breaker, 0), fails(breaker, 0)] == [False] * 4
    late = breaker.begin(0)
    assert fails(breaker, 0) and breaker.begin(9.9) == OPEN and breaker.opens_again_s(9) == 1
    assert not breaker.ended(RULE, 9.9, late, failed=False), "it was sent before"
    assert (breaker.begin(10), breaker.begin(10)) == (HALF_OPEN, OPEN)
    assert not breaker.ended(RULE, 10, HALF_OPEN, failed=None), "a client that leaves says nothing"
    assert breaker.begin(10) == HALF_OPEN and breaker.ended(RULE, 10, HALF_OPEN, failed=True)
    assert breaker.begin(29) == OPEN, "twice in a row: twice as long"
    assert breaker.begin(30) == HALF_OPEN and not breaker.ended(RULE, 30, HALF_OPEN, failed=False)
    assert breaker.begin(30) == CLOSED == breaker.state(30)


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from([True, False, None])), max_size=60))
def test_a_breaker_is_never_stuck(events: list[tuple[float, bool | None]]) -> None:
    breaker, now_s = Breaker(), 0.0
    for step_s, failed in events:
        now_s += step_s
        if (sent_in := breaker.begin(now_s)) != OPEN:
            breaker.ended(RULE, now_s, sent_in, failed=failed)
    assert breaker.opens_again_s(now_s) <= 3600
    now_s += 3600
    sent_in = breaker.begin(now_s)
    assert sent_in != OPEN
    breaker.ended(RULE, now_s, sent_in, failed=False)
    assert breaker.state(now_s) == CLOSED


async def test_while_the_breaker_is_open_requests_go_to_the_fallback_at_once() -> None:
    async with two(whole({"error": {"message": "boom"}}, 500), whole(SMALL)) as (gate, (large, small)):
        publish(gate, [large.url], [small.url], circuit_breaker=RULE)
        headers = [(await answered(gate, ASK))[2]["X-Slipway-Fallback"] for _ in range(5)]
        assert headers == ["ns/large; error"] * 3 + ["ns/large; circuit_open"] * 2
        assert (len(large.seen), len(small.seen)) == (3, 5)
        assert gate.metrics.registry.get_sample_value("slipway_gateway_circuit_breakers_open") == 1
        # A new table of the same deployment changes nothing.
        publish(gate, [large.url], [small.url], circuit_breaker=RULE)
        await answered(gate, ASK)
        assert len(large.seen) == 3
        (*_, sample) = route_reports(gate.balancer)["ns/large"]["samples"]
        assert sample["revisions"]["l1"]["requests"] <= 3


async def test_without_a_fallback_an_open_breaker_refuses_with_the_time_until_the_next_try() -> None:
    async with two(whole({"error": {"message": "boom"}}, 500)) as (gate, (large, _)):
        publish(gate, [large.url], [], circuit_breaker=CircuitBreaker(2, 1), fallback=())
        assert [(await answered(gate, ASK))[0] for _ in range(3)] == [500, 500, 503]
        status, text, headers = await answered(gate, ASK)
        assert (status, json.loads(text)["error"]["code"]) == (503, "circuit_open")
        assert headers["Retry-After"] == "1" and len(large.seen) == 2
        await asyncio.sleep(1.1)
        assert (await answered(gate, ASK))[0] == 500 and len(large.seen) == 3


async def test_busy_pods_and_errors_of_clients_open_no_breaker() -> None:
    for status in (429, 503, 400):
        async with two(whole({"error": {"message": "no"}}, status), whole(SMALL)) as (gate, (large, small)):
            publish(gate, [large.url], [small.url], circuit_breaker=CircuitBreaker(1, 10))
            for _ in range(3):
                await answered(gate, ASK)
            assert len(large.seen) == 3


# -- retry budget


@given(st.integers(0, 1000), st.integers(0, 100), st.integers(0, 20))
def test_a_budget_lets_no_more_retries_run_than_it_says(requests: int, percent: int, least: int) -> None:
    budgets, route = RetryBudgets(), replace(Route("a/b", "", "b"), retry_budget=RetryBudget(percent, least))
    taken = sum(budgets.take(route, requests) for _ in range(1100))
    assert taken == max(least, requests * percent // 100) == budgets.active("a/b")
    for _ in range(taken):
        budgets.leave("a/b")
    assert not budgets.active("a/b")


async def test_retries_and_fallbacks_do_not_multiply_the_load_beyond_the_budget() -> None:
    gone = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await gone.wait()
        return web.json_response(SMALL)

    async with two(whole({"error": {"message": "boom"}}, 500), slow) as (gate, (large, small)):
        publish(gate, [large.url], [small.url], retry_budget=RetryBudget(0, 2))
        running = [asyncio.create_task(answered(gate, ASK)) for _ in range(10)]
        await until_async(lambda: len(large.seen) == 10 and gate.balancer.retry_budgets.active("ns/large") == 2)
        await until_async(lambda: sum(task.done() for task in running) == 8 and len(small.seen) == 2)
        waiting = [task for task in running if not task.done()]
        assert {(await task)[0] for task in running if task.done()} == {500}
        gone.set()
        assert [(await one)[0] for one in waiting] == [200, 200]
        assert not gate.balancer.retry_budgets.active("ns/large")
        value = gate.metrics.registry.get_sample_value("slipway_gateway_retry_overflow_total", {"model": "large"})
        assert value == 8.0


async def test_attempts_at_other_pods_are_in_the_budget_and_those_that_reached_none_are_not() -> None:

    async with upstream(whole({"error": {}}, 503)) as busy, upstream(whole(SMALL)) as good, gateway() as gate:
        for urls, sent, status in (([refused_url(), good.url], 0, 200), ([busy.url], 1, 503)):
            publish(gate, urls, [], fallback=(), retry_budget=RetryBudget(0, 0))
            statuses = {(await answered(gate, ASK, headers={"X-Session-Id": f"{n}"}))[0] for n in range(4)}
            assert statuses == {status}
            assert len(busy.seen) == 4 * sent


# -- deadlines


async def test_a_fallback_that_hangs_is_left_in_the_same_time_and_the_whole_request_ends_in_its_own() -> None:
    async def hangs(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.json_response({})

    began_s = asyncio.get_running_loop().time()
    async with two(hangs, hangs, request_timeout_s=30) as (gate, (large, small)):
        publish(gate, [large.url], [small.url], first_byte_seconds=0.3)
        assert (await answered(gate, ASK))[0] == 504
        assert (len(large.seen), len(small.seen)) == (1, 1)
    assert asyncio.get_running_loop().time() - began_s < 25


# -- degradation


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_steps_come_in_their_order_while_refusals_go_on_and_end_one_by_one() -> None:
    clock = Clock()
    overloads, route = Overloads(clock), replace(Route("a/b", "", "b"), degradation=LESS)
    assert steps_of(LESS) == ("model", "max_tokens", "n") and overloads.steps(route) == ()
    seen = []
    for _ in range(5):
        overloads.refused(route)
        seen.append(len(overloads.steps(route)))
        clock.now_s += RISE_S / 2
    assert seen == [1, 1, 2, 2, 3]
    clock.now_s += QUIET_S
    assert overloads.steps(route) == ("model", "max_tokens")
    clock.now_s += 2 * QUIET_S
    assert overloads.steps(route) == () and not overloads.overloaded
    overloads.follow({})
    assert not overloads._levels


class Engine:
    """A server with places: what finds none is refused, as by the queue bound of a model server."""

    def __init__(self, places: int, reply: dict[str, Any], token_s: float) -> None:
        self._free, self._reply, self._token_s = places, reply, token_s
        self.tokens: list[int] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if not self._free:
            return web.json_response({"error": {"message": "the queue is full"}}, status=429)
        self._free -= 1
        try:
            body = await request.json()
            self.tokens.append(body["max_tokens"] * body.get("n", 1))
            await asyncio.sleep(self.tokens[-1] * self._token_s)
            return web.json_response(self._reply)
        finally:
            self._free += 1


async def ask_at(gate: Gateway, rate: float, seconds: float) -> list[tuple[int, str, dict[str, str]]]:
    """Requests at a steady rate, without waiting for responses."""
    tasks = []
    for number in range(int(rate * seconds)):
        body = ASK | {"max_tokens": 100, "n": 2}
        tasks.append(asyncio.create_task(answered(gate, body, headers={"X-Session-Id": f"{number}"})))
        await asyncio.sleep(1 / rate)
    return list(await asyncio.gather(*tasks))


async def test_at_three_times_the_capacity_there_are_full_light_and_refused_responses() -> None:
    # 8 places of 200 tokens of 1 ms are 40 requests a second; the small model has a fifth of that.
    large, small = Engine(8, FULL, 0.001), Engine(2, SMALL, 0.001)
    async with two(large, small) as (gate, (first, second)):
        publish(gate, [first.url], [second.url], fallback=(), degradation=Degradation("small", 60, True))
        got = await ask_at(gate, 120, 3.5)
        kinds = Counter((status, headers.get("X-Slipway-Degraded", "")) for status, _, headers in got)
        full, refused = kinds[200, ""], kinds[429, ""]
        light = {how: count for (status, how), count in kinds.items() if status == 200 and how}
        assert full and refused, kinds
        assert {"model", "max_tokens, n"} <= {how.removeprefix("model, ") for how in light}, kinds
        assert sum(kinds.values()) == 420 and {status for status, _ in kinds} == {200, 429}, kinds
        models = {
            json.loads(text)["model"]
            for status, text, headers in got
            if headers.get("X-Slipway-Degraded", "").startswith("model") and status == 200
        }
        assert models == {"small"}
        # With every step the same pods answer more of the requests than at first.
        assert min(large.tokens) == 60 and max(large.tokens) == 200
        assert gate.outcomes().keys() == {"ok", "refused"}


async def test_without_overload_nothing_is_taken_away_and_other_reasons_do_not_lead_to_the_small_model() -> None:
    async with two(whole({"error": {"message": "boom"}}, 500), whole(SMALL)) as (gate, (large, small)):
        publish(gate, [large.url], [small.url], fallback=(), degradation=LESS)
        status, _, headers = await answered(gate, ASK | {"max_tokens": 100, "n": 2})
        assert (status, len(small.seen)) == (500, 0) and "X-Slipway-Degraded" not in headers
        assert json.loads(large.bodies[0])["max_tokens"] == 100
