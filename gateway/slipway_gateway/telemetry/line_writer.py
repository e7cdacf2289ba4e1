"""Brings lines of a log to where they go, in a thread of its own: a full pipe or a slow disk delays no request."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable

from .rotated_file import Sink, UnwrittenLines

log = logging.getLogger(__name__)

QUEUE_FULL, WRITE_FAILED = "queue_full", "write_failed"
# Lines that wait: some 15,000 of the usual length.
MAX_QUEUED_BYTES = 8 << 20
# What is written at once, and how long the first line of it waits for others.
_BATCH_BYTES = 256 << 10
_INTERVAL_S = 0.2
_CLOSE_S = 2.0


class LineWriter:
    """One queue and its thread. `put` never waits: lines for which there is no room are dropped and counted."""

    def __init__(
        self,
        sink: Sink,
        dropped: Callable[[str, int], None],
        *,
        name: str = "access log",
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        """`dropped`: gets the reason and the number of lines, from either thread. `name`: of the log, in messages."""
        self._sink, self._dropped, self._name = sink, dropped, name
        self._max_queued_bytes, self._interval_s = max_queued_bytes, interval_s
        self._lock = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._wanted, self._closing = threading.Event(), threading.Event()
        self._fails = False
        # A daemon: a write that never returns does not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name="log-lines", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        with self._lock:
            has_room = self._size + len(line) <= self._max_queued_bytes
            if has_room:
                self._lines.append(line)
                self._size += len(line)
        if not has_room:
            self._dropped(QUEUE_FULL, 1)
        elif not self._wanted.is_set():
            self._wanted.set()

    async def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Writes the lines that wait, for `timeout_s` at most; the rest is dropped and counted."""
        self._closing.set()
        self._wanted.set()
        await asyncio.to_thread(self._thread.join, timeout_s)
        with self._lock:
            lost = len(self._lines)
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
            while self._lines and size < _BATCH_BYTES:
                batch.append(self._lines.popleft())
                size += len(batch[-1])
            self._size -= size
        return batch

    def _write(self, batch: list[bytes]) -> None:
        try:
            self._sink.write(batch)
        except UnwrittenLines as error:
            self._dropped(WRITE_FAILED, error.count)
            if not self._fails:
                log.error("the %s cannot be written, its lines are dropped: %s", self._name, error)
            self._fails = True
            return
        if self._fails:
            log.info("the %s is written again", self._name)
        self._fails = False
