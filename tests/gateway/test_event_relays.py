"""Events of streams that the data plane relays: clients get the same bytes as from Python, and counts are the same."""

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from aiohttp import web

from slipway_gateway.forwarding import event_relays
from slipway_plane import NATIVE, WHY_MISSING
from testkit.until import until_async
from tests.plane.mutation import cut_anywhere

from . import harness, tenants
from .harness import Gateway, Upstream, upstream
from .test_fast_lane import counted, report

pytestmark = pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING)

STREAM = f"a1-b2-{'c' * 32}"
DONE = b"data: [DONE]\n\n"
BODY = {"model": "chat", "stream": True}
_HOLDER = re.compile(rb"(?m)^(id: .*)\.[0-9a-f]{4}$")  # the tag of a port
_ALIVE = re.compile(rb"(?m)^:\n")  # how many of these lines a client gets depends on what came at once


def event(text: str, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


def marked(position: int) -> bytes:
    return b": %d.%08x %d\n" % (position, position, 100 + position) + event(f"word{position} ")


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":8}}\n\n'
FIRST = (event("First "), event("words, "))
LAST = (event("and an end.", "stop"), DONE)
CASES: dict[str, tuple[bytes, ...]] = {
    "plain": (*FIRST, *LAST),
    "marked": (*map(marked, range(1, 9)), *LAST),
    "pieces": (FIRST[0], *(bytes([byte]) for byte in b"".join(LAST))),
    "usage": (*FIRST, USAGE, DONE),
    "unsure": (*FIRST, b'data: {"choices":[],"usage":{"prompt_tokens":3,"prompt_tokens":4}}\n\n', *LAST),
    "comments": (*FIRST, b": ping\n\n", b":\n", *LAST),
    "followed": (*FIRST, b": +\n" + event("two "), event("parts "), *LAST),
    "crlf": (*FIRST, b"data: a\r\n\r\n", b"data: b\r\n\r\n", *LAST),
    "long": (*FIRST, event("varied " * 20_000), *LAST),
    "longer": (*FIRST, b"data: " + b"x" * 600_000, b"\n\n", *LAST),
    "without_done": FIRST,
    "cut": (*FIRST, event("and", "length"), DONE),
    "empty": (event(""), event(""), DONE),
    "loop": (*FIRST, *[event("again ")] * 400, DONE),
    "error": (*FIRST, b'data: {"error":{"message":"no","type":"server_error"}}\n\n', DONE),
    "unfinished": (*FIRST, b"data: {"),
}


async def stream_of(
    request: web.Request, parts: tuple[bytes, ...], *, marks: bool, gap_s: float = 0.0
) -> web.StreamResponse:
    out = web.StreamResponse(
        headers={"Content-Type": "text/event-stream"} | ({"X-Slipway-Stream": STREAM} if marks else {})
    )
    await out.prepare(request)
    for at, part in enumerate(parts):
        await out.write(part)
        if at == 0 or gap_s:
            await asyncio.sleep(gap_s or 0.002)  # a part of its own: the data plane begins behind it
    await out.write_eof()
    return out


async def answer(request: web.Request) -> web.StreamResponse:
    want = request.headers["x-want"]
    return await stream_of(request, CASES[want], marks=want == "marked")


@contextlib.asynccontextmanager
async def gates(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], **changes: Any
) -> AsyncIterator[tuple[Gateway, Gateway, Upstream]]:
    """A gateway in Python alone, one with the data plane, and a server that both send to."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(upstream(handler))
        made = [
            await stack.enter_async_context(harness.gateway(plane=plane, **changes)) for plane in ("off", "required")
        ]
        for gate in made:
            gate.route(("rev", 100, [server.url]))
        yield made[0], made[1], server


def values(gate: Gateway, name: str) -> dict[str, int]:
    """Samples of a counter with one label, by its value."""
    found = {}
    for family in gate.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == f"slipway_gateway_{name}":
                found[",".join(sample.labels.values())] = int(sample.value)
    return found


def ends(gate: Gateway) -> dict[str, int]:
    """How relays of the data plane ended."""
    return values(gate, "event_relays_total")


def normal(text: bytes) -> bytes:
    return _ALIVE.sub(b"", _HOLDER.sub(rb"\1", text))


async def read(gate: Gateway, **headers: str) -> bytes:
    async with await gate.post(BODY, headers=headers) as response:
        assert response.status == 200
        return normal(await response.read())


@pytest.mark.parametrize("name", CASES)
async def test_a_stream_is_the_same_and_counts_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_relays, "RECOUNT_ONE_IN", 1)
    async with gates(answer) as (python, plane, _):
        for _ in range(2):
            assert await read(plane, **{"x-want": name}) == await read(python, **{"x-want": name})
        await until_async(lambda: counted(plane) == counted(python))
        assert report(plane) == report(python)
        assert ends(plane) == {"end": 2}
        assert ends(python) == {}
        assert set(values(plane, "recounts_total")) <= {"same"}


async def test_events_behind_a_long_one_wait_until_a_slow_client_has_all_of_it() -> None:
    """Python sends the long ones, and the data plane those between them, to the same socket: in order."""
    numbered = [event(f"{number} " + "x" * (30_000 if number % 6 else 200_000)) for number in range(60)]

    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream_of(request, (*FIRST, *numbered, *LAST), marks=False)

    async with gates(handler) as (_, plane, _):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", int(plane.url.rsplit(":", 1)[1])))
        reader, writer = await asyncio.open_connection(sock=client, limit=4096)
        body = json.dumps(BODY).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        received = bytearray()
        async with asyncio.timeout(60):
            while piece := await reader.read(32 << 10):
                received += piece
                await asyncio.sleep(0.003)
        await harness.drop(writer)
        _, _, chunks = bytes(received).partition(b"\r\n\r\n")
        assert normal(unchunked(chunks)) == b"".join((*FIRST, *numbered, *LAST))
        assert values(plane, "event_relays_total") == {"end": 1}


def unchunked(chunks: bytes) -> bytes:
    """The data of a body in chunks."""
    data, at = [], 0
    while size := int(chunks[at : (line := chunks.index(b"\r\n", at))], 16):
        data.append(chunks[line + 2 : line + 2 + size])
        at = line + 4 + size
        assert chunks[at - 2 : at] == b"\r\n"
    return b"".join(data)


TAME = (*FIRST, *LAST, USAGE, marked(7), marked(123456), b": ping\n\n", b":\n")
WILD = (
    event("x" * 9000),
    b"\n",
    b": +\n",
    b"data: a\r\n\r\n",
    b"x\r\r",
    b": engine_crashed\n\n",
    b": 9.00000000 4,5\n\n",
    b'data: {"usage":{"a":1}}\n\n',
)


@pytest.mark.parametrize("parts", [TAME, TAME + WILD], ids=["tame", "wild"])
async def test_any_stream_is_passed_on_as_python_does(
    parts: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python passes the same pieces on; and of streams that servers write clients get the same, however it is cut."""
    monkeypatch.setattr(event_relays, "RECOUNT_ONE_IN", 1)
    replayed: list[bytes] = []
    replay = event_relays.Recount.replay

    def kept(*arguments: Any) -> bytes:
        replayed.append(replay(*arguments))
        return replayed[-1]

    monkeypatch.setattr(event_relays.Recount, "replay", kept)
    random, bodies = Random(8), []
    for _ in range(80):
        data = b"".join(random.choice(parts) for _ in range(random.randint(0, 30)))
        bodies.append(tuple(cut_anywhere(data, random)))

    async def handler(request: web.Request) -> web.StreamResponse:
        number = int(request.headers["x-want"])
        return await stream_of(request, (marked(0), *bodies[number]), marks=number % 3 > 0)

    async with gates(handler) as (python, plane, _):
        for number in range(len(bodies)):
            want = {"x-want": str(number)}
            replayed.clear()
            async with await plane.post(BODY, headers=want) as response:
                text, at = await response.read(), 0
            for part in replayed:
                at = text.index(part, at) + len(part)
            if parts is TAME:
                assert normal(text) == await read(python, **want), number
        assert values(plane, "recounts_total").keys() == {"same"}
        assert sum(ends(plane).values()) == len(bodies)
        if parts is TAME:
            await until_async(lambda: without_itl(plane) == without_itl(python))


