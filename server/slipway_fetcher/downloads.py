"""The progress of a download: in the log, and as a state that `download_page` serves while the download runs."""

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
    """The progress of a fetch at one moment."""

    done_bytes: int = 0  # on the disk, including what an earlier run left
    size_bytes: int | None = None  # of the model; None where it is not known (yet)
    bytes_per_second: int = 0  # over the network, in the last RATE_OVER_S seconds
    waiting: bool = False  # another pod downloads the model into the shared cache


class DownloadMeter:
    """Sums the downloads of one fetch. Several threads may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Resets the meter: a fetch begins, or begins again."""
        with self._lock:
            self._done, self._came, self._size = 0, 0, 0
            self._unknown, self._waiting = False, False
            self._samples: deque[tuple[float, int]] = deque(maxlen=round(RATE_OVER_S / SAMPLE_EVERY_S) + 1)

    def wait(self) -> None:
        """Notes that another pod downloads the model into the shared cache, until the next `expect`."""
        with self._lock:
            self._waiting = True

    def expect(self, size: int | None, done: int = 0) -> None:
        """Adds a download of `size` bytes (None: not known), of which `done` bytes are already on the disk."""
        with self._lock:
            self._waiting = False
            self._unknown = size is None
            self._size += size or 0
            self._done += done
            self._sample()

    def add(self, came: int, done: int) -> None:
        """Adds `came` bytes that came over the network, and `done` bytes by which the files grew."""
        with self._lock:
            self._came += came
            self._done += done
            if not self._samples or self._clock() - self._samples[-1][0] >= SAMPLE_EVERY_S:
                self._sample()

    def _sample(self) -> None:
        self._samples.append((self._clock(), self._came))

    def state(self) -> DownloadState:
        """The progress now."""
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
    """Logs a line about a transfer every LINE_EVERY_S seconds. Several threads may call `add`."""

    def __init__(
        self, verb: str, total_bytes: int | None, done_bytes: int = 0, meter: DownloadMeter | None = None
    ) -> None:
        """`total_bytes`: None if not known. `done_bytes`: what an earlier run left. `meter` gets the same counts."""
        self._verb, self._total, self._done, self._before = verb, total_bytes, done_bytes, done_bytes
        self._lock, self._meter = threading.Lock(), meter
        self._began_s = time.monotonic()
        self._next_s = self._began_s + LINE_EVERY_S
        if meter:
            meter.expect(total_bytes, done_bytes)

    def learn(self, total_bytes: int | None) -> None:
        """Sets the total size if it was not known before; None changes nothing."""
        with self._lock:
            learned = self._total is None and total_bytes is not None
            if learned:
                self._total = total_bytes
        if learned and self._meter:
            self._meter.expect(total_bytes)

    def add(self, size: int) -> None:
        """Counts `size` bytes that were transferred, and logs a line if one is due."""
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
        """Counts bytes that are on the disk without a transfer; negative for bytes that must be fetched again."""
        with self._lock:
            self._done += size
            self._before += size
        if self._meter:
            self._meter.add(0, size)

    def log_rate(self) -> None:
        """Logs the transferred bytes, the seconds and the speed; to be called at the end."""
        took_s, size = max(1e-3, time.monotonic() - self._began_s), self._done - self._before
        fields = {"bytes": size, "seconds": round(took_s, 3), "mb_per_second": round(size / 1e6 / took_s, 1)}
        log.info("%s %d bytes in %.1f s, %.0f MB/s", self._verb, size, took_s, size / 1e6 / took_s, extra=fields)
