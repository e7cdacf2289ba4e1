"""What pods make of demand: a fluid queue before engines whose step time is a line, in steps of ten seconds (pure).

Every pod takes START_S to start, and costs from the moment it is created. A pod that is removed takes no new request
and costs one more step, in which its requests end.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.capacity.traces import STEP_S, Arrivals

# Step time of an engine of 8 billion parameters on one card, as `StepTime` has it: stated, not measured here.
FIXED_S, EACH_S, PROMPT_S = 0.012, 0.0006, 0.00003
SLOTS = 64  # requests in a full batch
START_S = 90.0
TTFT_LIMIT_S, ITL_LIMIT_S = 1.0, 0.045
BUDGET = 0.05  # share of the requests that may miss either
_SPREAD = 0.6  # of concurrency between pods, by the square root of it: least load keeps it below chance's


class View(NamedTuple):
    """What can be scraped at the end of a step. Rates are per second, sums are over all ready pods."""

    at_s: float
    desired: int  # spec.replicas
    ready: int
    starting: int
    generated: float  # tokens
    prompts: float  # tokens
    requests: float  # first tokens
    running: float  # requests
    waiting: float  # requests
    missed: float  # share of the requests of this step that missed the objective
    ttft_s: float  # 95th percentile
    itl_s: float  # 95th percentile over pods


@dataclass(slots=True)
class Pods:
    """Ready and starting pods, and the queue in front of them."""

    desired: int
    ready: int = 0
    starting: list[float] = field(default_factory=list)  # when each is ready
    draining: int = 0
    cost_s: float = 0.0  # pod-seconds
    served: float = 0.0
    missed: float = 0.0
    _queue: deque[list[float]] = field(default_factory=deque)  # [arrived at, requests, output tokens, prompt tokens]

    def __post_init__(self) -> None:
        self.ready = self.desired

    def scale(self, desired: int, now: float) -> None:
        """Set the number of pods; those that are starting leave first."""
        self.desired = desired
        surplus = self.ready + len(self.starting) - desired
        for _ in range(min(max(surplus, 0), len(self.starting))):
            self.starting.pop()
            surplus -= 1
        if surplus > 0:
            self.ready -= surplus
            self.draining += surplus
        for _ in range(-surplus):
            self.starting.append(now + START_S)

    def step(self, now: float, arrivals: Arrivals) -> View:
        """Ten seconds from `now` on."""
        if self.starting:
            self.ready += sum(at <= now for at in self.starting)
            self.starting = [at for at in self.starting if at > now]
        self.cost_s += (self.ready + len(self.starting) + self.draining) * STEP_S
        self.draining = 0
        if arrivals.requests:
            self._queue.append([now, arrivals.requests, arrivals.output_tokens, arrivals.prompt_tokens])
        return self._serve(now)

    def _serve(self, now: float) -> View:
        outputs, prompted = 0.0, 0.0
        for cohort in self._queue:
            outputs, prompted = outputs + cohort[2], prompted + cohort[3]
        mix = prompted / outputs if outputs else 0.0
        slope = EACH_S + PROMPT_S * mix
        full = self.ready * SLOTS / (FIXED_S + slope * SLOTS) * STEP_S  # tokens that this step can generate
        generated = min(outputs, full)
        x = generated / STEP_S / self.ready if self.ready else 0.0
        running = float(SLOTS) if outputs > full else min(SLOTS, FIXED_S * x / max(1e-9, 1 - slope * x))
        itl_s = FIXED_S + slope * running
        late = _above((ITL_LIMIT_S - FIXED_S) / slope, running)
        requests, prompts, missed, longest_s = self._take(now, generated, itl_s, late)
        waiting = sum(cohort[1] for cohort in self._queue) if self._queue else 0.0
        spread = _SPREAD * math.sqrt(max(running, 0.0))
        return View(
            now + STEP_S,
            self.desired,
            self.ready,
            len(self.starting),
            generated / STEP_S,
            prompts / STEP_S,
            requests / STEP_S,
            running * self.ready,
            waiting,
            missed / requests if requests else 0.0,
            longest_s,
            FIXED_S + slope * (running + 1.64 * spread),
        )

    def _take(self, now: float, generated: float, itl_s: float, late: float) -> tuple[float, float, float, float]:
        """Take the oldest cohorts for so many tokens: requests, prompt tokens, missed requests, the longest TTFT."""
        left, requests, prompts, missed, longest_s = generated, 0.0, 0.0, 0.0, 0.0
        total = max(generated, 1e-9)
        while self._queue and left > 1e-6:
            cohort = self._queue[0]
            part = min(1.0, left / cohort[2]) if cohort[2] > 0 else 1.0
            # Those that arrived in this step wait for nothing but a slot; older ones until their turn in it.
            turn_s = (generated - left) / total * STEP_S
            waited = max(0.0, now + turn_s - cohort[0]) if cohort[0] < now else 0.0
            ttft_s = waited + 2 * itl_s
            count = part * cohort[1]
            requests += count
            prompts += part * cohort[3]
            missed += count if ttft_s > TTFT_LIMIT_S else count * late
            longest_s = max(longest_s, ttft_s)
            left -= part * cohort[2]
            if part >= 1.0:
                self._queue.popleft()
            else:
                cohort[1:] = [(1 - part) * number for number in cohort[1:]]
        self.served += requests
        self.missed += missed
        return requests, prompts, missed, longest_s

    def give_up(self) -> None:
        """Count what still waits at the end as missed."""
        waiting = sum(cohort[1] for cohort in self._queue)
        self.served, self.missed = self.served + waiting, self.missed + waiting
        self._queue.clear()

    @property
    def attainment(self) -> float:
        """Share of the requests that met both objectives."""
        return 1.0 - self.missed / self.served if self.served else 1.0


def _above(limit: float, running: float) -> float:
    """Share of pods whose concurrency is above a limit, where the mean is `running`."""
    spread = _SPREAD * math.sqrt(max(running, 1e-9))
    return 0.5 * math.erfc((limit - running) / spread / math.sqrt(2))


def carried(prompts_for_each: float = 3.0) -> float:
    """Output tokens per second at which BUDGET of a pod's requests misses: what a clairvoyant planner knows."""
    slope = EACH_S + PROMPT_S * prompts_for_each
    limit = (ITL_LIMIT_S - FIXED_S) / slope
    low, high = 0.0, float(SLOTS)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _above(limit, middle) > BUDGET else (middle, high)
    return low / (FIXED_S + slope * low)
