"""Hours, days and months of Unix time, in UTC (pure). An hour is a number: the hours since the epoch."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

HOUR_S = 3600


def hour_of(unix_s: float) -> int:
    return int(unix_s // HOUR_S)


def day_begin(hour: int) -> int:
    """The hour in which the day of this hour begins."""
    return hour - hour % 24


@lru_cache(maxsize=64)  # every request of a tenant calls it, with the current hour
def month_begin(hour: int) -> int:
    begin = _moment(hour).replace(day=1, hour=0)
    return hour_of(begin.timestamp())


def day_end_s(hour: int) -> float:
    return float((day_begin(hour) + 24) * HOUR_S)


def month_end_s(hour: int) -> float:
    # 32 days after its first one every month is over.
    return float(month_begin(month_begin(hour) + 32 * 24) * HOUR_S)


def shown_hour(hour: int) -> str:
    """The time at which an hour begins, as `2026-11-25T04:00:00Z`."""
    return _moment(hour).strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(hour: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(hours=hour)
