"""The compiled data plane accepts connections as Python does: same bounds, time limits and drain (docs/plane.md)."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.limits.connections import address_owner
from slipway_gateway.plane import library
from slipway_gateway.plane.port import plane_port
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_plane import NATIVE, WHY_MISSING
from slipway_process.places import Places
from slipway_process.supervisor import OnFailure, Supervisor
from testkit.until import until_async

from . import harness, test_process
from .harness import Gateway, drop, echo, upstream

pytestmark = pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING)

ASK = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b'{"model":"chat"}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@contextlib.asynccontextmanager
async def gateway(**changes: Any) -> AsyncIterator[Gateway]:
    async with harness.gateway(plane="required", **changes) as gate:
        gate.route(("rev", 100, []))
        yield gate


def sample(gate: Gateway, name: str, **labels: str) -> float:
    return gate.metrics.registry.get_sample_value(f"slipway_gateway_{name}", labels) or 0.0


def address(gate: Gateway) -> tuple[str, int]:
    return "127.0.0.1", int(gate.url.rsplit(":", 1)[1])


async def connect(gate: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*address(gate))


@given(
    st.integers(0, 9),
    st.integers(1, 100),
    st.integers(0, 9),
    st.lists(st.tuples(st.booleans(), st.sampled_from("abc"))),
)
def test_places_are_counted_alike_in_both_languages(
    limit: int, percentage: int, most: int, steps: list[tuple[bool, str]]
) -> None:
    assert NATIVE is not None
    ours, compiled = Places(limit, percentage, most), NATIVE.Places(limit, percentage, most)
    for comes, owner in steps:
        if comes:
            assert ours.take(owner) == compiled.take(owner)
        elif ours.held_by(owner):
            ours.leave(owner)
            compiled.leave(owner)
        assert ours.used == compiled.used


@given(st.one_of(st.ip_addresses(), st.integers(0, 2**32 - 1).map(lambda low: IPv6Address((0xFFFF << 32) + low))))
def test_an_address_has_the_same_owner_in_both_languages(host: IPv4Address | IPv6Address) -> None:
    assert NATIVE is not None
    assert NATIVE.address_owner(str(host)) == address_owner(str(host))


def test_a_host_that_is_no_address_is_refused_by_name() -> None:
    assert NATIVE is not None
    with pytest.raises(ValueError, match="host"):
        NATIVE.address_owner("x" * 100)


@pytest.mark.parametrize(
    ("plane", "tls", "native", "state"),
    [
        ("off", "", True, "off"),
        ("auto", "", True, "on"),
        ("required", "", True, "on"),
        ("auto", "", False, "missing"),
        ("required", "/tls.crt", True, "on"),
    ],
)
def test_the_setting_and_what_is_installed_decide(
    plane: str, tls: str, native: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(library, "NATIVE", None)
    metrics = GatewayMetrics("test")
    port = plane_port(GatewaySettings(plane=plane, tls_cert_file=tls), metrics)
    assert (port is not None) == (state == "on")
    shown = {
        each: metrics.registry.get_sample_value("slipway_gateway_plane", {"state": each}) for each in library.PlaneState
    }
    assert shown == {each: float(each == state) for each in library.PlaneState}


def test_a_gateway_that_requires_it_does_not_start_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "NATIVE", None)
    monkeypatch.setattr(library, "WHY_MISSING", "it is not there")
    with pytest.raises(ValueError, match="--plane required: it is not there"):
        library.choose(GatewaySettings(plane="required"))


async def test_requests_of_one_connection_are_served_whole_in_pieces_and_pipelined() -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        reader, writer = await connect(gate)
        await until_async(lambda: sample(gate, "connections") == 1, "it is counted before its first byte")
        for byte in POST:
            writer.write(bytes([byte]))
            await writer.drain()
        writer.write(POST + POST)
        received = b""
        async with asyncio.timeout(60):
            while received.count(b"HTTP/1.1 200") < 3:
                received += await reader.read(65536)
        await drop(writer)
        await until_async(lambda: sample(gate, "connections") == 0)
        await until_async(gate.outcomes, holds=lambda outcomes: outcomes == {"ok": 3})


async def test_a_body_longer_than_the_first_read_is_served() -> None:
    body = b'{"model":"chat","prompt":"%b"}' % (b"x" * (300 << 10))
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        for _ in range(3):
            answer = await gate.post(body, headers={"Connection": "close"})
            assert (await answer.json())["body"].encode() == body


async def test_a_head_that_does_not_end_is_closed_in_time() -> None:
    async with gateway(header_timeout_s=0.5) as gate:
        reader, writer = await connect(gate)
        writer.write(ASK[:10])
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        await drop(writer)


async def test_a_connection_without_a_byte_is_closed_after_the_keep_alive_time() -> None:
    async with gateway(keepalive_timeout_s=0.6, header_timeout_s=0.2) as gate:
        began_s = time.monotonic()
        reader, writer = await connect(gate)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        assert time.monotonic() - began_s >= 0.5
        await drop(writer)
        await until_async(lambda: sample(gate, "connections") == 0)


async def test_a_refused_connection_gets_the_response_of_python_and_is_counted() -> None:
    async def refusal(plane: str) -> bytes:
        async with harness.gateway(plane=plane, max_connections=2, max_connections_per_address=1) as gate:
            held = await connect(gate)
            await until_async(lambda: sample(gate, "connections") == 1)
            reader, writer = await connect(gate)
            async with asyncio.timeout(60):
                received = await reader.read()
            for each in (held[1], writer):
                await drop(each)
            await until_async(lambda: sample(gate, "connections_refused_total", reason="address") == 1)
            return received

    assert await refusal("required") == await refusal("off") != b""


async def test_a_drain_serves_what_has_come_and_closes_silent_connections_and_the_port() -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        silent, speaks = await connect(gate), await connect(gate)
        await until_async(lambda: sample(gate, "connections") == 2)
        gate.edge.draining = True
        for site in list(gate.runner.sites):
            await site.stop()
        speaks[1].write(POST)
        async with asyncio.timeout(60):
            received = await speaks[0].read()
            assert received.startswith(b"HTTP/1.1 200") and b"Connection: close" in received
            assert await silent[0].read() == b""
        for _, writer in (silent, speaks):
            await drop(writer)
        with pytest.raises(ConnectionError):
            await connect(gate)
        await until_async(lambda: sample(gate, "connections") == 0)


async def test_two_thousand_connections_leave_no_descriptor() -> None:
    async with gateway() as gate:
        process = psutil.Process()

        async def one(number: int) -> None:
            reader, writer = await connect(gate)
            match number % 4:
                case 0:
                    writer.write(ASK)
                    await reader.readuntil(b"\r\n\r\n")
                case 1:
                    writer.write(ASK[:5])
                case 2:
                    writer.write(b"\0" * 70000)
                    writer.write_eof()
            await drop(writer)

        await asyncio.gather(*(one(number) for number in range(8)))
        await until_async(lambda: sample(gate, "connections") == 0)
        before = process.num_fds()
        for start in range(0, 2000, 50):
            await asyncio.gather(*(one(number) for number in range(start, start + 50)))
        await until_async(lambda: sample(gate, "connections") == 0)
        await until_async(lambda: process.num_fds() <= before + 2, "descriptors of closed connections are closed")


async def test_a_thread_that_ends_is_counted_and_starts_again_with_its_port(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its accept(2) fails for good, as that of a socket that was shut down does."""
    settings = GatewaySettings(plane="required", host="127.0.0.1", port=0)
    port = plane_port(settings, GatewayMetrics("test"))
    assert port is not None
    bound = socket.create_server(("127.0.0.1", 0))
    served = asyncio.Event()

    class Bounds:
        max_connections, max_per_address, percentage, header_timeout_s = 10, 0, 100, 10.0

        def refusal(self, *, of_address: bool) -> bytes:
            return b""

        def refused(self, reason: str, connections: int) -> None:
            raise AssertionError(reason)

        def make_room(self, now_s: float) -> None:
            raise AssertionError

    class Answer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            served.set()
            transport.close()

    port.open([bound], Bounds(), lambda handed: Answer())
    restarted: list[str] = []
    tasks = Supervisor(restarted.append)
    tasks.start("plane", port.run, OnFailure.UNREADY)
    await asyncio.sleep(0)
    bound.shutdown(socket.SHUT_RD)
    await until_async(lambda: restarted == ["plane"], "the supervisor sees its end")
    assert "Invalid argument" in caplog.text

    async def is_served() -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(b"x")
            await asyncio.sleep(0.05)
            await drop(writer)
        return served.is_set()

    await until_async(is_served, "the port is served again")
    await tasks.close()
    await port.close()
    bound.close()


@pytest.mark.integration
async def test_a_process_drains_at_sigterm_and_says_that_the_plane_is_on(tmp_path: Path) -> None:
    async with upstream(harness.streaming(20, 0.05)) as server:
        listed = test_process.routes(tmp_path / "r.yaml", server.url)
        flags = ("--plane=required", "--drain-delay=0.1", "--drain-timeout=20")
        async with test_process.gateway("--routes", str(listed), *flags) as process:
            (line,) = process.log_entries("data plane")
            assert line["state"] == "on"
            host, port = process.log_entries("listening")[0]["api"][0]
            _, silent = await asyncio.open_connection(host, port)
            reader, writer = await asyncio.open_connection(host, port)
            body = b'{"model":"chat","stream":true}'
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            await reader.readuntil(b"data: ")
            os.kill(process.process.pid, signal.SIGTERM)
            async with asyncio.timeout(30):
                received = await reader.read()
            assert b"[DONE]" in received
            assert await process.ended() == 0
            for each in (silent, writer):
                await drop(each)
