"""A wire that can be cut: passes bytes on to a server, and breaks off after so many of an answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Scissors:
    """`cuts`: after how many bytes the answer to each next request breaks off; when it is empty none does."""

    def __init__(self, server_url: str) -> None:
        address = urlsplit(server_url)
        self._host, self._port = address.hostname, address.port
        self.url = ""
        self.cuts: list[int] = []
        self.made = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        wire = _Wire(self, there_writer)
        asking = asyncio.create_task(wire.ask(reader))
        try:
            while (data := await there_reader.read(65536)) and wire.left > len(data):
                wire.left -= len(data)
                writer.write(data)
                await writer.drain()
            if data:
                self.made += 1
                writer.write(data[: int(wire.left)])
        except ConnectionError:
            pass
        finally:
            asking.cancel()
            writer.close()
            there_writer.close()


class _Wire:
    """One connection; `left` bytes may still come back on it."""

    def __init__(self, owner: Scissors, there: asyncio.StreamWriter) -> None:
        self._owner = owner
        self._there = there
        self.left = float("inf")

    async def ask(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if data.startswith(b"POST "):
                    self.left = self._owner.cuts.pop(0) if self._owner.cuts else float("inf")
                self._there.write(data)
                await self._there.drain()
            self._there.close()


@contextlib.asynccontextmanager
async def scissors(server_url: str) -> AsyncIterator[Scissors]:
    wire = Scissors(server_url)
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
