"""Parsing of specs: typed values, and messages for invalid ones."""

import copy
import re
from typing import Any

import pytest

from slipway_contracts.route_table import ResponseCache
from slipway_operator.api.v1alpha1.hooks import HookType
from slipway_operator.model.deployment.hooks import GATES, Hook
from slipway_operator.model.deployment.spec import Invalid, Spec, parse
from slipway_operator.model.deployment.strategy import Pause, SetScale, SetWeight, parse_duration_s
from slipway_operator.model.inputs.pod_inputs import KeyRef, inputs_to_dict, parse_inputs


def read(**spec: Any) -> Spec | Invalid:
    return parse({"metadata": {"name": "chat"}, "spec": {"model": {"uri": "file:///m"}, **spec}})


def accepted(**spec: Any) -> Spec:
    parsed = read(**spec)
    assert isinstance(parsed, Spec), parsed
    return parsed


def test_defaults() -> None:
    spec = accepted()
    assert (spec.replicas, spec.inputs.model.name, spec.strategy.steps, spec.paused) == (1, "chat", (), False)


def test_spec_is_parsed_once_per_edit() -> None:
    obj: dict[str, Any] = {"metadata": {"name": "chat"}, "spec": {"model": {"uri": "file:///m"}, "replicas": 1}}
    first = parse(obj)
    assert parse(copy.deepcopy(obj)) is first
    assert parse({**obj, "metadata": {"name": "other"}}) != first
    obj["spec"]["replicas"] = 2
    assert parse(obj) == accepted(replicas=2) != first


def test_revision_depends_on_references_and_not_on_their_targets() -> None:
    model = {"uri": "hf://org/m", "secretRef": {"name": "hub"}}
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
    ]
    inputs = accepted(model=model, engine={"env": env}).inputs
    assert (inputs.model.secret, inputs.engine.env) == (KeyRef("hub", "HF_TOKEN"), (("A", "1"),))
    assert inputs.engine.env_from == (("B", KeyRef("s", "k")), ("C", KeyRef("c", "k", "configMapKeyRef")))
    kept = inputs_to_dict(inputs)
    assert kept == {"model": {**model, "name": "chat"}, "engine": {"env": env}}
    assert parse_inputs(kept, "other") == inputs
    written = accepted(model={**model, "secretRef": {"name": "hub", "key": "HF_TOKEN"}}, engine={"env": env}).inputs
    assert written.canonical == inputs.canonical, "the default that the API server writes is no new revision"
    for other in ({"name": "hub2"}, {"name": "hub", "key": "k"}):
        assert accepted(model={**model, "secretRef": other}, engine={"env": env}).inputs.canonical != inputs.canonical


def test_canary_steps() -> None:
    steps = [{"setWeight": 10}, {"pause": {}}, {"pause": {"duration": "1m30s"}}, {"setWeight": 100}]
    expected = (SetWeight(10), Pause(), Pause(90), SetWeight(100))
    assert accepted(strategy={"canary": {"steps": steps}}).strategy.steps == expected


def test_traffic_percent_is_a_manual_weight() -> None:
    strategy = accepted(strategy={"canary": {"trafficPercent": 25}}).strategy
    assert (strategy.steps, strategy.by_hand) == ((SetWeight(25), Pause()), True)


@pytest.mark.parametrize("automatic", [True, False])
def test_blue_green_is_a_list_of_steps_too(automatic: bool) -> None:
    gate = () if automatic else (Pause(),)
    steps = accepted(strategy={"blueGreen": {"autoPromotionEnabled": automatic}}).strategy.steps
    assert steps == (SetScale(percent=100), *gate, SetWeight(100))


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("1h30m", 5400), ("2h1m1s", 7261)])
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "1d", "m", "30s10m"])
def test_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration like 30s"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": "many"},
        {"strategy": {"canary": {}, "blueGreen": {}}},
        {"model": {}},
        {"resources": {"accelerator": {}}},
        {"engine": {"env": [{"name": "A"}]}},
        {"strategy": {"canary": {"steps": [{}]}}},
    ],
)
def test_invalid_spec_is_a_value_and_no_exception(spec: dict[str, Any]) -> None:
    parsed = read(**spec)
    assert isinstance(parsed, Invalid)
    assert parsed.message.startswith("the spec cannot be read: ")


