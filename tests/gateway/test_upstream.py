"""Connections to endpoints: what ends an attempt to connect."""

import asyncio
import contextlib
import socket
import time

import aiohttp
import pytest

from slipway_gateway.settings import GatewaySettings
from slipway_gateway.upstream.session import lag_free_timeout, open_session
from tests.gateway.harness import echo, upstream


async def test_block_is_cancelled_after_its_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with lag_free_timeout(0.2):
            await asyncio.sleep(30)


async def test_late_event_loop_fails_no_connect() -> None:
    """The loop is late by more than the whole limit, again and again, while the answer is there."""
    loop = asyncio.get_running_loop()
    async with lag_free_timeout(0.5):
        for _ in range(3):
            answer: asyncio.Future[None] = loop.create_future()
            loop.call_later(0.01, answer.set_result, None)
            loop.call_soon(time.sleep, 0.6)
            await answer


async def test_an_endpoint_that_accepts_is_reached_by_a_late_gateway() -> None:
    async with upstream(echo) as server, open_session(GatewaySettings(connect_timeout_s=0.3)) as session:

        def late() -> None:
            time.sleep(0.4)
            nonlocal timer
            timer = loop.call_soon(late)

        loop = asyncio.get_running_loop()
        asking = asyncio.create_task(session.post(server.url + "/v1/completions", data=b"{}"))
        timer = loop.call_soon(late)
        await asyncio.sleep(1.5)
        timer.cancel()
        async with await asking as answer:
            assert answer.status == 200


async def test_an_endpoint_that_accepts_nothing_is_given_up() -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # fill its queue
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        async with open_session(GatewaySettings(connect_timeout_s=0.3)) as session:
            with pytest.raises(aiohttp.ConnectionTimeoutError):
                await session.post(url, data=b"{}")
