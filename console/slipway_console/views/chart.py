"""A picture of a bound over time: the coordinates of its lines, in units of its view box; pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slipway_cli.objects.times import format_duration

WIDTH, HEIGHT = 640.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 12.0, 28.0
_ROOM = 4.0  # the picture shows up to so many times the limit: bounds begin at many times more
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Point:
    """One reading: seconds since the start, and the bounds then."""

    seconds: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis: where, and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Coordinates of one picture. `band` and `line` are points of SVG: `x,y x,y`."""

    band: str
    line: str
    limit_y: float
    limit_label: str
    end_x: float
    end_y: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[float, ...]  # x of each decision
    is_cut: bool  # whether values are above the top of the picture


def draw(points: Sequence[Point], limit: float, marks: Sequence[float] = (), *, floor: float | None = None) -> Chart:
    """The picture of at least one point. `marks`: seconds of decisions; `floor`: the lowest value that is shown."""
    finite = [point for point in points if math.isfinite(point.high) and math.isfinite(point.low)] or [
        Point(points[-1].seconds, 0.0, 0.0)
    ]
    last_s = max(1.0, finite[-1].seconds, *marks) if marks else max(1.0, finite[-1].seconds)
    top, bottom = _range(finite, limit, floor)

    def x(seconds: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, seconds / last_s)), 1)

    def y(value: float) -> float:
        share = (min(top, max(bottom, value)) - bottom) / (top - bottom)
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    upper = [f"{x(point.seconds)},{y(point.high)}" for point in finite]
    lower = [f"{x(point.seconds)},{y(point.low)}" for point in reversed(finite)]
    end = finite[-1]
    return Chart(
        band=" ".join([*upper, *lower]),
        line=" ".join(upper),
        limit_y=y(limit),
        limit_label=format_number(limit),
        end_x=x(end.seconds),
        end_y=y(end.high),
        x_ticks=tuple(Tick(x(at), format_duration(at)) for at in _steps(0.0, last_s, whole=True)),
        y_ticks=tuple(Tick(y(at), format_number(at)) for at in _steps(bottom, top)),
        marks=tuple(x(at) for at in marks),
        is_cut=any(point.high > top for point in finite),
    )


def format_number(value: float) -> str:
    """A number with three digits, as people write it."""
    if not math.isfinite(value):
        return "unbounded" if value > 0 else "-"
    text = f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return "0" if text == "-0" else text


def _range(points: Sequence[Point], limit: float, floor: float | None) -> tuple[float, float]:
    """The highest and the lowest value that is shown."""
    high, low = max(point.high for point in points), min(point.low for point in points)
    # What decides is the end, beside the limit; the beginning of a bound is far away from both.
    top = min(max(high, 1.2 * limit), max(_ROOM * limit, 1.2 * points[-1].high))
    bottom = min(0.0, max(low, -top)) if floor is None else floor
    return (top if top > bottom else bottom + 1.0), bottom


def _steps(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Round values between both."""
    rough = max((high - low) / _TICKS, 1.0 if whole else 1e-9)
    sizes = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400) if whole else ()
    size = next((float(one) for one in sizes if one >= rough), 0.0)
    if not size:
        power = 10.0 ** math.floor(math.log10(rough))
        size = power * next(one for one in (1, 2, 5, 10) if one * power >= rough * 0.999)
    first, last = math.ceil(low / size), math.floor(high / size)
    return [number * size for number in range(first, min(last, first + 20) + 1)]
