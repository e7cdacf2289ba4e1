"""Published attacks on HTTP/2 of 2019 to 2026, as bytes to a gateway's process; nothing here knows its code.

Each attack is a row of a table: what a client sends, whether its connection must end, how many requests may begin at
the model, and by how much the process may grow. A neighbour on another connection is served meanwhile.
"""

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from devcluster.ports import reserve_port

from .harness import drop, upstream
from .test_process import Process
from .test_process import gateway as gateway_process

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(15), pytest.mark.timeout(300)]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, _, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
ENHANCE_YOUR_CALM, COMPRESSION_ERROR, FLOW_CONTROL_ERROR = 11, 9, 3
WINDOW = 65_535
RESET_BY_PEER = -1
ATTACKER, NEIGHBOUR = "127.0.0.2", "127.0.0.3"


# -- bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def field(name: str, value: str) -> bytes:
    """A literal without an index and without Huffman codes (RFC 7541, section 6.2.2)."""
    assert max(len(name), len(value)) < 127
    return bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()


# :method POST, :scheme http and :path by the static table's names.
_CALL = b"\x83\x86" + field(":path", "/inference.GRPCInferenceService/ModelInfer") + field(":authority", "x")
_CALL += field("content-type", "application/grpc") + field("te", "trailers")
MODEL, STUCK = (bytes((0x0A, len(name))) + name for name in (b"chat", b"stuck"))  # a ModelInferRequest's first field


def head(stream: int, *more: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, _CALL + b"".join(more))


def message(content: bytes = MODEL) -> bytes:
    return b"\0" + len(content).to_bytes(4) + content


def call(stream: int, content: bytes = MODEL, *more: bytes, ends: bool = True) -> bytes:
    return head(stream, *more) + frame(DATA, END_STREAM if ends else 0, stream, message(content))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4))


def streams(first: int = 1) -> Iterator[int]:
    stream = first
    while stream < 1 << 31:
        yield stream
        stream += 2


# -- what clients send

PAUSE = b""  # the client waits for a moment


def reset(reason: Callable[[int], bytes], *more: bytes, ends: bool = True) -> Iterator[bytes]:
    """Calls that are given the time to begin at the model, and then ended by what `reason` sends for a stream."""
    opened = streams()
    while True:
        some = [next(opened) for _ in range(50)]
        yield b"".join(call(stream, MODEL, *more, ends=ends) for stream in some)
        yield PAUSE
        yield b"".join(map(reason, some))


def flood(*frames: bytes, opens: bytes = b"") -> Iterator[bytes]:
    yield opens
    sent = b"".join(frames)
    while True:
        yield sent * (1 + 8192 // len(sent))


def continuation() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, _CALL)
    yield from flood(frame(CONTINUATION, 0, 1, field("a", "b")))


def empty_continuation() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, _CALL)
    yield from flood(frame(CONTINUATION, 0, 1))


def hpack_bomb() -> Iterator[bytes]:
    """An entry of 4000 bytes in the table, then a thousand references of one byte to it in each block."""
    entry = b"\x40\x01a\x7f\x81\x1e" + b"x" * 4000
    for stream in streams():
        yield frame(HEADERS, END_HEADERS, stream, _CALL + (entry if stream == 1 else b"") + b"\xbe" * 1000)


def small_references() -> Iterator[bytes]:
    """As above with an entry so small that each block stays within what a head may have."""
    for stream in streams():
        block = _CALL + (b"\x40\x01a\x00" if stream == 1 else b"") + b"\xbe" * 400
        yield frame(HEADERS, END_HEADERS, stream, block)


def table_sizes() -> Iterator[bytes]:
    """Changes of the table's size, of a byte each: the decoder works for each of them."""
    for stream in streams():
        yield frame(HEADERS, END_HEADERS, stream, b"\x20" * 16_000 + _CALL)


def huffman() -> Iterator[bytes]:
    """Heads of one long field whose codes are as short as can be: "0" takes five bits."""
    text = b"\x00" * 8000
    length = len(text) - 127
    coded = b"\xff" + bytes((length & 127 | 128, length >> 7)) + text
    for stream in streams():
        yield frame(HEADERS, END_HEADERS, stream, _CALL + b"\x00\x01a" + coded)


