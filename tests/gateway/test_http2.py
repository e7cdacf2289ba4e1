"""HTTP/2 of the gRPC port on raw connections: what a client may do, what it must not, and what that costs others.

The clients here are bytes made by hand and the library h2, whose rules are switched off where a test breaks them.
"""

import asyncio
import contextlib
import struct
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from aiohttp import web
from hpack import Encoder

from slipway_gateway.grpc_api.reading import MessageReader
from slipway_gateway.http2 import frames
from slipway_gateway.http2.floods import BURST, PER_S, RESET_COST, FloodGuard, block_cost
from slipway_gateway.http2.frames import ErrorCode
from slipway_gateway.http2.header_blocks import HeaderDecoder, RequestHead
from slipway_gateway.http2.outbox import Outbox
from slipway_gateway.http2.stream import Stream
from slipway_gateway.limits.budget import unlimited
from slipway_gateway.settings import GatewaySettings
from testkit.until import until_async

from .grpc_gateway import INFER, GrpcGateway, echo, grpc_gateway, infer
from .harness import upstream

LEFT = "aaaaaaaaaa"
HEAD = [
    (":method", "POST"), (":scheme", "http"), (":path", INFER), (":authority", "x"),
    ("content-type", "application/grpc"), ("te", "trailers"),
]  # fmt: skip


