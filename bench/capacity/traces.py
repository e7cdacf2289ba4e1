"""Demand over three days, in steps of ten seconds, from a seed: six shapes (pure).

The first day is for tuning and for learning. Bars are about the other two.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

STEP_S = 10.0
DAY_S = 86_400.0
DAYS = 3
STEPS_PER_DAY = int(DAY_S / STEP_S)
SEED = 45
# Tokens of a request: means and the standard deviations, which are those of an exponential length.
PROMPT_TOKENS, OUTPUT_TOKENS = 600.0, 200.0

Rate = Callable[[float], float]  # requests per second at a time in seconds


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What arrives in one step: numbers of requests and of their tokens."""

    requests: int
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A name, and what arrives in each step."""

    name: str
    steps: tuple[Arrivals, ...]


def traces(days: int = DAYS) -> tuple[Trace, ...]:
    """All six, each with a seed of its own."""
    return tuple(
        Trace(name, _drawn(shape(random.Random(f"{SEED} {name} shape")), random.Random(f"{SEED} {name}"), days))
        for name, shape in SHAPES.items()
    )


def _steady(_: random.Random) -> Rate:
    return lambda _: 30.0


def _daily(at_s: float) -> float:
    """Between 6 and 54 requests per second, with a second small peak in the evening."""
    phase = 2 * math.pi * (at_s / DAY_S)
    return max(6.0, 30.0 - 22.0 * math.cos(phase) + 6.0 * math.cos(2 * phase - 1.0))


def _bursts(rng: random.Random) -> Rate:
    """A low level, and some thirty times a day three times as much for four to twelve minutes."""
    spans = []
    at = 0.0
    while at < DAYS * DAY_S:
        at += rng.expovariate(1 / 2_880.0)
        length = rng.uniform(240.0, 720.0)
        spans.append((at, at + length))
        at += length
    in_burst = _member(spans)
    return lambda at_s: 36.0 if in_burst(at_s) else 12.0


def _flash(rng: random.Random) -> Rate:
    """Each day one jump to five times the level within a minute, which ends over an hour."""
    starts = [day * DAY_S + rng.uniform(0.3, 0.8) * DAY_S for day in range(DAYS)]

    def rate(at_s: float) -> float:
        extra = 0.0
        for start in starts:
            since = at_s - start
            if since >= 0:
                extra += 64.0 * min(1.0, since / 60.0) * math.exp(-max(0.0, since - 600.0) / 1_800.0)
        return 16.0 + extra

    return rate


def _decay(_: random.Random) -> Rate:
    """A launch: much at first, half of it every eight hours."""
    return lambda at_s: 4.0 + 56.0 * 0.5 ** (at_s / 28_800.0)


def _wrong_forecast(_: random.Random) -> Rate:
    """The first day is the daily one; from then on its peaks come half a day later, so a season misleads."""
    return lambda at_s: _daily(at_s if at_s < DAY_S else at_s + DAY_S / 2)


def _member(spans: list[tuple[float, float]]) -> Callable[[float], bool]:
    """Whether a time, which only grows from call to call, is in one of the spans."""
    index = 0

    def within(at_s: float) -> bool:
        nonlocal index
        while index < len(spans) and spans[index][1] <= at_s:
            index += 1
        return index < len(spans) and spans[index][0] <= at_s

    return within


SHAPES: dict[str, Callable[[random.Random], Rate]] = {
    "steady": _steady,
    "daily": lambda _: _daily,
    "bursts": _bursts,
    "flash": _flash,
    "decay": _decay,
    "wrong forecast": _wrong_forecast,
}


def _drawn(rate: Rate, rng: random.Random, days: int) -> tuple[Arrivals, ...]:
    return tuple(_arrivals(rate(step * STEP_S) * STEP_S, rng) for step in range(days * STEPS_PER_DAY))


def _arrivals(mean: float, rng: random.Random) -> Arrivals:
    """Poisson's count, and sums of exponential lengths, both by their normal limits: means are above 40."""
    count = max(0, round(rng.gauss(mean, math.sqrt(mean))))
    spread = math.sqrt(count)
    return Arrivals(
        count,
        max(0.0, PROMPT_TOKENS * (count + spread * rng.gauss(0.0, 1.0))),
        max(0.0, OUTPUT_TOKENS * (count + spread * rng.gauss(0.0, 1.0))),
    )
