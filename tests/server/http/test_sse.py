"""Event streams on the wire: comments while there is no event, and how an error is sent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from zlib import crc32

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slipway_process.serving.errors import HttpError, invalid
from slipway_server.http.responses import sse
from slipway_server.http.responses.resume import Identity, Resume, StreamPosition

Events = Callable[[], AsyncIterator[Any]]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.01)


class Answering:
    """Serves one event stream."""

    def __init__(self, events: Events, progress: StreamPosition | None = None) -> None:
        self._events, self._progress = events, progress

    async def __aenter__(self) -> aiohttp.ClientResponse:
        app = web.Application()
        app.router.add_get("/", self._answer)
        self._server = TestServer(app)
        await self._server.start_server()
        self._client = aiohttp.ClientSession()
        return await self._client.get(self._server.make_url("/"))

    async def __aexit__(self, *exception: object) -> None:
        await self._client.close()
        await self._server.close()

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        try:
            return await sse.stream_events(http, self._events(), progress=self._progress)
        except HttpError as failure:
            return web.json_response(failure.body, status=failure.status)


def repeating(*tokens: int) -> StreamPosition:
    """Of a resumed stream whose client has these tokens, which the server has to compute again."""
    check = 0
    for token in tokens:
        check = crc32(token.to_bytes(4, "little"), check)
    return StreamPosition(Identity(seed=1), Resume(Identity(seed=1), len(tokens), check))


async def test_a_silent_stream_is_kept_alive() -> None:
    resumed = asyncio.Event()

    async def events() -> AsyncIterator[Any]:
        yield "first"
        await resumed.wait()
        yield "second"

    async with Answering(events) as answer:
        assert await answer.content.readuntil(b"\n\n") == b'data: "first"\n\n'
        assert await answer.content.readuntil(b"\n") == sse.COMMENT
        resumed.set()
        rest = await answer.content.read()
        assert rest.replace(sse.COMMENT, b"") == b'data: "second"\n\n' + sse.DONE


async def test_a_stream_that_recomputes_its_beginning_is_kept_alive_by_comments() -> None:
    progress, resumed = repeating(0, 1), asyncio.Event()

    async def events() -> AsyncIterator[Any]:
        for token in range(3):
            progress.add_token(token)
            yield token
            if token == 1:
                await resumed.wait()

    async with Answering(events, progress) as answer:
        assert answer.headers["X-Slipway-Stream"] == str(progress.identity)
        assert await answer.content.readuntil(b"\n") == sse.COMMENT
        resumed.set()
        *_, event, done, _ = (await answer.content.read()).replace(sse.COMMENT, b"").split(b"\n\n")
        assert (event.splitlines()[-1], done) == (b"data: 2", b"data: [DONE]")


async def test_an_error_before_the_first_event_is_a_status_however_late() -> None:
    async def events() -> AsyncIterator[Any]:
        await asyncio.sleep(5 * sse.KEEP_ALIVE_S)
        raise invalid("No.", "prompt")
        yield

    async with Answering(events) as answer:
        assert answer.status == 400


async def test_an_error_after_a_comment_is_an_event() -> None:
    resumed = asyncio.Event()

    async def events() -> AsyncIterator[Any]:
        await resumed.wait()
        raise invalid("No.", "prompt")
        yield

    async with Answering(events, repeating(0, 1)) as answer:
        assert await answer.content.readuntil(b"\n") == sse.COMMENT
        resumed.set()
        rest = await answer.content.read()
        assert b'"message":"No."' in rest and rest.endswith(sse.DONE)


async def test_a_stream_without_events_is_empty() -> None:
    async def events() -> AsyncIterator[Any]:
        for nothing in ():
            yield nothing

    async with Answering(events) as answer:
        assert (answer.status, await answer.content.read()) == (200, sse.DONE)
