"""What pods report of their adapters, also those that send anything: over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from devcluster.ports import reserve_port
from slipway_contracts.adapters import MAX_ADAPTERS, MAX_REPORT_BYTES
from slipway_operator.adapters import reports
from slipway_operator.adapters.reports import read_pod
from slipway_operator.model.adapter_views import LoadedState

STATE = '{"name": "support", "revision": "aaaaaaaaaa", "state": "loaded", "digest": "sha256:0a", "later": 1}'


@pytest.fixture
async def pod() -> AsyncIterator[dict[str, Any]]:
    now: dict[str, Any] = {"body": b"{}", "status": 200, "headers": {}, "wait_s": 0.0, "port": reserve_port()}

    async def report(_: web.Request) -> web.Response:
        await asyncio.sleep(now["wait_s"])
        return web.Response(body=now["body"], status=now["status"], headers=now["headers"])

    app = web.Application()
    app.router.add_get("/adapters", report)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", now["port"]).start()
    yield now
    await runner.cleanup()


async def read(pod: dict[str, Any]) -> Any:
    async with aiohttp.ClientSession() as session:
        return await read_pod(session, "127.0.0.1", pod["port"])


async def test_states_are_read_by_name_and_revision(pod: dict[str, Any]) -> None:
    pod["body"] = f'{{"adapters": [{STATE}]}}'.encode()
    assert await read(pod) == {("support", "aaaaaaaaaa"): LoadedState("loaded", "sha256:0a")}
    pod["body"] = b"{}"
    assert await read(pod) == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"adapters": {}}',
        b'{"adapters": [1]}',
        b'{"adapters": [{"name": "a", "revision": "b", "state": "READY"}]}',
        b'{"adapters": [{"name": "", "revision": "b", "state": "loaded"}]}',
        b'{"adapters": [{"name": "a", "revision": "' + b"b" * 65 + b'", "state": "loaded"}]}',
        b'{"adapters": [{"name": "a", "revision": "b", "state": "failed", "reason": "' + b"x" * 513 + b'"}]}',
        b'{"adapters": [' + b",".join([STATE.encode()] * (MAX_ADAPTERS + 1)) + b"]}",
        b'{"adapters": ' + b"[" * 100_000,
        b"x" * (MAX_REPORT_BYTES + 1),
        b"\xff\xfe",
    ],
)
async def test_what_is_no_report_is_none(pod: dict[str, Any], body: bytes) -> None:
    pod["body"] = body
    assert await read(pod) is None


async def test_a_reason_has_no_control_characters(pod: dict[str, Any]) -> None:
    pod["body"] = (
        b'{"adapters": [{"name": "a", "revision": "b", "state": "failed", "reason": "no\\u001b[31m file\\n"}]}'
    )
    [state] = (await read(pod)).values()
    assert state.reason.isprintable()


async def test_a_redirect_is_not_followed_and_an_error_is_no_report(pod: dict[str, Any]) -> None:
    pod |= {"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}
    assert await read(pod) is None
    pod["status"] = 500
    assert await read(pod) is None


async def test_a_pod_that_hangs_ends_with_the_time(pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "TIMEOUT_S", 0.2)
    pod["wait_s"] = 5.0
    assert await asyncio.wait_for(read(pod), 2.0) is None
