"""How a monitor of spec.accuracy moves on: reference, bets, alarm, and the end of an alarm (pure).

Without a reference, all that may be spent on false alarms is invested in the bets. With one, half of it is: a bound of
the reference is wrong with a small probability, and then there may be an alarm in each week. The level of the bounds is
such that this costs the other half at most.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache

from slipway_contracts.api.times import format_time, parse_time
from slipway_operator.api.v1alpha1.accuracy_status import FEEDBACK, AccuracyMonitor
from slipway_operator.judging.monitor import (
    BIN_FACTORS,
    LABEL_FACTORS,
    ShareTest,
    evidence,
    moved,
    upper_bound,
)
from slipway_operator.model.deployment.accuracy import SignalTerms

ALARM_LASTS = timedelta(days=7)  # at least: so there is at most one alarm in this time
LEAST_AFTER = 100  # observations since an alarm, by which it may end
WRONG = 1  # the place of wrong labels in a tally
DAYS = {FEEDBACK: 28}  # that have counts of their own; of predictions a week
_WEEK = 7
KEPT = 1024  # tests of references, which stay as they are
_YEAR_DAYS, _YEAR_WEEKS = 365.0, 52
# What was not read for so long is invested as if it had been that long: a clock may be wrong by any time.
_LONGEST = timedelta(days=7)
_DAY = timedelta(days=1)

Tally = tuple[int, ...]


def renewed(
    former: AccuracyMonitor, terms: SignalTerms, grown: Tally, now: datetime, elapsed: timedelta
) -> AccuracyMonitor:
    """The monitor after these observations. `elapsed`: since the last ones, while the revision served."""
    monitor = _within(former, terms, len(grown))
    periods = tuple(_periods(monitor, grown, now))
    counts = _sum(monitor.counts, grown)
    monitor = replace(monitor, counts=counts, periods=periods)
    if terms.reference_rule and monitor.reference_until is None:
        return _referred(monitor, terms, grown, now)
    tests = tests_of(terms, monitor.reference)
    lowest = min((test.limit for test in tests), default=1.0)
    monitor = replace(monitor, limit=float(f"{lowest:.6g}") if terms.signal == FEEDBACK else None)
    if monitor.alarm_since is not None:
        return _after_alarm(monitor, tests, grown, now)
    if not tests:  # no share can be too large
        return replace(monitor, bets=(), evidence=0.0)
    invested = _invested(terms, min(max(elapsed, timedelta()), _LONGEST))
    bets = moved(monitor.bets, tests, _factors(terms), grown, invested)
    found = evidence(bets)
    if found < 1.0:
        return replace(monitor, bets=bets, evidence=float(f"{found:.4g}"))
    alarm = replace(monitor, alarm_since=now, alarms=monitor.alarms + 1, bets=(), after=(0,) * len(grown), evidence=1.0)
    return replace(alarm, finding=_finding(alarm, terms, tests, now))


@lru_cache(KEPT)
def tests_of(terms: SignalTerms, reference: Tally) -> tuple[ShareTest, ...]:
    """What is tested, with a complete reference where there has to be one; nothing where no share can be too large."""
    if terms.signal == FEEDBACK:
        tests = tuple(_of_labels(terms, reference))
    else:
        tests = tuple(test for place in range(len(reference)) for test in _of_bin(terms, place, reference))
    return tuple(test for test in tests if test.limit < 1)


def recent(monitor: AccuracyMonitor, now: datetime) -> Tally:
    """Counts of the last seven days; zeros where nothing was observed."""
    size, since = len(monitor.counts), now - _WEEK * _DAY
    days = [counts for start, counts in _read(monitor.periods) if start > since and len(counts) == size]
    return tuple(sum(day[place] for day in days) for place in range(size))


def _of_labels(terms: SignalTerms, reference: Tally) -> Iterator[ShareTest]:
    if terms.share_limit is not None:
        yield ShareTest(WRONG, terms.share_limit)
    if terms.max_rise is not None and sum(reference) > 0:
        highest = upper_bound(reference[WRONG], sum(reference), _level(terms, 1))
        yield ShareTest(WRONG, highest + terms.max_rise)


def _of_bin(terms: SignalTerms, place: int, reference: Tally) -> Iterator[ShareTest]:
    level, total, rise = _level(terms, 2 * len(reference)), sum(reference), terms.max_rise or 0.0
    if total:
        yield ShareTest(place, upper_bound(reference[place], total, level) + rise)
        yield ShareTest(place, upper_bound(total - reference[place], total, level) + rise, falling=True)


def _level(terms: SignalTerms, bounds: int) -> float:
    """How often each of so many bounds of a reference may be wrong."""
    return min(0.5, terms.rate / 2 / _YEAR_WEEKS / bounds)


def _invested(terms: SignalTerms, elapsed: timedelta) -> float:
    share = 0.5 if terms.reference_rule else 1.0
    return share * terms.rate * (elapsed / _DAY) / _YEAR_DAYS


def _factors(terms: SignalTerms) -> tuple[float, ...]:
    return LABEL_FACTORS if terms.signal == FEEDBACK else BIN_FACTORS


def _within(former: AccuracyMonitor, terms: SignalTerms, size: int) -> AccuracyMonitor:
    """The monitor by the present fields of spec.accuracy: other limits begin new evidence, and end an alarm.

    A status is written by others too: counts of another size count as lost.
    """
    monitor = former
    if monitor.reference_rule != terms.reference_rule or len(monitor.reference) not in (0, size):
        rule = terms.reference_rule
        monitor = replace(monitor, reference_rule=rule, reference=(), reference_until=None, limits="", limit=None)
    if monitor.limits != terms.limits:
        monitor = replace(monitor, limits=terms.limits, bets=(), evidence=0.0, alarm_since=None, after=())
    return monitor


def _referred(monitor: AccuracyMonitor, terms: SignalTerms, grown: Tally, now: datetime) -> AccuracyMonitor:
    """The monitor while its reference is taken."""
    reference = _sum(monitor.reference, grown)
    complete = sum(reference) >= terms.least and now - monitor.since >= terms.lasts
    return replace(monitor, reference=reference, reference_until=now if complete else None)


def _after_alarm(monitor: AccuracyMonitor, tests: Sequence[ShareTest], grown: Tally, now: datetime) -> AccuracyMonitor:
    """The monitor during an alarm: it ends after a week, when what came since is within all limits."""
    after = _sum(monitor.after, grown)
    since = monitor.alarm_since or now
    lasted = now - since >= ALARM_LASTS and sum(after) >= LEAST_AFTER
    if lasted and all(test.holds(after) for test in tests):
        return replace(monitor, alarm_since=None, after=(), evidence=0.0)
    return replace(monitor, after=after)


def _finding(monitor: AccuracyMonitor, terms: SignalTerms, tests: Sequence[ShareTest], now: datetime) -> str:
    """What an alarm is about: the test whose limit the last week exceeds most."""
    week = recent(monitor, now)
    total = sum(week)
    if not total:
        return f"evidence of {terms.signal.lower()} reached 1"
    test = max(tests, key=lambda one: one.events(week) / total - one.limit)
    events = test.events(week)
    span = f"{events:,} of {total:,}"
    if terms.signal == FEEDBACK:
        return f"{span} labels of the last days are wrong ({events / total:.2%}, limit {test.limit:.2%})"
    reference = f"{monitor.reference[test.place] / sum(monitor.reference):.2%} in the reference"
    inside = week[test.place]
    return (
        f"bin {test.place} has {inside:,} of {total:,} predictions of the last days ({inside / total:.2%}), and had "
        f"{reference}; maxShift is {terms.max_rise:g}"
    )


def _sum(before: Tally, grown: Tally) -> Tally:
    kept = before if len(before) == len(grown) else (0,) * len(grown)
    return tuple(one + more for one, more in zip(kept, grown, strict=True))


def _periods(monitor: AccuracyMonitor, grown: Tally, now: datetime) -> list[str]:
    days = DAYS.get(monitor.signal, _WEEK)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    kept = {
        start: counts
        for start, counts in _read(monitor.periods)
        if midnight - days * _DAY < start <= midnight and len(counts) == len(grown)
    }
    if sum(grown):
        kept[midnight] = _sum(kept.get(midnight, ()), grown)
    return [f"{format_time(start)} {':'.join(map(str, counts))}" for start, counts in sorted(kept.items())]


def _read(periods: Sequence[str]) -> Iterator[tuple[datetime, Tally]]:
    """Lines of `_periods`; what is malformed is left out."""
    for line in periods:
        start, _, numbers = line.partition(" ")
        parts = numbers.split(":")
        if not all(part.isascii() and part.isdigit() and len(part) <= 16 for part in parts):
            continue
        try:
            yield parse_time(start), tuple(map(int, parts))
        except ValueError:
            continue