def empty_fields() -> Iterator[bytes]:
    """Fields with neither a name nor a value (CVE-2019-9516)."""
    for stream in streams():
        yield frame(HEADERS, END_HEADERS, stream, _CALL + b"\x00\x00\x00" * 1000)


def dependency_cycles() -> Iterator[bytes]:
    """Streams that depend on one another in turns (CVE-2019-9513)."""
    while True:
        for stream in range(1, 2001, 2):
            yield frame(PRIORITY, 0, stream, ((stream + 2) % 2001 | 1 << 31).to_bytes(4) + b"\xff")


def slow_read() -> Iterator[bytes]:
    """A thousand responses of 100 KB, for which the client opens no window (CVE-2019-9517)."""
    yield frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)) + window_update(0, 1 << 30)
    content = MODEL + b"\x3a\xa0\x8d\x06" + bytes(100_000)
    body = message(content)
    for _, stream in zip(range(1000), streams(), strict=False):
        yield head(stream)
        for at in range(0, len(body), 16_384):
            part = body[at : at + 16_384]
            yield frame(DATA, END_STREAM if at + 16_384 >= len(body) else 0, stream, part)


def unread_answers() -> Iterator[bytes]:
    """Calls that are refused by their head alone, by a client that reads nothing."""
    for stream in streams():
        yield head(stream, field("grpc-timeout", "never"), flags=END_HEADERS | END_STREAM)


