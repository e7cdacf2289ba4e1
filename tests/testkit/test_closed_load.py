"""The load generator sees every way in which an answer can go wrong: a blind one would make its zeros worthless."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from testkit.load.closed import Load, Report

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
HEADERS = {"X-Slipway-Revision": "aaaaaaaaaa"}


def _chunk(body: dict[str, Any], text: str, finish: str | None = None) -> bytes:
    words = {"delta": {"content": text}} if "messages" in body else {"text": text}
    choice = {"index": 0, "finish_reason": finish, **words}
    return _event({"id": "x", "object": "chunk", "created": 1, "model": "chat", "choices": [choice]})


def _event(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _usage(tokens: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    return _event({"id": "x", "object": "chunk", "created": 1, "model": "chat", "choices": [], "usage": usage})


def streamed(*parts: Callable[[dict[str, Any]], bytes]) -> Answer:
    """Answers with these events, then ends the body properly."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        out = web.StreamResponse(headers=HEADERS | {"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for part in parts:
            await out.write(part(body))
        return out

    return answer


async def cut(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    out = await streamed(lambda body: _chunk(body, "And"))(request, body)
    assert request.transport
    request.transport.abort()
    return out


async def refused(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "no endpoint is ready"}}, status=503, headers=HEADERS)


async def whole(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    words = {"message": {"role": "assistant", "content": "And"}} if "messages" in body else {"text": "And"}
    choice = {"index": 0, "finish_reason": "length", **words}
    usage = {"prompt_tokens": 1, "completion_tokens": body["max_tokens"], "total_tokens": body["max_tokens"] + 1}
    data = {"id": "x", "object": "x", "created": 1, "model": "chat", "choices": [choice], "usage": usage}
    return web.json_response(data, headers=HEADERS)


def begin(body: dict[str, Any]) -> bytes:
    return _chunk(body, "And")


def end(body: dict[str, Any]) -> bytes:
    return _chunk(body, " God", "length")


def usage(body: dict[str, Any]) -> bytes:
    return _usage(body["max_tokens"])


def done(body: dict[str, Any]) -> bytes:
    return b"data: [DONE]\n\n"


async def load_against(answer: Answer, enough: int = 20) -> Report:
    """A short load on a gateway that answers streams this way."""

    async def serve(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await (answer if body.get("stream") else whole)(request, body)

    app = web.Application()
    app.router.add_post("/v1/{path:.+}", serve)
    async with TestServer(app) as server:
        with Load(str(server.make_url("/v1")), "chat", streams=4, whole=1, timeout_s=5) as load:
            await asyncio.to_thread(load.wait_for, lambda report: report.requests >= enough, 20)
            return await asyncio.to_thread(load.stop)


async def test_whole_answers_are_counted_by_revision() -> None:
    report = await load_against(streamed(begin, end, usage, done))
    assert (report.failed, report.broken, report.failures) == (0, 0, ())
    assert report.by_revision == {"aaaaaaaaaa": report.requests}
    assert 0 < report.streams < report.requests
    assert (report.min_streams, report.open_streams) == (3, 0), "a stream that ends is one less for a moment"
    assert report.latency_s(0.5) > 0
    assert report.size_bytes > 0


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(streamed(begin, end, usage), "no [DONE]", id="no DONE"),
        pytest.param(streamed(begin, usage, done), "no finish_reason", id="no finish_reason"),
        pytest.param(streamed(begin, end, lambda _: _usage(1), done), "1 of ", id="too few tokens"),
        pytest.param(streamed(begin, end, done), "0 of ", id="no usage"),
        pytest.param(streamed(begin, lambda _: _event({"error": {"message": "lost"}}), done), "lost", id="error event"),
        pytest.param(cut, "APIConnectionError", id="cut"),
    ],
)
async def test_broken_streams_are_distinguished_from_whole_ones(answer: Answer, text: str) -> None:
    report = await load_against(answer)
    assert report.broken == report.streams > 0
    assert report.failed == 0
    assert all(text in failure.text and failure.broken for failure in report.failures)
    assert report.failures_by_revision == {"aaaaaaaaaa": report.broken}


async def test_refused_requests_are_failed_ones_and_sent_once() -> None:
    report = await load_against(refused)
    assert report.failed == report.streams > 0
    assert report.broken == 0
    assert "503" in report.failures[0].text
    assert "no endpoint is ready" in str(report.failures[0])
    assert len({failure.request_id for failure in report.failures}) == report.failed


def test_a_gateway_that_is_away_is_a_failure_with_its_cause() -> None:
    with Load("http://127.0.0.1:9/v1", "chat", streams=1, whole=0) as load:
        report = load.wait_for(lambda report: report.failed > 0, 20)
    assert report.failures[0].text.startswith("APIConnectionError: Connection error. <- ConnectError")


def test_since_gives_the_difference() -> None:
    earlier = Report(requests=3, by_revision={"a": 3}, latencies_s=(1.0, 2.0, 3.0))
    later = Report(requests=5, by_revision={"a": 3, "b": 2}, latencies_s=(1.0, 2.0, 3.0, 4.0, 5.0))
    between = later.since(earlier)
    assert (between.requests, between.by_revision, between.latencies_s) == (2, {"b": 2}, (4.0, 5.0))


def test_a_load_that_never_ran_reports_nothing() -> None:
    report = Load("http://127.0.0.1:9/v1", "chat").stop()
    assert (report.requests, report.min_streams) == (0, 0)
