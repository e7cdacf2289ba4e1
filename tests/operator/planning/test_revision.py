"""Identity of revisions: golden hashes that no release may change."""

from typing import Any

from slipway_operator.model.deployment.spec import Invalid, Spec, parse
from slipway_operator.model.inputs.pod_inputs import inputs_to_dict, parse_inputs
from slipway_operator.planning.facts.revision import revision_hash


def inputs_of(spec: dict[str, object]) -> Spec:
    parsed = parse({"metadata": {"name": "chat"}, "spec": spec})
    assert not isinstance(parsed, Invalid), parsed
    return parsed


FULL = {
    "model": {
        "uri": "hf://org/llama-8b", "revision": "0123abc", "name": "llama", "version": "3.1",
        "task": "generate", "dtype": "bfloat16", "maxModelLen": 8192,
    },
    "engine": {"image": "registry.example/server@sha256:00",
               "args": ["--max-num-seqs", "8"], "env": [{"name": "A", "value": "b"}]},
    "resources": {"cpu": 4, "memory": "24Gi", "accelerator": {"resource": "nvidia.com/gpu", "count": 1}},
}  # fmt: skip
MINIMAL = {"model": {"uri": "file:///models/v1"}}


def test_golden_hashes() -> None:
    """A change here restarts every model pod of every user at the next upgrade: add a new algorithm instead."""
    assert revision_hash(inputs_of(MINIMAL).inputs) == "sdgsod33be"
    assert revision_hash(inputs_of(FULL).inputs) == "gw6somijqh"


def test_defaults_and_empty_values_are_no_part_of_the_identity() -> None:
    spelled = {
        "model": {"uri": "file:///models/v1", "name": "chat", "task": "auto", "dtype": "auto", "quantization": "none"},
        "engine": {"args": [], "env": []},
        "resources": {},
    }
    assert revision_hash(inputs_of(spelled).inputs) == revision_hash(inputs_of(MINIMAL).inputs)


def test_a_field_that_came_later_changes_identities_only_where_it_is_used() -> None:
    quantized = {"model": {**MINIMAL["model"], "quantization": "int8"}}
    assert revision_hash(inputs_of(quantized).inputs) != revision_hash(inputs_of(MINIMAL).inputs)


def test_objectives_are_no_part_of_the_identity() -> None:
    """Golden: objectives may change at any time, and no pod restarts."""
    slo = {"ttftP95": "800ms", "itlP95": "60ms", "latencyP99": "2s", "availability": "99.9", "window": "28d"}
    held = {"canary": {"holdOnBudget": True, "steps": [{"setWeight": 10}]}}
    assert revision_hash(inputs_of({**MINIMAL, "slo": slo}).inputs) == "sdgsod33be"
    assert revision_hash(inputs_of({**FULL, "slo": slo, "strategy": held}).inputs) == "gw6somijqh"


def test_load_balancing_is_no_part_of_the_identity() -> None:
    affine = {"traffic": {"loadBalancing": {"policy": "PrefixAffinity"}, "fallback": [{"name": "chat-small"}]}}
    assert revision_hash(inputs_of({**MINIMAL, **affine}).inputs) == revision_hash(inputs_of(MINIMAL).inputs)


def test_what_is_watched_is_no_part_of_the_identity() -> None:
    """Golden: spec.accuracy may change at any time, and no pod restarts."""
    watched = {"feedback": {"minAccuracy": 0.9}, "predictions": {}, "falseAlarmsPerYear": 1, "onAlarm": "Rollback"}
    assert revision_hash(inputs_of({**MINIMAL, "accuracy": watched}).inputs) == "sdgsod33be"
    assert revision_hash(inputs_of({**FULL, "accuracy": watched}).inputs) == "gw6somijqh"


def test_a_cache_of_responses_is_no_part_of_the_identity() -> None:
    cached = {"traffic": {"cache": {"mode": "Exact", "ttl": "10m", "shared": True}}}
    assert revision_hash(inputs_of({**MINIMAL, **cached}).inputs) == revision_hash(inputs_of(MINIMAL).inputs)


def test_a_classic_model_has_an_identity_of_what_is_written() -> None:
    """Golden too, for the first release with these fields."""
    plain = {"model": {**MINIMAL["model"], "task": "predict"}}
    same = {"model": {**plain["model"], "format": "auto"}, "batching": {}}
    assert revision_hash(inputs_of(same).inputs) == revision_hash(inputs_of(plain).inputs)
    onnx = {"model": {**plain["model"], "format": "onnx"}}
    waiting, at_once = ({**onnx, "batching": {"maxQueueDelayMicroseconds": time}} for time in (5000, 0))
    assert len({revision_hash(inputs_of(one).inputs) for one in (plain, onnx, waiting, at_once)}) == 4
    again = inputs_of(waiting).inputs
    assert parse_inputs(inputs_to_dict(again), "chat") == again


def test_where_a_store_is_changes_the_identity_only_where_it_is_written() -> None:
    """Golden too, for the first release with these fields."""
    plain = {"model": {"uri": "s3://bucket/m", "secretRef": {"name": "keys"}}}
    stores: list[dict[str, str]] = [{}, {"region": "eu-central-1"}, {"endpoint": "https://minio"}]
    hashes = [revision_hash(inputs_of({"model": {**plain["model"], "objectStore": store}}).inputs) for store in stores]
    assert hashes[0] == revision_hash(inputs_of(plain).inputs)
    assert len(set(hashes)) == 3
    again = inputs_of({"model": {**plain["model"], "objectStore": stores[2]}}).inputs
    assert parse_inputs(inputs_to_dict(again), "chat") == again


PLACED = {
    **FULL,
    "placement": {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "nvidia.com/gpu"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                }
            }
        },
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway"}],
    },
}


def test_each_field_of_a_placement_changes_the_identity_and_defaults_do_not() -> None:
    placement: dict[str, Any] = PLACED["placement"]
    parts = [{**PLACED, "placement": {name: placement[name]}} for name in placement]
    assert len({revision_hash(inputs_of(spec).inputs) for spec in (FULL, PLACED, *parts)}) == 2 + len(parts)
    spelled = {**placement, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Equal", "value": None}]}
    same = inputs_of({**PLACED, "placement": spelled}).inputs
    assert revision_hash(same) == revision_hash(inputs_of(PLACED).inputs)
    assert revision_hash(inputs_of({**FULL, "placement": {}}).inputs) == revision_hash(inputs_of(FULL).inputs)


def test_fields_that_are_no_pod_input_do_not_change_the_identity() -> None:
    others = {
        "replicas": 7,
        "paused": True,
        "drain": {"timeoutSeconds": 5},
        "strategy": {"blueGreen": {}},
        "progressDeadlineSeconds": 9,
    }
    assert revision_hash(inputs_of({**MINIMAL, **others}).inputs) == revision_hash(inputs_of(MINIMAL).inputs)


def test_every_pod_input_changes_the_identity() -> None:
    seen = {revision_hash(inputs_of(FULL).inputs)}
    for section, values in FULL.items():
        for field in values:
            if (section, field) == ("model", "uri"):
                continue
            smaller = {**FULL, section: {key: value for key, value in values.items() if key != field}}
            seen.add(revision_hash(inputs_of(smaller).inputs))
    assert len(seen) == 1 + sum(len(values) for values in FULL.values()) - 1


def test_snapshots_read_back_as_they_were() -> None:
    for spec in (MINIMAL, FULL, PLACED):
        inputs = inputs_of(spec).inputs
        assert parse_inputs(inputs_to_dict(inputs), "chat") == inputs
