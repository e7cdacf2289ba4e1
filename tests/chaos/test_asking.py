"""The careful client against a server that breaks off: classes, Last-Event-ID, and every character compared."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.chaos import asking
from bench.chaos.asking import FAILED, GOOD, SAVED, UNSAVABLE, Client, Difference, Ending, Question, difference, ending

WORDS = ("In ", "the ", "beginning ", "was ")
TEXT = "".join(WORDS)
QUESTION = Question("a prompt", False, len(WORDS))

Respond = Callable[[web.Request, web.StreamResponse, int], Awaitable[None]]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "FIRST_PAUSE_S", 0.0)


async def write(out: web.StreamResponse, first: int, last: int, *, end: bool) -> None:
    for number in range(first, last):
        reason = "length" if number == len(WORDS) - 1 else None
        chunk = {"choices": [{"text": WORDS[number], "finish_reason": reason}]}
        await out.write(f"id: {number + 1}\ndata: {json.dumps(chunk)}\n\n".encode())
    if end:
        usage = {"choices": [], "usage": {"completion_tokens": len(WORDS)}}
        await out.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())


@asynccontextmanager
async def client_of(respond: Respond) -> AsyncIterator[Client]:
    """`respond(request, stream, try)` sends the response to each try of the client."""
    tries = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal tries
        tries += 1
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        await respond(request, out, tries)
        return out

    app = web.Application()
    app.router.add_post("/completions", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        yield Client(session, str(server.make_url("")).rstrip("/"), "m")


async def end_of(client: Client, *, stream: bool = True) -> Ending:
    answer, sent = await client.ask(QUESTION, "id-1", stream=stream)
    return ending(answer, QUESTION, TEXT, sent)


def cut(request: web.Request) -> None:
    assert request.transport
    request.transport.abort()


async def test_whole_stream_is_good() -> None:
    async def whole(_: web.Request, out: web.StreamResponse, __: int) -> None:
        await write(out, 0, 4, end=True)

    async with client_of(whole) as client:
        found = await end_of(client)
    assert (found.kind, found.tokens, found.tries, found.difference) == (GOOD, 4, 1, Difference())


async def test_broken_stream_goes_on_behind_its_last_event() -> None:
    async def broken_once(request: web.Request, out: web.StreamResponse, number: int) -> None:
        if number == 1:
            await write(out, 0, 2, end=False)
            await out.write(b'id: 3\ndata: {"choices": [{"te')
            return cut(request)
        assert request.headers["Last-Event-ID"] == "2"
        return await write(out, 2, 4, end=True)

    async with client_of(broken_once) as client:
        found = await end_of(client)
    assert (found.kind, found.tries, found.difference) == (SAVED, 2, Difference())
    assert found.reason.startswith("Last-Event-ID")
    assert found.breaks[0].lost


@pytest.mark.parametrize(("again_from", "expected"), [(1, Difference(added=4)), (3, Difference(missing=10))])
async def test_repeated_or_missing_text_is_failed(again_from: int, expected: Difference) -> None:
    async def wrong(request: web.Request, out: web.StreamResponse, number: int) -> None:
        if number == 1:
            await write(out, 0, 2, end=False)
            return cut(request)
        return await write(out, again_from, 4, end=True)

    async with client_of(wrong) as client:
        found = await end_of(client)
    assert (found.kind, found.difference) == (FAILED, expected)


async def test_stream_whose_revision_is_gone_could_not_be_saved() -> None:
    async def error_event(_: web.Request, out: web.StreamResponse, number: int) -> None:
        await write(out, 0, 2, end=False)
        await out.write(b'data: {"error": {"code": "upstream_died", "message": "gone"}}\n\ndata: [DONE]\n\n')

    app = web.Application()
    tries: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        tries.append(request.headers.get("Last-Event-ID", ""))
        if len(tries) > 1:
            return web.json_response({"error": {"code": "stream_gone", "message": "Send it again."}}, status=410)
        out = web.StreamResponse()
        await out.prepare(request)
        await error_event(request, out, 1)
        return out

    app.router.add_post("/completions", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        found = await end_of(Client(session, str(server.make_url("")).rstrip("/"), "m"))
    assert (found.kind, tries) == (UNSAVABLE, ["", "2"])
    assert found.reason.startswith("410 stream_gone")


@pytest.mark.parametrize(("status", "kind", "tries"), [(429, SAVED, 2), (503, FAILED, 1), (502, FAILED, 1)])
async def test_only_overload_is_retried(status: int, kind: str, tries: int) -> None:
    count = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal count
        count += 1
        if count == 1:
            return web.json_response({"error": {"code": "no", "message": "now"}}, status=status)
        whole = {"choices": [{"text": TEXT, "finish_reason": "length"}], "usage": {"completion_tokens": len(WORDS)}}
        return web.json_response(whole)

    app = web.Application()
    app.router.add_post("/completions", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        found = await end_of(Client(session, str(server.make_url("")).rstrip("/"), "m"), stream=False)
    assert (found.kind, found.tries) == (kind, tries)


def test_difference_counts_what_is_missing_and_what_is_foreign() -> None:
    assert difference("abcd", "abcd", whole=True) == Difference()
    assert difference("abc", "abcd", whole=True) == Difference(missing=1)
    assert difference("abc", "abcd", whole=False) == Difference()
    assert difference("abccd", "abcd", whole=True) == Difference(added=1)
