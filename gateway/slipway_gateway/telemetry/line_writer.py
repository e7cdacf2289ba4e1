"""Brings lines of a log to where they go, in a thread of its own: a full pipe or a slow disk delays no request."""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from slipway_process.batches import write_apart
from slipway_process.fair_memory import FairMemory
from slipway_process.supervisor import keep_thread

from .rotated_file import Sink, UnwrittenLines

log = logging.getLogger(__name__)

QUEUE_FULL, WRITE_FAILED, REFUSED = "queue_full", "write_failed", "refused"
# Lines that wait: some 15,000 of the usual length.
MAX_QUEUED_BYTES = 8 << 20
# What is written at once, and how long the first line of it waits for others.
_BATCH_BYTES = 256 << 10
_INTERVAL_S = 0.2
_CLOSE_S = 2.0


class LineWriter:
    """One queue and its thread. `put` never waits: without room the owner with most loses its oldest lines.

    These are counted.
    """

    def __init__(
        self,
        sink: Sink,
        dropped: Callable[[str, int], None],
        *,
        name: str = "access log",
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        interval_s: float = _INTERVAL_S,
        on_restart: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`dropped`: gets the reason and the number of lines, from either thread. `name`: of the log, in messages.

        `on_restart`: gets the name when the thread is started again, from that thread.
        """
        self._sink, self._dropped, self._name = sink, dropped, name
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._owners: OrderedDict[int, str] = OrderedDict()  # of the lines that wait, by their numbers
        self._lines: FairMemory[str, int, bytes] = FairMemory(max_queued_bytes, len)
        self._number = 0
        self._wanted, self._closing = threading.Event(), threading.Event()
        self._fails = False
        # A daemon: a write that never returns does not keep the process from its end.
        kept = (name, self._run, on_restart, self._closing)
        self._thread = threading.Thread(target=keep_thread, args=kept, name="log-lines", daemon=True)
        self._thread.start()

    def put(self, owner: str, line: bytes) -> None:
        with self._lock:
            self._number += 1
            self._owners[self._number] = owner
            dropped = self._lines.put(owner, self._number, line)
            for number, _ in dropped:
                del self._owners[number]
        if dropped:
            self._dropped(QUEUE_FULL, len(dropped))
        if not self._wanted.is_set():
            self._wanted.set()

    async def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Writes the lines that wait, for `timeout_s` at most; the rest is dropped and counted."""
        self._closing.set()
        self._wanted.set()
        await asyncio.to_thread(self._thread.join, timeout_s)
        with self._lock:
            lost = len(self._owners)
        if lost:
            self._dropped(QUEUE_FULL, lost)
            log.error("lines of the %s are lost: they were not written in time", self._name, extra={"lines": lost})

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wanted.wait()
            # Requests that end together share a write.
            self._closing.wait(self._interval_s)
            self._wanted.clear()
            while batch := self._take():
                self._write(batch)
        self._sink.close()

    def _take(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        with self._lock:
            while self._owners and size < _BATCH_BYTES:
                number, owner = self._owners.popitem(last=False)
                line = self._lines.pop(owner, number)
                assert line is not None, "a line without an owner has left"
                batch.append(line)
                size += len(line)
        return batch

    def _write(self, batch: list[bytes]) -> None:
        """Writes lines. One that the sink refuses for its own sake is dropped, and stops no other."""
        found = write_apart(self._sink.write, batch, lambda error: not isinstance(error, UnwrittenLines))
        if found.refused:
            self._dropped(REFUSED, len(found.refused))
            kinds = ", ".join(sorted({type(error).__name__ for _, error in found.refused}))
            log.error("the %s refuses %d of its lines, which are dropped: %s", self._name, len(found.refused), kinds)
        if isinstance(found.error, UnwrittenLines):
            whole = len(found.left) == len(batch)
            self._dropped(WRITE_FAILED, found.error.count if whole else len(found.left))
            if not self._fails:
                log.error("the %s cannot be written, its lines are dropped: %s", self._name, found.error)
            self._fails = True
        elif self._fails:
            log.info("the %s is written again", self._name)
            self._fails = False
