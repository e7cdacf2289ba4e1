"""The endpoints of a classic model over HTTP, with the process of a real server."""

import gzip
import json
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import numpy
import pytest

from slipway_predict.http.message_types import ModelInferRequest, ModelInferResponse
from slipway_predict.tensors import NUMPY, Tensor, from_bytes, to_bytes
from tests.predict import trained
from tests.predict.conftest import PREDICT
from tests.server.process import ServerProcess, get, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROW = [5.1, 3.5, 1.4, 0.2]
KINDS = [kind for kind in NUMPY if kind != "BF16"]  # which onnxruntime does not take beside texts


def example(kind: str) -> Tensor:
    if kind == "BYTES":
        items = numpy.empty(2, object)
        items[:] = ["ä".encode(), b""]
        return Tensor("x_BYTES", kind, items.reshape(1, 2))
    return Tensor(f"x_{kind}", kind, numpy.array([[0, 1]]).astype(NUMPY[kind]))


def binary_body(**more: Any) -> tuple[bytes, dict[str, str]]:
    """One row of every datatype, as bytes behind the JSON."""
    inputs, data = [], []
    for kind in KINDS:
        tensor = example(kind)
        piece = to_bytes(tensor)
        described = {"name": tensor.name, "datatype": kind, "shape": [1, 2]}
        inputs.append(described | {"parameters": {"binary_data_size": len(piece)}})
        data.append(piece)
    head = json.dumps({"id": "7", "inputs": inputs, "parameters": {"binary_data_output": True}} | more).encode()
    return b"".join([head, *data]), {"Inference-Header-Content-Length": str(len(head))}


