"""Connections of clients are bounded in number, by address, and in the time of a head (safety 24)."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.web_request import BaseRequest
from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.limits.budget import Account, MemoryBudget
from slipway_gateway.limits.connections import address_owner
from slipway_process.places import SHARE, TOTAL, Places
from testkit.until import until_async

from .harness import Gateway, drop, echo, gateway, upstream

pytestmark = [pytest.mark.attack_class(15), pytest.mark.finding(24)]

ASK = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


OPEN: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """Each connection of a test, however it ends."""
    yield
    while OPEN:
        await drop(OPEN.pop())


async def connect(gate: Gateway, host: str = "127.0.0.1") -> Pair:
    made = await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]), local_addr=(host, 0))
    OPEN.append(made[1])
    return made


async def response_head(pair: Pair, sent: bytes = ASK) -> bytes:
    reader, writer = pair
    writer.write(sent)
    async with asyncio.timeout(60):
        return await reader.readuntil(b"\r\n\r\n")


def test_an_address_has_half_by_default_and_a_network_of_ipv6_is_one() -> None:
    taken = Places(10)
    assert [taken.take("a") for _ in range(6)] == [""] * 5 + [SHARE]
    assert [taken.take(f"b{n}") for n in range(6)] == [""] * 5 + [TOTAL]
    taken.leave("a")
    assert taken.take("c") == "" and taken.used == 10
    assert address_owner("2001:db8::1") == address_owner("2001:db8::ffff:1") != address_owner("2001:db8:0:1::1")
    assert (
        address_owner("::ffff:10.0.0.1") == address_owner("10.0.0.1") == "10.0.0.1"
        and address_owner("fe80::1%eth0") == "fe80::/64"
    )
    assert address_owner("") == "" and address_owner("unix") == "unix"


@given(st.integers(1, 8), st.integers(0, 8), st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=60))
def test_only_open_connections_are_counted(limit: int, each: int, steps: list[tuple[bool, str]]) -> None:
    taken, inside = Places(limit, most=each), dict.fromkeys("abc", 0)
    for comes, who in steps:
        if comes:
            inside[who] += not taken.take(who)
        elif inside[who]:
            taken.leave(who)
            inside[who] -= 1
        assert taken.used == sum(inside.values()) <= limit
        assert max(inside.values()) <= (each or (limit + 1) // 2)


async def test_one_address_cannot_take_all_connections() -> None:
    async with gateway(max_connections=10) as gate:
        gate.route(("rev", 100, []))
        held = [await connect(gate, "127.0.0.2") for _ in range(5)]
        answer = await response_head(await connect(gate, "127.0.0.2"), b"")
        assert answer.startswith(b"HTTP/1.1 429") and b"Retry-After: 1" in answer
        assert (await response_head(await connect(gate, "127.0.0.3"))).startswith(b"HTTP/1.1 200")
        read = gate.metrics.registry.get_sample_value
        assert read("slipway_gateway_connections_refused_total", {"reason": "address"}) == 1
        assert gate.outcomes() == {"ok": 1}
        for _, writer in held:
            await drop(writer)
        await until_async(lambda: read("slipway_gateway_connections") <= 1)
        assert (await response_head(await connect(gate, "127.0.0.2"))).startswith(b"HTTP/1.1 200")


async def test_idle_connections_are_closed_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.serving.listener._SWEPT_S", 0.0)
    async with upstream(echo) as server, gateway(max_connections=6, max_connections_per_address=2) as gate:
        gate.route(("rev", 100, [server.url]))
        for n in range(6):
            await connect(gate, f"127.0.0.{10 + n}")
        answer = await response_head(await connect(gate, "127.0.0.9"), b"")
        assert answer.startswith(b"HTTP/1.1 503") and b"Retry-After: 1" in answer
        monkeypatch.setattr("slipway_gateway.serving.listener._IDLE_S", 0.0)

        async def answered() -> bytes:
            """May be refused before it has sent its request: idle connections close a moment later."""
            try:
                return await response_head(await connect(gate, "127.0.0.9"))
            except (ConnectionError, asyncio.IncompleteReadError):
                return b""

        await until_async(answered, "room for one", holds=lambda answer: answer.startswith(b"HTTP/1.1 200"))


async def test_incomplete_head_closes_the_connection() -> None:
    async with gateway(header_timeout_s=1.0) as gate:
        gate.route(("rev", 100, []))
        reader, writer = await connect(gate)
        for part in (ASK + ASK[:10], b"\r\nX-A: b", b"\r\nX-B: c"):
            writer.write(part)
            await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            assert (await reader.read()).count(b"HTTP/1.1 200") == 1
        await drop(writer)


async def test_head_in_pieces_and_idle_connection_are_served() -> None:
    async with upstream(echo) as server, gateway(header_timeout_s=1.5) as gate:
        gate.route(("rev", 100, [server.url]))
        pair = await connect(gate)
        pair[1].write(ASK[:12])
        await asyncio.sleep(0.1)
        assert (await response_head(pair, ASK[12:])).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(2.0)
        body = b'{"model":"chat"}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        await pair[0].read(4096)
        assert (await response_head(pair, head + body)).startswith(b"HTTP/1.1 200")
        await drop(pair[1])


async def test_memory_shares_count_a_network_of_ipv6_as_one_client_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseRequest, "remote", property(lambda request: request.headers["X-From"]))
    counted: list[str] = []
    monkeypatch.setattr(MemoryBudget, "open", lambda self, client: [counted.append(client), Account(self, client)][1])
    # The fast lane of the data plane does not ask aiohttp for the address.
    async with upstream(echo) as server, gateway(plane="off") as gate:
        gate.route(("rev", 100, [server.url]))
        counted.clear()
        for address in ("2001:db8:1:2::1", "2001:db8:1:2::ffff", "2001:db8:1:3::1"):
            async with await gate.post(headers={"X-From": address}) as answer:
                assert answer.status == 200
    assert counted == ["address:2001:db8:1:2::/64"] * 2 + ["address:2001:db8:1:3::/64"]


BODY = b'{"model":"chat"}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("behind", [ASK * 5000, ASK * 9, POST % (4 << 20) + b"x" * (4 << 20)])
async def test_a_client_that_pipelines_more_than_is_read_is_closed_and_its_request_cancelled(behind: bytes) -> None:
    """Seen: reading was paused, so the reset of such a client was noticed only when its request ended."""
    began = asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with upstream(never) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        _, writer = await connect(gate)
        writer.write(POST % len(BODY) + BODY)
        await began.wait()
        writer.write(behind)
        await until_async(lambda: server.cancelled == 1 and not gate.edge.running)
        assert gate.outcomes() == {"client_closed": 1}


async def test_a_few_pipelined_requests_are_served_in_order() -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        reader, writer = await connect(gate)
        writer.write((POST % len(BODY) + BODY) * 9)
        received = b""
        async with asyncio.timeout(10):
            while received.count(b"HTTP/1.1 200") < 9:
                received += await reader.read(65536)


async def test_request_timeout_during_a_blocked_write_is_a_timeout() -> None:
    """Seen: the write after it ended by the cancelled future of the blocked one, and counted as `drained`."""

    async def endless(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await out.prepare(request)
        while True:
            await out.write(b'data: {"n": "%s"}\n\n' % (b"x" * 10_000))

    async with upstream(endless) as server, gateway(request_timeout_s=1.0) as gate:
        gate.route(("rev", 100, [server.url]))
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", int(gate.url.rsplit(":", 1)[1])))
        reader, writer = await asyncio.open_connection(sock=opened, limit=1024)
        OPEN.append(writer)
        body = b'{"model":"chat","stream":true}'
        writer.write(POST % len(body) + body)
        await asyncio.sleep(2.0)  # reads nothing meanwhile; sooner would only make the test easier
        received = b""
        async with asyncio.timeout(20):
            while not received.endswith(b"0\r\n\r\n"):
                received = received[-1000:] + (await reader.read(1 << 20) or b"0\r\n\r\n")
        assert b'"code":"timeout"' in received and b"data: [DONE]" in received
        await until_async(lambda: gate.outcomes() == {"timeout": 1})


LINES = b"".join(b"x-%d: %s\r\n" % (n, b"a" * 8000) for n in range(20))


@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["a part", "a whole one"])
async def test_a_head_of_many_long_lines_is_refused_as_a_whole(end: bytes) -> None:
    """Each of its lines may come, and 128 of them held 2 MiB of each connection."""
    async with gateway() as gate:
        gate.route(("rev", 100, []))
        answer = await response_head(await connect(gate), ASK[:-2] + LINES + end)
        assert b" 431 " in answer.splitlines()[0]
        assert gate.outcomes() == {"client_error": 1} and gate.budget.used_bytes == 0
        assert (await response_head(await connect(gate))).startswith(b"HTTP/1.1 200")


async def test_heads_that_do_not_end_count_for_their_address() -> None:
    async with gateway(memory_budget_bytes=4 << 20) as gate:
        gate.route(("rev", 100, []))
        part = ASK[:-2] + LINES[:50_000]
        pairs = [await connect(gate, "127.0.0.2") for _ in range(100)]
        # Few at a time: of heads that come in pieces at the same time more are refused, and the rest is less.
        for sent in range(20, 101, 20):
            for _, writer in pairs[sent - 20 : sent]:
                writer.write(part)

            def settled(sent: int = sent) -> bool:
                refused = sum(bool(reader._buffer) for reader, _ in pairs)
                return gate.budget.held_by("address:127.0.0.2") >= (sent - refused) * len(part)

            await until_async(settled, "each is kept or refused")
        assert sum(bool(reader._buffer) for reader, _ in pairs) >= 100 - (2 << 20) // len(part), "the rest is refused"
        assert gate.budget.used_bytes > 0.7 * (2 << 20), "and it has about half of what is free"
        assert gate.budget.held_by("address:127.0.0.2") == gate.budget.used_bytes <= 2 << 20
        refused = next(reader for reader, _ in pairs if reader._buffer)
        assert (await refused.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 429")
        assert (await response_head(await connect(gate, "127.0.0.3"), part + b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        for _, writer in pairs:
            await drop(writer)
        await until_async(lambda: gate.budget.used_bytes == 0)


async def test_what_comes_behind_a_running_request_is_bounded() -> None:
    going_on = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await going_on.wait()
        return web.json_response({})

    async with upstream(wait) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        body = b'{"model":"chat"}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        reader, writer = await connect(gate)
        writer.write(head + body)
        await until_async(lambda: server.bodies)
        writer.write(ASK[:-2] + LINES[:30_000])
        await until_async(lambda: gate.budget.held_by("address:127.0.0.1") >= 30_000)
        writer.write(LINES[30_000:])
        going_on.set()
        async with asyncio.timeout(60):
            received = await reader.read()
        assert received.startswith(b"HTTP/1.1 200") and received.count(b" 431 ") == 1
        await until_async(lambda: gate.budget.used_bytes == 0)


CHAT = b'{"model":"chat"}'


@pytest.mark.parametrize("line_bytes, behind", [(40_000, 0), (8_000, 3)], ids=["one each", "and three behind it"])
async def test_long_heads_of_requests_count_for_their_address_until_their_end(line_bytes: int, behind: int) -> None:
    """A request in flight holds its head, and those behind it theirs: thousands of 64 KiB were in no account."""
    going_on = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await going_on.wait()
        return web.json_response({})

    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n" + LINES[:line_bytes]
    sent = head + b"\r\n\r\n" + CHAT
    async with upstream(wait) as server, gateway(memory_budget_bytes=4 << 20) as gate:
        gate.route(("rev", 100, [server.url]))
        pairs = [await connect(gate, "127.0.0.2") for _ in range(80)]
        for _, writer in pairs:
            writer.write(sent * (1 + behind))

        def refused() -> int:
            return sum(bool(reader._buffer) or reader.at_eof() or bool(reader.exception()) for reader, _ in pairs)

        most = (2 << 20) // (2 * len(head) * (1 + behind))
        await until_async(lambda: refused() >= 80 - most, "the rest is refused")
        held_bytes = gate.budget.held_by("address:127.0.0.2")
        assert 0.8 * (2 << 20) < held_bytes <= 2 << 20 and refused() < 80
        assert gate.outcomes() == {"client_closed" if behind else "refused": refused()}
        other, writer = await connect(gate, "127.0.0.3")
        writer.write(sent.replace(b"POST", b"PUT"))
        assert (await other.readuntil(b"\r\n"))[9:12] == b"405"
        going_on.set()
        await until_async(lambda: gate.budget.held_by("address:127.0.0.2") == 0, "all requests have ended")
        for _, writer in pairs:
            await drop(writer)
