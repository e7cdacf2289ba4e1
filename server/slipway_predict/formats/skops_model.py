"""scikit-learn's estimators and pipelines from skops, which loads types of its own list and no other."""

import zipfile
from pathlib import Path
from typing import Any

import numpy
import sklearn
import skops.io
from sklearn.base import is_classifier

from ..description import CLASSIFICATION, REGRESSION, Matrix, ModelDescription, plain_labels
from ..tensors import BYTES, Tensor, TensorSpec, datatype_of
from . import ModelError

MAX_UNPACKED_BYTES = 4 << 30


class SkopsModel:
    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self.description = _describe(estimator)

    def run(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]:
        given, found = _rows(inputs[0]), []
        for name in outputs:
            method = "predict_proba" if name == Matrix.PROBABILITIES else "predict"
            found.append(_tensor(name, getattr(self._estimator, method)(given)))
        return found


def load(path: Path, threads: int) -> SkopsModel:
    _check_archive(path)
    try:
        untrusted = skops.io.get_untrusted_types(file=path)
        if untrusted:
            raise ModelError(
                f"{path.name} has types that could run code when they are loaded: {', '.join(untrusted)[:300]}. Use "
                "estimators of scikit-learn alone, or convert the model to ONNX."
            )
        estimator = skops.io.load(path, trusted=[])
    except ModelError:
        raise
    except Exception as error:  # it raises what the classes raise that it builds
        raise ModelError(f"{path.name} cannot be loaded by skops: {type(error).__name__}: {str(error)[:300]}") from None
    if not hasattr(estimator, "predict"):
        raise ModelError(f"{path.name} holds a {type(estimator).__name__}, which has no predict.")
    return SkopsModel(estimator)


def _check_archive(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelError(f"{path.name} is not a file of skops: {error}.") from None
    if size > MAX_UNPACKED_BYTES:
        raise ModelError(f"{path.name} has {size} bytes when it is unpacked; {MAX_UNPACKED_BYTES} is the limit.")


def _takes_texts(estimator: Any) -> bool:
    """A pipeline that begins with a vectorizer of texts takes a list of them."""
    first = estimator.steps[0][1] if hasattr(estimator, "steps") and estimator.steps else estimator
    return type(first).__module__.startswith("sklearn.feature_extraction.text")


def _describe(estimator: Any) -> ModelDescription:
    if _takes_texts(estimator):
        inputs = [TensorSpec(Matrix.INPUT, BYTES, (-1,))]
    else:
        features = tuple(str(name) for name in getattr(estimator, "feature_names_in_", ()))
        inputs = [TensorSpec(Matrix.INPUT, "FP64", (-1, int(getattr(estimator, "n_features_in_", -1))), features)]
    runtime = f"scikit-learn {sklearn.__version__}"
    if not is_classifier(estimator):
        wide = int(getattr(estimator, "n_outputs_", 1) or 1)
        outputs = [TensorSpec(Matrix.PREDICTION, "FP64", (-1, wide) if wide > 1 else (-1,))]
        return ModelDescription("sklearn", runtime, inputs, outputs, True, REGRESSION)
    labels = plain_labels(estimator.classes_)
    kind = "INT64" if all(isinstance(label, int) and not isinstance(label, bool) for label in labels) else BYTES
    kind = "FP64" if all(isinstance(label, float) for label in labels) else kind
    kind = "BOOL" if all(isinstance(label, bool) for label in labels) else kind
    outputs = [TensorSpec(Matrix.PREDICTION, kind, (-1,))]
    scores = Matrix.PROBABILITIES if hasattr(estimator, "predict_proba") else ""
    if scores:
        outputs.append(TensorSpec(scores, "FP64", (-1, len(labels))))
    return ModelDescription(
        "sklearn", runtime, inputs, outputs, True, CLASSIFICATION, labels, Matrix.PREDICTION, scores
    )


def _rows(tensor: Tensor) -> Any:
    if tensor.datatype == BYTES:
        return [item.decode("utf-8", "replace") for item in tensor.array.tolist()]
    return tensor.array


def _tensor(name: str, values: Any) -> Tensor:
    array = numpy.asarray(values)
    datatype = datatype_of(array)
    if datatype == BYTES:
        texts = numpy.empty(array.size, object)
        texts[:] = [str(value).encode() for value in array.reshape(-1).tolist()]
        array = texts.reshape(array.shape)
    return Tensor(name, datatype, array)
