"""The status survives the way through the API server's JSON."""

import json
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import Phase, Status
from slipway_operator.model.deployment import status as status_room
from tests.support.model_cluster import healthy, model


def test_round_trip_of_every_status_of_a_rollout() -> None:
    world = healthy()
    world.edit(model=model("v2"))
    for _ in range(40):
        world.reconcile()
        through_json = json.loads(json.dumps(world.status))
        assert status_room.parse(through_json) == world.parsed()
        assert status_room.render(world.parsed()) == world.status
        world.pass_time()


def test_an_absent_status_is_that_of_a_new_object() -> None:
    assert status_room.parse(None) == Status()


@pytest.mark.parametrize("value", [[], "abc", 1, {"rollout": {"analysis": {"counts": [{"epochs": [[[]]]}]}}}])
def test_what_is_no_status_is_that_of_a_new_object(value: Any) -> None:
    assert status_room.parse(value) == Status()


def test_fields_of_a_later_release_are_ignored() -> None:
    assert status_room.parse({"phase": "Healthy", "invented": 1}).phase is Phase.HEALTHY


@pytest.mark.finding(26)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("currentRevision", {"a": 1}),
        ("observedGeneration", "1"),
        ("replicas", True),
        ("abortedRevisions", "abc"),
        ("revisions", [1]),
        ("conditions", {"type": "Ready"}),
        ("rollout", "abc"),
        ("decisions", [{"at": "0001-01-01T00:00:00+14:00", "row": "a", "message": "b"}]),
    ],
)
def test_fields_of_another_type_count_as_lost(field: str, value: object) -> None:
    """Safety 26: fuzzing found that what has another type was believed, and ended planning with an exception."""
    assert status_room.parse({field: value, "message": "kept"}) == Status(message="kept")