def without_itl(gate: Gateway) -> dict[str, float]:
    """Counts: of a stream whose events came at once no time between them is measured."""
    return {name: value for name, value in counted(gate).items() if "itl" not in name}


async def charged(gate: Gateway) -> list[dict[str, Any]]:
    """What the ledger has, without the hour."""
    await gate.ledger.flush()
    _, rows = await gate.ledger.usage(0, 1 << 30, "")
    return [{name: value for name, value in row.items() if name != "hour"} for row in rows]


async def test_a_stream_is_charged_as_in_python_and_while_it_runs() -> None:
    go_on = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers["x-want"] != "halfway":
            return await answer(request)
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Slipway-Stream": STREAM})
        await out.prepare(request)
        for position in range(1, 41):
            await out.write(marked(position))
            await asyncio.sleep(0.003)
        await go_on.wait()
        await out.write(USAGE + DONE)
        return out

    key = tenants.make_key("k1First")
    given = {"tenants": [tenants.tenant("team-a", key)], "pepper": tenants.PEPPER, "auth_mode": "required"}
    async with gates(handler, **given) as (python, plane, _):
        seen: dict[str, list[Any]] = {}
        for gate in (python, plane):
            for name in ("usage", "marked", "unsure", "plain", "cut", "comments"):
                text = await read(gate, **{"x-want": name, "Authorization": f"Bearer {key}"})
                seen.setdefault(name, []).append((text, await charged(gate)))
            go_on.clear()
            running = asyncio.create_task(read(gate, **{"x-want": "halfway", "Authorization": f"Bearer {key}"}))
            await asyncio.sleep(0.6)
            before = seen["comments"][-1][1]
            seen.setdefault("running", []).append(more := await charged(gate))
            # Of charges for one stream the largest counts: `marked` had 8 tokens of it.
            assert more[0]["output_tokens"] == before[0]["output_tokens"] + 40 - 8
            go_on.set()
            seen.setdefault("halfway", []).append((await running, await charged(gate)))
        for name, (one, other) in seen.items():
            assert one == other, name
        assert b"usage" not in seen["usage"][1][0], "the client did not request it"
        assert sum(ends(plane).values()) == len(seen) - 1


