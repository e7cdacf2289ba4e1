"""Whether canary predicts for a mirrored request what stable did, (pure)."""

import math

from slipway_contracts.counters import Agreement
from slipway_contracts.twin_shadow import PredictionTolerance

from ..wire.predictions import PredictedRow, Predictions, label_text


def compare(stable: Predictions | None, canary: Predictions | None, tolerance: PredictionTolerance) -> Agreement:
    """Compares two whole responses: one result, however many rows they have.

    Stable's response alone decides whether they are compared: a canary's response that cannot be read disagrees, so a
    canary cannot hide behind one.
    """
    if stable is None or not stable.whole:
        return Agreement.UNREAD
    if canary is None or canary.count != stable.count or len(canary.rows) != len(stable.rows):
        return Agreement.DISAGREED
    same = all(_is_same(one, other, tolerance) for one, other in zip(stable.rows, canary.rows, strict=True))
    return Agreement.AGREED if same else Agreement.DISAGREED


def _is_same(one: PredictedRow | None, other: PredictedRow | None, tolerance: PredictionTolerance) -> bool:
    if one is None or other is None:
        return False
    if not (isinstance(one.value, float) or isinstance(other.value, float)):
        return label_text(one.value) == label_text(other.value)
    if isinstance(one.value, str) or isinstance(other.value, str):
        return False
    if math.isnan(one.value) or math.isnan(other.value):
        return math.isnan(one.value) and math.isnan(other.value)
    relative, absolute = tolerance.relative_millionths / 1_000_000, tolerance.absolute_billionths / 1_000_000_000
    return math.isclose(one.value, other.value, rel_tol=relative, abs_tol=absolute)
