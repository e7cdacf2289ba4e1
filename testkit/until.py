"""Waits for a condition: looks again and again, within a limit; the error has what was seen last.

    until(lambda: server.poll() is not None, "the server ends")
    status = until(read_status, "the rollout is paused", 120, holds=is_paused)
    await until_async(cluster.chat, "chat has a status", holds=lambda chat: "status" in chat)

The limit is there for failures alone: a busy machine makes everything slow, and no test may fail for that.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 100.0  # less than a test may take: the error of the wait has what was missing
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.15
SHOWN_CHARACTERS = 2000


class WaitFailed(Exception):
    """Something did not come true; the text has what was waited for, and what was seen instead."""


def until(
    look: Callable[[], T],
    what: str = "the condition",
    within_s: float = PATIENCE_S,
    *,
    holds: Callable[[T], object] = bool,
    shown: Callable[[T], str] | None = None,
) -> T:
    """Look until `holds` is true of what is seen; returns that. What `look` raises ends the wait.

    The pauses between two looks grow: what comes soon is seen at once, what takes long is looked at seldom.

    Raises:
        WaitFailed: when it does not come true within `within_s` seconds. `shown` turns what was seen last into text.
    """
    wait = _Wait(what, within_s)
    while not holds(seen := look()):
        time.sleep(wait.pause_s(seen, shown))
    return seen


async def until_async(
    look: Callable[[], Awaitable[T] | T],
    what: str = "the condition",
    within_s: float = PATIENCE_S,
    *,
    holds: Callable[[T], object] = bool,
    shown: Callable[[T], str] | None = None,
) -> T:
    """`until` for an event loop; `look` may be a coroutine function or a plain one."""
    wait = _Wait(what, within_s)
    while True:
        seen = await _result(look)
        if holds(seen):
            return seen
        await asyncio.sleep(wait.pause_s(seen, shown))


async def _result(look: Callable[[], Awaitable[T] | T]) -> T:
    found = look()
    if inspect.isawaitable(found):
        return await found
    return found


class _Wait:
    """The limit of one wait, and its pauses."""

    def __init__(self, what: str, within_s: float) -> None:
        self._what, self._within_s = what, within_s
        self._end_s = time.monotonic() + within_s
        self._pause_s = FIRST_PAUSE_S

    def pause_s(self, seen: T, shown: Callable[[T], str] | None) -> float:
        """Until the next look."""
        if time.monotonic() > self._end_s:
            last = shown(seen) if shown else repr(seen)[:SHOWN_CHARACTERS]
            raise WaitFailed(f"waited for: {self._what}; not within {self._within_s:.0f} s; last seen: {last}")
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s
