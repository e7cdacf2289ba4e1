"""Who asks for each route, and since when nobody does: deployments sleep by that, and are woken by it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..routing.table import Route

MOST_NEWS = 4096  # routes; the operator asks again within moments
_DIGITS = 18


@dataclass(slots=True)
class Visitors:
    """Of one route. `present`: requests in hand, held ones too. `left_s`: when the last of them ended."""

    uid: str
    since_s: float
    present: int = 0
    held: int = 0
    left_s: float | None = None

    def report(self, now_s: float) -> dict[str, Any]:
        """`activity` of the route in `/internal/routes`."""
        ago_s = None if self.left_s is None else round(now_s - self.left_s, 3)
        return {
            "held": self.held,
            "known_s": round(now_s - self.since_s, 3),
            "last_request_s": 0.0 if self.present else ago_s,
        }


class Visits:
    """Of all routes. `clock` counts seconds; `incarnation` names the process, as in its reports."""

    def __init__(self, clock: Callable[[], float], incarnation: str = "") -> None:
        self._clock = clock
        self._incarnation = incarnation
        self._visitors: dict[str, Visitors] = {}
        self._asleep: frozenset[str] = frozenset()
        self._calling: dict[str, None] = {}  # routes that sleep and were asked for since
        self._calls = 0
        self._news: dict[str, int] = {}  # number of the last call about a route, for whatever reason but sleep
        self._called = asyncio.Event()

    def follow(self, routes: Mapping[str, Route]) -> None:
        """A new table; a call for a route that sleeps no more was heard."""
        former, now = self._visitors, self._clock()
        kept = {name: former.get(name) for name in routes}
        self._visitors = {
            name: known if (known := kept[name]) and known.uid == route.uid else Visitors(route.uid, now)
            for name, route in routes.items()
        }
        self._asleep = frozenset(name for name, route in routes.items() if route.asleep)
        self._calling = {name: None for name in self._calling if name in self._asleep}

    def enter(self, route: str) -> Visitors:
        """A request for a route of the table comes; it says when it leaves."""
        visitors = self._visitors.get(route) or Visitors("", self._clock())
        visitors.present += 1
        self.call(route)
        return visitors

    def leave(self, visitors: Visitors) -> None:
        """A request has ended, however."""
        visitors.present -= 1
        visitors.left_s = self._clock()

    def call(self, route: str) -> None:
        """Somebody wants a route: the operator hears of it, once, while it sleeps."""
        if route in self._asleep and route not in self._calling:
            self._calling[route] = None
            self._call()

    def tell(self, route: str) -> None:
        """Something happened at a route that the operator is to look at."""
        self._call()
        self._news.pop(route, None)
        self._news[route] = self._calls
        if len(self._news) > MOST_NEWS:
            del self._news[next(iter(self._news))]

    def _call(self) -> None:
        self._calls += 1
        called, self._called = self._called, asyncio.Event()
        called.set()

    async def calls(self, since: str, wait_s: float) -> dict[str, Any]:
        """Routes that are to wake, and those with news since that mark: at once, or at the latest after the time."""
        if since == self._mark:
            try:
                async with asyncio.timeout(wait_s):
                    await self._called.wait()
            except TimeoutError:
                pass
        incarnation, _, number = since.rpartition(".")
        ours = incarnation == self._incarnation and number.isdecimal() and len(number) <= _DIGITS
        heard = int(number) if ours else 0
        told = (route for route, call in self._news.items() if call > heard)
        return {"mark": self._mark, "routes": list(dict.fromkeys([*self._calling, *told]))}

    @property
    def _mark(self) -> str:
        return f"{self._incarnation}.{self._calls}"

    def report(self, route: str) -> dict[str, Any]:
        """What is known of the requests for a route of the table."""
        return self._visitors[route].report(self._clock())
