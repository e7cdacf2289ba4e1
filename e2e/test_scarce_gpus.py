"""Rollouts with 0, 1 and N spare GPUs (simulated devices): each finishes or steps back, and reports which.

`make scarce` runs them. Rollouts with room are what the other tests here make, and in every `make test`
tests/operator/planning/test_capacity.py knows them in all sizes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.devices import Devices, is_simulated
from testkit.cluster.deployment import START_S, Deployment, Json, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.closed import Load

RESOURCE = "nvidia.com/gpu"
REPLICAS = 2
STEPS = [{"setWeight": 50}, {"pause": {"duration": "1s"}}]


@pytest.fixture
def gpus(slipway: Installation) -> Iterator[Devices]:
    nodes = slipway.kube.api.items("v1/nodes")
    if any(RESOURCE in node["status"]["capacity"] and not is_simulated(node) for node in nodes):
        pytest.skip(f"this cluster has {RESOURCE} of its own, which a simulation would disturb")
    simulated = Devices(slipway.kube, RESOURCE)
    simulated.set(REPLICAS)
    yield simulated
    simulated.remove()


def strategy(policy: str, **capacity: Any) -> Json:
    canary = {"steps": STEPS, "scaleDownDelaySeconds": 1, "abortScaleDownDelaySeconds": 1}
    limits = {"surgeTimeoutSeconds": 3, "deadlineSeconds": 8}
    return {"canary": canary, "capacity": {"policy": policy, **limits, **capacity}}


class Floor:
    """The fewest pods that were ready for the requests, over all looks at the status."""

    def __init__(self, chat: Deployment) -> None:
        self._chat = chat
        self.least = REPLICAS

    def until(self, what: str, holds: Callable[[Json], bool]) -> Json:
        self.least = REPLICAS
        return self._chat.until(what, lambda status: self._note(status) and holds(status), START_S)

    def until_stable(self, version: str) -> Json:
        return self.until(
            f"{version} is stable",
            lambda status: weights_of(status) == {version: 100} and not status.get("rollout"),
        )

    def _note(self, status: Json) -> bool:
        self.least = min(self.least, sum(item["ready"] for item in status["revisions"] if item["weight"]))
        return True


def modes(status: Json) -> list[str]:
    """Rows of the decisions about capacity."""
    rows = (line.split(" ", 2)[1].rstrip(":") for line in status["decisions"])
    return [row for row in rows if row.startswith("capacity")]


def deployed(deploy: Callable[..., Deployment], policy: str, **capacity: Any) -> Deployment:
    """v1 with as many pods as there are devices, when nothing is spare."""
    resources = {"accelerator": {"resource": RESOURCE, "count": 1}}
    chat = deploy("v1", replicas=REPLICAS, resources=resources, strategy=strategy(policy, **capacity))
    chat.until_stable("v1")
    return chat


@pytest.fixture
def found(record_property: Callable[[str, object], None]) -> Callable[[str, Floor], int]:
    """Notes the fewest ready pods of a rollout, and gives them."""

    def note(rollout: str, floor: Floor) -> int:
        record_property(f"least ready pods, {rollout}", floor.least)
        print(f"{rollout}: at least {floor.least} of {REPLICAS} pods ready")
        return floor.least

    return note


def assert_unharmed(steady: Load) -> None:
    report = steady.stop()
    assert report.failures == ()
    assert report.broken == 0


@pytest.mark.extended
@pytest.mark.timeout(420, func_only=True)
@pytest.mark.usefixtures("gpus")
def test_rollouts_without_a_spare_gpu_step_back_or_go_on_pod_by_pod(
    deploy: Callable[..., Deployment], load: Callable[..., Load], found: Callable[[str, Floor], int]
) -> None:
    chat = deployed(deploy, "RequireSurge")
    floor, steady = Floor(chat), load(chat)

    # A policy that waits: it waits out loud, then steps back.
    chat.release("v2")
    waiting = floor.until("it waits for capacity", lambda status: state_of(status) == "CapacityWait")
    assert f"1 pod finds no node: 1 x 1 {RESOURCE} missing, too little is free on" in waiting["message"]
    rejected = floor.until("it is rejected", lambda status: state_of(status) == "Aborted")
    assert rejected["rollout"]["abort"]["reason"] == "InsufficientCapacity"
    assert found("0 spare, RequireSurge: stepped back", floor) == REPLICAS

    # A policy that goes on: one by one.
    chat.release("v2-again", strategy=strategy("PreferSurge", deadlineSeconds=90))
    done = floor.until_stable("v2-again")
    assert "capacity-fallback" in modes(done)
    assert found("0 spare, PreferSurge: finished by Replace", floor) == REPLICAS - 1
    chat.until_stable("v2-again")  # its second pod gets the device of the one that left
    assert_unharmed(steady)
    chat.until_events("CapacityUnavailable", "CapacityModeChanged")


@pytest.mark.extended
@pytest.mark.parametrize("spare", [1, REPLICAS])
def test_rollouts_with_spare_gpus_keep_all_pods(
    gpus: Devices,
    spare: int,
    deploy: Callable[..., Deployment],
    load: Callable[..., Load],
    found: Callable[[str, Floor], int],
) -> None:
    chat = deployed(deploy, "PreferSurge", maxSurge=spare, deadlineSeconds=90)
    floor, steady = Floor(chat), load(chat)
    gpus.set(REPLICAS + spare)
    chat.release("v2")
    done = floor.until_stable("v2")
    assert "capacity-fallback" not in modes(done)
    assert found(f"{spare} spare: finished by Surge", floor) == REPLICAS
    chat.until_alone()
    chat.until_stable("v2")
    assert_unharmed(steady)
