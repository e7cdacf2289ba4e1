"""The objectives of `spec.slo`: what gateways count, which share of the requests may miss each, and over which time."""

import re
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from slipway_contracts import service_levels
from slipway_contracts.service_levels import ITL, LATENCY, TTFT, ServiceLevels
from slipway_operator.api.v1alpha1.model_deployment import ServiceLevelObjectives

_LIMIT = re.compile(r"([1-9][0-9]{0,6})(ms|s)")
_PERCENT = re.compile(r"[1-9][0-9](\.[0-9]{1,3})?")
_DAYS = re.compile(r"([1-9][0-9]?)d")
_MOST_DAYS = 90
# The share of the requests that may miss an objective whose name has a percentile.
_OF_PERCENTILE = {TTFT: Fraction(5, 100), ITL: Fraction(5, 100), LATENCY: Fraction(1, 100)}


@dataclass(frozen=True, slots=True)
class ErrorBudgetTerms:
    """`levels`: what gateways count. `availability_budget`: share of the requests that may fail; 0: not counted."""

    levels: ServiceLevels
    availability_budget: Fraction
    window: timedelta

    def budget(self, objective: str) -> Fraction:
        """The share of the requests that may miss an objective, between 0 and 1."""
        return _OF_PERCENTILE.get(objective, self.availability_budget)


def terms_of(written: ServiceLevelObjectives) -> ErrorBudgetTerms:
    """Return `spec.slo` in its decided form.

    Raises:
        ValueError: when it is invalid.
    """
    levels = ServiceLevels(
        _limit_ms("ttftP95", written.ttft_p95),
        _limit_ms("itlP95", written.itl_p95),
        _limit_ms("latencyP99", written.latency_p99),
        True if written.availability else None,
    )
    if reason := service_levels.refusal(levels):
        raise ValueError(f"spec.{reason}")
    if not levels.by_key():
        raise ValueError("spec.slo has no objective: write ttftP95, itlP95, latencyP99 or availability")
    return ErrorBudgetTerms(levels, _budget_of(written.availability), _window(written.window))


def _limit_ms(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    match = _LIMIT.fullmatch(text)
    if not match:
        raise ValueError(f"spec.slo.{name} {text!r} is no time like 800ms or 2s")
    return int(match[1]) * (1 if match[2] == "ms" else 1000)


def _budget_of(percent: str | None) -> Fraction:
    if percent is None:
        return Fraction(0)
    if not _PERCENT.fullmatch(percent):
        raise ValueError(f"spec.slo.availability {percent!r} is no percentage like 99.9")
    return 1 - Fraction(percent) / 100


def _window(text: str) -> timedelta:
    match = _DAYS.fullmatch(text)
    if not match or int(match[1]) > _MOST_DAYS:
        raise ValueError(f"spec.slo.window {text!r} is no number of days up to {_MOST_DAYS}d")
    return timedelta(days=int(match[1]))
