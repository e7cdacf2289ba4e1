"""Fields that the API server dropped from an applied manifest are reported, with the field that may be meant."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.model.deployment import last_applied
from slipway_operator.model.deployment import status as status_room
from slipway_operator.model.deployment.spec_fields import FIELDS
from slipway_operator.planning.conditions.unknown_fields import unknown_field
from tests.support.conditions import condition_facts
from tests.support.model_cluster import SETTINGS, ModelCluster, healthy
from tests.support.planned import plan

pytestmark = pytest.mark.finding("S15")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODEL = {"uri": "file:///models/v1"}


def applied(text: str, **stored: Any) -> dict[str, Any]:
    metadata = {"name": "chat", "namespace": "demo", "annotations": {last_applied.ANNOTATION: text}}
    return {"metadata": metadata, "spec": {"model": MODEL, **stored}}


def manifest(**spec: Any) -> str:
    return json.dumps({"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {}, "spec": spec})


def message(text: str, **stored: Any) -> str:
    return message_of(applied(text, **stored))


def message_of(obj: dict[str, Any]) -> str:
    state = unknown_field.decide(condition_facts(obj))
    return state.message if state else ""


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"replica": 3}, 'unknown field "spec.replica" (did you mean "spec.replicas"?)'),
        ({"resources": {"cpus": 1}}, 'unknown field "spec.resources.cpus" (did you mean "spec.resources.cpu"?)'),
        ({"maxreplicas": 3}, 'unknown field "spec.maxreplicas" (did you mean "spec.replicas"?)'),
        ({"uri": "x"}, 'unknown field "spec.uri" (did you mean "spec.model.uri"?)'),
        ({"zzz": {"uri": 1}}, 'unknown field "spec.zzz";'),
        (
            {"engine": {"env": [{"name": "A", "value": "1"}, {"nam": "B"}]}},
            'unknown field "spec.engine.env[1].nam" (did you mean "spec.engine.env[1].name"?)',
        ),
        ({"a.b\n\u202e": 1}, 'unknown field "spec.a.b\\n\\u202e";'),
        ({"x" * 1000: 1}, f'unknown field "spec.{"x" * 64}";'),
    ],
)
def test_unknown_field_is_named_with_a_suggestion(spec: dict[str, Any], expected: str) -> None:
    """It was dropped silently."""
    assert expected in message(manifest(model=MODEL, **spec))


def test_a_part_of_the_spec_at_the_wrong_place_is_named() -> None:
    text = json.dumps({"spec": {"model": MODEL}, "strategy": {"canary": {}}})
    assert 'unknown field "strategy" (did you mean "spec.strategy"?)' in message(text)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"replicas": 2, "strategy": {"canary": {"steps": [{"setWeight": 10}, {"pause": {}}]}}},
        {"strategy": {"hooks": [{"name": "a", "metadata": {"any key": "b", "uri": "c"}}]}},
        {"autoscaling": {"metrics": [{"selector": {"matchLabels": {"app.kubernetes.io/name": "x"}}}]}},
        {"replicas": {"not": "a number"}, "engine": [{"unlike": "a map"}], "strategy": None},
    ],
)
def test_known_fields_and_free_keys_are_not_reported(spec: dict[str, Any]) -> None:
    assert message(manifest(model=MODEL, **spec)) == ""


def test_field_that_left_the_spec_later_is_not_reported() -> None:
    """By the schema, not by the stored object: another client may have edited it since."""
    assert message(manifest(model=MODEL, paused=True)) == ""


def test_field_that_a_newer_schema_kept_is_not_reported() -> None:
    text = manifest(model=MODEL, engine={"later": 1, "env": [{"soon": 1, "nam": 1}]})
    reported = message(text, engine={"later": 1, "env": [{"soon": 1}]})
    assert "later" not in reported and "soon" not in reported and "env[0].nam" in reported


def test_message_names_at_most_five_fields() -> None:
    reported = message(manifest(model=MODEL, **{f"x{place:02}": 1 for place in range(500)}))
    assert reported.count("unknown field") == 5 and " and more; " in reported and len(reported) < 1000


NONSENSE = [
    *("", "null", "7", "[]", '"spec"', "{", '{"spec"', '{"spec": 7}', '{"spec": [[{"a": 1}]]}', '"\ud800"'),
    *("[" * 50_000, '{"spec":' * 8000, '{"spec":{"replicas":' + "9" * 5000 + "}}", '{"\\ud800": 1}'),
    " " * 70_000 + '{"a": 1}',
]


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
def test_unreadable_annotation_is_ignored(text: str) -> None:
    """Anybody may write the annotation."""
    obj = applied(text)
    assert message_of(obj) == ""
    world = healthy()
    live = world.obj()
    live["metadata"]["annotations"] = obj["metadata"]["annotations"]
    plan(live, world.parsed(), world.observed(), SETTINGS, world.now)


NAMES = st.text() | st.sampled_from(sorted({field.rpartition(".")[2].rstrip("[]") for field in FIELDS}))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    max_leaves=30,
)


@given(JSON, JSON)
def test_no_annotation_is_an_exception_or_a_long_message(written: Any, stored: Any) -> None:
    text = message_of({**applied(json.dumps({"spec": written})), "spec": stored})
    assert len(text) < 6000 and text.isprintable()


def test_unknown_field_has_one_event_and_keeps_the_phase() -> None:
    world = healthy()
    reasons: list[str] = []

    def look(text: str) -> ModelCluster:
        obj = world.obj()
        obj["metadata"]["annotations"] = {last_applied.ANNOTATION: text}
        decided = plan(obj, world.parsed(), world.observed(), SETTINGS, world.now)
        world.keep(decided.status, status_room.render(decided.status))
        reasons.extend(event.reason for event in decided.events)
        return world

    status = look(manifest(model=MODEL, replica=2)).obj()["status"]
    assert (status["phase"], status["reason"], reasons) == ("Healthy", "UnknownField", ["UnknownField"])
    look(manifest(model=MODEL, replica=2))
    assert reasons == ["UnknownField"]
    look(manifest(model=MODEL, replicass=2))
    assert reasons == ["UnknownField", "UnknownField"]
    status = look(manifest(model=MODEL)).obj()["status"]
    assert "reason" not in status and "UnknownField" not in [item["type"] for item in status["conditions"]]
