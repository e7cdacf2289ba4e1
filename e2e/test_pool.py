"""A ModelPool on a real cluster: two models in the same pod, and a canary of one of them beside it."""

import json
import urllib.request
from collections.abc import Callable
from typing import Any

from testkit.cluster.deployment import Deployment, canary
from testkit.cluster.installation import Installation
from testkit.until import until

ROW = {"features": [5.1, 3.5, 1.4, 0.2]}
MODELS = "file:///opt/slipway/models"
POOL: dict[str, Any] = {
    "apiVersion": "slipway.dev/v1alpha1",
    "kind": "ModelPool",
    "metadata": {"name": "shared"},
    "spec": {"resources": {"memory": "1Gi", "storage": "1Gi"}, "limits": {"memory": "700Mi"}},
}
ENTRIES = "configmap/slipway-model-pools"
START_S = 240.0  # of the first pod, with its image
# From `kubectl apply` to a served revision. The kubelet's own period is 60 to 90 s for each of several changes.
PROMPT_S = 75.0


def predict(url: str, model: str, **params: str) -> Any:
    body = json.dumps({"inputs": [ROW], "params": params}).encode()
    request = urllib.request.Request(f"{url}/api/v1/models/{model}/predict", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def shown(slipway: Installation, namespace: str) -> str:
    return slipway.kube.kubectl("get", "modelpool", "shared", "-n", namespace, "-o", "jsonpath={.status.ready}")


def test_models_of_a_pool_share_its_pod_and_roll_out_there(
    slipway: Installation, deploy: Callable[..., Deployment], namespace: str
) -> None:
    slipway.kube.apply(POOL, namespace)
    first = {"uri": f"{MODELS}/iris-onnx", "task": "predict", "version": "v1"}
    pool = {"name": "shared"}
    until(lambda: shown(slipway, namespace), "the pool has its pod", START_S, holds=lambda text: text == "1/1")
    iris = deploy("v1", model=first, pool=pool, strategy=canary({"setWeight": 50}, {"pause": {}}))
    iris.until_stable("v1", PROMPT_S)
    other = Deployment(slipway.kube, namespace, "other")
    other.create("v1", model=first | {"uri": f"{MODELS}/iris-skops"}, pool=pool)
    other.until_stable("v1", PROMPT_S)
    url = slipway.url.removesuffix("/v1")
    for one in (iris, other):
        answer = predict(url, one.model)
        assert (answer["predictions"], answer["model_version"]) == ([0], "v1")
    pods = json.loads(slipway.kube.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
    assert [item["metadata"]["name"] for item in pods] == ["shared-pool-0"]
    assert pods[0]["metadata"]["annotations"].get("slipway.dev/pool-entries"), "its kubelet syncs it after each change"

    iris.edit(model=first | {"uri": f"{MODELS}/iris-skops", "version": "v2"})
    iris.until_state("Paused", PROMPT_S)
    for version in ("v1", "v2"):
        assert predict(url, iris.model, version=version)["model_version"] == version
    iris.promote()
    iris.until_stable("v2", PROMPT_S)
    assert shown(slipway, namespace) == "1/1"
    now = json.loads(slipway.kube.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
    assert [item["metadata"]["uid"] for item in now] == [item["metadata"]["uid"] for item in pods], "no pod restarted"

    def of_entries() -> str:
        return slipway.kube.kubectl("get", "configmap", "-n", namespace, "-o", "name")

    assert ENTRIES in of_entries()
    slipway.kube.kubectl("delete", "modelpool", "shared", "-n", namespace)
    until(of_entries, "the file of entries goes with the last pool", PROMPT_S, holds=lambda names: ENTRIES not in names)
