"""Thresholds end to end: the operator with the rights it documents, a real API server, a real web service."""

from datetime import UTC, datetime

import pytest
from aiohttp import web

from slipway_operator.kube.resources import ANALYSIS_TEMPLATES, EVENTS, JOBS, MODEL_DEPLOYMENTS, SECRETS
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.pods import MERGE
from testkit.world.web import web_service

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

V2 = {"model": {"uri": "file:///opt/slipway/models/tiny-v2"}}
TOKEN = {"valueFrom": {"secretKeyRef": {"name": "quality", "key": "header"}}}
POD = {"restartPolicy": "Never", "containers": [{"name": "smoke", "image": "registry.example.com/smoke:1"}]}


class Quality:
    """A web service that returns the score of a revision to requests with the right token."""

    def __init__(self):
        self.score, self.requested, self.base_url = 0.9, [], ""

    async def respond(self, request):
        if request.headers.get("Authorization") != "Bearer s3cret":
            return web.Response(status=401, text="who are you?")
        self.requested.append(request.match_info["revision"])
        return web.json_response({"data": [{"score": self.score}]})


@pytest.fixture
def operator_flags():
    return [f"--allowed-private-cidrs={own_address()}/32"]


@pytest.fixture
async def quality():
    quality = Quality()
    async with web_service("GET", "/{revision}", quality.respond) as quality.base_url:
        yield quality


async def launch(cluster, strategy, **template):
    """chat serves its first revision, and gets a second, which is analysed by the template."""
    metadata = {"name": "quality", "namespace": cluster.namespace}
    kind = {"apiVersion": "slipway.dev/v1alpha1", "kind": "AnalysisTemplate"}
    await cluster.client.create(ANALYSIS_TEMPLATES, {**kind, "metadata": metadata, "spec": template})
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}}
    manifest["spec"] = manifest["spec"] | {"strategy": strategy}
    await cluster.client.create(MODEL_DEPLOYMENTS, manifest)
    first = await cluster.reaches("chat is stable", healthy)
    await cluster.edit(V2)
    return first


async def allow_secret(cluster, name):
    """The Role of docs/judge.md."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
    metadata = {"name": "slipway-analysis", "namespace": cluster.namespace}
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "slipway-analysis"}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": cluster.namespace}
    await cluster.client.request("POST", f"{rbac}/roles", [], {"metadata": metadata, "rules": [rule]})
    binding = {"metadata": metadata, "roleRef": role, "subjects": [subject]}
    await cluster.client.request("POST", f"{rbac}/rolebindings", [], binding)


def healthy(status):
    return status.get("phase") == "Healthy"


def measured(status):
    """What is known of the metrics of the present step."""
    return ((status.get("rollout") or {}).get("analysis") or {}).get("measured") or [{}]


ANALYSIS = {"templates": [{"templateName": "quality"}]}
CANARY = {"canary": {"steps": [{"setWeight": 50}, {"analysis": ANALYSIS}], "scaleDownDelaySeconds": 0}}


async def test_canary_is_rolled_back_by_a_web_metric(cluster, quality):
    secret = {"name": "quality", "namespace": cluster.namespace}
    await cluster.client.create(SECRETS, {"metadata": secret, "stringData": {"header": "Bearer s3cret"}})
    headers = [{"key": "Authorization", **TOKEN}]
    url = f"{quality.base_url}/{{{{args.new}}}}"
    score = {"name": "score", "interval": "5s", "count": 50, "successCondition": "result >= 0.8"}
    score["consecutiveErrorLimit"] = 20
    score["provider"] = {"web": {"url": url, "headers": headers, "jsonPath": "{$.data[0].score}"}}
    new = {"name": "new", "valueFrom": {"podTemplateHashValue": "Latest"}}
    first = await launch(cluster, CANARY, metrics=[score], args=[new])

    status = await cluster.reaches("the Secret is missed", lambda now: measured(now)[0].get("error", 0) > 0)
    (one,) = measured(status)[0]["measurements"]
    allowed = f"Role in namespace {cluster.namespace} with resourceNames: [quality]"
    assert (
        one["message"]
        == f"Secret 'quality', key 'header', may not be read: allow the operator to get it by a {allowed}"
    )
    assert quality.requested == []

    await allow_secret(cluster, "quality")
    status = await cluster.reaches("it is measured", lambda now: measured(now)[0].get("successful", 0) > 0)
    assert measured(status)[0]["measurements"][-1]["value"] == "0.9"
    assert set(quality.requested) == {status["canaryRevision"]}
    assert status["rollout"]["analysis"]["verdict"]["reason"] == "Measuring"
    assert "s3cret" not in str(await cluster.chat()) + cluster.operator.log()

    quality.score = 0.2
    status = await cluster.reaches("the abort", lambda now: now.get("rollout", {}).get("state") == "Aborted")
    assert status["rollout"]["abort"]["reason"] == "AnalysisFailed"
    message = (
        "analysis quality: score: 1 failed, failureLimit is 0: successCondition result >= 0.8 does not hold for 0.2"
    )
    assert status["rollout"]["abort"]["message"] == message
    assert status["stableRevision"] == first["stableRevision"]
    assert [backend["weight"] for backend in status["traffic"]["backends"] if backend["weight"]] == [100]
    events = {event["reason"] for event in await cluster.client.list(EVENTS, cluster.namespace)}
    assert {"AnalysisRunRunning", "AnalysisRunFailed", "RolloutAborted"} <= events
    _, metrics = await cluster.admin("/metrics")
    assert 'slipway_operator_measurements_total{outcome="ok",provider="web"}' in metrics


async def jobs(cluster):
    return await cluster.client.list(JOBS, cluster.namespace)


async def finish(cluster, name, succeeded):
    """What the Job controller writes when the pods have ended."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    version = await cluster.client.request("GET", "/version")
    # Required since Kubernetes 1.31, and refused before.
    first = () if int(version["minor"]) <= 30 else ("SuccessCriteriaMet" if succeeded else "FailureTarget",)
    kinds = (*first, "Complete" if succeeded else "Failed")
    conditions = [
        {"type": kind, "status": "True", "reason": "Ended", "message": "as the test wants", "lastTransitionTime": now}
        for kind in kinds
    ]
    status = {"startTime": now, "conditions": conditions, ("succeeded" if succeeded else "failed"): 1}
    status |= {"completionTime": now} if succeeded else {}
    path = JOBS.path(cluster.namespace, name, "status")
    await cluster.client.request("PATCH", path, [], {"status": status}, MERGE)