def small_frames(size: int) -> Iterator[bytes]:
    """Calls that wait for a slow model, then frames of a few bytes up to the windows of their streams."""
    for _, stream in zip(range(60), streams(), strict=False):
        yield call(stream, STUCK, ends=False)
        left = WINDOW - len(message(STUCK)) - 100
        yield frame(DATA, 0, stream, bytes(size)) * (left // size)


def heads_alone() -> Iterator[bytes]:
    for _, stream in zip(range(1020), streams(), strict=False):
        yield head(stream)


# -- the table


@dataclass(frozen=True)
class Attack:
    """`sent`: pieces of bytes. `code`: of the GOAWAY that ends the connection; None: it may stay. `begun`: requests at
    the model. `grows_mib`: of the process. `reads`: whether the client reads what comes. `finding`: of the review."""

    name: str
    sent: Callable[[], Iterator[bytes]]
    code: int | None = ENHANCE_YOUR_CALM
    begun: int = 0
    grows_mib: int = 24
    reads: bool = True
    finding: str = "F11"


# A connection has 4000 tokens and 1000 more each second; a stream that was begun and reset costs eight.
RESET = 800
ZERO, DEPENDENCY = (lambda stream: window_update(stream, 0)), (lambda stream: stream.to_bytes(4) + b"\x10")
ATTACKS = [
    Attack("rapid reset, CVE-2023-44487", lambda: reset(lambda one: frame(RST_STREAM, 0, one, bytes(4))), begun=RESET),
    Attack("MadeYouReset, CVE-2025-8671: a window by nothing", lambda: reset(ZERO, ends=False), begun=RESET),
    Attack(
        "MadeYouReset: a window beyond its maximum",
        lambda: reset(lambda one: window_update(one, (1 << 31) - 1), ends=False),
        begun=RESET,
    ),
    Attack(
        "MadeYouReset: HEADERS after the end",
        lambda: reset(lambda one: frame(HEADERS, END_HEADERS | END_STREAM, one, field("a", "b"))),
        begun=RESET,
    ),
    Attack(
        "MadeYouReset: DATA after the end", lambda: reset(lambda one: frame(DATA, 0, one, b"x")), begun=RESET
    ),
    Attack(
        "MadeYouReset: PRIORITY of another length",
        lambda: reset(lambda one: frame(PRIORITY, 0, one, bytes(4))),
        begun=RESET,
    ),
    Attack(
        "MadeYouReset: a stream that depends on itself",
        lambda: reset(lambda one: frame(PRIORITY, 0, one, DEPENDENCY(one))),
        begun=RESET,
    ),
    Attack(
        "MadeYouReset: another length than content-length",
        lambda: reset(lambda one: frame(DATA, END_STREAM, one), field("content-length", "999"), ends=False),
        begun=RESET,
    ),
    Attack("malformed heads", lambda: (head(one, field("Bad", "x")) for one in streams())),
    Attack("heads that depend on themselves", lambda: (
        frame(HEADERS, END_HEADERS | 0x20, one, DEPENDENCY(one) + _CALL) for one in streams())),
    Attack("CONTINUATION flood, CVE-2024-27316", continuation),
    Attack("CONTINUATION flood of empty frames", empty_continuation),
    Attack("settings flood, CVE-2019-9515", lambda: flood(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 70_000)))),
    Attack("ping flood, CVE-2019-9512", lambda: flood(frame(PING, 0, 0, bytes(8)))),
    Attack("pings whose answers are not read", lambda: flood(frame(PING, 0, 0, bytes(8))), reads=False),
    Attack("empty DATA flood, CVE-2019-9518", lambda: flood(frame(DATA, 0, 1), opens=head(1))),
    Attack("priority flood", lambda: flood(frame(PRIORITY, 0, 9, bytes(5)))),
    Attack("dependency cycles, CVE-2019-9513", dependency_cycles),
    Attack("window updates of one byte", lambda: flood(window_update(1, 1), opens=head(1))),
    Attack("frames of an unknown kind", lambda: flood(frame(200, 0, 0))),
    Attack("HPACK bomb, CVE-2016-6581", hpack_bomb),
    Attack("HPACK bomb of small references", small_references),
    Attack("changes of the table's size", table_sizes, code=COMPRESSION_ERROR),
    Attack("long Huffman codes", huffman),
    Attack("fields without a name, CVE-2019-9516", empty_fields),
    Attack("slow read of many streams, CVE-2019-9517", slow_read, code=None, begun=1000, grows_mib=160),
    Attack("refusals that are not read", unread_answers, code=None, grows_mib=32, reads=False, finding="F10"),
    Attack("DATA in frames of two bytes", lambda: small_frames(2), begun=2, finding="F10"),
    Attack("DATA in frames of 16 bytes", lambda: small_frames(16), code=None, begun=60, grows_mib=12, finding="F10"),
    Attack("heads without messages", heads_alone, code=None, grows_mib=32, finding="F2"),
]  # fmt: skip


# -- the gateway, a neighbour and an attacker


