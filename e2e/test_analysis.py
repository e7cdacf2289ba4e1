"""A canary is judged while it serves: what is as good goes on by itself."""

from collections.abc import Callable

from testkit.cluster.deployment import START_S, Deployment, Json
from testkit.cluster.installation import Installation
from testkit.load.closed import Load

TEMPLATE: Json = {
    "apiVersion": "slipway.dev/v1alpha1",
    "kind": "AnalysisTemplate",
    "metadata": {"name": "answers"},
    "spec": {
        "minSamples": {"canaryRequests": 50, "warmupSeconds": 1},
        "metrics": [{"name": "errors", "event": "FirstAttemptError", "share": 1.0, "okBelow": 0.05}],
    },
}
# Of `kubectl describe` in an analysis: counters were 1,500 of 1,706.
LINES, EVENT_LINES = 200, 40
STEPS = [{"setWeight": 50}, {"analysis": {"templates": [{"templateName": "answers"}], "maxDuration": "5m"}}]
STRATEGY = {"canary": {"steps": STEPS, "scaleDownDelaySeconds": 1, "abortScaleDownDelaySeconds": 1}}


def test_a_canary_that_is_no_worse_is_promoted_by_itself(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment], load: Callable[..., Load]
) -> None:
    slipway.kube.apply(TEMPLATE, namespace)
    chat = deploy("v1", strategy=STRATEGY)
    chat.until_stable("v1")
    steady = load(chat, pause_s=0.1)
    chat.release("v2")
    chat.until("it is judged", lambda status: bool(verdict_of(status)), START_S)
    described = chat.kube.kubectl("describe", "mdep", chat.name, "--namespace", namespace).splitlines()
    print(f"kubectl describe: {len(described)} lines")
    assert len(described) <= LINES and "Events:" in described[-EVENT_LINES:]
    chat.until_stable("v2", 240)
    report = steady.stop()
    assert report.failures == ()
    chat.until_events("AnalysisRunRunning", "AnalysisRunSuccessful", "RolloutCompleted")


def verdict_of(status: Json) -> Json:
    """The last verdict of the judge on the present step."""
    return dict(((status.get("rollout") or {}).get("analysis") or {}).get("verdict") or {})
