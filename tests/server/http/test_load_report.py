"""The header with the load of a server, for clients that ask for it."""

from dataclasses import dataclass

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from slipway_contracts.load_report import CACHE_USAGE, LOAD, LOAD_FORMAT, WAITING_REQUESTS, WAITING_TOKENS, read
from slipway_server.engine.client import EngineClient, QueueLimits
from slipway_server.http.load_report import report_load


@dataclass
class Prompt:
    known_tokens: int


@pytest.mark.parametrize("stream", [False, True])
async def test_the_load_is_reported_to_those_who_ask(stream: bool) -> None:
    engine = EngineClient(QueueLimits(8, 1000), 4, lambda step: None)
    engine._unstarted = {"a": Prompt(300), "b": Prompt(20)}  # type: ignore[dict-item]
    engine.kv_usage = 0.25

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse() if stream else web.Response(text="x")
        if stream:
            await response.prepare(request)
            await response.write(b"x")
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    report_load(app, engine)
    async with TestClient(TestServer(app)) as client:
        async with client.get("/", headers={LOAD_FORMAT: "text"}) as response:
            assert read(response.headers[LOAD]) == {CACHE_USAGE: 0.25, WAITING_REQUESTS: 2.0, WAITING_TOKENS: 320.0}
        for headers in ({}, {LOAD_FORMAT: "JSON"}):
            async with client.get("/", headers=headers) as response:
                assert LOAD not in response.headers
