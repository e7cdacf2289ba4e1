"""Rows as people write them: features by name or by position, or a text; and predictions with their confidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy

from ...predict import json_data
from ...predict.description import CLASSIFICATION, ModelDescription
from ...predict.executor import InferRequest
from ...predict.tensors import BYTES, FLOATS, Tensor, TensorError, TensorSpec
from ..errors import HttpError, invalid

FEATURES, TEXT = "features", "text"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one row. `confidence`: probability of the label, of a classifier."""

    value: Any
    confidence: float | None = None


def to_request(description: ModelDescription, rows: Sequence[Any], param: str) -> InferRequest:
    """Raises HttpError that names the row and the feature which is wrong."""
    if not description.batched and len(rows) > 1:
        raise invalid("The model takes one row at a time.", param)
    given = [_fields(row, description, _at(param, index, rows)) for index, row in enumerate(rows)]
    tensors = tuple(_column(spec, given, param) for spec in description.inputs)
    wanted = tuple(name for name in (description.label_output, description.probabilities) if name)
    return InferRequest(tensors, wanted or tuple(spec.name for spec in description.outputs))


def _at(param: str, index: int, rows: Sequence[Any]) -> str:
    return param if param == "input" else f"{param}[{index}]"


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
        # A column of one number a row is [-1, 1] or [-1].
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
    """All rows of one input."""
    values = [row[spec.name] for row in rows]
    shape = tuple(numpy.shape(values[0])) if values and spec.datatype != BYTES else ()
    for index, value in enumerate(values):
        _check_types(value, spec, _at(param, index, rows))
    wanted = spec.shape[1:]
    if spec.datatype == BYTES:
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


def predictions(description: ModelDescription, outputs: Sequence[Tensor], count: int) -> list[Prediction]:
    """One for each row."""
    by_name = {tensor.name: tensor for tensor in outputs}
    if description.task != CLASSIFICATION:
        return [Prediction(_value(outputs, row)) for row in range(count)]
    scores, labels = by_name.get(description.probabilities), by_name.get(description.label_output)
    found = []
    for row in range(count):
        confidence, best = _confidence(scores, row)
        value = json_data.plain(labels.array[row : row + 1].tolist()[0]) if labels else description.labels[best]
        found.append(Prediction(value, confidence))
    return found


def _confidence(scores: Tensor | None, row: int) -> tuple[float | None, int]:
    if scores is None:
        return None, 0
    values = scores.array[row]
    if values.ndim == 0:
        likely = float(values)
        return max(likely, 1.0 - likely), int(likely > 0.5)
    return float(values.max()), int(values.argmax())


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
