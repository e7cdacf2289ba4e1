"""Requests for public names of ModelRoutes in the fast lane: routed, answered and counted as by Python."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from slipway_contracts.route_table import ResponseCache
from slipway_gateway.routing.public_names import PublicRoute
from slipway_gateway.routing.table import RouteTable
from slipway_plane import NATIVE, WHY_MISSING
from testkit.until import until_async

from . import harness, tenants
from .harness import Gateway, Upstream, upstream
from .test_fast_lane import PATH, answer, counted, fast, reasons, recounts, seen_by, shown
from .test_model_routes import LARGE, SMALL, deployment, rest, rule, spec, table, to

pytestmark = pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING)

ASK = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
GOLD = {"headers": [{"name": "X-Tier", "exact": "gold"}]}
KEY = tenants.make_key("k1First")


def published(server: Upstream, *routes: PublicRoute, **changes: Any) -> RouteTable:
    """Two deployments at one server. `changes`: of both of their routes."""
    listed = [deployment(name, server.url) for name in (SMALL, LARGE)]
    return table([(replace(route, **changes), endpoints) for route, endpoints in listed], *routes)


def chat(*rules: dict[str, Any], **fields: Any) -> PublicRoute:
    return PublicRoute("prod/chat", spec(*rules, **fields))


def passed(gate: Gateway) -> dict[str, float]:
    """Requests by rule."""
    gate.metrics.render()
    return {
        f"{sample.labels['model_route']} {sample.labels['rule']}": sample.value
        for family in gate.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "slipway_gateway_model_route_requests_total"
    }


@contextlib.asynccontextmanager
async def lanes(routes: list[PublicRoute], **changes: Any) -> AsyncIterator[tuple[Gateway, Gateway, Upstream]]:
    """A gateway in Python alone, one with the fast lane, both with these ModelRoutes, and the server of all models."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(upstream(answer))
        gates = [await stack.enter_async_context(harness.gateway(plane=plane)) for plane in ("off", "required")]
        for gate in gates:
            gate.balancer.publish(published(server, *routes, **changes))
        yield gates[0], gates[1], server


RULES = (
    rule("gold", "large", headers=[{"name": "X-Tier", "exact": "gold"}, {"name": "X-App", "prefix": "ide-"}]),
    rule("tools", "large", hasTools=True, promptBytes={"max": 200}),
    rule("pictures", "large", hasImages=True),
    rule("code", "large", hasCode=True, promptTokens={"min": 2}),
    rule("long", "large", promptTokens={"min": 100, "max": 5000}),
    {"name": "halves", "backendRefs": to("small", "large")},
)


async def test_rules_are_followed_alike_and_counted_once_in_both_lanes() -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    requests: list[tuple[dict[str, Any], dict[str, str]]] = [
        (ASK, {"X-Tier": "gold", "X-App": "ide-1"}), (ASK, {"X-Tier": "gold"}), (ASK | {"tools": [{"type": "f"}]}, {}),
        (ASK | {"tools": []}, {}), (ASK | {"messages": image}, {}), (ASK | {"messages": [{"content": "a ```py"}]}, {}),
        (ASK | {"messages": [{"content": "x" * 400}]}, {}), (ASK | {"model": "gpt"}, {}),
        *((ASK, {"X-Session-Id": f"s{n}"}) for n in range(20)),
    ]  # fmt: skip
    async with lanes([chat(*RULES, aliases=["gpt"])]) as (python, both, server):
        for body, headers in requests:
            made = []
            for gate in (python, both):
                answered = await gate.post(body, headers={"X-Session-Id": "s", **headers})
                made.append((answered.status, shown(answered), await answered.read(), seen_by(server)))
            assert made[0] == made[1]
            assert made[0][1]["x-slipway-route"] in {entry["name"] for entry in RULES}
        await until_async(lambda: fast(both) == len(requests))
        assert reasons(both) == {} and counted(python) == counted(both)
        assert passed(python) == passed(both) and len(passed(both)) == len(RULES)


async def test_a_chain_is_followed_to_its_end_and_each_of_its_rules_is_counted() -> None:
    chain = [chat({"name": "on", "backendRefs": [{"name": "more", "kind": "ModelRoute"}]})]
    chain.append(PublicRoute("prod/more", spec(rule("gold", "large", **GOLD), rest("small"))))
    async with lanes(chain) as (_, gate, _):
        answered = await gate.post(ASK, headers={"X-Tier": "gold"})
        assert answered.headers["X-Slipway-Route"] == "on, gold"
        await until_async(lambda: fast(gate) == 1)
        assert passed(gate) == {"prod/chat on": 1, "prod/more gold": 1}


