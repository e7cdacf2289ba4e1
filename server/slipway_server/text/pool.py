"""Threads for native work on texts of bounded size, which releases the GIL: tenants take turns."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from slipway_process.serving.turns import QueueRules, Turns

T = TypeVar("T")

THREADS = 2
MAX_WAITING = 128  # jobs; of more the newest of the tenant with most of them is refused
LIMIT_S = 10.0  # for one job, from its start


class TextTimeout(Exception):
    """A job took longer than the limit."""


class TextPool:
    """Runs jobs in a few threads.

    A thread cannot be ended: a job must be short by the size of what it works on (`sizes.MAX_HERE_BYTES`). All other
    work belongs into a process.
    """

    def __init__(self, threads: int = THREADS, waiting: int = MAX_WAITING, limit_s: float = LIMIT_S) -> None:
        self._threads = ThreadPoolExecutor(threads, "text")
        # A job is short, so that no one waits long for the threads of one tenant.
        self._turns = Turns(QueueRules(threads, threads, waiting))
        self._limit_s = limit_s

    async def run(self, work: Callable[[], T], tenant: str = "") -> T:
        """Runs `work` in a thread and returns its result, or raises what it raised.

        Raises:
            TextBusy: too many jobs of this tenant wait.
            TextTimeout: `work` took too long. Its thread is free again when it has ended.
        """
        await self._turns.take(tenant)
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        future.add_done_callback(partial(self._finish, tenant))
        await asyncio.wait([future], timeout=self._limit_s)
        if not future.done():
            raise TextTimeout(f"It took longer than {self._limit_s:g} s.")
        return future.result()

    def _finish(self, tenant: str, future: "asyncio.Future[T]") -> None:
        self._turns.release(tenant)
        if not future.cancelled():
            future.exception()  # marks it as retrieved: the caller may be gone