class Client:
    """A connection whose frames are made by hand. Events of the server are read by the library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer, self.encoder = reader, writer, Encoder()
        config = h2.config.H2Configuration(validate_inbound_headers=False)
        self.library = h2.connection.H2Connection(config)
        self.library.initiate_connection()
        self.library.data_to_send()
        self.events: list[h2.events.Event] = []

    def send(self, *made: bytes) -> None:
        self.writer.write(b"".join(made))

    def head(self, stream: int, fields: list[tuple[str, str]] | None = None, *, ends: bool = False) -> bytes:
        return frames.header_frames(stream, self.encoder.encode(fields or HEAD), ends_stream=ends)

    def call(self, stream: int, message: bytes = b"", fields: list[tuple[str, str]] | None = None) -> bytes:
        body = b"\0" + len(message).to_bytes(4) + message
        return self.head(stream, fields) + frames.frame(frames.DATA, frames.END_STREAM, stream, body)

    async def received(self, until: Any, timeout_s: float = 5.0) -> list[frames.Frame]:
        """Frames of the server up to the one that `until` is true for; to the end of the connection with None."""
        found: list[frames.Frame] = []
        async with asyncio.timeout(timeout_s):
            while not (found and until is not None and until(found[-1])):
                try:
                    head = await self.reader.readexactly(9)
                    length = int.from_bytes(head[:3])
                    payload = await self.reader.readexactly(length)
                except (asyncio.IncompleteReadError, ConnectionResetError):
                    assert until is None, f"the connection ended after {found}"
                    return found
                found.append(frames.Frame(head[3], head[4], int.from_bytes(head[5:]), payload))
        return found

    async def goaway(self, timeout_s: float = 5.0) -> ErrorCode:
        last = (await self.received(lambda one: one.kind == frames.GOAWAY, timeout_s))[-1]
        return ErrorCode(frames.word(last.payload[4:]))

    async def ended(self, stream: int) -> list[frames.Frame]:
        def ends(one: frames.Frame) -> bool:
            closing = one.kind == frames.RST_STREAM or one.flags & frames.END_STREAM
            return one.stream_id == stream and one.kind in (frames.HEADERS, frames.DATA, frames.RST_STREAM) and closing

        return await self.received(ends)


def settings(*values: tuple[int, int]) -> bytes:
    return frames.settings(values)


@contextlib.asynccontextmanager
async def connected(made: GrpcGateway, *, begins: bool = True) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
    client = Client(reader, writer)
    if begins:
        client.send(frames.PREFACE, settings())
    try:
        yield client
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[GrpcGateway]:
    async with upstream(echo) as server, grpc_gateway(**changes) as made:
        made.gate.route((LEFT, 100, [server.url]))
        yield made


async def still_serves(made: GrpcGateway) -> None:
    assert await made.call("ModelInfer", infer()) == infer()


async def test_a_call_has_a_head_a_message_and_a_status() -> None:
    async with serving() as made, connected(made) as client:
        client.send(client.call(1, infer()))
        found = [one for one in await client.ended(1) if one.stream_id == 1]
        assert [one.kind for one in found] == [frames.HEADERS, frames.DATA, frames.HEADERS]
        assert found[1].payload == b"\0" + len(infer()).to_bytes(4) + infer()
        assert b"grpc-status\x010" in found[2].payload


@pytest.mark.parametrize("size", [1, 2, 7, 100])
async def test_a_call_is_read_wherever_its_bytes_are_cut(size: int) -> None:
    async with serving() as made, connected(made, begins=False) as client:
        sent = frames.PREFACE + settings() + client.call(1, infer(payload=bytes(300)))
        for at in range(0, len(sent), size):
            client.send(sent[at : at + size])
            await client.writer.drain()
            if size < 100 and at % 50 == 0:
                await asyncio.sleep(0)
        assert b"grpc-status\x010" in (await client.ended(1))[-1].payload


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + frames.frame(frames.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + settings() + frames.frame(frames.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + settings() + frames.frame(frames.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + settings() + frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(9)), ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + settings() + b"\xff\xff\xff\0\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR),
        (frames.PREFACE + settings() + frames.frame(frames.HEADERS, 4, 1, b"\xff" * 4), ErrorCode.COMPRESSION_ERROR),
        (frames.PREFACE + settings() + frames.frame(frames.HEADERS, 12, 1, b"\x09\x82"), ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + settings((4, 1 << 31)), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.PREFACE + settings() + frames.window_update(0, (1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR),
    ],
)  # fmt: skip
async def test_what_breaks_a_rule_of_connections_ends_this_one_alone(sent: bytes, code: ErrorCode) -> None:
    async with serving() as made, connected(made, begins=False) as client:
        client.send(sent)
        assert await client.goaway() is code
        await client.received(None)
        await still_serves(made)


@pytest.mark.parametrize(
    "fields",
    [
        [*HEAD, ("Upper", "x")], [*HEAD, ("a b", "x")], [*HEAD, ("a", "x\r\ny: z")], [*HEAD, ("a", "x\0")],
        [*HEAD, ("a", " x")],
        [*HEAD, ("connection", "close")], [*HEAD, ("te", "gzip")], [*HEAD, ("transfer-encoding", "chunked")],
        [*HEAD, ("content-length", "7")], [*HEAD, ("content-length", "-1")], [*HEAD, ("content-length", "9" * 30)],
        [*HEAD, (":path", "/again")], [*HEAD, (":status", "200")], HEAD[1:], [HEAD[0], *HEAD[2:]],
        [*HEAD[:2], *HEAD[3:]],
        [*HEAD[3:], *HEAD[:3]], [(":method", "POST\r\nx: y"), *HEAD[1:]], [*HEAD[:2], (":path", ""), *HEAD[3:]],
    ],
)  # fmt: skip
async def test_a_malformed_head_ends_its_stream_alone(fields: list[tuple[str, str]]) -> None:
    async with serving() as made, connected(made) as client:
        client.send(client.call(1, infer(), fields), client.call(3, infer()))
        found = await client.ended(3)
        assert frames.rst_stream(1, ErrorCode.PROTOCOL_ERROR)[9:] in [
            one.payload for one in found if one.stream_id == 1
        ]
        assert b"grpc-status\x010" in found[-1].payload
        assert made.gate.outcomes() == {"ok": 1}


async def test_a_head_above_the_limit_is_refused_and_the_next_call_of_the_connection_is_served() -> None:
    async with serving(max_header_bytes=16384) as made, connected(made) as client:
        client.send(client.call(1, infer(), [*HEAD, ("a", "x" * 20_000)]))
        refused = (await client.ended(1))[-1]
        assert b"grpc-status\x018" in refused.payload
        client.send(client.call(3, infer()))
        assert b"grpc-status\x010" in (await client.ended(3))[-1].payload


async def test_a_small_block_that_becomes_large_ends_its_connection() -> None:
    """One entry of the table, four thousand times: 20 KiB of a block that decode to 16 MiB."""
    async with serving() as made, connected(made) as client:
        entry = b"\x40\x01a\x7f\x81\x1e" + b"x" * 4000  # a literal that is added to the table
        client.send(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, entry + b"\xbe" * 4000))
        assert await client.goaway() is ErrorCode.ENHANCE_YOUR_CALM
        await still_serves(made)


async def test_a_block_without_an_end_ends_its_connection() -> None:
    async with serving() as made, connected(made) as client:
        client.send(frames.frame(frames.HEADERS, 0, 1, b""))
        client.send(*[frames.frame(frames.CONTINUATION, 0, 1, b"\x40\x01a\x01b" * 100) for _ in range(200)])
        assert await client.goaway() is ErrorCode.ENHANCE_YOUR_CALM
        await still_serves(made)


@pytest.mark.parametrize(
    "sent",
    [
        frames.frame(frames.PING, 0, 0, bytes(8)), settings((4, 70_000)), frames.frame(frames.DATA, 0, 1),
        frames.frame(frames.PRIORITY, 0, 9, bytes(5)), frames.frame(200, 0, 0), frames.window_update(1, 1),
    ],
)  # fmt: skip
async def test_a_flood_of_frames_without_use_ends_its_connection(sent: bytes) -> None:
    async with serving() as made, connected(made) as client:
        client.send(client.head(1))
        reading = asyncio.create_task(client.goaway(20.0))
        with contextlib.suppress(ConnectionError):
            while not reading.done():
                client.send(sent * 500)
                await client.writer.drain()
                await asyncio.sleep(0)
        assert await reading is ErrorCode.ENHANCE_YOUR_CALM
        await still_serves(made)


async def test_streams_that_are_reset_at_once_end_their_connection_and_start_no_more_work_than_is_allowed() -> None:
    """Rapid reset (CVE-2023-44487)."""
    async with serving() as made, connected(made) as client:
        reading, stream, began_s = asyncio.create_task(client.goaway(30.0)), 1, time.monotonic()
        with contextlib.suppress(ConnectionError):
            while not reading.done():
                client.send(client.call(stream, infer()), frames.rst_stream(stream, ErrorCode.CANCEL))
                await client.writer.drain()
                stream += 2
        assert await reading is ErrorCode.ENHANCE_YOUR_CALM
        await until_async(lambda: made.server.running == 0)
        allowed = (BURST + PER_S * (time.monotonic() - began_s)) / RESET_COST
        assert sum(made.gate.outcomes().values()) <= allowed + 1
        await still_serves(made)


class Full(asyncio.Transport):
    """A transport whose client reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.aborted = 0, False

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.held += len(data)

    def get_write_buffer_size(self) -> int:
        return self.held

    def abort(self) -> None:
        self.aborted = True


