"""A server that takes images: every API has the same answer, a bad image fails alone, and hostile ones end nothing."""

import base64
import json
import re
import shutil
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest

from slipway_predict.http.message_types import ModelInferRequest, ModelInferResponse
from slipway_predict.images.pixels import pixels
from slipway_predict.images.preprocessing import read
from testkit import pictures
from tests.predict.images.conftest import DIGITS, FLAGS
from tests.server.process import ServerProcess, get, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DIGIT = 3
PNG = pictures.encoded(pictures.digit(DIGIT))
B64 = base64.b64encode(PNG).decode()
INFER = "/v2/models/m/infer"


def images(*contents: str) -> dict[str, Any]:
    tensor = {"name": "pixel_values", "datatype": "BYTES", "shape": [len(contents)], "data": list(contents)}
    return {"inputs": [tensor]}


def scores(answer: Any) -> list[list[float]]:
    [output] = answer["outputs"]
    return numpy.array(output["data"]).reshape(output["shape"]).tolist()  # type: ignore[no-any-return]


def as_tensor() -> dict[str, Any]:
    steps = read(DIGITS)
    assert steps
    found = pixels(pictures.digit(DIGIT).convert("RGB"), steps, 1 << 20)
    tensor = {"name": "pixel_values", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": found.reshape(-1).tolist()}
    return {"inputs": [tensor]}


def test_an_image_and_its_tensor_have_one_answer_by_every_way(digits: ServerProcess) -> None:
    [expected] = scores(post(digits.url + INFER, as_tensor())[2])
    assert numpy.argmax(expected) == DIGIT
    url = f"data:image/png;base64,{B64}"
    for row in scores(post(digits.url + INFER, images(B64, url))[2]):
        assert row == pytest.approx(expected, abs=1e-4)
    nested = images(B64)
    nested["inputs"][0] |= {"shape": [1, 1], "data": [[B64]]}
    assert scores(post(digits.url + INFER, nested)[2])[0] == pytest.approx(expected, abs=1e-4)
    [row] = scores(post(digits.url + INFER, PNG, {"Content-Type": "image/png"})[2])
    assert row == pytest.approx(expected, abs=1e-4)
    message = ModelInferRequest()
    message.inputs.add(name="pixel_values", datatype="BYTES", shape=[1]).contents.bytes_contents.append(PNG)
    request = urllib.request.Request(
        digits.url + INFER, message.SerializeToString(), {"Content-Type": "application/x-protobuf"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        [raw] = ModelInferResponse.FromString(answer.read()).raw_output_contents
    assert numpy.frombuffer(raw, "<f4").tolist() == pytest.approx(expected, abs=1e-4)


def test_binary_data_holds_the_files_themselves(digits: ServerProcess) -> None:
    jpeg = pictures.encoded(pictures.digit(DIGIT), "JPEG", quality=95)
    data = b"".join(len(one).to_bytes(4, "little") + one for one in (PNG, jpeg))
    tensor = {"name": "pixel_values", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    found = scores(post(digits.url + INFER, head + data, headers)[2])
    assert [int(numpy.argmax(row)) for row in found] == [DIGIT, DIGIT]


def test_labels_of_the_configuration_are_predicted_with_their_probability(digits: ServerProcess) -> None:
    label = pictures.LABELS[DIGIT]
    body = {"model": "m", "input": {"image": B64}, "top_k": 3}
    status, _, answer = post(digits.url + "/api/v1/predict", body)
    assert status == 200 and answer["prediction"] == label and 0.5 < answer["confidence"] <= 1
    best = answer["top_k"]
    assert best[0]["label"] == label and len(best) == 3
    assert best[0]["confidence"] == answer["confidence"] >= best[1]["confidence"] >= best[2]["confidence"]
    given = {"inputs": [{"image": B64}, {"b64": B64}], "params": {"top_k": 20}}
    answer = post(digits.url + "/api/v1/models/m/predict", given)[2]
    assert answer["predictions"] == [label] * 2
    assert [sum(one["confidence"] for one in row) for row in answer["top_k"]] == pytest.approx([1, 1])
    instances = [{"b64": B64}, {"pixel_values": {"b64": B64}}]
    assert post(digits.url + "/v1/models/m:predict", {"instances": instances})[2] == {"predictions": [label] * 2}


def test_metadata_shows_images_and_labels(digits: ServerProcess) -> None:
    described = json.loads(get(digits.url + "/v2/models/m")[1])
    [given], [output] = described["inputs"], described["outputs"]
    assert (given["datatype"], given["shape"]) == ("FP32", [-1, 3, 8, 8])
    assert given["parameters"]["image"] == {
        "datatype": "BYTES", "shape": [-1], "formats": ["JPEG", "PNG"], "height": 8, "width": 8,
        "max_pixels": 1_000_000, "max_images": 40,
    }  # fmt: skip
    assert output["parameters"]["labels"] == list(pictures.LABELS)


@pytest.mark.parametrize("name", list(pictures.hostile()))
def test_a_hostile_image_is_400_with_its_index_and_the_server_lives(digits: ServerProcess, name: str) -> None:
    content, reason = pictures.hostile()[name]
    text = base64.b64encode(content).decode()
    if len(text) > 8 << 20:
        pytest.skip("larger than a body")
    status, _, answer = post(digits.url + INFER, images(B64, text))
    assert status == 400 and answer["code"] == "invalid_image"
    assert re.search(rf"pixel_values\[1\].*({reason})", answer["error"]), answer
    body = {"model": "m", "inputs": [{"image": B64}, {"image": text}, {"image": text}]}
    status, _, answer = post(digits.url + "/api/v1/predict", body)
    assert (status, answer["error"]["param"]) == (400, "inputs[1]")
    assert post(digits.url + INFER, images(B64))[0] == 200
    assert digits.metric("slipway_server_engine_crashes_total") == 0


@pytest.mark.parametrize(
    "path, body, where",
    [
        ("/api/v1/predict", {"model": "m", "input": {"image": 5}}, "input.image"),
        ("/api/v1/predict", {"model": "m", "input": {"image": "*"}}, "input"),
        ("/api/v1/predict", {"model": "m", "input": {"image": "data:image/gif;base64,AAAA"}}, "input"),
        ("/api/v1/predict", {"model": "m", "input": {"image": "ä"}}, "input"),
        ("/api/v1/predict", {"model": "m", "input": {"image": B64, "b64": B64}}, "input.image"),
        ("/api/v1/predict", {"model": "m", "inputs": [{"image": B64}, {"text": "a"}]}, "inputs[1]"),
        ("/v1/models/m:predict", {"instances": [{"pixel_values": {"b64": B64, "a": 1}}]}, ".pixel_values.a"),
        ("/api/v1/predict", {"model": "m", "inputs": [{"pixel_values": {"b64": B64}, "more": 1}]}, "inputs[0].more"),
        ("/api/v1/predict", {"model": "m", "inputs": [{"b64": None}]}, "inputs[0].b64"),
        ("/api/v1/predict", {"model": "m", "inputs": [{"b64": B64}] * 41}, "pixel_values"),
        ("/api/v1/predict", {"model": "m", "input": {"image": B64}, "top_k": 0}, "top_k"),
        ("/api/v1/models/m/predict", {"inputs": [{"image": B64}], "params": {"top_k": "all"}}, "params"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_row_is_named(digits: ServerProcess, path: str, body: Any, where: str) -> None:
    status, _, answer = post(digits.url + path, body)
    assert status == 400
    if "instances" in body:
        assert where in answer["error"]
    else:
        assert answer["error"]["param"] == where


LINES = "\r\n".join(B64[at : at + 76] for at in range(0, len(B64), 76)) + "\r\n"
URL_SAFE = base64.urlsafe_b64encode(PNG).decode()


@pytest.mark.parametrize(
    "written",
    [
        *(f"data:{kind};base64,{B64}" for kind in ("image/jpg", "image/pjpeg", "image/x-png", "IMAGE/PNG", "")),
        f"data:application/octet-stream;base64,{B64}",
        f"data:image/png;charset=utf-8;name=a.png;base64,{B64}",
        f"DATA:image/png;BASE64,{B64}",
        f"data:image/png;base64,\n{LINES}",
        LINES,
        URL_SAFE,
        URL_SAFE.rstrip("="),
        B64.rstrip("="),
    ],
)
def test_images_are_taken_as_browsers_and_sdks_write_them(digits: ServerProcess, written: str) -> None:
    """reports.md, 13: image/jpg was refused, and the content decides anyway."""
    body = {"model": "m", "input": {"image": written}}
    assert post(digits.url + "/api/v1/predict", body)[2]["prediction"] == pictures.LABELS[DIGIT]


@pytest.mark.parametrize("kind", ["image/jpg", "image/pjpeg", "image/x-png", "Image/PNG"])
def test_a_body_that_is_an_image_may_have_any_name_of_its_type(digits: ServerProcess, kind: str) -> None:
    status, _, answer = post(digits.url + INFER, PNG, {"Content-Type": kind})
    assert status == 200 and int(numpy.argmax(scores(answer)[0])) == DIGIT


@pytest.mark.parametrize("shape", [[1, 2], [2], [1, 1, 1], []])
def test_a_shape_that_is_not_of_images_is_named(digits: ServerProcess, shape: list[int]) -> None:
    body = images(B64)
    body["inputs"][0] |= {"shape": shape, "data": [B64] * (2 if 2 in shape else 1)}
    status, _, answer = post(digits.url + INFER, body)
    assert (status, "pixel_values" in answer.get("error", "")) == ((200, False) if shape == [2] else (400, True))


def test_a_bad_image_among_requests_that_share_batches_fails_alone(digits: ServerProcess) -> None:
    def call(index: int) -> tuple[int, Any]:
        content = "AAAA" if index % 10 == 7 else base64.b64encode(pictures.encoded(pictures.digit(index))).decode()
        body = {"model": "m", "input": {"image": content}}
        status, _, answer = post(digits.url + "/api/v1/predict", body)
        return status, answer.get("prediction")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(call, range(60)))
    assert [index for index, (status, _) in enumerate(answers) if status != 200] == list(range(7, 60, 10))
    from sklearn.datasets import load_digits

    _, labels = load_digits(return_X_y=True)
    right = [pictures.LABELS[labels[index]] == found for index, (_, found) in enumerate(answers) if index % 10 != 7]
    assert sum(right) >= 0.9 * len(right)
    assert digits.metric("slipway_server_image_decode_seconds_count") >= 54


def test_images_wait_for_the_process_that_decodes_within_the_time_of_the_request(digits: ServerProcess) -> None:
    body = images(B64) | {"parameters": {"timeout": 200_000}}
    children = psutil.Process(digits.process.pid).children()
    for child in children:
        child.suspend()
    try:
        status, _, answer = post(digits.url + INFER, body)
        assert (status, answer["code"]) == (504, "deadline_exceeded")
    finally:
        for child in children:
            child.resume()
    assert post(digits.url + INFER, images(B64))[0] == 200


def test_without_a_preprocessor_the_same_model_takes_tensors_alone(tmp_path: Path) -> None:
    shutil.copy(DIGITS / "model.onnx", tmp_path)
    with ServerProcess(tmp_path, *FLAGS) as server:
        server.wait_ready()
        assert post(server.url + INFER, as_tensor())[0] == 200
        status, _, answer = post(server.url + INFER, images(B64))
        assert status == 400 and "the model takes FP32" in answer["error"]


def test_without_labels_the_model_is_no_classifier(tmp_path: Path) -> None:
    shutil.copytree(DIGITS, tmp_path / "model")
    (tmp_path / "model" / "config.json").unlink()
    log = tmp_path / "termination"
    server = ServerProcess(tmp_path / "model", *FLAGS, "--task", "classify", termination_log=log)
    assert server.wait() == 65 and "names its labels" in log.read_text()
    with ServerProcess(tmp_path / "model", *FLAGS) as server:
        server.wait_ready()
        answer = post(server.url + "/api/v1/predict", {"model": "m", "input": {"image": B64}})[2]
        assert numpy.argmax(answer["prediction"]) == DIGIT and "confidence" not in answer
        status, _, answer = post(server.url + "/api/v1/predict", {"model": "m", "input": {"image": B64}, "top_k": 1})
        assert (status, answer["error"]["param"]) == (400, "top_k")


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"preprocessor_config.json": {"image_processor_type": "SamImageProcessor"}}, "SamImageProcessor"),
        ({"preprocessor_config.json": {"image_processor_type": "ViTImageProcessor", "size": 9}}, "9 x 9 pixels"),
        ({"config.json": {"id2label": {"0": "cat", "1": "dog"}}}, "2 labels"),
        ({"config.json": {"id2label": {"0": "cat", "2": "dog"}}}, "id2label has no text"),
    ],
)
def test_a_model_that_contradicts_its_files_is_refused_at_the_start(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    shutil.copytree(DIGITS, tmp_path / "model")
    for name, content in change.items():
        (tmp_path / "model" / name).write_text(json.dumps(content))
    log = tmp_path / "termination"
    server = ServerProcess(tmp_path / "model", *FLAGS, termination_log=log)
    assert server.wait() == 65 and reason in log.read_text()
