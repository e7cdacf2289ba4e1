"""`slipway import` as a process: what it prints is accepted by a real API server, with strict field validation."""

import os
from pathlib import Path

import pytest
import yaml

from testkit.cluster.api import GROUP_PATH, Api

from ..conftest import Run, environment, slipway

__all__ = ["environment", "slipway"]

pytestmark = pytest.mark.integration

HERE = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # of a checkout whose packages are not those installed
FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.yaml"))


@pytest.mark.parametrize("tool", sorted({path.parent.name for path in FILES}))
def test_what_is_printed_is_accepted(api: Api, slipway: Run, namespace: str, tool: str) -> None:
    files = [str(path) for path in FILES if path.parent.name == tool]
    ran = slipway("import", "--uri", "hf://org/model", *files, **HERE)
    assert ran.returncode == 0, ran.stderr
    made = list(yaml.safe_load_all(ran.stdout))
    assert len(made) >= 4
    for document in made:
        document["metadata"].pop("namespace", None)
        name = document["metadata"]["name"]
        path = f"{GROUP_PATH}/namespaces/{namespace}/modeldeployments/{name}"
        applied = api.apply(path, document, dryRun="All", fieldValidation="Strict")
        assert applied.ok, f"{tool}/{name}: {applied.message}\n{yaml.safe_dump(document)}"


def test_notes_are_on_stderr_and_a_refusal_is_an_error(slipway: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n")
    ran = slipway("import", str(FOLDER / "kserve" / "canary.yaml"), str(other), **HERE)
    assert ran.returncode == 1
    assert "fraud: spec.predictor.timeout: not mapped" in ran.stderr
    assert "other.yaml, manifest 1: Pod of v1 is not read" in ran.stderr
    assert [one["kind"] for one in yaml.safe_load_all(ran.stdout)] == ["ModelDeployment"]


def test_what_is_no_yaml_is_named(slipway: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    ran = slipway("import", str(broken), **HERE)
    assert ran.returncode == 1 and "is neither JSON nor YAML" in ran.stderr
    assert "Traceback" not in ran.stderr
