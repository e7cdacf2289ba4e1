"""Predictions of classic models, counted in bins that both revisions share (pure).

The bins come from the first predictions that a gateway reads of a route, of either revision, and stay: ten of equal
size for numbers, whatever their unit, or the most frequent labels. Fixed bins would hide a shift of numbers that lie
close together. What the bins are is decided before a prediction is counted, and is the same for both sides.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

from slipway_contracts.accuracy import PublishedBins
from slipway_contracts.counters import BINS

from ..wire.predictions import Value

MAX_LABEL = 256  # characters: labels that are longer and begin alike count as one
LEARNED = 200  # the first predictions, from which the bins are made, and which are not counted
OTHER = BINS - 1  # labels without a bin of their own, and what is no finite number among numbers
_QUANTILES = 10


class PredictionBins:
    """The bins of one route at one gateway."""

    __slots__ = ("_cuts", "_labels", "_learned")

    def __init__(self) -> None:
        self._learned: list[Value] = []
        self._cuts: list[float] = []
        self._labels: dict[str, int] | None = None

    def place(self, prediction: Value) -> int | None:
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
        self._cuts = _cuts_of(self._learned)
        if not self._cuts:
            self._labels = _slots(Counter(map(_label, self._learned)))
        self._learned = []


class CommonBins:
    """Bins that the operator published: the same at all gateways, also after they restart."""

    __slots__ = ("_cuts", "_labels")

    def __init__(self, bins: PublishedBins) -> None:
        self._cuts = bins.numbers
        self._labels = {crc: place for place, crc in enumerate(bins.labels)}

    def place(self, prediction: Value) -> int:
        """The bin of a prediction."""
        if self._labels:
            return self._labels.get(crc32(_bytes(_label(prediction))), OTHER)
        number = _number(prediction)
        return OTHER if number is None else bisect_left(self._cuts, number)


def bins_to_publish(predictions: Sequence[Value]) -> PublishedBins:
    """Bins of these predictions: cuts of numbers, or the most frequent labels, which it does not contain as text."""
    cuts = _cuts_of(predictions)
    if cuts:
        return PublishedBins(cuts=tuple(map(repr, cuts)))
    common = Counter(map(_label, predictions)).most_common(OTHER)
    return PublishedBins(labels=tuple(dict.fromkeys(crc32(_bytes(label)) for label, _ in common)))


def _cuts_of(predictions: Sequence[Value]) -> list[float]:
    """Upper ends of the bins of numbers; none where the predictions are labels."""
    numbers = [number for one in predictions if (number := _number(one)) is not None]
    # JSON may have 3 for 3.0: one number with a fraction shows that all are numbers and no labels.
    are_numbers = any(isinstance(one, float) for one in predictions) and len(numbers) > len(predictions) // 2
    return _cuts(sorted(numbers)) if are_numbers else []


def _label(prediction: Value) -> str:
    return prediction[:MAX_LABEL] if isinstance(prediction, str) else str(prediction)


def _number(prediction: Value) -> float | None:
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
    """Bins of the most frequent labels, by label. Gateways that know the same labels give them the same bins."""
    found: dict[str, int] = {}
    for label in sorted((name for name, _ in labels.most_common(OTHER)), key=lambda name: (crc32(_bytes(name)), name)):
        slot = crc32(_bytes(label)) % OTHER
        while slot in found.values():
            slot = (slot + 1) % OTHER
        found[label] = slot
    return found


def _bytes(label: str) -> bytes:
    return label.encode("utf-8", "surrogatepass")
