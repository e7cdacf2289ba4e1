"""Streams that are always open and short requests at a fixed rate; how each of them ended.

A tiny model is quick. Many streams at a time share what the machine can compute: as long as they end sooner than they
should, more are opened beside them.
"""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import aiohttp

from bench.chaos.asking import FAILED, Client, Ending, Question, ending
from testkit.load.background import Background
from testkit.load.pace import open_loop

MOST_AT_ONCE = 400  # short requests in flight; what would be more is counted as not sent
STAGGER_S = 0.5  # between the first streams: so they do not end together
MOST_STREAMS = 320
LONG_S = 60.0  # a stream that counts
AIM_S, TOO_MANY = 1.3 * LONG_S, 1.5
LAST_S = 900.0  # for what still runs when the traffic stops


@dataclass(frozen=True, slots=True)
class Shape:
    """How much traffic."""

    streams: int  # at first and at least
    rate: float  # short requests per second
    long: tuple[Question, ...]
    short: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Glance:
    """For the line on the terminal."""

    ended: int = 0
    short_ended: int = 0
    open_streams: int = 0
    kinds: Mapping[str, int] | None = None


class Traffic:
    """Runs in a thread of its own from `start` to `stop`."""

    def __init__(self, url: str, model: str, shape: Shape, references: Mapping[Question, str]) -> None:
        self._url, self._model, self._shape, self._references = url, model, shape, references
        self._lock = threading.Lock()
        self._background = Background("traffic", self._flow, LAST_S)
        self._kinds: Counter[str] = Counter()
        self._open = self._number = self._rows = 0
        self.endings: list[Ending] = []
        self.unsent = 0
        self.began = self.stopped = 0.0

    def start(self) -> "Traffic":
        self.began = time.time()
        self._background.start()
        return self

    def stop(self) -> list[Ending]:
        """No new requests; those that run may end."""
        self.stopped = self.stopped or time.time()
        self._background.stop()
        return self.endings

    def glance(self) -> Glance:
        self._background.check()
        with self._lock:
            short = sum(count for name, count in self._kinds.items() if name.startswith("short "))
            kinds: Counter[str] = Counter()
            for name, count in self._kinds.items():
                kinds[name.partition(" ")[2]] += count
            return Glance(len(self.endings), short, self._open, kinds)

    @property
    def settled(self) -> bool:
        """Whether there are enough streams at a time: most of the last ones lasted as long as they should."""
        with self._lock:
            ended = [item.seconds for item in self.endings if item.stream][-self._shape.streams :]
        return len(ended) == self._shape.streams and median(ended) >= LONG_S

    def recent(self, last: int = 20) -> list[Ending]:
        """The last failed ones."""
        with self._lock:
            return [item for item in self.endings if item.kind == FAILED][-last:]

    async def _flow(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=15)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            client = Client(session, self._url, self._model)
            for number in range(self._shape.streams):
                group.create_task(self._streams(client, group, number))
            await self._pulse(client)

    async def _streams(self, client: Client, group: asyncio.TaskGroup, number: int) -> None:
        """One after another; beside quick ones another row begins, and after far too slow ones this row ends."""
        await asyncio.sleep(number * STAGGER_S if number < self._shape.streams else 0)
        self._rows += 1
        turn = number
        while not self._background.stopping.is_set():
            rows, began = self._rows, time.monotonic()
            await self._once(client, self._shape.long[turn % len(self._shape.long)], stream=True)
            wanted = enough(rows, time.monotonic() - began)
            if self._rows < wanted and not self._background.stopping.is_set():
                group.create_task(self._streams(client, group, number + self._rows))
            if self._rows > max(self._shape.streams, wanted * TOO_MANY):
                break
            turn += 1
        self._rows -= 1

    async def _pulse(self, client: Client) -> None:
        short = self._shape.short

        async def send(number: int) -> None:
            await self._once(client, short[number % len(short)], stream=False)

        stopping = self._background.stopping
        self.unsent = await open_loop(send, self._shape.rate, stopping, most_at_once=MOST_AT_ONCE)

    async def _once(self, client: Client, question: Question, *, stream: bool) -> None:
        self._open += stream
        self._number += 1
        answer, sent = await client.ask(question, f"chaos-{int(self.began)}-{self._number}", stream=stream)
        self._open -= stream
        ended = ending(answer, question, self._references[question], sent)
        with self._lock:
            self._kinds[f"{'stream' if stream else 'short'} {ended.kind}"] += 1
            self.endings.append(ended)


def enough(rows: int, seconds: float) -> int:
    """So many streams at a time would have lasted long enough, when so many lasted that long."""
    return min(MOST_STREAMS, math.ceil(rows * AIM_S / max(seconds, 0.1)))


async def _ask_all(url: str, model: str, questions: Sequence[Question], at_once: int) -> dict[Question, str]:
    places = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession() as session:
        client = Client(session, url, model)

        async def one(question: Question) -> tuple[Question, str]:
            async with places:
                answer, _ = await client.ask(question, "chaos-reference", stream=True)
            if not answer.done or answer.breaks:
                raise RuntimeError(f"the undisturbed run was disturbed: {answer.breaks}")
            return question, answer.text

        return dict(await asyncio.gather(*map(one, questions)))


def references(url: str, model: str, questions: Sequence[Question], at_once: int = 6) -> dict[Question, str]:
    """What each question is answered with when nothing happens."""
    return asyncio.run(_ask_all(url, model, questions, at_once))
