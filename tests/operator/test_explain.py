"""explain from files: a manifest, a replay, and invalid files."""

import json
from datetime import UTC, datetime

import pytest

from slipway_contracts.api.reading import encoded, read
from slipway_operator import explain
from slipway_operator.__main__ import main
from slipway_operator.model.cluster.observed import Gateway, Observed, PodTrouble, Snapshot, Workload
from slipway_operator.model.deployment.hooks import HookAnswer
from slipway_operator.model.inputs.pod_inputs import Engine, Model, PodInputs, Resources
from slipway_operator.planning.decided import PlanSettings

SETTINGS = PlanSettings("image", "url")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MANIFEST = """
apiVersion: v1
kind: Namespace
metadata: {name: x}
---
apiVersion: slipway.dev/v1alpha1
kind: ModelDeployment
metadata: {name: chat}
spec: {model: {uri: "file:///m"}}
"""


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "chat.yaml"
    path.write_text(MANIFEST)
    return path


def test_a_manifest_is_explained_as_if_it_were_new(manifest):
    explained = explain.from_file(manifest, SETTINGS, NOW)
    assert set(explained) == {"object", "now", "spec", "status", "observed", "plan"}
    assert [item["manifest"]["kind"] for item in explained["plan"]["create"]] == [
        "ControllerRevision",
        "Service",
        "ReplicaSet",
    ]


def test_explained_snapshot_can_be_explained_again(manifest, tmp_path):
    first = explain.to_text(explain.from_file(manifest, SETTINGS, NOW))
    again = tmp_path / "explained.json"
    again.write_text(first)
    assert explain.to_text(explain.from_file(again, SETTINGS, datetime.now(UTC))) == first


def test_everything_observed_survives_the_file(manifest, tmp_path):
    inputs = PodInputs(
        Model("hf://a/b", "chat"), Engine(env=(("A", "1"), ("B", "2"))), Resources("4", None, ("nvidia.com/gpu", 2))
    )
    observed = Observed(
        snapshots={"r1": Snapshot("r1", 1, inputs, "image", 600, 1)},
        workloads={"r1": Workload("r1", 2, 2, 1, (PodTrouble("p", "NotReady", "m"),))},
        services={"r1": "chat-r1", "r0": "chat-r0"},
        gateways=(Gateway("g", True, True, 4, {"r1": 2}),),
        hooks={"u/r1/1/0/gate/9-1": HookAnswer(False, "403 Forbidden")},
    )
    obj = explain.from_file(manifest, SETTINGS, NOW)["object"]
    printed = json.loads(explain.to_text(explain._explained(obj, observed, SETTINGS, NOW)))
    assert read(Observed, encoded(printed["observed"])) == observed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "holds no ModelDeployment"),
        ("a: [", "cannot be read"),
        ("kind: Pod", "holds no ModelDeployment"),
        ("{object: {}, now: '2026-01-01T00:00:00Z', observed: {refusal: 1}}", "observed.refusal: must be a text"),
    ],
)
def test_file_without_a_modeldeployment_is_refused_with_a_message(text, message, tmp_path, capsys):
    path = tmp_path / "other.yaml"
    path.write_text(text)
    assert main(["explain", str(path)]) == 1
    assert message in capsys.readouterr().err


def test_an_adapter_is_explained_with_the_deployment_of_its_file_and_again(tmp_path):
    adapter = {"deploymentRef": {"name": "chat"}, "model": {"uri": "https://h/a.tar"}}
    documents = (
        {"kind": "ModelAdapter", "metadata": {"name": "support"}, "spec": adapter},
        {
            "kind": "ModelDeployment",
            "metadata": {"name": "chat"},
            "spec": {"model": {"uri": "file:///m"}, "adapters": {}},
        },
    )
    file = tmp_path / "adapter.yaml"
    file.write_text("\n---\n".join(map(json.dumps, documents)))
    explained = explain.from_file(file, SETTINGS, NOW)
    made = [
        item["manifest"]["metadata"]["labels"]["slipway.dev/modeldeployment"] for item in explained["plan"]["create"]
    ]
    assert made == ["support.adapter"] * 2, "a record and an empty ReplicaSet"
    file.write_text(explain.to_text(explained))
    assert explain.from_file(file, SETTINGS, datetime.now(UTC)) == explained
