"""Conditions as in metav1: the transition time stays until the status changes."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from slipway_operator.api.v1alpha1.status import Condition

NAME_CONFLICT, FOREIGN_OBJECTS, UNKNOWN_FIELD = "NameConflict", "ForeignObjects", "UnknownField"
ENGINE_METRICS = "EngineMetricsAvailable"
CERTIFICATE_READY = "CertificateReady"
RESOLVED_REFS = "ResolvedRefs"
USAGE_IMPLAUSIBLE = "UsageReportsImplausible"
TENANT_ISOLATION_UNKNOWN = "TenantIsolationUnknown"
# All conditions except these are good when True.
BAD_NEWS = frozenset({NAME_CONFLICT, FOREIGN_OBJECTS, UNKNOWN_FIELD, USAGE_IMPLAUSIBLE, TENANT_ISOLATION_UNKNOWN})


def is_ill(item: Condition) -> bool:
    """Whether a condition reports a problem."""
    return item.status != ("False" if item.type in BAD_NEWS else "True")


def condition(kind: str, holds: bool, reason: str, message: str, now: datetime) -> Condition:
    """A condition as it is now; `carry_over` corrects its transition time."""
    return Condition(kind, "True" if holds else "False", reason, message, now)


def carry_over(fresh: Iterable[Condition], former: Iterable[Condition]) -> tuple[Condition, ...]:
    """The fresh conditions, with the former transition time where the status is the same."""
    known = {item.type: item for item in former}
    return tuple(_carried(item, known.get(item.type)) for item in fresh)


def _carried(fresh: Condition, former: Condition | None) -> Condition:
    same = former is not None and former.status == fresh.status
    return replace(fresh, last_transition_time=former.last_transition_time) if former and same else fresh