async def test_a_client_that_pings_and_reads_nothing_is_cut_off() -> None:
    transport = Full()
    outbox = Outbox(transport, FloodGuard(0.0), unlimited())
    outbox.pause()
    for _ in range(1_000_000):
        outbox.write(frames.frame(frames.PING, frames.ACK, 0, bytes(8)))
        if transport.aborted:
            break
    assert transport.aborted and transport.held < 2 << 20


async def test_a_status_waits_for_the_transport_and_not_for_a_window() -> None:
    outbox = Outbox(Full(), FloodGuard(0.0), unlimited())
    outbox.window = 0
    outbox.pause()
    waiting = asyncio.create_task(outbox.ready())
    body = asyncio.create_task(outbox.turn())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.resume()
    await asyncio.wait_for(waiting, 5)
    assert not body.done()
    outbox.widen(1)
    await asyncio.wait_for(body, 5)


async def test_more_than_the_window_takes_ends_the_stream_alone() -> None:
    """The call waits for its server, so nothing reads what comes after its message."""
    going_on = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await going_on.wait()
        return await echo(request)

    async with upstream(wait) as server, grpc_gateway() as made, connected(made) as client:
        made.gate.route((LEFT, 100, [server.url]))
        client.send(client.head(1))
        body = b"\0" + len(infer()).to_bytes(4) + infer()
        client.send(frames.frame(frames.DATA, 0, 1, body), client.call(3, infer()))
        await until_async(lambda: len(server.seen) == 2)
        client.send(*[frames.frame(frames.DATA, 0, 1, bytes(16_384)) for _ in range(5)])
        found = (await client.received(lambda one: one.kind in (frames.RST_STREAM, frames.GOAWAY)))[-1]
        assert found == frames.Frame(frames.RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.FLOW_CONTROL_ERROR))
        going_on.set()
        assert b"grpc-status\x010" in (await client.ended(3))[-1].payload


