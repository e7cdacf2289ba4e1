"""What one step of a load test measured, and whether the objectives hold; pure.

Quantiles are exact: the smallest measured time within which that share of the requests stays. So the 95th percentile
is within a limit exactly where at most 5 % of the requests miss it, as `spec.slo` counts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipway_cli.sizing.objectives import SHARES, Objectives
from slipway_contracts.service_levels import ITL, LATENCY, TTFT

LEAST_REQUESTS = 5  # that ended well, below which a step proves nothing
_Z = 1.64  # of a one-sided bound of 95 %


class Outcome(StrEnum):
    """What a step says about the objectives."""

    HOLDS = "Holds"
    MISSED = "Missed"
    FEW = "Few"  # too few requests ended


@dataclass(frozen=True, slots=True)
class Step:
    """Requests that began in a window, at a constant number in progress. Times are in milliseconds, sorted.

    `mean_ms`: of all requests, from the start of one to the start of the next of the same client.
    """

    concurrency: int
    seconds: float
    mean_ms: float
    ttft_ms: tuple[float, ...] = ()
    itl_ms: tuple[float, ...] = ()
    latency_ms: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    errors: Mapping[str, int] | None = None
    whole: bool = True  # whether every request that began in the window has ended

    @property
    def ended_well(self) -> int:
        """Requests with a whole response."""
        return len(self.latency_ms)

    @property
    def failed(self) -> int:
        """Requests without one."""
        return sum((self.errors or {}).values())

    @property
    def error_share(self) -> float:
        """Share of the requests that failed."""
        return self.failed / (self.failed + self.ended_well) if self.failed else 0.0

    @property
    def rate(self) -> float:
        """Requests per second that end well: in a closed loop, those in progress by the mean time of one."""
        return self.concurrency * 1000.0 / self.mean_ms * (1.0 - self.error_share) if self.mean_ms > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second."""
        return self.rate * self.output_tokens / self.ended_well if self.ended_well else 0.0

    def times_ms(self, objective: str) -> tuple[float, ...]:
        """The times that an objective is about."""
        return {TTFT: self.ttft_ms, ITL: self.itl_ms, LATENCY: self.latency_ms}[objective]


@dataclass(frozen=True, slots=True)
class Missed:
    """Requests that count for an objective, those that missed it, and their quantile by the limit."""

    objective: str
    requests: int
    missed: int
    ratio: float  # of the quantile by the limit: above 1 it does not hold

    @property
    def bounds(self) -> tuple[float, float]:
        """Wilson's bounds of the share that misses, of 95 % each."""
        return _wilson(self.missed, self.requests, -_Z), _wilson(self.missed, self.requests, _Z)


def quantile(times: Sequence[float], share: float) -> float:
    """The smallest of these sorted times within which this share of them stays; nan for none."""
    if not times:
        return math.nan
    return times[max(0, math.ceil(share * len(times) - 1e-9) - 1)]


def missed(step: Step, objectives: Objectives) -> Iterator[Missed]:
    """The objectives about which the step has times."""
    for name, limit_ms in objectives.items():
        if times := step.times_ms(name):
            late = sum(time > limit_ms for time in times)
            yield Missed(name, len(times), late, quantile(times, SHARES[name]) / limit_ms)


def outcome(step: Step, objectives: Objectives, most_errors: float) -> Outcome:
    """Whether the step holds every objective, and no more than a share of its requests failed."""
    if step.failed and step.error_share > most_errors:
        return Outcome.MISSED
    if step.ended_well < LEAST_REQUESTS:
        return Outcome.FEW
    counted = list(missed(step, objectives))
    if any(each.ratio > 1.0 for each in counted):
        return Outcome.MISSED
    # Of a step that was cut off, the slowest requests are missing.
    return Outcome.HOLDS if step.whole and len(counted) == len(objectives) else Outcome.FEW


def is_sure(step: Step, objectives: Objectives) -> bool:
    """Whether the step had enough requests to be 95 % sure that each objective holds, or that one is missed."""
    counted = [(each, 1.0 - SHARES[each.objective]) for each in missed(step, objectives)]
    if any(each.bounds[0] > budget for each, budget in counted):
        return True
    return len(counted) == len(objectives) and all(each.bounds[1] <= budget for each, budget in counted)


def worst(step: Step, objectives: Objectives) -> Missed | None:
    """The objective that is missed by the largest factor; None where all hold."""
    over = [each for each in missed(step, objectives) if each.ratio > 1.0]
    return max(over, key=lambda each: each.ratio, default=None)


def _wilson(count: int, of: int, z: float) -> float:
    share = count / of
    middle, spread = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return min(1.0, max(0.0, (middle + spread) / (1 + z * z / of)))
