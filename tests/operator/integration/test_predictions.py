"""Predictions end to end: a real operator, gateway and API server, a real classic model in the pod of each revision."""

import pytest

from testkit.irises import GOOD, POOR
from tests.support.classifiers import V2, classified, save_classifiers, serving

from .conftest import MANIFEST
from .test_feedback import STRATEGY

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(300)]

ERRORS = {"name": "errors", "event": "FirstAttemptError", "share": 0.5, "okBelow": 0.2}
REPORT = {"name": "drift", "event": "PredictionDrift", "dryRun": True}
BOUNDED = {"name": "drift", "event": "PredictionDrift", "share": 0.5, "maxPsi": 0.1}
LABELS = {"name": "labels", "event": "PredictionDisagreement", "share": 1.0, "maxDisagreement": 0.1}
MIRROR = {
    "canary": {
        "steps": [
            {"setCanaryScale": {"replicas": 1}},
            {"setMirrorRoute": {"percentage": 100}},
            {"analysis": {"templates": [{"templateName": "labels"}], "maxDuration": "10m"}},
            {"pause": {}},
        ],
        "scaleDownDelaySeconds": 0,
        "abortScaleDownDelaySeconds": 0,
    }
}
# The processes of a test share their cores: that they are busy may keep nothing from being mirrored here.
FLAGS = ("--auth-mode=off", "--mirror-max-cpu-percentage=100")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One whose labels are as frequent as the species, one that differs a little, a poor one, and one label for all."""
    root = tmp_path_factory.mktemp("models")
    return save_classifiers(root, good=GOOD, alike=(0, 1, 2), poor=POOR, blind=())


@pytest.mark.parametrize(
    ("canary", "metric", "state"),
    [("good", BOUNDED, "Paused"), ("blind", BOUNDED, "Aborted"), ("blind", REPORT, "Paused")],
)
async def test_predictions_decide_about_a_classifier_where_a_bound_is_given(
    client, namespace, api_server, tmp_path, models, canary, metric, state
):
    template = {"minSamples": {"canaryRequests": 300, "warmupSeconds": 0}, "metrics": [ERRORS, metric]}
    world = client, namespace, api_server, tmp_path
    async with serving(world, models / "good", models / canary) as cluster:
        first = await cluster.deploy(MANIFEST, template, STRATEGY)
        assert "predictions" not in first["traffic"]
        await cluster.edit(V2)
        async with classified(cluster.port):
            _, verdict = await cluster.decided(state)
    found = verdict["predictions"]
    assert min(found["canary"], found["stable"]) >= 40 and found.get("unread", 0) == 0
    assert "population stability index" in verdict["message"]
    if canary == "blind":
        assert found["psi"] > 0.5 and found["differs"]
    else:
        assert found["psi"] < 0.1 and not found.get("differs")
    if state == "Aborted":
        assert verdict["metric"] == "drift"


@pytest.mark.parametrize(("canary", "state"), [("alike", "Paused"), ("poor", "Aborted")])
async def test_labels_of_mirrored_requests_decide_before_a_client_has_one(
    client, namespace, api_server, tmp_path, models, canary, state
):
    template = {"minSamples": {"canaryRequests": 200, "warmupSeconds": 0}, "metrics": [LABELS]}
    world = client, namespace, api_server, tmp_path
    async with serving(world, models / "good", models / canary, FLAGS) as cluster:
        first = await cluster.deploy(MANIFEST, template, MIRROR)
        assert "mirrorRoutes" not in first["traffic"]
        await cluster.edit(V2)
        async with classified(cluster.port) as served:
            status, verdict = await cluster.decided(state)
    assert served.keys() == {cluster.first} and served.total() >= 200, "copies alone reach the new revision"
    assert "mirrored requests canary predicts something else than stable for" in verdict["message"]
    assert "could not be read" not in verdict["message"]
    if state == "Aborted":
        assert verdict["metric"] == "labels" and status["rollout"]["abort"]["reason"] == "AnalysisFailed"
