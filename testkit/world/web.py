"""A web server of a test, at this machine's own address: loopback is what operators refuse to call."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from testkit.world.addresses import own_address

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def web_service(method: str, path: str, handler: Handler) -> AsyncIterator[str]:
    """Serves one route on a free port; yields the URL before the path."""
    application = web.Application()
    application.router.add_route(method, path, handler)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, own_address(), 0).start()
        yield f"http://{own_address()}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
