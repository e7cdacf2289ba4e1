"""Two deployments of one model name at one gateway (safety 14): each request reaches its own, and leaks nothing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.route_table import Backend, MirrorRoute
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.routing.router import RouteEndpoint
from slipway_gateway.routing.table import RevisionEndpoints, Route, RouteTable, build
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_gateway.wire import request_fields

from .harness import Gateway, echo, gateway, upstream

pytestmark = pytest.mark.finding(14)

CHAT = {"model": "chat", "messages": []}


def deployments(owner: str | None, **urls: str) -> RouteTable:
    """Deployments NAMESPACE/chat of the same revision, as copies of one manifest are; `owner` has the short name."""
    routes = [
        Route(f"{one}/chat", f"uid-{one}", "chat", "2026-01-01T00:00:00Z", 1, "s", (Backend("r", 100),)) for one in urls
    ]
    endpoints = [RevisionEndpoints(f"{one}/chat", "r", (url,)) for one, url in urls.items()]
    return build(routes, endpoints, {"chat": f"{owner}/chat"} if owner else {})


async def ask(gate: Gateway, model: str, **more: Any) -> tuple[int, Any]:
    async with await gate.post(CHAT | {"model": model} | more) as answer:
        return answer.status, await answer.json()


@pytest.mark.attack_class(22)
async def test_each_name_reaches_its_own_and_its_server_reads_the_name_it_knows() -> None:
    async with upstream(echo) as owner, upstream(echo) as loser, gateway() as gate:
        gate.balancer.publish(deployments("a", a=owner.url, b=loser.url))
        assert (await ask(gate, "chat"))[0] == (await ask(gate, "a/chat"))[0] == 200
        assert len(owner.bodies) == 2 and not loser.bodies
        assert (await ask(gate, "b/chat", temperature=1e-45))[0] == 200
        assert len(owner.bodies) == 2
        assert json.loads(loser.bodies[0]) == CHAT | {"temperature": 1e-45}
        assert owner.bodies[0] == json.dumps(CHAT).encode()  # byte for byte where nothing is to be renamed
        async with await gate.post({"prompt": "x"}, path="/api/v1/models/b/chat/generate?a=b%26c") as answer:
            assert answer.status == 200 and loser.seen[-1].raw_path == "/api/v1/models/chat/generate?a=b%26c"
        assert len(owner.bodies) == 2


@pytest.mark.attack_class(22)
async def test_model_list_and_errors_show_only_own_names() -> None:
    async with upstream(echo) as owner, gateway() as gate:
        gate.balancer.publish(deployments("a", a=owner.url, secret="http://127.0.0.1:1"))
        async with gate.client.get(gate.url + "/v1/models") as answer:
            assert [one["id"] for one in (await answer.json())["data"]] == ["chat", "secret/chat"]
        for name, status in (("chat", 200), ("a/chat", 200), ("secret/chat", 200), ("b/chat", 404)):
            async with gate.client.get(f"{gate.url}/v1/models/{name}") as answer:
                found = await answer.json()
                assert answer.status == status and found.get("id", name) == name
        for unknown in ("cha", "Chat", "chat ", "a/", "/chat", "a/chat/", "../a/chat", "A/chat", "%61/chat"):
            status, refused = await ask(gate, unknown)
            assert (status, refused["error"]["code"]) == (404, "model_not_found")
            assert refused["error"]["message"] == f"The model '{unknown}' does not exist."
        gate.balancer.publish(deployments(None, secret="http://127.0.0.1:1"))
        status, refused = await ask(gate, "chat")
        assert status == 404 and "secret" not in refused["error"]["message"]


@pytest.mark.attack_class(22)
async def test_a_request_stays_with_its_deployment_when_the_name_moves() -> None:
    """It waits for an endpoint of the one that had the name; the new owner never sees it."""

    async def refusing(request: Any) -> Any:
        gate.balancer.publish(deployments("b", a=first.url, b=second.url))
        return await echo(request) if len(first.seen) > 1 else await unavailable(request)

    async def unavailable(request: Any) -> Any:
        from aiohttp import web

        return web.json_response({}, status=503)

    async with upstream(refusing) as first, upstream(echo) as second, gateway(hold_timeout_s=3.0) as gate:
        gate.balancer.publish(deployments("a", a=first.url, b=second.url))
        assert (await ask(gate, "chat"))[0] == 200
        assert len(first.bodies) == 2 and not second.bodies
        assert (await ask(gate, "chat"))[0] == 200
        assert len(second.bodies) == 1


@pytest.mark.attack_class(22)
def test_a_mirror_of_the_owner_gets_no_copies_of_the_others_requests() -> None:
    """The route of an attempt was found by its model name: that of the name's owner."""
    mirror = MirrorRoute("m", "canary", 100)
    split = (Backend("canary", 0), Backend("r", 100))
    owner = Route("a/chat", "1", "chat", "", 1, "s", split, mirror_routes=(mirror,))
    loser = Route("b/chat", "2", "chat", "", 1, "s", (Backend("r", 100),))
    balancer = LoadBalancer(GatewayMetrics("test"))
    urls = [
        RevisionEndpoints("a/chat", "canary", ("u1",)),
        RevisionEndpoints("a/chat", "r", ("u2",)),
        RevisionEndpoints("b/chat", "r", ("u3",)),
    ]
    balancer.publish(build([owner, loser], urls, {"chat": "a/chat"}))
    theirs = balancer.pick("b/chat", "key", ())
    assert theirs == RouteEndpoint("b/chat", "b/chat", "r", "u3")
    assert balancer.mirror(theirs, "id", {}) is None and not balancer.mirrors(theirs, mirror)
    own = balancer.pick("chat", "key", ())
    assert own == RouteEndpoint("a/chat", "chat", "r", "u2")
    found = balancer.mirror(own, "id", {})
    assert found is not None and found[0] is owner


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def renamed(body: bytes, name: str = 'a"c') -> bytes:
    return request_fields.with_model(body, request_fields.parse(body), name)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.booleans())
