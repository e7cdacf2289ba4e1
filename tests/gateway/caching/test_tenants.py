"""What a hit takes from limits, what it costs, and what the ledger has of it."""

import asyncio
from dataclasses import replace
from typing import Any

from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import Price
from slipway_gateway.quotas.tenant import Limits
from slipway_gateway.quotas.usage import Usage
from testkit.until import until_async
from tests.gateway.harness import Gateway
from tests.gateway.tenants import PEPPER, bearer, make_key, tenant

from .served import Model, ask, cached, chat

KEYS = {"a": make_key("aaaaaa"), "b": make_key("bbbbbb")}
PRICE = Price("*", input_micro=1_000_000, output_micro=2_000_000, request_nano=5)


def known(**policy: Any) -> list[Any]:
    rules = Policy(**{"prices": (PRICE,), **policy})
    return [replace(tenant(name, key), policy=rules) for name, key in KEYS.items()]


async def rows(gate: Gateway) -> list[dict[str, Any]]:
    hour = gate.ledger.hour
    _, found = await gate.ledger.usage(hour - 1, hour + 1, "")
    return found


def of(name: str) -> dict[str, str]:
    return bearer(KEYS[name])


async def test_tenants_never_get_each_others_responses() -> None:
    model = Model()
    async with cached(model, tenants=known(), pepper=PEPPER) as (gate, _):
        for name in KEYS:
            # Who the user of a tenant is has no part in it.
            answers = [await ask(gate, chat(user=f"u{n}"), **of(name)) for n in range(2)]
            assert [answer.cache for answer in answers] == ["miss", "hit"]
        assert model.computed == len(KEYS)


async def test_a_hit_is_one_request_and_no_tokens() -> None:
    limits = Limits(requests_per_minute=100, input_tokens_per_minute=1000, output_tokens_per_minute=1000)
    async with cached(tenants=known(limits=limits), pepper=PEPPER) as (gate, _):
        first, second = await ask(gate, **of("a")), await ask(gate, **of("a"))
        assert (first.cache, second.cache) == ("miss", "hit")
        assert second.headers["x-ratelimit-remaining-requests"] == "98"
        left = int(second.headers["x-ratelimit-remaining-tokens"])
        assert left >= 1000 - 7 - 3, "what the first one used, and nothing more is reserved"
        (row,) = await rows(gate)
        assert (row["requests"], row["input_tokens"], row["output_tokens"]) == (2, 7, 3)
        assert (row["cache_hits"], row["saved_input_tokens"], row["saved_output_tokens"]) == (1, 7, 3)
        full_nano = 5 + 7 * 1000 + 3 * 2000
        assert row["cost_nano"] == full_nano + 5
        assert row["saved_cost_nano"] == full_nano - 5
        saved = gate.metrics.registry.get_sample_value(
            "slipway_gateway_cache_saved_cost_total", {"model": "chat", "revision": "r1"}
        )
        assert saved == (full_nano - 5) / 1e9


async def test_a_hit_that_a_limit_refuses_costs_nothing() -> None:
    limits = Limits(requests_per_minute=1, burst_s=120)
    async with cached(tenants=known(limits=limits), pepper=PEPPER) as (gate, _):
        assert [(await ask(gate, **of("a"))).status for _ in range(4)] == [200, 200, 429, 429]
        (row,) = await rows(gate)
        assert (row["requests"], row["cache_hits"]) == (2, 1)
        assert row["cost_nano"] == 5 + 7 * 1000 + 3 * 2000 + 5


async def test_a_hit_passes_where_the_limit_of_tokens_is_reached() -> None:
    limits = Limits(output_tokens_per_minute=20)
    async with cached(tenants=known(limits=limits, output_tokens=20), pepper=PEPPER) as (gate, _):
        await ask(gate, **of("a"))
        await ask(gate, chat("more", max_tokens=17), **of("a"))
        assert (await ask(gate, chat("other"), **of("a"))).status == 429
        assert (await ask(gate, **of("a"))).cache == "hit"


async def test_a_priced_hit_takes_tokens_and_costs_its_part() -> None:
    limits = Limits(input_tokens_per_minute=1000, output_tokens_per_minute=1000)
    prices = (replace(PRICE, hit_percentage=10),)
    async with cached(tenants=known(limits=limits, prices=prices), pepper=PEPPER) as (gate, _):
        for _ in range(3):
            await ask(gate, **of("a"))
        tenant = next(one for one in known() if one.name == "a")
        gate.metrics.render()  # what the fast lane counted
        assert gate.admission.report(tenant).last_minute == {"requests": 3, "input_tokens": 21, "output_tokens": 9}
        (row,) = await rows(gate)
        assert row["cost_nano"] == (5 + 13_000) + 2 * (5 + 1_300)
        assert row["saved_cost_nano"] == 2 * 11_700
        assert (row["input_tokens"], row["cache_hits"]) == (7, 2)


async def test_equal_requests_that_wait_are_charged_as_hits() -> None:
    model = Model()
    model.gate.clear()
    async with cached(model, tenants=known(), pepper=PEPPER) as (gate, _):
        asking = [asyncio.create_task(ask(gate, **of("a"))) for _ in range(4)]
        await until_async(lambda: gate.caches.flights.waits == 3)
        model.gate.set()
        await asyncio.gather(*asking)
        (row,) = await rows(gate)
        assert (row["requests"], row["input_tokens"], row["cache_hits"]) == (4, 7, 3)
        assert gate.ledger.spent("a").day_nano == row["cost_nano"]


async def test_a_tenant_without_a_budget_left_gets_no_hit() -> None:
    async with cached(tenants=known(budget=Budget(day_nano=6000)), pepper=PEPPER) as (gate, _):
        assert (await ask(gate, **of("a"))).cache == "miss"
        answer = await ask(gate, **of("a"))
        assert (answer.status, answer.json["error"]["code"]) == (429, "insufficient_quota")


def test_the_cost_of_a_hit_is_rounded_up_once() -> None:
    price = Price("*", input_micro=1, output_micro=1, hit_percentage=50)
    assert (price.cost_nano(Usage(1, 0)), price.hit_cost_nano(Usage(1, 0))) == (1, 1)
    assert Price("*", input_micro=10**6).hit_cost_nano(Usage(10**6, 0)) == 0
    assert Price("*", input_micro=10**6, hit_percentage=100).hit_cost_nano(Usage(3, 0)) == 3000


async def test_a_stream_whose_usage_only_the_gateway_wants_has_none_in_its_copy() -> None:
    async with cached(tenants=known(), pepper=PEPPER) as (gate, _):
        first, second = [await ask(gate, chat(stream=True), **of("a")) for _ in range(2)]
        assert (first.cache, second.cache) == ("miss", "hit")
        assert all("usage" not in event for answer in (first, second) for event in answer.events)
        (row,) = await rows(gate)
        assert (row["input_tokens"], row["saved_input_tokens"], row["saved_output_tokens"]) == (7, 7, 3)
