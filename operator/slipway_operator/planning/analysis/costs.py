"""Adds minutes to the costs of an analysis: what the pods of both sides did in the minute before, and their prices.

Minutes do not overlap, and the first one begins when canary is warm. What was counted is in the run, so a restarted
operator goes on from there; what pods did meanwhile is not counted.
"""

import math
from dataclasses import replace

from slipway_operator.api.v1alpha1.analysis_run import CostRun, CostSide, RunStatus
from slipway_operator.judging.cost import PREDICTIONS, TOKENS, ratio
from slipway_operator.model.analysis.spec import AnalysisSpec
from slipway_operator.model.cluster.observed import RevisionWork
from slipway_operator.planning.facts.situation import Course, Situation, rollout_of
from slipway_operator.planning.sizing import baseline

MINUTE_S = 60.0
LARGEST_RATIO = 1e6  # of a minute: pods' own numbers can be anything


def read(course: Course, at: Situation, run: RunStatus, spec: AnalysisSpec) -> RunStatus:
    """The run with one more minute, if one is over and both sides are known."""
    if spec.cost is None:
        return run
    former = run.cost or CostRun()
    if former.counted_at is None:
        return replace(run, cost=replace(former, counted_at=at.now)) if run.warm else run
    if at.elapsed_s(former.counted_at) < MINUTE_S:
        return run
    pair = rollout_of(course).revision, baseline.compared(course, at)
    canary, stable = (at.observed.work.get(name, RevisionWork(0, 0.0, problem="no pod is ready")) for name in pair)
    if problem := _problem(canary, stable):
        return replace(run, cost=replace(former, problem=problem))
    counted = _with(former, canary, stable, spec.cost.max_cost_increase)
    return replace(run, cost=replace(counted, counted_at=at.now, problem=""))


def _problem(canary: RevisionWork, stable: RevisionWork) -> str:
    sides = (("canary", canary), ("stable", stable))
    return next((f"{side}: {work.problem}" for side, work in sides if work.problem), "")


def _with(former: CostRun, canary: RevisionWork, stable: RevisionWork, limit: float | None) -> CostRun:
    unit = former.unit or (PREDICTIONS if not (canary.tokens or stable.tokens) else TOKENS)
    sides = _side(canary, unit), _side(stable, unit)
    compared = ratio(sides[0], sides[1], unit, MINUTE_S)
    if compared is None:
        return replace(former, idle=former.idle + 1)
    most = math.inf if limit is None else 1 + limit
    return replace(
        former,
        unit=unit,
        minutes=former.minutes + 1,
        dearer=former.dearer + (compared.low > most),
        not_within=former.not_within + (compared.high > most),
        low=_mean(former.low, former.minutes, compared.low),
        high=_mean(former.high, former.minutes, compared.high),
        canary=_sum(former.canary, sides[0]),
        stable=_sum(former.stable, sides[1]),
    )


def _side(work: RevisionWork, unit: str) -> CostSide:
    """The side in a minute, from a time of about that length; zeros where the numbers are unknown."""
    running, units = (work.running, work.tokens) if unit == TOKENS else (work.in_progress, work.predictions)
    if running is None or units is None or work.price is None or work.seconds <= 0:
        return CostSide()
    return CostSide(work.price, MINUTE_S * work.pods, MINUTE_S * running, units * MINUTE_S / work.seconds)


def _sum(former: CostSide, more: CostSide) -> CostSide:
    return CostSide(
        more.price,
        former.pod_seconds + more.pod_seconds,
        _rounded(former.running_seconds + more.running_seconds),
        _rounded(former.units + more.units),
    )


def _mean(former: float, minutes: int, more: float) -> float:
    """The geometric mean with one more number."""
    bounded = min(max(more, 1 / LARGEST_RATIO), LARGEST_RATIO)
    logs = (minutes * math.log(former) if minutes else 0.0) + math.log(bounded)
    return float(f"{math.exp(logs / (minutes + 1)):.6g}")


def _rounded(number: float) -> float:
    return float(f"{number:.9g}")
