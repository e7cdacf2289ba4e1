"""Charts of numbers over time, made of characters; pure. Points are (seconds, value); a value holds until the next."""

from collections.abc import Sequence

Points = Sequence[tuple[int, float]]

WIDTH, MOST_ROWS, SPARK_WIDTH = 60, 9, 16
_LEVELS = "▁▂▃▄▅▆▇█"


def draw_plot(points: Points, line: float, *, low: int, high: int, end: int) -> list[str]:
    """Rows of a chart of decimal logarithms from `low` to `high`, 0 to `end` seconds, with a dashed line at `line`."""
    each = max(1, (MOST_ROWS - 1) // (high - low))  # rows for a power of ten
    count = each * (high - low) + 1
    columns = _columns(points, end, WIDTH)
    heights = [None if value is None else _level(value, low, high, count) for value in columns]
    dashes = _level(line, low, high, count)
    rows = []
    for level in reversed(range(count)):
        empty = "-" if level == dashes else " "
        marks = "".join("*" if height == level else empty for height in heights)
        power = "" if level % each else f"{10.0 ** (low + level // each):g}"
        rows.append(f"{power:>8} |{marks}".rstrip())
    last = f"{end}s"
    return [*rows, f"{'':>8} +{'-' * WIDTH}", f"{'':>8}  0s{last:>{WIDTH - 2}}"]


def draw_sparkline(points: Points, *, low: float, high: float, end: int) -> str:
    """A chart in one row of block characters, from `low` to `high`, 0 to `end` seconds."""
    values = _columns(points, end, SPARK_WIDTH)
    return "".join(" " if value is None else _LEVELS[_level(value, low, high, len(_LEVELS))] for value in values)


def _columns(points: Points, end: int, width: int) -> list[float | None]:
    """The value at the end of each column's part of the time; None before the first point."""
    times = (end * (column + 1) / width for column in range(width))
    return [next((value for seconds, value in reversed(points) if seconds <= time), None) for time in times]


def _level(value: float, low: float, high: float, levels: int) -> int:
    """The row of a value, from 0; values outside are at the edge."""
    return min(levels - 1, max(0, round((value - low) / (high - low) * (levels - 1))))