@pytest.mark.parametrize(
    ("route", "headers", "reason"),
    [
        (chat(rule("timed", "large", time={"start": "00:00", "end": "23:58"}, **GOLD), rest("small")), {}, ""),
        (
            chat(rule("timed", "large", time={"start": "00:00", "end": "23:58"}, **GOLD), rest("small")),
            {"X-Tier": "gold"},
            "model_route",
        ),
        (chat(rest("small"), sampling={"caps": {"maxTokens": 5}}), {}, "model_route"),
        (chat(rest("small"), responseModel="Public"), {}, "model_route"),
        (chat({**rest("small"), "fallback": [{"name": "large"}]}), {}, "model_route"),
        (chat(rest("gone")), {}, "model_route"),
        (chat(rest("small", namespace="other")), {}, "model_route"),
        (chat(rule("gold", "large", **GOLD)), {}, "model_route"),
        (PublicRoute("prod/chat", spec({"name": "r", "backendRefs": [{"name": "chat", "kind": "ModelRoute"}]})), {},
         "model_route"),
    ],
)  # fmt: skip
async def test_python_has_what_the_lane_does_not_know(route: PublicRoute, headers: dict[str, str], reason: str) -> None:
    async with lanes([route]) as (python, gate, _):
        made = []
        for one in (python, gate):
            answered = await one.post(ASK, headers=headers)
            made.append((answered.status, shown(answered), await answered.read()))
        assert made[0] == made[1]
        await until_async(lambda: passed(gate) == passed(python))
        assert reasons(gate) == ({reason: 1} if reason else {})


async def test_what_the_lane_has_sent_stays_with_its_deployment_and_its_rules() -> None:
    """Python goes on with a slow one, and another table with other rules is in force by then."""
    async with lanes([chat(rest("small"))]) as (_, gate, server):
        sent = asyncio.create_task(gate.post(ASK, headers={"x-want": "slow"}))
        await until_async(lambda: len(server.seen) == 1)
        gate.balancer.publish(published(server, chat({**rest("large"), "name": "other"})))
        answered = await sent
        assert answered.headers["X-Slipway-Route"] == "rest" and len(server.seen) == 1
        assert answered.headers["X-Slipway-Revision"] == "r-prod-small"
        await until_async(lambda: gate.outcomes() == {"ok": 1})
        assert (passed(gate), reasons(gate)) == ({"prod/chat rest": 1}, {"slow": 1})


async def test_a_kept_response_names_the_rule_of_each_request() -> None:
    cached = ResponseCache(ttl_seconds=3600)
    one = chat(rule("gold", "small", **GOLD), rest("small"))
    async with lanes([one], cache=cached) as (_, gate, server):
        named = []
        for n in range(6):
            body = {**ASK, "temperature": 0}
            answered = await gate.post(body, headers={"X-Session-Id": "s", **({"X-Tier": "gold"} if n == 5 else {})})
            named.append((answered.headers["X-Slipway-Route"], answered.headers["X-Slipway-Cache"]))
        assert named == [("rest", "miss"), *[("rest", "hit")] * 4, ("gold", "hit")] and len(server.seen) == 1
        assert fast(gate) >= 2
        assert passed(gate) == {"prod/chat rest": 5, "prod/chat gold": 1}


@pytest.mark.parametrize(
    ("models", "status"),
    [(("chat", "large"), 200), (("chat",), 404), (("large",), 404), (("*",), 200), (("chat", "small"), 404)],
)
async def test_a_tenant_needs_both_names_and_is_known_to_rules(models: tuple[str, ...], status: int) -> None:
    known = {"tenants": (tenants.tenant("gold-1", KEY, models=models),), "pepper": tenants.PEPPER}
    one = chat(rule("gold", "large", tenants=["gold-*"]), rest("small"))
    async with upstream(answer) as server, harness.gateway(plane="required", auth_mode="required", **known) as gate:
        gate.balancer.publish(published(server, one))
        answered = await gate.post(ASK, headers=tenants.bearer(KEY))
        assert answered.status == status
        await until_async(lambda: fast(gate) == (status == 200))
        assert answered.headers.get("X-Slipway-Route") == ("gold" if status == 200 else None)


async def test_rules_are_followed_again_in_a_recount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.fast_lane.lane.RECOUNT_ONE_IN", 1)
    async with lanes([chat(*RULES)]) as (_, gate, _):
        for n in range(10):
            headers = {"X-Tier": "gold", "X-App": "ide-"} if n % 2 else {"X-Session-Id": f"s{n}"}
            await (await gate.post(ASK, headers=headers)).read()
        await until_async(lambda: recounts(gate) == {"same": 10})
        monkeypatch.setattr("slipway_gateway.fast_lane.recount._follows", lambda *about: False)
        await (await gate.post(ASK)).read()
        await until_async(lambda: recounts(gate) == {"same": 10, "rules": 1})


async def test_a_public_name_in_a_path_is_pythons() -> None:
    async with lanes([chat(rest("small"))]) as (_, gate, _):
        answered = await gate.post({"rows": [[1]]}, "/v2/models/chat/infer")
        assert answered.status == 200 and reasons(gate) == {"model_path": 1}
        assert (await gate.post(ASK, PATH)).status == 200
