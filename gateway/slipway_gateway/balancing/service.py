"""Whether requests for a route get responses; the operator compares it with the deployment's status (pure).

Two counts of requests of the last 10 to 20 seconds: those to which a server began a response that is no failure of its
own, and those that ended with 5xx for the client.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slipway_contracts.gateway_report import ServiceReport

WINDOW_S = 10.0
# A route fails when at least so many requests ended with 5xx, and they are at least this share of all.
LEAST, SHARE = 3, 0.9


@dataclass(slots=True)
class _WindowCounts:
    answered: int = 0
    refused: int = 0


class RouteService:
    """The counts of one route."""

    __slots__ = ("_began_s", "_former", "_now", "last", "unserved_since_s")

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._former, self._now = _WindowCounts(), _WindowCounts()
        self.last = ""  # outcome of the last request that `refused` counted
        self.unserved_since_s: float | None = None  # since when no listed revision has an endpoint

    def answered(self, now_s: float, requests: int = 1) -> None:
        """A server began to answer so many requests."""
        self._turn(now_s)
        self._now.answered += requests

    def refused(self, now_s: float, outcome: str) -> None:
        """A request ended with 5xx, and the client did not cause it, as with its own `timeout`."""
        self._turn(now_s)
        self._now.refused += 1
        self.last = outcome

    @property
    def refuses(self) -> bool:
        """Whether any request of the last two windows that had requests ended with 5xx."""
        return self._former.refused > 0 or self._now.refused > 0

    def fails(self, now_s: float) -> bool:
        """Whether nearly all requests of the window ended with 5xx."""
        answered, refused = self._sums(now_s)
        return refused >= LEAST and refused >= SHARE * (answered + refused)

    def report(self, now_s: float) -> ServiceReport:
        """`service` of the route in `/internal/routes`."""
        answered, refused = self._sums(now_s)
        unserved_s = None if self.unserved_since_s is None else round(now_s - self.unserved_since_s, 3)
        return ServiceReport(answered, refused, self.last if refused else "", unserved_s)

    def _sums(self, now_s: float) -> tuple[int, int]:
        self._turn(now_s)
        return self._former.answered + self._now.answered, self._former.refused + self._now.refused

    def _turn(self, now_s: float) -> None:
        if now_s - self._began_s >= WINDOW_S:
            passed = int((now_s - self._began_s) / WINDOW_S)
            self._former = self._now if passed == 1 else _WindowCounts()
            self._now, self._began_s = _WindowCounts(), self._began_s + passed * WINDOW_S


class RouteServices:
    """The counts of all routes. `notify` gets the name of a route whose requests begin or cease to be served."""

    def __init__(self, clock: Callable[[], float], notify: Callable[[str], None]) -> None:
        self._clock, self._notify = clock, notify
        self._routes: dict[str, tuple[str, RouteService]] = {}  # uid and service by name
        self._failing: set[str] = set()

    def follow(self, routes: Iterable[tuple[str, str, bool]]) -> None:
        """Adopts a new table: name and uid of each route, and whether any listed revision has an endpoint."""
        former, self._routes, now_s = self._routes, {}, self._clock()
        for name, uid, served in routes:
            known = former.get(name)
            one = known[1] if known and known[0] == uid else RouteService(now_s)
            self._routes[name] = uid, one
            before = one.unserved_since_s is None
            if served != before:
                one.unserved_since_s = None if served else now_s
                if known:  # a new route is expected to have no endpoint yet
                    self._notify(name)
        self._failing &= self._routes.keys()

    def answered(self, route: str, requests: int = 1) -> None:
        """A server began to answer so many requests for a route."""
        if known := self._routes.get(route):
            now_s = self._clock()
            known[1].answered(now_s, requests)
            if known[1].refuses or self._failing:
                self._look(route, known[1], now_s)

    def refused(self, route: str, outcome: str) -> None:
        """A request for a route ended with 5xx, and the client did not cause it, as with its own `timeout`."""
        if known := self._routes.get(route):
            now_s = self._clock()
            known[1].refused(now_s, outcome)
            self._look(route, known[1], now_s)

    def report(self, route: str) -> ServiceReport:
        """`service` of a route of the table, as `/internal/routes` has it."""
        return self._routes[route][1].report(self._clock())

    def _look(self, route: str, one: RouteService, now_s: float) -> None:
        """Notices that requests for a route begin or cease to be served."""
        if one.fails(now_s) != (route in self._failing):
            self._failing ^= {route}
            self._notify(route)
