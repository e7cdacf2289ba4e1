"""`slipway wait` with a clock that is a number."""

from typing import Any

import pytest

from slipway_cli.errors import ObjectNotFound, Rejected, TimedOut, Unreachable
from slipway_cli.objects.deployment import Deployment, read_deployment
from slipway_cli.rollouts import waiting
from slipway_cli.rollouts.waiting import Goal
from tests.cli.objects import CANARY, STABLE, deployment, idle, in_flight


class World:
    """Answers in turn, the last one for ever; time passes only while it is slept."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.now, self._answers = 0.0, iter(answers)
        self.reported: list[str] = []
        self._last: dict[str, Any] | Exception = answers[-1]

    def read(self) -> Deployment:
        answer = next(self._answers, self._last)
        if isinstance(answer, Exception):
            raise answer
        return read_deployment(answer)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, goal: str, timeout_s: float = 60) -> Deployment:
        return waiting.wait_until(
            waiting.parse_goal(goal),
            self.read,
            timeout_s,
            clock=lambda: self.now,
            sleep=self.sleep,
            report=self.reported.append,
        )


def stale(obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "generation": 4}}


def test_healthy_waits_until_the_status_answers_the_spec() -> None:
    world = World(stale(idle()), in_flight(), idle())
    assert world.wait("healthy").phase == "Healthy"
    assert world.reported == ["Healthy: serving", f"Paused: step 2 of 4: revision {CANARY} has weight 10"]


def test_healthy_means_the_desired_revision() -> None:
    assert not waiting.is_reached(Goal("healthy"), read_deployment(idle(currentRevision=CANARY)))
    rolled_back = idle(currentRevision=CANARY)
    rolled_back["spec"]["rollout"] = {"rollbackTo": f"{CANARY}/{STABLE}"}
    assert waiting.is_reached(Goal("healthy"), read_deployment(rolled_back))


@pytest.mark.finding("S4")
def test_healthy_with_a_rollback_to_what_the_history_lacks() -> None:
    """Story S4: an object made again from `kubectl get -o yaml` names a revision that is gone."""
    stale_intent = idle()
    stale_intent["spec"]["rollout"] = {"rollbackTo": f"{STABLE}/gone000000"}
    assert waiting.is_reached(Goal("healthy"), read_deployment(stale_intent))
    elsewhere = idle(currentRevision=CANARY)
    elsewhere["spec"]["rollout"] = {"rollbackTo": f"{CANARY}/gone000000"}
    assert not waiting.is_reached(Goal("healthy"), read_deployment(elsewhere)), "neither requested nor described"


def test_paused() -> None:
    assert World(in_flight("Shifting", "Progressing"), in_flight()).wait("paused").phase == "Paused"


@pytest.mark.parametrize("revision", [STABLE, "v1"])
def test_stable_takes_a_hash_or_a_version(revision: str) -> None:
    assert World(in_flight()).wait(f"stable={revision}").stable == STABLE


def test_timeout_shows_the_last_message() -> None:
    world = World(in_flight())
    with pytest.raises(TimedOut, match="healthy was not reached within 1m: Paused: step 2 of 4") as error:
        world.wait("healthy")
    assert (world.now, error.value.code) == (60, 3)


def test_timeout_of_zero_reads_once() -> None:
    assert World(idle()).wait("healthy", 0)
    with pytest.raises(TimedOut):
        World(in_flight()).wait("healthy", 0)


@pytest.mark.parametrize("state", ["Aborting", "Aborted"])
def test_a_rejected_revision_ends_the_wait_at_once(state: str) -> None:
    world = World(in_flight(state, "Degraded"))
    with pytest.raises(Rejected, match="chat does not reach healthy: step 2 of 4") as error:
        world.wait("healthy")
    assert (world.now, error.value.code) == (0, 4)


def test_rejection_of_a_former_spec_does_not_end_the_wait() -> None:
    assert World(stale(in_flight("Aborted", "Degraded")), idle()).wait("healthy")


def test_rejection_of_a_revision_that_left_the_spec_does_not_end_the_wait() -> None:
    superseded = in_flight("Aborting", "Degraded")
    superseded["status"]["currentRevision"] = "cccccccccc"
    assert World(superseded, idle()).wait("healthy")


def test_pods_that_are_missing_for_a_moment_are_no_failure() -> None:
    assert World(idle(phase="Degraded"), idle()).wait("healthy")


def test_invalid_spec_ends_the_wait() -> None:
    refused = {"phase": "Degraded", "message": "steps are odd", "conditions": [{"type": "Accepted", "status": "False"}]}
    with pytest.raises(Rejected, match="steps are odd"):
        World(deployment(refused)).wait("healthy")


def test_a_first_revision_that_makes_no_progress_ends_the_wait() -> None:
    late = {
        "phase": "Degraded",
        "currentRevision": STABLE,
        "rollout": {"state": "Initializing", "revision": STABLE},
        "conditions": [{"type": "Progressing", "status": "False"}],
    }
    with pytest.raises(Rejected):
        World(deployment(late)).wait("healthy")


def test_an_api_server_that_is_away_for_a_moment_is_waited_for() -> None:
    world = World(Unreachable("away"), idle())
    assert world.wait("healthy")
    assert world.reported == ["away"]


def test_missing_deployment_ends_the_wait() -> None:
    with pytest.raises(ObjectNotFound):
        World(ObjectNotFound("no such thing")).wait("healthy")


@pytest.mark.parametrize("text", ["", "ready", "stable", "stable=", "healthy=v1", "Healthy"])
def test_other_states_cannot_be_waited_for(text: str) -> None:
    with pytest.raises(ValueError, match="write healthy, paused or stable=REVISION"):
        waiting.parse_goal(text)
