"""The error budgets of spec.slo: adds what gateways counted, over the window, and decides whether a budget is spent.

The status keeps the counts by period of the window, and of each gateway process what of its counters is in them
(`process_counts.py`). Requests that a gateway counted after it was last read are lost when it is killed: those of the
last 20 seconds.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from slipway_contracts import service_levels
from slipway_contracts.api.times import format_time, parse_time
from slipway_contracts.service_levels import Counted
from slipway_operator.api.v1alpha1.status import ObjectiveStatus, ServiceLevelStatus, State
from slipway_operator.model.cluster.observed import Gateway
from slipway_operator.model.deployment.objectives import ErrorBudgetTerms
from slipway_operator.planning.facts import process_counts
from slipway_operator.planning.facts.situation import Course, Situation

PERIODS = 28
LEAST_MISSED = 10  # fewer requests spend no budget: the first failure of a quiet model would
WRITE_S = 60.0  # counts alone are written no more often
READ_S, READ_IN_ROLLOUT_S = 20.0, 5.0  # less than a gateway that is gone is remembered
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Counts = dict[str, Counted]  # by key of `service_levels`


def holds(course: Course, at: Situation) -> bool:
    """Whether a rollout takes no step because a budget is spent. One whose steps are done or skipped goes on.

    So does one to the stable revision before: a spec that is reverted repairs what spent the budget, as an undo does.
    """
    rollout = course.rollout
    if not at.spec.strategy.hold_on_budget or rollout is None or not rollout.in_flight or course.stable is None:
        return False
    if rollout.skip_steps or rollout.revision == course.previous:
        return False
    return rollout.state is not State.PROMOTING and bool(spent(at))


def spent(at: Situation) -> tuple[ObjectiveStatus, ...]:
    """The objectives whose budget is spent, by the status as read and the targets of the spec."""
    if at.spec.slo is None or at.status.slo is None:
        return ()
    keys = at.spec.slo.levels.by_key()
    now = _summed(_periods(at.status.slo, at.spec.slo, at.now), keys)
    return tuple(filter(_is_spent, _objectives(at.spec.slo, now)))


def account(objective: ObjectiveStatus) -> str:
    """The numbers of an objective, for messages."""
    share = objective.missed / objective.requests
    return (
        f"{objective.objective}: {objective.missed} of {objective.requests} requests missed it ({share:.3%}), and "
        f"{100 - objective.target:g} % may"
    )


def sentence(course: Course, at: Situation) -> str:
    """The beginning of the message while a spent budget holds the rollout; else empty."""
    if not holds(course, at):
        return ""
    return f"held by holdOnBudget, because the error budget is spent ({'; '.join(map(account, spent(at)))}); "


def look_again_s(course: Course, at: Situation) -> float | None:
    """Seconds until the counters are read again; None without objectives."""
    if at.spec.slo is None:
        return None
    rollout = course.rollout
    return READ_IN_ROLLOUT_S if at.spec.strategy.hold_on_budget and rollout and rollout.in_flight else READ_S


def counted(at: Situation) -> ServiceLevelStatus | None:
    """What the status has of the objectives; the former value where nothing new is worth a write."""
    terms, former = at.spec.slo, at.status.slo
    if terms is None:
        return None
    renewed = _renewed(former, terms, at.observed.gateways, at.now)
    if former is None or _differs(former, renewed) or _is_last_word(former, renewed, at.observed.gateways):
        return renewed
    old_enough = at.elapsed_s(former.read_at) >= WRITE_S or at.now < former.read_at
    return renewed if old_enough and replace(renewed, read_at=former.read_at) != former else former


def _is_last_word(former: ServiceLevelStatus, renewed: ServiceLevelStatus, gateways: Iterable[Gateway]) -> bool:
    """Whether a gateway that is gone has counts that are not written: its last report is kept for a moment alone.

    It compares what would be written: nothing is of a process that is not counted, whose report would differ for ever.
    """
    before, after = (process_counts.read(status.counted, _sound) for status in (former, renewed))
    gone = (one.incarnation for one in gateways if one.gone and one.incarnation in before)
    return any(before[process] != after.get(process) for process in gone)


def _differs(former: ServiceLevelStatus, renewed: ServiceLevelStatus) -> bool:
    """Whether more than counts changed: the objectives, their targets, or which budgets are spent."""
    return [(one.objective, one.target, _is_spent(one)) for one in former.objectives] != [
        (one.objective, one.target, _is_spent(one)) for one in renewed.objectives
    ]


def _renewed(
    former: ServiceLevelStatus | None, terms: ErrorBudgetTerms, gateways: Iterable[Gateway], now: datetime
) -> ServiceLevelStatus:
    keys = terms.levels.by_key()
    before = process_counts.read(former.counted, _sound) if former else {}
    present = process_counts.fitting({one.incarnation: one.objectives for one in gateways}, before)
    periods = _periods(former, terms, now) if former else {}
    start = _period_start(now, terms.window)
    sums = periods.setdefault(start, {})
    for process, counts in present.items():
        for name, more in process_counts.growth(counts, before.get(process, {}), keys):
            total, missed = sums.get(name, (0, 0))
            sums[name] = (total + more[0], missed + more[1])
    return ServiceLevelStatus(
        now,
        tuple(_objectives(terms, _summed(periods, keys))),
        tuple(process_counts.line(format_time(begin), counts) for begin, counts in sorted(periods.items()) if counts),
        process_counts.noted(present, before, list(keys)),
    )


def _sound(counts: dict[str, process_counts.Tally]) -> Counts:
    """The counts of a line that are those of an objective."""
    return service_levels.read(counts)


def _periods(status: ServiceLevelStatus, terms: ErrorBudgetTerms, now: datetime) -> dict[datetime, Counts]:
    """Counts by the start of the period, of those within the window."""
    found: dict[datetime, Counts] = {}
    for begin, written in process_counts.read(status.periods).items():
        try:
            start = parse_time(begin)
        except ValueError:
            continue
        counts = service_levels.read(written)
        if now - terms.window < start <= now:
            found[start] = {name: counts[name] for name in terms.levels.by_key() if name in counts}
    # A shorter window has shorter periods: of too many the newest are kept.
    return dict(sorted(found.items())[-PERIODS:])


def _period_start(now: datetime, window: timedelta) -> datetime:
    length = window / PERIODS
    return _EPOCH + (now - _EPOCH) // length * length


def _summed(periods: Mapping[datetime, Counts], keys: Mapping[str, str]) -> Counts:
    sums: Counts = {}
    for counts in periods.values():
        for name in keys:
            total, missed = counts.get(name, (0, 0))
            before = sums.get(name, (0, 0))
            sums[name] = (before[0] + total, before[1] + missed)
    return sums


def _objectives(terms: ErrorBudgetTerms, sums: Counts) -> Iterator[ObjectiveStatus]:
    for name, objective in terms.levels.by_key().items():
        total, missed = sums.get(name, (0, 0))
        budget = terms.budget(objective)
        left = 1 - float(missed / (total * budget)) if total else 1.0
        yield ObjectiveStatus(objective, round(float(100 * (1 - budget)), 6), total, missed, round(left, 4))


def _is_spent(one: ObjectiveStatus) -> bool:
    return one.missed >= LEAST_MISSED and one.budget_left <= 0
