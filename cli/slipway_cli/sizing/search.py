"""Which concurrency a load test tries next, and how large it may get; pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slipway_cli.sizing.steps import Outcome

LEAST_OF_STEP = 20  # requests that the plan has for a step
SETTLE_SHARE = 0.2  # of a step, before its requests count

Tried = Sequence[tuple[int, Outcome]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of a load test and its bounds. `refinements`: steps between one that holds and one that fails."""

    max_concurrency: int
    step_s: float
    refinements: int
    max_requests: int
    max_seconds: float
    first: int = 1

    @property
    def settle_s(self) -> float:
        """Seconds of a step before its requests count."""
        return SETTLE_SHARE * self.step_s

    @property
    def steps(self) -> int:
        """The most steps that it may have."""
        return len(list(ladder(self.first, self.max_concurrency))) + self.refinements

    @property
    def seconds(self) -> float:
        """What all steps take where requests are shorter than a step, but for the last responses of each."""
        return self.steps * (self.step_s + self.settle_s)

    @property
    def least_requests(self) -> int:
        """The fewest requests with which each step has some."""
        rungs = sum(max(LEAST_OF_STEP, 2 * rung) for rung in ladder(self.first, self.max_concurrency))
        return rungs + self.refinements * max(LEAST_OF_STEP, 2 * self.max_concurrency)


def ladder(first: int, most: int) -> Iterator[int]:
    """`first`, doubled until `most`, which is the last one."""
    rung = first
    while rung < most:
        yield rung
        rung *= 2
    yield most


def refusal(plan: Plan) -> str:
    """Why the plan exceeds its own bounds; empty where it does not."""
    if plan.first > plan.max_concurrency:
        return f"the first concurrency {plan.first} is above --max-concurrency {plan.max_concurrency}"
    if plan.seconds > plan.max_seconds:
        return (
            f"{plan.steps} steps take {plan.seconds:.0f} s, and --max-seconds is {plan.max_seconds:.0f}: "
            "raise it, or lower --step-seconds or --max-concurrency"
        )
    if plan.least_requests > plan.max_requests:
        return (
            f"{plan.steps} steps need {plan.least_requests} requests, and --max-requests is {plan.max_requests}: "
            "raise it, or lower --max-concurrency"
        )
    return ""


def following(plan: Plan, tried: Tried) -> int | None:
    """The next concurrency: doubled until a step fails, then halfway between it and the last one that held."""
    failed = min((number for number, outcome in tried if outcome is Outcome.MISSED), default=None)
    if failed is None:
        last = max((number for number, _ in tried), default=0)
        return next((rung for rung in ladder(plan.first, plan.max_concurrency) if rung > last), None)
    held = best(tried) or 0
    used = len(tried) - sum(1 for rung in ladder(plan.first, plan.max_concurrency) if rung in dict(tried))
    between = (held + failed) // 2
    if used >= plan.refinements or between in dict(tried) or between < 1:
        return None
    return between


def best(tried: Tried) -> int | None:
    """The highest concurrency that holds, below the lowest one that fails; None for none."""
    failed = min((number for number, outcome in tried if outcome is Outcome.MISSED), default=None)
    below = (number for number, outcome in tried if outcome is Outcome.HOLDS and (failed is None or number < failed))
    return max(below, default=None)


def quota(plan: Plan, sent: int, tried: int) -> int:
    """How many requests the next step may count: its part of those that are left, so that each step has some."""
    left, steps_left = plan.max_requests - sent, max(1, plan.steps - tried)
    # A fifth is for what is in progress while a step settles and ends.
    return max(1, int(left / steps_left / (1.0 + SETTLE_SHARE)))
