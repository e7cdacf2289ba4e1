"""Whether work grows with what there is to do, and not with its square."""

import time
from collections.abc import Callable

_TIMES, _RUNS = 8, 3
_LEAST_S = 0.001  # below it a time says little


def assert_linear(work: Callable[[int], object], count: int) -> None:
    """Asserts that `work(8 * count)` takes less than 24 times what `work(count)` takes; quadratic would be 64 times.

    Both in seconds of this thread, the best of three runs that take turns, so that a busy machine changes little.
    """
    once_s = many_s = float("inf")
    for _ in range(_RUNS):
        once_s, many_s = min(once_s, _seconds(work, count)), min(many_s, _seconds(work, _TIMES * count))
    assert many_s < 3 * _TIMES * max(once_s, _LEAST_S), (
        f"{count}: {once_s:.4f} s, {_TIMES} times as much: {many_s:.4f} s"
    )


def _seconds(work: Callable[[int], object], count: int) -> float:
    began_s = time.thread_time()
    work(count)
    return time.thread_time() - began_s
