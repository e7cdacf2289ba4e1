"""Rows as people write them: features by name or by position, or a text; and predictions with their confidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy

from slipway_process.serving.errors import HttpError, invalid

from ... import json_data
from ...description import CLASSIFICATION, INDEPENDENT, LOGITS, ModelDescription
from ...executor import InferRequest
from ...tensors import BYTES, FLOATS, Array, Tensor, TensorError, TensorSpec

FEATURES, TEXT = "features", "text"
IMAGE, B64 = "image", "b64"  # keys of an image: our own, and that of KServe's V1


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one row. `confidence`: probability of the label, from 0 to 1; None without probabilities."""

    value: Any
    confidence: float | None = None
    top: list[dict[str, Any]] = field(default_factory=list)


def to_request(description: ModelDescription, rows: Sequence[Any], param: str) -> InferRequest:
    """The request for rows of JSON. Raises HttpError that names the row and the feature which is wrong."""
    if not description.batched and len(rows) > 1:
        raise invalid("The model takes one row at a time.", param)
    image = description.image
    if image and any(_is_image(row, image.name) for row in rows):
        tensors: tuple[Tensor, ...] = (_images(rows, image.name, param),)
    else:
        given = [_fields(row, description, path(param, index)) for index, row in enumerate(rows)]
        tensors = tuple(_column(spec, given, param) for spec in description.inputs)
    wanted = tuple(name for name in (description.label_output, description.probabilities) if name)
    return InferRequest(tensors, wanted or tuple(spec.name for spec in description.outputs))


def path(param: str, index: int) -> str:
    """The path of a row in its request, for errors."""
    return param if param == "input" else f"{param}[{index}]"


def _is_image(row: Any, name: str) -> bool:
    """Whether a row is an image. If the model's input is called image too, a text is an image and a list a tensor."""
    if not isinstance(row, dict):
        return False
    inner = row.get(name)
    given = IMAGE in row and (name != IMAGE or isinstance(inner, str))
    return given or B64 in row or (isinstance(inner, dict) and B64 in inner)


def _images(rows: Sequence[Any], name: str, param: str) -> Tensor:
    """Base64 or a data URL of each row, to be decoded later."""
    found = numpy.empty(len(rows), object)
    for index, row in enumerate(rows):
        where = path(param, index)
        if not _is_image(row, name):
            raise invalid(f"{where} is no image, and other rows are: send images alone, or none.", where)
        found[index] = _image_text(row, name, where).encode("utf-8", "replace")
    return Tensor(name, BYTES, found)


def _image_text(row: Mapping[str, Any], name: str, where: str) -> str:
    """Base64 or the data URL of a row, which may also be nested under the name of the input."""
    if isinstance(row.get(name), dict):
        _refuse_others(row, (name,), where)
        row, where = row[name], f"{where}.{name}"
    key = B64 if B64 in row else IMAGE
    _refuse_others(row, (key,), where)
    if not isinstance(row.get(key), str):
        raise invalid(f"{where}.{key} must be base64 or a data URL.", f"{where}.{key}")
    return str(row[key])


def _fields(row: Any, description: ModelDescription, where: str) -> dict[str, Any]:
    """The value of each input in one row."""
    if isinstance(row, str):
        row = {TEXT: row}
    elif not isinstance(row, dict):
        row = {FEATURES: row if isinstance(row, list) else [row]}
    first = description.inputs[0]
    if len(description.inputs) > 1 or (first.name in row and not first.features):
        return _by_input(row, description, where)
    if first.datatype == BYTES and len(first.shape) == 1:
        return {first.name: _text(row, where)}
    if set(row) == {FEATURES} and FEATURES not in first.features:
        return {first.name: _by_position(row[FEATURES], first, where)}
    return {first.name: _by_name(row, first, where)}


def _text(row: Mapping[str, Any], where: str) -> str:
    _refuse_others(row, (TEXT,), where)
    if not isinstance(row.get(TEXT), str):
        raise invalid(f"{where}.{TEXT} must be a text.", f"{where}.{TEXT}")
    return str(row[TEXT])


def _by_input(row: Mapping[str, Any], description: ModelDescription, where: str) -> dict[str, Any]:
    _refuse_others(row, [spec.name for spec in description.inputs], where)
    found = {}
    for spec in description.inputs:
        value = _present(row, spec.name, where)
        # A column with one number for each row has the shape [-1, 1] or [-1].
        found[spec.name] = [value] if spec.shape[1:] == (1,) and not isinstance(value, list) else value
    return found


def _by_position(values: Any, spec: TensorSpec, where: str) -> list[Any]:
    if not isinstance(values, list):
        raise invalid(f"{where}.{FEATURES} must be a list.", f"{where}.{FEATURES}")
    count = spec.shape[1] if len(spec.shape) == 2 else -1
    if count not in (-1, len(values)):
        raise invalid(f"{where}.{FEATURES} has {len(values)} values; the model takes {count}.", f"{where}.{FEATURES}")
    return values


