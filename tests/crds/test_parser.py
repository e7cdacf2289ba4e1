"""The operator parses all objects that the API server accepts, and names the same paths in refusals."""

import re
from typing import Any

import pytest
import yaml

from slipway_contracts.api.reading import encoded, read
from slipway_operator.api.v1alpha1.analysis_template import AnalysisTemplate
from slipway_operator.api.v1alpha1.experiment import Experiment
from slipway_operator.api.v1alpha1.model_adapter import ModelAdapter
from slipway_operator.api.v1alpha1.model_deployment import ModelDeployment
from slipway_operator.api.v1alpha1.model_route import ModelRoute
from slipway_operator.api.v1beta1.differences import as_stored
from slipway_operator.model.deployment.spec import Invalid, Spec, parse
from testkit import ROOT
from tests.crds.cases import CEL_CASES, SCHEMA_CASES
from tests.crds.objects import model_deployment

KINDS = {
    "ModelDeployment": ModelDeployment,
    "AnalysisTemplate": AnalysisTemplate,
    "ModelRoute": ModelRoute,
    "Experiment": Experiment,
    "ModelAdapter": ModelAdapter,
}
# A revision may have been recorded by a release with more of them, and gateways read tables of other releases.
OPEN = (
    *("spec.model.task", "spec.model.format", "spec.model.dtype", "spec.model.quantization", "spec.model.cache"),
    *("spec.traffic.guards[0].stages[0]", "spec.traffic.guards[0].failurePolicy"),
    "spec.traffic.guards[0].builtin.action",
)
UNIQUE = "engine.env.unique"  # keys of lists are compared by the API server alone

REFUSED = [
    pytest.param(case.message, bad, id=f"{case.id}-{place}")
    for case in SCHEMA_CASES
    for place, bad in enumerate(case.bad)
    if case.message not in OPEN and case.id != UNIQUE
]
TAKEN = [
    pytest.param(good, id=f"{case.id}-{place}")
    for case in (*CEL_CASES, *SCHEMA_CASES)
    for place, good in enumerate(case.good)
]


@pytest.mark.parametrize(("where", "bad"), REFUSED)
def test_parser_refuses_what_the_schema_refuses_with_the_same_path(where: str, bad: dict[str, Any]) -> None:
    found = parse(model_deployment(bad))
    assert isinstance(found, Invalid)
    assert re.search(rf"{re.escape(where)}[\w.\[\]]*: (must|is missing)", found.message), found.message


@pytest.mark.parametrize("good", TAKEN)
def test_objects_that_pass_the_rules_are_parsed(good: dict[str, Any]) -> None:
    found = parse(model_deployment(good))
    assert isinstance(found, Spec), found


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda file: file.name)
def test_examples_are_read_whole(file: Any) -> None:
    objects = [as_stored(one) for one in yaml.safe_load_all(file.read_text()) if one and one["kind"] in KINDS]
    assert objects
    for one in objects:
        made = read(KINDS[one["kind"]], encoded(one))
        written = made.model_dump(mode="json", by_alias=True, exclude_unset=True)
        # Types that gateways read too have their defaults in what they write.
        assert _within(written["spec"], one["spec"]) == one["spec"], "a field is not known"


def _within(written: Any, manifest: Any) -> Any:
    """Of what was written the fields that a manifest has."""
    if isinstance(manifest, dict):
        return {name: _within(written[name], value) for name, value in manifest.items() if name in written}
    if isinstance(manifest, list):
        return [_within(*pair) for pair in zip(written, manifest, strict=True)]
    return written
