"""Rollouts whose analysis compares costs: what a run counts of the work of pods, and what it decides."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.analysis_run import CostRun
from slipway_operator.model.analysis.template import parse
from slipway_operator.model.cluster.observed import RevisionWork
from slipway_operator.planning.analysis.costs import LARGEST_RATIO
from tests.support.model_classifier import CANARY, ClassifierRollout

STABLE = "file:///models/v1"
ERRORS = {"name": "errors", "event": "FirstAttemptError", "share": 0.5, "okBelow": 0.1, "maxRatio": 6.0}
BOUNDED = {"name": "cost", "event": "CostIncrease", "share": 0.5, "maxCostIncrease": 0.1}
REPORT = {"name": "cost", "event": "CostIncrease", "dryRun": True}
WORK = RevisionWork(pods=2, seconds=50.0, price=1.8, running=6.0, tokens=5000.0, in_progress=6.0, predictions=50.0)


class Costly(ClassifierRollout):
    """Pods of both revisions have the same work, but for what is given of canary's."""

    def __init__(
        self, metric: dict[str, Any], work: RevisionWork | None = WORK, *, warmup: int = 10, duration: str = "9m"
    ) -> None:
        least = {"canaryRequests": 50, "warmupSeconds": warmup}
        template = {"falseRollbackRate": 0.4, "falsePromoteRate": 0.3, "minSamples": least, "metrics": [ERRORS, metric]}
        super().__init__(template, 5, duration=duration)
        self.world.work = {STABLE: WORK} | ({CANARY: work} if work else {})

    def counted(self, key: tuple[str, int, str], uri: str, units: int) -> dict[str, Any]:
        """Nothing beside the units."""
        return {}

    def cost(self) -> CostRun:
        run = self.world.run_now()
        assert run and run.cost
        return run.cost


def test_a_canary_of_the_same_cost_is_promoted() -> None:
    made = Costly(BOUNDED)
    made.run_until("Analyzing")
    assert made.run_until(None).weights() == {"v2": 100}


def test_a_canary_that_costs_more_is_rejected_with_the_numbers_in_the_run_and_its_series() -> None:
    made = Costly(BOUNDED, replace(WORK, price=2.7))
    world = made.run_until("Aborted")
    assert world.weights() == {"v1": 100}
    message = world.parsed().message
    assert message and "cost: at equal load generated tokens cost 1.50 times what stable's do" in message
    run = world.run_now()
    assert run and run.verdict and run.verdict.metric == "cost" and run.verdict.cost
    assert (run.verdict.cost.minutes, run.verdict.cost.dearer, run.verdict.cost.unit) == (4, 4, "Tokens")
    assert (run.verdict.cost.canary.price, run.verdict.cost.stable.price) == (2.7, 1.8)
    assert run.verdict.cost.stable.units == pytest.approx(4 * 6000)
    (series,) = [item for item in run.series if item.metric == "cost"]
    assert (series.unit, series.limit, series.points[-1].low, series.points[-1].high) == ("CostRatio", 1.1, 1.5, 1.5)


def test_the_same_canary_is_promoted_where_the_metric_is_a_report() -> None:
    made = Costly(REPORT, replace(WORK, price=2.7))
    assert made.run_until(None).weights() == {"v2": 100}


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (None, "cost compares no cost: canary: no pod is ready"),
        (RevisionWork(1, 60.0, problem="no price of nvidia.com/gpu"), "canary: no price of nvidia.com/gpu"),
        (replace(WORK, running=0.2), "minutes one side was idle, with less than 1 request in progress"),
    ],
)
def test_what_is_missing_holds_the_rollout_and_is_named(work: RevisionWork | None, text: str) -> None:
    world = Costly(BOUNDED, work, duration="3m").run_until("Paused", "Aborted", None)
    assert world.state() == "Paused"
    assert text in (world.parsed().message or "")


def test_minutes_begin_when_canary_is_warm_and_do_not_overlap() -> None:
    made = Costly(BOUNDED, replace(WORK, price=1.9), warmup=120)
    world = made.run_until("Analyzing")
    seen: dict[int, Any] = {}
    for _ in range(260):
        world.reconcile()
        run = world.run_now()
        if run and run.cost:
            assert run.warm
            seen.setdefault(run.cost.minutes, run.cost.counted_at)
        if world.state() != "Analyzing":
            break
        world.pass_time(2)
        made._count()
    times = list(seen.values())
    assert len(times) >= 4
    assert all((after - before).total_seconds() >= 60 for before, after in pairwise(times))


def test_classic_models_are_compared_by_what_gateways_count() -> None:
    made = Costly(BOUNDED, replace(WORK, tokens=None, running=None, predictions=25.0))
    made.world.work[STABLE] = replace(WORK, tokens=None, running=None)
    made.run_until("Aborted")
    cost = made.cost()
    assert (cost.unit, cost.low, cost.high) == ("Predictions", 2.0, 2.0)
    assert "predictions cost 2.00 times" in (made.world.parsed().message or "")


def test_numbers_of_a_stranger_stay_within_bounds() -> None:
    world = Costly(BOUNDED, replace(WORK, tokens=1e-300)).run_until("Aborted")
    run = world.run_now()
    assert run and run.cost and run.cost.high <= LARGEST_RATIO


def test_a_template_has_one_metric_of_costs_beside_another_one() -> None:
    assert "two metrics have the event CostIncrease" in _problem(ERRORS, BOUNDED, BOUNDED | {"name": "again"})
    assert "CostIncrease needs another metric beside it" in _problem(BOUNDED)
    assert "CostIncrease needs another metric beside it" in _problem(
        BOUNDED, {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 0.5, "maxExtra": 10}
    )
    assert "maxCostIncrease goes with CostIncrease" in _problem({**ERRORS, "maxCostIncrease": 0.1})
    assert "maxCostIncrease goes with CostIncrease" in _problem(ERRORS, {**REPORT, "dryRun": False, "share": 0.1})
    assert not _problem(ERRORS, BOUNDED)


def _problem(*metrics: dict[str, Any]) -> str:
    return parse("release", {"metrics": list(metrics)}).problem