async def test_a_response_waits_for_the_windows_of_its_client_and_is_cut_to_them() -> None:
    async with serving() as made, connected(made, begins=False) as client:
        client.send(frames.PREFACE, settings((frames.INITIAL_WINDOW_SIZE, 10)))
        sent = infer(payload=bytes(range(40)))
        client.send(client.call(1, sent))
        first = (await client.received(lambda one: one.kind == frames.DATA))[-1]
        assert len(first.payload) == 10
        client.send(frames.window_update(1, 3))
        second = (await client.received(lambda one: one.kind == frames.DATA))[-1]
        assert len(second.payload) == 3
        client.send(settings((frames.INITIAL_WINDOW_SIZE, 1000)))
        rest = [one for one in await client.ended(1) if one.kind == frames.DATA]
        whole = first.payload + second.payload + b"".join(one.payload for one in rest)
        assert whole == b"\0" + len(sent).to_bytes(4) + sent


async def test_streams_share_the_window_of_the_connection_in_turns() -> None:
    async with serving() as made, connected(made, begins=False) as client:
        client.send(frames.PREFACE, settings((frames.INITIAL_WINDOW_SIZE, 1 << 20)))
        for stream in (1, 3, 5):
            message = infer(payload=bytes(60_000))
            body = b"\0" + len(message).to_bytes(4) + message
            pieces = [body[at : at + 16384] for at in range(0, len(body), 16384)]
            client.send(client.head(stream), *[frames.frame(frames.DATA, 0, stream, piece) for piece in pieces])
            client.send(frames.frame(frames.DATA, frames.END_STREAM, stream))
        got: dict[int, int] = {1: 0, 3: 0, 5: 0}
        ended: set[int] = set()
        async with asyncio.timeout(10):
            while len(ended) < 3:
                one = (await client.received(lambda _: True))[-1]
                if one.kind == frames.DATA:
                    got[one.stream_id] += len(one.payload)
                    client.send(frames.window_update(0, len(one.payload)))
                if one.kind == frames.HEADERS and one.flags & frames.END_STREAM:
                    ended.add(one.stream_id)
        assert set(got.values()) == {len(infer(payload=bytes(60_000))) + 5}


async def test_padding_and_a_priority_are_passed_over() -> None:
    async with serving() as made, connected(made) as client:
        block = client.encoder.encode(HEAD)
        flags = frames.END_HEADERS | frames.PADDED | frames.HAS_PRIORITY
        client.send(frames.frame(frames.HEADERS, flags, 1, b"\x07" + bytes(4) + b"\x10" + block + bytes(7)))
        body = b"\0" + len(infer()).to_bytes(4) + infer()
        client.send(frames.frame(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\xff" + body + bytes(255)))
        assert b"grpc-status\x010" in (await client.ended(1))[-1].payload


async def test_calls_that_began_before_a_client_confirmed_goaway_are_served_and_later_ones_are_not() -> None:
    async with serving() as made, connected(made) as client:
        client.send(client.call(1, infer()))
        await client.ended(1)
        draining = asyncio.create_task(made.server.drain())
        first = await client.received(lambda one: one.kind == frames.PING)
        assert [one.payload[:4] for one in first if one.kind == frames.GOAWAY] == [struct.pack(">I", (1 << 31) - 1)]
        client.send(client.call(3, infer()))
        assert b"grpc-status\x010" in (await client.ended(3))[-1].payload
        client.send(client.head(5))
        client.send(frames.frame(frames.PING, frames.ACK, 0, first[-1].payload))
        last = (await client.received(lambda one: one.kind == frames.GOAWAY))[-1]
        assert frames.word(last.payload) == 5
        client.send(client.call(7, infer()))
        body = b"\0" + len(infer()).to_bytes(4) + infer()
        client.send(frames.frame(frames.DATA, frames.END_STREAM, 5, body))
        found = await client.received(None)
        assert {one.stream_id for one in found if one.kind == frames.HEADERS} == {5}
        await asyncio.wait_for(draining, 5)
        assert made.gate.outcomes() == {"ok": 3}


async def test_a_client_that_confirms_nothing_is_drained_too() -> None:
    async with serving() as made, connected(made) as client:
        client.send(client.call(1, infer()))
        await client.ended(1)
        await asyncio.wait_for(made.server.drain(), 10)
        await client.received(None)


async def test_an_old_connection_takes_no_more_calls_and_its_running_ones_go_on() -> None:
    going_on = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await going_on.wait()
        return await echo(request)

    async with upstream(wait) as server, grpc_gateway(grpc_connection_age_s=0.3) as made, connected(made) as client:
        made.gate.route((LEFT, 100, [server.url]))
        client.send(client.call(1, infer()))
        ping = (await client.received(lambda one: one.kind == frames.PING))[-1]
        client.send(frames.frame(frames.PING, frames.ACK, 0, ping.payload))
        await client.received(lambda one: one.kind == frames.GOAWAY)
        going_on.set()
        found = await client.received(None)
        assert b"grpc-status\x010" in found[-1].payload


@pytest.mark.parametrize("sent", [b"", frames.PREFACE[:5], frames.PREFACE, frames.PREFACE + settings()])
async def test_connections_that_say_nothing_end(sent: bytes) -> None:
    async with serving(header_timeout_s=0.3, keepalive_timeout_s=0.3) as made, connected(made, begins=False) as client:
        client.send(sent)
        await client.received(None)


async def test_a_head_that_does_not_end_ends_its_connection_in_time_though_a_call_runs() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with upstream(hang) as server, grpc_gateway(header_timeout_s=0.3) as made, connected(made) as client:
        made.gate.route((LEFT, 100, [server.url]))
        client.send(client.call(1, infer()))
        await until_async(lambda: server.seen)
        client.send(frames.frame(frames.HEADERS, 0, 3, b""))
        assert await client.goaway() is ErrorCode.ENHANCE_YOUR_CALM
        await until_async(lambda: server.cancelled)


async def test_connections_are_bounded() -> None:
    async with serving(max_connections=2, max_connections_per_address=2) as made, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            client = await stack.enter_async_context(connected(made))
            client.send(client.call(1, infer()))
            await client.ended(1)
        third = await stack.enter_async_context(connected(made))
        assert await third.goaway() is ErrorCode.ENHANCE_YOUR_CALM


async def test_streams_above_the_limit_of_a_connection_are_refused_as_never_begun() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with upstream(hang) as server, grpc_gateway() as made, connected(made) as client:
        made.gate.route((LEFT, 100, [server.url]))
        for stream in range(1, 2 * 1024 + 1, 2):
            client.send(client.head(stream))
        client.send(client.head(2049))
        found = await client.ended(2049)
        assert found[-1] == frames.Frame(frames.RST_STREAM, 0, 2049, struct.pack(">I", ErrorCode.REFUSED_STREAM))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([(":method", "GET"), *HEAD[1:]], b"405"),
        ([*HEAD[:4], ("content-type", "application/json")], b"415"),
        ([*HEAD[:4], ("content-type", "application/grpc+json")], b"415"),
    ],
)
async def test_what_is_no_grpc_gets_an_answer_of_http(fields: list[tuple[str, str]], status: bytes) -> None:
    async with serving() as made, connected(made) as client:
        client.send(client.head(1, fields, ends=True))
        found = await client.ended(1)
        assert status in next(one.payload for one in found if one.kind == frames.HEADERS and one.stream_id == 1)
        assert b"gRPC" in b"".join(one.payload for one in found if one.kind == frames.DATA)
        assert made.gate.outcomes() == {"client_error": 1}


