"""Rollouts that feedback decides: a worse classifier is rejected, an equal one is promoted, and silence waits."""

import copy
from typing import Any

import pytest

from tests.support.model_classifier import CANARY, ClassifierRollout

TEMPLATE: dict[str, Any] = {
    "minSamples": {"canaryRequests": 50, "warmupSeconds": 10},
    "metrics": [
        {"name": "errors", "event": "FirstAttemptError", "share": 0.2, "okBelow": 0.1, "maxRatio": 6.0},
        {"name": "wrong", "event": "WrongAnswer", "share": 0.8, "maxRatio": 2.0},
    ],
}


class Labelled(ClassifierRollout):
    """Clients learn of some responses whether they were right, by model URI."""

    def __init__(
        self, *, gives: dict[str, float], wrong: dict[str, float], template: dict[str, Any] = TEMPLATE
    ) -> None:
        self._gives, self._wrong = gives, wrong
        self._counted: dict[tuple[str, int, str], tuple[int, int, int]] = {}
        super().__init__(template, rate=10)

    def counted(self, key: tuple[str, int, str], uri: str, units: int) -> dict[str, Any]:
        """Feedback on responses since the last time."""
        former, rated, wrong = self._counted.get(key, (0, 0, 0))
        for _ in range(units - former):
            if self.chance.random() < self._gives.get(uri, 0.5):
                rated += 1
                wrong += self.chance.random() < self._wrong.get(uri, 0.1)
        self._counted[key] = units, rated, wrong
        return {"rated": rated, "wrong": wrong}


def test_a_worse_classifier_is_rejected_by_feedback() -> None:
    world = Labelled(gives={}, wrong={CANARY: 0.4}).run_until("Aborted")
    assert world.weights() == {"v1": 100}
    status = world.parsed()
    assert "analysis labels: wrong: " in status.message and "on stable; evidence e=" in status.message


def test_an_equal_classifier_is_promoted() -> None:
    world = Labelled(gives={}, wrong={}).run_until(None)
    assert world.weights() == {"v2": 100}


def test_without_feedback_nothing_passes() -> None:
    world = Labelled(gives={"file:///models/v1": 0.0, CANARY: 0.0}, wrong={}).run_until("Paused", "Aborted")
    assert world.state() == "Paused"
    assert "wrong has no feedback on responses of canary" in world.parsed().message


def test_unequal_feedback_has_one_event_and_decides_nothing() -> None:
    world = Labelled(gives={"file:///models/v1": 0.2, CANARY: 0.9}, wrong={}).run_until("Paused", "Aborted", None)
    assert world.state() == "Paused"
    (event,) = (event for event in world.events if event.reason == "FeedbackMismatch")
    assert event.type == "Warning" and "send feedback on responses of both alike" in event.message


@pytest.mark.parametrize(("event", "feedback"), [("WrongAnswer", True), ("EmptyAnswer", None)])
def test_gateways_take_feedback_while_a_rollout_may_be_decided_by_it(event: str, feedback: bool | None) -> None:
    template = copy.deepcopy(TEMPLATE)
    template["metrics"][1] |= {"event": event, "okBelow": 0.3}
    labelled = Labelled(gives={}, wrong={}, template=template)
    assert labelled.world.parsed().traffic.feedback is None  # type: ignore[union-attr]
    labelled.run_until("Analyzing")
    assert labelled.world.parsed().traffic.feedback is feedback  # type: ignore[union-attr]
    labelled.run_until(None)
    labelled.world.run(10)
    assert labelled.world.parsed().traffic.feedback is None  # type: ignore[union-attr]


def test_the_status_has_the_feedback_of_both_sides() -> None:
    labelled = Labelled(gives={}, wrong={CANARY: 0.4})
    labelled.run_until("Aborted")
    run = labelled.world.run_now()
    assert run and run.verdict and run.verdict.metric == "wrong"
    assert any(row.name == "wrong" and row.canary_bad > row.stable_bad / 2 for row in run.verdict.metrics)
