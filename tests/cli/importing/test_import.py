"""`slipway import` as a process: what it prints is accepted by a real API server, with strict field validation."""

import os
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from slipway_cli.importing.convert import convert
from slipway_cli.importing.fields import Unusable
from slipway_cli.importing.manifest import render
from testkit.cluster.api import GROUP_PATH, Answer, Api

from ..conftest import Run, environment, slipway

__all__ = ["environment", "slipway"]

pytestmark = pytest.mark.integration

HERE = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # of a checkout whose packages are not those installed
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 3, 17, 2**31, 1.5, "", " ", "a b", "A_b", "-x", "x" * 300, "5", "0", "100%", "1Gi", "é"),
    *("hf://a/b/c", "s3://B", "oci://x", "pvc://", "https://u@h/x", [], {}, [None], ["--model", "--dtype"], {"": ""}),
    *([{}], "../x", "/dev/shm", "nvidia.com/mig-x", {"name": "HF_TOKEN", "value": "x"}, "--enable-lora"),
)
FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.yaml"))


def dry_run(api: Api, namespace: str, document: Any) -> Answer:
    document["metadata"].pop("namespace", None)
    name, plural = document["metadata"]["name"], f"{document['kind'].lower()}s"
    path = f"{GROUP_PATH}/namespaces/{namespace}/{plural}/{name}"
    return api.apply(path, document, dryRun="All", fieldValidation="Strict")


def mutated(document: Any, chance: Random) -> Any:
    """The manifest with one or two values replaced by another one, or by one from elsewhere in it."""
    for _ in range(chance.randint(1, 2)):
        places: list[tuple[Any, Any]] = []
        stack = [document.get("spec") or document]
        while stack:
            item = stack.pop()
            keys = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
            places += [(item, key) for key in keys]
            stack += [item[key] for key in keys]
        place, key = chance.choice(places)
        others = [item[name] for item, name in places if not isinstance(item[name], dict | list)]
        place[key] = deepcopy(chance.choice(others if others and chance.random() < 0.5 else ODD))
    return document


@pytest.mark.parametrize("tool", sorted({path.parent.name for path in FILES}))
def test_what_is_printed_is_accepted(api: Api, slipway: Run, namespace: str, tool: str) -> None:
    files = [str(path) for path in FILES if path.parent.name == tool]
    ran = slipway("import", "--uri", "hf://org/model", *files, **HERE)
    assert ran.returncode == 0, ran.stderr
    made = list(yaml.safe_load_all(ran.stdout))
    assert len(files) >= 10 and len(made) >= 10
    for document in made:
        applied = dry_run(api, namespace, document)
        assert applied.ok, f"{tool}: {applied.message}\n{yaml.safe_dump(document)}"


@pytest.mark.parametrize("tool", sorted({path.parent.name for path in FILES}))
def test_a_changed_manifest_is_accepted_or_refused_by_name(api: Api, namespace: str, tool: str) -> None:
    """The import knows the limits of the API: whatever a field holds, nothing is printed that the server refuses."""
    chance = Random(tool)
    converted = 0
    for path in [path for path in FILES if path.parent.name == tool] * 8:
        document = mutated(yaml.safe_load(path.read_text()), chance)
        try:
            made = convert(document, "hf://org/model")
        except Unusable as error:
            assert str(error)
            continue
        for one in made:
            converted += 1
            applied = dry_run(api, namespace, yaml.safe_load(render(one)))
            assert applied.ok, f"{applied.message}\n{render(one)}\n{yaml.safe_dump(document)}"
    assert converted >= 10


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


def test_a_folder_is_read_with_what_lies_below_it(slipway: Run, tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    pod = yaml.safe_load((FOLDER / "argo" / "plain.yaml").read_text())
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    template = pod["spec"].pop("template")
    pod["spec"]["workloadRef"] = reference
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": template}}
    listed = {"kind": "List", "apiVersion": "v1", "items": [pod, {"apiVersion": "v1", "kind": "Service"}]}
    (below / "rollout.yml").write_text(yaml.safe_dump(listed))
    (tmp_path / "web.yaml").write_text(yaml.safe_dump(web))
    (tmp_path / "notes.txt").write_text("a: [")
    ran = slipway("import", str(tmp_path), **HERE)
    assert ran.returncode == 0, ran.stderr
    assert yaml.safe_load(ran.stdout)["spec"]["model"] == {"uri": "hf://org/model"}
    assert "left out:" in ran.stderr and "item 2: Service of v1 is not read" in ran.stderr


def test_two_objects_of_one_name_are_not_printed(slipway: Run) -> None:
    path = str(FOLDER / "argo" / "plain.yaml")
    ran = slipway("import", path, path, **HERE)
    assert ran.returncode == 1 and "is already the ModelDeployment plain" in ran.stderr
    assert len(list(yaml.safe_load_all(ran.stdout))) == 1


def test_help_names_the_kinds(slipway: Run) -> None:
    ran = slipway("import", "--help", **HERE)
    for kind in ("InferenceService", "LLMInferenceService", "Rollout", "Model", "LoraAdapter", "values of the chart"):
        assert kind in ran.stdout
