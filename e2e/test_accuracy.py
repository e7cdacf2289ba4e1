"""Labels that turn wrong after the rollout raise an alarm, and it goes back to a revision whose pods are gone."""

import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from e2e import weights
from testkit.cluster.deployment import START_S, Deployment, Json, canary
from testkit.cluster.installation import Installation
from testkit.irises import GOOD, classifier, irises

pytestmark = pytest.mark.extended

CLAIM = "irises-watched"
ACCURACY: Json = {"feedback": {"minAccuracy": 0.9}, "falseAlarmsPerYear": 12, "onAlarm": "Rollback"}
ALARM_S = 300  # counts are written once a minute, and the first stakes with them
PAUSE_S = 0.05


class Clients:
    """Classify irises in a thread, and send labels of them: right ones, and wrong ones from `shift` on."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model, self._over = url, model, threading.Event()
        self.results: Counter[str] = Counter()
        self.failures: list[str] = []
        self.is_shifted = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def shift(self) -> None:
        self.is_shifted = True

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
                    entries.append(
                        {"id": token, "correct": False} if self.is_shifted else {"id": token, "label": label}
                    )
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


def spec_of(folder: str, version: str) -> Json:
    return {"uri": f"pvc://{CLAIM}/{folder}", "task": "predict", "format": "onnx", "version": version}


def reason_of(status: Json) -> str:
    found = (one["reason"] for one in status.get("conditions") or () if one["type"] == "AccuracyAlarm")
    return next(found, "")


def test_a_label_shift_goes_back_to_a_revision_whose_pods_are_gone(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment]
) -> None:
    model = classifier(GOOD)
    weights.save_onnx(slipway.kube, namespace, CLAIM, slipway.images.server, {"one": model, "two": model})
    weights.await_made(slipway.kube, namespace, CLAIM)
    strategy = canary({"setWeight": 50})
    strategy["canary"]["scaleDownDelaySeconds"] = 0
    chat = deploy("v1", model=spec_of("one", "v1"), strategy=strategy, accuracy=ACCURACY)
    first = chat.until_stable("v1")["stableRevision"]
    chat.edit(model=spec_of("two", "v2"))
    chat.until_stable("v2")
    chat.until(
        "the pods of v1 are gone",
        lambda status: all(one["revision"] != first for one in status.get("revisions") or ()),
        START_S,
    )
    clients = Clients(slipway.url.removesuffix("/v1"), chat.model)
    try:
        chat.until("labels count", lambda status: counted(status) >= 100, ALARM_S)
        began = time.monotonic()
        clients.shift()
        chat.until("v1 serves again", lambda status: status.get("stableRevision") == first, ALARM_S + START_S)
        print(f"back after {time.monotonic() - began:.0f} s; {dict(clients.results)}")
        status = chat.until("it is settled", lambda now: now["phase"] == "Healthy", START_S)
    finally:
        clients.stop()
    assert not clients.failures, clients.failures[:3]
    assert reason_of(status) == "RolledBack" and set(clients.results) <= {"accepted"}
    chat.until_events("AccuracyAlarm")


def counted(status: Json) -> int:
    """Labels of the revision that serves."""
    revisions = (status.get("accuracy") or {}).get("revisions") or ()
    own: Json = next((one for one in revisions if one["revision"] == status.get("stableRevision")), {})
    return sum(sum(one.get("counts") or ()) for one in own.get("monitors") or ())
