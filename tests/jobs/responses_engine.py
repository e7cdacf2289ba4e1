"""A small engine with OpenAI's Responses API, which stores nothing, and a gateway that keeps conversations."""

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from openai import AsyncOpenAI

from devcluster.ports import reserve_port
from slipway_contracts.passes import PassKeys
from slipway_gateway.identity.tenants import KnownTenant
from slipway_jobs.__main__ import conversation_routes, conversation_store_of
from slipway_jobs.serving.app import public_app
from slipway_jobs.settings import JobsSettings
from slipway_jobs.store.database import Database
from slipway_jobs.telemetry import JobsMetrics
from slipway_process.sealing import Keyring
from tests.gateway import tenants
from tests.gateway.harness import Gateway, Upstream, gateway, upstream
from tests.jobs.world import KEY_A, KEY_B, TENANTS, JobsProcess, settings


@dataclass
class ResponsesEngine:
    """Its answer is a digest of all that it gets, so that it shows a context that differs.

    `seen`: items of its requests, as bytes. `context`: most items that it takes. `pause_s`: between the events of a
    stream. `reshapes`: changes a response before it is sent. `breaks`: the next stream ends before its last event.
    """

    seen: list[list[bytes]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    context: int = 1000
    pause_s: float = 0.0
    reshapes: Callable[[dict[str, Any]], dict[str, Any]] = dict
    breaks: bool = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert request.path == "/v1/responses", request.path
        items = body["input"]
        self.bodies.append(body)
        self.seen.append([json.dumps(item).encode() for item in items] if isinstance(items, list) else [])
        if body.get("previous_response_id") or body.get("conversation") or body.get("store"):
            return _error("unsupported_parameter", "Nothing is stored here.")
        if isinstance(items, list) and len(items) > self.context:
            return _error("context_length_exceeded", f"This model's maximum context length is {self.context} items.")
        response = self.reshapes(_response(body, answer_to(items)))
        if not body.get("stream"):
            return web.json_response(response)
        return await self._stream(request, response)

    async def _stream(self, request: web.Request, response: dict[str, Any]) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        events = list(_events(response))
        if self.breaks:
            self.breaks, events = False, events[:-1]
        for event in events:
            await out.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            await asyncio.sleep(self.pause_s)
        if events[-1]["type"] != "response.completed" and request.transport:
            request.transport.abort()
        return out


def answer_to(items: Any) -> str:
    """The answer to these items: one word that depends on all of them."""
    texts = [_text_of(item) for item in items] if isinstance(items, list) else [str(items)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def _text_of(item: dict[str, Any]) -> str:
    content = item.get("content", item.get("output", item.get("arguments", "")))
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    return f"{item.get('type')} {item.get('role')} {content}"


def _response(body: dict[str, Any], text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": f"msg_{uuid.uuid4().hex}", "status": "completed", "role": "assistant"}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "model": body["model"],
        "output": [message | {"content": [part]}],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage | details,
    }


def _events(response: dict[str, Any]) -> Sequence[dict[str, Any]]:
    begun = response | {"status": "in_progress", "output": [], "usage": None}
    [message] = response["output"]
    text, path = message["content"][0]["text"], {"item_id": message["id"], "output_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": message | {"content": []}},
        {
            "type": "response.content_part.added",
            **path,
            "content_index": 0,
            "part": message["content"][0] | {"text": ""},
        },
        *(
            {"type": "response.output_text.delta", **path, "content_index": 0, "delta": letter, "logprobs": []}
            for letter in text
        ),
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        {"type": "response.completed", "response": response},
    ]
    return [event | {"sequence_number": n} for n, event in enumerate(events)]


def _error(code: str, message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": "input", "code": code}
    return web.json_response({"error": error}, status=400)


@dataclass
class Talks:
    """A gateway with engines behind it, and the jobs process that keeps their conversations."""

    edge: Gateway
    engines: list[ResponsesEngine]
    urls: list[str]
    jobs: JobsProcess | None
    clients: dict[str, AsyncOpenAI]

    @property
    def process(self) -> JobsProcess:
        """The jobs process, where it is one of its own."""
        assert self.jobs
        return self.jobs

    @property
    def engine(self) -> ResponsesEngine:
        return self.engines[0]

    @property
    def client(self) -> AsyncOpenAI:
        return self.clients["team-a"]

    def turns(self, result: str) -> int:
        """Turns of conversations that ended so."""
        name = "slipway_gateway_conversation_turns_total"
        return int(self.edge.metrics.registry.get_sample_value(name, {"result": result}) or 0)


@contextlib.asynccontextmanager
async def talks(
    database_url: str,
    keys_file: str,
    folder: Path,
    *,
    known: Sequence[KnownTenant] = TENANTS,
    engines: int = 1,
    gateway_changes: dict[str, Any] | None = None,
    apart: bool = False,
    **changes: Any,
) -> AsyncIterator[Talks]:
    """`engines`: how many revisions there are; the first one has all requests. `changes`: of the jobs process.

    `apart`: it is a process of its own, which may be killed; else its port is served here, by the same code.
    """
    port = reserve_port()
    options: dict[str, Any] = {
        "auth_mode": "required",
        "jobs_url": f"http://127.0.0.1:{port}",
        "tenant_keys_file": keys_file,
        "conversations": True,
    }
    served = [ResponsesEngine() for _ in range(engines)]
    async with contextlib.AsyncExitStack() as stack:
        started: list[Upstream] = [await stack.enter_async_context(upstream(engine.answer)) for engine in served]
        edge = await stack.enter_async_context(gateway(known, tenants.PEPPER, **(options | (gateway_changes or {}))))
        urls = [one.url for one in started]
        edge.route(*((f"r{n + 1}", 100 if n == 0 else 0, [url]) for n, url in enumerate(urls)))
        given = settings(database_url, keys_file, edge.url, port=port, conversations="on", **changes)
        jobs = JobsProcess(given, folder / "jobs.log") if apart else None
        if jobs:
            await jobs.start()
            stack.push_async_callback(jobs.end)
        else:
            await stack.enter_async_context(served_here(given))
        clients = {
            name: await stack.enter_async_context(
                AsyncOpenAI(base_url=f"{edge.url}/v1", api_key=key, max_retries=0, timeout=30)
            )
            for name, key in (("team-a", KEY_A), ("team-b", KEY_B))
        }
        yield Talks(edge, served, urls, jobs, clients)


@contextlib.asynccontextmanager
async def served_here(given: dict[str, str]) -> AsyncIterator[None]:
    """The port of a jobs process with these settings, as its composition root makes it."""
    parsed = JobsSettings.parse([f"--{name}={value}" for name, value in given.items()])
    database = Database(parsed.database_url.get_secret_value(), erases=True)
    metrics, keyring = JobsMetrics(), Keyring(parsed.sealing_keys_file)
    store = conversation_store_of(parsed, database, keyring)
    routes = conversation_routes(database, store, metrics)
    app = public_app(routes, PassKeys(parsed.keys_file), metrics)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, parsed.host, parsed.port).start()
    try:
        yield
    finally:
        await runner.cleanup()
        database.close()
