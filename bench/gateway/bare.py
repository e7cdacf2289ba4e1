"""A peer: a proxy of aiohttp that only forwards, the least that its server and its client cost together.

python -m bench.gateway.bare PORT UPSTREAM
"""

import asyncio
import sys

import aiohttp
from aiohttp import web

_OWN = frozenset({"host", "content-length", "transfer-encoding", "connection", "keep-alive"})


async def serve(port: int, upstream: str) -> None:
    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        sent = {name: value for name, value in request.headers.items() if name.lower() not in _OWN}
        async with session.post(upstream + request.path_qs, data=body, headers=sent) as reply:
            kept = {name: value for name, value in reply.headers.items() if name.lower() not in _OWN}
            if reply.content_type != "text/event-stream":
                return web.Response(status=reply.status, body=await reply.read(), headers=kept)
            out = web.StreamResponse(status=reply.status, headers=kept)
            await out.prepare(request)
            async for chunk in reply.content.iter_any():
                await out.write(chunk)
            await out.write_eof()
            return out

    app = web.Application()
    app.router.add_post("/{path:.*}", forward)
    options = {"connector": aiohttp.TCPConnector(limit=0), "auto_decompress": False}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), **options) as session:  # type: ignore[arg-type]
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