async def test_a_job_measures_across_a_kill_and_is_deleted(cluster):
    """Before a blue-green switch; then, with the next revision, a Job that fails keeps it from ever serving."""
    smoke = {"name": "smoke", "provider": {"job": {"spec": {"backoffLimit": 0, "template": {"spec": POD}}}}}
    await launch(
        cluster, {"blueGreen": {"prePromotionAnalysis": ANALYSIS, "scaleDownDelaySeconds": 0}}, metrics=[smoke]
    )
    (job,) = await until_async(lambda: jobs(cluster), "the Job is made")
    uid = (await cluster.chat())["metadata"]["uid"]
    assert [owner["uid"] for owner in job["metadata"]["ownerReferences"]] == [uid]
    assert (job["spec"]["activeDeadlineSeconds"], job["spec"]["ttlSecondsAfterFinished"]) == (3600, 3600)

    await cluster.operator.kill()
    await finish(cluster, job["metadata"]["name"], succeeded=True)
    await cluster.operator.start()
    done = await cluster.reaches("the promotion", lambda now: healthy(now) and "previousRevision" in now)
    await until_async(lambda: no_job(cluster), "the Job is deleted")
    assert any(" analysis-passed: " in line for line in done["decisions"])

    await cluster.edit({"model": {"uri": "file:///opt/slipway/models/tiny-v3"}})
    (second,) = await until_async(lambda: jobs(cluster), "the next Job is made")
    assert second["metadata"]["name"] != job["metadata"]["name"]
    await finish(cluster, second["metadata"]["name"], succeeded=False)
    status = await cluster.reaches("the abort", lambda now: now.get("rollout", {}).get("state") == "Aborted")
    failed = f"Job {second['metadata']['name']} failed: Ended: as the test wants"
    assert status["rollout"]["abort"]["message"] == f"analysis quality: smoke: 1 failed, failureLimit is 0: {failed}"
    assert status["stableRevision"] == done["stableRevision"]
    await until_async(lambda: no_job(cluster), "that Job is deleted too")


async def no_job(cluster):
    return not await jobs(cluster)
