"""Activity of each route: its last request, and requests for sleeping deployments, which the operator then wakes."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from slipway_contracts.gateway_report import ActivityReport, CallsReport

from ..routing.table import Route

MAX_CHANGED_ROUTES = 4096  # remembered for the operator, which polls again within moments
_DIGITS = 18


@dataclass(slots=True)
class RouteActivity:
    """Activity of one route, since `since_s`. `left_s`: when its last request ended.

    `present`: requests in progress, including `held` ones, which wait for an endpoint.
    """

    uid: str
    since_s: float
    present: int = 0
    held: int = 0
    left_s: float | None = None

    def report(self, now_s: float) -> ActivityReport:
        """`activity` of the route in `/internal/routes`."""
        ago_s = None if self.left_s is None else round(now_s - self.left_s, 3)
        return ActivityReport(self.held, round(now_s - self.since_s, 3), 0.0 if self.present else ago_s)


class ActivityTracker:
    """Activity of all routes. `clock` counts seconds; `incarnation` identifies the process, as in its reports."""

    def __init__(self, clock: Callable[[], float], incarnation: str = "") -> None:
        self._clock = clock
        self._incarnation = incarnation
        self._activity: dict[str, RouteActivity] = {}
        self._asleep: frozenset[str] = frozenset()
        self._waking: dict[str, None] = {}  # routes that were requested while they sleep
        self._changes = 0
        self._changes_by_route: dict[
            str, int
        ] = {}  # by route: the value of `_changes` at its last `notify`; wakes are in `_waking`
        self._changed = asyncio.Event()
        self._of_lane: Callable[[str, str], tuple[int, float | None]] = lambda route, uid: (0, None)

    def follow(self, routes: Mapping[str, Route]) -> None:
        """Adopts a new table. Routes that no longer sleep need no wake; a route with a new uid starts from nothing."""
        former, now = self._activity, self._clock()
        kept = {name: former.get(name) for name in routes}
        self._activity = {
            name: known if (known := kept[name]) and known.uid == route.uid else RouteActivity(route.uid, now)
            for name, route in routes.items()
        }
        self._asleep = frozenset(name for name, route in routes.items() if route.asleep)
        self._waking = {name: None for name in self._waking if name in self._asleep}

    def enter(self, route: str) -> RouteActivity:
        """Counts a request that arrives, until `leave`; requests a wake if its route sleeps."""
        activity = self._activity.get(route) or RouteActivity("", self._clock())
        activity.present += 1
        if self._asleep:
            self.request_wake(route)
        return activity

    def leave(self, activity: RouteActivity) -> None:
        """A request ended, in whatever way."""
        activity.present -= 1
        activity.left_s = self._clock()

    def running(self, route: str) -> int:
        """Requests of a route in progress, in both lanes."""
        known = self._activity.get(route)
        return known.present + self._of_lane(route, known.uid)[0] if known else 0

    def request_wake(self, route: str) -> None:
        """A sleeping route was requested: the operator is notified once."""
        if route in self._asleep and route not in self._waking:
            self._waking[route] = None
            self._change()

    def notify(self, route: str) -> None:
        """Has the operator look at a route: `wait_for_changes` returns it."""
        self._change()
        self._changes_by_route.pop(route, None)
        self._changes_by_route[route] = self._changes
        if len(self._changes_by_route) > MAX_CHANGED_ROUTES:
            del self._changes_by_route[next(iter(self._changes_by_route))]

    def _change(self) -> None:
        self._changes += 1
        changed_event, self._changed = self._changed, asyncio.Event()
        changed_event.set()

    async def wait_for_changes(self, since: str, wait_s: float) -> CallsReport:
        """Waits for a change after the mark `since`, at most `wait_s` seconds.

        Returns the new mark, and the routes that must wake or had a `notify` after `since`.
        """
        if since == self._mark:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        incarnation, _, number = since.rpartition(".")
        ours = incarnation == self._incarnation and number.isdecimal() and len(number) <= _DIGITS
        known = int(number) if ours else 0
        changed = (route for route, call in self._changes_by_route.items() if call > known)
        return CallsReport(self._mark, list(dict.fromkeys([*self._waking, *changed])))

    @property
    def _mark(self) -> str:
        return f"{self._incarnation}.{self._changes}"

    def join(self, of_lane: Callable[[str, str], tuple[int, float | None]]) -> None:
        """`of_lane`: requests in progress of a route and uid in the fast lane, and seconds since the last one ended."""
        self._of_lane = of_lane

    def report(self, route: str) -> ActivityReport:
        """`activity` of a route of the table, as `/internal/routes` has it."""
        known = self._activity[route]
        found, (present, ago_s) = known.report(self._clock()), self._of_lane(route, known.uid)
        seconds = [0.0 if present else ago_s, found.last_request_s]
        last_s = min((one for one in seconds if one is not None), default=None)
        return replace(found, last_request_s=None if last_s is None else round(last_s, 3))
