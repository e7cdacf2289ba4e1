"""Rollouts of classic models: another distribution of predictions is reported, and rejects where a bound is given."""

import copy
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from slipway_operator.model.cluster.samples import BINS
from tests.support.model_cluster import ModelCluster, healthy, model

ERRORS = {"name": "errors", "event": "FirstAttemptError", "share": 0.5, "okBelow": 0.1, "maxRatio": 6.0}
BOUNDED = {"name": "drift", "event": "PredictionDrift", "share": 0.5, "maxPsi": 0.2}
REPORT = {"name": "drift", "event": "PredictionDrift", "dryRun": True}
STEPS = [{"setWeight": 25}, {"analysis": {"templates": [{"templateName": "labels"}], "maxDuration": "20m"}}]
CANARY = "file:///models/v2"
EQUAL = (5, 3, 2)


class Predicting:
    """A cluster whose gateways read predictions of three labels, as frequent as given by model URI."""

    def __init__(self, metric: dict[str, Any], *, frequent: dict[str, tuple[int, ...]], readable: bool = True) -> None:
        self.world: ModelCluster = healthy(replicas=4, steps=copy.deepcopy(STEPS))
        self.world.templates = {
            "labels": {"minSamples": {"canaryRequests": 50, "warmupSeconds": 10}, "metrics": [ERRORS, metric]}
        }
        self.world.rate = 20
        self._frequent, self._readable, self._chance = frequent, readable, Random(3)
        self._bins: dict[tuple[str, int, str], list[int]] = {}
        self.world.run(30)
        self.world.edit(model=model("v2"))

    def run_until(self, *states: str | None) -> ModelCluster:
        for _ in range(900):
            self.world.reconcile()
            if self.world.state() in states:
                return self.world
            self.world.pass_time(2)
            self._count()
        raise AssertionError(self.world.parsed().message)

    def _count(self) -> None:
        """Predictions of responses since the last time."""
        for gateway in self.world.gateways:
            for sample in gateway.samples.values():
                for name, side in sample.revisions.items():
                    key = (gateway.name, sample.generation, name)
                    found = self._bins.setdefault(key, [0] * BINS)
                    more = side.units - sum(found)
                    for place in self._chance.choices(
                        range(3), self._frequent.get(self.world.uri(name), EQUAL), k=more
                    ):
                        found[place] += 1
                    shown = {"predicted": tuple(found)} if self._readable else {"unread": side.units}
                    sample.revisions[name] = replace(side, **shown)


def test_a_canary_whose_labels_are_others_is_rejected() -> None:
    world = Predicting(BOUNDED, frequent={CANARY: (1, 2, 7)}).run_until("Aborted")
    assert world.weights() == {"v1": 100}
    message = world.parsed().message
    assert message and "analysis labels: drift: population stability index 1." in message and "(maxPsi 0.2)" in message


def test_the_same_canary_is_promoted_where_the_metric_is_a_report_and_there_is_one_event() -> None:
    world = Predicting(REPORT, frequent={CANARY: (1, 2, 7)}).run_until(None)
    assert world.weights() == {"v2": 100}
    (event,) = (event for event in world.events if event.reason == "PredictionsDiffer")
    assert event.type == "Normal" and "population stability index 1." in event.message


def test_a_canary_that_predicts_alike_is_promoted() -> None:
    world = Predicting(BOUNDED, frequent={}).run_until(None)
    assert world.weights() == {"v2": 100}
    assert not any(event.reason == "PredictionsDiffer" for event in world.events)


def test_predictions_that_cannot_be_read_promote_nothing() -> None:
    world = Predicting(BOUNDED, frequent={}, readable=False).run_until("Paused", "Aborted", None)
    assert world.state() == "Paused"
    assert "drift has no predictions of canary" in (world.parsed().message or "")


@pytest.mark.parametrize(("metric", "counts"), [(BOUNDED, True), (REPORT, True), ({**ERRORS, "name": "drift"}, None)])
def test_gateways_read_predictions_while_a_rollout_compares_them(metric: dict[str, Any], counts: bool | None) -> None:
    made = Predicting(metric, frequent={})
    assert made.world.parsed().traffic.predictions is None  # type: ignore[union-attr]
    made.run_until("Analyzing")
    assert made.world.parsed().traffic.predictions is counts  # type: ignore[union-attr]
    made.run_until(None)
    made.world.run(10)
    assert made.world.parsed().traffic.predictions is None  # type: ignore[union-attr]


def test_the_status_has_the_index_and_fits_though_each_bin_is_counted() -> None:
    made = Predicting(BOUNDED, frequent={CANARY: (1, 2, 7)})
    made.run_until("Aborted")
    run = made.world.parsed().rollout.analysis  # type: ignore[union-attr]
    assert run and run.verdict and run.verdict.metric == "drift"
    found = run.verdict.predictions
    assert found and found.psi > 1 and found.differs and found.canary > 50 and found.unread == 0
    assert sum(item.metric.startswith("drift/bin") for item in run.counts) == BINS
