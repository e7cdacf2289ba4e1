"""Classic models by kubectl apply: the examples answer by every API, and a canary goes from one format to another."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from testkit.cluster.deployment import Deployment, canary
from testkit.cluster.installation import Installation
from testkit.pictures import digit, encoded, png

ROWS = [[5.1, 3.5, 1.4, 0.2], [6.9, 3.1, 5.4, 2.1]]
MODELS = "file:///opt/slipway/models"


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
