"""Image classifiers in a pool, over HTTP: each with its own preprocessing and decoders, which end with the model."""

import base64
import json
import shutil
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from testkit import ROOT, pictures
from testkit.until import until
from tests.predict.pool.running import write
from tests.server.process import ServerProcess, get, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DIGIT = 3
PNG = base64.b64encode(pictures.encoded(pictures.digit(DIGIT))).decode()
KINDS = {"onnx": "digits-onnx", "transformers": "digits-vit"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A classifier of each format, as the operator writes entries: the revision is the version."""
    root, entries = tmp_path_factory.mktemp("pool"), list[dict[str, Any]]()
    for number, (kind, folder) in enumerate(KINDS.items()):
        shutil.copytree(ROOT / "examples" / "models" / folder, root / f"r{number}")
        entry = {"name": f"digits/{kind}", "version": f"r{number}", "path": f"r{number}"}
        entries.append(entry | {"task": "classify", "format": kind, "shown_version": "7"})
    write(root, *entries)
    flags = (
        "--task",
        "predict",
        "--pool-config",
        str(root / "pool.json"),
        "--max-image-pixels",
        "1000000",
        "--pool-load-timeout",
        "120",
    )
    with ServerProcess(root, *flags) as process:
        yield process.wait_ready()


@pytest.mark.parametrize(("kind", "revision"), [("onnx", "r0"), ("transformers", "r1")])
def test_a_base64_png_is_classified_by_every_api_and_at_the_path_of_its_revision(
    server: ServerProcess, kind: str, revision: str
) -> None:
    name, label = f"digits/{kind}", pictures.LABELS[DIGIT]
    for origin in (server.url, f"{server.url}/revisions/{revision}"):
        body = {"model": name, "input": {"image": PNG}, "top_k": 3}
        status, _, answer = post(f"{origin}/api/v1/predict", body)
        assert (status, answer["prediction"], answer["model_version"]) == (200, label, "7"), answer
        assert answer["top_k"][0]["label"] == label and len(answer["top_k"]) == 3
    status, _, answer = post(f"{server.url}/v1/models/{name}:predict", {"instances": [{"b64": PNG}]})
    assert (status, answer) == (200, {"predictions": [label]})
    described = json.loads(get(f"{server.url}/v2/models/{name}")[1])
    [tensor] = described["inputs"]
    assert tensor["parameters"]["image"]["formats"] == ["JPEG", "PNG"]
    assert described["outputs"][0]["parameters"]["labels"] == list(pictures.LABELS)
    given = {"name": tensor["name"], "datatype": "BYTES", "shape": [1], "data": [PNG]}
    status, _, answer = post(f"{server.url}/v2/models/{name}/infer", {"inputs": [given]})
    scores = answer["outputs"][0]["data"]
    assert status == 200 and scores.index(max(scores)) == DIGIT


def test_a_bad_image_is_refused_by_its_field_and_another_one_is_answered(server: ServerProcess) -> None:
    url = f"{server.url}/api/v1/models/digits/onnx/predict"
    for bad in ("", "AAAA", base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 64).decode(), "%%%", 5, None, []):
        status, _, answer = post(url, {"inputs": [{"image": PNG}, {"image": bad}]})
        assert status == 400 and answer["error"]["param"].startswith("inputs[1]"), (bad, answer)
    for content, _ in pictures.hostile().values():
        status, _, answer = post(url, {"inputs": [{"image": base64.b64encode(content).decode()}]})
        assert status == 400, answer
    assert post(url, {"inputs": [{"image": PNG}]})[2]["predictions"] == [pictures.LABELS[DIGIT]]


def test_decoders_end_with_their_model_and_start_again_with_it(server: ServerProcess) -> None:
    pool = psutil.Process(server.process.pid)
    url = f"{server.url}/api/v1/models/digits/onnx/predict"
    assert post(url, {"inputs": [{"image": PNG}]})[0] == 200
    assert len(pool.children()) >= 2, "the model and a decoder"
    for kind in KINDS:
        assert post(f"{server.url}/v2/repository/models/digits/{kind}/unload", b"")[0] == 200
    until(lambda: pool.children() == [], "no process is left", 30)
    status, _, answer = post(url, {"inputs": [{"image": PNG}]})
    assert (status, answer["predictions"]) == (200, [pictures.LABELS[DIGIT]])
