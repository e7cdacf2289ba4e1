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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from testkit.report import quantile

FIRST_CONNECTIONS = 32
# More than these would wait for a free connection, which counts as latency.
MOST_CONNECTIONS = 512
SPIN_S = 0.002  # a sleep of asyncio may be a millisecond late; the last part of a wait is spun
LATE_S = 30.0  # an answer that takes longer has failed
# A rate is sustained when no more than this part of the requests fails, and the open requests grow in the second half
# by no more than this part of its requests; by a few they always do.
MOST_FAILED, MOST_GROWTH, FEW = 0.001, 0.02, 8
LOWER, LOWERED = 0.9, 8  # a rate that was not sustained, for the next try; so many times
# The 99th percentile of how late the client may send. A later one was paused by the machine, and its server with it.
LATE_CLIENT_S, TRIES = 0.001, 4


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
    """Seconds of each request, infinite where it failed, and how late the client itself sent it. `open`: in an open
    loop, requests that were due and not answered after half of the time, and at its end. `late_runs`: that were
    thrown away before this one, because the client was late."""

    took_s: list[float] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    open: tuple[int, int] = (0, 0)
    late_runs: int = 0

    @property
    def failed(self) -> int:
        return sum(map(math.isinf, self.took_s))

    @property
    def per_s(self) -> float:
        """Answered requests per second."""
        return (len(self.took_s) - self.failed) / self.wall_s

    @property
    def is_on_time(self) -> bool:
        """Of an open loop: the client itself was not late."""
        return quantile(self.lag_s, 0.99) <= LATE_CLIENT_S

    @property
    def is_sustained(self) -> bool:
        """Of an open loop: it is answered, and not only in a queue that grows."""
        grown = self.open[1] - self.open[0]
        return self.failed <= MOST_FAILED * len(self.took_s) and grown <= max(FEW, MOST_GROWTH * len(self.took_s) / 2)


Done = Callable[["Connection", bool], None]


class Connection(asyncio.Protocol):
    """One request at a time. `done`, given with each request, is called once: with whether its answer was 200."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._seen = b""
        self._end = -1  # length of the whole answer; -1: not known yet
        self._done: Done | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, done: Done) -> None:
        assert self._transport
        self._seen, self._end, self._done = b"", -1, done
        self._transport.write(request)

    def close(self) -> None:
        """A request without an answer has failed."""
        if self._transport:
            self._transport.close()
        self._finish(False)

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
        if done := self._done:
            self._done = None
            done(self, ok)


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
        while time.perf_counter() - began_s < seconds:
            connection = await _connect(target)
            await _chain(connection, request, began_s + seconds, measured.took_s)

    await asyncio.gather(*(repeat() for _ in range(connections)))
    measured.wall_s = time.perf_counter() - began_s
    return measured


async def _chain(connection: Connection, request: bytes, until_s: float, took_s: list[float]) -> None:
    """Requests on one connection, until then or until it ends."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    sent_s = time.perf_counter()

    def done(_: Connection, ok: bool) -> None:
        nonlocal sent_s
        now_s = time.perf_counter()
        took_s.append(now_s - sent_s if ok else math.inf)
        if connection.open and now_s < until_s:
            sent_s = now_s
            connection.send(request, done)
        elif not ended.done():
            ended.set_result(None)

    connection.send(request, done)
    try:
        async with asyncio.timeout(max(0.0, until_s - sent_s) + LATE_S):
            await ended
    except TimeoutError:
        pass
    connection.close()


async def open_loop(target: Target, per_s: float, seconds: float, seed: int) -> Measured:
    """`per_s` requests a second on average, at random times."""
    load = _OpenLoop(target)
    await load.connect(FIRST_CONNECTIONS)
    draw = random.Random(seed)
    began_s = next_s = time.perf_counter()
    half: int | None = None
    while (next_s := next_s + draw.expovariate(per_s)) < began_s + seconds:
        if half is None and next_s > began_s + seconds / 2:
            half = load.open
        await _until(next_s)
        load.arrive(next_s)
    load.measured.wall_s = time.perf_counter() - began_s
    load.measured.open = (half or 0, load.open)
    await load.end()
    return load.measured


def repeated_until_on_time(measure: Callable[[], Measured]) -> Measured:
    """The first run in which the client was on time, or the last one of TRIES; with how many were thrown away.

    Whether a run counts depends on the client alone, never on what it measured.
    """
    for late in range(TRIES):
        measured = measure()
        measured.late_runs = late
        if measured.is_on_time:
            break
    return measured


async def highest_sustained(
    measure: Callable[[float, float], Awaitable[Measured]], most_per_s: float, steps: int, seconds: float
) -> float:
    """The highest rate of an open loop that is sustained for `seconds`; 0 when none is.

    It is found by bisection with runs of a quarter of that time, because many are needed, and lowered until it holds
    for the whole of it: a short run may have been in a fast moment of the machine.
    """
    low_per_s, high_per_s = 0.0, most_per_s
    for _ in range(steps):
        middle_per_s = (low_per_s + high_per_s) / 2
        if (await measure(middle_per_s, seconds / 4)).is_sustained:
            low_per_s = middle_per_s
        else:
            high_per_s = middle_per_s
    for _ in range(LOWERED if low_per_s else 0):
        if (await measure(low_per_s, seconds)).is_sustained:
            return low_per_s
        low_per_s *= LOWER
    return 0.0


class _OpenLoop:
    """Requests that are due, on the connections that are free. Plain calls: a task for each would cost too much."""

    def __init__(self, target: Target) -> None:
        self.measured = Measured()
        self._target, self._request = target, target.request()
        self._idle: list[Connection] = []
        self._due: deque[float] = deque()
        self._busy: dict[Connection, float] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        return len(self._due) + len(self._busy)

    async def connect(self, count: int) -> None:
        for _ in range(count):
            self._idle.append(await _connect(self._target))

    def arrive(self, at_s: float) -> None:
        """A request that was due at this moment."""
        self.measured.lag_s.append(time.perf_counter() - at_s)
        self._due.append(at_s)
        if self._idle:
            self._next(self._idle.pop())
        elif len(self._busy) + len(self._connecting) < MOST_CONNECTIONS:
            task = asyncio.ensure_future(self._add())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def end(self) -> None:
        """Waits for what is due, and counts as failed what is not answered in time."""
        until_s = time.perf_counter() + LATE_S
        while (self._due or self._busy or self._connecting) and time.perf_counter() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self.measured.took_s += [math.inf] * len(self._due)
        self._due.clear()
        for connection in [*self._busy, *self._idle]:
            connection.close()

    async def _add(self) -> None:
        try:
            self._next(await _connect(self._target))
        except OSError:
            if self._due:
                self._due.popleft()
                self.measured.took_s.append(math.inf)

    def _next(self, connection: Connection) -> None:
        if self._due:
            self._busy[connection] = self._due.popleft()
            connection.send(self._request, self._answered)
        else:
            self._idle.append(connection)

    def _answered(self, connection: Connection, ok: bool) -> None:
        at_s = self._busy.pop(connection)
        self.measured.took_s.append(time.perf_counter() - at_s if ok else math.inf)
        if connection.open:
            self._next(connection)


async def _until(moment_s: float) -> None:
    if (left_s := moment_s - time.perf_counter()) > SPIN_S:
        await asyncio.sleep(left_s - SPIN_S)
    while time.perf_counter() < moment_s:  # noqa: ASYNC110 - what is waited for is a time, and no event
        await asyncio.sleep(0)


async def _connect(target: Target) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, *target.where)
    return connection