def test_a_cache_of_responses() -> None:
    assert accepted().cache is None
    assert accepted(traffic={"cache": {"mode": "Exact"}}).cache == ResponseCache(3600)
    one = accepted(traffic={"cache": {"mode": "Exact", "ttl": "1h30m", "shared": True}})
    assert one.cache == ResponseCache(5400, True)
    for ttl, words in (("0s", "from 1s to 720h"), ("721h", "from 1s to 720h"), ("1d", "not a duration")):
        refused = read(traffic={"cache": {"mode": "Exact", "ttl": ttl}})
        assert isinstance(refused, Invalid)
        assert words in refused.message


def test_hooks() -> None:
    written = {"name": "smoke", "type": "pre-rollout", "url": "http://smoke/"}
    assert accepted(strategy={"hooks": [written]}).hooks == (
        Hook("smoke", HookType.PRE_ROLLOUT, "http://smoke/", 10, 2),
    )
    more = written | {"timeoutSeconds": 60, "retries": 0, "metadata": {"b": "2", "a": "1"}}
    (hook,) = accepted(strategy={"canary": {}, "hooks": [more]}).hooks
    assert (hook.timeout_s, hook.retries, hook.tries, hook.metadata) == (60, 0, 1, (("a", "1"), ("b", "2")))
    assert isinstance(read(strategy={"hooks": [written | {"type": "confirm"}]}), Invalid)


@pytest.mark.parametrize("kind", list(HookType))
def test_only_hooks_without_periodic_calls_have_retries(kind: HookType) -> None:
    asked_anew = kind in (*GATES, HookType.ROLLBACK)
    assert Hook("a", kind, "http://a/", retries=3).tries == (1 if asked_anew else 4)


@pytest.mark.finding(12)
@pytest.mark.parametrize("count", [2, 8, 64])
def test_more_devices_than_one_engine_uses_are_refused(count: int) -> None:
    """Safety 12: up to 64 were taken from the node, and one of them computed."""
    refused = read(resources={"accelerator": {"count": count}})
    assert isinstance(refused, Invalid) and f"spec.resources.accelerator.count is {count}" in refused.message


@pytest.mark.finding(26)
@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"resources": {"storage": "1.5GiB"}}, r"resources\.storage: '1\.5GiB' is no quantity"),
        ({"restartAt": "0001-01-01T00:00:00+14:00"}, "is not a time between the years"),
        ({"restartAt": "9999-12-31T23:59:59-14:00"}, "is not a time between the years"),
        ({"replicas": 10**12}, r"spec\.replicas: must be at most 10000, and is '1000000000000'"),
        ({"replicas": 1e300}, r"spec\.replicas: must be a whole number, and is '1e\+300'"),
        ({"replicas": 10**30}, "the spec cannot be read"),
        ({"model": {"uri": {"a": 1}}}, r"spec\.model\.uri: must be a text, and is \"\{'a': 1\}\""),
        ({"rollout": {"promote": "abcdefghij/1/x"}}, r"rollout\.promote 'abcdefghij/1/x' is no token"),
        ({"rollout": {"retry": "abcdefghij"}}, r"rollout\.retry 'abcdefghij' is no token"),
        ({"rollout": {"retry": "abcdefghij/" + "9" * 40}}, "is no token"),
        ({"rollout": {"promoteFull": {"a": 1}}}, "the spec cannot be read: "),
        ({"model": {"uri": "\ud800"}}, "the spec cannot be read"),
        (
            {"strategy": {"canary": {"steps": [{"pause": {"duration": "x" * 70_000}}]}}},
            r"spec\.strategy\.canary\.steps\[0\]\.pause\.duration: must have at most 32 characters",
        ),
    ],
)
def test_specs_found_by_fuzzing_are_refused_with_a_message(written: dict[str, Any], words: str) -> None:
    """Safety 26. Each of these was an exception of the parser or of planning, or a message without an end."""
    found = read(**written)
    assert isinstance(found, Invalid) and len(found.message) <= 1024
    assert re.search(words, found.message), found.message
