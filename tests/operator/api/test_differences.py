"""Objects of v1alpha1 as those of v1beta1, and back: nothing is lost, whatever is in them."""

from copy import deepcopy
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bench.fuzz.crs import Crd
from slipway_operator.api.v1beta1.differences import BETA, DIFFERENCES, STORED, NotConvertible, as_stored, converted
from testkit import ROOT

CRDS = {
    crd["spec"]["names"]["kind"]: crd
    for crd in (yaml.load(file.read_text(), yaml.CSafeLoader) for file in sorted((ROOT / "crds").glob("*.yaml")))
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
WHOLE = {
    "spec": {
        "model": {"uri": "hf://org/model"},
        "strategy": {"canary": {"trafficPercent": 5, "baselinePod": True, "holdOnBudget": False}},
        "traffic": {"fallback": [{"name": "small"}], "cache": {"mode": "Exact", "shared": True}},
    }
}
WHOLE_IN_BETA = {
    "spec": {
        "model": {"uri": "hf://org/model"},
        "strategy": {"canary": {"trafficPercent": 5, "baseline": "BaselinePods", "onErrorBudgetSpent": "Continue"}},
        "traffic": {"fallbacks": [{"name": "small"}], "cache": {"mode": "Exact", "scope": "AllTenants"}},
    }
}


def of(kind: str, version: str, rest: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"slipway.dev/{version}", "kind": kind, **deepcopy(rest)}


def crd_of(kind: str, version: str) -> Crd:
    """With one version alone."""
    document = deepcopy(CRDS[kind])
    document["spec"]["versions"] = [one for one in document["spec"]["versions"] if one["name"] == version]
    return Crd(document)


def test_each_difference_is_converted_both_ways() -> None:
    stored, beta = of("ModelDeployment", STORED, WHOLE), of("ModelDeployment", BETA, WHOLE_IN_BETA)
    assert converted(stored, BETA) == beta and converted(beta, STORED) == stored
    assert stored == of("ModelDeployment", STORED, WHOLE), "what was given is not changed"
    route = {"spec": {"rules": [{"name": "a", "fallback": []}, {"name": "b"}]}}
    assert converted(of("ModelRoute", STORED, route), BETA)["spec"]["rules"] == [
        {"name": "a", "fallbacks": []},
        {"name": "b"},
    ]
    tenant = converted(of("Tenant", STORED, {"spec": {"external": True}}), BETA)
    assert tenant["spec"] == {"externalProviders": "Allowed"}
    assert converted(tenant, STORED)["spec"] == {"external": True}


def test_fields_keep_their_places() -> None:
    made = converted(of("ModelDeployment", STORED, WHOLE), BETA)
    assert list(made["spec"]["strategy"]["canary"]) == ["trafficPercent", "baseline", "onErrorBudgetSpent"]


@pytest.mark.parametrize("kind", sorted(DIFFERENCES))
@pytest.mark.parametrize(("version", "other"), [(STORED, BETA), (BETA, STORED)])
def test_a_round_trip_of_any_valid_object_loses_nothing(kind: str, version: str, other: str) -> None:
    @settings(max_examples=20, phases=[Phase.generate])  # schemas are large, and so is what is drawn of them
    @given(crd_of(kind, version).drawn("spec").filter(lambda drawn: drawn.sound), JSON)
    def check(drawn: Any, unknown: Any) -> None:
        obj = of(kind, version, {"metadata": {"name": "a", "x": unknown}, "spec": drawn.value, "more": unknown})
        there = converted(obj, other)
        assert there["apiVersion"] == f"slipway.dev/{other}" and there["more"] == unknown
        assert converted(there, version) == obj

    check()


@pytest.mark.parametrize("kind", sorted(DIFFERENCES))
@given(st.data())
def test_whatever_an_object_holds_it_is_converted(kind: str, data: st.DataObject) -> None:
    """The API server converts before it validates: a wrong type is the schema's to refuse."""
    spec: Any = data.draw(JSON)
    for one in DIFFERENCES[kind]:
        value: Any = {one.stored: data.draw(JSON), one.beta: data.draw(JSON)}
        for part in reversed(one.path[1:]):
            value = [value] if part == "[]" else {part: value}
        spec = {**(spec if isinstance(spec, dict) else {}), **(value if isinstance(value, dict) else {})}
    for version in (STORED, BETA):
        other = BETA if version == STORED else STORED
        assert converted(of(kind, version, {"spec": spec}), other)["kind"] == kind


@pytest.mark.parametrize("value", [None, 7, "Maybe", [True], {"a": 1}])
def test_a_value_that_no_schema_takes_stays_as_it_is(value: Any) -> None:
    tenant = converted(of("Tenant", STORED, {"spec": {"external": value}}), BETA)
    assert tenant["spec"] == {"externalProviders": value}


def test_of_both_names_that_of_the_version_counts() -> None:
    both = {"spec": {"externalProviders": "Denied", "external": True}}
    assert converted(of("Tenant", STORED, both), BETA)["spec"] == {"externalProviders": "Allowed"}
    assert converted(of("Tenant", BETA, both), STORED)["spec"] == {"external": False}


@pytest.mark.parametrize(
    ("api_version", "kind", "desired"),
    [
        ("slipway.dev/v1alpha1", "AnalysisRun", BETA),
        ("apps/v1", "Deployment", BETA),
        ("slipway.dev/v2", "Tenant", BETA),
        ("slipway.dev/v1alpha1", "Tenant", "v2"),
        (7, "Tenant", BETA),
        ("slipway.dev/v1alpha1", None, BETA),
    ],
)
def test_other_kinds_groups_and_versions_are_refused(api_version: Any, kind: Any, desired: str) -> None:
    with pytest.raises(NotConvertible):
        converted({"apiVersion": api_version, "kind": kind}, desired)


def test_what_is_not_of_v1beta1_is_read_as_it_is() -> None:
    assert as_stored({"kind": "Deployment", "apiVersion": "apps/v1"}) == {"kind": "Deployment", "apiVersion": "apps/v1"}
    assert as_stored(of("ModelDeployment", BETA, WHOLE_IN_BETA)) == of("ModelDeployment", STORED, WHOLE)


@pytest.mark.parametrize("kind", sorted(DIFFERENCES))
def test_the_schema_has_the_new_name_and_nothing_names_the_former_one(kind: str) -> None:
    stored, beta = CRDS[kind]["spec"]["versions"]
    assert (stored["name"], stored["served"], stored["storage"]) == (STORED, True, True)
    assert (beta["name"], beta["served"], beta["storage"]) == (BETA, False, False)
    for one in DIFFERENCES[kind]:
        node = beta["schema"]["openAPIV3Schema"]
        for part in one.path:
            node = node["items"] if part == "[]" else node["properties"][part]
        assert one.beta in node["properties"] and one.stored not in node["properties"]
        if one.words:
            assert node["properties"][one.beta]["enum"] == [one.words.false, one.words.true]
    texts = yaml.safe_dump(beta)
    assert not [name for name in ("baselinePod", "holdOnBudget", "traffic.fallback ") if name in texts]
    assert beta["additionalPrinterColumns"] == stored["additionalPrinterColumns"]
    assert beta.get("subresources") == stored.get("subresources")
