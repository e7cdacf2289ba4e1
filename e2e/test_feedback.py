"""Labels that clients send later decide about a classifier: one that is wrong more often is rejected by them alone."""

import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest

from e2e import weights
from testkit.cluster.deployment import START_S, Deployment, Json, canary, state_of
from testkit.cluster.installation import Installation
from testkit.irises import GOOD, POOR, classifier, irises

pytestmark = pytest.mark.extended

CLAIM = "irises"
VERDICT_S = 420
PAUSE_S = 0.05
TEMPLATE: Json = {
    "apiVersion": "slipway.dev/v1alpha1",
    "kind": "AnalysisTemplate",
    "metadata": {"name": "labels"},
    "spec": {
        "minSamples": {"canaryRequests": 100, "warmupSeconds": 0},
        "metrics": [
            {"name": "errors", "event": "FirstAttemptError", "share": 0.3, "okBelow": 0.05},
            {"name": "wrong", "event": "WrongAnswer", "share": 0.7, "okBelow": 0.15},
        ],
    },
}
ANALYSIS = {"analysis": {"templates": [{"templateName": "labels"}], "maxDuration": "10m"}}


class Labels:
    """Classifies irises in a thread, and sends their labels, ten at a time."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model, self._over = url, model, threading.Event()
        self.results: Counter[str] = Counter()
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        chance, known, entries = Random(5), irises(), list[Json]()
        while not self._over.wait(PAUSE_S):
            features, label = chance.choice(known)
            try:
                token = self._post("/api/v1/predict", {"model": self._model, "input": {"features": features}})[0]
                if token:
                    entries.append({"id": token, "label": label})
                if len(entries) >= 10:
                    found = self._post("/v1/feedback", entries)[1]
                    self.results.update(one["status"] for one in found["data"])
                    entries = []
            except (OSError, ValueError) as error:
                self.failures.append(str(error))

    def _post(self, path: str, body: object) -> tuple[str, Json]:
        request = urllib.request.Request(
            self._url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.headers.get("X-Slipway-Feedback", ""), json.loads(answer.read())


@pytest.fixture
def labelled(slipway: Installation) -> Iterator[Callable[[Deployment], Labels]]:
    started: list[Labels] = []

    def start(deployment: Deployment) -> Labels:
        started.append(Labels(slipway.url.removesuffix("/v1"), deployment.model))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def spec_of(folder: str, version: str) -> Json:
    return {"uri": f"pvc://{CLAIM}/{folder}", "task": "predict", "format": "onnx", "version": version}


@pytest.mark.parametrize(("folder", "state"), [("same", "Paused"), ("poor", "Aborted")])
def test_feedback_decides_about_a_classifier_on_a_cluster(
    slipway: Installation,
    namespace: str,
    deploy: Callable[..., Deployment],
    labelled: Callable[[Deployment], Labels],
    folder: str,
    state: str,
) -> None:
    good, poor = classifier(GOOD), classifier(POOR)
    weights.save_onnx(slipway.kube, namespace, CLAIM, slipway.images.server, {"good": good, "same": good, "poor": poor})
    weights.await_made(slipway.kube, namespace, CLAIM)
    slipway.kube.apply(TEMPLATE, namespace)
    chat = deploy("v1", model=spec_of("good", "v1"), strategy=canary({"setWeight": 50}, ANALYSIS, {"pause": {}}))
    chat.until_stable("v1")
    labels = labelled(chat)
    chat.edit(model=spec_of(folder, "v2"))
    chat.until("it is judged", lambda status: bool(verdict_of(chat, status)), START_S)
    decided = chat.until(f"it is {state}", lambda status: state_of(status) == state, VERDICT_S)
    labels.stop()
    verdict = verdict_of(chat, decided)
    print(f"{folder}: {verdict['message']}; {dict(labels.results)}")
    assert verdict["outcome"] == ("Pass" if state == "Paused" else "Fail"), verdict["message"]
    assert state == "Paused" or verdict["metric"] == "wrong"
    assert not labels.failures and set(labels.results) <= {"accepted", "expired"}
    chat.until_events("AnalysisRunSuccessful" if state == "Paused" else "AnalysisRunFailed")


def verdict_of(chat: Deployment, status: Json) -> Json:
    """The last verdict of the judge on the present step, with its numbers."""
    return dict(chat.analysis(status).get("verdict") or {})