def test_renaming_changes_the_name_alone(fields: dict[str, Any], spaces: bool) -> None:
    body = json.dumps({**fields, "model": "b/chat"}, separators=None if spaces else (",", ":")).encode()
    assert json.loads(renamed(body)) == {**fields, "model": 'a"c'}


def test_renaming_keeps_the_bytes_of_everything_else() -> None:
    body = b'{"seed": 12345678901234567890123, "model" :\t"b/chat" , "t": 1e-45, "x": {"a": "b/chat"}}\n'
    assert renamed(body, "chat") == body.replace(b'"b/chat" ,', b'"chat" ,')
    twice = body.replace(b'"a"', b'"model"')
    assert renamed(twice, "chat") == twice.rstrip()[:-1] + b',"model":"chat"}'


MODEL = ('"model"', '"mo\\u0064el"', '"\\u006dodel"')
KEYS = st.sampled_from(
    ['"model"', '"mo\\u0064el"', '"\\u006dodel"', '"models"', '"x"', '"\\"model"', '"model\\""', '"MODEL"', '"\\u0041"']
)
NAMES = st.sampled_from(
    ['"b/chat"', '"b\\/chat"', '"\\u0062/chat"', '"model"', '"c/chat"', '"\\"model\\": \\"b/chat\\""']
)
OTHERS = st.sampled_from(['{"model": "b/chat"}', '["model", "b/chat"]', "null", "{}", '"model"', "1e5", '" \\\\"'])
SPACES = st.sampled_from(["", " ", "\n\t ", "\r\n"])


@pytest.mark.finding("F6")
@given(st.lists(st.tuples(KEYS, NAMES, OTHERS, SPACES), max_size=6), SPACES, NAMES)
def test_the_last_model_counts_however_it_is_written(
    parts: list[tuple[str, str, str, str]], space: str, name: str
) -> None:
    """Names that are there twice, or are written with escapes, count for a server as they do for the gateway."""
    written = [f"{blank}{key}{blank}:{blank}" + (text if key in MODEL else other) for key, text, other, blank in parts]
    last = f'{space}"model":{name}'
    body = (space + "{" + ",".join([*written, last]) + space + "}" + space).encode()
    fields, new = request_fields.parse(body), renamed(body)
    assert fields.model == json.loads(body)["model"]
    assert json.loads(new) == json.loads(body) | {"model": 'a"c'} and request_fields.parse(new).model == 'a"c'
