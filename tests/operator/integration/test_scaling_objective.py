"""spec.autoscaling.objective on a real API server: applied a hundred times, advised without an autoscaler, acting."""

import pytest

from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import AUTOSCALERS, MODEL_DEPLOYMENTS
from testkit.until import until_async

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

OBJECTIVE = {
    "mode": "Advise",
    "forecast": {},
    "schedules": [{"name": "day", "cron": "0 8 * * 1-5", "durationSeconds": 3600, "minReplicas": 2}],
}


def manifest(namespace, mode):
    scaled = {"maxReplicas": 4, "objective": OBJECTIVE | {"mode": mode}}
    spec = {**MANIFEST["spec"], "slo": {"ttftP95": "800ms"}, "autoscaling": scaled}
    spec.pop("replicas", None)
    return MANIFEST | {"metadata": {"name": "chat", "namespace": namespace}, "spec": spec}


async def ours(cluster):
    try:
        return await cluster.client.get(AUTOSCALERS, cluster.namespace, "chat-autoscaler")
    except NotFound:
        return None


def condition(status):
    return next((item for item in status.get("conditions") or () if item["type"] == "ScalingObjective"), {})


async def test_the_same_manifest_applied_a_hundred_times_changes_nothing(cluster):
    client, wanted = cluster.client, manifest(cluster.namespace, "Advise")
    await client.apply(MODEL_DEPLOYMENTS, wanted)
    await cluster.reaches("it is stable", lambda now: now.get("phase") == "Healthy")
    assert await ours(cluster) is None, "advice has no autoscaler"
    before = await cluster.chat()
    for _ in range(100):
        await client.apply(MODEL_DEPLOYMENTS, wanted)
    after = await cluster.chat()
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["spec"] == before["spec"] and after["spec"]["replicas"] == 1
    assert condition(after["status"])["reason"] in ("Starting", "Unknown")

    await client.apply(MODEL_DEPLOYMENTS, manifest(cluster.namespace, "Act"))

    async def follows():
        live = await ours(cluster)
        return live is not None and "slipway_desired_replicas" in str(live["spec"]["metrics"])

    await until_async(follows, "our autoscaler follows the published number")
    assert (await cluster.chat())["spec"]["replicas"] == 1
