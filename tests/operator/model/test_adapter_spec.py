"""A ModelAdapter's spec: what it is by itself, what it has of its ModelDeployment, and its identity."""

from typing import Any

import pytest

from slipway_operator.model.deployment.adapter_spec import base_of, parse_adapter
from slipway_operator.model.deployment.spec import Invalid, Spec
from slipway_operator.model.deployment.strategy import Capacity, Pause, SetWeight
from slipway_operator.model.inputs.pod_inputs import inputs_to_dict, parse_inputs
from slipway_operator.planning.facts.revision import revision_hash

STEPS = {"canary": {"steps": [{"setWeight": 10}, {"pause": {}}], "baselinePod": False}}


def base(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "chat"}, "spec": {"model": {"uri": "file:///m"}, "adapters": {}} | spec}


def adapter(**spec: Any) -> dict[str, Any]:
    written = {"deploymentRef": {"name": "chat"}, "model": {"uri": "https://h/a.tar"}} | spec
    return {"kind": "ModelAdapter", "metadata": {"name": "support.adapter"}, "spec": written}


def parsed(obj: dict[str, Any], of: dict[str, Any] | None) -> Spec:
    found = parse_adapter(obj, of)
    assert isinstance(found, Spec), found
    return found


def test_its_name_is_its_own_and_it_is_one_replica_without_pods() -> None:
    spec = parsed(adapter(), base(drain={"timeoutSeconds": 7}))
    assert (spec.inputs.model.name, spec.inputs.base, spec.replicas) == ("support", "chat", 1)
    assert not spec.inputs.has_pods and spec.drain_timeout_s == 7


def test_without_a_strategy_it_has_that_of_its_deployment_without_what_concerns_pods() -> None:
    hooks = [{"name": "gate", "type": "confirm-rollout", "url": "http://hooks.tools.svc/"}]
    of = base(strategy=STEPS | {"hooks": hooks, "capacity": {"maxSurge": 0}})
    spec = parsed(adapter(), of)
    assert spec.strategy.steps == (SetWeight(10), Pause()) and [hook.name for hook in spec.hooks] == ["gate"]
    assert spec.strategy.capacity == Capacity() and not spec.strategy.baseline_pod
    own = parsed(adapter(strategy={"canary": {"steps": [{"setWeight": 50}]}}), of)
    assert own.strategy.steps == (SetWeight(50),) and not own.hooks


@pytest.mark.parametrize(
    ("of", "reason"),
    [(None, "DeploymentNotFound"), ({"spec": {"model": {"uri": "file:///m"}}}, "AdaptersNotEnabled")],
)
def test_a_deployment_that_cannot_serve_it_is_named(of: Any, reason: str) -> None:
    found = parse_adapter(adapter(), of and {"metadata": {"name": "chat"}} | of)
    assert isinstance(found, Invalid) and found.reason == reason and "chat" in found.message


def test_a_deployment_whose_spec_is_invalid_may_serve_all_the_same() -> None:
    assert parsed(adapter(), base(engine={"type": "vllm"})).base_engine is None


@pytest.mark.parametrize("spec", [{"model": {}}, {"model": None}, {"deploymentRef": None}, {"rollout": {"abort": "x"}}])
def test_any_spec_is_read_or_refused(spec: dict[str, Any]) -> None:
    assert isinstance(parse_adapter(adapter(**spec), base()), Invalid)


@pytest.mark.parametrize(
    "value", [None, {}, {"spec": None}, {"spec": {"deploymentRef": 1}}, {"spec": {"deploymentRef": {}}}]
)
def test_an_object_that_names_no_deployment_is_none_of_them(value: Any) -> None:
    assert base_of(value or {}) == ""


def test_its_identity_is_the_model_and_its_deployment_and_nothing_of_the_pods() -> None:
    first = parsed(adapter(), base()).inputs
    same = parsed(adapter(paused=True, strategy=STEPS), base(resources={"cpu": 2}, adapters={"maxRank": 64})).inputs
    assert revision_hash(first) == revision_hash(same)
    others = [
        parsed(adapter(model={"uri": "https://h/a.tar"} | change), base()).inputs
        for change in ({"uri": "https://h/b.tar"}, {"revision": "sha256:" + "0" * 64}, {"version": "v2"})
    ]
    assert len({revision_hash(inputs) for inputs in (first, *others)}) == 4
    assert parse_inputs(inputs_to_dict(first), "support.adapter") == first, "the record is read as it was written"


def test_room_for_adapters_is_part_of_the_identity_and_its_absence_is_not() -> None:
    without = parse_inputs({"model": {"uri": "file:///m"}}, "chat")
    room = [
        parse_inputs({"model": {"uri": "file:///m"}, "adapters": written}, "chat")
        for written in ({}, {"maxLoaded": 16, "maxRank": 16}, {"maxRank": 32}, {"memory": "2Gi"}, {"maxLoaded": 4})
    ]
    assert len({revision_hash(inputs) for inputs in (without, *room)}) == 5, "a default that is written changes nothing"
    assert all(parse_inputs(inputs_to_dict(inputs), "chat") == inputs for inputs in room)
