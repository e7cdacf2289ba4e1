"""ModelRoutes at a gateway: rules, chains, names that tenants may use, sampling, and the model in responses."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.model_routes.spec import ModelRouteSpec
from slipway_contracts.route_table import Backend
from slipway_gateway.fast_lane.table import compile_model_routes, compile_table
from slipway_gateway.routing.last_table import decode, encode, public_routes
from slipway_gateway.routing.public_names import (
    MOST_LOOKED_AT,
    NO_TARGET,
    PublicRoute,
    choose_target,
    owner_of,
    reachable,
)
from slipway_gateway.routing.table import RevisionEndpoints, Route, RouteTable, build
from slipway_plane import NATIVE, WHY_MISSING

from . import tenants as known
from .harness import Gateway, gateway, upstream

SMALL, LARGE = "prod/small", "prod/large"


def spec(*rules: dict[str, Any], **fields: Any) -> ModelRouteSpec:
    return read(ModelRouteSpec, encoded({"rules": list(rules), **fields}))


def to(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, "weight": 100 // len(names), **fields} for name in names]


def rest(*names: str, **fields: Any) -> dict[str, Any]:
    return {"name": "rest", "backendRefs": to(*names, **fields)}


def rule(name: str, target: str, **match: Any) -> dict[str, Any]:
    return {"name": name, "matches": [match], "backendRefs": to(target)}


def deployment(name: str, url: str = "", model: str = "") -> tuple[Route, RevisionEndpoints]:
    revision = f"r-{name.replace('/', '-')}"
    route = Route(
        name, name, model or name.partition("/")[2], "2026-01-01T00:00:00Z", 1, "s", (Backend(revision, 100),)
    )
    return route, RevisionEndpoints(name, revision, (url,) if url else ())


def table(
    deployments: Sequence[tuple[Route, RevisionEndpoints]],
    *routes: PublicRoute,
    owners: dict[str, str] | None = None,
) -> RouteTable:
    if owners is None:
        owners = {route.model: route.name for route, _ in deployments}
        owners |= {name: owner_of(route.name) for route in routes for name in route.names}
    listed = [route for route, _ in deployments]
    return build(listed, [endpoints for _, endpoints in deployments], owners, model_routes=routes)


class Facts:
    """A request as rules see it."""

    def __init__(self, **facts: Any) -> None:
        self.headers: dict[str, str] = {}
        self.tenant, self.prompt_bytes = "", 0
        self.has_tools = self.has_images = self.has_code = False
        self.arrived = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
        vars(self).update(facts)


async def model_server(request: web.Request) -> web.StreamResponse:
    """Answers as a server that knows the model of the request by its own name."""
    body = json.loads(await request.text())
    part = {
        "object": "chat.completion",
        "model": body["model"],
        "choices": [{"index": 0, "message": {"content": "hi"}}],
    }
    if not body.get("stream"):
        return web.json_response(part)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for text in ('say "model": "x"', "hi"):
        delta = {"model": body["model"], "choices": [{"index": 0, "delta": {"content": text}}]}
        await response.write(f"data: {json.dumps(delta)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


async def served_by(gate: Gateway, body: dict[str, Any], **options: Any) -> tuple[str, str]:
    """The model that a server got, and the rules that led there."""
    async with await gate.post(body, **options) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["model"], answer.headers["X-Slipway-Route"]


# --- the way of a request


def test_rules_are_followed_from_the_top_and_through_other_routes() -> None:
    chat = PublicRoute("prod/chat", spec(rule("tools", "large", hasTools=True), rest("inner", kind="ModelRoute")))
    inner = PublicRoute("prod/inner", spec(rule("long", "large", promptBytes={"min": 10}), rest("small")))
    routes = {route.name: route for route in (chat, inner)}
    assert choose_target(routes, chat, Facts(has_tools=True), "k")[:2] == (LARGE, (("prod/chat", "tools"),))
    found = choose_target(routes, chat, Facts(prompt_bytes=10), "k")
    assert found[:2] == (LARGE, (("prod/chat", "rest"), ("prod/inner", "long")))
    assert choose_target(routes, chat, Facts(), "k").target == SMALL
    assert reachable(routes, chat) == [LARGE, SMALL]


def test_a_circle_and_a_chain_that_is_too_long_lead_nowhere() -> None:
    names = "abcde"
    chain = {
        f"p/{one}": PublicRoute(f"p/{one}", spec(rest(following, kind="ModelRoute")))
        for one, following in pairwise(names)
    }
    chain["p/e"] = PublicRoute("p/e", spec(rest("small")))
    assert choose_target(chain, chain["p/a"], Facts(), "k").problem == NO_TARGET
    assert choose_target(chain, chain["p/b"], Facts(), "k").target == "p/small"
    circle = {"p/a": PublicRoute("p/a", spec(rest("a", kind="ModelRoute")))}
    assert choose_target(circle, circle["p/a"], Facts(), "k").problem == NO_TARGET
    assert reachable(circle, circle["p/a"]) == []


def test_lists_look_at_a_bounded_number_of_targets() -> None:
    """Routes that lead to one another in all ways: what a hostile namespace may write."""
    names = [f"r{n}" for n in range(64)]
    rules = [
        {"name": f"x{n}", "matches": [{}], "backendRefs": to(*names[n % 60 : n % 60 + 4], kind="ModelRoute")}
        for n in range(60)
    ]
    routes = {f"p/{name}": PublicRoute(f"p/{name}", spec(*rules, rest(f"d-{name}"))) for name in names}
    found = reachable(routes, routes["p/r0"])
    assert found[0] == "p/d-r0" and 1 < len(found) < MOST_LOOKED_AT // 60 + 2


def test_another_namespace_has_to_allow_it() -> None:
    refs = spec(rest("small", namespace="other"))
    closed, granted = PublicRoute("prod/chat", refs), frozenset({"ModelDeployment/other/small"})
    assert choose_target({}, closed, Facts(), "k").problem == NO_TARGET and reachable({}, closed) == []
    allowed = PublicRoute("prod/chat", refs, granted=granted)
    assert choose_target({}, allowed, Facts(), "k").target == "other/small"


def test_each_rule_has_a_split_of_its_own_that_sticks() -> None:
    chat = PublicRoute("prod/chat", spec(rule("a", "x", hasTools=True), rest("small", "large")))
    keys = [f"user:{n}" for n in range(4000)]
    first = [choose_target({}, chat, Facts(), key).target for key in keys]
    assert first == [choose_target({}, chat, Facts(), key).target for key in keys]
    assert abs(first.count(LARGE) - 2000) < 150
    other = PublicRoute("prod/other", chat.spec)
    both = [one == choose_target({}, other, Facts(), key).target for one, key in zip(first, keys, strict=True)]
    assert abs(sum(both) - 2000) < 150, "the split of another ModelRoute is independent"


def test_a_route_gets_the_names_of_which_it_is_the_owner_and_no_others() -> None:
    chat = PublicRoute("prod/chat", spec(rest("small"), aliases=["gpt"]))
    deployments = [deployment(SMALL, model="chat")]
    owned = table(
        deployments, chat, owners={"chat": "prod/small", "gpt": owner_of("prod/chat"), "x": owner_of("prod/chat")}
    )
    assert list(owned.public) == ["gpt"] and owned.models["chat"].name == SMALL
    # A ModelRoute and a ModelDeployment of one name are two owners.
    other = table([deployment("prod/chat")], chat, owners={"chat": "prod/chat", "gpt": "prod/chat"})
    assert not other.public and other.models["chat"].name == "prod/chat"


def test_the_last_table_has_model_routes_and_the_fast_lane_too() -> None:
    chat = PublicRoute("prod/chat", spec(rest("small"), aliases=["gpt"]), "2026-01-01T00:00:00Z", frozenset({"x"}))
    now = table([deployment(SMALL, "http://10.0.0.1:80")], chat)
    stored = decode(encode(now, 1.0))
    assert build(stored.routes, stored.endpoints, stored.owners, model_routes=public_routes(stored)) == now
    reasons = {name: one.reason for one in compile_table(now, lambda url: url) for name in one.names}
    assert reasons == {"prod/small": "", "small": ""}
    targets = [("ModelDeployment", SMALL, 100)]
    assert compile_model_routes(now) == [("prod/chat", ["chat", "gpt"], [("rest", [], targets, False)])]


# --- over HTTP


LANES = ["off", pytest.param("required", marks=pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING))]


@pytest.mark.parametrize("plane", LANES)
async def test_a_public_name_leads_by_rules_and_each_one_is_named_and_counted(plane: str) -> None:
    rules = (
        rule("gold", "large", headers=[{"name": "X-Tier", "exact": "gold"}]),
        rule("agents", "large", hasTools=True),
        rule("pictures", "large", hasImages=True),
        rule("code", "large", hasCode=True),
        rule("long", "large", promptTokens={"min": 100}),
        rest("small"),
    )
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    about = [{"role": "user", "content": '"type": "image_url"'}]
    async with upstream(model_server) as server, gateway(plane=plane) as gate:
        affine, endpoints = deployment(LARGE, server.url)
        deployments = [deployment(SMALL, server.url), (replace(affine, prefix_affinity=True), endpoints)]
        gate.balancer.publish(table(deployments, PublicRoute("prod/chat", spec(*rules, aliases=["gpt-4o"]))))
        ask = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
        assert await served_by(gate, ask) == ("small", "rest")
        assert await served_by(gate, ask, headers={"X-Tier": "gold"}) == ("large", "gold")
        assert await served_by(gate, ask | {"tools": [{"type": "function"}]}) == ("large", "agents")
        assert await served_by(gate, ask | {"tools": []}) == ("small", "rest")
        assert await served_by(gate, ask | {"messages": image}) == ("large", "pictures")
        assert await served_by(gate, ask | {"messages": about}) == ("small", "rest")
        assert await served_by(gate, {"model": "gpt-4o", "prompt": "```py"}, path="/v1/completions") == (
            "large",
            "code",
        )
        assert await served_by(gate, ask | {"messages": [{"content": "x" * 400}]}) == ("large", "long")
        text = gate.metrics.render().decode()
        if plane == "required":
            assert "handovers_total{" not in text
        assert 'model_route_requests_total{model_route="prod/chat",rule="rest"} 3.0' in text
        # Requests count at the deployment that served them.
        assert 'requests_total{code="200",model="small",outcome="ok",revision="r-prod-small"} 3.0' in text
        async with gate.client.get(f"{gate.url}/v1/models") as answer:
            listed = {one["id"]: one["ready"] for one in (await answer.json())["data"]}
        assert listed == {"chat": True, "gpt-4o": True, "large": True, "small": True}
        async with gate.client.get(f"{gate.url}/v1/models/gpt-4o") as answer:
            assert (await answer.json())["id"] == "gpt-4o"


async def test_no_rule_and_no_target_are_refused_by_the_name_that_was_sent() -> None:
    async with gateway() as gate:
        none = PublicRoute("prod/chat", spec(rule("tools", "small", hasTools=True)))
        lost = PublicRoute("prod/lost", spec(rest("secret", namespace="other")))
        gate.balancer.publish(table([deployment("other/secret")], none, lost))
        async with await gate.post({"model": "chat"}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "no_matching_rule")
        async with await gate.post({"model": "lost"}) as answer:
            text = await answer.text()
            assert (answer.status, json.loads(text)["error"]["code"]) == (503, "no_route_target")
            assert (
                "secret" not in text and answer.headers["Retry-After"] and answer.headers["X-Slipway-Route"] == "rest"
            )
        assert gate.outcomes() == {"client_error": 1, "no_endpoint": 1}


async def test_a_tenant_needs_both_the_public_name_and_the_target() -> None:
    keys = {name: known.make_key(f"{name}key") for name in ("both", "public", "target")}
    listed = [
        known.tenant("both", keys["both"], models=("chat", "small")),
        known.tenant("public", keys["public"], models=("chat",)),
        known.tenant("target", keys["target"], models=("small",)),
    ]
    chat = PublicRoute("prod/chat", spec(rule("mine", "small", tenants=["bo*"]), rest("small")))
    async with upstream(model_server) as server, gateway(tenants=listed, pepper=known.PEPPER) as gate:
        gate.balancer.publish(table([deployment(SMALL, server.url)], chat))
        assert await served_by(gate, {"model": "chat"}, headers=known.bearer(keys["both"])) == ("small", "mine")
        for name in ("public", "target"):
            async with await gate.post({"model": "chat"}, headers=known.bearer(keys[name])) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found"), name
                assert "small" not in await answer.text() and "X-Slipway-Route" not in answer.headers
            async with gate.client.get(f"{gate.url}/v1/models", headers=known.bearer(keys[name])) as answer:
                assert "chat" not in [one["id"] for one in (await answer.json())["data"]]
        # A ModelDeployment that yields its name to a ModelRoute of its namespace is allowed by that name.
        owners = {"chat": owner_of("prod/front")}
        front = PublicRoute("prod/front", spec(rest("chat"), model="chat"))
        gate.balancer.publish(table([deployment("prod/chat", server.url)], front, owners=owners))
        assert await served_by(gate, {"model": "chat"}, headers=known.bearer(keys["public"])) == ("chat", "rest")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_model_of_responses_is_the_servers_or_the_one_that_was_sent(stream: bool) -> None:
    async with upstream(model_server) as server, gateway() as gate:
        for way, expected in (("Target", "small"), ("Public", "gpt-4o")):
            chat = PublicRoute("prod/chat", spec(rest("small"), aliases=["gpt-4o"], responseModel=way))
            gate.balancer.publish(table([deployment(SMALL, server.url)], chat))
            async with await gate.post({"model": "gpt-4o", "stream": stream}) as answer:
                text = await answer.text()
            lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
            parts = [json.loads(line) for line in (lines if stream else [text])]
            assert [one["model"] for one in parts] == [expected] * (2 if stream else 1)
            assert not stream or parts[0]["choices"][0]["delta"]["content"] == 'say "model": "x"'
            assert not stream or text.rstrip().endswith("[DONE]")


async def test_sampling_is_imposed_before_limits_are_counted() -> None:
    sampling = {"defaults": {"temperature": 0.5}, "caps": {"maxTokens": 100, "temperature": 1}}
    async with upstream(model_server) as server, gateway() as gate:
        gate.balancer.publish(
            table([deployment(SMALL, server.url)], PublicRoute("prod/chat", spec(rest("small"), sampling=sampling)))
        )
        await served_by(gate, {"model": "chat", "messages": []})
        await served_by(gate, {"model": "chat", "messages": [], "max_completion_tokens": 5000, "temperature": 2})
        first, second = (json.loads(body) for body in server.bodies)
        assert first == {"model": "small", "messages": [], "temperature": 0.5, "max_tokens": 100}
        assert second == {"model": "small", "messages": [], "max_completion_tokens": 100, "temperature": 1}


async def test_a_client_that_comes_back_gets_the_deployment_that_has_its_stream() -> None:
    async with upstream(model_server) as small, upstream(model_server) as large, gateway() as gate:
        chat = PublicRoute(
            "prod/chat", spec(rule("now", "large", headers=[{"name": "x-a", "exact": "1"}]), rest("small"))
        )
        gate.balancer.publish(table([deployment(SMALL, small.url), deployment(LARGE, large.url)], chat))
        body, place = {"model": "chat", "stream": True}, f"r-prod-large.1-1-{'a' * 32}.1.00000000"
        async with await gate.post(body, headers={"Last-Event-ID": place}) as answer:
            await answer.read()
        assert (len(small.seen), len(large.seen)) == (0, 1)
        async with await gate.post(body) as answer:
            await answer.read()
        assert (len(small.seen), len(large.seen)) == (1, 1)


async def test_other_apis_follow_rules_too() -> None:
    """Anthropic's messages are chats inside of the gateway; an opaque path has the model in it, and no prompt."""
    rules = (rule("tools", "large", hasTools=True), rest("small"))
    async with upstream(model_server) as server, gateway() as gate:
        chat = PublicRoute("prod/chat", spec(*rules, responseModel="Public", sampling={"caps": {"maxTokens": 9}}))
        gate.balancer.publish(table([deployment(SMALL, server.url), deployment(LARGE, server.url)], chat))
        ask = {"model": "chat", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        async with await gate.post(ask | {"tools": tools}, "/v1/messages") as answer:
            body = await answer.json()
            assert answer.headers["X-Slipway-Route"] == "tools" and body["model"] == "chat", body
        sent = json.loads(server.bodies[-1])
        assert (sent["model"], sent["max_tokens"]) == ("large", 9)
        async with await gate.post({"inputs": [], "model": "x"}, "/v2/models/chat/infer") as answer:
            await answer.read()
            assert answer.headers["X-Slipway-Route"] == "rest"
        assert server.seen[-1].path == "/v2/models/small/infer" and "max_tokens" not in json.loads(server.bodies[-1])


# --- fallbacks and classifiers of rules


async def test_a_rules_fallback_takes_the_place_of_its_targets() -> None:
    async def fails(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "boom"}}, status=500)

    async with upstream(fails) as small, upstream(model_server) as large, gateway() as gate:
        deployments = [deployment(SMALL, small.url), deployment(LARGE, large.url), deployment("other/huge", large.url)]
        foreign = {"name": "huge", "namespace": "other"}
        for fallback, granted, status in (
            ([{"name": "large"}], frozenset[str](), 200),
            ([foreign], frozenset[str](), 500),
            ([foreign], frozenset({"ModelDeployment/other/huge"}), 200),
            ([], frozenset[str](), 500),
        ):
            route = PublicRoute("prod/chat", spec(rest("small") | {"fallback": fallback}), granted=granted)
            gate.balancer.publish(table(deployments, route))
            async with await gate.post({"model": "chat"}) as answer:
                assert answer.status == status
                assert ("X-Slipway-Fallback" in answer.headers) == (status == 200)


