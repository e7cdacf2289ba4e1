"""The classifiers of examples/predict-images.yaml and predict-vit.yaml know digits that were made PNG files."""

import numpy
import pytest

from slipway_predict.formats import loader
from slipway_predict.images.decoding import decode
from slipway_predict.images.pixels import pixels
from slipway_predict.images.preprocessing import read
from slipway_predict.tensors import Tensor
from slipway_process.model_folder import classic as model_file
from testkit import ROOT, pictures

pytestmark = pytest.mark.integration

COUNT = 100


@pytest.mark.parametrize("name, format", [("digits-onnx", "onnx"), ("digits-vit", "transformers")])
def test_a_classifier_of_the_examples_knows_its_digits(name: str, format: str) -> None:
    from sklearn.datasets import load_digits

    folder = ROOT / "examples" / "models" / name
    model, steps = loader(format).load(model_file.find(folder, format).path, 1), read(folder)
    assert steps and model.description.labels == list(pictures.LABELS)
    files = [pictures.encoded(pictures.digit(index)) for index in range(COUNT)]
    rows = numpy.stack([pixels(decode(file, 1 << 20), steps, 1 << 20) for file in files])
    [found] = model.run([Tensor("pixel_values", "FP32", rows)], ["logits"])
    _, labels = load_digits(return_X_y=True)
    assert (found.array.argmax(axis=1) == labels[:COUNT]).mean() >= 0.9
