"""Pods with shared devices, MIG devices and claims: a real API server takes what the operator renders, whole.

Run with SLIPWAY_KUBERNETES=oldest for the oldest Kubernetes, which has no claims.
"""

from typing import Any

import pytest

from slipway_operator.kube.reading.observe import RESOURCE_CLAIMS
from slipway_operator.model.inputs.accelerator_types import BUILT_IN
from testkit.cluster.api import Api
from tests.operator.manifests.test_pod_fields import template

pytestmark = pytest.mark.integration

CLAIMS = ({"resourceClaimTemplateName": "gpus"}, {"resourceClaimName": "gpus"})
VLLM = {"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"}


def dry_run(api: Api, namespace: str, **accelerator: Any) -> tuple[Any, Any]:
    """The spec of a pod as it is rendered, and as the API server would store it."""
    kind = BUILT_IN.get(accelerator.get("type", ""))
    pod = template(resources={"accelerator": {"count": 1, **accelerator}}, accelerator=kind, engine=VLLM)
    metadata = {**pod["metadata"], "name": "chat-0"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}
    path = f"/api/v1/namespaces/{namespace}/pods"
    made = api.post(f"{path}?dryRun=All&fieldValidation=Strict", body)
    assert made.ok, made.message
    return pod["spec"], made.body["spec"]


@pytest.mark.parametrize(
    "accelerator",
    [
        {"memory": "20Gi"},
        {"memory": "2Ti", "sharing": "TimeSlicing", "resource": "nvidia.com/gpu.shared"},
        {"sharing": "MPS"},
        {"type": "t4", "sharing": "TimeSlicing", "memory": "8Gi"},
        {"resource": "nvidia.com/mig-1g.10gb", "memory": "8Gi"},
        {"resource": "nvidia.com/mig-1g.5gb.me", "sharing": "TimeSlicing"},
    ],
    ids=str,
)
def test_pods_with_shared_devices_are_stored_as_they_are_rendered(
    api: Api, namespace: str, accelerator: dict[str, Any]
) -> None:
    rendered, stored = dry_run(api, namespace, **accelerator)
    assert stored.get("affinity") == rendered.get("affinity")
    [server], [written] = stored["containers"], rendered["containers"]
    assert server["resources"]["limits"] == written["resources"]["limits"]
    assert server["resources"]["requests"].items() >= written["resources"]["requests"].items()
    assert {volume["name"] for volume in stored["volumes"]} == {volume["name"] for volume in rendered["volumes"]}


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_a_claim_is_stored_where_the_operator_finds_that_claims_are_served(
    api: Api, namespace: str, claim: dict[str, Any]
) -> None:
    """An API server without them drops the field, or refuses it: then there is no such revision."""
    if not any(api.get(f"/apis/{version}").ok for version in RESOURCE_CLAIMS):
        pytest.skip("this API server has no ResourceClaims: ResourceClaimsNotServed is the condition")
    rendered, stored = dry_run(api, namespace, **claim)
    assert stored["resourceClaims"] == rendered["resourceClaims"] == [{"name": "accelerator", **claim}]
    assert stored["containers"][0]["resources"]["claims"] == [{"name": "accelerator"}]
    assert not any("/" in name for name in stored["containers"][0]["resources"].get("limits", {}))
