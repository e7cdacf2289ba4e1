"""docs/api-policy.md names the versions that the tree tests with, and the one version of the API."""

import re

import yaml

from devcluster import pins
from slipway_operator.api.inputs import pod_inputs
from testkit import ROOT

PAGE = (ROOT / "docs" / "api-policy.md").read_text()
ENGINES = (ROOT / "docs" / "engines.md").read_text()
SCHEMAS = (ROOT / "tests" / "chart" / "test_schemas.py").read_text()


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_the_api_has_the_version_that_the_page_names() -> None:
    crds = [yaml.load(path.read_text(), yaml.CSafeLoader) for path in (ROOT / "crds").glob("*.yaml")]
    versions = {(crd["spec"]["group"], one["name"], one["storage"]) for crd in crds for one in crd["spec"]["versions"]}
    assert versions == {("slipway.dev", "v1alpha1", True)}
    assert "`slipway.dev/v1alpha1`" in PAGE and not [crd for crd in crds if "conversion" in crd["spec"]]


def test_the_kubernetes_versions_are_those_of_the_tests() -> None:
    oldest, newest = minor(pins.OLDEST_KUBERNETES), minor(pins.KUBERNETES)
    rows = re.findall(r"^\| (1\.\d+)(?: to (1\.\d+))? \|", PAGE, re.MULTILINE)
    first, last = int(oldest[2:]), int(newest[2:])
    assert rows == [(oldest, ""), (f"1.{first + 1}", f"1.{last - 1}"), (newest, "")]
    assert f"{oldest} to {newest}" in SCHEMAS
    chart = yaml.safe_load((ROOT / "charts" / "slipway" / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={oldest}.0-0"
    assert f"Helm {minor(pins.HELM_AT_LEAST)} or newer" in PAGE


def test_the_engines_are_those_of_the_schema_and_of_the_runs() -> None:
    [oldest] = re.findall(r"^\| vLLM \| (0\.\d+) or newer", PAGE, re.MULTILINE)
    taken, refused = f"{oldest}.0", f"0.{int(oldest[2:]) - 1}.9"
    pattern = re.compile(pod_inputs._VLLM_VERSION)
    assert pattern.match(taken) and not pattern.match(refused)
    [tested] = re.findall(r"newer; older ones are refused \| (0\.\d+) on CPUs", PAGE)
    assert f"vLLM {tested} on CPUs" in ENGINES
    [other] = re.findall(r"llama-cpp-python ([0-9.]+),", PAGE)
    assert f"llama-cpp-python {other}" in ENGINES
