"""Every rule refuses invalid objects with its message, and accepts all others (real API server)."""

import pytest

from testkit.cluster.api import Api
from tests.crds.cases import CEL_CASES, SCHEMA_CASES
from tests.crds.objects import Case, dry_run, model_deployment, path

pytestmark = pytest.mark.integration

ALL = (*CEL_CASES, *SCHEMA_CASES)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_rule_refuses_with_its_sentence(api: Api, case: Case) -> None:
    for change in case.bad:
        answer = dry_run(api, model_deployment(change))
        assert answer.status == 422, f"accepted: {change}"
        assert case.message in answer.message, change


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_rule_lets_good_objects_pass(api: Api, case: Case) -> None:
    for change in case.good:
        answer = dry_run(api, model_deployment(change))
        assert answer.ok, f"{change}: {answer.message}"


@pytest.mark.parametrize("name", ["9lives", "a.b", "chat_v2"])
def test_name_is_one_that_a_service_can_carry(api: Api, name: str) -> None:
    answer = dry_run(api, model_deployment(name=name))
    assert answer.status == 422
    assert "metadata.name must start with a letter" in answer.message or "RFC 1123" in answer.message


def test_name_leaves_room_for_the_revision(api: Api) -> None:
    assert dry_run(api, model_deployment(name="a" * 52)).ok
    answer = dry_run(api, model_deployment(name="a" * 53))
    assert "metadata.name may have at most 52 characters" in answer.message


def test_name_leaves_room_for_a_baseline(api: Api) -> None:
    analysis = {"templates": [{"templateName": "llm-default"}]}
    change = {"strategy": {"canary": {"baselinePod": True, "analysis": analysis}}}
    assert dry_run(api, model_deployment(change, name="a" * 43)).ok
    answer = dry_run(api, model_deployment(change, name="a" * 44))
    assert "with spec.strategy.canary.baselinePod metadata.name may have at most 43 characters" in answer.message
    assert dry_run(api, model_deployment({"strategy": {"canary": {"analysis": analysis}}}, name="a" * 44)).ok
    before = {"strategy": {"blueGreen": {"prePromotionAnalysis": analysis | {"twinShadow": {}}}}}
    assert dry_run(api, model_deployment(before, name="a" * 43)).ok
    answer = dry_run(api, model_deployment(before, name="a" * 44))
    assert "with prePromotionAnalysis.twinShadow metadata.name may have at most 43 characters" in answer.message


def test_name_leaves_room_for_the_names_of_groups(api: Api) -> None:
    """A StatefulSet's name has 52 characters at most: with its own revision it is the value of a label."""
    engine = {"type": "custom", "image": "engine:1", "parallelism": {"nodes": 2}}
    assert dry_run(api, model_deployment({"engine": engine}, name="a" * 28)).ok
    answer = dry_run(api, model_deployment({"engine": engine}, name="a" * 29))
    assert "nodes above 1 metadata.name may have at most 28 characters" in answer.message
    alone = engine | {"parallelism": {"nodes": 1}}
    assert dry_run(api, model_deployment({"engine": alone}, name="a" * 29)).ok


@pytest.mark.parametrize(
    ("before", "after"), [("chat", "chatty"), (None, "chat"), ("chat", None)], ids=["changed", "added", "removed"]
)
def test_served_name_cannot_change(api: Api, namespace: str, before: str | None, after: str | None) -> None:
    made = api.post(path(namespace), model_deployment({"model": {"name": before}}))
    assert made.ok, made.message
    refused = api.merge(path(namespace, "chat"), {"spec": {"model": {"name": after}}})
    assert refused.status == 422
    assert "spec.model.name cannot change, because clients send it" in refused.message


def test_everything_else_of_the_model_can_change(api: Api, namespace: str) -> None:
    assert api.post(path(namespace), model_deployment({"model": {"name": "chat"}})).ok
    change = {"uri": "pvc://claim/m", "version": "2", "dtype": "float32", "task": "generate", "maxModelLen": 64}
    changed = api.merge(path(namespace, "chat"), {"spec": {"model": change}})
    assert changed.ok, changed.message


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"models": {}}, "spec.models"),
        ({"model": {"url": "x"}}, "spec.model.url"),
        (
            {"strategy": {"canary": {"steps": [{"setWeigth": 10, "pause": {}}]}}},
            "spec.strategy.canary.steps[0].setWeigth",
        ),
        (
            {"autoscaling": {"maxReplicas": 2, "metrics": [{"type": "CPU", "target": "70%"}], "cooldown": 60}},
            "spec.autoscaling.cooldown",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unknown_field_is_refused_by_name(api: Api, change: dict, field: str) -> None:
    answer = dry_run(api, model_deployment(change))
    assert answer.status == 400
    assert f'unknown field "{field}"' in answer.message


def test_spec_is_required(api: Api) -> None:
    answer = dry_run(api, {key: value for key, value in model_deployment().items() if key != "spec"})
    assert answer.status == 422
    assert "spec: Required value" in answer.message