CLASSIFIER: dict[str, Any] = {"deploymentRef": {"name": "topics"}, "label": "law", "threshold": 0.6}


@pytest.mark.parametrize(
    ("reply", "default", "fits"),
    [
        ({"prediction": "law", "confidence": 0.9}, False, True),
        ({"prediction": "law", "confidence": 0.5}, True, False),
        ({"prediction": "cooking"}, True, False),
        ({"prediction": "law"}, False, True),
        ({"prediction": 1}, True, True),
        ({"error": {"message": "boom"}}, True, True),
        ("garbage", False, False),
        (None, True, True),
    ],
)
async def test_a_classifier_chooses_the_rule_or_its_default_does(reply: Any, default: bool, fits: bool) -> None:
    calls: list[dict[str, Any]] = []

    async def classifies(request: web.Request) -> web.StreamResponse:
        calls.append(await request.json())
        assert request.path == "/api/v1/predict" and "Authorization" not in request.headers
        if reply is None:
            await asyncio.sleep(60)
        if isinstance(reply, dict) and "error" in reply:
            return web.json_response(reply, status=500)
        return web.Response(text=reply) if isinstance(reply, str) else web.json_response(reply)

    async with upstream(classifies) as topics, upstream(model_server) as models, gateway() as gate:
        classifier = CLASSIFIER | {"default": default, "timeoutMilliseconds": 200}
        rules = spec(
            rule("law", "large", classifier=classifier, headers=[{"name": "X-A", "exact": "1"}]), rest("small")
        )
        deployments = [
            deployment("prod/topics", topics.url),
            *(deployment(name, models.url) for name in (SMALL, LARGE)),
        ]
        gate.balancer.publish(table(deployments, PublicRoute("prod/chat", rules)))
        body = {
            "model": "chat",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 9000 + "?"}]}],
        }
        assert await served_by(gate, body) == ("small", "rest") and not calls, "another condition does not hold"
        expected = ("large", "law") if fits else ("small", "rest")
        assert await served_by(gate, body, headers={"X-A": "1", "Authorization": "Bearer x"}) == expected
        assert calls == [{"model": "topics", "input": {"text": "x" * 8191 + "?"}}]
        assert gate.outcomes() == {"ok": 2}


async def test_without_text_pods_or_places_a_classifier_has_its_default_and_at_most_four_are_called() -> None:
    calls = 0

    async def classifies(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        return web.json_response({"prediction": "other"})

    async with upstream(classifies) as topics, upstream(model_server) as models, gateway() as gate:
        six = [rule(f"r{n}", "large", classifier=CLASSIFIER | {"label": f"l{n}"}) for n in range(6)]
        targets = [deployment(name, models.url) for name in (SMALL, LARGE)]
        for url, body, expected in (
            (topics.url, {"prompt": "hello"}, 4),
            (topics.url, {"prompt": ["a", "b"]}, 0),
            (topics.url, {"prompt": "x" * (300 << 10)}, 0),
            ("", {"prompt": "hello"}, 0),
        ):
            deployments = [deployment("prod/topics", url), *targets]
            gate.balancer.publish(table(deployments, PublicRoute("prod/chat", spec(*six, rest("small")))))
            calls = 0
            assert await served_by(gate, {"model": "chat"} | body, path="/v1/completions") == ("small", "rest")
            assert calls == expected
        assert not gate.edge._forwarding.classifiers._places.used
