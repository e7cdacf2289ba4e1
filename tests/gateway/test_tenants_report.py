"""What a gateway reports about tenants to the operator."""

from dataclasses import replace
from typing import Any

from aiohttp import web

from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import Price, nano
from slipway_gateway.quotas.recent import Recent
from slipway_gateway.quotas.tenant import Limits

from . import tenants as known
from .harness import Gateway, gateway, upstream

KEY, OTHER = known.make_key(), known.make_key("other1")
USAGE = {"usage": {"prompt_tokens": 7, "completion_tokens": 5}}


async def whole(request: web.Request) -> web.StreamResponse:
    return web.json_response(USAGE)


async def report(edge: Gateway) -> dict[str, Any]:
    async with await edge.client.get(f"{edge.admin_url}/internal/tenants") as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def test_use_refusals_and_spending_of_each_tenant_are_reported() -> None:
    policy = Policy(Limits(requests_per_minute=2), (Price("*", request_nano=nano("3")),), Budget(day_nano=nano("5")))
    tenant = replace(known.tenant("team-a", KEY), policy=policy, generation=4)
    idle = known.tenant("team-b", OTHER)
    async with (
        upstream(whole) as server,
        gateway(tenants=[tenant, idle], pepper=known.PEPPER) as edge,
    ):
        edge.route(("r1", 100, [server.url]))
        for _ in range(3):
            async with await edge.post(headers=known.bearer(KEY)) as answer:
                await answer.read()
        found = await report(edge)
        assert found["authenticates"] is True
        nothing = {"last_minute": {}, "refused": {}, "running": 0, "day_nano": 0, "month_nano": 0, "exhausted": ""}
        assert found["tenants"]["team-b"] == nothing | {"generation": 0, "problem": "", "trouble": None}
        one = found["tenants"]["team-a"]
        assert one["last_minute"] == {"requests": 2, "input_tokens": 14, "output_tokens": 10}
        assert (one["refused"], one["day_nano"], one["exhausted"]) == ({"spend": 1}, nano("6"), "day")
        assert (one["running"], one["generation"], one["trouble"]) == (0, 4, None)


async def test_what_hinders_a_tenant_is_reported() -> None:
    tenant = known.tenant("team-a", KEY)
    async with gateway(tenants=[tenant]) as edge:
        edge.known.problems["team-c"] = "spec.prices[0]: no amount"
        found = (await report(edge))["tenants"]
        assert found["team-a"]["trouble"][0] == "KeyPepperMissing"
        assert (found["team-c"]["problem"], found["team-c"]["generation"]) == ("spec.prices[0]: no amount", 0)
    async with gateway(tenants=[tenant], auth_mode="off") as edge:
        assert (await report(edge))["authenticates"] is False


def test_the_last_minute_forgets_in_slots() -> None:
    recent = Recent()
    for second in range(0, 200, 5):
        recent.add({"requests": 1}, float(second))
        assert recent.last_minute(float(second))["requests"] <= 12
    assert recent.last_minute(199.0)["requests"] == 12
    assert recent.last_minute(240.0)["requests"] == 2
    assert recent.last_minute(300.0) == {}
