"""The status survives the way through the API server's JSON."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import Decision, Phase, Status
from slipway_operator.model.deployment import status as status_room
from tests.support.model_cluster import healthy, model

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_round_trip_of_every_status_of_a_rollout() -> None:
    world = healthy()
    world.edit(model=model("v2"))
    for _ in range(40):
        world.reconcile()
        through_json = json.loads(json.dumps(world.status))
        assert status_room.parse(through_json) == world.parsed()
        assert status_room.render(world.parsed()) == world.status
        world.pass_time()


def test_absent_status_counts_as_that_of_a_new_object() -> None:
    assert status_room.parse(None) == Status()


@pytest.mark.parametrize("value", [[], "abc", 1, {"rollout": {"analysis": {"counts": [{"epochs": [[[]]]}]}}}])
def test_invalid_status_counts_as_that_of_a_new_object(value: Any) -> None:
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
    """Safety 26: fuzzing found that values of a wrong type were accepted, and ended planning with an exception."""
    assert status_room.parse({field: value, "message": "kept"}) == Status(message="kept")


TIMES = dict.fromkeys(("startedAt", "stepStartedAt", "progressAt"), "2026-01-01T00:00:00Z")
ROLLOUT: dict[str, Any] = {"state": "Aborted", "revision": "r", "attempt": 2, **TIMES}
RUN = {"id": "r/2/1", "template": "t", "startedAt": "2026-01-01T00:00:00Z", "readAt": "2026-01-01T00:00:00Z"}
ASKED = {"name": "x", "about": "a", "key": "k", "outcome": "Asked", "since": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("broken", "dropped"),
    [
        ({"startedAt": "1969-01-01T00:00:00Z"}, ("rollout.startedAt",)),
        ({"hooks": [{**ASKED, "type": "invented"}]}, ("rollout.hooks[0].type", "rollout.hooks[0]")),
        ({"analysis": {"seen": "abc"}}, None),
        ({"analysis": {"run": 1, "sequence": "2"}}, None),
        ({"analysis": {**RUN, "verdict": {"outcome": "Pass"}}}, ("rollout.analysis.verdict",)),
        ({"analysis": {**RUN, "ramp": {"weight": 100}}}, None),
        ({"capacityMode": "Nonsense", "steps": "3"}, ("rollout.steps", "rollout.capacityMode")),
    ],
)
def test_invalid_field_of_a_rollout_is_dropped_alone(broken: dict[str, Any], dropped: tuple[str, ...] | None) -> None:
    """The whole rollout was dropped silently: the canary started again, and a rejection would have been lost."""
    status, lost = status_room.parse_parts({"rollout": ROLLOUT | broken})
    assert status.rollout and (status.rollout.state, status.rollout.attempt) == ("Aborted", 2)
    assert lost == dropped if dropped else lost


def test_invalid_items_of_a_list_are_dropped_alone() -> None:
    good = "2026-01-01T00:00:00Z a: b"
    forged = ["soon a: b", 1, "b", "2026-01-01T00:00:00Z", {"at": "2026-01-01T00:00:00Z"}, ""]
    status, lost = status_room.parse_parts({"decisions": [good, *forged, good]})
    assert len(status.decisions) == 2
    assert lost and all(path.startswith("decisions[") for path in lost)
    many, _ = status_room.parse_parts({"decisions": ["no" if n in (2, 10) else good + str(n) for n in range(12)]})
    assert [one.message for one in many.decisions] == [f"b{n}" for n in range(12) if n not in (2, 10)]


@pytest.mark.parametrize(
    ("decision", "line"),
    [
        (Decision(NOW, "pods-ready", "Provisioning -> Shifting"), "pods-ready: Provisioning -> Shifting"),
        (
            Decision(NOW, "step-done", "it: is (not) done", "Done", "Normal"),
            "step-done: it: is (not) done (Normal Done)",
        ),
        (Decision(NOW, "x", "ends (Normal)\nline", "A", "Warning"), "x: ends (Normal)\nline (Warning A)"),
        (Decision(NOW, "x", "", "A", "Warning"), "x:  (Warning A)"),
    ],
)
def test_a_decision_is_one_line(decision: Decision, line: str) -> None:
    rendered = status_room.render(Status(decisions=(decision,)))
    assert rendered["decisions"] == [f"2026-01-01T00:00:00Z {line}"]
    assert status_room.parse(rendered).decisions == (decision,)


def test_decisions_of_an_earlier_release_are_read() -> None:
    item = {"at": "2026-01-01T00:00:00Z", "row": "a", "message": "b", "reason": "without a type"}
    [decision] = status_room.parse({"decisions": [item]}).decisions
    assert decision == Decision(NOW, "a", "b", "without a type")
    assert status_room.render(Status(decisions=(decision,)))["decisions"] == ["2026-01-01T00:00:00Z a: b"]
