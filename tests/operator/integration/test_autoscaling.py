"""`spec.autoscaling` with the operator as a process: by its documented rights, and woken by autoscalers alone."""

import pytest

from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import AUTOSCALERS, MODEL_DEPLOYMENTS
from testkit.until import until_async

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

SCALED = {"maxReplicas": 4, "metrics": [{"type": "QueueDepth", "target": "4"}, {"type": "TTFT", "target": "0.5"}]}
TARGET = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "name": "chat"}


@pytest.fixture
async def cluster(cluster):
    """With a ModelDeployment that autoscales."""
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}}
    spec = manifest["spec"] | {"autoscaling": SCALED}
    await cluster.client.create(MODEL_DEPLOYMENTS, manifest | {"spec": spec})
    return cluster


async def ours(cluster):
    try:
        return await cluster.client.get(AUTOSCALERS, cluster.namespace, "chat-autoscaler")
    except NotFound:
        return None


async def has_ours(cluster, most):
    live = await ours(cluster)
    return live is not None and live["spec"]["maxReplicas"] == most


def autoscaling(status):
    return next((item for item in status.get("conditions") or () if item["type"] == "Autoscaling"), {})


def reads(reason):
    return lambda status: autoscaling(status).get("reason") == reason


async def test_autoscaler_is_created_corrected_yields_to_a_rival_and_goes_with_the_field(cluster):
    client, namespace = cluster.client, cluster.namespace
    await until_async(lambda: has_ours(cluster, 4), "our autoscaler is there")
    first = await ours(cluster)
    assert first["metadata"]["ownerReferences"][0]["uid"] == (await cluster.chat())["metadata"]["uid"]
    await cluster.reaches("it was not looked at", reads("Starting"))
    status = await cluster.reaches("chat is stable", lambda now: now.get("phase") == "Healthy")
    assert status["replicas"] == 1
    assert (
        status["selector"] == f"slipway.dev/modeldeployment=chat,slipway.dev/revision in ({status['stableRevision']})"
    )

    await client.patch(AUTOSCALERS, namespace, "chat-autoscaler", {"spec": {"maxReplicas": 99}})
    await until_async(lambda: has_ours(cluster, 4), "an edit by hand is corrected")

    foreign = {
        "metadata": {"name": "theirs", "namespace": namespace},
        "spec": {"scaleTargetRef": TARGET, "maxReplicas": 2},
    }
    made = await client.create(AUTOSCALERS, foreign)
    status = await cluster.reaches("two scalers", reads("TwoScalers"))
    assert "HorizontalPodAutoscaler theirs and spec.autoscaling would fight" in autoscaling(status)["message"]
    await until_async(lambda: is_gone(cluster), "ours steps back")

    await client.delete(AUTOSCALERS, namespace, "theirs", made["metadata"]["uid"])
    await until_async(lambda: has_ours(cluster, 4), "ours comes again")

    conditions = [condition("AbleToScale", "True"), condition("ScalingActive", "False", "no fresh value")]
    reported = {"desiredReplicas": 1, "currentReplicas": 1, "conditions": conditions}
    live = await ours(cluster)
    await client.put_status(AUTOSCALERS, {**live, "status": reported})
    status = await cluster.reaches("the controller's words", reads("FailedGetObjectMetric"))
    assert autoscaling(status)["message"].endswith("no fresh value")

    await cluster.edit({"autoscaling": None})
    await until_async(lambda: is_gone(cluster), "it goes with the field")
    await cluster.reaches("the condition is gone", lambda now: not autoscaling(now))


def condition(kind, status, message=""):
    reason = "FailedGetObjectMetric" if status == "False" else "Fine"
    moment = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": moment}


async def is_gone(cluster):
    return await ours(cluster) is None


async def test_replicas_in_the_users_own_manifest_are_named(cluster):
    await until_async(lambda: has_ours(cluster, 4), "our autoscaler is there")
    chat = await cluster.chat()
    applied = {"apiVersion": chat["apiVersion"], "kind": chat["kind"], "spec": {**MANIFEST["spec"], "replicas": 3}}
    applied["metadata"] = {"name": "chat", "namespace": cluster.namespace}
    path = MODEL_DEPLOYMENTS.path(cluster.namespace, "chat")
    query = [("fieldManager", "argocd-controller"), ("force", "true")]
    await cluster.client.request("PATCH", path, query, applied, "application/apply-patch+yaml")
    status = await cluster.reaches(
        "the condition names the field manager", lambda now: "argocd-controller" in autoscaling(now).get("message", "")
    )
    assert "remove it there, or each apply undoes what was scaled" in autoscaling(status)["message"]
