"""Trains the image classifier of examples/predict-images.yaml on the digits that scikit-learn ships: some seconds.

The model gets what its preprocessor_config.json makes of a JPEG or PNG of any size: 8 x 8 pixels, from 0 to 1.
"""

import json
from pathlib import Path
from typing import Any

import numpy
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

FOLDER = Path(__file__).parent / "models" / "digits-onnx"
SIDE = 8
PREPROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": SIDE, "width": SIDE},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": False,
}
LABELS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    rows = (images / 16).astype("f4")  # ink is 1, paper 0
    train, test, train_labels, test_labels = train_test_split(rows, labels, test_size=0.25, random_state=0)
    network = MLPClassifier((64,), max_iter=1000, random_state=0).fit(train, train_labels)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "model.onnx").write_bytes(to_onnx(network).SerializeToString())
    (FOLDER / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n")
    config = {"id2label": {str(index): label for index, label in enumerate(LABELS)}}
    (FOLDER / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"accuracy on {len(test)} digits that it was not trained on: {network.score(test, test_labels):.3f}")


def to_onnx(network: Any) -> Any:
    """pixel_values [images, 3, 8, 8] to logits [images, 10], as exports of Hugging Face's classifiers have them."""
    constants = [
        numpy_helper.from_array(numpy.array([1], "i8"), "channels"),
        numpy_helper.from_array(numpy.array([-1, SIDE * SIDE], "i8"), "flat"),
    ]
    nodes = [
        helper.make_node("ReduceMean", ["pixel_values", "channels"], ["grey"], keepdims=0),
        helper.make_node("Reshape", ["grey", "flat"], ["layer0"]),
    ]
    last = len(network.coefs_) - 1
    for index, (weights, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        constants += [numpy_helper.from_array(weights.astype("f4"), f"weights{index}")]
        constants += [numpy_helper.from_array(bias.astype("f4"), f"bias{index}")]
        made = "logits" if index == last else f"sum{index}"
        nodes.append(helper.make_node("Gemm", [f"layer{index}", f"weights{index}", f"bias{index}"], [made]))
        if index < last:
            nodes.append(helper.make_node("Relu", [made], [f"layer{index + 1}"]))
    image = helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["images", 3, SIDE, SIDE])
    scores = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["images", len(LABELS)])
    graph = helper.make_graph(nodes, "digits", [image], [scores], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


if __name__ == "__main__":
    main()
