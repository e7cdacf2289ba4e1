"""What a response of a classic model predicts, row by row: the only reader of these responses (pure).

It reads JSON of the Open Inference Protocol, of KServe's V1, of /api/v1, of rerankers and of classifiers of texts,
tensors of the protocol's binary extension, and protobuf, which has the responses to gRPC. Long and compressed responses
have no predictions here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from . import inference
from .output_tensors import MAX_DIMENSIONS, MAX_OUTPUTS, OutputTensor, TypedElements, binary_elements, read_message

MAX_BYTES = 64 << 10  # of a response: longer ones are not read
MAX_ROWS = 256  # of a response; rows behind them are counted and not read
_JSON_BYTES = "Inference-Header-Content-Length"
_WHOLE = 1 << 64  # beyond the largest datatype
_LABELS = ("INT", "UINT", "BOOL", "BYTES")  # beginnings of the data types of labels

Value = str | int | float


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A label, a number, or the place of the largest of several numbers.

    `named`: the value is a label that the response itself has, and no other for this row.
    """

    value: Value
    named: bool = False


@dataclass(frozen=True, slots=True)
class Predictions:
    """`rows`: the first ones of `count`; None for a row that has no prediction."""

    rows: tuple[PredictedRow | None, ...]
    count: int

    @property
    def whole(self) -> bool:
        """Whether each of the first rows has a prediction."""
        return None not in self.rows

    @property
    def finite(self) -> bool:
        """Whether no number among the rows is infinite or NaN."""
        numbers = (row.value for row in self.rows if row and isinstance(row.value, float))
        return all(map(math.isfinite, numbers))


class _PredictAnswer(msgspec.Struct):
    prediction: Any = msgspec.UNSET
    predictions: list[Any] | None = None
    outputs: list[OutputTensor] | None = None


class _TextRow(msgspec.Struct):
    """A text or a pair: a label, or one of the scores. null is a score that is no finite number."""

    index: int
    label: str | None = None
    score: float | msgspec.UnsetType | None = msgspec.UNSET
    relevance_score: float | msgspec.UnsetType | None = msgspec.UNSET


class _TextAnswer(msgspec.Struct):
    data: list[_TextRow] | None = None
    results: list[_TextRow] | None = None


_TEXTS = msgspec.json.Decoder(_TextAnswer)
_DECODER = msgspec.json.Decoder(_PredictAnswer | list[_PredictAnswer])


def read_predictions(path: str, headers: Mapping[str, str], body: bytes, most: int = MAX_ROWS) -> Predictions | None:
    """The first rows of a whole response; None where it has none that can be read."""
    if not inference.is_predict(path) or len(body) > MAX_BYTES or "Content-Encoding" in headers:
        return None
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() == inference.PROTOBUF:
        message = read_message(body)
        return _of_outputs(message.outputs, message.elements, most) if message else None
    if path in inference.TEXT_PATHS:
        return _of_texts(body, most)
    end = _json_bytes(headers, len(body))
    try:
        found = _DECODER.decode(body[:end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(found, list):
        rows, count = [one.prediction for one in found[:most]], len(found)
    elif found.outputs is not None:
        return _of_outputs(found.outputs, _json_elements(found.outputs, body[end:]), most)
    elif found.predictions is not None:
        rows, count = found.predictions[:most], len(found.predictions)
    else:
        rows, count = [found.prediction], 1
    return Predictions(tuple(_of_row(row, named=True) for row in rows), count) if rows else None


def first_prediction(path: str, headers: Mapping[str, str], body: bytes) -> Value | None:
    """The prediction of the first row. Rows of one response are one observation: one revision computes all of them."""
    found = read_predictions(path, headers, body, most=1)
    return found.rows[0].value if found and found.rows[0] else None


def only_label(path: str, headers: Mapping[str, str], body: bytes) -> str | None:
    """The label of a response with one row; None for numbers and for several rows."""
    found = read_predictions(path, headers, body, most=1)
    row = found.rows[0] if found and found.count == 1 else None
    return label_text(row.value) if row and row.named else None


def label_text(label: Value) -> str:
    """A label as a text: 2 and "2" are the same one."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def _of_texts(body: bytes, most: int) -> Predictions | None:
    """The texts in the order of the request. Where only some are in the response, each is followed by its place."""
    try:
        found = _TEXTS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    texts = sorted(found.results or found.data or (), key=lambda one: one.index)
    if not texts:
        return None
    rows = [_of_text(one) for one in texts]
    if any(one.index != place for place, one in enumerate(texts)):
        rows = [row for one in texts for row in (_of_text(one), PredictedRow(one.index))]
    return Predictions(tuple(rows[:most]), len(rows))


def _of_text(text: _TextRow) -> PredictedRow | None:
    if text.label is not None:
        return PredictedRow(text.label, named=True)
    score = text.relevance_score if text.score is msgspec.UNSET else text.score
    if isinstance(score, msgspec.UnsetType):
        return None
    return PredictedRow(math.nan if score is None else score)


def _json_bytes(headers: Mapping[str, str], whole: int) -> int:
    """Where the JSON of a response ends and its binary tensors begin."""
    text = headers.get(_JSON_BYTES, "")
    return min(int(text), whole) if text.isascii() and text.isdigit() and len(text) < 10 else whole


def _json_elements(outputs: Sequence[OutputTensor], binary: bytes) -> Callable[[int], TypedElements | None]:
    def elements(place: int) -> TypedElements | None:
        data = outputs[place].data
        data = data if data is not None else binary_elements(place, outputs, binary)
        return TypedElements(data, len(data)) if isinstance(data, list) else None

    return elements


def _of_outputs(
    outputs: Sequence[OutputTensor], elements: Callable[[int], TypedElements | None], most: int
) -> Predictions | None:
    """The labels where one output has them, else what the first output with data has."""
    if len(outputs) > MAX_OUTPUTS:
        return None
    labels = [place for place, one in enumerate(outputs) if one.datatype.startswith(_LABELS)]
    named = len(labels) == 1
    for place in labels if named else range(len(outputs)):
        shape, found = outputs[place].shape, elements(place)
        if found is None or not found.first:
            continue
        flat = len(shape) <= MAX_DIMENSIONS and all(0 < size <= MAX_BYTES for size in shape[1:])
        columns = math.prod(shape[1:]) if flat else 1
        first, rows = found.first, found.count
        if columns > 1 and not isinstance(first[0], list):
            rows = math.ceil(found.count / columns)
            whole = len(first) if len(first) == found.count else len(first) - len(first) % columns
            first = [first[begin : begin + columns] for begin in range(0, min(whole, most * columns), columns)]
        if first:
            return Predictions(tuple(_of_row(row, named=named) for row in first[:most]), rows)
    return None


def _of_row(row: Any, *, named: bool) -> PredictedRow | None:
    """The prediction of one row, or None. Of several named values the first counts, and is no label of the response."""
    while (isinstance(row, dict) and row) or (isinstance(row, list) and len(row) == 1):
        named = named and isinstance(row, list)
        row = next(iter(row.values())) if isinstance(row, dict) else row[0]
    if row is None:
        return PredictedRow(math.nan)  # in JSON of a model
    if isinstance(row, float):
        return PredictedRow(row)
    if isinstance(row, str):
        return PredictedRow(row, named)
    if isinstance(row, int):
        return PredictedRow(row, named) if abs(row) < _WHOLE else None
    if not isinstance(row, list) or not row or any(isinstance(one, str | dict | list) for one in row):
        return None
    unknown = any(one is None or one != one for one in row)
    return PredictedRow(math.nan if unknown else row.index(max(row)))
