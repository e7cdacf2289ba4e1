"""`kubectl describe mdep` in an analysis: its length, and what it shows (real API server, real kubectl)."""

import copy
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.weights import Weights
from testkit import ROOT
from testkit.cluster.api import Api
from tests.crds.objects import path
from tests.support.model_cluster import ModelCluster
from tests.support.tools import kubectl

pytestmark = pytest.mark.integration

# Of a model that serves, of an analysis with a twin shadow, and of a ramp.
MOST_LINES = {"serving": 120, "analysis": 192, "ramp": 185}
EVENT_LINES = 13  # at the end: a heading of three lines, and ten Events
MANIFEST = yaml.safe_load((ROOT / "README.md").read_text().split("```yaml\n")[1].split("```")[0])


@dataclass
class World(ModelCluster):
    """A cluster whose objects have UIDs, and whose pods report what they loaded."""

    def observed(self) -> Observed:
        seen = super().observed()
        loaded = Weights(digest=f"sha256:{'0f' * 32}", commit="0f" * 20)
        return replace(
            seen,
            workloads={
                name: replace(one, uid=f"6f0e3a52-0000-4000-8000-{number:012}")
                for number, (name, one) in enumerate(seen.workloads.items())
            },
            snapshots={name: replace(one, weights=loaded, template_version=2) for name, one in seen.snapshots.items()},
        )


@lru_cache
def states() -> dict[str, World]:
    """README's example before a release, and in the middle of its analysis and of its ramp."""
    world = World(copy.deepcopy(MANIFEST["spec"]))
    world.run_until(None)
    world.rate = 5
    world.run(60)
    found = {"serving": copy.deepcopy(world)}
    world.edit(model__version="2")
    world.run_until("Analyzing")
    world.run(155, step=5)
    found["analysis"] = copy.deepcopy(world)
    for _ in range(200):
        world.run(5, step=5)
        if world.parsed().step == "2/2" and (world.parsed().weight or 0) >= 5:
            return found | {"ramp": world}
    raise AssertionError(f"{world.state()}: {world.parsed().message}")


@pytest.mark.parametrize("state", MOST_LINES)
def test_describe_is_short_and_ends_with_events(state: str, api: Api, api_server: Path, namespace: str) -> None:
    lines = described(states()[state], api, api_server, namespace)
    print(f"{state}: {len(lines)} lines, {dict(sections(lines))}")
    assert len(lines) <= MOST_LINES[state]
    assert "Events:" in lines[-EVENT_LINES:]


def test_example_of_the_documentation_is_what_kubectl_prints(api: Api, api_server: Path, namespace: str) -> None:
    example = (ROOT / "docs" / "recordings" / "describe.txt").read_text()
    assert example in (ROOT / "docs" / "status.md").read_text()
    rest = iter(described(states()["analysis"], api, api_server, namespace))
    for line in example.splitlines():
        assert line == "…" or any(_matches(line, printed) for printed in rest), line


def _matches(line: str, printed: str) -> bool:
    """Whether a line of the example is this one, or with … at its end the beginning of it."""
    return printed.startswith(line.removesuffix(" …")) if line.endswith(" …") else printed == line


def described(world: World, api: Api, api_server: Path, namespace: str) -> list[str]:
    """The lines about the object with its status, and its last ten Events."""
    made = api.post(path(namespace), MANIFEST)
    assert made.ok, made.message
    name = made.body["metadata"]["name"]
    written = api.merge(path(namespace, name, "status"), {"status": world.status})
    assert written.ok, written.message
    about = {"kind": "ModelDeployment", "namespace": namespace, "name": name, "uid": made.body["metadata"]["uid"]}
    for number, event in enumerate(world.events[-10:]):
        sent: dict[str, Any] = {
            "metadata": {"name": f"{name}.{number}"},
            "involvedObject": about,
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": "slipway-operator"},
        }
        answer = api.post(f"/api/v1/namespaces/{namespace}/events", sent)
        assert answer.ok, answer.message
    shown = kubectl(api_server, "describe", "mdep", name, "--namespace", namespace)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.splitlines()


def sections(lines: list[str]) -> Counter[str]:
    """Number of lines by section: of the status by field, otherwise by the first word."""
    found: Counter[str] = Counter()
    top = part = ""
    for line in lines:
        heading = re.match(r"( *)([A-Z][A-Za-z ]*):", line)
        if heading and len(heading[1]) == 0:
            top, part = heading[2], ""
        elif heading and len(heading[1]) == 2 and top == "Status":
            part = heading[2]
        found[f"{top} {part}".strip()] += 1
    return found
