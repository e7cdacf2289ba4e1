"""The cost of predictions end to end: a real operator and gateway, a real classic model in the pod of each revision."""

import pytest

from testkit.irises import GOOD
from tests.support.classifiers import V2, classified, save_classifiers, serving

from .conftest import MANIFEST
from .test_feedback import STRATEGY

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(420)]

# Two minutes reject: the way from counts and prices to the verdict is tested, not how sure it is.
TEMPLATE = {
    "falseRollbackRate": 0.5,
    "minSamples": {"canaryRequests": 40, "warmupSeconds": 0},
    "metrics": [
        {"name": "errors", "event": "FirstAttemptError", "share": 0.05, "okBelow": 0.2},
        {"name": "cost", "event": "CostIncrease", "share": 0.95, "maxCostIncrease": 0.1},
    ],
}
SMALL, LARGE = {"resources": {"cpu": 1}}, {"resources": {"cpu": 4}}


def cost_of(status):
    return ((status.get("rollout") or {}).get("analysis") or {}).get("cost") or {}


async def test_a_canary_whose_predictions_cost_four_times_as_much_is_rejected(client, namespace, api_server, tmp_path):
    models = save_classifiers(tmp_path, good=GOOD)
    prices = ("--prices=cpu=0.5,memory=0.01",)
    world = client, namespace, api_server, tmp_path
    manifest = {**MANIFEST, "spec": MANIFEST["spec"] | SMALL}
    async with serving(world, models / "good", models / "good", operator_flags=prices) as cluster:
        await cluster.deploy(manifest, TEMPLATE, STRATEGY)
        await cluster.edit(V2 | LARGE)
        async with classified(cluster.port):
            await cluster.reaches("it is warm", lambda now: cost_of(now))
            await cluster.reaches("a minute is compared", lambda now: cost_of(now).get("minutes"))
            _, verdict = await cluster.decided("Aborted")
    cost = verdict["cost"]
    assert verdict["metric"] == "cost" and cost["unit"] == "Predictions" and cost["dearer"] == cost["minutes"] == 2
    assert cost["canary"]["price"] > 3 * cost["stable"]["price"] > 0
    assert 2 < cost["low"] <= cost["high"] < 8
    assert "at equal load predictions cost" in verdict["message"]
