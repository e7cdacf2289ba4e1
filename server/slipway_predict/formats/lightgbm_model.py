"""LightGBM's text files, after `lightgbm_check`."""

from pathlib import Path
from typing import Any

import lightgbm
import numpy

from ..description import CLASSIFICATION, REGRESSION, Matrix, ModelDescription
from ..tensors import Tensor, TensorSpec
from . import ModelError
from .lightgbm_check import checked

_CLASSIFIERS = ("binary", "multiclass", "multiclassova")


class LightgbmModel:
    def __init__(self, booster: Any, objective: str, threads: int) -> None:
        self._booster, self._threads = booster, threads
        self.description = _describe(booster, objective)

    def run(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]:
        rows = numpy.ascontiguousarray(inputs[0].array)
        values = numpy.asarray(self._booster.predict(rows, num_threads=self._threads), "<f8")
        found = {Matrix.OUTPUT: values}
        if Matrix.PREDICTION in outputs:
            found[Matrix.PREDICTION] = (values > 0.5 if values.ndim == 1 else values.argmax(axis=1)).astype("<i8")
        return [Tensor(name, "INT64" if name == Matrix.PREDICTION else "FP64", found[name]) for name in outputs]


def load(path: Path, threads: int) -> LightgbmModel:
    text = checked(path.read_text("utf-8", "replace"))
    lines = (line for line in text.split("\nTree=", 1)[0].split("\n") if line.startswith("objective="))
    objective = next(lines, "objective=").partition("=")[2].split(" ")[0]
    try:
        return LightgbmModel(lightgbm.Booster(model_str=text), objective, threads)
    except (lightgbm.basic.LightGBMError, ValueError, KeyError) as error:
        raise ModelError(f"{path.name} cannot be loaded by LightGBM: {str(error)[:300]}") from None


def _describe(booster: Any, objective: str) -> ModelDescription:
    names = tuple(booster.feature_name())
    features = () if all(name == f"Column_{index}" for index, name in enumerate(names)) else names
    inputs = [TensorSpec(Matrix.INPUT, "FP64", (-1, booster.num_feature()), features)]
    wide = booster.num_model_per_iteration()
    outputs = [TensorSpec(Matrix.OUTPUT, "FP64", (-1, wide) if wide > 1 else (-1,))]
    runtime = f"lightgbm {lightgbm.__version__}"
    if objective not in _CLASSIFIERS:
        return ModelDescription("lightgbm", runtime, inputs, outputs, True, REGRESSION)
    outputs.append(TensorSpec(Matrix.PREDICTION, "INT64", (-1,)))
    labels: list[str | int | float | bool] = [*range(max(2, wide))]
    return ModelDescription(
        "lightgbm", runtime, inputs, outputs, True, CLASSIFICATION, labels, Matrix.PREDICTION, Matrix.OUTPUT
    )
