"""Credentials of clients reach no pod unless the route forwards them (safety 14, and 15: priorities)."""

import json
from dataclasses import replace

import pytest
from aiohttp import web
from multidict import CIMultiDict

from slipway_contracts.headers import PRIORITY_LIMIT
from slipway_contracts.route_table import Backend, Traffic
from slipway_gateway.routing.routes_file import parse as parse_file
from slipway_gateway.routing.table import Problem, RevisionEndpoints, Route, RouteTable, build, parse_route
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.deployment import spec as spec_room
from slipway_operator.model.deployment import status as status_room
from slipway_process.serving.errors import HttpError
from slipway_process.serving.priority import priority_of
from tests.contract.documented import TEXT

from .harness import echo, gateway, table, upstream

pytestmark = [pytest.mark.attack_class(9, 14), pytest.mark.finding(14)]

CREDENTIALS = {
    "Authorization": "Bearer canary-secret-1",
    "Cookie": "session=canary-secret-2",
    "Proxy-Authorization": "Basic canary-secret-3",
    "X-Api-Key": "canary-secret-4",
    "Api-Key": "canary-secret-5",
}


async def test_no_credential_reaches_a_pod_by_default() -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        for sent in (CREDENTIALS, {name.lower(): value for name, value in CREDENTIALS.items()}):
            async with await gate.post(headers=sent) as answer:
                assert answer.status == 200
        assert "canary-secret" not in str([list(seen.headers.items()) for seen in server.seen])
        # The tenant is sent all the same, as its pseudonym.
        assert all(seen.headers["X-Slipway-Tenant"] for seen in server.seen)


@pytest.mark.parametrize(
    ("forwarded", "arrive"),
    [(("authorization",), {"1"}), (("cookie", "x-api-key"), {"2", "4"}), (("proxy-authorization",), set[str]())],
)
async def test_a_route_may_forward_some_credentials(forwarded: tuple[str, ...], arrive: set[str]) -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.balancer.publish(forwarding(server.url, *forwarded))
        async with await gate.post(headers=CREDENTIALS) as answer:
            assert answer.status == 200
        seen = str(list(server.seen[0].headers.items()))
        assert {n for n in "12345" if f"canary-secret-{n}" in seen} == arrive


def forwarding(url: str, *names: str) -> RouteTable:
    (route,) = table(1, ("rev", 100, [url])).routes.values()
    return build([replace(route, forward_headers=names)], [RevisionEndpoints(route.name, "rev", (url,))])


@pytest.mark.parametrize(("forwarded", "kept"), [((), False), (("authorization",), False), (("cookie",), True)])
async def test_pods_set_cookies_only_where_they_get_them(forwarded: tuple[str, ...], kept: bool) -> None:
    async def sets(request: web.Request) -> web.StreamResponse:
        answer = web.json_response({})
        answer.set_cookie("session", "fixed-by-a-pod")
        return answer

    async with upstream(sets) as server, gateway() as gate:
        gate.balancer.publish(forwarding(server.url, *forwarded))
        async with await gate.post() as answer:
            assert ("Set-Cookie" in answer.headers) is kept


def test_forwarded_headers_reach_the_route_from_the_spec() -> None:
    spec = {"model": {"uri": "hf://a/b"}, "traffic": {"forwardHeaders": ["authorization", "cookie"]}}
    parsed = spec_room.parse({"metadata": {"name": "chat"}, "spec": spec})
    assert isinstance(parsed, spec_room.Spec) and parsed.forward_headers == ("authorization", "cookie")
    traffic = Traffic(1, "chat", "s", (Backend("r", 100),), forward_headers=parsed.forward_headers)
    written = status_room.render(Status(traffic=traffic))
    assert written["traffic"]["forwardHeaders"] == ["authorization", "cookie"]
    assert status_room.parse(written).traffic == traffic
    meta = {"namespace": "default", "name": "chat"}
    route = parse_route({"metadata": meta, "spec": spec, "status": written})
    assert isinstance(route, Route) and route.forward_headers == parsed.forward_headers
    assert "forwardHeaders" in TEXT


def test_forwarded_headers_are_read_from_a_routes_file() -> None:
    entry = {"backends": [{"endpoints": ["http://a:1"]}], "forwardHeaders": ["cookie"]}
    found = parse_file(json.dumps({"models": {"m": entry}}), 1)
    assert not isinstance(found, Problem) and found.models["m"].forward_headers == ("cookie",)
    refused = parse_file(json.dumps({"models": {"m": entry | {"forwardHeaders": ["Host"]}}}), 1)
    assert isinstance(refused, Problem) and "forwardHeaders" in refused.text


# -- priorities


async def test_priority_limit_of_clients_is_dropped() -> None:
    async with upstream(echo) as server, gateway(priority_limit=5) as gate:
        gate.route(("rev", 100, [server.url]))
        body = b'{"model":"chat","priority":-1000}'
        async with await gate.post(body, headers={"x-slipway-priority-limit": "-1000"}) as answer:
            assert answer.status == 200
        assert server.seen[0].headers.getall("X-Slipway-Priority-Limit") == ["5"]
        assert server.bodies == [body], "the body stays as it was written"


@pytest.mark.finding(15)
@pytest.mark.parametrize(
    ("limit", "requested", "runs"),
    [("0", -1000, 0), ("0", 7, 7), ("0", None, 0), ("-10", -1000, -10), ("5", 0, 5), (None, -1000, -1000)],
)
def test_the_server_applies_the_priority_limit(limit: str | None, requested: int | None, runs: int) -> None:
    """Safety 15: any client set -1000 and went before all others."""
    sent = CIMultiDict({} if limit is None else {PRIORITY_LIMIT: limit})
    assert priority_of(sent, requested) == runs
    assert f"`{PRIORITY_LIMIT}: " in TEXT


@pytest.mark.parametrize("nonsense", ["x", "", "1e9", "--1", "99999999", "٣"])
def test_invalid_priority_limit_is_refused(nonsense: str) -> None:
    with pytest.raises(HttpError) as refused:
        priority_of({PRIORITY_LIMIT: nonsense}, 0)
    assert refused.value.status == 400


@pytest.mark.finding(26)
@pytest.mark.parametrize("text", ['{"models": "\\ud800"}', 'models:\n  chat: "\\uD800"\n'])
def test_a_routes_file_of_half_characters_is_a_problem(text: str) -> None:
    """Safety 26: a UnicodeEncodeError, found by fuzzing."""
    assert isinstance(parse_file(text, 1), Problem)
