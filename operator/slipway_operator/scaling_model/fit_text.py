"""The text in which a status keeps the numbers of a capacity model or a forecast; pure."""

import math
from collections.abc import Iterable

from slipway_operator.scaling_model.capacity_model import CapacityModel
from slipway_operator.scaling_model.load_curve import LoadCurve
from slipway_operator.scaling_model.step_fit import StepFit

_HEAD = 3  # numbers of a fit before its step times
_LARGEST_WHOLE = 1e9  # number that is written as one: its digits fit where others have an exponent
_STEPS = len(StepFit().sums)


def numbers_of(text: str) -> list[float]:
    """The numbers of a text of the status; none where one is no number. Other clients may have written it."""
    try:
        numbers = [float(word) for word in text.split()]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def text_of(numbers: Iterable[float]) -> str:
    """Numbers for the status, with five digits; whole ones, such as the number of a bucket, with all of them."""
    return " ".join(f"{number:.0f}" if _is_whole(number) else f"{number:.5g}" for number in numbers)


def _is_whole(number: float) -> bool:
    return abs(number) < _LARGEST_WHOLE and number == int(number)


def of_model(model: CapacityModel) -> str:
    """The text of a model."""
    head = (model.slots, model.prompts_for_each, float(len(model.starts_s)))
    return text_of((*head, *model.starts_s, *model.steps.sums, *model.curve.numbers()))


def model_of(text: str) -> CapacityModel:
    """The model of a text; an empty one where it is not one's."""
    numbers = numbers_of(text)
    if len(numbers) < _HEAD or min(numbers[:_HEAD]) < 0:
        return CapacityModel()
    slots, mix, count = numbers[:_HEAD]
    starts, rest = numbers[_HEAD : _HEAD + int(count)], numbers[_HEAD + int(count) :]
    model = CapacityModel(StepFit.of(rest[:_STEPS]), LoadCurve.of(rest[_STEPS:]), slots, mix)
    for seconds in starts[:9]:
        model = model.started(seconds)
    return model
