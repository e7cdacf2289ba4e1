"""Small ONNX models, each with one property that a test needs."""

from pathlib import Path

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {
    "BOOL": TensorProto.BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING, "BF16": TensorProto.BFLOAT16,
}  # fmt: skip


def save(folder: Path, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto],
         outputs: list[onnx.ValueInfoProto], constants: tuple[onnx.TensorProto, ...] = ()) -> Path:  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(nodes, "test", inputs, outputs, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(model)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def tensor(name: str, kind: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TYPES[kind], list(shape))


def identity(folder: Path, kinds: tuple[str, ...] = tuple(TYPES)) -> Path:
    """Returns each input, x_<type>, as y_<type>."""
    nodes = [helper.make_node("Identity", [f"x_{kind}"], [f"y_{kind}"]) for kind in kinds]
    inputs = [tensor(f"x_{kind}", kind, "rows", 2) for kind in kinds]
    return save(folder, nodes, inputs, [tensor(f"y_{kind}", kind, "rows", 2) for kind in kinds])


def table(folder: Path) -> Path:
    """Looks a row's index up among ten: any other index is an error of the runtime."""
    numbers = numpy_helper.from_array(numpy.arange(10, dtype="f4") * 10, "numbers")
    node = helper.make_node("Gather", ["numbers", "index"], ["value"])
    return save(folder, [node], [tensor("index", "INT64", "rows")], [tensor("value", "FP32", "rows")], (numbers,))


def positive(folder: Path) -> Path:
    """Drops rows that are not above 0, and says nothing of it in its description."""
    zero = numpy_helper.from_array(numpy.zeros(1, "f4"), "zero")
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["kept"]),
        helper.make_node("Compress", ["x", "kept"], ["y"], axis=0),
    ]
    return save(folder, nodes, [tensor("x", "FP32", "rows")], [tensor("y", "FP32", "rows")], (zero,))


def centred(folder: Path) -> Path:
    """Subtracts the mean of the batch: a row's answer depends on the others."""
    axes = numpy_helper.from_array(numpy.array([0], "i8"), "axes")
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    return save(folder, nodes, [tensor("x", "FP32", "rows", 2)], [tensor("y", "FP32", "rows", 2)], (axes,))


def loop(folder: Path) -> Path:
    """Counts to the largest number of the batch: 10**18 hangs."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["go_on_out"]),
            helper.make_node("Identity", ["state"], ["state_out"]),
        ],
        "body",
        [tensor("turn", "INT64"), tensor("go_on", "BOOL"), tensor("state", "INT64", "rows")],
        [tensor("go_on_out", "BOOL"), tensor("state_out", "INT64", "rows")],
    )
    true = numpy_helper.from_array(numpy.array(True), "true")
    nodes = [
        helper.make_node("ReduceMax", ["count"], ["most"], keepdims=0),
        helper.make_node("Loop", ["most", "true", "count"], ["y"], body=body),
    ]
    return save(folder, nodes, [tensor("count", "INT64", "rows")], [tensor("y", "INT64", "rows")], (true,))


def greedy(folder: Path) -> Path:
    """Allocates as many numbers as a row says, and sums them."""
    nodes = [
        helper.make_node("ReduceMax", ["count"], ["most"], keepdims=1),
        helper.make_node("ConstantOfShape", ["most"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["count"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["floats", "sum"], ["y"]),
    ]
    return save(folder, nodes, [tensor("count", "INT64", "rows")], [tensor("y", "FP32", "rows")])


def linear(folder: Path, *, columns: int = 3) -> Path:
    """Sums the features of a row."""
    axes = numpy_helper.from_array(numpy.array([1], "i8"), "axes")
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    return save(folder, [node], [tensor("x", "FP32", "rows", columns)], [tensor("y", "FP32", "rows")], (axes,))


def with_external_data(folder: Path, location: str) -> Path:
    """A model whose constant is in another file."""
    path = linear(folder)
    model = onnx.load(path)
    constant = model.graph.initializer[0]
    data = constant.raw_data
    constant.ClearField("raw_data")
    constant.data_location = TensorProto.EXTERNAL
    constant.external_data.add(key="location", value=location)
    constant.external_data.add(key="length", value=str(len(data)))
    path.write_bytes(model.SerializeToString())
    (folder / "weights.data").write_bytes(data)
    return path
