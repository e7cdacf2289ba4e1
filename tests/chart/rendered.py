"""The chart as helm renders it."""

import copy
import functools
import json
from pathlib import Path
from typing import Any

import yaml

from testkit import ROOT
from tests.support.tools import helm

CHART = ROOT / "charts" / "slipway"
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))
NAMESPACE = "slipway-system"

Object = dict[str, Any]


def scenario(name: str) -> Path:
    return CHART / "ci" / f"{name}-values.yaml"


@functools.cache
def text(name: str = "default", namespace: str = NAMESPACE, values: str = "{}", release: str = "slipway") -> str:
    """What `helm template` prints for a scenario, with more values (JSON) over it."""
    files = ("-f", str(scenario(name)), "--set-json", values)
    done = helm("template", release, str(CHART), "--namespace", namespace, *files)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(
    name: str = "default", namespace: str = NAMESPACE, values: Object | None = None, release: str = "slipway"
) -> list[Object]:
    """The objects of a scenario."""
    return copy.deepcopy(_documents(text(name, namespace, json.dumps(values or {}), release)))


@functools.cache
def _documents(rendered: str) -> list[Object]:
    return [document for document in yaml.load_all(rendered, yaml.CSafeLoader) if document]


def find(objects_: list[Object], kind: str, name: str) -> Object:
    found = [item for item in objects_ if item["kind"] == kind and item["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} objects {kind}/{name}"
    return found[0]


def of_kind(objects_: list[Object], *kinds: str) -> list[Object]:
    return [item for item in objects_ if item["kind"] in kinds]


def refusal(values: Object) -> str:
    """Why helm refuses these values."""
    done = helm("template", "slipway", str(CHART), "--set-json", json.dumps(values))
    assert done.returncode != 0, "accepted"
    return done.stderr
