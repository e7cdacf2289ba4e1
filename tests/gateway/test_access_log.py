"""The access log: each request that ends has one line, whatever its end; no line has content."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.quotas.policy import Policy
from slipway_gateway.quotas.tenant import Limits
from slipway_gateway.telemetry.access_log import MAX_ID, MAX_PATH, AccessLine, clean
from testkit.until import until_async

from . import tenants as known
from .harness import Gateway, answering, drop, echo, gateway, raw_upstream, refused_url, streaming, upstream
from .test_proxy import MARKED_HEAD, SSE_HEAD, STREAM, chunk, marked

Lines = Callable[[], list[dict[str, Any]]]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "gateway.md"
USAGE = {"prompt_tokens": 7, "completion_tokens": 5}


@contextlib.asynccontextmanager
async def logged(folder: Path, **changes: Any) -> AsyncIterator[tuple[Gateway, Lines]]:
    """A gateway, and the lines of its access log once it has ended: then all are written."""
    path = folder / "access.log"
    ended = False

    def lines() -> list[dict[str, Any]]:
        assert ended
        return [json.loads(line) for line in path.read_text().splitlines()]

    async with gateway(access_log=str(path), **changes) as gate:
        yield gate, lines
        total = sum(gate.outcomes().values())
    ended = True
    assert len(lines()) == total, "one line for each request that was counted"
    counted: dict[str, int] = {}
    for line in lines():
        counted[line["outcome"]] = counted.get(line["outcome"], 0) + 1
    assert counted == gate.outcomes()


async def with_usage(request: web.Request) -> web.StreamResponse:
    return web.json_response({"choices": [], "usage": USAGE})


async def test_a_line_has_what_is_known_of_its_request(tmp_path: Path) -> None:
    key = known.make_key("k7Qm2x")
    async with (
        upstream(with_usage) as server,
        logged(tmp_path, tenants=[known.tenant("team-a", key)], pepper=known.PEPPER) as (gate, lines),
    ):
        gate.route(("r1", 100, [server.url]))
        headers = known.bearer(key) | {"X-Request-Id": "mine"}
        body = {"model": "chat", "messages": [{"role": "user", "content": "canary-content"}]}
        async with await gate.post(body, path="/v1/chat/completions?token=canary-query", headers=headers) as answer:
            whole = await answer.read()
            assert answer.headers["X-Request-Id"] == "mine"
    (line,) = lines()
    assert re.fullmatch(r"[0-9a-f]{32}", line.pop("request_id"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("ts"))
    assert 0 < line.pop("ttft_ms") <= line.pop("duration_ms")
    assert line == {
        "logger": "slipway_gateway.access",
        "client_request_id": "mine",
        "tenant": "team-a",
        "key_id": "k7Qm2x",
        "method": "POST",
        "path": "/v1/chat/completions",
        "protocol": "HTTP/1.1",
        "status": 200,
        "outcome": "ok",
        "model": "chat",
        "revision": "r1",
        "upstream": server.url.removeprefix("http://"),
        "attempts": 1,
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "bytes_in": len(json.dumps(body)),
        "bytes_out": len(whole),
        "client_address": "127.0.0.1",
    }
    text = (tmp_path / "access.log").read_text()
    assert "canary" not in text and key not in text and key.split("_")[2] not in text


async def test_a_client_cannot_choose_the_id_of_its_line(tmp_path: Path) -> None:
    async with upstream(echo) as server, logged(tmp_path) as (gate, lines):
        gate.route(("r1", 100, [server.url]))
        for _ in range(2):
            (await gate.post(headers={"X-Request-Id": "same"})).close()
        async with await gate.post() as answer:
            own = answer.headers["X-Request-Id"]
    assert len({line["request_id"] for line in lines()}) == 3
    assert [line.get("client_request_id") for line in lines()] == ["same", "same", None]
    assert lines()[2]["request_id"] == own


async def test_each_refusal_has_a_line_with_its_reason(tmp_path: Path) -> None:
    """By credentials, by a limit, by the body, by the path, by the method, by the head, and by an expectation."""
    key, off = known.make_key("k7Qm2x"), known.make_key("k8Qm2x")
    limited = replace(known.tenant("team-a", key), policy=Policy(Limits(requests_per_minute=1)))
    tenants = [limited, known.tenant("team-b", off, disabled=True)]
    async with (
        upstream(echo) as server,
        logged(tmp_path, tenants=tenants, pepper=known.PEPPER, max_body_bytes=1000) as (gate, lines),
    ):
        gate.route(("r1", 100, [server.url]))
        for one in (None, known.bearer(known.make_key("k9Qm2x")), known.bearer(off)):
            (await gate.post(headers=one)).close()
        mine = known.bearer(key)
        for body in (b"{", {"model": "none"}, {"model": "chat", "x": "y" * 1000}, {"model": "chat"}, {"model": "chat"}):
            (await gate.post(body, headers=mine)).close()
        (await gate.post(path="/v1/nothing", headers=mine)).close()
        (await gate.post(path="/v1/models", headers=mine)).close()
        (await gate.post(headers=mine | {"Expect": "tea"})).close()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]))
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        await reader.read()
        await drop(writer)
    found = [(line["status"], line.get("reason", ""), line.get("tenant", "")) for line in lines()]
    assert found == [
        (401, "missing_api_key", ""),
        (401, "invalid_api_key", ""),
        (403, "tenant_disabled", ""),
        (400, "invalid_json", "team-a"),
        (404, "model_not_found", "team-a"),
        (413, "request_too_large", "team-a"),
        (200, "", "team-a"),
        (429, "rate_limit_exceeded", "team-a"),
        (404, "unknown_url", "team-a"),
        (405, "method_not_allowed", "team-a"),
        (417, "expectation_failed", ""),
        (400, "bad_request", ""),
    ]
    assert all(line["client_address"] == "127.0.0.1" for line in lines())
    assert "method" not in lines()[-1] and lines()[-2]["path"] == "/v1/chat/completions"


async def test_a_client_that_leaves_has_one_line_whenever_it_leaves(tmp_path: Path) -> None:
    """Before the first byte of the response, and in the middle of a stream."""

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        raise AssertionError

    async with upstream(slow) as silent, upstream(streaming(1000, 0.02)) as server, logged(tmp_path) as (gate, lines):
        gate.route(("r1", 100, [silent.url]))
        waiting = asyncio.create_task(gate.post())
        await until_async(lambda: len(silent.seen) == 1)
        waiting.cancel()
        await until_async(lambda: gate.edge.running == 0)
        gate.route(("r1", 100, [server.url]))
        answer = await gate.post({"model": "chat", "stream": True})
        await answer.content.readline()
        answer.close()
        await until_async(lambda: gate.edge.running == 0)
    before, during = lines()
    assert [line["status"] for line in lines()] == [499, 499]
    assert "ttft_ms" not in before and "bytes_out" not in before and "stream" not in before
    assert during["ttft_ms"] > 0 and during["bytes_out"] > 0 and during["stream"] is True


async def test_failures_of_servers_have_a_line_with_their_attempts(tmp_path: Path) -> None:
    """None is reachable; the first one is not; a stream breaks; one answers with an error."""
    async with (
        upstream(echo) as good,
        upstream(answering(500)) as failing,
        raw_upstream(SSE_HEAD, chunk(b"data: {}\n\n")) as breaking,
        logged(tmp_path, hold_timeout_s=0.1, max_attempts=2) as (gate, lines),
    ):
        dead = refused_url()
        gate.route(("r1", 100, [dead]))
        (await gate.post()).close()
        gate.route(("r1", 100, [failing.url]))
        (await gate.post()).close()
        gate.route(("r1", 100, [breaking]))
        async with await gate.post({"model": "chat", "stream": True}) as answer:
            broken = await answer.read()
        gate.route(("r1", 100, []))
        (await gate.post()).close()
        gate.route(("r1", 100, [good.url]))
        (await gate.post()).close()
    unreachable, error, stream, unready, last = lines()
    assert (unreachable["status"], unreachable["reason"]) == (502, "upstream_unreachable")
    assert unreachable["attempts"] >= 1 and unreachable["upstream"] == dead.removeprefix("http://")
    assert (error["status"], error["outcome"], error.get("reason")) == (500, "upstream_error", None)
    assert (stream["status"], stream["outcome"], stream["reason"]) == (200, "upstream_error", "upstream_died")
    assert stream["bytes_out"] == len(broken)
    assert (unready["status"], unready["reason"]) == (503, "model_not_ready") and "upstream" not in unready
    assert last["attempts"] == 1 and "reason" not in last


async def test_a_resumed_stream_has_one_line(tmp_path: Path) -> None:
    async def rest(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "X-Slipway-Stream": STREAM, "X-Slipway-Prompt-Tokens": "11"}
        return web.Response(body=b": 2.00000002 9\ndata: {}\n\ndata: [DONE]\n\n", headers=headers)

    async with (
        raw_upstream(MARKED_HEAD, marked(1)) as url,
        upstream(rest) as server,
        logged(tmp_path) as (gate, lines),
    ):
        gate.route(("r1", 100, [url]))
        answer = await gate.post({"model": "chat", "stream": True})
        first = await answer.content.readline()
        gate.route(("r1", 100, [server.url]))
        received = first + await answer.read()
    (line,) = lines()
    assert (line["outcome"], line["attempts"], line["resumes"]) == ("ok", 1, 1)
    assert line["upstream"] == server.url.removeprefix("http://")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (11, 2)
    assert line["bytes_out"] == len(received)


async def test_a_request_that_the_drain_cuts_has_its_line(tmp_path: Path) -> None:
    async with upstream(streaming(1000, 0.02)) as server, logged(tmp_path) as (gate, lines):
        gate.route(("r1", 100, [server.url]))
        answer = await gate.post({"model": "chat", "stream": True})
        await answer.content.readline()
        gate.edge.cut()
        await answer.read()
        await until_async(lambda: gate.edge.running == 0)
    (line,) = lines()
    assert (line["outcome"], line["reason"]) == ("drained", "drained")


async def test_a_sample_leaves_out_successes_and_no_failure(tmp_path: Path) -> None:
    async with upstream(with_usage) as server, gateway(access_log=f"{tmp_path}/log", access_log_sample=0.0) as gate:
        gate.route(("r1", 100, [server.url]))
        for body in ({"model": "chat"}, {"model": "none"}, {"model": "chat"}):
            (await gate.post(body)).close()
    assert [json.loads(line)["status"] for line in (tmp_path / "log").read_text().splitlines()] == [404]


@given(st.text(st.characters()), st.integers(1, 300))
def test_whatever_a_client_sends_is_printable_ascii_of_bounded_length(text: str, limit: int) -> None:
    cleaned = clean(text, limit)
    assert len(cleaned) <= limit and cleaned.isascii() and (not cleaned or cleaned.isprintable())
    assert cleaned == text or not (text.isascii() and text.isprintable() and len(text) <= limit) or "slw_" in text
    msgspec.json.encode(cleaned)


async def test_odd_heads_have_a_line_without_odd_bytes(tmp_path: Path) -> None:
    key = known.make_key("k7Qm2x")
    async with logged(tmp_path) as (gate, lines):
        port = int(gate.url.rsplit(":", 1)[1])
        for path, request_id in (
            (b"/v1/" + key.encode(), b"\xff\xfe\xc3"),
            (b"/%0a%22/" + b"y" * 3000, b"z" * 3000),
            (b"/\xc3\xa9", key.encode()),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + request_id + b"\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            await drop(writer)
    text = (tmp_path / "access.log").read_text()
    assert text.isascii() and key.split("_")[2] not in text
    assert all(len(line.get("path", "")) <= MAX_PATH for line in lines())
    assert max(len(line.get("client_request_id", "")) for line in lines()) == MAX_ID


def test_the_page_lists_the_fields_of_a_line() -> None:
    listed = DOCS.read_text().partition("## Access log")[2].partition("\n## ")[0]
    assert set(AccessLine.__struct_fields__) <= set(re.findall(r"`(\w+)`", listed))
