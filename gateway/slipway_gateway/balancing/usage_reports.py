"""Usage that servers of a route reported and that their requests cannot have caused; the operator shows it (pure)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from slipway_contracts.counters import MAX_COUNT
from slipway_contracts.gateway_report import ImplausibleUsage

# How long after the last such report it is shown.
SHOWN_S = 600.0


@dataclass(slots=True)
class _Period:
    """The first such report of a period, and when the last one came."""

    first: ImplausibleUsage
    last_s: float


class UsageReports:
    """By route. `notify` gets the name of a route when a period of such reports begins."""

    def __init__(self, clock: Callable[[], float], notify: Callable[[str], None]) -> None:
        self._clock, self._notify = clock, notify
        self._periods: dict[str, _Period] = {}

    def follow(self, routes: Collection[str]) -> None:
        """Forgets the routes that are not among these."""
        for name in self._periods.keys() - set(routes):
            del self._periods[name]

    def implausible(self, route: str, reported: int, possible: int) -> None:
        """A server reported so many tokens for a request that can have caused `possible` ones."""
        now_s = self._clock()
        period = self._periods.get(route)
        if period is not None and now_s - period.last_s < SHOWN_S:
            period.last_s = now_s
            return
        # The number is an engine's: it may be any.
        self._periods[route] = _Period(ImplausibleUsage(min(reported, MAX_COUNT), possible), now_s)
        self._notify(route)

    def report(self, route: str) -> ImplausibleUsage | None:
        """`implausible_usage` of a route in `/internal/routes`."""
        period = self._periods.get(route)
        return period.first if period is not None and self._clock() - period.last_s < SHOWN_S else None
