"""Header routes, and the hold time in a route."""

import asyncio
from dataclasses import replace

import pytest
from multidict import CIMultiDict

from slipway_contracts.route_table import HeaderMatch, HeaderRoute
from slipway_gateway.routing.router import match_header_route
from slipway_gateway.routing.table import Route, RouteTable
from testkit.until import until_async

from .harness import echo, gateway, table, upstream

ROUTES = (
    HeaderRoute("testers", "c", (HeaderMatch("x-team", prefix="qa-"), HeaderMatch("x-try", exact="1"))),
    HeaderRoute("preview", "p", (HeaderMatch("host", exact="Preview.example.com"),)),
    HeaderRoute("ended", "x", ()),
)


@pytest.mark.parametrize(
    ("headers", "revision"),
    [
        ({"X-Team": "qa-blue", "X-Try": "1"}, "c"),
        ({"X-Team": "qa-blue", "X-Try": "10"}, ""),
        ({"X-Team": "QA-blue", "X-Try": "1"}, ""),
        ({"X-Team": "qa-blue"}, ""),
        ({"Host": "preview.EXAMPLE.com:8443"}, "p"),
        ({"Host": "preview.example.com"}, "p"),
        ({"Host": "www.preview.example.com"}, ""),
        ({"Host": "[::1]"}, ""),
        ({}, ""),
    ],
)
def test_all_headers_of_a_route_must_fit(headers: dict[str, str], revision: str) -> None:
    route = Route("default/chat", "uid", "chat", header_routes=ROUTES)
    assert match_header_route(route, CIMultiDict(headers)) == revision


def test_an_address_as_host_keeps_its_colons() -> None:
    address = HeaderRoute("v6", "c", (HeaderMatch("host", exact="[fd00::1]"),))
    route = Route("default/chat", "uid", "chat", header_routes=(address,))
    assert [match_header_route(route, {"host": host}) for host in ("[fd00::1]", "[fd00::1]:80", "[fd00::1:80]")] == [
        "c",
        "c",
        "",
    ]


def with_routes(shown: RouteTable, hold_s: float | None = None) -> RouteTable:
    (route,) = shown.routes.values()
    route = replace(route, header_routes=ROUTES, hold_s=hold_s)
    return RouteTable({route.name: route}, {route.model: route}, shown.endpoints)


async def test_header_routes_come_before_weights() -> None:
    async with upstream(echo) as canary, upstream(echo) as stable, gateway() as gate:

        async def revision(**headers: str) -> str:
            async with await gate.post(headers=headers) as answer:
                assert answer.status == 200
                return answer.headers["X-Slipway-Revision"]

        gate.balancer.publish(with_routes(table(1, ("c", 0, [canary.url]), ("s", 100, [stable.url]))))
        assert await revision() == "s"
        assert await revision(**{"X-Team": "qa-1", "X-Try": "1"}) == "c"
        # A header route without endpoints is skipped.
        assert await revision(Host="preview.example.com") == "s"
        gate.balancer.publish(with_routes(table(2, ("c", 0, []), ("s", 100, [stable.url]))))
        assert await revision(**{"X-Team": "qa-1", "X-Try": "1"}) == "s"


async def test_hold_time_of_a_route_overrides_the_setting() -> None:
    async with upstream(echo) as server, gateway(hold_timeout_s=0) as gate:
        gate.balancer.publish(with_routes(table(1, ("rev", 100, [])), hold_s=30))
        asking = asyncio.create_task(gate.post())
        # The gateway's own setting lets no request wait at all.
        await until_async(lambda: gate.held() == 1)
        gate.balancer.publish(with_routes(table(2, ("rev", 100, [server.url]))))
        async with await asking as answer:
            assert answer.status == 200
