"""A model whose responses name their revision and their request, and a gateway with a cache in front of it."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from aiohttp import web

from slipway_contracts.route_table import ResponseCache
from tests.gateway.harness import Gateway, Upstream, gateway, table, upstream

HOUR = ResponseCache(3600)
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def chat(question: str = "why?", **fields: Any) -> dict[str, Any]:
    """A request with one response."""
    return {"model": "chat", "messages": [{"role": "user", "content": question}], "temperature": 0} | fields


class Model:
    """Answers chats with its name and what was wanted. `gate`: responses wait for it."""

    def __init__(self, name: str = "r1", finish: str | None = "stop") -> None:
        self.name, self.finish = name, finish
        self.computed = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.headers: dict[str, str] = {}
        self.status = 200

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.computed += 1
        wanted = await request.json()
        await self.gate.wait()
        text = f"{self.name} on {wanted['messages'][-1]['content']}"
        if wanted.get("stream"):
            return await self._stream(request, text, wanted)
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": self.finish}
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": 1, "model": "chat"}
        return web.json_response(head | {"choices": [choice], "usage": USAGE}, headers=self.headers)

    async def _stream(self, request: web.Request, text: str, wanted: dict[str, Any]) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await out.prepare(request)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion.chunk", "created": 1, "model": "chat"}
        for word in text.split():
            await self._event(out, head | {"choices": [{"index": 0, "delta": {"content": word}}]})
        if self.finish:
            await self._event(out, head | {"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]})
        if (wanted.get("stream_options") or {}).get("include_usage"):
            await self._event(out, head | {"choices": [], "usage": USAGE})
        await out.write(b"data: [DONE]\n\n")
        return out

    async def _event(self, out: web.StreamResponse, event: dict[str, Any]) -> None:
        await out.write(b": keep\n\ndata: %s\n\n" % json.dumps(event).encode())


def publish(
    gate: Gateway, *revisions: tuple[str, int, list[str]], cache: ResponseCache | None = HOUR, **more: Any
) -> None:
    gate.generation += 1
    found = table(gate.generation, *revisions)
    route = replace(found.routes["default/chat"], cache=cache, **more)
    gate.balancer.publish(replace(found, routes={route.name: route}, models={"chat": route}))


@asynccontextmanager
async def cached(
    model: Any = None, cache: ResponseCache | None = HOUR, **settings: Any
) -> AsyncIterator[tuple[Gateway, Upstream]]:
    async with upstream(model or Model()) as server, gateway(**settings) as gate:
        publish(gate, ("r1", 100, [server.url]), cache=cache)
        yield gate, server


class Answer:
    """A response as its client has it."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body
        self.cache = headers.get("X-Slipway-Cache")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return str(self.json["choices"][0]["message"]["content"])

    @property
    def events(self) -> list[Any]:
        lines = [line[6:] for line in self.body.decode().splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


async def ask(gate: Gateway, body: Any = None, path: str = "/v1/chat/completions", **headers: str) -> Answer:
    """`headers`: with underscores in the place of hyphens."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with await gate.post(chat() if body is None else body, path, headers=sent) as answer:
        return Answer(answer.status, answer.headers.copy(), await answer.read())


def metric(gate: Gateway, name: str, **labels: str) -> float:
    return gate.metrics.registry.get_sample_value(f"slipway_gateway_{name}", labels) or 0.0
