"""A canary whose responses guards would block is found by pairs, before any client gets one of them."""

from dataclasses import replace

import pytest

from slipway_gateway.routing.table import RouteTable

from ..harness import gateway, upstream
from ..test_mirror import saying
from ..test_twins import ask, counts, events, shadowing, until_results
from .webhooks import Webhook, guard, reach_loopback


def guarded(table: RouteTable, url: str) -> RouteTable:
    (route,) = table.routes.values()
    route = replace(route, guards=(guard(url, ["Output"]),))
    return RouteTable({route.name: route}, {route.model: route}, table.endpoints)


@pytest.mark.parametrize(("leak", "kinds"), [("VETO", {"blocked", "bad"}), ("my SECRET", {"redacted"})])
async def test_what_guards_do_to_canary_s_response_is_an_event_of_the_pair(leak: str, kinds: set[str]) -> None:
    hook = Webhook()
    async with (
        upstream(saying(leak)) as canary,
        upstream(saying("fine")) as twin,
        upstream(saying("fine")) as served,
        upstream(hook) as webhook,
        gateway() as gate,
    ):
        reach_loopback(gate)
        gate.balancer.publish(guarded(shadowing([canary.url], [served.url], baseline=[twin.url]), webhook.url))
        assert await ask(gate) == 200
        await until_results(gate, 1)
        assert events(gate) == {kind: {"canary_only": 1} for kind in kinds} and counts(gate)["pairs"] == 1
        assert sorted(call["revision"] for call in hook.calls) == ["c", "s", "s"], "client, canary and twin"


async def test_a_guard_that_fails_is_evidence_about_no_side() -> None:
    async with (
        upstream(saying("VETO")) as canary,
        upstream(saying("fine")) as twin,
        upstream(saying("fine")) as served,
        gateway() as gate,
    ):
        table = guarded(shadowing([canary.url], [served.url], baseline=[twin.url]), "http://127.0.0.1:1")
        (route,) = table.routes.values()
        open_guard = replace(route.guards[0], failure_policy="Ignore")
        route = replace(route, guards=(open_guard,))
        gate.balancer.publish(RouteTable({route.name: route}, {route.model: route}, table.endpoints))
        assert await ask(gate) == 200
        await until_results(gate, 1)
        assert events(gate) == {} and counts(gate)["pairs"] == 1
