"""The CRD of Experiments: complete, closed, and every rule refuses invalid Experiments (real API server)."""

import copy
from typing import Any

import pytest
import yaml

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.experiments.spec import ExperimentSpec, refusal
from testkit import ROOT
from testkit.cluster.api import GROUP_PATH, Answer, Api
from tests.crds.schema import EXPERIMENT_FILE, version, walk

ARM: dict[str, Any] = {"name": "control", "weight": 40, "deploymentRef": {"name": "chat-large"}}
SPEC: dict[str, Any] = {
    "model": "chat",
    "rules": ["rest"],
    "unit": {"type": "Header", "header": "X-User-Id"},
    "arms": [ARM, {"name": "small", "weight": 60, "deploymentRef": {"name": "chat-small"}, "revision": "v2"}],
    "control": "control",
    "layer": "sizes",
    "allocation": {"start": 10, "end": 60},
    "holdoutPercentage": 5,
    "outcomes": ["helpful", "score"],
    "startTime": "2026-12-01T00:00:00Z",
    "endTime": "2027-01-01T00:00:00Z",
    "paused": False,
}


def dry_run(api: Api, spec: dict[str, Any], name: str = "sizes") -> Answer:
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Experiment", "metadata": {"name": name}, "spec": spec}
    return api.post(f"{GROUP_PATH}/namespaces/default/experiments", body, dryRun="All", fieldValidation="Strict")


def changed(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SPEC), **fields}


def arms(*changes: dict[str, Any]) -> dict[str, Any]:
    return changed(arms=[{**ARM, **change} for change in changes])


def test_every_field_is_described_and_nothing_is_open() -> None:
    for path, node in walk(version(EXPERIMENT_FILE)["schema"]["openAPIV3Schema"]):
        assert path == "metadata" or node["description"].rstrip().endswith("."), path
        assert "x-kubernetes-preserve-unknown-fields" not in node, path


@pytest.mark.integration
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (arms({"weight": 40}, {"name": "b", "weight": 50}), "the weights of arms are percent"),
        (arms({"weight": 100}), "spec.arms"),
        (arms(*({"name": f"a{n}", "weight": 10} for n in range(10))), "spec.arms"),
        (arms({"weight": 50}, {"weight": 50}), "Duplicate value"),
        (arms({"weight": 50}, {"name": "holdout", "weight": 50}), "holdout is the name"),
        (changed(arms=[{"name": "a", "weight": 50}, {"name": "b", "weight": 50}]), "write deploymentRef"),
        (changed(control="none"), "control is none of the arms"),
        (changed(unit={"type": "Header"}), "header is the name"),
        (changed(unit={"type": "User", "header": "X"}), "header is the name"),
        (changed(unit={"type": "Header", "header": "authorization"}), "a credential is no unit"),
        (changed(unit={"type": "Cookie"}), "spec.unit.type"),
        (changed(allocation={"start": 60, "end": 60}), "allocation is a range"),
        (changed(holdoutPercentage=51), "spec.holdoutPercentage"),
        (changed(outcomes=["a"] * 2), "Duplicate value"),
        (changed(startTime="2027-01-01T00:00:00Z"), "startTime must be before endTime"),
        (changed(model="a/b"), "spec.model"),
        (changed(extra=1), "extra"),
    ],
)
def test_rules_refuse_invalid_experiments(api: Api, spec: dict[str, Any], field: str) -> None:
    done = dry_run(api, spec)
    assert done.status in (400, 422) and field in done.message, (done.status, done.message)


@pytest.mark.integration
def test_valid_experiments_and_the_example_are_accepted(api: Api) -> None:
    example = yaml.safe_load((ROOT / "examples" / "experiment.yaml").read_text())
    for spec in (SPEC, example["spec"]):
        done = dry_run(api, spec)
        assert done.status == 201, done.message
        assert refusal(read(ExperimentSpec, encoded(spec))) == ""
    assert "at most 63 characters" in dry_run(api, SPEC, "x" * 64).message
