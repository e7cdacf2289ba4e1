"""Load of streams: the CPU time of an event while many come, and the memory of a stream while many are open."""

import asyncio
import resource
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from bench.gateway.load import Answered
from bench.gateway.messages import STREAM
from bench.gateway.upstream import StreamShape
from bench.processes import Program

_WORD, _DONE = b'"content":"word"', b"data: [DONE]"
_OPENED_PER_S = 400
# What a peer that is slow has beyond the time that its streams take.
PATIENCE_S = 60.0
# Of CPU time of events: from the first stream until all run evenly, and what streams last beyond the measurement.
SETTLE_S, REST_S = 2.0, 1.5
EVENTS_PER_S = 50


class _Client(asyncio.Protocol):
    """One client: it counts events and reads nothing else."""

    def __init__(self, ended: "asyncio.Future[bool]", headers: Mapping[str, str]) -> None:
        self.events = 0
        self._headers = headers
        self._tail = b""
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        lines = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        head = f"POST {STREAM.path} HTTP/1.1\r\nHost: gateway\r\n{lines}"
        transport.write(f"{head}Content-Length: {len(STREAM.body)}\r\n\r\n".encode() + STREAM.body)

    def data_received(self, data: bytes) -> None:
        seen = self._tail + data
        # An event may lie in two reads; what was counted is not looked at again.
        self.events += seen.count(_WORD)
        at = seen.rfind(_WORD)
        self._tail = seen[max(at + len(_WORD), len(seen) - len(_WORD) + 1) if at >= 0 else -len(_WORD) + 1 :]
        if _DONE in seen:
            self.end()

    def end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(True)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(False)


class _Clients:
    """All streams of one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._clients: list[_Client] = []
        self._ends: list[asyncio.Future[bool]] = []

    async def open(self, count: int) -> None:
        """Connects them one after the other, `_OPENED_PER_S` in a second."""
        loop, where, began_s = asyncio.get_running_loop(), urlsplit(self._program.url), time.monotonic()
        for n in range(count):
            await asyncio.sleep(max(0.0, began_s + n / _OPENED_PER_S - time.monotonic()))
            client = _Client(loop.create_future(), self._program.headers)
            self._clients.append(client)
            self._ends.append(client._ended)
            try:
                await loop.create_connection(lambda: client, where.hostname or "", where.port or 80)  # noqa: B023 - called at once
            except OSError:
                client._ended.set_result(False)

    @property
    def events(self) -> int:
        return sum(client.events for client in self._clients)

    @property
    def open_now(self) -> int:
        return sum(not end.done() and client.events > 0 for end, client in zip(self._ends, self._clients, strict=True))

    async def ended(self, patience_s: float, events: int) -> int:
        """Waits for the end of all; how many did not end, or did not have all their events."""
        await asyncio.wait(self._ends, timeout=patience_s)
        whole = sum(
            end.done() and end.result() and client.events == events
            for end, client in zip(self._ends, self._clients, strict=True)
        )
        for client in self._clients:
            client.end()
        return len(self._clients) - whole


def shape_of(per_s: int, seconds: float) -> StreamShape:
    """Of streams that last as long as a measurement of `seconds` needs them, with slipway-server's marks."""
    return StreamShape(int(per_s * (SETTLE_S + seconds + REST_S)), 1 / per_s, marks=True)


async def events(program: Program, count: int, shape: StreamShape, seconds: float) -> Answered:
    """The program's CPU time for the events of `seconds`, while `count` streams run. `failed`: broken streams."""
    _allow_files()
    clients, began_s = _Clients(program), time.monotonic()
    await clients.open(count)
    await asyncio.sleep(max(0.0, began_s + SETTLE_S - time.monotonic()))
    before, cpu_s, from_s = clients.events, program.cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    seen, used_s, wall_s = clients.events - before, program.cpu_s() - cpu_s, time.monotonic() - from_s
    return Answered(seen, await clients.ended(PATIENCE_S, shape.events), used_s, wall_s)


async def memory(program: Program, count: int, shape: StreamShape) -> dict[str, Any]:
    """All open at once. Memory is what the program grew by while they are open, in KiB for each."""
    _allow_files()
    before, cpu_s, began_s = program.rss_bytes(), program.cpu_s(), time.monotonic()
    clients, lasts_s = _Clients(program), shape.events * shape.gap_s
    await clients.open(count)
    # All are open now, and none has ended: a stream lasts longer than it takes to open all.
    await asyncio.sleep(max(0.0, began_s + lasts_s - 2 * shape.gap_s - time.monotonic()))
    open_now, held = clients.open_now, program.rss_bytes() - before
    broken = await clients.ended(count / _OPENED_PER_S + lasts_s + PATIENCE_S, shape.events)
    return {
        "streams": count, "open": open_now, "broken": broken, "kib_each": held / 1024 / max(open_now, 1),
        "cpu_s": program.cpu_s() - cpu_s, "seconds": time.monotonic() - began_s, "events": clients.events,
    }  # fmt: skip


def _allow_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
