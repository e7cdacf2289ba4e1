"""What a request becomes, and what forbids it."""

from typing import Any

import pytest

from slipway_operator.control_api import bodies, documents, edits
from slipway_process.serving.errors import HttpError

STEPS = [{"setWeight": 20}, {"pause": {"duration": "1m"}}, {"setWeight": 100}]


def deployment(**spec: Any) -> dict[str, Any]:
    """Serves v3.0, with v3.1 under test."""
    revisions = [
        {"revision": "aaa", "role": "stable", "weight": 70, "replicas": 1, "ready": 1, "version": "v3.0"},
        {"revision": "bbb", "role": "canary", "weight": 30, "replicas": 1, "ready": 1, "version": "v3.1"},
        {"revision": "aaa-baseline", "role": "baseline", "weight": 0, "replicas": 1, "ready": 1, "version": "v3.0"},
    ]
    status = {"stableRevision": "aaa", "canaryRevision": "bbb", "weight": 30, "revisions": revisions}
    status["observedGeneration"] = 2
    metadata = {"name": "chat", "namespace": "team", "resourceVersion": "7", "generation": 2}
    return {"metadata": metadata, "spec": {"model": {"uri": "hf://a/b", "version": "v3.1"}, **spec}, "status": status}


def owned(obj: dict[str, Any], manager: str, operation: str, *path: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in reversed(("spec", *path)):
        fields = {f"f:{name}": fields}
    obj["metadata"]["managedFields"] = [{"manager": manager, "operation": operation, "fieldsV1": fields}]
    return obj


def refusal(call: Any) -> HttpError:
    with pytest.raises(HttpError) as caught:
        call()
    return caught.value


def test_the_split_names_versions() -> None:
    obj = deployment()
    assert documents.traffic(obj) == {"v3.0": 70, "v3.1": 30}
    change, percent = edits.traffic_patch({"v3.0": 50, "v3.1": 50}, obj)
    assert percent == 50
    assert change == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"strategy": {"canary": {"trafficPercent": 50}}},
    }
    assert edits.traffic_patch({"v3.0": 100}, obj)[1] == 0
    assert edits.traffic_patch({"v3.1": 100}, obj)[1] == 100


def test_two_revisions_of_one_version_are_named_by_their_hash() -> None:
    obj = deployment()
    obj["status"]["revisions"][1]["version"] = "v3.0"
    assert documents.versions(obj) == {"aaa": "aaa", "bbb": "bbb"}


def test_a_split_that_is_there_already_changes_nothing() -> None:
    obj = deployment(strategy={"canary": {"trafficPercent": 30}})
    assert edits.traffic_patch({"v3.0": 70, "v3.1": 30}, obj) == (None, 30)


def test_a_split_is_not_given_to_a_version_that_came_meanwhile() -> None:
    obj = deployment()
    obj["metadata"]["generation"] = 3  # the spec has v3.2, and the status does not yet
    error = refusal(lambda: edits.traffic_patch({"v3.0": 50, "v3.1": 50}, obj))
    assert (error.status, error.code) == (409, "conflict")
    assert edits.traffic_patch({"v3.0": 100}, obj)[1] == 0  # away from what is under test: whatever that is


def test_unknown_versions_are_refused_by_name() -> None:
    error = refusal(lambda: edits.traffic_patch({"v2.0": 50, "v3.1": 50}, deployment()))
    assert (error.status, error.param) == (404, "v2.0")
    assert "v3.0, v3.1" in str(error)


def test_steps_decide_and_are_named() -> None:
    obj = deployment(strategy={"canary": {"steps": STEPS}})
    for call in (
        lambda: edits.traffic_patch({"v3.0": 50, "v3.1": 50}, obj),
        lambda: edits.patch(bodies.DeploymentBody("chat", traffic_percent=50), obj),
    ):
        error = refusal(call)
        assert (error.status, error.code) == (409, "steps_conflict")
        assert "setWeight 20, pause, setWeight 100" in str(error)
    blue_green = deployment(strategy={"blueGreen": {}})
    blue_green["spec"]["strategy"]["blueGreen"] = {"autoPromotionEnabled": False}
    assert refusal(lambda: edits.traffic_patch({"v3.1": 100}, blue_green)).code == "strategy_conflict"


