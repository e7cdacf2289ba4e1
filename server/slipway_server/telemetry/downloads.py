"""How far a download is: in the log, and for others who read it while it runs."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

LINE_EVERY_S = 5.0
RATE_OVER_S, SAMPLE_EVERY_S = 10.0, 0.5


@dataclass(frozen=True, slots=True)
class DownloadState:
    """A moment of a fetch."""

    done_bytes: int = 0  # with what an earlier run left
    size_bytes: int | None = None  # None where it is not known, or not yet
    bytes_per_second: int = 0  # of the last seconds, without what was there already
    waiting: bool = False  # another pod downloads the model into the shared cache


class DownloadMeter:
    """Sums the downloads of one fetch. Several threads may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self.begin()

    def begin(self) -> None:
        """A fetch begins, or begins again: nothing is known of it."""
        with self._lock:
            self._done, self._came, self._size = 0, 0, 0
            self._unknown, self._waiting = False, False
            self._samples: deque[tuple[float, int]] = deque(maxlen=round(RATE_OVER_S / SAMPLE_EVERY_S) + 1)

    def wait(self) -> None:
        """Another pod downloads the model."""
        with self._lock:
            self._waiting = True

    def expect(self, size: int | None, done: int = 0) -> None:
        """Add a download; `size` None: not known. `done` bytes of it are there."""
        with self._lock:
            self._waiting = False
            self._unknown = size is None
            self._size += size or 0
            self._done += done
            self._sample()

    def add(self, came: int, done: int) -> None:
        """Add bytes that came over the network, and by how many the files grew."""
        with self._lock:
            self._came += came
            self._done += done
            if not self._samples or self._clock() - self._samples[-1][0] >= SAMPLE_EVERY_S:
                self._sample()

    def _sample(self) -> None:
        self._samples.append((self._clock(), self._came))

    def state(self) -> DownloadState:
        """The present state."""
        with self._lock:
            size = None if self._unknown or not self._size else self._size
            done = max(0, self._done if size is None else min(self._done, size))
            return DownloadState(done, size, self._rate(), self._waiting)

    def _rate(self) -> int:
        now = self._clock()
        recent = [sample for sample in self._samples if now - sample[0] <= RATE_OVER_S]
        if not recent or now - recent[0][0] < SAMPLE_EVERY_S:
            return 0
        began, before = recent[0]
        return round((self._came - before) / (now - began))


FETCH = DownloadMeter()  # of this process: it fetches one model


class DownloadProgress:
    """A line in the log every few seconds; several threads may add."""

    def __init__(
        self, verb: str, total_bytes: int | None, done_bytes: int = 0, meter: DownloadMeter | None = None
    ) -> None:
        """`total_bytes`: None where it is not known. `done_bytes`: what an earlier run left. `meter` counts too."""
        self._verb, self._total, self._done, self._before = verb, total_bytes, done_bytes, done_bytes
        self._lock, self._meter = threading.Lock(), meter
        self._began_s = time.monotonic()
        self._next_s = self._began_s + LINE_EVERY_S
        if meter:
            meter.expect(total_bytes, done_bytes)

    def learn(self, total_bytes: int | None) -> None:
        """The size of a download that was not known when it began."""
        with self._lock:
            learned = self._total is None and total_bytes is not None
            if learned:
                self._total = total_bytes
        if learned and self._meter:
            self._meter.expect(total_bytes)

    def add(self, size: int) -> None:
        """Bytes that came."""
        with self._lock:
            self._done += size
            due = time.monotonic() >= self._next_s
            if due:
                self._next_s = time.monotonic() + LINE_EVERY_S
        if self._meter:
            self._meter.add(size, size)
        if due:
            of = "" if self._total is None else f" of {self._total // 10**6}"
            log.info("%s %d%s MB", self._verb, self._done // 10**6, of)

    def correct(self, size: int) -> None:
        """Bytes that are there without a transfer; negative for those that are fetched again."""
        with self._lock:
            self._done += size
            self._before += size
        if self._meter:
            self._meter.add(0, size)

    def log_rate(self) -> None:
        """What it took, at the end."""
        took_s, size = max(1e-3, time.monotonic() - self._began_s), self._done - self._before
        fields = {"bytes": size, "seconds": round(took_s, 3), "mb_per_second": round(size / 1e6 / took_s, 1)}
        log.info("%s %d bytes in %.1f s, %.0f MB/s", self._verb, size, took_s, size / 1e6 / took_s, extra=fields)
