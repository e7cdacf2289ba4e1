"""Load on one endpoint, by a client that costs little: requests are bytes made before, answers are only counted.

A closed loop has a number of connections that each send the next request when the last one is answered. An open loop
sends at the times of a Poisson process, whatever was answered; latency counts from the intended time (as wrk2 does),
so that a server which falls behind cannot slow its own load down.
"""

import asyncio
import math
import random
import time
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import urlsplit

# More than these would wait for a free connection, which counts as latency.
MOST_CONNECTIONS = 512
SPIN_S = 0.002  # a sleep of asyncio may be a millisecond late; the last part of a wait is spun
LATE_S = 30.0  # an answer that takes longer has failed


@dataclass(frozen=True, slots=True)
class Target:
    """One request, always the same."""

    url: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80

    def request(self) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = f"POST {urlsplit(self.url).path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n{lines}"
        return f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body


@dataclass(slots=True)
class Measured:
    """Seconds of each request, infinite where it failed, and how late the client itself sent it."""

    took_s: list[float] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def failed(self) -> int:
        return sum(map(math.isinf, self.took_s))

    @property
    def per_s(self) -> float:
        """Answered requests per second."""
        return (len(self.took_s) - self.failed) / self.wall_s


class Connection(asyncio.Protocol):
    """One request at a time; `send` gives whether its answer was 200."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._seen = b""
        self._end = -1  # length of the whole answer; -1: not known yet
        self._answer: asyncio.Future[bool] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> "asyncio.Future[bool]":
        assert self._transport
        self._answer = asyncio.get_running_loop().create_future()
        self._seen, self._end = b"", -1
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if self._end < 0:
            self._end = answer_end(self._seen)
        whole = self._seen.endswith(b"0\r\n\r\n") if self._end == 0 else 0 < self._end <= len(self._seen)
        if whole:
            self._finish(self._seen[9:12] == b"200")

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(False)

    def _finish(self, ok: bool) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_result(ok)


def answer_end(seen: bytes) -> int:
    """Where an answer ends, by its head; 0: with its last chunk; -1: its head is not whole yet."""
    head, separator, _ = seen.partition(b"\r\n\r\n")
    if not separator:
        return -1
    for line in head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return len(head) + 4 + int(value)
    return 0


async def closed_loop(target: Target, connections: int, seconds: float) -> Measured:
    """`connections` at a time, for `seconds`."""
    measured, request = Measured(), target.request()
    began_s = time.perf_counter()

    async def repeat() -> None:
        connection = await _connect(target)
        while time.perf_counter() - began_s < seconds:
            sent_s = time.perf_counter()
            ok = await _within(connection, request)
            measured.took_s.append(time.perf_counter() - sent_s if ok else math.inf)
            if not connection.open:
                connection = await _connect(target)
        connection.close()

    await asyncio.gather(*(repeat() for _ in range(connections)))
    measured.wall_s = time.perf_counter() - began_s
    return measured


async def open_loop(target: Target, per_s: float, seconds: float, seed: int) -> Measured:
    """`per_s` requests a second on average, at random times."""
    measured, request, draw = Measured(), target.request(), random.Random(seed)
    idle: deque[Connection] = deque()
    slots = asyncio.Semaphore(MOST_CONNECTIONS)
    tasks: set[asyncio.Task[None]] = set()

    async def one(at_s: float) -> None:
        async with slots:
            try:
                connection = idle.pop() if idle else await _connect(target)
                ok = await _within(connection, request)
            except OSError:
                ok = False
            else:
                if connection.open:
                    idle.append(connection)
        measured.took_s.append(time.perf_counter() - at_s if ok else math.inf)

    began_s = next_s = time.perf_counter()
    while (next_s := next_s + draw.expovariate(per_s)) < began_s + seconds:
        await _until(next_s)
        measured.lag_s.append(time.perf_counter() - next_s)
        task = asyncio.ensure_future(one(next_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    measured.wall_s = time.perf_counter() - began_s
    if tasks:
        await asyncio.wait(tasks)
    for connection in idle:
        connection.close()
    return measured


async def _until(moment_s: float) -> None:
    if (left_s := moment_s - time.perf_counter()) > SPIN_S:
        await asyncio.sleep(left_s - SPIN_S)
    while time.perf_counter() < moment_s:  # noqa: ASYNC110 - what is waited for is a time, and no event
        await asyncio.sleep(0)


async def _connect(target: Target) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, *target.where)
    return connection


async def _within(connection: Connection, request: bytes) -> bool:
    try:
        async with asyncio.timeout(LATE_S):
            return await connection.send(request)
    except TimeoutError:
        connection.close()
        return False
