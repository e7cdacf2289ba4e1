"""Schedules: when they are active, also over changes of the clock, and which cannot be followed."""

from datetime import UTC, datetime, timedelta

import pytest
from cronsim import CronSim

from slipway_operator.scaling_model import schedules
from slipway_operator.scaling_model.schedules import Schedule, active, bounds, problem

MORNING = Schedule("morning", "0 8 * * 1-5", "Europe/Berlin", timedelta(hours=10), 4, 12)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "floor"),
    [
        ("2026-01-05T06:59:59", 0),  # a Monday in winter: 8:00 is 7:00 UTC
        ("2026-01-05T07:00:00", 4),
        ("2026-01-05T16:59:59", 4),
        ("2026-01-05T17:00:00", 0),
        ("2026-01-04T10:00:00", 0),  # Sunday
        ("2026-07-06T06:00:00", 4),  # in summer it is 6:00 UTC
        ("2026-07-06T16:00:00", 0),
    ],
)
def test_when_a_schedule_is_active(moment: str, floor: int) -> None:
    assert bounds((MORNING,), at(moment)) == (floor, 12 if floor else None)


def test_the_highest_floor_and_the_lowest_ceiling_count() -> None:
    always = Schedule("always", "* * * * *", "Etc/UTC", timedelta(minutes=2), 2, 6)
    assert bounds((MORNING, always), at("2026-01-05T10:00:00")) == (4, 6)
    assert active((MORNING, always), at("2026-01-04T10:00:00")) == (always,)


def test_a_time_that_a_change_of_the_clock_skips() -> None:
    """Debian's cron runs what was skipped right after it: the day has its schedule."""
    night = Schedule("night", "30 2 * * *", "Europe/Berlin", timedelta(hours=1), 3)
    assert any(bounds((night,), at(f"2026-03-29T01:{minute:02}:00"))[0] == 3 for minute in range(0, 60, 5))


@pytest.mark.parametrize(
    ("cron", "zone", "field"),
    [
        ("0 8 * * 1-5", "Mars/Olympus", "timeZone"),
        ("0 8 * *", "Etc/UTC", "cron"),
        ("0 0 8 * * 1", "Etc/UTC", "cron"),
        ("61 8 * * *", "Etc/UTC", "cron"),
        ("@daily", "Etc/UTC", "cron"),
        ("0 0 31 2 *", "Etc/UTC", "cron"),
        ("../../x", "../../etc/passwd", "timeZone"),
    ],
)
def test_what_cannot_be_followed_names_its_field(cron: str, zone: str, field: str) -> None:
    assert problem(Schedule("x", cron, zone, timedelta(hours=1))).startswith(field)
    assert problem(MORNING) == ""


def test_a_rare_time_is_not_searched_for_at_each_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search takes milliseconds: those of one tenant's schedules, every 10 s, would hold up all others."""
    searches: list[str] = []

    def counted(cron: str, since: datetime) -> CronSim:
        searches.append(cron)
        return CronSim(cron, since)

    monkeypatch.setattr(schedules, "CronSim", counted)
    rare = Schedule("rare", "0 0 * 2 1#5", "America/New_York", timedelta(days=1), 3)
    moments = [at("2026-01-05T00:00:00") + timedelta(seconds=10 * number) for number in range(100)]
    assert {bounds((rare,), moment) for moment in moments} == {(0, None)}
    for _ in range(5):
        assert problem(rare) == ""
    assert len(searches) == 2
    assert bounds((rare,), at("2044-02-29T12:00:00")) == (3, None) and bounds((rare,), moments[0]) == (0, None)
