"""Keeps a number of requests in progress, and measures those that begin in a window.

A closed loop: each client sends its next request when it has the response to the one before. While the requests of a
window end, all clients go on, so each of them had the same concurrency around it from its beginning to its end.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from slipway_cli.bench.sample import Sample
from slipway_cli.sizing.steps import LEAST_REQUESTS, Step

Send = Callable[[int], Awaitable[Sample]]

PAUSE_AFTER_ERROR_S = 0.1  # of the client that got it: a server that refuses is not flooded
LEAST_ERRORS = 10  # before their share ends a step
_MOST_CAUSES = 16


@dataclass(slots=True)
class Window:
    """Requests that begin while it is open: at most `most`, and `least` however long they take.

    `changed` is set when it may be over.
    """

    most: int
    most_errors: float
    least: int = 0
    counted: int = 0
    pending: int = 0
    is_open: bool = True
    failed: int = 0
    samples: list[tuple[Sample, float]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> bool:
        """Whether a request that begins now counts."""
        if not self.is_open or self.counted >= self.most:
            return False
        self.counted += 1
        self.pending += 1
        if self.counted >= self.least:
            self.changed.set()
        return True

    def end(self, sample: Sample, took_s: float) -> None:
        """A request that counts has ended; its client was busy with it for so long."""
        self.pending -= 1
        self.failed += bool(sample.error)
        self.samples.append((sample, took_s))
        if self.is_full or not self.pending:
            self.changed.set()

    @property
    def is_full(self) -> bool:
        """Whether it needs no further request: it has enough, or too many failed."""
        return self.counted >= self.most or self.has_too_many_errors

    @property
    def has_too_many_errors(self) -> bool:
        """Whether the share of requests that failed is too large."""
        return self.failed >= LEAST_ERRORS and self.failed > self.most_errors * len(self.samples)


class Load:
    """Clients in a task each, at most `most` requests in all, and nothing after `deadline` (of time.monotonic)."""

    def __init__(self, group: asyncio.TaskGroup, send: Send, most: int, deadline: float) -> None:
        self._group, self._send, self._most, self._deadline = group, send, most, deadline
        self._clients: dict[int, asyncio.Task[None]] = {}
        self._wanted, self._window = 0, Window(0, 1.0)
        self.sent = 0

    @property
    def is_over(self) -> bool:
        """Whether no further request may be sent."""
        return self.sent >= self._most or time.monotonic() >= self._deadline

    async def step(
        self, concurrency: int, settle_s: float, step_s: float, most: int, settle_most: int, most_errors: float
    ) -> Step:
        """Keep `concurrency` requests in progress; after `settle_s` measure at most `most` of the next `step_s`.

        Where requests take longer than that, it goes on until each client has begun one.
        """
        self._wanted = concurrency
        for place in range(concurrency):
            client = self._clients.get(place)
            if client is None or client.done():
                self._clients[place] = self._group.create_task(self._work(place))
        await self._until_full(Window(settle_most, most_errors), settle_s)
        window = Window(most, most_errors, min(most, max(LEAST_REQUESTS, concurrency)))
        began = time.monotonic()
        await self._until_full(window, step_s)
        seconds = time.monotonic() - began
        window.is_open = False
        while window.pending and (left := self._deadline - time.monotonic()) > 0:
            await self._change(window, left)
        return _step_of(window, concurrency, seconds)

    def stop(self) -> None:
        """End all clients, with their requests in progress."""
        for client in self._clients.values():
            client.cancel()

    async def _until_full(self, window: Window, seconds: float) -> None:
        self._window = window
        ends = min(time.monotonic() + seconds, self._deadline)
        while not window.is_full and self._are_there_clients() and time.monotonic() < self._deadline:
            now = time.monotonic()
            if now >= ends and window.counted >= window.least:
                return
            await self._change(window, (ends if now < ends else self._deadline) - now)

    async def _change(self, window: Window, seconds: float) -> None:
        window.changed.clear()
        # No `wait_for`: before Python 3.12 it loses an interruption that comes together with the change.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await window.changed.wait()

    def _are_there_clients(self) -> bool:
        return any(not client.done() for client in self._clients.values())

    async def _work(self, place: int) -> None:
        try:
            while place < self._wanted and not self.is_over:
                number, window = self.sent, self._window
                self.sent += 1
                counts, began = window.begin(), time.monotonic()
                sample = await self._send(number)
                if sample.error:
                    await asyncio.sleep(PAUSE_AFTER_ERROR_S)
                if counts:
                    window.end(sample, time.monotonic() - began)
        finally:
            self._window.changed.set()


def _step_of(window: Window, concurrency: int, seconds: float) -> Step:
    """The measured step; ended requests alone."""
    well = [sample for sample, _ in window.samples if not sample.error]
    took = [seconds for _, seconds in window.samples]
    causes = Counter(sample.error for sample, _ in window.samples if sample.error)
    kept = dict(causes.most_common(_MOST_CAUSES))
    if others := causes.total() - sum(kept.values()):
        kept["others"] = others
    return Step(
        concurrency,
        seconds,
        1000.0 * sum(took) / len(took) if took else 0.0,
        tuple(sorted(1000.0 * sample.first_s for sample in well if sample.first_s is not None)),
        tuple(sorted(1000.0 * itl_s for sample in well if (itl_s := sample.itl_s) is not None)),
        tuple(sorted(1000.0 * sample.latency_s for sample in well)),
        sum(sample.words if sample.prompt_tokens is None else sample.prompt_tokens for sample in well),
        sum(sample.events if sample.output_tokens is None else sample.output_tokens for sample in well),
        kept,
        window.pending == 0,
    )
