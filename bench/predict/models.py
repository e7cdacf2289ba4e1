"""The files that all serve: random weights, because what is measured is the time and not the answer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

SEED = 7


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One model. `input_name`: of its tensor, as our server's metadata names it."""

    name: str
    title: str
    file: str
    features: int
    input_name: str

    def make(self, folder: Path) -> Path:
        """Writes the file, and nothing where it is there."""
        path = folder / self.name / self.file
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _MAKERS[self.name](path, self)
        return path

    def row(self) -> list[float]:
        """One row of numbers that JSON and float32 hold alike."""
        numbers = numpy.random.default_rng(SEED).integers(-64, 64, self.features) / 64
        return [float(number) for number in numbers]


def _mlp(path: Path, model: ModelFile) -> None:
    """Two layers of 256 with a ReLU, three classes."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random, nodes, weights, last, width = numpy.random.default_rng(SEED), [], [], model.input_name, model.features
    for number, outputs in enumerate((256, 256, 3)):
        matrix = random.standard_normal((width, outputs), dtype="f4") / width**0.5
        weights.append(numpy_helper.from_array(matrix, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"h{number}"]))
        last, width = f"h{number}", outputs
        if outputs == 256:
            nodes.append(helper.make_node("Relu", [last], [f"r{number}"]))
            last = f"r{number}"
    nodes.append(helper.make_node("Softmax", [last], ["probabilities"]))
    given = helper.make_tensor_value_info(model.input_name, TensorProto.FLOAT, ["rows", model.features])
    taken = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", 3])
    graph = helper.make_graph(nodes, "mlp", [given], [taken], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(made)
    path.write_bytes(made.SerializeToString())


def _trees(path: Path, model: ModelFile) -> None:
    """500 trees of depth 6 over 100 features, fitted to noise."""
    import xgboost

    random = numpy.random.default_rng(SEED)
    rows = random.standard_normal((4000, model.features), dtype="f4")
    labels = (rows[:, :8].sum(axis=1) + random.standard_normal(4000) > 0).astype("f4")
    parameters = {"objective": "binary:logistic", "max_depth": 6, "eta": 0.05, "nthread": 2, "seed": SEED}
    xgboost.train(parameters, xgboost.DMatrix(rows, labels), 500).save_model(path)


_MAKERS: dict[str, Any] = {"mlp": _mlp, "xgboost": _trees}
MODELS = {
    model.name: model
    for model in (
        ModelFile("mlp", "ONNX, two layers of 256", "model.onnx", 30, "x"),
        ModelFile("xgboost", "XGBoost, 500 trees over 100 features", "model.ubj", 100, "input"),
    )
}


def plain_body(model: ModelFile) -> bytes:
    """What peers with an API of their own take."""
    return json.dumps({"inputs": [model.row()]}).encode()


def protocol_body(model: ModelFile) -> bytes:
    """The same row in the Open Inference Protocol's JSON."""
    tensor = {"name": model.input_name, "datatype": "FP32", "shape": [1, model.features], "data": model.row()}
    return json.dumps({"inputs": [tensor]}).encode()
