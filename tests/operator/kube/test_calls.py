"""The long poll of each gateway: over real sockets, with gateways that start, stop, and send invalid answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slipway_operator.kube.errors import Unavailable
from slipway_operator.kube.reading import calls
from slipway_operator.kube.reading.gateways import Endpoint
from slipway_process.supervisor import Supervisor
from testkit.until import until_async


class GatewayStub:
    """A gateway that answers each question with the next of these."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.marks = list(answers), []

    async def answer(self, request: web.Request) -> web.Response:
        self.marks.append(request.query["since"])
        if not self.answers:
            await asyncio.sleep(60)
        response = self.answers.pop(0)
        return web.json_response(response) if isinstance(response, dict) else web.Response(status=response)


class Known:
    """The addresses of the gateways, in place of `Gateways`."""

    def __init__(self) -> None:
        self.urls: list[str] | None = []
        self.forgotten = 0

    async def endpoints(self) -> list[Endpoint]:
        if self.urls is None:
            raise Unavailable("away")
        return [Endpoint(url, url, ready=True) for url in self.urls]

    def forget(self) -> None:
        self.forgotten += 1


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "RETRY_S", "PAUSE_S"):
        monkeypatch.setattr(calls, name, 0.01)


@contextlib.asynccontextmanager
async def listening(known: Known, *namespaces: str) -> AsyncIterator[list[tuple[str, str]]]:
    received: list[tuple[str, str]] = []
    async with aiohttp.ClientSession() as session:
        tasks = Supervisor(lambda task: None)
        task = asyncio.create_task(calls.Calls(known, session, received.append, tasks, namespaces).run())  # type: ignore[arg-type]
        yield received
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def serving(gateway: GatewayStub) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/internal/calls", gateway.answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def test_calls_are_received_despite_errors_and_each_one_expires_cached_answers() -> None:
    first = GatewayStub({"mark": "a.1", "routes": ["default/chat"]}, 500, {"mark": [], "routes": 3}, 404)
    first.answers += [{"mark": "a.2", "routes": ["default/chat", "other/embed"]}]
    second = GatewayStub({"mark": "b.0", "routes": []})
    known = Known()
    async with serving(first) as one, serving(second) as two, listening(known) as received:
        known.urls = [one]
        await until_async(lambda: len(received) == 3)
        known.urls = None  # the API server is away: known gateways stay
        await asyncio.sleep(0.1)
        known.urls = [one, two]
        await until_async(lambda: second.marks == ["", "b.0"])
        assert received == [("default", "chat"), ("default", "chat"), ("other", "embed")]
        assert first.marks == ["", "a.1", "a.1", "a.1", "a.1", "a.2"]
        assert known.forgotten == 3, "each call, and that a gateway came"
        known.urls = [two]


async def test_calls_for_namespaces_of_other_operators_are_ignored() -> None:
    gateway = GatewayStub({"mark": "a.1", "routes": ["theirs/chat", "ours/chat", "nonsense"]})
    known = Known()
    async with serving(gateway) as url, listening(known, "ours") as received:
        known.urls = [url]
        await until_async(lambda: len(gateway.marks) == 2)
        assert received == [("ours", "chat")]
