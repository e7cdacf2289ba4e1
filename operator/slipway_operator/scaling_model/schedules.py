"""Schedules of scaling: a floor and a ceiling for some time from each time of a cron expression on; pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

LONGEST_CRON = 128  # characters
# Schedules whose times are remembered: the search for a rare one takes milliseconds, and each is needed every 10 s.
MOST_REMEMBERED = 1 << 14


@dataclass(frozen=True, slots=True)
class Schedule:
    """From each time of `cron` on, `duration` long. None: it does not change that bound."""

    name: str
    cron: str
    time_zone: str
    duration: timedelta
    min_replicas: int | None = None
    max_replicas: int | None = None


# By schedule: from when on, and the first beginning after that; None: there is none.
_begins: dict[Schedule, tuple[datetime, datetime | None]] = {}


@lru_cache(MOST_REMEMBERED)
def problem(schedule: Schedule) -> str:
    """Why a schedule cannot be followed, beginning with the field; empty where it can."""
    try:
        zone = ZoneInfo(schedule.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"timeZone {schedule.time_zone!r} is not known: write for example Europe/Berlin or Etc/UTC"
    if len(schedule.cron.split()) != 5:
        return f"cron {schedule.cron!r} has not five fields: write for example 0 8 * * 1-5"
    try:
        next(CronSim(schedule.cron, datetime(2026, 1, 1, tzinfo=zone)))
    except (CronSimError, StopIteration) as error:
        return f"cron {schedule.cron!r} is no time: {error or 'it never comes'}; write for example 0 8 * * 1-5"
    return ""


def active(schedules: tuple[Schedule, ...], now: datetime) -> tuple[Schedule, ...]:
    """Those that have begun and not ended."""
    return tuple(schedule for schedule in schedules if _is_active(schedule, now))


def bounds(schedules: tuple[Schedule, ...], now: datetime) -> tuple[int, int | None]:
    """The highest floor and the lowest ceiling of active schedules; 0 and None without one."""
    present = active(schedules, now)
    floors = [schedule.min_replicas for schedule in present if schedule.min_replicas is not None]
    ceilings = [schedule.max_replicas for schedule in present if schedule.max_replicas is not None]
    return max(floors, default=0), min(ceilings, default=None)


def _is_active(schedule: Schedule, now: datetime) -> bool:
    """Whether its last beginning is less than its duration ago."""
    # The first beginning that has not ended. Times are subtracted in UTC, as a day with a change of the clock is no
    # 24 hours long.
    begins = _first_after(schedule, now.astimezone(UTC) - schedule.duration)
    return begins is not None and begins <= now


def _first_after(schedule: Schedule, since: datetime) -> datetime | None:
    """The first beginning after a time. The one that was computed last counts until it is over."""
    remembered = _begins.get(schedule)
    if remembered and remembered[0] <= since and (remembered[1] is None or since < remembered[1]):
        return remembered[1]
    begins = next(CronSim(schedule.cron, since.astimezone(ZoneInfo(schedule.time_zone))), None)
    if len(_begins) >= MOST_REMEMBERED:
        _begins.clear()
    _begins[schedule] = since, begins
    return begins
