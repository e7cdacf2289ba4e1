"""What gateways counted of an Experiment, added up over their restarts, and what it proves (pure)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from slipway_contracts.counters import MAX_COUNT
from slipway_contracts.experiments.assignment import Assignment
from slipway_contracts.experiments.report import ArmReport, ExperimentReport, ExperimentsReport
from slipway_contracts.experiments.spec import HOLDOUT
from slipway_operator.api.v1alpha1.experiment import (
    MOST_GATEWAYS,
    MOST_VERDICT,
    ArmCounts,
    ArmStatus,
    GatewayCounts,
    OutcomeCounts,
    OutcomeStatus,
)
from slipway_operator.judging.experiments import (
    ERROR_RATE,
    UNKNOWN,
    Interval,
    Values,
    is_mismatch,
    mean_interval,
    part_of,
)

TOGETHER, FIRST_ALONE = 1, 2  # ranks: of all gateways that count together, and of the first one that counts alone
_LONGEST = 64  # characters of the name of a gateway's process
_DIGITS = 4
NO_UNITS, AS_EXPECTED, FORGOTTEN, MISMATCH = "NoUnits", "AsExpected", "UnitsForgotten", "SampleRatioMismatch"

Split = tuple[bool | None, str, str]  # status, reason and message of the condition


@dataclass(frozen=True, slots=True)
class Counted:
    """What is known of the arms. `split`: whether units contradict the weights, with reason and message."""

    gateways: tuple[GatewayCounts, ...] = ()
    arms: tuple[ArmStatus, ...] = ()
    split: Split = (None, NO_UNITS, "no unit came to an arm yet")
    verdict: str = ""
    lost: int = 0


def count(
    name: str, uid: str, assignment: Assignment, former: Sequence[GatewayCounts], reports: Sequence[ExperimentsReport]
) -> Counted:
    """What gateways counted of an Experiment. `former`: of the same version."""
    gateways = merge(name, uid, assignment, former, reports)
    split = _split(assignment, gateways)
    arms = tuple(_arm(assignment, gateways, arm, weight) for arm, weight in _groups(assignment, gateways))
    lost = sum(_bounded(report.lost) for report in reports)
    return Counted(gateways, arms, split, verdict(assignment, arms, split)[:MOST_VERDICT], lost)


# -- counts of gateways


def merge(
    name: str, uid: str, assignment: Assignment, former: Sequence[GatewayCounts], reports: Iterable[ExperimentsReport]
) -> tuple[GatewayCounts, ...]:
    """The counts of all processes of gateways, those that are gone included: a report has all since its process began.

    Beyond MOST_GATEWAYS those that report no more are added up, the oldest first: of gateways that count together they
    stay evidence, of others not. A process that reports is never added up, because its next report has all of it again:
    beyond MOST_GATEWAYS of these, the newest do not count yet.
    """
    sums, present = [one for one in former if not one.incarnation], set()
    found = {one.incarnation: one for one in former if one.incarnation}
    for report in reports:
        incarnation, counts = report.incarnation[:_LONGEST], report.experiments.get(name)
        if not incarnation or counts is None or (counts.uid, counts.version) != (uid, assignment.version):
            continue
        if not counts.arms and incarnation not in found:
            continue
        known = found.get(incarnation)
        rank = known.rank if known else TOGETHER if report.shared else _next_rank(found.values())
        arms = tuple(_arm_counts(arm, counts, assignment) for arm in _names(assignment) if arm in counts.arms)
        found[incarnation] = GatewayCounts(incarnation, report.shared, rank, _bounded(counts.forgotten), arms)
        present.add(incarnation)
    gone = [one for one in found.values() if one.incarnation not in present]
    return _folded(sums, gone, [one for one in found.values() if one.incarnation in present][:MOST_GATEWAYS])


def _next_rank(gateways: Iterable[GatewayCounts]) -> int:
    return max(FIRST_ALONE, *(one.rank + 1 for one in gateways if not one.shared), 0)


def _names(assignment: Assignment) -> tuple[str, ...]:
    return (*(arm.name for arm in assignment.arms), HOLDOUT)


def _bounded(number: int) -> int:
    return min(max(0, number), MAX_COUNT)


def _arm_counts(name: str, counts: ExperimentReport, assignment: Assignment) -> ArmCounts:
    arm: ArmReport = counts.arms[name]
    outcomes = []
    for outcome in assignment.outcomes:
        if (values := arm.outcomes.get(outcome)) is not None:
            units = _bounded(values.units)
            outcomes.append(OutcomeCounts(outcome, units, min(max(0.0, values.sum), float(units))))
    return ArmCounts(name, _bounded(arm.units), _bounded(arm.requests), _bounded(arm.elsewhere), tuple(outcomes))


def _folded(
    sums: list[GatewayCounts], gone: list[GatewayCounts], present: list[GatewayCounts]
) -> tuple[GatewayCounts, ...]:
    """With at most MOST_GATEWAYS processes; the first that are gone are added up in an entry without a name, or two."""
    added = max(0, len(gone) + len(present) - MOST_GATEWAYS)
    for one in gone[:added]:
        rest = [known for known in sums if known.shared != one.shared]
        into = next((known for known in sums if known.shared == one.shared), None)
        rank = TOGETHER if one.shared else 0
        sums = [*rest, replace(_added(one, into), incarnation="", rank=rank)]
    return (*sorted(sums, key=lambda one: one.shared), *gone[added:], *present)


def _added(one: GatewayCounts, other: GatewayCounts | None) -> GatewayCounts:
    if other is None:
        return one
    names = dict.fromkeys(arm.name for arm in (*other.arms, *one.arms))
    arms = tuple(_total((one, other), name) for name in names)
    return replace(one, arms=arms, forgotten=one.forgotten + other.forgotten)


def _total(gateways: Iterable[GatewayCounts], name: str) -> ArmCounts:
    """The counts of an arm, added up."""
    units = requests = elsewhere = 0
    outcomes: dict[str, OutcomeCounts] = {}
    for arm in (arm for one in gateways for arm in one.arms if arm.name == name):
        units, requests, elsewhere = units + arm.units, requests + arm.requests, elsewhere + arm.elsewhere
        for values in arm.outcomes:
            known = outcomes.get(values.name, OutcomeCounts(values.name))
            outcomes[values.name] = replace(known, units=known.units + values.units, sum=known.sum + values.sum)
    return ArmCounts(name, units, requests, elsewhere, tuple(outcomes.values()))


# -- what they prove


def _evidence(gateways: Sequence[GatewayCounts]) -> dict[int, list[GatewayCounts]]:
    """Counts that are evidence, by rank: those that gateways counted together are added up."""
    found: dict[int, list[GatewayCounts]] = {}
    for one in gateways:
        if one.rank:
            found.setdefault(one.rank, []).append(one)
    return found


def _groups(assignment: Assignment, gateways: Sequence[GatewayCounts]) -> list[tuple[str, int | None]]:
    """Arms with their weights, and the hold-out where there is one."""
    arms: list[tuple[str, int | None]] = [(arm.name, arm.weight) for arm in assignment.arms]
    held = assignment.holdout or any(arm.name == HOLDOUT for one in gateways for arm in one.arms)
    return [*arms, (HOLDOUT, None)] if held else arms


def _split(assignment: Assignment, gateways: Sequence[GatewayCounts]) -> Split:
    weights = {arm.name: arm.weight for arm in assignment.arms}
    totals = {name: _total(gateways, name).units for name in weights}
    if not any(totals.values()):
        return None, NO_UNITS, "no unit came to an arm yet"
    groups = {
        rank: {name: _total(members, name).units for name in weights} for rank, members in _evidence(gateways).items()
    }
    shown = " and ".join(f"{units:,} units in {name}" for name, units in totals.items())
    listed = " to ".join(str(weight) for weight in weights.values())
    if is_mismatch(groups, weights):
        return True, MISMATCH, f"there are {shown}, which weights of {listed} do not explain: do not compare the arms"
    if forgotten := sum(one.forgotten for one in gateways if not one.shared):
        message = f"gateways may have counted {forgotten:,} units again: with Redis they count each once"
        return None, FORGOTTEN, message
    return False, AS_EXPECTED, f"there are {shown}, as weights of {listed} explain"


def _arm(assignment: Assignment, gateways: Sequence[GatewayCounts], name: str, weight: int | None) -> ArmStatus:
    total = _total(gateways, name)
    outcomes = tuple(_outcome(assignment, gateways, name, outcome) for outcome in assignment.outcomes)
    return ArmStatus(name, weight, total.units, total.requests, total.elsewhere, outcomes)


def _outcome(assignment: Assignment, gateways: Sequence[GatewayCounts], arm: str, outcome: str) -> OutcomeStatus:
    values = _values(gateways, arm, outcome)
    if not values.units:
        return OutcomeStatus(outcome)
    # All intervals of means together have the error rate; a difference needs no more than those of two means.
    rate = ERROR_RATE / (len(_groups(assignment, gateways)) * len(assignment.outcomes))
    found = _interval(gateways, arm, outcome, rate)
    shown = OutcomeStatus(outcome, values.units, _rounded(values.mean), *map(_rounded, found))
    control = _values(gateways, assignment.control, outcome)
    if arm == assignment.control or not control.units:
        return shown
    difference = found.minus(_interval(gateways, assignment.control, outcome, rate))
    return replace(
        shown,
        difference=_rounded(values.mean - control.mean),
        difference_lower=_rounded(difference.lower),
        difference_upper=_rounded(difference.upper),
    )


def _values(gateways: Iterable[GatewayCounts], arm: str, outcome: str) -> Values:
    listed = (one for one in _total(gateways, arm).outcomes if one.name == outcome)
    return next((Values(one.units, one.sum) for one in listed), Values(0, 0.0))


def _interval(gateways: Sequence[GatewayCounts], arm: str, outcome: str, rate: float) -> Interval:
    found = UNKNOWN
    for rank, members in _evidence(gateways).items():
        found = found.and_(mean_interval(_values(members, arm, outcome), part_of(rank, rate)))
    return found


def _rounded(number: float) -> float:
    return round(number, _DIGITS)


def verdict(assignment: Assignment, arms: Sequence[ArmStatus], split: Split) -> str:
    """What the outcomes prove, in a sentence."""
    if split[0]:
        return "no verdict: units are not split by the weights"
    if not assignment.outcomes:
        return "no verdict: the experiment has no outcomes"
    found = [
        _sentence(arm, one, assignment.control)
        for arm in arms
        for one in arm.outcomes
        if arm.name != assignment.control and one.difference_lower is not None
    ]
    return "; ".join(found) if found else "no verdict: no outcome has values of two arms yet"


def _sentence(arm: ArmStatus, outcome: OutcomeStatus, control: str) -> str:
    lower, upper = outcome.difference_lower or 0.0, outcome.difference_upper or 0.0
    shown = f"{outcome.name} of {arm.name} minus that of {control} is {lower:+g} to {upper:+g}"
    if lower > 0:
        return f"{shown}: it is higher"
    return f"{shown}: it is lower" if upper < 0 else f"{shown}: no difference is proved"
