"""A real gateway sends prompts where their beginning was, and counts for the judge which ones a cache had."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from slipway_gateway.balancing.endpoint_picker import LeastLoad, PrefixAffinity
from slipway_gateway.balancing.prompt_blocks import PromptBlocks, prompt_of
from slipway_gateway.routing.table import Route
from slipway_gateway.wire import request_fields
from testkit.until import until_async
from tests.support.report import route_reports

from .harness import Gateway, Upstream, echo, gateway, table, upstream
from .test_judged import end, saying

SYSTEM = "You answer questions on the handbook of a shop. " * 60  # some 2,900 bytes
WORDS = [f"word{n}" for n in range(200)]


def chat(question: str, system: str = SYSTEM, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": "chat", "messages": messages} | fields


def prompt(body: dict[str, Any]) -> PromptBlocks:
    """The blocks of a chat completion without a tenant."""
    route = Route("default/chat", "uid", "chat", prefix_affinity=True)
    # As aiohttp's client writes it.
    found = prompt_of("/v1/chat/completions", request_fields.parse(json.dumps(body).encode()), route, "", "")
    assert found is not None
    return found


def waiting(gate: Gateway, body: dict[str, Any]) -> Mapping[str, int]:
    """Bytes of prompts that wait at endpoints."""
    policy = gate.balancer.prefixes.picker(prompt(body), LeastLoad())
    assert isinstance(policy, PrefixAffinity)
    return policy.waiting


def publish(gate: Gateway, *revisions: tuple[str, int, list[str]], affine: bool = True) -> None:
    gate.generation += 1
    found = table(gate.generation, *revisions)
    route = replace(found.routes["default/chat"], prefix_affinity=affine)
    gate.balancer.publish(replace(found, routes={route.name: route}, models={"chat": route}))


@asynccontextmanager
async def three(*, affine: bool = True, **settings: Any) -> AsyncIterator[tuple[Gateway, list[Upstream]]]:
    async with upstream(echo) as a, upstream(echo) as b, upstream(echo) as c, gateway(**settings) as gate:
        publish(gate, ("r1", 100, [a.url, b.url, c.url]), affine=affine)
        yield gate, [a, b, c]


async def ask(gate: Gateway, *bodies: dict[str, Any], path: str = "/v1/chat/completions", **headers: str) -> None:
    for body in bodies:
        async with await gate.post(body, path, headers=headers) as answer:
            assert answer.status == 200
            await answer.read()


def served_by(servers: list[Upstream]) -> list[int]:
    return [len(server.seen) for server in servers]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", lambda n: chat(f"question {n}")),
        ("/v1/completions", lambda n: {"model": "chat", "prompt": f"{SYSTEM}{n}"}),
        ("/v1/responses", lambda n: {"model": "chat", "instructions": SYSTEM, "input": f"{n}"}),
        ("/v1/messages", lambda n: {"model": "chat", "max_tokens": 5, "system": SYSTEM, "messages": [
            {"role": "user", "content": f"{n}"}]}),
    ],
    ids=["chat", "completions", "responses", "messages"],
)  # fmt: skip
async def test_prompts_with_one_beginning_go_to_one_endpoint(path: str, body: Any) -> None:
    async with three() as (gate, servers):
        for n in range(12):
            async with await gate.post(body(n), path, headers={"X-Session-Id": f"s{n}"}) as answer:
                await answer.read()
        assert sorted(served_by(servers)) == [0, 0, 12]


async def test_metrics_have_what_was_seen_and_what_was_new() -> None:
    async with three() as (gate, _):
        await ask(gate, chat("first"), chat("second"))

        def value(name: str, **labels: str) -> float:
            return gate.metrics.registry.get_sample_value(f"slipway_gateway_{name}", labels) or 0.0

        of_route = {"model": "chat", "revision": "r1"}
        seen, new = (value("prompt_bytes_total", **of_route, seen=seen) for seen in ("yes", "no"))
        assert seen == 2816.0  # eleven blocks of 256 bytes
        assert new > len(SYSTEM)
        assert value("prefix_blocks") == 11.0


async def test_without_affinity_sessions_spread() -> None:
    async with three(affine=False) as (gate, servers):
        for n in range(30):
            await ask(gate, chat("question"), **{"X-Session-Id": f"s{n}"})
        assert min(served_by(servers)) >= 2


async def test_different_beginnings_spread() -> None:
    async with three() as (gate, servers):
        for n in range(30):
            await ask(gate, chat("question", f"{n} {SYSTEM}"))
        assert min(served_by(servers)) >= 2


async def test_tenants_share_no_cache_and_so_no_affinity() -> None:
    async with three() as (gate, servers):
        for n in range(30):
            await ask(gate, chat("question"), Authorization=f"Bearer sk-tenant-{n}")
        assert min(served_by(servers)) >= 2


async def test_embeddings_have_no_prompt() -> None:
    async with three() as (gate, _):
        await ask(gate, {"model": "chat", "input": SYSTEM}, path="/v1/embeddings")
        assert gate.balancer.prefixes.blocks == 0


async def test_an_endpoint_with_long_prompts_ahead_is_passed_over() -> None:
    """Its cache has the beginning, but a prompt as long waits there already: the other one computes it as soon."""
    release = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        if b"hold" in await request.read():
            await release.wait()
        return web.json_response({})

    async with upstream(slow) as a, upstream(slow) as b, gateway() as gate:
        publish(gate, ("r1", 100, [a.url, b.url]))
        await ask(gate, chat("first"))
        first = a if a.seen else b
        holding = asyncio.create_task(ask(gate, chat(f"hold {SYSTEM}" * 3)))
        await until_async(lambda: len(first.seen) == 2)
        await ask(gate, chat("second"))
        assert len(first.seen) == 2
        release.set()
        await holding
        await ask(gate, chat("third"))
        assert len(first.seen) + len((b if first is a else a).seen) == 4
        assert waiting(gate, chat("third")) == {}


async def test_a_version_comes_before_a_prefix() -> None:
    """The split decides: a canary gets its share, whatever the caches of the other version have."""
    async with three() as (gate, (a, b, c)):
        publish(gate, ("canary", 30, [c.url]), ("stable", 70, [a.url, b.url]))
        for n in range(60):
            await ask(gate, chat("question"), **{"X-Session-Id": f"s{n}"})
        assert 8 <= len(c.seen) <= 28
        assert sorted((len(a.seen), len(b.seen)))[0] == 0


async def test_a_restarted_endpoint_has_an_empty_cache() -> None:
    async with three() as (gate, servers):
        await ask(gate, chat("first"))
        holder = next(server for server in servers if server.seen)
        await holder.stop()
        await ask(gate, chat("second"))
        assert gate.balancer.prefixes.blocks > 0
        assert not gate.balancer.prefixes.is_cached(prompt(chat("first")), holder.url)


async def test_the_judge_compares_cached_prompts_with_cached_ones() -> None:
    words = saying({"choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": None}]}, end("stop"))
    async with upstream(words) as server, gateway() as gate:
        publish(gate, ("stable", 50, [server.url]), ("canary", 50, [server.url]))
        for n in range(20):
            await ask(gate, chat(f"question {n}", stream=True), **{"X-Session-Id": f"s{n}"})
        (sample,) = route_reports(gate.balancer)["default/chat"]["samples"]
        strata = Counter[str]()
        for revision in sample["revisions"].values():
            for name, counts in revision["slow"]["ttft"].items():
                strata[name] += sum(counts)
        # Both versions have the same endpoint here: the first prompt fills its cache.
        assert strata == {"b<4k,stream": 1, "b<4k,stream,cached": 19}


async def test_pods_report_their_load_and_clients_do_not_get_it() -> None:
    async def loaded(request: web.Request) -> web.StreamResponse:
        headers = {"Endpoint-Load-Metrics": "TEXT named_metrics.waiting_prompt_tokens=9000"}
        return web.json_response({}, headers=headers)

    async with upstream(loaded) as server, upstream(echo) as other, gateway() as gate:
        publish(gate, ("r1", 100, [server.url]))
        async with await gate.post(chat("first"), headers={"Endpoint-Load-Metrics-Format": "JSON"}) as answer:
            assert "Endpoint-Load-Metrics" not in answer.headers
        assert server.seen[0].headers.getall("Endpoint-Load-Metrics-Format") == ["TEXT"]
        publish(gate, ("r1", 100, [server.url, other.url]))
        await ask(gate, chat("second"))
        assert len(other.seen) == 1
        publish(gate, ("r1", 100, [server.url]), affine=False)
        await ask(gate, chat("third"))
        assert "Endpoint-Load-Metrics-Format" not in server.seen[-1].headers
