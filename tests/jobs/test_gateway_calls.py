"""What a response of the gateway, or none, means for a line."""

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest
from aiohttp import web

from devcluster.ports import reserve_port
from slipway_contracts.passes import PassKeys
from slipway_jobs.dispatch import gateway_calls
from slipway_jobs.dispatch.gateway_calls import Called, open_calls
from slipway_jobs.settings import JobsSettings
from slipway_jobs.states import COMPLETED, FAILED, QUEUED
from slipway_jobs.store.line_store import LineClaim, RunnableBatch
from tests.gateway.harness import raw_upstream, upstream
from tests.jobs.world import chat
from tests.support.otlp import Receiver, attributes

BATCH = RunnableBatch("batch_1", "team-a", "/v1/chat/completions", "file-1")


async def send(url: str, keys_file: str, attempts: int = 0, line: Any = None, **changes: Any) -> Called:
    settings = JobsSettings(
        **{"gateway_url": url, "keys_file": keys_file, "database_url": "sqlite:////tmp/unused.db"} | changes
    )
    data = json.dumps(chat(1) if line is None else line).encode()
    async with open_calls(settings, PassKeys(keys_file)) as calls:
        return await calls.send(LineClaim(BATCH, 0, "line-1", 1, attempts, data))


def answering(status: int, body: bytes = b"{}", **headers: str) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"Content-Type": "application/json"} | headers)

    return answer


def written(called: Called) -> dict[str, Any]:
    line = called.result.line
    assert line and line.count(b"\n") == 1 and line.endswith(b"\n")
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize(("status", "after"), [(429, "3"), (503, "soon"), (503, "9" * 30)])
async def test_a_refusal_costs_no_attempt(keys_file: str, status: int, after: str) -> None:
    async with upstream(answering(status, **{"Retry-After": after})) as served:
        called = await send(served.url, keys_file, attempts=2)
    assert called.refused and (called.result.state, called.result.attempts) == (QUEUED, 2)
    assert called.retry_after_s == (3.0 if after == "3" else None)


async def test_a_pass_that_the_gateway_refuses_costs_no_attempt_and_a_tenant_that_is_gone_ends_the_line(
    keys_file: str,
) -> None:
    found = []
    for code in (b"invalid_pass", b"invalid_api_key"):
        async with upstream(answering(401, b'{"error": {"code": "%s"}}' % code)) as served:
            found.append((await send(served.url, keys_file)).result)
    assert [(result.state, result.attempts) for result in found] == [(QUEUED, 0), (FAILED, 0)]


async def test_without_a_gateway_or_keys_a_line_costs_no_attempt(keys_file: str, tmp_path: Any) -> None:
    for url, keys in (
        (f"http://127.0.0.1:{reserve_port()}", keys_file),
        ("http://127.0.0.1:1", str(tmp_path / "none")),
    ):
        called = await send(url, keys, attempts=2)
        assert called.refused and (called.result.state, called.result.attempts) == (QUEUED, 2)


