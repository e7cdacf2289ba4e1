"""Profiles of the engine's next steps as a table: by Python function, or by torch operation."""

import cProfile
import io
import pstats
import time
from collections.abc import Callable
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity

from ...kernels.cuda import num_devices
from ..messages import Profile

ROWS = 60
T = TypeVar("T")


class Profiler:
    """At most one profile at a time. It ends after its steps or its time, whichever comes first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps = 0  # that are left
        self._end_s = 0.0
        self._running: _ByFunction | _ByOperation | None = None

    def begin(self, ask: Profile) -> None:
        """Starts a profile of the next steps, in place of one that is running."""
        self._running = _ByOperation() if ask.operations else _ByFunction()
        self._steps, self._end_s = ask.steps, self._clock() + ask.seconds

    def run(self, step: Callable[[], T]) -> T:
        if self._running is None or self._steps == 0:
            return step()
        self._steps -= 1
        return self._running.run(step)

    def take(self) -> str | None:
        """The table of a profile that has ended, once; else None."""
        if self._running is None or (self._steps and self._clock() < self._end_s):
            return None
        table, self._running = self._running.table(), None
        return table


class _ByFunction:
    def __init__(self) -> None:
        self._profile = cProfile.Profile()
        self._steps = 0

    def run(self, step: Callable[[], T]) -> T:
        self._steps += 1
        return self._profile.runcall(step)

    def table(self) -> str:
        if not self._steps:
            return "No step ran.\n"
        text = io.StringIO()
        pstats.Stats(self._profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(ROWS)
        return f"{self._steps} steps\n{text.getvalue()}"


class _ByOperation:
    """Runs torch's profiler only during steps: the time between them is not counted."""

    def __init__(self) -> None:
        cuda = [ProfilerActivity.CUDA] if num_devices() else []
        self._profile = torch.profiler.profile(activities=[ProfilerActivity.CPU, *cuda], acc_events=True)
        self._steps = 0
        # The first start takes seconds: it must not be part of a measured step.
        with self._profile:
            pass

    def run(self, step: Callable[[], T]) -> T:
        self._steps += 1
        with self._profile:
            return step()

    def table(self) -> str:
        if not self._steps:
            return "No step ran.\n"
        sort = "self_cuda_time_total" if num_devices() else "self_cpu_time_total"
        return f"{self._steps} steps\n{self._profile.key_averages().table(sort_by=sort, row_limit=ROWS)}\n"