@pytest.mark.parametrize(
    ("manager", "operation", "refused"),
    [
        ("argocd-controller", "Update", True),
        ("kustomize-controller", "Apply", True),
        ("anything", "Apply", True),
        ("kubectl-client-side-apply", "Update", True),
        ("kubectl-edit", "Update", False),
        ("slipway", "Update", False),
        (edits.FIELD_MANAGER, "Update", False),
    ],
)
def test_a_field_of_an_applied_manifest_is_not_changed(manager: str, operation: str, refused: bool) -> None:
    obj = owned(deployment(strategy={"canary": {"trafficPercent": 30}}), manager, operation, *edits._TRAFFIC)
    if not refused:
        assert edits.traffic_patch({"v3.0": 50, "v3.1": 50}, obj)[1] == 50
        return
    error = refusal(lambda: edits.traffic_patch({"v3.0": 50, "v3.1": 50}, obj))
    assert (error.status, error.code, error.param) == (409, "field_owned", "traffic_percent")
    assert manager in str(error)


def test_fields_that_are_left_out_stay() -> None:
    body = bodies.deployment(b'{"model_name": "chat", "resources": {"replicas": 3}}')
    change = edits.patch(body, deployment())
    assert change is not None and change["spec"] == {"replicas": 3}
    assert edits.patch(bodies.deployment(b'{"model_name": "chat", "version": "v3.1"}'), deployment()) is None
    gone = edits.patch(
        bodies.deployment(b'{"model_name": "chat", "resources": {"gpu": 0}}'),
        deployment(resources={"accelerator": {"count": 2}}),
    )
    assert gone is not None and gone["spec"] == {"resources": {"accelerator": None}}


def test_a_version_needs_its_uri() -> None:
    error = refusal(lambda: edits.patch(bodies.DeploymentBody("chat", version="v3.2"), deployment()))
    assert (error.status, error.param) == (400, "uri")
    error = refusal(lambda: edits.manifest(bodies.DeploymentBody("new"), "team"))
    assert (error.status, error.param) == (400, "uri")


def test_a_new_deployment() -> None:
    body = bodies.deployment(
        b'{"model_name": "new", "version": "v1", "uri": "hf://a/b", "traffic_percent": 10,'
        b' "resources": {"gpu": 1, "replicas": 2}}'
    )
    assert edits.manifest(body, "team")["spec"] == {
        "model": {"version": "v1", "uri": "hf://a/b"},
        "replicas": 2,
        "strategy": {"canary": {"trafficPercent": 10}},
        "resources": {"accelerator": {"count": 1}},
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
        (b"[" * 5000, None),
        (b"{}", "model_name"),
        (b'{"model_name": "A B"}', "model_name"),
        (b'{"model_name": "chat\\n"}', "model_name"),
        (b'{"model_name": "a", "traffic": 1}', "traffic"),
        (b'{"model_name": "a", "traffic_percent": 101}', "traffic_percent"),
        (b'{"model_name": "a", "resources": {"gpu": "1"}}', "resources.gpu"),
        (b'{"model_name": "a", "resources": {"replicas": -1}}', "resources.replicas"),
        (b'{"model_name": "a", "resources": {"tpu": 1}}', "resources.tpu"),
    ],
)
def test_bodies_are_refused_by_the_name_of_the_field(body: bytes, param: str | None) -> None:
    error = refusal(lambda: bodies.deployment(body))
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize("body", [b"{}", b'{"a": 1}', b'{"a": 1, "b": 1, "c": 98}', b'{"a": 200, "b": -100}', b'"a"'])
def test_splits_are_two_percentages_of_100(body: bytes) -> None:
    assert refusal(lambda: bodies.split(body)).status == 400