class Breaking:
    """A model server whose streams break off after so many bytes, and go on where another request resumes them."""

    def __init__(self, events: int) -> None:
        self.events, self.cut, self.requests = events, 0, 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(re.search(r"content-length: (\d+)", head)[1])  # type: ignore[index]
                await reader.readexactly(length)
                self.requests += 1
                resumed = re.search(r"x-slipway-resume: [^.]+\.(\d+)\.", head)
                position = int(resumed[1]) if resumed else 0
                parts = [marked(at) for at in range(position + 1, self.events + 1)] + list(LAST)
                whole = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
                    b"X-Slipway-Stream: %b\r\n\r\n" % STREAM.encode()
                )
                first = len(b"%x\r\n%b\r\n" % (len(parts[0]), parts[0]))
                writer.write(whole[:first])
                await writer.drain()
                await asyncio.sleep(0.001)
                if self.cut and not resumed:
                    writer.write(whole[first : first + self.cut])
                    break
                writer.write(whole[first:])
        writer.close()


@contextlib.asynccontextmanager
async def breaking(events: int) -> AsyncIterator[Breaking]:
    made = Breaking(events)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made


async def test_a_stream_that_breaks_at_any_byte_goes_on_elsewhere() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(breaking(3)) for _ in range(2)]
        python, plane = [await stack.enter_async_context(harness.gateway(plane=lane)) for lane in ("off", "required")]
        for gate in (python, plane):
            gate.route(("rev", 100, [one.url for one in servers]))
        whole = await read(plane)
        size = sum(len(b"%x\r\n%b\r\n" % (len(part), part)) for part in (marked(2), marked(3), *LAST))
        for cut in range(1, size + 5):
            for one in servers:
                one.cut = cut
            text = await read(plane)
            assert text == await read(python), cut
            assert text == whole or cut > size - len(DONE) - 10
        await until_async(lambda: plane.outcomes()["ok"] == size + 5)
        assert values(plane, "resumes_total") == values(python, "resumes_total")
        await until_async(lambda: without_itl(plane).keys() == without_itl(python).keys())


async def endless(request: web.Request) -> web.StreamResponse:
    """Events without an end, or silence after so many of them."""
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    count, gap_s = int(request.headers.get("x-count", "1000000")), float(request.headers.get("x-gap", "0.005"))
    text = event("word " * int(request.headers.get("x-words", "1")))
    for _ in range(count):
        await out.write(text)
        await asyncio.sleep(gap_s)
    await asyncio.sleep(60)
    return out


async def test_a_client_that_leaves_ends_the_request_of_its_server() -> None:
    async with gates(endless) as (_, plane, server):
        response = await plane.post(BODY)
        for _ in range(3):
            await response.content.readany()
        response.close()
        await until_async(lambda: server.cancelled == 1)
        await until_async(lambda: plane.outcomes() == {"client_closed": 1})
        assert sum(ends(plane).values()) == 1
        assert plane.budget.used_bytes == 0


