"""docs/api-policy.md names the versions that the tree tests with, and the versions of the API."""

import re

import yaml

from devcluster import pins
from slipway_operator.api.inputs import pod_inputs
from slipway_operator.api.v1beta1.differences import DIFFERENCES
from testkit import ROOT

PAGE = (ROOT / "docs" / "api-policy.md").read_text()
ENGINES = (ROOT / "docs" / "engines.md").read_text()
SCHEMAS = (ROOT / "tests" / "chart" / "test_schemas.py").read_text()


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_the_api_has_the_version_that_the_page_names() -> None:
    crds = [yaml.load(path.read_text(), yaml.CSafeLoader) for path in (ROOT / "crds").glob("*.yaml")]
    for crd in crds:
        kind, versions = crd["spec"]["names"]["kind"], crd["spec"]["versions"]
        assert (versions[0]["name"], versions[0]["served"], versions[0]["storage"]) == ("v1alpha1", True, True)
        # Until a webhook is named, v1beta1 would lose the fields that have other names there.
        later = [(one["name"], one["served"], one["storage"]) for one in versions[1:]]
        assert later == ([("v1beta1", False, False)] if kind in DIFFERENCES else [])
        assert "conversion" not in crd["spec"]
    assert "`slipway.dev/v1alpha1` | all" in PAGE
    assert f"`slipway.dev/v1beta1` | {', '.join(DIFFERENCES)} |" in PAGE


def test_the_page_has_each_difference_of_v1beta1() -> None:
    rows = PAGE.partition("## v1beta1")[2].partition("Examined")[0]
    for one in (one for differences in DIFFERENCES.values() for one in differences):
        words = f": {one.words.true}`, `{one.words.false}`" if one.words else "`"
        assert f".{one.stored}" in rows and f"`{one.beta}{words}" in rows


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
