"""Fields that an administrator must allow: a spec with them makes no revision, and what serves goes on."""

from dataclasses import replace

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.deployment.admin_policy import AdminPolicy, pod_policy
from tests.support.model_cluster import ModelCluster, healthy, model

READER = {"serviceAccountName": "reader"}
ALLOWED = AdminPolicy(pod_policy('[{"namespaces": ["*"], "images": ["*"], "serviceAccountNames": ["reader"]}]'))


def accepted(world: ModelCluster) -> Condition:
    return next(item for item in world.parsed().conditions if item.type == "Accepted")


def allow(world: ModelCluster, policy: AdminPolicy) -> None:
    world.settings = replace(world.settings, policy=policy)


def test_a_spec_that_is_not_allowed_makes_no_revision_and_what_serves_goes_on() -> None:
    world = healthy()
    world.edit(model=model("v2"), pod=READER)
    world.reconcile()
    status = world.parsed()
    assert (status.phase, status.reason, accepted(world).reason) == ("Degraded", "NotAllowed", "NotAllowed")
    assert status.message.startswith("spec.pod.serviceAccountName 'reader' is not allowed in namespace ")
    assert len(world.snapshots) == 1 and world.weights() == {"v1": 100}
    assert [event.reason for event in world.events].count("NotAllowed") == 1
    world.reconcile()
    assert [event.reason for event in world.events].count("NotAllowed") == 1


def test_the_rollout_begins_when_an_administrator_allows_it() -> None:
    world = healthy()
    world.edit(model=model("v2"), pod=READER)
    world.reconcile()
    allow(world, ALLOWED)
    world.run_until("Paused")
    assert accepted(world).status == "True" and world.weights()["v2"] == 10


def test_a_revision_that_exists_keeps_what_is_no_longer_allowed() -> None:
    world = healthy()
    allow(world, ALLOWED)
    world.edit(pod=READER)
    world.run_until("Paused")
    allow(world, AdminPolicy(()))
    world.reconcile()
    assert accepted(world).status == "True" and len(world.snapshots) == 2


def test_an_unknown_type_of_accelerator_has_a_reason_of_its_own() -> None:
    world = healthy()
    world.edit(resources={"accelerator": {"type": "h1000", "count": 1}})
    world.reconcile()
    assert accepted(world).reason == world.parsed().reason == "UnknownAcceleratorType"


def test_claims_that_the_cluster_does_not_serve_start_no_pod_without_devices() -> None:
    world = healthy()
    world.serves_claims = False
    world.edit(resources={"accelerator": {"resourceClaimTemplateName": "gpus", "count": 1}})
    decided = world.reconcile()
    assert accepted(world).reason == world.parsed().reason == "ResourceClaimsNotServed"
    assert decided.requeue_after_s == 30, "no event reports that the cluster was upgraded"
    assert "Kubernetes 1.34" in accepted(world).message and len(world.snapshots) == 1
    world.serves_claims = True
    world.run_until("Paused")
    assert accepted(world).status == "True"


def test_a_need_that_devices_of_a_type_do_not_have_makes_no_revision() -> None:
    world = healthy()
    world.edit(resources={"accelerator": {"type": "l4", "count": 1, "memory": "40Gi"}})
    world.reconcile()
    assert accepted(world).reason == world.parsed().reason == "AcceleratorConflict"
    assert [event.reason for event in world.events].count("AcceleratorConflict") == 1 and len(world.snapshots) == 1


def test_a_claim_that_pods_share_needs_a_cluster_with_claims_too() -> None:
    world = healthy()
    world.serves_claims = False
    world.edit(resources={"accelerator": {"resourceClaimName": "gpus", "count": 1}})
    world.reconcile()
    assert "spec.resources.accelerator.resourceClaimName is 'gpus'" in accepted(world).message
