"""A ceiling: asyncio alone. It passes bytes on between two sockets and reads nothing of HTTP; no proxy in Python that
runs on asyncio can take less.

    python -m bench.gateway.pipe PORT UPSTREAM
"""

import asyncio
import sys
from urllib.parse import urlsplit


class _Far(asyncio.Protocol):
    def __init__(self, near: asyncio.Transport) -> None:
        self._near = near

    def data_received(self, data: bytes) -> None:
        self._near.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._near.close()


class _Near(asyncio.Protocol):
    def __init__(self, host: str, port: int) -> None:
        self._where = host, port
        self._far: asyncio.Transport | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connecting = asyncio.ensure_future(self._connect(transport))

    async def _connect(self, near: asyncio.Transport) -> None:
        self._far, _ = await asyncio.get_running_loop().create_connection(lambda: _Far(near), *self._where)
        self._far.write(self._early)

    def data_received(self, data: bytes) -> None:
        if self._far is None:
            self._early += data
        else:
            self._far.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._far is not None:
            self._far.close()


async def serve(port: int, upstream: str) -> None:
    where = urlsplit(upstream)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Near(where.hostname or "", where.port or 80), "127.0.0.1", port, backlog=4096
    )
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
