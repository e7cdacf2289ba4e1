"""podPolicy and acceleratorTypes of the chart: what they allow, and the messages about mistakes in them."""

import json
from pathlib import Path

import pytest

from slipway_operator.api.inputs.pod_spec import NodeSelectorTerm
from slipway_operator.model.deployment.admin_policy import AcceleratorType, AdminPolicy, accelerator_types, pod_policy
from slipway_operator.model.inputs.accelerator_types import BUILT_IN, MEMORY
from slipway_operator.model.inputs.pod_inputs import PodInputs, parse_inputs

POWERS = {
    "serviceAccountName": "reader",
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "schedulerName": "volcano",
    "labels": {"team": "a"},
    "annotations": {"prometheus.io/scrape": "true"},
}
RULE = {
    "serviceAccountName": {"serviceAccountNames": ["reader"]},
    "priorityClassName": {"priorityClassNames": ["hi*"]},
    "runtimeClassName": {"runtimeClassNames": ["*"]},
    "schedulerName": {"schedulerNames": ["default", "volcano"]},
    "labels": {"labels": ["team=*"]},
    "annotations": {"annotations": ["prometheus.io/scrape=true"]},
}


def inputs(**fields: object) -> PodInputs:
    return parse_inputs({"model": {"uri": "file:///m"}, **fields}, "chat")


def policy(*rules: object) -> AdminPolicy:
    return AdminPolicy(pod_policy(json.dumps(rules)))


@pytest.mark.parametrize("field", POWERS)
def test_a_powerful_field_is_refused_until_a_rule_of_its_namespace_allows_it(field: str) -> None:
    wanted = inputs(pod={field: POWERS[field]})
    refused = AdminPolicy().problem(wanted, "team-a")
    assert refused and refused.reason == "NotAllowed"
    assert refused.message.startswith(f"spec.pod.{field} ") and "podPolicy" in refused.message
    rule = {"namespaces": ["team-*"], **RULE[field]}
    assert policy(rule).problem(wanted, "team-a") is None
    assert policy(rule).problem(wanted, "other") is not None
    others = {name: values for other, row in RULE.items() if other != field for name, values in row.items()}
    assert policy({"namespaces": ["*"], **others}).problem(wanted, "team-a") is not None


def test_rules_of_several_namespaces_add_up() -> None:
    both = policy({"namespaces": ["*"], "labels": ["team=a"]}, {"namespaces": ["ml"], "labels": ["tier=*"]})
    assert both.problem(inputs(pod={"labels": {"team": "a", "tier": "gold"}}), "ml") is None
    refused = both.problem(inputs(pod={"labels": {"team": "a", "tier": "gold"}}), "web")
    assert refused and refused.message.startswith("spec.pod.labels 'tier=gold' is not allowed in namespace web")


def test_by_default_any_image_is_allowed_and_volumes_always() -> None:
    image = inputs(engine={"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"})
    assert AdminPolicy().problem(image, "team-a") is None
    refused = policy({"namespaces": ["*"], "images": ["registry.example.com/*"]}).problem(image, "team-a")
    assert refused and refused.message.startswith("spec.engine.image 'vllm/vllm-openai:v0.32.0' is not allowed")
    assert policy().problem(inputs(pod={"volumes": [{"name": "a", "secret": {"secretName": "a"}}]}), "a") is None


def test_an_unknown_type_of_accelerator_is_refused_with_the_known_ones() -> None:
    wanted = inputs(resources={"accelerator": {"type": "h1000", "count": 1}})
    refused = AdminPolicy().problem(wanted, "a")
    assert refused and refused.reason == "UnknownAcceleratorType" and "a10g, b200, h100" in refused.message
    own = AdminPolicy.of((), accelerator_types('{"h1000": {"resource": "nvidia.com/gpu"}}'))
    assert own.problem(wanted, "a") is None and own.accelerator(wanted) == {"resource": "nvidia.com/gpu"}


def test_a_cache_on_the_nodes_is_for_the_namespaces_that_have_one() -> None:
    wanted = inputs(model={"uri": "hf://org/m", "cache": "node"})
    refused = AdminPolicy().problem(wanted, "team-a")
    assert refused and refused.reason == "ModelCacheNotConfigured" and "modelCache.namespaces" in refused.message
    own = AdminPolicy.of((), {}, ["team-a"])
    assert own.problem(wanted, "team-a") is None and own.problem(wanted, "team-b")
    claim = inputs(model={"uri": "hf://org/m", "cache": "claim", "cacheClaimName": "models"})
    assert AdminPolicy().problem(claim, "team-b") is None