@pytest.mark.parametrize("value", ["", "S", "5", "123456789S", "-1S", "1.5S", "1s", "١S"])
async def test_a_deadline_that_is_none_is_named(value: str) -> None:
    async with serving() as made, connected(made) as client:
        client.send(client.call(1, infer(), [*HEAD, ("grpc-timeout", value)]))
        assert b"grpc-status\x013" in (found := (await client.ended(1))[-1].payload) and b"grpc-timeout" in found


async def test_h2_of_python_speaks_with_it() -> None:
    """Another implementation of the protocol, with a response larger than its windows."""
    async with serving() as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        connection.initiate_connection()
        sent = infer(payload=bytes(40_000))
        connection.send_headers(1, HEAD)
        body, got, trailers = b"\0" + len(sent).to_bytes(4) + sent, b"", {}
        for at in range(0, len(body), 16_000):
            connection.send_data(1, body[at : at + 16_000], end_stream=at + 16_000 >= len(body))
        async with asyncio.timeout(10):
            while not trailers:
                writer.write(connection.data_to_send())
                for event in connection.receive_data(await reader.read(65536)):
                    if isinstance(event, h2.events.DataReceived):
                        got += event.data
                        connection.acknowledge_received_data(event.flow_controlled_length, 1)
                    if isinstance(event, h2.events.TrailersReceived):
                        trailers = dict(event.headers)
        writer.close()
        assert got == body and trailers["grpc-status"] == "0"


