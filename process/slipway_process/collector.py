"""Python's garbage collector of cycles, in a process that serves for a long time."""

import asyncio
import gc
import resource
from collections.abc import Callable

_COLLECTED_AFTER = 10_000  # more objects than at the last collection, in place of 700
# The collector counts objects, whatever they hold: after so many bytes more all generations are collected.
GROWN_BYTES, EACH_S = 64 << 20, 1.0


def spare() -> None:
    """Excludes all objects of now from later collections, which also become rarer. Call it once all is loaded.

    Otherwise a collection of all generations takes tens of milliseconds, in which no request is answered. Requests
    leave few cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, 20, 50)


async def collect_when_grown(resident_bytes: Callable[[], int] | None = None) -> None:
    """Collects cycles whenever the process has grown by `GROWN_BYTES`, until cancelled.

    A cycle that holds a body of a client that left counts as a few objects. With the rare collections of `spare` it
    would stay for as long as the process.
    """
    measure = resident_bytes or _resident_bytes
    before = measure()
    while True:
        await asyncio.sleep(EACH_S)
        now = measure()
        if now - before >= GROWN_BYTES:
            gc.collect()
            before = measure()
        before = min(before, now)


def _resident_bytes() -> int:
    """The memory that this process has now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as sizes:
            return int(sizes.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
