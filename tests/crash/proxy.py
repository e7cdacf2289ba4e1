"""A reverse proxy in front of the API server that counts an operator's calls and interferes with chosen ones."""

import asyncio
import contextlib
import json
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from tests.crash.calls import AFTER, KILLS, Fault, Point, is_write, kind_of

# The client gives up after 10 s, kopf's lists after 30 s; a watch has longer and is not worth so long a wait.
HOLD_S = 35.0
HOLD_WATCH_S = 3.0
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host", "content-length"}
_REASONS = {
    Fault.CONFLICT: (409, "Conflict"),
    Fault.EXPIRED: (410, "Expired"),
    Fault.TOO_MANY: (429, "TooManyRequests"),
    Fault.BROKEN: (500, "InternalError"),
}


@dataclass(frozen=True)
class Done:
    """A write that the API server answered: when it was sent on and answered (monotonic seconds), and the status."""

    kind: str
    sent_s: float
    answered_s: float
    status: int


@dataclass
class Tap:
    """The connection of one operator: its calls so far, and the faults of later ones."""

    kill: Callable[[], Awaitable[None]]
    targets: dict[Point, Fault] = field(default_factory=dict)  # each happens once
    hit: list[tuple[Point, Fault]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    on_call: Callable[[str], None] = lambda kind: None
    on_answer: Callable[[str], None] = lambda kind: None
    is_cut: bool = False  # nothing of it reaches the API server, and no answer comes
    open: dict[int, web.Request] = field(default_factory=dict)  # calls in progress
    done: list[Done] = field(default_factory=list)

    def cut(self) -> None:
        """The network between this operator and the API server is gone, for calls and watches in progress too."""
        self.is_cut = True
        for request in list(self.open.values()):
            if request.transport:
                request.transport.abort()

    def arrives(self, kind: str) -> Fault | None:
        """Count a call; return its fault, if any."""
        self.counts[kind] += 1
        self.on_call(kind)
        point = Point(kind, self.counts[kind])
        fault = self.targets.pop(point, None)
        if fault:
            self.hit.append((point, fault))
        return fault


class Proxy:
    """One listener for many taps: the first part of the path names the caller."""

    def __init__(self, server: str, tls: ssl.SSLContext) -> None:
        self._server, self._tls = server, tls
        self.taps: dict[str, Tap] = {}
        self.url = ""

    async def __aenter__(self) -> "Proxy":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        # Half the size of a request body's limit at the API server; the operator sends nothing near it.
        application = web.Application(client_max_size=2**20)
        application.router.add_route("*", "/{tap}/{path:.*}", self._handle)
        # Without access log; and a cancelled handler ends the call at the API server too.
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        tap = self.taps[request.match_info["tap"]]
        path = "/" + request.match_info["path"]
        kind = kind_of(request.method, path, request.query, request.headers)
        body = await request.read()
        tap.open[id(request)] = request
        try:
            return await self._call(request, tap, path, kind, body)
        finally:
            tap.open.pop(id(request), None)

    async def _call(self, request: web.Request, tap: Tap, path: str, kind: str, body: bytes) -> web.StreamResponse:
        if tap.is_cut:
            await asyncio.sleep(HOLD_S)
            raise asyncio.CancelledError
        fault = tap.arrives(kind)
        if fault and fault not in AFTER:
            return await _interfere(request, tap, fault)
        sent_s = time.monotonic()
        async with await self._forward(request, path, body) as answer:
            if is_write(kind):
                tap.done.append(Done(kind, sent_s, time.monotonic(), answer.status))
            if fault:
                await answer.read() if not kind.startswith("WATCH") else None
                return await _interfere(request, tap, fault, kind)
            streamed = await _pass_on(request, answer)
        tap.on_answer(kind)
        return streamed

    async def _forward(self, request: web.Request, path: str, body: bytes) -> aiohttp.ClientResponse:
        query = f"?{request.query_string}" if request.query_string else ""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        sent = self._session.request(request.method, self._server + path + query, headers=headers, data=body or None)
        return await sent


async def _pass_on(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    streamed = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
    with contextlib.suppress(ConnectionResetError):  # the operator died meanwhile
        await streamed.prepare(request)
        async for chunk in answer.content.iter_any():
            await streamed.write(chunk)
        await streamed.write_eof()
    return streamed


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


async def _interfere(request: web.Request, tap: Tap, fault: Fault, kind: str = "") -> web.StreamResponse:
    if fault in _REASONS:
        return _refusal(fault)
    if fault in KILLS:
        await tap.kill()
    elif fault is Fault.TIMEOUT:
        await asyncio.sleep(HOLD_WATCH_S if kind.startswith("WATCH") else HOLD_S)
    if request.transport:
        request.transport.abort()
    raise asyncio.CancelledError


def _refusal(fault: Fault) -> web.Response:
    code, reason = _REASONS[fault]
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"injected: {reason}",
        "reason": reason,
        "code": code,
    }
    headers = {"Retry-After": "1"} if fault is Fault.TOO_MANY else {}
    return web.Response(status=code, text=json.dumps(status), content_type="application/json", headers=headers)
