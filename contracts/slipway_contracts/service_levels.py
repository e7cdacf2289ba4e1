"""What gateways count of each request against the objectives of spec.slo, described once for operator and gateways.

docs/contracts.md says which requests count. A count belongs to an objective with its limit: one whose limit changes
begins again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipway_contracts.api.types import Int32, strict
from slipway_contracts.counters import MAX_COUNT
from slipway_contracts.twin_shadow import outside

TTFT, ITL, LATENCY, AVAILABILITY = OBJECTIVES = ("ttftP95", "itlP95", "latencyP99", "availability")
LONGEST_MS = 3_600_000

Counted = tuple[int, int]  # requests that count, and those of them that missed the objective


@strict
@dataclass(frozen=True, slots=True)
class ServiceLevels:
    """Objectives that gateways count requests against, with their limits in milliseconds."""

    ttft_milliseconds: Int32 | None = None
    """Longest time from a streaming request to the first byte of its response."""
    itl_milliseconds: Int32 | None = None
    """Longest mean time between two events of a stream."""
    latency_milliseconds: Int32 | None = None
    """Longest time from a request to the last byte of its response."""
    availability: bool | None = None
    """Whether requests that fail count."""

    def limits_ms(self) -> Iterator[tuple[str, int]]:
        """The objectives that are given, with their limits; that of availability is 0."""
        limits = (self.ttft_milliseconds, self.itl_milliseconds, self.latency_milliseconds)
        found = (*limits, 0 if self.availability else None)
        return ((name, limit) for name, limit in zip(OBJECTIVES, found, strict=True) if limit is not None)

    def by_key(self) -> dict[str, str]:
        """The objectives that are given, by the key of their counts in a report."""
        return {key(name, limit_ms): name for name, limit_ms in self.limits_ms()}


def key(objective: str, limit_ms: int) -> str:
    """The name of an objective's counts in a report: with its limit, because another one begins other counts."""
    return f"{objective}/{limit_ms}"


def refusal(levels: ServiceLevels) -> str:
    """Why gateways do not count by these limits, with the path of the field; empty where they do."""
    fields = {
        "ttftMilliseconds": levels.ttft_milliseconds,
        "itlMilliseconds": levels.itl_milliseconds,
        "latencyMilliseconds": levels.latency_milliseconds,
    }
    wrong = (outside(f"slo.{name}", limit, 1, LONGEST_MS) for name, limit in fields.items() if limit is not None)
    return next(filter(None, wrong), "")


def read(reported: Any) -> dict[str, Counted]:
    """The counts of a report by key; those that are malformed, or of no objective, are left out."""
    if not isinstance(reported, Mapping):
        return {}
    named = ((name, _counted(counts)) for name, counts in list(reported.items())[:16] if _is_key(name))
    return {name: counts for name, counts in named if counts is not None}


def _is_key(name: Any) -> bool:
    objective, _, limit = name.partition("/") if isinstance(name, str) else ("", "", "")
    return objective in OBJECTIVES and limit.isascii() and limit.isdigit() and len(limit) <= len(str(LONGEST_MS))


def _counted(counts: Any) -> Counted | None:
    if not isinstance(counts, list | tuple) or len(counts) != 2:
        return None
    total, missed = counts
    sound = all(isinstance(number, int) and not isinstance(number, bool) for number in counts)
    return (total, missed) if sound and 0 <= missed <= total <= MAX_COUNT else None
