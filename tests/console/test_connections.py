"""Connections of the console are bounded, and a proxy that is trusted shares no limit of one address."""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from slipway_console.serving.connections import TrustedProxies, connection_limit
from slipway_console.serving.sign_in import MOST_SIGN_INS
from slipway_process.network import connections
from slipway_process.network.http_server import HttpRunner
from testkit.until import until_async
from tests.console.world import Console, running_console

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PROXIES = TrustedProxies([ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")])


@contextlib.asynccontextmanager
async def opened(port: int, count: int, address: str) -> AsyncIterator[list[Stream]]:
    streams = [await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)) for _ in range(count)]
    try:
        yield streams
    finally:
        for _, writer in streams:
            writer.transport.abort()


async def first_line(reader: asyncio.StreamReader) -> bytes:
    """What came within a moment; empty: nothing."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            return await reader.readline()
    return b""


async def first_lines(streams: list[Stream], count: int) -> list[bytes]:
    """What came on each, once something has come on so many of them."""
    await until_async(lambda: sum(bool(reader._buffer) for reader, _ in streams) >= count, "they are refused")  # type: ignore[attr-defined]
    return await asyncio.gather(*(first_line(reader) for reader, _ in streams))


@pytest.mark.integration
async def test_one_address_leaves_connections_for_others(api_server: Path, tmp_path: Path) -> None:
    with running_console(api_server, tmp_path, "--max-connections=8") as console:
        port = int(console.url.rpartition(":")[2])
        async with opened(port, 12, "127.0.0.2") as streams:
            lines = await first_lines(streams, 6)
            assert [line.split()[1:2] for line in lines].count([b"503"]) == 6
            async with aiohttp.ClientSession() as client, client.get(f"{console.url}/sign-in") as answer:
                assert answer.status == 200

        async def is_free() -> bool:
            async with opened(port, 6, "127.0.0.2") as streams:
                return await asyncio.gather(*(first_line(reader) for reader, _ in streams)) == [b""] * 6

        await until_async(is_free, "their places are free again")


@pytest.mark.integration
@pytest.mark.parametrize("trusted", [True, False])
async def test_sign_ins_behind_a_trusted_proxy_count_for_its_clients(
    api_server: Path, tmp_path: Path, trusted: bool
) -> None:
    flags = ["--trusted-proxies=127.0.0.0/8,::1/128"] if trusted else []
    with running_console(api_server, tmp_path, *flags) as console:
        port = int(console.url.rpartition(":")[2])
        async with opened(port, MOST_SIGN_INS, "127.0.0.1") as streams:
            for _, writer in streams:
                writer.write(head(console, "203.0.113.7") + b"token=")
            lines = await first_lines(streams, MOST_SIGN_INS // 4)
            assert [line.split()[1:2] for line in lines].count([b"429"]) == MOST_SIGN_INS // 4
            async with opened(port, 1, "127.0.0.1") as [(reader, writer)]:
                writer.write(head(console, "198.51.100.1") + b"token=" + b"x" * 94)
                # Wrong tokens are refused after they had a place; without one it is 429.
                assert b" 401 " in await reader.readline() if trusted else b" 429 " in await reader.readline()


def head(console: Console, client: str) -> bytes:
    host = console.url.partition("//")[2]
    lines = f"POST /sign-in HTTP/1.1\r\nHost: {host}\r\nOrigin: {console.url}\r\nX-Forwarded-For: {client}\r\n"
    return f"{lines}Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("peer", "header", "client"),
    [
        ("10.1.2.3", "203.0.113.7", "203.0.113.7"),
        ("10.1.2.3", "198.51.100.9, 203.0.113.7", "203.0.113.7"),  # what a client wrote itself does not count
        ("10.1.2.3", "203.0.113.7, 10.9.9.9", "203.0.113.7"),
        ("10.1.2.3", "2001:DB8::1", "2001:db8::1"),
        ("::ffff:10.1.2.3", "203.0.113.7", "203.0.113.7"),
        ("fd00::1", "203.0.113.7", "203.0.113.7"),
        ("10.1.2.3", None, "10.1.2.3"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "unknown", "10.1.2.3"),
        ("10.1.2.3", "203.0.113.7, <script>", "10.1.2.3"),
        ("10.1.2.3", "203.0.113.7" + ", 10.0.0.1" * 40, "10.0.0.1"),
        ("192.0.2.1", "203.0.113.7", "192.0.2.1"),
        ("no address", "203.0.113.7", "no address"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxy(peer: str, header: str | None, client: str) -> None:
    headers = {} if header is None else {"X-Forwarded-For": header}
    request = make_mocked_request("GET", "/", headers=headers).clone(remote=peer)
    assert PROXIES.client_of(request) == client
    assert TrustedProxies().client_of(request) == peer


def test_a_trusted_proxy_may_have_all_connections() -> None:
    limit = connection_limit(8, PROXIES)
    assert [limit.take("10.0.0.1") for _ in range(9)] == [""] * 8 + [None]
    limit.give_back("")
    assert limit.take("192.0.2.1") == "192.0.2.1"


async def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", 0.2)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="yes")

    app, limit = web.Application(), connection_limit(4, TrustedProxies())
    app.router.add_get("/", answer)
    runner = HttpRunner(app, limit.connection)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    async with opened(port, 2, "127.0.0.1") as [(silent, slow), (reader, writer)]:
        slow.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in await reader.readline()
        async with asyncio.timeout(5):
            assert await silent.read() == b""
        await asyncio.sleep(0.3)
        await reader.readuntil(b"yes")
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in await reader.readline()
    await runner.cleanup()
    assert limit.take("127.0.0.1") is not None
