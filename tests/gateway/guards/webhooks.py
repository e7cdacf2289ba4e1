"""A webhook server and a gateway whose route has it as a guard, on real sockets of loopback."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

from aiohttp import web

from slipway_contracts.guards import GuardSpec, GuardWebhook, GuardWindow
from slipway_gateway.guards.webhook import GuardSecrets, WebhookClient
from slipway_gateway.identity.tenants import KnownTenant
from slipway_gateway.routing.table import RouteTable
from slipway_process.network.listed_hosts import ListedHosts

from ..harness import Gateway, Handler, Upstream, gateway, table, upstream
from ..loopback import Loopback
from ..tenants import PEPPER

HOST = "guard.test"
BOTH = ("Input", "Output")
CHAT = "/v1/chat/completions"


def spans(text: str, word: str) -> list[tuple[int, int]]:
    found, at = [], text.find(word)
    while at >= 0:
        found.append((at, at + len(word)))
        at = text.find(word, at + len(word))
    return found


class Webhook:
    """Redacts SECRET and blocks VETO. `calls`: what it got. `keys`: Authorization headers."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.calls: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.delay_s = delay_s

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        call = json.loads(await request.read())
        self.calls.append(call)
        self.keys.append(request.headers.get("Authorization"))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if any("VETO" in text["text"] for text in call["texts"]):
            return web.json_response({"action": "block", "reason": "it says\n\x1b[31mVETO"})
        found = [
            {"path": text["path"], "start": start, "end": end, "replacement": "###"}
            for text in call["texts"]
            for start, end in spans(text["text"], "SECRET")
        ]
        return web.json_response({"action": "redact", "spans": found} if found else {"action": "allow"})

    @property
    def texts(self) -> list[str]:
        return [text["text"] for call in self.calls for text in call["texts"]]


def guard(url: str, stages: Iterable[str] = BOTH, **fields: Any) -> GuardSpec:
    """A guard with a webhook at the port of `url`."""
    webhook = GuardWebhook(f"http://{HOST}:{url.rpartition(':')[2]}/guard", fields.pop("secret_ref", None))
    fields.setdefault("window", GuardWindow(8, 200))
    return GuardSpec(fields.pop("name", "words"), tuple(stages), webhook=webhook, timeout_milliseconds=2000, **fields)


def guarded(guards: Iterable[GuardSpec], *revisions: tuple[str, int, list[str]], **changes: Any) -> RouteTable:
    """A table whose only route has these guards."""
    shown = table(1, *revisions)
    (route,) = shown.routes.values()
    route = replace(route, guards=tuple(guards), **changes)
    return RouteTable({route.name: route}, {route.model: route}, shown.endpoints)


def reach_loopback(gate: Gateway, folder: str = "") -> None:
    """Lets the gateway call HOST on this machine, which no setting of it allows."""
    hosts = ListedHosts((HOST,), loopback=True)
    gate.edge._forwarding.guards._webhooks = WebhookClient(hosts, GuardSecrets(folder), 64, Loopback())


@contextlib.asynccontextmanager
async def guarded_gateway(
    model: Handler,
    hook: Handler,
    stages: Iterable[str] = BOTH,
    *,
    tenants: Iterable[KnownTenant] = (),
    fields: dict[str, Any] | None = None,
    route: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Gateway, Upstream, Upstream]]:
    """A gateway, a model server and a webhook server."""
    async with (
        upstream(model) as server,
        upstream(hook) as webhook,
        gateway(tenants=tenants, pepper=PEPPER, **settings) as gate,
    ):
        reach_loopback(gate)
        one = guard(webhook.url, stages, **(fields or {}))
        gate.balancer.publish(guarded([one], ("r1", 100, [server.url]), **(route or {})))
        yield gate, server, webhook


def chat(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": text} for text in texts], **fields}


def replying(text: str) -> Handler:
    """A model server with one whole response."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": [{"token": text}]}}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "model": "chat", "choices": [choice], "usage": {}}
        )

    return answer


def streaming(
    tokens: Iterable[str],
    gap_s: float = 0.0,
    sent: list[str] | None = None,
    waits: dict[str, asyncio.Event] | None = None,
) -> Handler:
    """A model server that streams tokens; `sent` gets those that went. A token in `waits` comes after its event."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for token in tokens:
            if waits and token in waits:
                await waits[token].wait()
            chunk = {"choices": [{"index": 0, "delta": {"content": token}}]}
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            if sent is not None:
                sent.append(token)
            if gap_s:
                await asyncio.sleep(gap_s)
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer


def text_of(stream: bytes) -> str:
    """The text of a stream of chat chunks."""
    data = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return "".join(
        choice["delta"].get("content", "") for event in map(json.loads, data) for choice in event.get("choices", ())
    )
