"""Conditions as in metav1: the transition time stays until the status changes."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from slipway_operator.api.v1alpha1.status import Condition

RECONCILING, STALLED = "Reconciling", "Stalled"  # as kstatus reads them; they exist only while they are True
READ_BY_KSTATUS = frozenset({RECONCILING, STALLED})


def condition(kind: str, holds: bool | None, reason: str, message: str, now: datetime) -> Condition:
    """A condition as it is now, Unknown where `holds` is None; `carry_over` corrects its transition time."""
    status = "Unknown" if holds is None else "True" if holds else "False"
    return Condition(kind, status, reason, message, now)


def awaited(reason: str, message: str, now: datetime) -> Condition:
    """Reconciling: what the spec describes is on its way."""
    return condition(RECONCILING, True, reason, message, now)


def failed(reason: str, message: str, now: datetime) -> Condition:
    """Stalled: a person has to act before what the spec describes is there."""
    return condition(STALLED, True, reason, message, now)


def carry_over(fresh: Iterable[Condition], former: Iterable[Condition]) -> tuple[Condition, ...]:
    """The fresh conditions, with the former transition time where the status is the same."""
    known = {item.type: item for item in former}
    return tuple(_carried(item, known.get(item.type)) for item in fresh)


def _carried(fresh: Condition, former: Condition | None) -> Condition:
    same = former is not None and former.status == fresh.status
    return replace(fresh, last_transition_time=former.last_transition_time) if former and same else fresh