async def test_a_client_that_hangs_up_behind_the_last_event_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's clients do: it may come before Python sees that the data plane has sent that event."""

    async def unended(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for part in (*FIRST, *LAST):
            await out.write(part)
            await asyncio.sleep(0.002)
        await asyncio.sleep(60)
        return out

    async with gates(unended) as (_, plane, _):
        monkeypatch.setattr(event_relays.EventRelays, "paused", lambda relays, ids: None)
        response = await plane.post(BODY)
        received = b""
        while not received.endswith(DONE):
            received += await response.content.readany()
        response.close()
        await until_async(lambda: bool(plane.outcomes()))
        assert plane.outcomes() == {"ok": 1}
        assert ends(plane) == {"stopped": 1}, "Python saw no pause"


async def test_a_client_that_does_not_read_is_disconnected_and_holds_its_server_up() -> None:
    async with gates(endless, stall_timeout_s=0.5) as (_, plane, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", plane.runner.addresses[0][1], limit=1024)
        body = json.dumps(BODY).encode()
        lines = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-words: 2000\r\nx-gap: 0\r\nContent-Length: %d\r\n\r\n"
        )
        writer.write(lines % len(body) + body)
        await reader.readuntil(b"\r\n\r\n")
        await until_async(lambda: plane.outcomes() == {"client_closed": 1}, within_s=20)
        await until_async(lambda: server.cancelled == 1)
        assert ends(plane) in ({"stalled": 1}, {"stopped": 1})
        writer.close()


async def test_a_server_that_is_silent_counts_as_hung_and_its_stream_ends() -> None:
    async with gates(endless, idle_timeout_s=0.6, hung_after_s=0.2) as both:
        for gate in both[:2]:
            gate.route(("rev", 50, [both[2].url]), ("other", 50, [both[2].url]))  # of one alone none is reported open
            running = asyncio.create_task(read(gate, **{"x-count": "3"}))
            await asyncio.sleep(0.4)
            revisions = report(gate)["samples"][-1]["revisions"].values()
            assert sum(one["events"]["hung"] for one in revisions) == 1, "while it is silent"
            assert not running.done()
            assert b'"code":"timeout"' in await running
        assert ends(both[1]) == {"timeout": 1}
        one, other = (
            {name.replace("other", "rev"): value for name, value in counted(gate).items()} for gate in both[:2]
        )
        assert {name for name, value in one.items() if value} == {name for name, value in other.items() if value}


async def test_what_is_cut_ends_with_an_error_between_two_events() -> None:
    async with gates(endless) as (_, plane, server):
        running = [asyncio.create_task(read(plane, **{"x-gap": "0.001"})) for _ in range(5)]
        await until_async(lambda: len(server.seen) == 5)
        await asyncio.sleep(0.2)
        plane.edge.cut()
        for text in await asyncio.gather(*running):
            *events, error, done, rest = text.split(b"\n\n")
            assert set(events) == {event("word ")[:-2]}
            assert b'"code":"drained"' in error
            assert (done + b"\n\n", rest) == (DONE, b"")
        assert ends(plane) == {"stopped": 5}


async def test_a_difference_leaves_all_streams_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_relays, "RECOUNT_ONE_IN", 1)
    monkeypatch.setattr(event_relays.Recount, "differences", lambda *_: ["marks"])
    async with gates(answer) as (_, plane, _):
        await read(plane, **{"x-want": "marked"})
        assert values(plane, "recounts_total") == {"marks": 1}
        relays = ends(plane)
        await read(plane, **{"x-want": "marked"})
        assert ends(plane) == relays


async def test_where_the_thread_ends_python_goes_on_with_the_same_response() -> None:
    async with gates(endless) as (_, plane, server):
        running = asyncio.create_task(read(plane, **{"x-count": "100", "x-gap": "0.004"}))
        await until_async(lambda: len(server.seen) == 1)
        await asyncio.sleep(0.1)
        assert plane.plane is not None
        assert plane.plane._listener is not None
        await asyncio.to_thread(plane.plane._listener.stop)
        await until_async(lambda: ends(plane) == {"lost": 1})
        await asyncio.sleep(0.5)
        plane.edge.cut()
        text = await running
        assert text.startswith(event("word ") * 100 + b'data: {"error"')
        assert len(server.seen) == 1