def test_a_type_of_the_administrator_replaces_a_built_in_one() -> None:
    own = AdminPolicy.of((), accelerator_types('{"h100": {"resource": "example.com/gpu"}}'))
    assert own.accelerator(inputs(resources={"accelerator": {"type": "h100", "count": 1}})) == {
        "resource": "example.com/gpu"
    }
    assert own.accelerator_types["l4"] == BUILT_IN["l4"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_types_are_what_an_administrator_could_write(name: str) -> None:
    kind = AcceleratorType.model_validate_json(json.dumps(BUILT_IN[name]))
    assert kind.tolerations[0].key == kind.resource
    assert kind.node_selector_terms and all(isinstance(term, NodeSelectorTerm) for term in kind.node_selector_terms)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (pod_policy, "{", "Invalid JSON"),
        (pod_policy, '{"namespaces": ["a"]}', "valid array"),
        (pod_policy, '[{"images": ["*"]}]', "0.namespaces: Field required"),
        (pod_policy, '[{"namespaces": ["a"], "serviceAccounts": ["a"]}]', "0.serviceAccounts: Extra inputs"),
        (pod_policy, '[{"namespaces": ["a"], "images": [1]}]', "0.images.0: Input should be a valid string"),
        (accelerator_types, '{"h100": {}}', "h100.resource: Field required"),
        (accelerator_types, '{"h100": {"resource": "gpu"}}', "h100.resource: String should match pattern"),
        (accelerator_types, '{"h100": {"resource": "a/b", "tolerations": [{}]}}', "h100.tolerations.0.key"),
    ],
)
def test_a_mistake_is_reported_with_its_path_and_an_example(parse, text: str, message: str) -> None:
    with pytest.raises(ValueError, match="write for example") as error:
        parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_page_has_each_built_in_type_with_its_labels(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "placement.md").read_text()
    [row] = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    wanted = [
        value
        for term in BUILT_IN[name]["nodeSelectorTerms"]
        for one in term["matchExpressions"]
        for value in one["values"]
    ]
    assert [value for value in wanted if f"`{value}`" not in row] == [] and f"`{BUILT_IN[name]['resource']}`" in row


def test_what_devices_of_a_type_cannot_have_is_refused() -> None:
    def problem(own: AdminPolicy, **accelerator: str) -> str:
        found = own.problem(inputs(resources={"accelerator": {"count": 1, **accelerator}}), "a")
        assert found is None or found.reason == "AcceleratorConflict"
        return found.message if found else ""

    plain = AdminPolicy()
    assert problem(plain, type="l4", memory="40Gi") == (
        "spec.resources.accelerator.memory is 40Gi, and devices of type 'l4' have 24Gi: write another "
        "type, or less memory"
    )
    assert problem(plain, type="l4", memory="20Gi") == problem(plain, memory="2Ti") == ""
    assert "type 'mi300x' stands for amd.com/gpu" in problem(plain, type="mi300x", sharing="TimeSlicing")
    assert problem(plain, type="l4", sharing="TimeSlicing") == ""
    slices = '{"slice": {"resource": "nvidia.com/mig-1g.10gb", "memory": "10G"}, "l4": {"resource": "nvidia.com/gpu"}}'
    own = AdminPolicy.of((), accelerator_types(slices))
    assert "devices of type 'slice' have 10G" in problem(own, type="slice", memory="10Gi")
    assert problem(own, type="l4", memory="40Gi") == "", "of this one no memory is known"
    assert own.accelerator(inputs(resources={"accelerator": {"type": "slice", "count": 1}})) == {
        "resource": "nvidia.com/mig-1g.10gb"
    }


def test_the_memory_of_a_type_is_a_quantity() -> None:
    with pytest.raises(ValueError, match=r"x.memory: .*is no quantity"):
        accelerator_types('{"x": {"resource": "nvidia.com/gpu", "memory": "10 GB"}}')


def test_every_built_in_type_has_its_memory() -> None:
    assert MEMORY.keys() == BUILT_IN.keys()
