"""A canary is judged while it serves: what is as good goes on by itself, what fails is taken back by itself."""

from collections.abc import Callable
from contextlib import suppress

from e2e.deployment import START_S, Deployment, Json, state_of, weights_of
from e2e.installation import Installation
from examples.demo.kube import KubeError
from examples.demo.load import Load

TEMPLATE: Json = {
    "apiVersion": "slipway.dev/v1alpha1",
    "kind": "AnalysisTemplate",
    "metadata": {"name": "answers"},
    "spec": {
        "minSamples": {"canaryRequests": 50, "warmupSeconds": 1},
        "metrics": [{"name": "errors", "event": "FirstAttemptError", "share": 1.0, "okBelow": 0.05}],
    },
}
STEPS = [{"setWeight": 50}, {"analysis": {"templates": [{"templateName": "answers"}], "maxDuration": "5m"}}]
STRATEGY = {"canary": {"steps": STEPS, "scaleDownDelaySeconds": 1, "abortScaleDownDelaySeconds": 1}}
KILL_THE_ENGINE = (
    "import os, signal\n"
    "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
    "    if b'engine.process' in open(f'/proc/{pid}/cmdline', 'rb').read(): os.kill(int(pid), signal.SIGKILL)\n"
)


def test_a_canary_that_is_no_worse_is_promoted_by_itself(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment], load: Callable[..., Load]
) -> None:
    slipway.kube.apply(TEMPLATE, namespace)
    chat = deploy("v1", strategy=STRATEGY)
    chat.until_stable("v1")
    steady = load(chat, pause_s=0.1)
    chat.release("v2")
    chat.until("it is judged", lambda status: bool(verdict_of(status)), START_S)
    chat.until_stable("v2", 240)
    report = steady.stop()
    assert report.failures == ()
    assert {"AnalysisRunRunning", "AnalysisRunSuccessful", "RolloutCompleted"} <= chat.event_reasons()


def test_a_canary_that_fails_is_taken_back_by_itself(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment], load: Callable[..., Load]
) -> None:
    slipway.kube.apply(TEMPLATE, namespace)
    chat = deploy("v1", strategy=STRATEGY)
    stable = chat.until_stable("v1")["stableRevision"]
    steady = load(chat, pause_s=0.0, max_tokens=(100, 200))
    chat.release("v2")
    judged = chat.until("it is judged", lambda status: state_of(status) == "Analyzing", START_S)

    def rejected(status: Json) -> bool:
        if state_of(status) == "Analyzing":
            kill_engines(chat, judged["canaryRevision"])
        return state_of(status) == "Aborted"

    aborted = chat.until("it is rejected", rejected, 240)
    abort = aborted["rollout"]["abort"]
    assert abort["reason"] == "AnalysisFailed"
    assert "errors" in abort["message"] or "CanaryCutOff" in abort["message"] or "PodCrashLoop" in abort["message"]
    assert (aborted["stableRevision"], weights_of(aborted)) == (stable, {"v1": 100})
    steady.stop()  # its only pod died again and again: some of its streams could not be saved
    assert "AnalysisRunFailed" in chat.event_reasons()


def verdict_of(status: Json) -> Json:
    """What the judge last said of the present step."""
    return dict(((status.get("rollout") or {}).get("analysis") or {}).get("verdict") or {})


def kill_engines(chat: Deployment, revision: str) -> None:
    for pod in chat.pods(revision):
        with suppress(KubeError):  # it may just be starting again
            arguments = ("exec", pod["metadata"]["name"], "-n", chat.namespace, "-c", "server", "--")
            chat.kube.kubectl(*arguments, "python3", "-c", KILL_THE_ENGINE)
