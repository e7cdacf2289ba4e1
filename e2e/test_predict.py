"""Classic models by kubectl apply: the examples answer by every API, a canary goes from one format to another, and one
whose model cannot be loaded is rejected."""

import base64
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from e2e import weights
from testkit import ROOT
from testkit.cluster.deployment import START_S, Deployment, canary, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.irises import GOOD, POOR, classifier, irises
from testkit.pictures import digit, encoded, png

ROWS = [[5.1, 3.5, 1.4, 0.2], [6.9, 3.1, 5.4, 2.1]]
MODELS = "file:///opt/slipway/models"
PATIENTS = [[59, 2, 32.1, 101, 157, 93.2, 38, 4, 4.8598, 87], [48, 1, 21.6, 87, 183, 103.2, 70, 3, 3.8918, 69]]
DIABETES = {"uri": f"{MODELS}/diabetes-xgboost", "task": "predict", "format": "xgboost", "version": "v1"}


def send(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("format", ["onnx", "skops"])
def test_a_classic_model_answers_by_every_api(
    slipway: Installation, deploy: Callable[..., Deployment], format: str
) -> None:
    iris = deploy("v1", model={"uri": f"{MODELS}/iris-{format}", "task": "predict", "version": "v1"})
    iris.until_stable("v1")
    url, name = slipway.url.removesuffix("/v1"), iris.model
    assert send(f"{url}/v1/models/{name}:predict", {"instances": ROWS}) == {"predictions": [0, 2]}
    answer = send(f"{url}/api/v1/predict", {"model": name, "input": {"features": ROWS[0]}})
    assert answer["prediction"] == 0 and answer["model_version"] == "v1"
    with urllib.request.urlopen(f"{url}/v2/models/{name}", timeout=30) as found:
        [given] = json.loads(found.read())["inputs"]
    tensor = {"name": given["name"], "datatype": given["datatype"], "shape": [2, 4], "data": ROWS}
    outputs = send(f"{url}/v2/models/{name}/infer", {"inputs": [tensor]})["outputs"]
    assert outputs[0]["data"] == [0, 2]


def computed_by_xgboost() -> list[float]:
    """What XGBoost itself predicts for the patients, with the file of the example."""
    import numpy
    import xgboost

    booster = xgboost.Booster(model_file=ROOT / "examples" / "models" / "diabetes-xgboost" / "model.ubj")
    return [float(value) for value in booster.inplace_predict(numpy.array(PATIENTS, "f4"), validate_features=False)]


def images_of(deployment: Deployment) -> set[str]:
    """The images of all containers of its pods."""
    specs = [pod["spec"] for pod in deployment.pods()]
    return {one["image"] for spec in specs for one in [*spec.get("initContainers", ()), *spec["containers"]]}


def test_the_example_of_xgboost_computes_what_xgboost_does_in_an_image_without_torch(
    slipway: Installation, namespace: str
) -> None:
    diabetes = Deployment(slipway.kube, namespace, "diabetes")
    manifest = yaml.safe_load((ROOT / "examples" / "predict-xgboost.yaml").read_text())
    manifest["spec"]["model"]["name"] = diabetes.model  # as in test_quickstart.py
    slipway.kube.apply(manifest, namespace)
    diabetes.until("it is ready", lambda status: status.get("ready") == "1/1" and status["phase"] == "Healthy", START_S)
    assert images_of(diabetes) == {slipway.images.predict or slipway.images.server}
    url, name, expected = slipway.url.removesuffix("/v1"), diabetes.model, computed_by_xgboost()
    found = send(f"{url}/v1/models/{name}:predict", {"instances": PATIENTS})["predictions"]
    assert found == pytest.approx(expected, rel=1e-6)
    with urllib.request.urlopen(f"{url}/v2/models/{name}", timeout=30) as answer:
        [given] = json.loads(answer.read())["inputs"]
    tensor = {"name": given["name"], "datatype": "FP32", "shape": [2, 10], "data": PATIENTS}
    [output] = send(f"{url}/v2/models/{name}/infer", {"inputs": [tensor]})["outputs"]
    assert output["data"] == pytest.approx(expected, rel=1e-6)
    features = dict(zip(("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"), PATIENTS[0], strict=True))
    answer = send(f"{url}/api/v1/predict", {"model": name, "input": features})
    assert answer["prediction"] == pytest.approx(expected[0], rel=1e-6) and answer["model_version"] == "v1"


WRONG = {
    "another format": (
        {"model": {"uri": f"{MODELS}/iris-onnx", "task": "predict", "format": "xgboost", "version": "v2"}},
        "a file of the format xgboost",
    ),
    "needs torch": (
        {"model": {"uri": f"{MODELS}/digits-vit", "task": "classify", "format": "transformers", "version": "v2"}},
        "use the image slipway-server",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_canary_whose_model_cannot_be_loaded_is_rejected_with_the_reason_and_stable_goes_on(
    slipway: Installation, deploy: Callable[..., Deployment], wrong: str
) -> None:
    change, words = WRONG[wrong]
    if wrong == "needs torch":
        if not slipway.images.predict:
            pytest.skip("no image without torch is named for this cluster")
        change = change | {"engine": {"image": slipway.images.predict}}
    diabetes = deploy("v1", model=DIABETES, strategy=canary({"setWeight": 50}, {"pause": {}}))
    diabetes.until_stable("v1")
    pods = diabetes.pod_uids()
    diabetes.edit(**change, progressDeadlineSeconds=15)
    rejected = diabetes.until_state("Aborted")
    assert words in rejected["rollout"]["abort"]["message"]
    assert weights_of(rejected) == {"v1": 100} and pods <= diabetes.pod_uids()
    url = f"{slipway.url.removesuffix('/v1')}/v1/models/{diabetes.model}:predict"
    assert send(url, {"instances": PATIENTS})["predictions"] == pytest.approx(computed_by_xgboost(), rel=1e-6)


@pytest.mark.parametrize("format", ["onnx", "transformers"])
def test_an_image_classifier_answers_files_by_every_api(
    slipway: Installation, deploy: Callable[..., Deployment], format: str
) -> None:
    folder = {"onnx": "digits-onnx", "transformers": "digits-vit"}[format]
    digits = deploy("v1", model={"uri": f"{MODELS}/{folder}", "task": "classify", "format": format, "version": "v1"})
    digits.until_stable("v1")
    url, name = slipway.url.removesuffix("/v1"), digits.model
    file = encoded(digit(3))
    text = base64.b64encode(file).decode()
    answer = send(f"{url}/api/v1/predict", {"model": name, "input": {"image": text}, "top_k": 2})
    assert answer["prediction"] == "three" and [one["label"] for one in answer["top_k"]][:1] == ["three"]
    assert send(f"{url}/v1/models/{name}:predict", {"instances": [{"b64": text}] * 3}) == {"predictions": ["three"] * 3}
    request = urllib.request.Request(f"{url}/v2/models/{name}/infer", file, {"Content-Type": "image/png"})
    with urllib.request.urlopen(request, timeout=30) as found:
        [output] = json.loads(found.read())["outputs"]
    assert output["data"].index(max(output["data"])) == 3
    bomb = base64.b64encode(png(60_000, 60_000, bytes(1000))).decode()
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        send(f"{url}/api/v1/predict", {"model": name, "inputs": [{"image": text}, {"image": bomb}]})
    with refused.value as error:
        assert json.loads(error.read())["error"]["param"] == "inputs[1]"


def test_a_reranker_sorts_documents_by_their_scores(slipway: Installation, deploy: Callable[..., Deployment]) -> None:
    reranker = deploy("v1", model={"uri": f"{MODELS}/tiny-reranker", "task": "rerank", "version": "v1"})
    reranker.until_stable("v1")
    url, query, documents = slipway.url, "what is a port", ["ships load there", "it is cold", "a wine of portugal"]
    answer = send(f"{url}/rerank", {"model": reranker.model, "query": query, "documents": documents})
    scores = {one["index"]: one["relevance_score"] for one in answer["results"]}
    assert list(scores.values()) == sorted(scores.values(), reverse=True) and len(set(scores.values())) == 3
    pairs = send(f"{url}/score", {"model": reranker.model, "text_1": query, "text_2": documents})["data"]
    assert {one["index"]: one["score"] for one in pairs} == pytest.approx(scores, abs=1e-5)
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        send(f"{url}/rerank", {"model": reranker.model, "query": query, "documents": ["a", ""]})
    with refused.value as error:
        assert json.loads(error.read())["error"]["param"] == "documents[1]"


def test_a_canary_from_skops_to_onnx_is_promoted_and_a_version_pins_it(
    slipway: Installation, deploy: Callable[..., Deployment]
) -> None:
    first = {"uri": f"{MODELS}/iris-skops", "task": "predict", "version": "v1"}
    iris = deploy("v1", model=first, strategy=canary({"setWeight": 50}, {"pause": {}}))
    iris.until_stable("v1")
    iris.edit(model=first | {"uri": f"{MODELS}/iris-onnx", "version": "v2"})
    iris.until_state("Paused")
    url = f"{slipway.url.removesuffix('/v1')}/api/v1/models/{iris.model}/predict"
    body = {"inputs": [{"features": row} for row in ROWS]}
    for version in ("v1", "v2"):
        answer = send(url, body | {"params": {"version": version}})
        assert (answer["predictions"], answer["model_version"]) == ([0, 2], version)
    iris.promote()
    iris.until_stable("v2")


VERDICT_S = 300.0
LABELS = {
    "apiVersion": "slipway.dev/v1alpha1",
    "kind": "AnalysisTemplate",
    "metadata": {"name": "labels"},
    "spec": {
        "minSamples": {"canaryRequests": 100, "warmupSeconds": 0},
        "metrics": [{"name": "labels", "event": "PredictionDisagreement", "share": 1.0, "maxDisagreement": 0.1}],
    },
}
MIRRORED = canary(
    {"setCanaryScale": {"replicas": 1}},
    {"setMirrorRoute": {"percentage": 100}},
    {"analysis": {"templates": [{"templateName": "labels"}], "maxDuration": "10m"}},
    {"pause": {}},
)


@pytest.mark.extended
@pytest.mark.timeout(3 * START_S + VERDICT_S, func_only=True)
def test_a_canary_that_predicts_something_else_is_rejected_before_a_client_has_a_prediction_of_it(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment]
) -> None:
    claim = "irises"
    models = {"good": classifier(GOOD), "poor": classifier(POOR)}
    weights.save_onnx(slipway.kube, namespace, claim, slipway.images.server, models)
    weights.await_made(slipway.kube, namespace, claim)
    slipway.kube.apply(LABELS, namespace)
    model = {"uri": f"pvc://{claim}/good", "task": "predict", "format": "onnx", "version": "v1"}
    iris = deploy("v1", model=model, strategy=MIRRORED)
    iris.until_stable("v1")
    assert images_of(iris) == {slipway.images.predict or slipway.images.server}
    iris.edit(model=model | {"uri": f"pvc://{claim}/poor", "version": "v2"})
    url, limit_s, versions = f"{slipway.url.removesuffix('/v1')}/api/v1/predict", time.monotonic() + VERDICT_S, set()
    for count, (features, _) in enumerate(itertools.cycle(irises())):
        answer = send(url, {"model": iris.model, "input": {"features": features}})
        versions.add(answer["model_version"])
        if count % 20 == 0 and state_of(iris.status) in ("Aborted", "Paused"):
            break
        assert time.monotonic() < limit_s, iris.status
        time.sleep(0.05)
    rejected = iris.until_state("Aborted")
    verdict = iris.analysis(rejected)["verdict"]
    print(f"{count} requests: {verdict['message']}")
    assert (verdict["outcome"], verdict["metric"]) == ("Fail", "labels")
    assert versions == {"v1"} and weights_of(rejected) == {"v1": 100}
