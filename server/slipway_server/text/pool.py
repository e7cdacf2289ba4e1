"""A thread pool for text work that would block the event loop, with limits on threads, queue and time."""

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

THREADS = 2
MAX_WAITING = 128  # jobs; more are refused
LIMIT_S = 10.0  # for one job, from its start


class TextBusy(Exception):
    """Too many jobs wait. Nothing was started; a later attempt may succeed."""


class TextTimeout(Exception):
    """A job took longer than the limit and was interrupted."""


class TextPool:
    """Runs jobs in a few threads, with a bounded queue and a time limit for each job."""

    def __init__(self, threads: int = THREADS, waiting: int = MAX_WAITING, limit_s: float = LIMIT_S) -> None:
        self._threads = ThreadPoolExecutor(threads, "text")
        self._free, self._limit_s = threads + waiting, limit_s

    async def run(self, work: Callable[[], T]) -> T:
        """Runs `work` in a thread and returns its result, or raises what it raised.

        Raises:
            TextBusy: too many jobs wait.
            TextTimeout: `work` took too long and was interrupted.
        """
        if not self._free:
            raise TextBusy("Too many prompts wait for their tokens.")
        self._free -= 1
        job = _Job(work)
        future = asyncio.get_running_loop().run_in_executor(self._threads, job.run)
        future.add_done_callback(self._finish)
        try:
            while not future.done():
                await asyncio.wait([future], timeout=self._limit_s)
                if not future.done() and job.seconds >= self._limit_s:
                    raise TextTimeout(f"It took longer than {self._limit_s:g} s.")
            return future.result()
        finally:
            if not future.done():
                future.cancel()  # when it has not started
                job.interrupt()

    def _finish(self, future: "asyncio.Future[T]") -> None:
        self._free += 1
        if not future.cancelled():
            future.exception()  # marks it as retrieved: the caller may have been cancelled


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._started_s = float("inf")

    @property
    def seconds(self) -> float:
        """Seconds since the job's start; minus infinity before it."""
        return time.monotonic() - self._started_s

    def run(self) -> T:
        with self._lock:
            self._started_s, self._thread = time.monotonic(), threading.get_ident()
        try:
            return self._work()
        finally:
            with self._lock:
                self._thread = None
            for _ in range(2):  # an interrupt that came before the lock is raised here at the latest
                pass

    def interrupt(self) -> None:
        """Raises TextTimeout in the job's thread at the next bytecode. C code runs to its end first."""
        with self._lock:
            if self._thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(TextTimeout))
