"""Requests on the clock: what is slow does not slow the rate down."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine


async def open_loop(
    send: Callable[[int], Coroutine[object, object, None]],
    rate_per_s: float,
    stopping: threading.Event,
    *,
    most_at_once: int,
) -> int:
    """Send one request after the other at their times until `stopping`; returns when all have ended.

    Requests have numbers from 0 on. One that is due while `most_at_once` are in flight is not sent; the result is how
    many those were.
    """
    unsent = 0
    running: set[asyncio.Task[None]] = set()
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in itertools.count():
            await asyncio.sleep(max(0.0, began + number / rate_per_s - time.monotonic()))
            if stopping.is_set():
                break
            if len(running) >= most_at_once:
                unsent += 1
                continue
            task = group.create_task(send(number))
            running.add(task)
            task.add_done_callback(running.discard)
    return unsent
