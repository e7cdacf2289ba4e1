"""The CRD of ModelAdapters: complete, closed, and every rule refuses invalid adapters (real API server)."""

from typing import Any

import pytest

from testkit.cluster.api import Answer, Api
from tests.crds.objects import path
from tests.crds.schema import ADAPTER_FILE, version, walk

PLURAL = "modeladapters"
SMALLEST: dict[str, Any] = {"deploymentRef": {"name": "chat"}, "model": {"uri": "hf://org/adapter"}}
S3 = {"uri": "s3://adapters/support/v1"}


def body(name: str = "support", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name}
    return {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelAdapter", "metadata": metadata, "spec": SMALLEST | spec}


def dry_run(api: Api, name: str = "support", **spec: Any) -> Answer:
    return api.post(path("default", plural=PLURAL), body(name, **spec), dryRun="All", fieldValidation="Strict")


def canary(*steps: Any, **fields: Any) -> dict[str, Any]:
    return {"strategy": {"canary": {"steps": list(steps), **fields}}}


TWINS = {"analysis": {"templates": [{"templateName": "llm-release"}], "twinShadow": {}}}


def test_every_field_is_described_and_nothing_is_open() -> None:
    for where, node in walk(version(ADAPTER_FILE)["schema"]["openAPIV3Schema"]):
        assert where == "metadata" or node["description"].rstrip().endswith("."), where
        assert "x-kubernetes-preserve-unknown-fields" not in node, where


@pytest.mark.integration
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"deploymentRef": {}}, "spec.deploymentRef.name"),
        ({"deploymentRef": {"name": "A"}}, "spec.deploymentRef.name"),
        ({"deploymentRef": {"name": "chat", "namespace": "other"}}, "spec.deploymentRef.namespace"),
        ({"model": {}}, "spec.model.uri"),
        ({"model": {"uri": "pvc://claim/a"}}, "is no pvc://"),
        ({"model": {"uri": "models:/a@x"}}, "is no models:/ URI"),
        ({"model": {"uri": "ftp://host/a"}}, "spec.model.uri must start with"),
        ({"model": {"uri": "https://key@host/a.tar"}}, "must not hold credentials"),
        ({"model": SMALLEST["model"] | {"objectStore": {"endpoint": "http://s:9000"}}}, "s3://, gs:// and az:// only"),
        ({"model": {"uri": "gs://bucket/a", "objectStore": {"region": "eu"}}}, "region is for s3:// only"),
        ({"model": S3 | {"objectStore": {"account": "account"}}}, "account is for az:// only"),
        ({"model": {"uri": "oci://host/a:v1", "revision": "v1"}}, "does not go with oci://"),
        ({"model": S3 | {"revision": "main"}}, "adapter is its digest"),
        ({"model": SMALLEST["model"] | {"revision": "sha256:" + "0" * 64}}, "a branch, a tag or a commit"),
        ({"model": SMALLEST["model"] | {"name": "a/b"}}, "must not contain '/'"),
        ({"model": SMALLEST["model"] | {"task": "generate"}}, "spec.model.task"),
        ({"replicas": 2}, "spec.replicas"),
        (canary({"setCanaryScale": {"replicas": 1}}), "an adapter has no pods of its own"),
        (canary({"setWeight": 5}, replicaProgressThreshold={"type": "Percent", "value": 50}), "has no pods of its own"),
        (canary(TWINS, baselinePod=True), "a twinShadow needs no baselinePod"),
        ({"strategy": {"capacity": {"maxSurge": 1}}}, "an adapter has no pods of its own"),
        ({"strategy": {"blueGreen": {"previewReplicaCount": 1}}}, "an adapter has no pods of its own"),
        ({"rollout": {"promote": "now"}}, "spec.rollout.promote is REVISION/ATTEMPT/STEP"),
        ({"progressDeadlineSeconds": 4}, "spec.progressDeadlineSeconds"),
    ],
)
def test_invalid_adapters_are_refused_by_field(api: Api, spec: dict[str, Any], message: str) -> None:
    answer = dry_run(api, **spec)
    assert answer.status in (400, 422) and message in answer.message, answer.message


@pytest.mark.integration
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {
            "model": S3
            | {"objectStore": {"endpoint": "http://s:9000", "region": "eu"}, "revision": "sha256:" + "0" * 64}
        },
        {"model": {"uri": "oci://host/a:v1", "name": "Support", "version": "v1"}},
        {"model": {"uri": "file:///opt/a"}},
        canary(TWINS, {"setWeight": 20}, {"pause": {"duration": "1m"}}),
        {"strategy": {"blueGreen": {"autoPromotionSeconds": 5}}},
        {"paused": True, "rollbackWindow": {"revisions": 1}, "analysis": {}, "revisionHistoryLimit": 0},
    ],
)
def test_valid_adapters_are_taken_as_they_are_written(api: Api, spec: dict[str, Any]) -> None:
    answer = dry_run(api, **spec)
    assert answer.ok, answer.message
    assert answer.body["spec"] == SMALLEST | spec


@pytest.mark.integration
@pytest.mark.parametrize("name", ["a" * 45, "a.b", "9a"])
def test_a_name_that_records_cannot_append_to_is_refused(api: Api, name: str) -> None:
    answer = dry_run(api, name)
    assert answer.status == 422 and "metadata.name" in answer.message


@pytest.mark.integration
def test_what_clients_are_routed_by_cannot_change(api: Api, namespace: str) -> None:
    made = api.post(path(namespace, plural=PLURAL), body())
    assert made.ok, made.message
    where = path(namespace, "support", plural=PLURAL)
    for change, message in (
        ({"deploymentRef": {"name": "other"}}, "spec.deploymentRef cannot change"),
        ({"model": {"name": "other"}}, "spec.model.name cannot change"),
    ):
        answer = api.merge(where, {"spec": change})
        assert answer.status == 422 and message in answer.message, answer.message
    assert api.merge(where, {"spec": {"model": {"uri": "hf://org/other"}}}).ok
