"""The CRD of ModelPools: complete, closed, and every rule refuses invalid pools (real API server)."""

from typing import Any

import pytest

from testkit.cluster.api import Answer, Api
from tests.crds.objects import path
from tests.crds.schema import POOL_FILE, version, walk


def dry_run(api: Api, spec: dict[str, Any], name: str = "shared") -> Answer:
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelPool", "metadata": {"name": name}, "spec": spec}
    return api.post(path("default", plural="modelpools"), body, dryRun="All", fieldValidation="Strict")


def test_every_field_is_described_and_nothing_is_open() -> None:
    for where, node in walk(version(POOL_FILE)["schema"]["openAPIV3Schema"]):
        assert where == "metadata" or node["description"].rstrip().endswith("."), where
        assert "x-kubernetes-preserve-unknown-fields" not in node, where


@pytest.mark.integration
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"replicas": -1}, "spec.replicas"),
        ({"image": ""}, "spec.image"),
        ({"limits": {"memory": "much"}}, "spec.limits.memory must be a positive quantity"),
        ({"limits": {"maxLoaded": 0}}, "spec.limits.maxLoaded"),
        ({"limits": {"parallelLoads": 65}}, "spec.limits.parallelLoads"),
        ({"limits": {"unknown": 1}}, "spec.limits.unknown"),
        ({"secretRef": {"name": "A"}}, "spec.secretRef.name"),
        ({"resources": {"accelerator": {"count": 1}}}, "models of a pool use CPUs"),
        ({"resources": {"sharedMemory": "1Gi"}}, "models of a pool use CPUs"),
        ({"resources": {"cpu": 0}}, "spec.resources.cpu"),
        ({"drainTimeoutSeconds": 0}, "spec.drainTimeoutSeconds"),
        ({"batching": {"maxBatchSize": 0}}, "spec.batching.maxBatchSize"),
        ({"placement": {"tolerations": [{"key": "node.kubernetes.io/a"}]}}, "node.kubernetes.io are not tolerated"),
    ],
)
def test_invalid_pools_are_refused_by_field(api: Api, spec: dict[str, Any], field: str) -> None:
    answer = dry_run(api, spec)
    assert answer.status in (400, 422) and field in answer.message, answer.message


@pytest.mark.integration
def test_a_pool_needs_no_field_and_may_have_all(api: Api) -> None:
    assert dry_run(api, {}).ok
    limits = {"memory": "4Gi", "maxLoaded": 8, "minResidencySeconds": 0, "loadTimeoutSeconds": 5}
    limits |= {"maxLoadSeconds": 60, "parallelLoads": 1, "maxWaitingLoads": 8}
    answer = dry_run(
        api,
        {
            "replicas": 0,
            "image": "registry.example.com/slipway-server:v1",
            "imagePullSecrets": [{"name": "pulls"}],
            "resources": {"cpu": 2, "memory": "6Gi", "storage": "10Gi"},
            "placement": {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "a"}]},
            "secretRef": {"name": "keys"},
            "limits": limits,
            "batching": {"maxBatchSize": 8},
            "drainTimeoutSeconds": 60,
        },
    )
    assert answer.ok, answer.message


@pytest.mark.integration
@pytest.mark.parametrize("name", ["a" * 41, "a.b", "9a"])
def test_a_name_that_pods_cannot_append_to_is_refused(api: Api, name: str) -> None:
    answer = dry_run(api, {}, name)
    assert answer.status == 422 and "metadata.name of a ModelPool has at most 40 characters" in answer.message