async def test_a_gateway_that_does_not_take_connections_costs_no_attempt(
    keys_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node is lost, for example: nothing refuses the connection, and the line was not sent."""
    monkeypatch.setattr(gateway_calls, "_CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(3):  # more than its backlog
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(full.getsockname())
        called = await send(f"http://127.0.0.1:{full.getsockname()[1]}", keys_file, attempts=2)
    assert called.refused and (called.result.state, called.result.attempts) == (QUEUED, 2)


@pytest.mark.parametrize("status", [408, 500, 502, 504])
async def test_a_server_that_broke_costs_an_attempt_and_the_last_one_ends_the_line(keys_file: str, status: int) -> None:
    async with upstream(answering(status, b'{"error": {"code": "x"}}')) as served:
        first = await send(served.url, keys_file)
        last = await send(served.url, keys_file, attempts=2)
    assert not first.refused and (first.result.state, first.result.attempts) == (QUEUED, 1) and first.result.wait_s > 0
    assert (last.result.state, written(last)["response"]["status_code"]) == (FAILED, status)


async def test_a_connection_that_breaks_costs_an_attempt_and_the_last_one_ends_the_line(keys_file: str) -> None:
    for writes in ((), (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{",), (b"no HTTP\r\n\r\n",)):
        async with raw_upstream(*writes) as url:
            first, last = await send(url, keys_file), await send(url, keys_file, attempts=2)
        assert (first.result.state, first.result.attempts) == (QUEUED, 1)
        assert last.result.state == FAILED and written(last)["error"]["code"] == "connection_lost"


async def test_a_server_that_is_silent_costs_an_attempt(keys_file: str) -> None:
    async def silent(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with upstream(silent) as served:
        called = await send(served.url, keys_file, attempts=2, request_timeout_s=0.2)
    assert written(called)["error"]["code"] == "timeout"


@pytest.mark.parametrize("body", [b"", b"\xff", b"no json", b'"a\xff"', b"[" * 100_000, b'{\n "a": 1e2,\n"b": NaN}'])
async def test_whatever_a_response_holds_its_line_is_json_on_one_line(keys_file: str, body: bytes) -> None:
    async with upstream(answering(200, body)) as served:
        called = await send(served.url, keys_file)
    assert called.result.state == COMPLETED and isinstance(written(called)["response"]["body"], str)


async def test_a_response_is_written_as_it_came_without_its_line_ends(keys_file: str) -> None:
    body = b'{\n  "n": 12345678901234567890123, "f": 1.50,\r\n "text": "a\\n\\u2028b"}'
    async with upstream(answering(200, body, **{"X-Slipway-Revision": "r7"})) as served:
        called = await send(served.url, keys_file)
    assert b'"n":12345678901234567890123,"f":1.50,"text":"a\\n\\u2028b"' in (called.result.line or b"")
    assert written(called)["response"]["revision"] == "r7"


async def test_a_response_that_is_too_long_is_an_error_of_its_line(keys_file: str) -> None:
    async with upstream(answering(200, b'"' + b"x" * 5000 + b'"')) as served:
        called = await send(served.url, keys_file, max_response_bytes=2000)
    assert called.result.state == FAILED and written(called)["error"]["code"] == "response_too_large"


async def test_a_redirect_is_not_followed(keys_file: str) -> None:
    async with upstream(answering(307, Location="http://127.0.0.1:1/")) as served:
        called = await send(served.url, keys_file)
    assert called.result.state == FAILED and written(called)["response"]["status_code"] == 307


async def test_large_lines_and_responses_are_looked_at_one_after_the_other(
    keys_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look takes hundredths of a second: between two of them the loop has a turn of 5 ms for others."""
    looks: list[int] = []
    turns: list[int] = []
    sleep, check, written_line = asyncio.sleep, gateway_calls.check_json, gateway_calls.result_line

    async def pause(delay_s: float) -> None:
        turns.append(len(looks))
        await sleep(delay_s)

    def look(data: bytes) -> None:
        looks.append(len(data))
        check(data)

    def line_of(*args: Any) -> bytes:
        looks.append(len(args[3]["body"]))
        return written_line(*args)

    settings = JobsSettings(gateway_url="http://unused", keys_file=keys_file, database_url="sqlite:////tmp/unused.db")
    large = json.dumps(["x"] * 100_000).encode()
    async with upstream(answering(200, large)) as served:
        settings = settings.model_copy(update={"gateway_url": served.url})
        async with open_calls(settings, PassKeys(keys_file)) as calls:
            monkeypatch.setattr(gateway_calls, "check_json", look)
            monkeypatch.setattr(gateway_calls, "result_line", line_of)
            monkeypatch.setattr(asyncio, "sleep", pause)
            data = json.dumps(chat(1)).encode()
            claims = [LineClaim(BATCH, n, f"line-{n}", 1, 0, data) for n in range(8)]
            found = await asyncio.gather(*map(calls.send, claims))
    assert {called.result.state for called in found} == {COMPLETED} and len(looks) == 16
    assert set(range(1, 17)) <= set(turns)  # never two looks without one


async def test_an_attempt_is_a_span_which_the_gateway_gets_as_parent(
    keys_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        for name, value in receiver.environment.items():
            monkeypatch.setenv(name, value)
        async with upstream(answering(200)) as served:
            await send(served.url, keys_file, attempts=1)
        ((service, span),) = receiver.services()
    (request,) = served.seen
    assert request.headers["traceparent"].startswith(f"00-{span.trace_id.hex()}-{span.span_id.hex()}-")
    assert (service, span.name, span.kind) == ("slipway-jobs", "POST /v1/chat/completions", 3)
    shown = attributes(span)
    assert (shown["slipway.batch"], shown["slipway.line"], shown["slipway.attempt"]) == ("batch_1", 0, 2)
    assert shown["http.response.status_code"] == 200


async def test_without_a_receiver_no_traceparent_is_sent(keys_file: str) -> None:
    async with upstream(answering(200)) as served:
        await send(served.url, keys_file)
    assert "traceparent" not in served.seen[0].headers
