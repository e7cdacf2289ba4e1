"""Clients of raw sockets, many connections in one process: each sends one request after the other, and counts.

    python -m tests.plane.recount.client CONFIG

`CONFIG`, JSON: port, seed, requests, connections, keys. Prints how many requests have ended, one line a second, and its
Totals as the last line. Clients also end when the port is closed.
"""

import asyncio
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random

from .mix import BROKEN, STRAYS, STRICT, Sample, samples

POOL = 3000  # requests that are made at once, and sent in another order than that
USES = 8  # of each pool
SILENCE_S = 120.0  # after which a response will not come


@dataclass
class Totals:
    """What clients of one process saw. Keys of `sent` are MODEL.KIND, of `received` MODEL|REVISION|STATUS, of `tokens`
    PAYER|MODEL.

    `cut`: responses that ended in the middle, by model. `lost`: requests whose connection ended without a byte of a
    response, by model, and when (`lost_s`). `left`: requests whose clients left, by model.
    """

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    lost_s: list[float] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    stuck: int = 0

    def whole(self, sample: Sample, revision: str, status: str) -> None:
        """A whole response came."""
        self.received[f"{sample.model}|{revision}|{status}"] += 1
        if status == "200" and any(sample.tokens):
            sums = self.tokens.setdefault(f"{sample.payer}|{sample.model}", [0, 0, 0])
            for at, count in enumerate((1, *sample.tokens)):
                sums[at] += count

    def ended(self) -> int:
        """Requests that are over."""
        return sum(sum(counts.values()) for counts in (self.received, self.cut, self.lost, self.left))


class Client(asyncio.Protocol):
    """One connection. `ended` is done when the connection is closed."""

    def __init__(self, totals: Totals, source: Iterator[Sample]) -> None:
        self._totals, self._source = totals, source
        self._waiting: deque[Sample] = deque()
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        sample, transport = next(self._source, None), self._transport
        assert transport is not None
        if sample is None or transport.is_closing():
            transport.close()
            return
        self._totals.sent[f"{sample.model}.{sample.kind}"] += sample.responses
        self._waiting.extend([sample] * sample.responses)
        transport.write(sample.parts[0])
        for number, part in enumerate(sample.parts[1:], 1):
            self._loop.call_later(0.01 * number, transport.write, part)
        if sample.leaves_s is not None:
            self._timer = self._loop.call_later(sample.leaves_s, self._leave)

    def _leave(self) -> None:
        while self._waiting:
            self._totals.left[self._waiting.popleft().model] += 1
        assert self._transport is not None
        self._transport.abort()

    def _close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        while self._waiting:
            size = whole_size(self._received)
            if not size:
                return
            sample, response = self._waiting.popleft(), self._received[:size]
            self._received = self._received[size:]
            head, _, _ = response.partition(b"\r\n\r\n")
            self._totals.whole(sample, value_of(head, b"x-slipway-revision"), head[9:12].decode())
            if self._waiting:
                continue
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if value_of(head, b"connection").lower() == "close":
                return  # the gateway closes it
            if sample.kind in STRAYS:
                self._close()
            else:
                self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        counts = self._totals.cut if self._received else self._totals.lost
        for sample in self._waiting:
            counts[sample.model] += 1
            if counts is self._totals.lost and sample.model in STRICT:
                self._totals.lost_s.append(time.monotonic())
            counts = self._totals.lost
        self._waiting.clear()
        if not self.ended.done():
            self.ended.set_result(None)


def whole_size(received: bytes) -> int:
    """Bytes of the whole response at the beginning; 0: it is not whole."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return 0
    length = value_of(received[:end], b"content-length")
    if length:
        size = end + 4 + int(length)
        return size if len(received) >= size else 0
    if value_of(received[:end], b"transfer-encoding"):
        last = received.find(b"\r\n0\r\n\r\n", end)
        return last + 7 if last >= 0 else 0
    return end + 4  # a status without a body


def value_of(head: bytes, name: bytes) -> str:
    """The value of a header, whose name is in lower case; empty without it."""
    at = head.lower().find(b"\r\n" + name + b": ")
    if at < 0:
        return ""
    begin = at + len(name) + 4
    end = head.find(b"\r\n", begin)
    return head[begin : end if end >= 0 else len(head)].decode("latin-1")


def endless(random: Random, keys: Sequence[tuple[str, str]]) -> Iterator[Sample]:
    """Requests, without an end."""
    while True:
        pool = samples(random, POOL, keys)
        for _ in range(USES):
            random.shuffle(pool)
            yield from pool


def limited(source: Iterator[Sample], requests: int) -> Iterator[Sample]:
    """So many requests of a source. The last tenth is without those to broken servers, some of which wait for long."""
    tenth = requests // 10
    for sample in source:
        if requests <= 0:
            return
        if sample.model == BROKEN and requests < tenth:
            continue
        requests -= sample.responses
        yield sample


async def connection(port: int, totals: Totals, source: Iterator[Sample]) -> None:
    """Connects again and again, until the requests are sent or the port is closed."""
    loop = asyncio.get_running_loop()
    while True:
        sample = next(source, None)
        if sample is None:
            return
        pending = chain([sample], source)
        try:
            _, client = await loop.create_connection(lambda pending=pending: Client(totals, pending), "127.0.0.1", port)
        except OSError:
            return
        await client.ended


async def main(config: dict[str, object]) -> None:
    totals, requests = Totals(), int(str(config["requests"]))
    keys = [(str(name), str(key)) for name, key in config["keys"]]  # type: ignore[attr-defined]
    source = limited(endless(Random(str(config["seed"])), keys), requests)
    running = [
        asyncio.ensure_future(connection(int(str(config["port"])), totals, source))
        for _ in range(int(str(config["connections"])))
    ]
    done, quiet_s = 0, 0
    pending = set(running)
    while pending and quiet_s < SILENCE_S:
        _, pending = await asyncio.wait(pending, timeout=1)
        ended = totals.ended()
        done, quiet_s = ended, 0 if ended > done else quiet_s + 1
        print(json.dumps(done), flush=True)
    totals.stuck = len(pending)
    for task in running:
        task.cancel()
    failures = await asyncio.gather(*running, return_exceptions=True)
    if failed := next((failure for failure in failures if isinstance(failure, Exception)), None):
        raise failed
    print(json.dumps(vars(totals)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
