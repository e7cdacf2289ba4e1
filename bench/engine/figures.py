"""From answers to figures: quantiles, rates, goodput, medians over rounds, ratios (pure)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.engine.load import Answer, Run
from testkit.report import quantile

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Objective:
    """What a user of the open loop was promised."""

    ttft_s: float = 5.0
    token_s: float = 0.2  # mean time per token after the first: five tokens a second, about as fast as people read

    def met(self, answer: Answer) -> bool:
        return not answer.error and answer.ttft_s <= self.ttft_s and mean_gap_s(answer) <= self.token_s


def mean_gap_s(answer: Answer) -> float:
    """Time per output token after the first one; 0 for answers of one token."""
    later = answer.tokens - 1
    return (answer.token_times_s[-1] - answer.token_times_s[0]) / later if later > 0 else 0.0


def miscounts(answers: Iterable[Answer], *, events: bool = True) -> list[str]:
    """Answers whose token counts are not the ones intended: in such a run the peers did not do the same work.

    `events`: whether each token has one. Sampled ones may be single bytes, which are no text until the next one.
    """
    found = []
    for answer in answers:
        if answer.error:
            continue
        prompt, wanted = answer.prompt, answer.prompt.output_tokens
        if answer.usage and answer.usage["prompt_tokens"] != prompt.tokens:
            found.append(f"{answer.usage['prompt_tokens']} prompt tokens for {prompt.tokens}")
        if answer.tokens != wanted:
            found.append(f"{answer.tokens} output tokens for {wanted}")
        if events and len(answer.token_times_s) != wanted:
            found.append(f"{len(answer.token_times_s)} events for {wanted} tokens")
    return found


def figures(run: Run, *, sampled: bool = False) -> Row:
    """The figures of one load. Of answers that were cut off or failed, only the tokens that came are counted."""
    answers = run.answers
    streamed = [answer for answer in answers if answer.token_times_s]
    output = sum(len(answer.token_times_s) if answer.error else answer.tokens for answer in answers)
    prefilled = sum(answer.prompt.tokens for answer in streamed)
    ttft, gaps = [answer.ttft_s for answer in streamed], [gap for answer in streamed for gap in answer.gaps_s]
    errors = [answer.error for answer in answers if answer.error and answer.error != "cut off"]
    return {
        "requests": len(answers),
        "gaps": len(gaps),
        "seconds": round(run.seconds, 3),
        "cut": run.cut,
        "output_tokens": output,
        "output_tokens_per_s": round(output / run.seconds, 2),
        "total_tokens_per_s": round((output + prefilled) / run.seconds, 1),
        "ttft_p50_s": round(quantile(ttft, 0.5), 4),
        "ttft_p99_s": round(quantile(ttft, 0.99), 4),
        "itl_p50_ms": round(quantile(gaps, 0.5) * 1e3, 2),
        "itl_p99_ms": round(quantile(gaps, 0.99) * 1e3, 2),
        "errors": len(errors),
        "first_error": errors[0] if errors else "",
        "miscounts": miscounts(answers, events=not sampled)[:3],
    }


def goodput(run: Run, objective: Objective) -> Row:
    """Requests per second that met the objective, over the time from the first arrival to the last end."""
    good = sum(objective.met(answer) for answer in run.answers)
    return {
        "good": good,
        "good_share": round(good / len(run.answers), 3) if run.answers else 0.0,
        "goodput_per_s": round(good / run.seconds, 3),
    }


def middle(values: Sequence[float]) -> float:
    """The median over rounds; nan when a peer has none."""
    return median(values) if values else math.nan


def ratio(ours: float, theirs: float) -> float:
    """How many times ours is theirs; nan when either is missing."""
    return ours / theirs if theirs and not math.isnan(ours) and not math.isnan(theirs) else math.nan
