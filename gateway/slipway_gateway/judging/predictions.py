"""Predictions of classic models, counted in bins that both revisions share (pure).

The bins come from the first predictions that a gateway reads of a route, of either revision, and stay: ten of equal
size for numbers, whatever their unit, or the most frequent labels. Fixed bins would hide a shift of numbers that lie
close together. What the bins are is decided before a prediction is counted, and is the same for both sides.
"""

import math
from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from typing import Any
from zlib import crc32

import msgspec

from ..wire import inference

MAX_BYTES = 64 << 10  # of a response: longer ones are not read
MAX_LABEL = 256  # characters: labels that are longer and begin alike count as one
LEARNED = 200  # predictions that make the bins, and are not counted
BINS = 17
OTHER = BINS - 1  # labels without a bin of their own, and what is no finite number among numbers
_QUANTILES = 10
_WHOLE = 1 << 64  # beyond the largest datatype
_LABELS = ("INT", "UINT", "BOOL", "BYTES")  # beginnings of the data types of labels

Prediction = str | int | float


class _OutputTensor(msgspec.Struct):
    datatype: str = ""
    shape: list[int] = []
    data: Any = None


class _PredictAnswer(msgspec.Struct):
    prediction: Any = msgspec.UNSET
    predictions: list[Any] | None = None
    outputs: list[_OutputTensor] | None = None


_DECODER = msgspec.json.Decoder(_PredictAnswer | list[_PredictAnswer])


def read_prediction(path: str, body: bytes) -> Prediction | None:
    """The prediction of the first row of a JSON response: a label, a number, or the place of the largest of several.

    None where there is none: a longer body, binary outputs, another path. Rows of one response are one observation, for
    one revision computes all of them.
    """
    if not inference.is_predict(path) or len(body) > MAX_BYTES:
        return None
    try:
        found = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    first = found if isinstance(found, _PredictAnswer) else found[0] if found else _PredictAnswer()
    if first.outputs is not None:
        return _of_outputs(first.outputs)
    if first.predictions is not None:
        return _of_row(first.predictions[0]) if first.predictions else None
    return _of_row(first.prediction)


def _of_outputs(outputs: list[_OutputTensor]) -> Prediction | None:
    """A label where there is one, else what the first output has for the first row."""
    labels = [one for one in outputs if one.datatype.startswith(_LABELS)]
    for one in labels if len(labels) == 1 else outputs:
        if not isinstance(one.data, list) or not one.data:
            continue
        if isinstance(one.data[0], list):
            return _of_row(one.data[0])
        columns = math.prod(one.shape[1:]) if all(0 < size <= MAX_BYTES for size in one.shape[1:]) else 1
        return _of_row(one.data[0] if columns == 1 else one.data[:columns])
    return None


def _of_row(row: Any) -> Prediction | None:
    """Of several named values the first one counts."""
    while (isinstance(row, dict) and row) or (isinstance(row, list) and len(row) == 1):
        row = next(iter(row.values())) if isinstance(row, dict) else row[0]
    if row is None:
        return math.nan  # in JSON of a model
    if isinstance(row, str | float):
        return row
    if isinstance(row, int):
        return row if abs(row) < _WHOLE else None
    if not isinstance(row, list):
        return None
    if not row or any(isinstance(one, str | dict | list) for one in row):
        return None
    return math.nan if None in row else row.index(max(row))


class PredictionBins:
    """The bins of one route at one gateway."""

    __slots__ = ("_cuts", "_labels", "_learned")

    def __init__(self) -> None:
        self._learned: list[Prediction] = []
        self._cuts: list[float] = []
        self._labels: dict[str, int] | None = None

    def place(self, prediction: Prediction) -> int | None:
        """The bin of a prediction; None while the bins are made of the first ones."""
        if self._labels is None and not self._cuts:
            self._learned.append(prediction[:MAX_LABEL] if isinstance(prediction, str) else prediction)
            if len(self._learned) >= LEARNED:
                self._make()
            return None
        if self._labels is not None:
            return self._labels.get(_label(prediction), OTHER)
        number = _number(prediction)
        return OTHER if number is None else bisect_left(self._cuts, number)

    def _make(self) -> None:
        numbers = [number for one in self._learned if (number := _number(one)) is not None]
        # JSON may have 3 for 3.0: one number with a fraction shows that all are numbers and no labels.
        if any(isinstance(one, float) for one in self._learned) and len(numbers) > len(self._learned) // 2:
            self._cuts = _cuts(sorted(numbers))
        else:
            self._labels = _slots(Counter(map(_label, self._learned)))
        self._learned = []


def _label(prediction: Prediction) -> str:
    return prediction[:MAX_LABEL] if isinstance(prediction, str) else str(prediction)


def _number(prediction: Prediction) -> float | None:
    if isinstance(prediction, str):
        return None
    try:
        number = float(prediction)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _cuts(numbers: list[float]) -> list[float]:
    """Upper ends of the bins, inclusive: below all that is known, ten parts of equal size, and above all.

    A number that fills a whole part, such as 0, gets a bin of its own.
    """
    ends = [numbers[(len(numbers) - 1) * part // _QUANTILES] for part in range(_QUANTILES + 1)]
    alone = {low for low, high in pairwise(ends) if low == high}
    below = {math.nextafter(end, -math.inf) for end in (*alone, ends[0])}
    return sorted({*ends[1:], *below})[: OTHER - 1]


def _slots(labels: Counter[str]) -> dict[str, int]:
    """Bins of the most frequent labels, found by the label itself: gateways that know the same ones agree."""
    found: dict[str, int] = {}
    for label in sorted((name for name, _ in labels.most_common(OTHER)), key=lambda name: (crc32(_bytes(name)), name)):
        slot = crc32(_bytes(label)) % OTHER
        while slot in found.values():
            slot = (slot + 1) % OTHER
        found[label] = slot
    return found


def _bytes(label: str) -> bytes:
    return label.encode("utf-8", "surrogatepass")
