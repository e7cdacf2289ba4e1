"""Rollouts of classic models: another distribution of predictions is reported, and rejects where a bound is given."""

from typing import Any

import pytest

from slipway_contracts.counters import BINS, PredictionCounts
from tests.support.model_classifier import CANARY, ClassifierRollout

ERRORS = {"name": "errors", "event": "FirstAttemptError", "share": 0.5, "okBelow": 0.1, "maxRatio": 6.0}
BOUNDED = {"name": "drift", "event": "PredictionDrift", "share": 0.5, "maxPsi": 0.2}
REPORT = {"name": "drift", "event": "PredictionDrift", "dryRun": True}
EQUAL = (5, 3, 2)


class Predicting(ClassifierRollout):
    """Gateways read predictions of three labels, as frequent as given by model URI."""

    def __init__(self, metric: dict[str, Any], *, frequent: dict[str, tuple[int, ...]], readable: bool = True) -> None:
        self._frequent, self._readable = frequent, readable
        self._bins: dict[tuple[str, int, str], list[int]] = {}
        template = {"minSamples": {"canaryRequests": 50, "warmupSeconds": 10}, "metrics": [ERRORS, metric]}
        super().__init__(template, rate=20)

    def counted(self, key: tuple[str, int, str], uri: str, units: int) -> dict[str, Any]:
        """Predictions of responses since the last time."""
        found = self._bins.setdefault(key, [0] * BINS)
        for place in self.chance.choices(range(3), self._frequent.get(uri, EQUAL), k=units - sum(found)):
            found[place] += 1
        return {"predictions": PredictionCounts(tuple(found)) if self._readable else PredictionCounts(unread=units)}


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
    run = made.world.run_now()
    assert run and run.verdict and run.verdict.metric == "drift"
    found = run.verdict.predictions
    assert found and found.psi > 1 and found.differs and found.canary > 50 and found.unread == 0
    assert sum(item.metric.startswith("drift/bin") for item in run.counts) == BINS
