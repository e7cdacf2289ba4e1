"""Runs of a trace under a rule, the choice of parameters on the first day, and the clairvoyant planner (pure)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.capacity.pods import BUDGET, START_S, Pods, carried
from bench.capacity.policies import LEAST, MOST, Contender, Parameters, Rule, clairvoyant
from bench.capacity.traces import STEP_S, STEPS_PER_DAY, Arrivals, Trace

TARGET = 1.0 - BUDGET
_START_STEPS = int(START_S / STEP_S)
_SCALES = 6  # halvings in the search for the least pods of a clairvoyant


@dataclass(frozen=True, slots=True)
class Outcome:
    """Over the days that count."""

    attainment: float
    replica_hours: float
    changes: int


def run(steps: Sequence[Arrivals], rule: Rule, first: int, counted_from: int = 0) -> Outcome:
    """Simulate; what happens before step `counted_from` teaches the rule and does not count."""
    pods, changes = Pods(first), 0
    for number, arrivals in enumerate(steps):
        now = number * STEP_S
        if number == counted_from:
            pods.cost_s = pods.served = pods.missed = 0.0
            changes = 0
        desired = rule(pods.step(now, arrivals))
        if desired != pods.desired:
            changes += 1
            pods.scale(min(MOST, max(LEAST, desired)), now + STEP_S)
    pods.give_up()
    return Outcome(pods.attainment, pods.cost_s / 3600, changes)


def first_pods(trace: Trace) -> int:
    """Pods at the start: what the first ten minutes need, for every rule alike."""
    return _needs(trace.steps[:60], 1.0)[0]


def tuned(trace: Trace, contender: Contender) -> Parameters:
    """The parameters with the fewest replica-hours on the first day among those that attain; else the best ones."""
    day = trace.steps[:STEPS_PER_DAY]
    outcomes = {each: run(day, contender.make(*each), first_pods(trace)) for each in contender.grid}
    attaining = {each: outcome for each, outcome in outcomes.items() if outcome.attainment >= TARGET}
    if attaining:
        return min(attaining, key=lambda each: attaining[each].replica_hours)
    return max(outcomes, key=lambda each: outcomes[each].attainment)


def perfect(trace: Trace, counted_from: int) -> Outcome:
    """The least replica-hours with which a planner that knows the trace attains, with the same start-up time.

    It starts pods in time and fills gaps in which a pod would not have started again. How much less than the need of
    each step it may have is searched for: it misses as many requests as the objective lets it.
    """
    low, high, best = 0.7, 1.3, None
    for _ in range(_SCALES):
        scale = (low + high) / 2
        needs = _ahead(_needs(trace.steps, scale))
        outcome = run(trace.steps, clairvoyant(iter([*needs[1:], needs[-1]])), needs[0], counted_from)
        if outcome.attainment >= TARGET:
            best, high = outcome, scale
        else:
            low = scale
    assert best is not None, "with 1.3 times what is needed every trace attains"
    return best


def _needs(steps: Sequence[Arrivals], scale: float) -> list[int]:
    """Pods that each step needs, over a minute around it: a shorter noise is what the objective's budget is for."""
    load = [step.output_tokens / STEP_S for step in steps]
    sums = [0.0]
    for value in load:
        sums.append(sums[-1] + value)
    needs = []
    for number in range(len(load)):
        begin, end = max(0, number - 3), min(len(load), number + 3)
        mean = (sums[end] - sums[begin]) / (end - begin)
        needs.append(max(LEAST, math.ceil(scale * mean / carried())))
    return needs


def _ahead(needs: Sequence[int]) -> list[int]:
    """The wanted pods at each step: those of the next START_S too, so that they are ready, and no shorter gaps."""
    return [max(needs[number : number + _START_STEPS + 2]) for number in range(len(needs))]
