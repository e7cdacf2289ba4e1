"""The live side of the table: what is published now, what is in flight where, and who waits for a change."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from .router import Target, pick, pick_of
from .table import Route, RouteTable
from .telemetry.metrics import Metrics


@dataclass(slots=True)
class Tally:
    """Counts of one revision since the process started; `requests` and `failures` are first attempts only."""

    inflight: int = 0
    requests: int = 0
    failures: int = 0


class Lease:
    """One attempt at one endpoint: counted as in flight from creation to `release`."""

    def __init__(
        self, target: Target, tally: Tally, give_back: Callable[[Target, Tally], None], *, first: bool
    ) -> None:
        self.target = target
        self._tally = tally
        self._give_back: Callable[[Target, Tally], None] | None = give_back
        self._first = first

    def failed(self) -> None:
        # Retries hide a bad revision from clients; they must not hide it from the operator's judgement.
        if self._first:
            self._tally.failures += 1
            self._first = False

    def release(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back:
            give_back(self.target, self._tally)


class Backends:
    """The published table with the counts that routing and the operator need."""

    def __init__(self, metrics: Metrics) -> None:
        self.table: RouteTable | None = None
        self._metrics = metrics
        self._inflight: Counter[str] = Counter()
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._changed = asyncio.Event()

    def publish(self, table: RouteTable) -> None:
        self.table = table
        # Revisions of a live route keep their counts: the operator compares them over time.
        for route, revision in list(self._tallies):
            if route not in table.routes and not self._tallies[route, revision].inflight:
                del self._tallies[route, revision]
        self._metrics.routes_applied({name: route.generation for name, route in table.routes.items()})
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed(self, timeout_s: float) -> None:
        """Returns at the next published table, or after the time."""
        event = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return

    def find(self, model: str) -> Route | None:
        return self.table.models.get(model) if self.table else None

    def lists(self, model: str, revision: str) -> bool:
        """Whether a model's route names a revision, or has endpoints of it."""
        route = self.find(model)
        return self.table is not None and route is not None and revision in self.table.revisions(route)

    def pick(self, model: str, key: str, excluded: Collection[str], revision: str = "") -> Target | None:
        """An endpoint by weight, or of the one `revision` that can answer."""
        route = self.find(model)
        if self.table is None or route is None:
            return None
        if revision:
            return pick_of(self.table, route, revision, key, self._inflight, excluded=excluded)
        return pick(self.table, route, key, self._inflight, excluded)

    def lease(self, target: Target, *, first: bool) -> Lease:
        tally = self._tallies.setdefault((target.route, target.revision), Tally())
        tally.inflight += 1
        tally.requests += first
        self._inflight[target.url] += 1
        self._metrics.inflight_changed(target.model, target.revision, 1)
        return Lease(target, tally, self._give_back, first=first)

    def _give_back(self, target: Target, tally: Tally) -> None:
        tally.inflight -= 1
        self._inflight[target.url] -= 1
        if not self._inflight[target.url]:
            del self._inflight[target.url]
        self._metrics.inflight_changed(target.model, target.revision, -1)

    def report(self) -> dict[str, Any]:
        """`routes` of `/internal/routes`; the shape is in docs/contracts.md."""
        table = self.table or RouteTable()
        return {name: self._report_route(table, route) for name, route in table.routes.items()}

    def _report_route(self, table: RouteTable, route: Route) -> dict[str, Any]:
        busy = [r for (name, r), tally in self._tallies.items() if name == route.name and tally.inflight]
        revisions = {}
        for revision in dict.fromkeys([*table.revisions(route), *busy]):
            tally = self._tallies.get((route.name, revision), Tally())
            revisions[revision] = {
                "endpoints": len(table.urls(route, revision)),
                "inflight": tally.inflight,
                "requests": tally.requests,
                "failures": tally.failures,
            }
        return {"uid": route.uid, "generation": route.generation, "revisions": revisions}