def send(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(url, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status, dict(answer.headers), answer.read()


def test_every_datatype_comes_back_as_binary_data_also_compressed(identity: ServerProcess) -> None:
    body, headers = binary_body()
    for encoding, packed in (("", body), ("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        sent = headers | ({"Content-Encoding": encoding} if encoding else {})
        status, answered, content = send(identity.url + "/v2/models/m/infer", packed, sent)
        size = int(answered["Inference-Header-Content-Length"])
        head, at = json.loads(content[:size]), size
        assert (status, head["id"], head["model_version"]) == (200, "7", "v1")
        assert [one["datatype"] for one in head["outputs"]] == KINDS
        for one in head["outputs"]:
            end = at + one["parameters"]["binary_data_size"]
            tensor = from_bytes(one["name"], one["datatype"], one["shape"], content[at:end])
            assert tensor.array.tolist() == example(one["datatype"]).array.tolist()
            at = end
        assert at == len(content)


def test_every_datatype_comes_back_in_protobuf(identity: ServerProcess) -> None:
    message = ModelInferRequest(model_name="ignored", id="7")
    for kind in KINDS:
        message.inputs.add(name=f"x_{kind}", datatype=kind, shape=[1, 2])
        message.raw_input_contents.append(to_bytes(example(kind)))
    headers = {"Content-Type": "application/x-protobuf", "grpc-timeout": "60S"}
    url = identity.url + "/v2/models/m/infer"
    status, answered, content = send(url, message.SerializeToString(), headers)
    response = ModelInferResponse.FromString(content)
    assert (status, answered["Content-Type"], response.id) == (200, "application/x-protobuf", "7")
    assert [one.datatype for one in response.outputs] == KINDS
    for one, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        found = from_bytes(one.name, one.datatype, one.shape, raw)
        assert found.array.tolist() == example(one.datatype).array.tolist()
    del message.inputs[-1], message.raw_input_contents[-1]
    status, _, answer = post(url, message.SerializeToString(), headers)
    assert status == 400 and "'x_BYTES' is missing" in answer["error"]


def test_datatypes_without_a_spelling_in_json_say_so(identity: ServerProcess) -> None:
    body, headers = binary_body(parameters={})
    status, _, answer = post(identity.url + "/v2/models/m/infer", body, headers)
    assert status == 400 and "JSON cannot hold" in answer["error"] and "FP16" in answer["error"]
    body, headers = binary_body(parameters={}, outputs=[{"name": "y_INT64"}, {"name": "y_BOOL"}])
    status, _, answer = post(identity.url + "/v2/models/m/infer", body, headers)
    assert [one["data"] for one in answer["outputs"]] == [[0, 1], [False, True]]


@pytest.mark.parametrize(
    "change, why",
    [
        ({"parameters": {"sequence_id": 1}}, "sequence_id"),
        ({"parameters": {"priority": -1}}, "priority"),
        ({"parameters": {"timeout": "soon"}}, "timeout"),
        ({"outputs": [{"name": "z"}]}, "no output 'z'"),
        ({"outputs": [{"name": "y_INT8", "parameters": {"classification": 3}}]}, "classification"),
        ({"inputs": []}, "inputs"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_the_request_must_not_have_is_named(identity: ServerProcess, change: dict[str, Any], why: str) -> None:
    body, headers = binary_body()
    size = int(headers["Inference-Header-Content-Length"])
    head = json.dumps(json.loads(body[:size]) | change).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    status, _, answer = post(identity.url + "/v2/models/m/infer", head + body[size:], headers)
    assert status == 400 and isinstance(answer["error"], str) and why in answer["error"]


def test_sizes_that_lie_and_bombs_are_refused(identity: ServerProcess) -> None:
    url = identity.url + "/v2/models/m/infer"
    body, headers = binary_body()
    assert post(url, body[:-1], headers)[0] == 400
    assert post(url, body + b"x", headers)[0] == 400
    assert post(url, body, {"Inference-Header-Content-Length": str(len(body) + 1)})[0] == 400
    assert post(url, body, {"Inference-Header-Content-Length": "many"})[0] == 400
    assert post(url, gzip.compress(bytes(50_000_000)), {"Content-Encoding": "gzip"})[0] == 413
    assert post(url, gzip.compress(body)[:-10], headers | {"Content-Encoding": "gzip"})[0] == 400
    assert post(url, body, headers | {"Content-Encoding": "br"})[0] == 415
    assert post(url, b"x" * 300_000)[0] == 413


def test_health_metadata_index_and_versions(trees: ServerProcess) -> None:
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2/models/m/versions/v1/ready",
                 "/v2/models/m/versions/aaaaaaaaaa", "/v2/models/m/config", "/v2/models/m/stats"):  # fmt: skip
        assert get(trees.url + path)[0] == 200, path
    described = json.loads(get(trees.url + "/v2/models/m")[1])
    [given] = described["inputs"]
    assert given == {
        "name": "input",
        "datatype": "FP32",
        "shape": [-1, 4],
        "parameters": {"features": trained.FEATURES},
    }
    assert b"READY" in send(trees.url + "/v2/repository/index", b"{}", {})[2]
    for path in ("/v2/models/m/versions/v2", "/v2/models/other", "/v2/models/m/nothing"):
        status, answer = get(trees.url + path)
        assert status == 404 and isinstance(json.loads(answer)["error"], str)


def test_simple_endpoints_take_features_by_name_and_by_position(trees: ServerProcess) -> None:
    named = dict(zip(trained.FEATURES, ROW, strict=True))
    status, _, answer = post(trees.url + "/api/v1/predict", {"model": "m", "input": named})
    assert status == 200 and set(answer) == {"prediction", "confidence", "latency_ms", "model_version", "request_id"}
    assert answer["prediction"] == 0 and 0.5 < answer["confidence"] <= 1.0
    rows = [{"features": ROW}, named | {"petal_width": None}]
    body = json.dumps({"model": "m", "inputs": rows}).encode()
    with urllib.request.urlopen(urllib.request.Request(trees.url + "/api/v1/predict", data=body)) as found:
        assert [one["prediction"] for one in json.loads(found.read())] == [0, 0]
    given = {"inputs": [{"features": ROW}] * 3, "params": {"version": "v1"}}
    assert post(trees.url + "/api/v1/models/m/predict", given)[2]["predictions"] == [0, 0, 0]
    assert post(trees.url + "/api/v1/models/m/predict", given | {"params": {"version": "v2"}})[0] == 404
    assert post(trees.url + "/v1/models/m:predict", {"instances": [ROW, named]})[2] == {"predictions": [0, 0]}


@pytest.mark.parametrize(
    "given, param",
    [
        ({"input": {"sepal_length": 1}}, "input.sepal_width"),
        ({"input": {"features": [1, 2]}}, "input.features"),
        ({"inputs": [{"features": ROW}, {"features": [1, 2, 3, "x"]}]}, "inputs[1]"),
        ({"inputs": [{"features": [1, 2, 3, True]}]}, "inputs[0]"),
        ({"input": dict.fromkeys([*trained.FEATURES, "age"], 1)}, "input.age"),
        ({}, "input"),
        ({"input": {"features": ROW}, "inputs": []}, "input"),
        ({"input": {"features": ROW}, "why": 1}, "why"),
    ],
)
def test_a_wrong_feature_is_named(trees: ServerProcess, given: dict[str, Any], param: str) -> None:
    status, _, answer = post(trees.url + "/api/v1/predict", {"model": "m"} | given)
    assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize("format", ["onnx", "lightgbm", "skops"])
def test_the_other_formats_answer_as_their_library(models: Path, format: str) -> None:
    with ServerProcess(models / format, *PREDICT) as server:
        server.wait_ready()
        body = {"instances": [ROW, [6.9, 3.1, 5.4, 2.1]]}
        assert post(server.url + "/v1/models/m:predict", body)[2] == {"predictions": [0, 2]}
        no_rows_and_no_numbers(server, refused=format == "skops")


def test_requests_without_rows_and_numbers(trees: ServerProcess) -> None:
    no_rows_and_no_numbers(trees, refused=False)


def no_rows_and_no_numbers(server: ServerProcess, *, refused: bool) -> None:
    """No row gives no row, and NaN of a client is no error of the model. `refused`: the model takes no NaN."""
    url = server.url + "/v2/models/m/infer"
    [given] = json.loads(get(server.url + "/v2/models/m")[1])["inputs"]
    tensor = {"name": given["name"], "datatype": given["datatype"]}
    status, _, answer = post(url, {"inputs": [tensor | {"shape": [0, 4], "data": []}]})
    assert status == 200 and answer["outputs"]
    assert all(one["shape"][0] == 0 and one["data"] == [] for one in answer["outputs"])
    assert post(server.url + "/v1/models/m:predict", {"instances": []})[::2] == (200, {"predictions": []})
    assert post(server.url + "/api/v1/predict", {"model": "m", "inputs": []})[::2] == (200, "[]")
    status, _, answer = post(server.url + "/api/v1/models/m/predict", {"inputs": []})
    assert (status, answer["predictions"]) == (200, [])
    before = server.metric('slipway_server_requests_total{outcome="error"}')
    status, _, answer = post(url, {"inputs": [tensor | {"shape": [1, 4], "data": [5.1, None, 1.4, 0.2]}]})
    assert status == (400 if refused else 200)
    if refused:
        assert given["name"] in answer["error"] and "NaN" in answer["error"]
    status, _, answer = post(
        url, json.dumps({"inputs": [tensor | {"shape": [1, 1], "data": [1]}]}).replace("[1]}", "[NaN]}").encode()
    )
    assert status == 400
    assert server.metric('slipway_server_requests_total{outcome="error"}') == before


@pytest.mark.parametrize(
    "name, why",
    [
        ("model.pkl", "is a pickle"),
        ("model.joblib", "is a pickle"),
        ("model.pt", "TorchScript"),
        ("model.pt2", "unpickles"),
    ],
)
def test_a_pickle_is_refused_by_name(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04")
    log = tmp_path / "termination"
    server = ServerProcess(tmp_path, *PREDICT, termination_log=log)
    assert server.wait() == 65
    assert name in log.read_text() and why in log.read_text()