@pytest.mark.finding("F10")
@pytest.mark.parametrize("size", [2, 17])
async def test_what_is_not_read_takes_about_as_much_memory_as_it_brings(size: int) -> None:
    made = Stream(
        1,
        RequestHead("POST", "http", INFER, "", [], -1, 0),
        Credits(),
        Outbox(Full(), FloodGuard(0.0), unlimited()),
        receive_window=65_535,
        ended=False,
    )
    brought = 60_000 // size * size
    pieces = [bytes([n % 256]) * size for n in range(brought // size)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for piece in pieces:
        made.take(bytes(bytearray(piece)), size, ends=False)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert brought <= taken < 1.3 * brought
    assert made.read_now() == b"".join(pieces) and made.read_now() == b""
    made.take(b"abc", 3, ends=False)
    assert made.read_now() == b"abc"


@pytest.mark.finding("F10")
async def test_a_message_in_many_pieces_takes_no_more_than_a_few_times_its_length() -> None:
    body = b"\0" + (100_000).to_bytes(4) + bytes(100_000)
    made = Stream(
        1,
        RequestHead("POST", "http", INFER, "", [], -1, 0),
        Credits(),
        Outbox(Full(), FloodGuard(0.0), unlimited()),
        receive_window=1 << 20,
        ended=False,
    )
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    reading = asyncio.create_task(MessageReader(made, GatewaySettings()).message(unlimited(), 60.0))
    for at in range(0, len(body), 2):
        made.take(body[at : at + 2], 2, ends=False)
        await asyncio.sleep(0)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert await reading == body[5:]
    assert peak < 4 * len(body)


@pytest.mark.finding("F10")
async def test_all_that_a_connection_holds_counts_for_its_address() -> None:
    """Heads, unread DATA, a head that has not ended, and answers that are not read."""
    going_on = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await going_on.wait()
        return await echo(request)

    async with upstream(wait) as server, grpc_gateway(memory_budget_bytes=4 << 20) as made:
        made.gate.route((LEFT, 100, [server.url]))
        budget, owner = made.gate.budget, "address:127.0.0.1"
        async with connected(made) as client:
            client.send(client.head(1, [*HEAD, *[(f"x-{n}", "") for n in range(100)]]))
            await until_async(lambda: made.server.running == 1)
            with_head = budget.held_by(owner)
            assert 100 * 160 < with_head < 80_000
            body = b"\0" + len(infer()).to_bytes(4) + infer()
            client.send(frames.frame(frames.DATA, 0, 1, body))
            await until_async(lambda: server.seen)
            client.send(frames.frame(frames.DATA, 0, 1, bytes(16_000)))
            await until_async(lambda: budget.held_by(owner) >= with_head + 16_000)
            client.send(frames.frame(frames.HEADERS, 0, 3, bytes(10_000)))
            await until_async(lambda: budget.held_by(owner) >= with_head + 26_000)
            going_on.set()
        await until_async(lambda: budget.used_bytes == 0)


@pytest.mark.finding("F10")
async def test_streams_beyond_the_memory_of_their_address_are_refused_and_another_address_is_served() -> None:
    async with serving(memory_budget_bytes=2 << 20) as made, connected(made) as client:
        client.send(*[client.head(1 + 2 * n) for n in range(200)])
        refused = await client.received(lambda one: one.kind == frames.RST_STREAM)
        assert refused[-1].payload == struct.pack(">I", ErrorCode.REFUSED_STREAM)
        assert made.gate.budget.held_by("address:127.0.0.1") <= 1 << 20
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port, local_addr=("127.0.0.3", 0))
        neighbour = Client(reader, writer)
        neighbour.send(frames.PREFACE, settings(), neighbour.call(1, infer()))
        assert b"grpc-status\x010" in (await neighbour.ended(1))[-1].payload
        writer.close()


class Credits:
    def consumed(self, size_bytes: int) -> None:
        pass


@pytest.mark.parametrize("block", [b"\x20" * 3, b"\x3f\xe1\x1f" * 3 + b"\x82", b"\x20\x3f\x00\x20"])
def test_a_block_that_resizes_its_table_often_is_malformed(block: bytes) -> None:
    with pytest.raises(frames.ConnectionFault):
        HeaderDecoder(16384).decode(block)


@pytest.mark.parametrize("block", [b"\x82", b"\x20\x82", b"\x20\x3f\xe1\x1f\x82", b"\x82\x83", b""])
def test_two_changes_of_the_tables_size_are_taken(block: bytes) -> None:
    assert len(HeaderDecoder(16384).decode(block)) <= 2


def test_only_long_heads_cost_their_decoding() -> None:
    assert block_cost(2048, 32) == 0 and block_cost(2048 + 1280, 32) == 10 and block_cost(100, 400) == 368
