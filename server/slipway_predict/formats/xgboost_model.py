"""XGBoost's .ubj and .json, by what inplace_predict calls, on one pool of threads."""

import ctypes
import json
import math
from pathlib import Path
from typing import Any

import numpy
import xgboost
from xgboost.libpath import find_lib_path

from ..description import CLASSIFICATION, REGRESSION, Matrix, ModelDescription
from ..tensors import Tensor, TensorSpec
from . import ModelError

_SIZE, _NUMBERS = ctypes.c_uint64, ctypes.POINTER(ctypes.c_float)
_SETTINGS = (
    b'{"type": 0, "training": false, "iteration_begin": 0, "iteration_end": 0, "missing": NaN, "strict_shape": false, '
    b'"cache_id": 0}'
)


class DensePrediction:
    """`Booster.inplace_predict` for rows of float32, with the same bits.

    It calls XGBoosterPredictFromDense of XGBoost's C API as that does: what the method of Python has around the call
    takes a third of the time of a small batch.
    """

    def __init__(self, booster: Any) -> None:
        self._booster = booster
        library = ctypes.CDLL(find_lib_path()[0])  # the one that the booster is of
        self._call, self._last_error = library.XGBoosterPredictFromDense, library.XGBGetLastError
        sizes = ctypes.POINTER(_SIZE)
        self._call.argtypes = (
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p),
            *(ctypes.POINTER(sizes), sizes, ctypes.POINTER(_NUMBERS)),
        )
        self._last_error.restype = ctypes.c_char_p
        self._shape, self._dimensions, self._numbers = sizes(), _SIZE(), _NUMBERS()

    def __call__(self, rows: Any) -> Any:
        """The predictions for one row or more, [n, features] of aligned float32 in order: [n], or [n, outputs].

        Raises:
            XGBoostError: with XGBoost's own message.
        """
        address = rows.__array_interface__["data"][0]
        given = b'{"data": [%d, true], "shape": [%d, %d], "typestr": "<f4", "version": 3}' % (address, *rows.shape)
        found = (ctypes.byref(self._shape), ctypes.byref(self._dimensions), ctypes.byref(self._numbers))
        if self._call(self._booster.handle, given, _SETTINGS, None, *found):
            raise xgboost.core.XGBoostError(self._last_error().decode())
        shape = self._shape[: self._dimensions.value]
        # A copy: the next call writes over the booster's own.
        return numpy.frombuffer(ctypes.string_at(self._numbers, 4 * math.prod(shape)), "<f4").reshape(shape)


class XgboostModel:
    def __init__(self, booster: Any) -> None:
        self._predict = DensePrediction(booster)
        self.description = _describe(booster)

    def run(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]:
        rows = numpy.require(inputs[0].array, "<f4", ["C", "ALIGNED"])  # their bytes may begin anywhere in a message
        # Of no rows XGBoost returns the shape (0, 0), however many outputs the model has.
        values = self._predict(rows) if len(rows) else numpy.zeros((0, *self.description.outputs[0].shape[1:]), "<f4")
        found = {Matrix.OUTPUT: values}
        if Matrix.PREDICTION in outputs:
            found[Matrix.PREDICTION] = _labels(values)
        return [Tensor(name, "INT64" if name == Matrix.PREDICTION else "FP32", found[name]) for name in outputs]


def load(path: Path, threads: int) -> XgboostModel:
    booster = xgboost.Booster({"nthread": threads})
    try:
        booster.load_model(str(path))
        booster.set_param({"nthread": threads, "device": "cpu"})
        return XgboostModel(booster)
    except (xgboost.core.XGBoostError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path.name} cannot be loaded by XGBoost: {str(error).strip()[-300:]}") from None


def _labels(values: Any) -> Any:
    if values.ndim == 1:
        return (values > 0.5).astype("<i8")
    return values.argmax(axis=1).astype("<i8")


def _describe(booster: Any) -> ModelDescription:
    learner = json.loads(booster.save_config())["learner"]
    objective = learner["objective"]["name"]
    classes = int(learner["learner_model_param"].get("num_class", "0"))
    features = tuple(booster.feature_names or ())
    inputs = [TensorSpec(Matrix.INPUT, "FP32", (-1, booster.num_features()), features)]
    targets = int(learner["learner_model_param"].get("num_target", "1"))
    wide = (classes if objective == "multi:softprob" else 1) if targets == 1 else targets
    outputs = [TensorSpec(Matrix.OUTPUT, "FP32", (-1, wide) if wide > 1 else (-1,))]
    runtime = f"xgboost {xgboost.__version__}"
    if objective in ("multi:softprob", "binary:logistic") and targets == 1:
        outputs.append(TensorSpec(Matrix.PREDICTION, "INT64", (-1,)))
        labels: list[str | int | float | bool] = [*range(max(2, classes))]
        return ModelDescription(
            "xgboost", runtime, inputs, outputs, True, CLASSIFICATION, labels, Matrix.PREDICTION, Matrix.OUTPUT
        )
    if objective == "multi:softmax":
        return ModelDescription("xgboost", runtime, inputs, outputs, True, CLASSIFICATION, [], Matrix.OUTPUT)
    return ModelDescription("xgboost", runtime, inputs, outputs, True, REGRESSION)
