"""Experiments on the command line: the list, what counts say, and which arm a unit gets."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from slipway_cli.commands.root import cli
from slipway_cli.objects import experiment
from slipway_contracts.experiments.assignment import Assignment, place, unit_key
from testkit import ROOT
from testkit.cluster.api import Api
from tests.crds.objects import path

EXAMPLE = yaml.safe_load((ROOT / "examples" / "experiment.yaml").read_text())
ASSIGNMENT = {
    "generation": 1,
    "version": 1,
    "since": "2026-11-30T00:00:00Z",
    "subject": "ModelRoute/prod/chat",
    "unitType": "Header",
    "unitHeader": "X-User-Id",
    "layer": "prod/sizes",
    "first": 0,
    "end": 40,
    "holdout": 5,
    "control": "control",
    "outcomes": ["helpful"],
    "arms": [
        {"name": "control", "weight": 50, "deployment": "prod/chat-large"},
        {"name": "small", "weight": 50, "deployment": "prod/chat-small", "revision": "v2"},
    ],
}
HELPFUL = {"name": "helpful", "units": 800, "mean": 0.5, "lower": 0.43, "upper": 0.57}
STATUS: dict[str, Any] = {
    "phase": "Running",
    "verdict": "helpful of small minus that of control is +0.01 to +0.29: it is higher",
    "assignment": ASSIGNMENT,
    "arms": [
        {"name": "control", "weight": 50, "units": 1000, "requests": 3000, "outcomes": [HELPFUL]},
        {
            "name": "small",
            "weight": 50,
            "units": 990,
            "requests": 2900,
            "elsewhere": 3,
            "outcomes": [
                HELPFUL | {"mean": 0.65, "lower": 0.58, "upper": 0.72, "difference": 0.15}
                | {"differenceLower": 0.01, "differenceUpper": 0.29},
                {"name": "correct"},
            ],
        },
    ],
    "conditions": [
        {"type": "Accepted", "status": "False", "reason": "AllocationOverlap", "message": "units are taken"},
        {"type": "SampleRatioMismatch", "status": "False", "reason": "AsExpected", "message": "as expected"},
    ],
}  # fmt: skip
GOLDEN = """\
Experiment prod/sizes about chat: Running
! Accepted is False (AllocationOverlap): units are taken
Verdict: helpful of small minus that of control is +0.01 to +0.29: it is higher
ARM       WEIGHT   UNITS   REQUESTS   ELSEWHERE   OUTCOME   RATED   MEAN     INTERVAL           DIFFERENCE
control   50 %     1000    3000       0           helpful   800     0.5000   0.4300 to 0.5700
small     50 %     990     2900       3           helpful   800     0.6500   0.5800 to 0.7200   +0.1500 (+0.0100 to +0.2900)
                                                  correct   0"""  # noqa: E501


def run(*arguments: str, kubeconfig: str = "") -> Result:
    return CliRunner().invoke(cli, arguments, env={"KUBECONFIG": kubeconfig})


def obj(**changes: Any) -> dict[str, Any]:
    status = STATUS | {"assignment": ASSIGNMENT | changes}
    return {"metadata": {"namespace": "prod", "name": "sizes"}, "spec": EXAMPLE["spec"], "status": status}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_cli.cluster.client.ClusterClient.experiment", lambda self, name: obj())


@pytest.mark.usefixtures("cluster")
def test_status_shows_arms_intervals_and_the_verdict() -> None:
    done = run("experiment", "status", "sizes")
    assert done.exit_code == 0, done.output
    assert done.stdout.rstrip() == GOLDEN
    assert json.loads(run("experiment", "status", "sizes", "-o", "json").stdout)["phase"] == "Running"


@pytest.mark.usefixtures("cluster")
def test_explain_places_a_unit_as_gateways_do() -> None:
    assignment = experiment.assignment_of(obj())
    assert isinstance(assignment, Assignment)
    seen = set()
    for n in range(60):
        done = run("experiment", "explain", "sizes", "--unit", f"u{n}", "--tenant", "team-a", "-o", "json")
        shown = json.loads(done.stdout)
        assert shown["arm"] == place("prod/sizes", assignment, unit_key("team-a", f"u{n}")).name
        assert shown["deployment"] == {"control": "prod/chat-large", "small": "prod/chat-small"}.get(shown["arm"], "")
        seen.add(shown["arm"])
    assert seen == {"", "holdout", "control", "small"}


def test_explain_says_why() -> None:
    def lines(unit: str, **changes: Any) -> str:
        from datetime import UTC, datetime

        found = experiment.explain(obj(**changes), unit, "", datetime(2026, 12, 1, tzinfo=UTC))
        return "\n".join(experiment.explained_lines(found))

    shown = [lines(f"u{n}") for n in range(60)]
    assert any("-> arm small: ModelDeployment prod/chat-small, revision v2" in one for one in shown)
    assert any("outside of the experiment: the ordinary way\n-> no arm: the ordinary way" in one for one in shown)
    assert any("the layer holds out 5 % of its units" in one for one in shown)
    assert all("with units by header X-User-Id" in one and "in layer prod/sizes it is at" in one for one in shown)
    assert "the experiment is paused" in lines("u1", paused=True)
    assert "the experiment ended at 2026-11-01" in lines("u1", endTime="2026-11-01T00:00:00Z")
    assert "the experiment begins at 2027" in lines("u1", startTime="2027-01-01T00:00:00Z")


def test_an_experiment_that_is_not_followed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = obj() | {"status": {"conditions": STATUS["conditions"]}}
    monkeypatch.setattr("slipway_cli.cluster.client.ClusterClient.experiment", lambda self, name: bare)
    done = run("experiment", "explain", "sizes", "--unit", "u")
    assert done.exit_code == 1 and "is not followed yet: Accepted is False (AllocationOverlap)" in str(done.exception)
    assert "Verdict: nothing is counted yet" in run("experiment", "status", "sizes").stdout


@pytest.mark.integration
def test_experiments_of_a_cluster_are_listed(api_server: Path, api: Api, namespace: str) -> None:
    def slipway(*arguments: str) -> Result:
        return run("-n", namespace, *arguments, kubeconfig=str(api_server))

    assert "No resources found" in slipway("experiments").stderr
    body = EXAMPLE | {"metadata": {"name": "sizes", "namespace": namespace}}
    assert api.post(path(namespace, plural="experiments"), body).ok
    conditions = [one | {"lastTransitionTime": "2026-01-01T12:00:00Z"} for one in STATUS["conditions"]]
    done = api.merge(
        path(namespace, "sizes", "status", plural="experiments"), {"status": STATUS | {"conditions": conditions}}
    )
    assert done.ok, done.message
    listed = slipway("experiments").stdout.splitlines()
    assert "VERDICT" in listed[0] and "AllocationOverlap" in listed[1] and "it is higher" in listed[1]
    shown = slipway("experiment", "status", "sizes").stdout
    assert shown.rstrip() == GOLDEN.replace("prod/sizes", f"{namespace}/sizes")
