"""Image classifiers of Hugging Face from safetensors: answers of transformers itself; what is not whole is refused."""

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from slipway_fetcher import fetching as fetcher
from slipway_fetcher import folder
from slipway_predict.formats import ModelError, transformers_model
from slipway_predict.images.decoding import decode
from slipway_predict.images.pixels import pixels
from slipway_predict.images.preprocessing import read
from slipway_predict.tensors import Tensor
from slipway_process.model_folder import classic as model_file
from slipway_process.model_folder.checkpoint import CheckpointError
from testkit import pictures
from tests.fetcher.site import LIMIT
from tests.predict.images import classifiers
from tests.predict.images.conftest import FLAGS
from tests.server.process import ServerProcess, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FILES = [pictures.encoded(pictures.noise(40 + 9 * n, 70, n), kind) for n, kind in enumerate(("PNG", "JPEG", "PNG"))]


def of_transformers(folder: Path) -> Any:
    """Logits of the files, by the image processor and the model of transformers."""
    import torch
    from transformers import AutoImageProcessor, AutoModelForImageClassification
    from transformers.image_utils import load_image

    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    given = [load_image(Image.open(io.BytesIO(file))) for file in FILES]
    with torch.inference_mode():
        return model(**processor(images=given, return_tensors="pt")).logits.numpy()


@pytest.mark.parametrize("make", [classifiers.vit, classifiers.resnet])
def test_logits_are_those_of_transformers(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    folder = make(tmp_path)
    model, steps = transformers_model.load(model_file.find(folder, "transformers").path, 1), read(folder)
    assert steps and model.description.labels == list(classifiers.LABELS.values())
    rows = numpy.stack([pixels(decode(file, 1 << 20), steps, 1 << 20) for file in FILES])
    [found] = model.run([Tensor("pixel_values", "FP32", rows)], ["logits"])
    assert numpy.allclose(found.array, of_transformers(folder), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifiers.vit(tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def served(vit: Path) -> Iterator[ServerProcess]:
    with ServerProcess(vit, *FLAGS, "--task", "classify", "--format", "transformers") as server:
        yield server.wait_ready()


def test_a_server_answers_with_labels_from_an_isolated_process(vit: Path, served: ServerProcess) -> None:
    expected = of_transformers(vit)
    rows = [{"image": base64.b64encode(file).decode()} for file in FILES]
    answer = post(served.url + "/api/v1/models/m/predict", {"inputs": rows, "params": {"top_k": 3}})[2]
    labels = list(classifiers.LABELS.values())
    assert answer["predictions"] == [labels[index] for index in expected.argmax(axis=1)]
    likely = numpy.exp(expected) / numpy.exp(expected).sum(axis=1, keepdims=True)
    for row, top in zip(likely, answer["top_k"], strict=True):
        shown = {one["label"]: one["confidence"] for one in top}
        assert shown == pytest.approx(dict(zip(labels, row.tolist(), strict=True)), abs=1e-3)
    status, _, answer = post(served.url + "/api/v1/models/m/predict", {"inputs": [rows[0], {"image": "AAAA"}]})
    assert (status, answer["error"]["param"]) == (400, "inputs[1]")


def test_independent_labels_have_probabilities_of_their_own(tmp_path: Path) -> None:
    classifiers.vit(tmp_path, problem_type="multi_label_classification")
    assert transformers_model.load(tmp_path / "config.json", 1).description.scores == "independent logits"


@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "no preprocessor_config.json"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "pickled weights"),
        (lambda folder: classifiers.edit(folder / "config.json", architectures=["ViTModel"]), "no image classifier"),
        (lambda folder: classifiers.edit(folder / "config.json", auto_map={"AutoModel": "m.M"}), "code of its own"),
    ],
)
def test_a_folder_that_is_no_whole_classifier_is_refused(
    tmp_path: Path, damage: Callable[[Path], Any], reason: str
) -> None:
    damage(classifiers.vit(tmp_path))
    with pytest.raises(CheckpointError, match=reason):
        model_file.find(tmp_path, "transformers")


@pytest.mark.parametrize(
    "name, changes, reason",
    [
        ("preprocessor_config.json", {"size": 40}, "does not take images of 40 x 40"),
        ("preprocessor_config.json", {"image_processor_type": "Pix2StructImageProcessor"}, "Pix2StructImageProcessor"),
        ("config.json", {"num_hidden_layers": 3}, "lack vit"),
        ("config.json", {"id2label": {"0": "a", "1": "b"}}, "cannot load|lack classifier"),
        ("config.json", {"model_type": "none"}, "cannot load"),
    ],
)
def test_weights_that_would_be_random_and_sizes_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], reason: str
) -> None:
    classifiers.edit(classifiers.vit(tmp_path) / name, **changes)
    with pytest.raises(ModelError, match=reason):
        transformers_model.load(tmp_path / "config.json", 1)


def test_auto_names_the_format_and_takes_a_model_in_another_one(tmp_path: Path) -> None:
    classifiers.vit(tmp_path)
    with pytest.raises(CheckpointError, match=r"write spec\.model\.format: transformers"):
        model_file.find(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"")
    assert model_file.find(tmp_path).format == "onnx"


def test_the_fetcher_takes_the_files_of_the_format_and_leaves_pickles(tmp_path: Path) -> None:
    classifiers.vit(tmp_path / "pvc" / "vit")
    (tmp_path / "pvc" / "vit" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    sources = fetcher.Sources(pvc_mount=tmp_path / "pvc", formats=folder.classic("transformers"))
    assert fetcher.fetch("pvc://claim/vit", "", tmp_path / "dest", max_bytes=LIMIT, sources=sources).files == 3
    assert model_file.find(tmp_path / "dest", "transformers").path == tmp_path / "pvc" / "vit" / "config.json"
    sources = fetcher.Sources(pvc_mount=tmp_path / "pvc", formats=folder.classic("auto"))
    with pytest.raises(CheckpointError, match=r"write spec\.model\.format"):
        fetcher.fetch("pvc://claim/vit", "", tmp_path / "other", max_bytes=LIMIT, sources=sources)
