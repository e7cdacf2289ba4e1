"""Decides which step may start, and how long the rest takes (pure).

Steps of one lane run one after the other, in the given order; lanes run beside each other. Most steps have no lane of
their own, so a plain list of steps is worked off in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

_PRIOR_S = 30.0  # how much measured time it takes until the machine's own pace counts as much as the table
_SLOWEST = 6.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a longer work: what it is called, whether it is there already, and what makes it."""

    title: str
    done: Callable[[], bool]
    make: Callable[[], object]
    note: str = ""  # what is downloaded, or why it takes long
    lane: str = ""
    after: tuple[str, ...] = ()  # titles in other lanes; a title that is not in the list is done already
    fraction: Callable[[], float] | None = None  # how much of it is done, 0 to 1, where the step knows


def missing(steps: Sequence[Step]) -> list[Step]:
    """What is not done yet; a step of two parts under one title runs once, as the first part defines it."""
    first = {step.title: step for step in reversed(steps)}
    return [step for step in steps if step is first[step.title] and not step.done()]


def startable(steps: Sequence[Step], finished: Collection[str], running: Collection[str]) -> list[Step]:
    """The first unfinished step of each free lane, if all that it comes after is finished."""
    titles = {step.title for step in steps}
    next_of_lane: dict[str, Step] = {}
    for step in steps:
        if step.title not in finished:
            next_of_lane.setdefault(step.lane, step)
    return [
        step
        for step in next_of_lane.values()
        if step.title not in running and all(title in finished or title not in titles for title in step.after)
    ]


def makespan(steps: Sequence[Step], seconds: Mapping[str, float]) -> float:
    """How long the steps take that have seconds left, when each lane works off its own; others count as finished.

    Raises:
        ValueError: steps wait for one another.
    """
    left = {step.title: seconds[step.title] for step in steps if step.title in seconds}
    running: set[str] = set()
    now = 0.0
    while left:
        finished = {step.title for step in steps} - left.keys()
        running |= {step.title for step in startable(steps, finished, running)}
        if not running:
            raise ValueError(f"steps wait for one another: {', '.join(left)}")
        shortest = min(left[title] for title in running)
        now += shortest
        left = {title: rest - shortest if title in running else rest for title, rest in left.items()}
        left = {title: rest for title, rest in left.items() if title not in running or rest > 1e-9}
        running &= left.keys()
    return now


@dataclass(frozen=True, slots=True)
class Forecast:
    """How far a work is."""

    share: float  # 0 to 1, of the time that it takes
    seconds_left: float


def forecast(
    steps: Sequence[Step], weights: Mapping[str, float], left: Mapping[str, float], elapsed_s: float
) -> Forecast:
    """From the weights of all steps, what is left of each, and how long it took to get here."""
    total, rest = makespan(steps, weights), makespan(steps, left)
    came = max(total - rest, 0.0)
    pace = min((elapsed_s + _PRIOR_S) / (came + _PRIOR_S), _SLOWEST)
    return Forecast(came / total if total else 1.0, rest * pace)


def left_of(weight: float, ran_s: float, fraction: float | None) -> float:
    """Seconds left of a running step: by its own fraction, else by the clock; a late one is nearly done for long."""
    if fraction is not None:
        return weight * (1 - min(max(fraction, 0.0), 1.0))
    return max(weight - ran_s, weight * 0.1)


def about(seconds: float) -> str:
    """A duration, rounded for people."""
    if seconds < 50:
        return "less than a minute"
    return f"about {round(seconds / 60)} min"
