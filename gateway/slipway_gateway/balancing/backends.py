"""The live side of the table: what is published now, what is in flight where, and who waits for a change."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..judging.outcome import ITL, Fate, Outcome
from ..judging.samples import MAX_ENTRIES, Epoch, Samples
from ..routing.mirroring import mirror_of
from ..routing.router import Target, assigned, pick, pick_of, preference
from ..routing.table import MirrorRoute, Route, RouteTable, alike
from ..telemetry.metrics import Metrics
from .activity import Visitors, Visits
from .attempt import Lease, Tally
from .ejection import Ejection
from .failsafe import Rule, Try, Watch, pair, returned
from .outlier import OutlierDetection
from .service import Services

log = logging.getLogger(__name__)
# A whole answer is silent while it is written, a stream only before it and when something is wrong.
WHOLE_PATIENCE = 5
_EXPIRED = "nobody renewed its weights in time: they go back to the stable revision as far as its pods can carry them"


@dataclass(frozen=True, slots=True)
class Failsafe:
    """What a gateway may do alone; `ttl_s` 0: a split stays as long as nobody changes it."""

    rule: Rule = field(default_factory=Rule)
    ttl_s: float = 0.0


def _version(route: Route) -> tuple[str, int, str]:
    """What names one table of one object."""
    return route.uid, route.generation, route.digest


class Backends:
    """The published table with the counts that routing and the operator need.

    `hung_after_s`: how long the server of a stream may be silent until the judge hears of it; 0: however long.
    `clock`: the event loop's, which is `time.monotonic`.
    """

    def __init__(
        self,
        metrics: Metrics,
        failsafe: Failsafe | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        hung_after_s: float = 60.0,
        incarnation: str = "",
        outlier_detection: OutlierDetection | None = None,
        max_sessions: int = MAX_ENTRIES,
    ) -> None:
        self.table: RouteTable | None = None
        self._metrics = metrics
        self._failsafe = failsafe or Failsafe()
        self._clock = clock
        self._hung_after_s = hung_after_s or math.inf
        self._inflight: Counter[str] = Counter()
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._samples = Samples(max_sessions)
        self._watches: dict[str, Watch] = {}
        self._renewed_s: dict[str, float] = {}
        self._told: dict[str, tuple[str, bool]] = {}
        self.visits = Visits(clock, incarnation)
        self._services = Services(clock, self.visits.tell)
        self._changed = asyncio.Event()
        self.ejection = Ejection(outlier_detection or OutlierDetection(), metrics, clock)

    def publish(self, table: RouteTable) -> None:
        last, self.table = self.table or RouteTable(), table
        # Revisions of a live route keep their counts: the operator compares them over time.
        for route, revision in list(self._tallies):
            if route not in table.routes and not self._tallies[route, revision].inflight:
                del self._tallies[route, revision]
        self._samples.keep(table.routes)
        self.visits.follow(table.routes)
        self._services.follow((name, route.uid, table.ready(route)) for name, route in table.routes.items())
        self._follow(last, table)
        self.ejection.follow(table)
        self._metrics.routes_applied({name: route.generation for name, route in table.routes.items()})
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _follow(self, last: RouteTable, table: RouteTable) -> None:
        """A change renews a route, being listed once more does not; a new generation starts its watch anew."""
        rule = self._failsafe.rule
        watches, renewed = self._watches, self._renewed_s
        self._watches, self._renewed_s = {}, {}
        for name, route in table.routes.items():
            before = last.routes.get(name)
            same = before is not None and _version(before) == _version(route)
            self._watches[name] = watches[name] if same else Watch(rule, route.backends)
            self._renewed_s[name] = renewed[name] if route == before else self._clock()
        for gone in self._told.keys() - table.routes.keys():
            self._metrics.failsafe_gone(gone)
            del self._told[gone]
        for route in table.routes.values():
            self._tell(route)

    def renew(self) -> None:
        """The operator asked: it is there, and what it wrote is what it wants."""
        for name in self._renewed_s:
            self._renewed_s[name] = self._clock()

    def _expired(self, route: Route) -> bool:
        ttl_s = self._failsafe.ttl_s
        return ttl_s > 0 and self._clock() - self._renewed_s[route.name] > ttl_s

    def _in_force(self, route: Route) -> Route:
        if self.table is None or not self._expired(route):
            return route
        found = pair(route)
        return returned(route, len(self.table.urls(route, found[1].revision)) if found else 0)

    def _tell(self, route: Route) -> None:
        """Says once what the gateway began or ended to do alone."""
        cut = self._watches[route.name].cut
        now = (cut.revision if cut else "", self._expired(route))
        before = self._told.get(route.name, ("", False))
        self._told[route.name] = now
        if now == before:
            return
        self._metrics.failsafe(route.name, cut_off=bool(cut), expired=now[1])
        if cut and now[0] != before[0]:
            log.warning("%s: revision %s is cut off: %s", route.name, cut.revision, cut.reason)
        elif before[0] and not cut:
            log.warning("%s: revision %s is no longer cut off", route.name, before[0])
        if now[1] != before[1]:
            log.warning("%s: %s", route.name, _EXPIRED if now[1] else "its weights are renewed")

    async def changed(self, timeout_s: float) -> None:
        """Returns at the next published table, or after the time."""
        event = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return

    def find(self, model: str) -> Route | None:
        """The route of a model name, or of `namespace/name`, by which a request finds its own one to its end."""
        return (self.table.models.get(model) or self.table.routes.get(model)) if self.table else None

    def enter(self, model: str) -> Visitors:
        """A request for a model comes; `visits.leave` tells its end."""
        route = self.find(model)
        return self.visits.enter(route.name if route else "")

    def call(self, model: str) -> None:
        """A request still waits for a model."""
        if route := self.find(model):
            self.visits.call(route.name)

    def lists(self, model: str, revision: str) -> bool:
        """Whether a model's route names a revision or one that runs the same, or has endpoints of it."""
        route = self.find(model)
        known = self.table.revisions(route) if self.table and route else []
        return any(name in known for name in alike(revision))

    def pick(self, model: str, key: str, excluded: Collection[str], revision: str = "", **wishes: str) -> Target | None:
        """As `_pick`, and first among the endpoints that are not ejected."""
        ejected = self.ejection.urls()
        if ejected and (found := self._pick(model, key, ejected.union(excluded), revision, **wishes)):
            return found
        return self._pick(model, key, excluded, revision, **wishes)

    def _pick(
        self,
        model: str,
        key: str,
        excluded: Collection[str],
        revision: str = "",
        *,
        preferred: str = "",
        holder: str = "",
    ) -> Target | None:
        """An endpoint by weight, of a `preferred` revision first, or of the one `revision` that can answer.

        `holder`: tag of the one in it that has the stream.
        """
        route = self.find(model)
        if self.table is None or route is None or route.asleep:
            return None
        if revision:
            found = (
                pick_of(self.table, route, name, key, self._inflight, excluded=excluded, holder=holder)
                for name in alike(revision)
            )
            return next((one for one in found if one), None)
        if preferred and (one := pick_of(self.table, route, preferred, key, self._inflight, excluded=excluded)):
            return one
        watch, in_force = self._watches[route.name], self._in_force(route)
        avoided = ""
        if watch.cut or in_force is not route:
            order = preference(in_force, key)
            avoided = order[0].revision if order and watch.avoids(order[0].revision, self._clock()) else ""
            self._tell(route)
        return pick(self.table, in_force, key, self._inflight, excluded, avoided=avoided)

    def ended(self, model: str, code: int, outcome: str) -> None:
        """A client's request is over. `drained` ones say nothing of the route."""
        if code >= 500 and outcome != "drained" and (route := self.find(model)):
            self._services.refused(route.name, outcome)

    def began(self, target: Target, client: str) -> Try | None:
        self._services.answered(target.route)
        return self._watched(target, lambda watch: watch.began(target.revision, client))

    def failed(self, target: Target, one: Try | None, client: str) -> None:
        self._watched(target, lambda watch: watch.failed(target.revision, one, self._clock(), client))

    def _watched(self, target: Target, note: Callable[[Watch], Try | None]) -> Try | None:
        watch = self._watches.get(target.route)
        if watch is None or self.table is None:
            return None
        noted = note(watch)
        self._tell(self.table.routes[target.route])
        return noted

    def fate(
        self,
        target: Target,
        key: str,
        stratum: str,
        now_s: float,
        *,
        by_split: bool,
        stream: bool = False,
        client: str = "",
        excused: frozenset[str] = frozenset(),
    ) -> Fate:
        """Of a first attempt that begins: its end is a metric, and a sample for the judge if the split chose it.

        `by_split` False: a header or a pin chose the revision. Weights that are not those that were published tell
        nothing. An endpoint elsewhere than the split wanted, for want of one there, tells whose request it was, and of
        neither revision how it fares. `stream`: the client asked for one. `client`: who sent it; `excused`: kinds of
        trouble that the request itself asks for.
        """
        route = self.table.routes.get(target.route) if self.table else None
        published = route is not None and not self._watches[route.name].cut and self._in_force(route) is route
        own = assigned(route, key) if by_split and route is not None and published else ""
        epoch = self._samples.epoch(route, now_s) if route and own else None
        counts = bool(epoch and epoch.assign(own, key, client, now_s))
        here = epoch if own == target.revision else None
        attempt = here.begin(target.revision, key, stratum, stream=stream, counts=counts) if here else None

        def tell(outcome: Outcome) -> None:
            self._metrics.first_attempt(target.model, target.revision, outcome.bad, outcome.seconds.get(ITL))
            if here and attempt:
                here.count(attempt, outcome.without(excused))

        def close(waited: Mapping[str, float]) -> None:
            if here:
                here.close(fate, waited)

        patience_s = self._hung_after_s * (1 if stream else WHOLE_PATIENCE)
        fate = Fate(now_s, tell, close, streams=stream, patience_s=patience_s)
        if here and attempt:
            here.open(attempt, fate)
        return fate

    def now(self) -> float:
        """Seconds of the clock that fates go by."""
        return self._clock()

    def mirror(
        self, target: Target, request_id: str, headers: Mapping[str, str]
    ) -> tuple[Route, MirrorRoute, Epoch] | None:
        """Where a request that `target` answers is mirrored to, and the generation that it counts in; None for most.

        Nothing is mirrored while the gateway acts alone: what is wrong with a revision then is known already.
        """
        route = self.find(target.route)
        if route is None or not route.mirror_routes or self._watches[route.name].cut or self._expired(route):
            return None
        one = mirror_of(route, target.revision, request_id, headers)
        epoch = self._samples.epoch(route, self._clock())
        return (route, one, epoch) if one and epoch else None

    def mirrors(self, target: Target, one: MirrorRoute) -> bool:
        """Whether a mirror is still published."""
        route = self.find(target.route)
        return route is not None and any((m.name, m.revision) == (one.name, one.revision) for m in route.mirror_routes)

    def urls(self, model: str, *revisions: str) -> tuple[str, ...]:
        """Ready endpoints of revisions."""
        route = self.find(model)
        return tuple(url for one in revisions for url in self.table.urls(route, one)) if self.table and route else ()

    def load(self, url: str) -> int:
        """Requests of clients in flight at an endpoint."""
        return self._inflight.get(url, 0)

    def lease(self, target: Target, *, first: bool, fate: Fate | None = None, client: str = "") -> Lease:
        tally = self._tallies.setdefault((target.route, target.revision), Tally())
        tally.inflight += 1
        tally.requests += first
        self._inflight[target.url] += 1
        self._metrics.inflight_changed(target.model, target.revision, 1)
        return Lease(self, target, tally, first=first, fate=fate, client=client)

    def give_back(self, target: Target, tally: Tally) -> None:
        tally.inflight -= 1
        self._inflight[target.url] -= 1
        if not self._inflight[target.url]:
            del self._inflight[target.url]
        self._metrics.inflight_changed(target.model, target.revision, -1)

    def report(self) -> dict[str, Any]:
        """`routes` of `/internal/routes`; the shape is in docs/contracts.md."""
        table = self.table or RouteTable()
        busy: dict[str, list[str]] = {}
        for (name, revision), tally in self._tallies.items():
            if tally.inflight:
                busy.setdefault(name, []).append(revision)
        return {name: self._report_route(table, route, busy.get(name, [])) for name, route in table.routes.items()}

    def _report_route(self, table: RouteTable, route: Route, busy: list[str]) -> dict[str, Any]:
        revisions = {}
        weights = {backend.revision: backend.weight for backend in route.backends}
        for revision in dict.fromkeys([*table.revisions(route), *busy]):
            tally = self._tallies.get((route.name, revision), Tally())
            revisions[revision] = {
                "weight": weights.get(revision, 0),
                "endpoints": len(table.urls(route, revision)),
                "inflight": tally.inflight,
                "requests": tally.requests,
                "failures": tally.failures,
            }
        cut = self._watches[route.name].cut
        failsafe = {
            "cut_off": cut.revision if cut else "",
            "reason": cut.reason if cut else "",
            "expired": self._expired(route),
        }
        return {
            "uid": route.uid,
            "generation": route.generation,
            "digest": route.digest,
            "revisions": revisions,
            "failsafe": failsafe,
            "activity": self.visits.report(route.name),
            "service": self._services.report(route.name),
            "samples": self._samples.report(route, self._clock()),
        }
