"""A webhook receiver on a real socket."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer


@pytest.fixture
async def receiver():
    """An HTTP server that answers with `reply` and keeps the requests."""

    async def take(request):
        receiver.got.append((request.headers.copy(), await request.read()))
        return await receiver.reply(request)

    async def fine(request):
        return web.Response(text="fine")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", take)
    receiver = TestServer(application)
    receiver.got, receiver.reply = [], fine
    async with receiver:
        yield receiver
