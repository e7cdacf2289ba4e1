"""Engines that know no tenants: the fields by which gateways keep the cached prompts of tenants apart there."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.route_table import Backend
from slipway_gateway.routing.table import RevisionEndpoints, Route, build
from slipway_gateway.wire.isolation import isolation_of, members_for
from slipway_gateway.wire.request_fields import parse

from . import tenants as known
from .harness import Gateway, Upstream, gateway, upstream

pytestmark = [pytest.mark.finding("F13"), pytest.mark.attack_class(19)]

KEY, SECOND_KEY, OTHER = known.make_key(), known.make_key("second"), known.make_key("other1")
TENANTS = [known.tenant("team-a", KEY, SECOND_KEY), known.tenant("team-b", OTHER)]
PROMPT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}


async def ok(_: web.Request) -> web.StreamResponse:
    return web.json_response({"usage": {"prompt_tokens": 1, "completion_tokens": 1}})


def publish(edge: Gateway, *backends: tuple[str, int, str, list[str]]) -> None:
    """`backends`: revision, weight, engine and URLs of each."""
    edge.generation += 1
    split = tuple(Backend(revision, weight, engine=engine) for revision, weight, engine, _ in backends)
    route = Route("default/chat", "uid", "chat", "2026-01-01T00:00:00Z", edge.generation, "salt", split)
    ends = [RevisionEndpoints("default/chat", revision, tuple(urls)) for revision, _, _, urls in backends]
    edge.balancer.publish(build([route], ends))


@asynccontextmanager
async def serving(engine: str, **changes: Any) -> AsyncIterator[tuple[Gateway, Upstream]]:
    async with upstream(ok) as server, gateway(tenants=TENANTS, pepper=known.PEPPER, **changes) as edge:
        publish(edge, ("r1", 100, engine, [server.url]))
        yield edge, server


async def sent(edge: Gateway, server: Upstream, key: str, body: Any = None, path: str = "/v1/chat/completions") -> Any:
    """The body that the engine gets, as its parser reads it."""
    async with await edge.post(PROMPT if body is None else body, path, headers=known.bearer(key)) as answer:
        assert answer.status == 200, await answer.text()
    return json.loads(server.bodies[-1])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_each_tenant_has_a_salt_of_its_own_at_engines_without_tenants(engine: str) -> None:
    async with serving(engine) as (edge, server):
        first, second, other = [await sent(edge, server, key) for key in (KEY, SECOND_KEY, OTHER)]
        assert first == second and first["cache_salt"] != other["cache_salt"]
        assert {name: first[name] for name in PROMPT} == PROMPT and first.keys() - PROMPT.keys() == {"cache_salt"}
        assert "team" not in first["cache_salt"] and len(first["cache_salt"]) == 64
        assert first["cache_salt"] not in str(server.seen[-1].headers)


@pytest.mark.parametrize("engine", ["", "slipway", "custom"])
async def test_bodies_for_other_engines_stay_as_they_are(engine: str) -> None:
    body = json.dumps(PROMPT | {"cache_salt": "mine", "priority": -5}).encode()
    async with serving(engine) as (edge, server):
        await sent(edge, server, KEY, body)
        assert server.bodies == [body]


async def test_requests_without_a_tenant_stay_as_they_are() -> None:
    body = json.dumps(PROMPT).encode()
    async with upstream(ok) as server, gateway() as edge:
        publish(edge, ("r1", 100, "vllm", [server.url]))
        async with await edge.post(body) as answer:
            assert answer.status == 200
        assert server.bodies == [body]


@pytest.mark.parametrize("twice", [False, True])
async def test_a_client_divides_its_own_cache_and_reaches_no_other(twice: bool) -> None:
    """With the other tenant's salt in its own request, also where the name is there twice or escaped."""
    async with serving("vllm") as (edge, server):
        theirs = (await sent(edge, server, OTHER))["cache_salt"]
        plain = (await sent(edge, server, KEY))["cache_salt"]
        text = json.dumps(PROMPT | {"cache_salt": theirs, "other": theirs})
        text = text.replace('"other"', '"cache\\u005fsalt"' if twice else '"user"')
        mine = (await sent(edge, server, KEY, text.encode()))["cache_salt"]
        assert len({theirs, plain, mine}) == 3


@pytest.mark.parametrize(
    ("requested", "given"),
    [(-50, -10), (-5, -5), (7, 7), (0, 0), ("-50", -10), (-5.5, -10), (True, -10), ([-50], -10), (-(10**30), -10)],
)
async def test_priority_at_vllm_is_within_the_limit(requested: Any, given: int) -> None:
    async with serving("vllm", priority_limit=-10) as (edge, server):
        assert (await sent(edge, server, KEY, PROMPT | {"priority": requested}))["priority"] == given


async def test_sglang_gets_no_priority_of_clients() -> None:
    async with serving("sglang") as (edge, server):
        assert (await sent(edge, server, KEY, PROMPT | {"priority": 99}))["priority"] is None


async def test_an_engine_is_that_of_the_endpoint_not_of_the_route() -> None:
    """A canary from slipway-server to vLLM, and one that replaces vLLM."""
    async with upstream(ok) as stable, upstream(ok) as canary, gateway(tenants=TENANTS, pepper=known.PEPPER) as edge:
        publish(edge, ("r1", 50, "", [stable.url]), ("r2", 50, "vllm", [canary.url]))
        for number in range(40):
            async with await edge.post(
                PROMPT | {"user": f"u{number}"}, headers=known.bearer(KEY) | {"x-session-id": f"{number}"}
            ):
                pass
        assert stable.bodies and canary.bodies
        assert not any("cache_salt" in json.loads(body) for body in stable.bodies)
        assert all("cache_salt" in json.loads(body) for body in canary.bodies)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"])
async def test_all_endpoints_that_compute_have_the_salt(path: str) -> None:
    body = {"model": "chat", "max_tokens": 5, "prompt": "a", "input": "a", "messages": PROMPT["messages"]}
    async with serving("vllm") as (edge, server):
        async with await edge.post(body, path, headers=known.bearer(KEY)) as answer:
            await answer.read()
        assert len(json.loads(server.bodies[-1])["cache_salt"]) == 64


async def test_a_long_body_is_sent_without_a_copy_and_whole() -> None:
    body = PROMPT | {"messages": [{"role": "user", "content": "word " * 50_000}]}
    async with serving("vllm") as (edge, server):
        found = await sent(edge, server, KEY, body)
        assert found["messages"] == body["messages"] and "cache_salt" in found


async def test_gateways_of_a_release_give_the_same_salt_and_other_releases_another(tmp_path: Path) -> None:
    """By the keys of the release: whoever knows a tenant's name cannot compute it."""
    salts = []
    for number, key in enumerate(("a", "a", "b")):
        keys = tmp_path / f"keys-{number}.json"
        keys.write_text(
            json.dumps({"keys": [{"id": "k1", "key": base64.b64encode(key.encode() * 32).decode(), "from": 1.0}]})
        )
        async with serving("vllm", tenant_keys_file=str(keys)) as (edge, server):
            salts.append((await sent(edge, server, KEY))["cache_salt"])
    assert salts[0] == salts[1] != salts[2]


def test_a_shadow_uses_no_cache_of_a_tenant() -> None:
    """A mirrored copy is no request of the tenant: what it left in the cache would tell of it."""
    of_tenant = isolation_of(parse(json.dumps(PROMPT).encode()), "team-a", "default/chat", 0)
    assert of_tenant.of_shadow().tenant not in ("team-a", "")
    assert members_for("other", "/v1/completions", "s", of_tenant) == b""