def _by_name(row: Mapping[str, Any], spec: TensorSpec, where: str) -> list[Any]:
    if not spec.features:
        message = f'{where} names features, and the model has no names of them: write {{"{FEATURES}": […]}}.'
        raise invalid(message, where)
    _refuse_others(row, spec.features, where)
    return [_present(row, name, where) for name in spec.features]


def _present(row: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in row:
        raise invalid(f"{where}.{name} is missing.", f"{where}.{name}")
    return row[name]


def _refuse_others(row: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in row:
        if name not in known:
            shown = ", ".join(known[:20])
            raise invalid(f"{where}.{name[:64]} is no feature of the model; it takes {shown}.", f"{where}.{name[:64]}")


def _column(spec: TensorSpec, rows: Sequence[Mapping[str, Any]], param: str) -> Tensor:
    """The tensor of one input, from all rows."""
    values = [row[spec.name] for row in rows]
    wanted = spec.shape[1:]
    if values:
        shape = tuple(numpy.shape(values[0])) if spec.datatype != BYTES else ()
    else:  # of what may have any size there is nothing
        shape = tuple(max(size, 0) for size in wanted)
    for index, value in enumerate(values):
        _check_types(value, spec, path(param, index))
    if spec.datatype == BYTES and values:
        shape = wanted if -1 not in wanted else ()
    try:
        return json_data.from_values(spec.name, spec.datatype, (len(values), *shape), values)
    except TensorError as error:
        raise invalid(f"{param}: {error}.", param) from None


def _check_types(value: Any, spec: TensorSpec, where: str) -> None:
    if isinstance(value, list):
        for one in value:
            _check_types(one, spec, where)
        return
    kinds: tuple[type, ...] = (int, float) if spec.datatype in FLOATS else (int,)
    kinds = {BYTES: (str,), "BOOL": (bool,)}.get(spec.datatype, kinds)
    fits = isinstance(value, kinds) and (spec.datatype == "BOOL" or not isinstance(value, bool))
    if not fits and not (value is None and spec.datatype in FLOATS):
        raise invalid(f"{where}: {json_data.dumps(value)} is no {spec.datatype}.", where)


def predictions(
    description: ModelDescription, outputs: Sequence[Tensor], count: int, top_k: int = 0
) -> list[Prediction]:
    """One prediction for each row; for a classifier with its `top_k` most likely labels."""
    by_name = {tensor.name: tensor for tensor in outputs}
    if description.task != CLASSIFICATION:
        return [Prediction(_value(outputs, row)) for row in range(count)]
    scores, labels = by_name.get(description.probabilities), by_name.get(description.label_output)
    found = []
    for row in range(count):
        likely = None if scores is None else probabilities_of(scores.array[row], description.scores)
        best = None if likely is None else int(likely.argmax())
        value = json_data.plain(labels.array[row : row + 1].tolist()[0]) if labels else _label(description, best or 0)
        confidence = None if likely is None or best is None else float(likely[best])
        top = [] if likely is None else _top(description, likely, top_k)
        found.append(Prediction(value, confidence, top))
    return found


def probabilities_of(scores: Array, kind: str) -> Array:
    """The probability of each label. A model with one number for two labels gives that of the second one."""
    scores = scores.astype(numpy.float64)
    with numpy.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite are counted by the service
        if kind == INDEPENDENT:
            return 1.0 / (1.0 + numpy.exp(-scores))  # type: ignore[no-any-return]
        if kind == LOGITS:
            scores = numpy.exp(scores - scores.max())
            return scores / scores.sum()  # type: ignore[no-any-return]
    return numpy.stack([1.0 - scores, scores]) if scores.ndim == 0 else scores


def _label(description: ModelDescription, index: int) -> Any:
    return description.labels[index] if index < len(description.labels) else index


def _top(description: ModelDescription, likely: Array, count: int) -> list[dict[str, Any]]:
    best = numpy.argsort(-likely, kind="stable")[:count].tolist()
    return [{"label": _label(description, index), "confidence": float(likely[index])} for index in best]


def _value(outputs: Sequence[Tensor], row: int) -> Any:
    rows = {tensor.name: _row(tensor, row) for tensor in outputs}
    return next(iter(rows.values())) if len(rows) == 1 else rows


def _row(tensor: Tensor, row: int) -> Any:
    if tensor.datatype == "BF16" or (tensor.array.ndim == 0):
        raise HttpError(400, f"The output {tensor.name!r} is for /v2 with binary data.", param=tensor.name)
    value = tensor.array[row : row + 1].tolist()[0]
    return msgspec.to_builtins(_texts(value))


def _texts(value: Any) -> Any:
    return [_texts(one) for one in value] if isinstance(value, list) else json_data.plain(value)
