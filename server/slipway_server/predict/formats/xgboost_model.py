"""XGBoost's .ubj and .json, by inplace_predict on one pool of threads."""

import json
from pathlib import Path
from typing import Any

import numpy
import xgboost

from ..description import CLASSIFICATION, REGRESSION, Matrix, ModelDescription
from ..tensors import Tensor, TensorSpec
from . import ModelError


class XgboostModel:
    def __init__(self, booster: Any) -> None:
        self._booster = booster
        self.description = _describe(booster)

    def run(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]:
        rows = numpy.ascontiguousarray(inputs[0].array)
        values = numpy.asarray(self._booster.inplace_predict(rows, validate_features=False), "<f4")
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