class Connection:
    """A connection of bytes. `ended`: with the code of GOAWAY. `quiet`: all that was sent before a ping was read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.ended, self.quiet = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def frames(self) -> AsyncIterator[tuple[int, int, int, bytes]]:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                begins = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(begins[:3]))
                yield begins[3], begins[4], int.from_bytes(begins[5:]), payload

    async def follow(self) -> None:
        """Reads to the end of the connection."""
        code = RESET_BY_PEER
        async for kind, flags, _, payload in self.frames():
            if kind == GOAWAY:
                code = int.from_bytes(payload[4:8])
            if kind == PING and flags:
                self.quiet.set()
        self.quiet.set()
        if not self.ended.done():
            self.ended.set_result(code)


@contextlib.asynccontextmanager
async def connected(port: int, address: str, limit: int = 1 << 16) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), limit=limit)
    writer.write(PREFACE + frame(SETTINGS, 0, 0))
    try:
        yield Connection(reader, writer)
    finally:
        await drop(writer)


async def one_call(connection: Connection, stream: int) -> bool:
    """Whether a call of a connection that makes one after the other is answered with status 0."""
    connection.writer.write(call(stream) + frame(SETTINGS, 1, 0))
    async for kind, flags, number, payload in connection.frames():
        if number == stream and kind == HEADERS and flags & END_STREAM:
            return b"grpc-status\x010" in payload
    return False


async def neighbour(port: int, done: asyncio.Event) -> list[bool]:
    """Calls of another client, one after the other, until `done`; at least two."""
    answered: list[bool] = []
    async with connected(port, NEIGHBOUR) as connection:
        for stream in streams():
            answered.append(await one_call(connection, stream))
            if (done.is_set() and len(answered) > 1) or not answered[-1]:
                return answered
            await asyncio.sleep(0.01)
    return answered


def memory_kib(process: Process, name: str) -> int:
    lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name)))


class Model:
    """Answers to one model, and never to the other. `begun`: requests of attackers."""

    def __init__(self) -> None:
        self.begun = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.begun += 1
        if request.path.startswith("/v2/models/stuck"):
            await asyncio.Event().wait()
        return web.Response(body=body, content_type="application/x-protobuf")


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Process, int, Model]]:
    model = Model()
    async with upstream(model.answer) as server:
        path, port = folder / "routes.yaml", reserve_port()
        backend = f"backends: [{{revision: v1, weight: 100, endpoints: ['{server.url}']}}]"
        path.write_text("models:\n" + "".join(f"  {name}: {{salt: '1', {backend}}}\n" for name in ("chat", "stuck")))
        flags = (f"--routes={path}", f"--grpc-port={port}", "--memory-budget-bytes=67108864")
        async with gateway_process(*flags, "--grpc-connection-age=3000") as process:
            yield process, port, model


async def send(connection: Connection, pieces: Iterator[bytes], seconds: float) -> None:
    """Sends until the connection ends, the pieces do, or the time is over."""
    ends_s = time.monotonic() + seconds
    size = 0
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            if connection.ended.done() or time.monotonic() > ends_s:
                return
            if piece == PAUSE:
                await asyncio.sleep(0.005)
            connection.writer.write(piece)
            size += len(piece)
            if size > 1 << 14:
                size = 0
                await asyncio.wait_for(connection.writer.drain(), max(0.1, ends_s - time.monotonic()))
                await asyncio.sleep(0)


@pytest.mark.finding("F10", "F11")
@pytest.mark.parametrize(
    "attack", [pytest.param(one, marks=pytest.mark.finding(one.finding), id=one.name) for one in ATTACKS]
)
async def test_a_published_attack_stays_within_its_bounds_and_a_neighbour_is_served(
    attack: Attack, tmp_path: Path
) -> None:
    async with serving(tmp_path) as (process, port, model):
        done = asyncio.Event()
        async with connected(port, NEIGHBOUR) as warm:
            assert await one_call(warm, 1)
        before_kib = memory_kib(process, "VmRSS")
        began_s, calls = time.monotonic(), asyncio.create_task(neighbour(port, done))
        async with connected(port, ATTACKER) as connection:
            reading = asyncio.create_task(connection.follow()) if attack.reads else None
            with contextlib.suppress(TimeoutError):
                await send(connection, attack.sent(), 60.0 if attack.code is not None else 20.0)
            if attack.code is not None and reading:
                async with asyncio.timeout(60):
                    # A reset may overtake GOAWAY, when the gateway closes before it has read all that came.
                    assert await connection.ended in (attack.code, RESET_BY_PEER)
            elif reading:
                connection.writer.write(frame(PING, 0, 0, b"quiet?!!"))
                async with asyncio.timeout(60):
                    await connection.quiet.wait()
            took_s = time.monotonic() - began_s
            done.set()
            answered = await calls
            assert all(answered), "the neighbour was served while the attack lasted"
            grown_mib = (memory_kib(process, "VmHWM") - before_kib) / 1024
            begun = model.begun - len(answered) - 1
            if reading:
                reading.cancel()
        print(f"{attack.name}: {took_s:.1f} s, {begun} begun, {grown_mib:.1f} MiB, neighbour {len(answered)} calls")
        allowed = attack.begun if attack.begun != RESET else (4000 + 1000 * took_s) / 8 + 2
        assert begun <= allowed
        assert grown_mib <= attack.grows_mib
        assert process.process.returncode is None
        async with connected(port, NEIGHBOUR) as after:
            assert await one_call(after, 1)
