"""Usage that servers of a route reported and that their requests cannot have caused; the operator shows it (pure)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

# How long after the last such report it is shown.
SHOWN_S = 600.0


@dataclass(slots=True)
class _Implausible:
    """The first such report of a period, and when the last one came. Numbers are tokens."""

    reported: int
    possible: int
    last_s: float


class UsageReports:
    """By route. `notify` gets the name of a route when a period of such reports begins."""

    def __init__(self, clock: Callable[[], float], notify: Callable[[str], None]) -> None:
        self._clock, self._notify = clock, notify
        self._found: dict[str, _Implausible] = {}

    def follow(self, routes: Collection[str]) -> None:
        """Forgets the routes that are not among these."""
        for name in self._found.keys() - set(routes):
            del self._found[name]

    def implausible(self, route: str, reported: int, possible: int) -> None:
        """A server reported so many tokens for a request that can have caused `possible` ones."""
        now_s = self._clock()
        known = self._found.get(route)
        if known is not None and now_s - known.last_s < SHOWN_S:
            known.last_s = now_s
            return
        self._found[route] = _Implausible(reported, possible, now_s)
        self._notify(route)

    def report(self, route: str) -> dict[str, Any] | None:
        """`implausible_usage` of a route in `/internal/routes`."""
        known = self._found.get(route)
        if known is None or self._clock() - known.last_s >= SHOWN_S:
            return None
        return {"reported": known.reported, "possible": known.possible}
