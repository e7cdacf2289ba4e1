"""ONNX by onnxruntime: one pool of threads that sleeps when idle, no arena, no code but onnxruntime's own operators."""

import ctypes
from pathlib import Path
from typing import Any

import numpy
import onnxruntime

from ..description import CLASSIFICATION, TENSORS, ModelDescription
from ..images.classifier import with_images
from ..tensors import BF16, BYTES, Tensor, TensorSpec, datatype_of
from . import ModelError
from .onnx_check import check_external_data

_TYPES = {
    "tensor(bool)": "BOOL", "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16", "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64", "tensor(int8)": "INT8", "tensor(int16)": "INT16", "tensor(int32)": "INT32",
    "tensor(int64)": "INT64", "tensor(float16)": "FP16", "tensor(float)": "FP32", "tensor(double)": "FP64",
    "tensor(bfloat16)": BF16, "tensor(string)": BYTES,
}  # fmt: skip
_MAPS = {"seq(map(int64,tensor(float)))": "FP32", "seq(map(string,tensor(float)))": "FP32"}
_BFLOAT16 = 16  # of onnx.TensorProto.DataType


class OnnxModel:
    def __init__(self, session: Any) -> None:
        self._session = session
        self.description = _describe(session)
        self._bfloat = any(spec.datatype == BF16 for spec in (*self.description.inputs, *self.description.outputs))
        self._maps = {one.name for one in session.get_outputs() if one.type in _MAPS}

    def run(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]:
        if self._bfloat:
            return self._run_values(inputs, outputs)
        results = self._session.run(outputs, {one.name: _to_runtime(one) for one in inputs})
        return [self._tensor(name, result) for name, result in zip(outputs, results, strict=True)]

    def _run_values(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]:
        """As `run`, for models with bfloat16, which numpy does not have: its bits go in and come out as memory."""
        given = {one.name: _to_value(one) for one in inputs}
        results = self._session.run_with_ort_values(outputs, given)
        return [_from_value(name, value) for name, value in zip(outputs, results, strict=True)]

    def _tensor(self, name: str, result: Any) -> Tensor:
        if name in self._maps:
            return self._columns(name, result)
        array = numpy.asarray(result)
        datatype = datatype_of(array)
        if datatype == BYTES:
            texts = numpy.empty(array.size, object)
            texts[:] = [text.encode() if isinstance(text, str) else bytes(text) for text in array.reshape(-1)]
            array = texts.reshape(array.shape)
        return Tensor(name, datatype, array)

    def _columns(self, name: str, result: list[dict[Any, float]]) -> Tensor:
        """ZipMap's dictionaries of scikit-learn's converter, as a matrix with a column for each label."""
        labels = sorted(result[0]) if result else []
        rows = [[row[label] for label in labels] for row in result]
        return Tensor(name, "FP32", numpy.array(rows, "<f4").reshape(len(result), len(labels)))


def load(path: Path, threads: int) -> OnnxModel:
    check_external_data(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False  # its memory would never be given back
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no common class of its errors
        raise ModelError(f"{path.name} cannot be loaded by onnxruntime: {str(error)[:300]}") from None
    model = OnnxModel(session)
    model.description = with_images(model.description, path.parent)
    return model


def _describe(session: Any) -> ModelDescription:
    inputs, outputs = [_spec(one) for one in session.get_inputs()], [_spec(one) for one in session.get_outputs()]
    if not inputs or not outputs:
        raise ModelError("The ONNX model has no input or no output.")
    kinds = {spec.datatype for spec in inputs}
    if BYTES in kinds and BF16 in {*kinds, *(spec.datatype for spec in outputs)}:
        raise ModelError("The ONNX model has texts and bfloat16, which onnxruntime does not take together from Python.")
    batched = all(spec.shape and spec.shape[0] == -1 for spec in (*inputs, *outputs))
    label, scores = _classifier(outputs)
    return ModelDescription(
        "onnxruntime_onnx", f"onnxruntime {onnxruntime.__version__}", inputs, outputs, batched,
        CLASSIFICATION if label else TENSORS, [], label, scores,
    )  # fmt: skip


def _classifier(outputs: list[TensorSpec]) -> tuple[str, str]:
    """The names of the outputs for label and probabilities, as scikit-learn's converter has them; else empty."""
    if len(outputs) != 2:
        return "", ""
    first, second = outputs
    is_label = len(first.shape) == 1 and first.datatype in ("INT64", BYTES)
    is_scores = len(second.shape) == 2 and second.datatype in ("FP32", "FP64")
    return (first.name, second.name) if is_label and is_scores else ("", "")


def _spec(one: Any) -> TensorSpec:
    if one.type in _MAPS:
        return TensorSpec(one.name, _MAPS[one.type], (-1, -1))
    if one.type not in _TYPES:
        raise ModelError(f"{one.name!r} of the ONNX model is {one.type}, and only tensors are served.")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in one.shape)
    return TensorSpec(one.name, _TYPES[one.type], shape)


def _to_runtime(tensor: Tensor) -> Any:
    if tensor.datatype != BYTES:
        return numpy.ascontiguousarray(tensor.array)
    texts = [item.decode("utf-8") for item in tensor.array.reshape(-1).tolist()]
    return numpy.array(texts, object).reshape(tensor.shape)


def _to_value(tensor: Tensor) -> Any:
    if tensor.datatype == BF16:
        bits = numpy.ascontiguousarray(tensor.array)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(_to_runtime(tensor))


def _from_value(name: str, value: Any) -> Tensor:
    if value.data_type() != "tensor(bfloat16)":
        array = value.numpy()
        return Tensor(name, datatype_of(array), array)
    shape = tuple(value.shape())
    size = int(numpy.prod(shape)) * 2
    bits = numpy.frombuffer(ctypes.string_at(value.data_ptr(), size) if size else b"", "<u2")
    return Tensor(name, BF16, bits.reshape(shape))
