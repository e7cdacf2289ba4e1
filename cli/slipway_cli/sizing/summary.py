"""What a load test as a whole says: the best setting, and what limits; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipway_cli.sizing.objectives import Objectives
from slipway_cli.sizing.search import best
from slipway_cli.sizing.steps import Outcome, Step, is_sure, outcome, worst

ERRORS, THROUGHPUT, NOT_REACHED, UNKNOWN = "errors", "throughput", "not reached", "unknown"
_FLAT = 1.1  # times the rate for twice the concurrency, below which it no longer grows


@dataclass(frozen=True, slots=True)
class Summary:
    """`best`: the step with the highest concurrency that holds; None for none. `low` and `high`: bounds of its rate.

    `limit`: an objective, or one of the constants above, with a sentence in `why`.
    """

    best: Step | None
    low: float
    high: float | None
    limit: str
    why: str


def summarize(steps: Sequence[Step], objectives: Objectives, most_errors: float) -> Summary:
    """From steps in any order."""
    ordered = sorted(steps, key=lambda step: step.concurrency)
    outcomes = {step.concurrency: outcome(step, objectives, most_errors) for step in ordered}
    chosen = best(list(outcomes.items()))
    held = next((step for step in ordered if step.concurrency == chosen), None)
    sure = [
        step.rate
        for step in ordered
        if held and step.concurrency <= held.concurrency and outcomes[step.concurrency] is Outcome.HOLDS
        if is_sure(step, objectives)
    ]
    over = [step for step in ordered if outcomes[step.concurrency] is Outcome.MISSED]
    surely_over = [step.rate for step in over if is_sure(step, objectives)]
    limit, why = _limit(ordered, over, outcomes, objectives, most_errors)
    low = min(max(sure, default=0.0), held.rate) if held else 0.0
    # Beyond saturation the rate does not grow: then the bound is what was measured.
    high = max(held.rate, surely_over[0]) if held and surely_over else None
    return Summary(held, low, high, limit, why)


def _limit(
    ordered: Sequence[Step],
    over: Sequence[Step],
    outcomes: dict[int, Outcome],
    objectives: Objectives,
    most_errors: float,
) -> tuple[str, str]:
    """What limits, with a sentence."""
    if over:
        first = over[0]
        if first.error_share > most_errors:
            return ERRORS, f"{first.error_share:.0%} of the requests failed at {first.concurrency}: {causes(first)}"
        late = worst(first, objectives)
        if late:
            return late.objective, (
                f"at {first.concurrency} in progress {late.objective} is {late.ratio:.2f} of its limit: "
                f"{late.missed} of {late.requests} requests missed it"
            )
    held = [step for step in ordered if outcomes[step.concurrency] is Outcome.HOLDS]
    if not held:
        return UNKNOWN, "too few requests ended in each step: raise --step-seconds"
    if len(held) > 1 and held[-1].concurrency >= 2 * held[-2].concurrency and held[-1].rate < _FLAT * held[-2].rate:
        return THROUGHPUT, (
            f"the rate no longer grows: {held[-2].rate:.3g} requests per second at {held[-2].concurrency} in progress, "
            f"{held[-1].rate:.3g} at {held[-1].concurrency}"
        )
    return NOT_REACHED, f"every objective holds at {held[-1].concurrency} in progress: raise --max-concurrency"


def causes(step: Step) -> str:
    """Its errors, the most frequent first."""
    ordered = sorted((step.errors or {}).items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count} x {cause}" for cause, count in ordered[:3])
