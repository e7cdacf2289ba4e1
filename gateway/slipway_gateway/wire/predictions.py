"""What a response of a classic model predicts, row by row: the only reader of these responses (pure).

It reads JSON of the Open Inference Protocol, of KServe's V1 and of /api/v1, and tensors of the protocol's binary
extension. Long responses, gRPC and compressed ones have no predictions here.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from . import inference

MAX_BYTES = 64 << 10  # of a response: longer ones are not read
MAX_ROWS = 256  # of a response; rows behind them are counted and not read
_JSON_BYTES = "Inference-Header-Content-Length"
_WHOLE = 1 << 64  # beyond the largest datatype
_LABELS = ("INT", "UINT", "BOOL", "BYTES")  # beginnings of the data types of labels
_FORMATS = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I",
    "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip

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


class _OutputTensor(msgspec.Struct):
    datatype: str = ""
    shape: list[int] = []
    data: Any = None
    parameters: dict[str, Any] | None = None


class _PredictAnswer(msgspec.Struct):
    prediction: Any = msgspec.UNSET
    predictions: list[Any] | None = None
    outputs: list[_OutputTensor] | None = None


_DECODER = msgspec.json.Decoder(_PredictAnswer | list[_PredictAnswer])


def read_predictions(path: str, headers: Mapping[str, str], body: bytes, most: int = MAX_ROWS) -> Predictions | None:
    """The first rows of a whole response; None where it has none that can be read."""
    if not inference.is_predict(path) or len(body) > MAX_BYTES or "Content-Encoding" in headers:
        return None
    end = _json_bytes(headers, len(body))
    try:
        found = _DECODER.decode(body[:end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(found, list):
        rows, count = [one.prediction for one in found[:most]], len(found)
    elif found.outputs is not None:
        return _of_outputs(found.outputs, body[end:], most)
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


def _json_bytes(headers: Mapping[str, str], whole: int) -> int:
    """Where the JSON of a response ends and its binary tensors begin."""
    text = headers.get(_JSON_BYTES, "")
    return min(int(text), whole) if text.isascii() and text.isdigit() and len(text) < 10 else whole


def _of_outputs(outputs: Sequence[_OutputTensor], binary: bytes, most: int) -> Predictions | None:
    """The labels where one output has them, else what the first output with data has."""
    labels = [one for one in outputs if one.datatype.startswith(_LABELS)]
    named = len(labels) == 1
    for one in labels if named else outputs:
        columns = math.prod(one.shape[1:]) if all(0 < size <= MAX_BYTES for size in one.shape[1:]) else 1
        data = one.data if one.data is not None else _decoded(one, outputs, binary)
        if not isinstance(data, list) or not data:
            continue
        if columns == 1 or isinstance(data[0], list):
            rows, count = data[:most], len(data)
        else:
            count = math.ceil(len(data) / columns)
            rows = [data[place * columns : (place + 1) * columns] for place in range(min(count, most))]
        return Predictions(tuple(_of_row(row, named=named) for row in rows), count)
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


# -- the binary extension: tensors behind the JSON, in the order of the outputs that have a size, little-endian


def _decoded(wanted: _OutputTensor, outputs: Sequence[_OutputTensor], binary: bytes) -> list[Any] | None:
    """The elements of a binary tensor; None where there is none, or where its size does not fit the data."""
    begin = 0
    for one in outputs:
        size = (one.parameters or {}).get("binary_data_size")
        if size is None:
            continue
        if not isinstance(size, int) or not 0 <= size <= len(binary) - begin:
            return None
        if one is wanted:
            return _elements(one.datatype, binary[begin : begin + size])
        begin += size
    return None


def _elements(datatype: str, data: bytes) -> list[Any] | None:
    if datatype == "BYTES":
        return _texts(data)
    if datatype == "BF16":  # the upper half of an FP32
        halves = struct.iter_unpack("<2s", data) if len(data) % 2 == 0 else ()
        return [struct.unpack("<f", b"\0\0" + half)[0] for (half,) in halves]
    code = _FORMATS.get(datatype)
    if code is None or len(data) % struct.calcsize(f"<{code}"):
        return None
    return [one for (one,) in struct.iter_unpack(f"<{code}", data)]


def _texts(data: bytes) -> list[Any] | None:
    """The elements of a BYTES tensor, each its length in four bytes and its bytes; None where one is cut off."""
    found: list[Any] = []
    begin = 0
    while begin < len(data):
        if begin + 4 > len(data):
            return None
        end = begin + 4 + int.from_bytes(data[begin : begin + 4], "little")
        if end > len(data):
            return None
        found.append(data[begin + 4 : end].decode("utf-8", "surrogateescape"))
        begin = end
    return found
