"""What `slipway bench`, `slipway size` and `slipway cost` print; pure."""

import math
from collections.abc import Iterator, Sequence

from slipway_cli.sizing.answer import AT_LEAST, EXTRAPOLATED, Answer, Demand, PodCapacity
from slipway_cli.sizing.objectives import Objectives, text_of
from slipway_cli.sizing.search import Plan
from slipway_cli.sizing.steps import Step, is_sure, outcome, quantile
from slipway_cli.sizing.summary import Summary
from slipway_cli.views.table import format_table

_COLUMNS = (
    *("in progress", "rate", "ttft p50", "p95", "p99", "itl p95", "latency p50", "p99"),
    *("tokens/s", "requests", "errors", "objectives"),
)


def plan_line(plan: Plan, model: str, objectives: Objectives) -> str:
    """What a load test will do, before it does it."""
    return (
        f"{model}: up to {plan.steps} steps of {plan.step_s:g} s, at most {plan.max_concurrency} requests in progress, "
        f"{plan.max_requests} requests and {plan.max_seconds:g} s in all; closed loop; {text_of(objectives)}"
    )


def step_line(step: Step, objectives: Objectives, most_errors: float) -> str:
    """One step while the test goes on."""
    return (
        f"{step.concurrency} in progress: {step.rate:.3g} requests per second, {step.ended_well} ended well, "
        f"{step.failed} failed, {_verdict(step, objectives, most_errors)}"
    )


def step_table(steps: Sequence[Step], objectives: Objectives, most_errors: float) -> list[str]:
    """A row for each step, by concurrency. Times are in milliseconds."""
    rows = [_row(step, objectives, most_errors) for step in sorted(steps, key=lambda step: step.concurrency)]
    return format_table(_COLUMNS, rows)


def _row(step: Step, objectives: Objectives, most_errors: float) -> tuple[object, ...]:
    return (
        step.concurrency,
        f"{step.rate:.3g}",
        *(_ms(quantile(step.ttft_ms, share)) for share in (0.5, 0.95, 0.99)),
        _ms(quantile(step.itl_ms, 0.95)),
        *(_ms(quantile(step.latency_ms, share)) for share in (0.5, 0.99)),
        f"{step.tokens_per_second:.4g}" if step.output_tokens else "-",
        step.ended_well,
        step.failed,
        _verdict(step, objectives, most_errors),
    )


def _verdict(step: Step, objectives: Objectives, most_errors: float) -> str:
    verdict = str(outcome(step, objectives, most_errors))
    return verdict if is_sure(step, objectives) or not step.ended_well else f"{verdict}, not sure"


def quantiles(step: Step) -> dict[str, float | None]:
    """Quantiles in milliseconds, as the table has them; None for none."""
    every = {"ttft": step.ttft_ms, "itl": step.itl_ms, "latency": step.latency_ms}
    return {
        f"{name}P{share * 100:.0f}Ms": None if math.isnan(value := quantile(times, share)) else value
        for name, times in every.items()
        for share in (0.5, 0.95, 0.99)
    }


def _ms(milliseconds: float) -> str:
    return "-" if math.isnan(milliseconds) else f"{milliseconds:.4g}"


def summary_lines(found: Summary, pods: int) -> Iterator[str]:
    """The best setting, and what limits."""
    best = found.best
    if best is None:
        yield "best: none of the steps holds the objectives"
    else:
        high = "no upper one" if found.high is None else f"{found.high:.3g}"
        low = f"{found.low:.3g}" if found.low else "no lower one"
        yield (
            f"best: {best.concurrency} in progress, {best.rate:.3g} requests per second of {pods} "
            f"{'pod' if pods == 1 else 'pods'} (bounds: {low}, {high})"
        )
        if best.output_tokens:
            mean = best.prompt_tokens / best.ended_well, best.output_tokens / best.ended_well
            yield (
                f"      {best.tokens_per_second:.4g} output tokens per second; prompts of {mean[0]:.0f} and outputs of "
                f"{mean[1]:.0f} tokens on average"
            )
    yield f"limit: {found.limit}: {found.why}"


def answer_lines(capacity: PodCapacity, demand: Demand, found: Answer, objectives: str, gpu: str) -> Iterator[str]:
    """The answer of `slipway size`, with what it rests on."""
    most = "unknown" if found.most is None else str(found.most)
    spare = f", {demand.spare} of them spare" if demand.spare else ""
    yield f"pods: {found.pods}{spare} (by the bounds: {found.fewest} to {most}), {found.used:.0%} used"
    if gpu:
        yield f"accelerators: {found.gpus} x {gpu}"
    high = "" if capacity.high is None else f" to {capacity.high:.3g}"
    yield (
        f"a pod carries {capacity.rate:.3g} requests per second ({capacity.low:.3g}{high or ' and more'}) while "
        f"{objectives} hold; {demand.utilization:.0%} of it is planned"
    )
    if capacity.output_tokens:
        yield f"a request: prompt of {capacity.prompt_tokens:.0f}, output of {capacity.output_tokens:.0f} tokens"
    yield f"basis: {capacity.basis}, from {capacity.source}{_BASES.get(capacity.basis, '')}"
    yield f"limit: {capacity.limit}: {capacity.why}"
    if found.cost:
        cost = found.cost
        thousand = f"{cost.thousand_requests:.4g} for 1,000 requests"
        yield f"cost: {cost.hour:.2f} an hour, {cost.month:.0f} a month, {thousand} at this rate all the time"
        if cost.million_tokens is not None and cost.million_output_tokens is not None:
            yield (
                f"      {cost.million_tokens:.4g} for a million tokens, {cost.million_output_tokens:.4g} for a million "
                "output tokens"
            )
    for note in capacity.notes:
        yield f"note: {note}"


_BASES = {
    AT_LEAST: ": no load was too high, so fewer pods may do",
    EXTRAPOLATED: ": computed beyond what was measured; run slipway bench with these requests to be sure",
}
