"""What the operator judges a revision by: first attempts that the split chose, counted by generation (pure).

Counts only grow. A request belongs to the generation at whose weights it was assigned, however long it takes: the
share of bad events of a revision is compared with the share of requests that these weights gave it. One that has not
ended is counted by what is known of it: that it was assigned, and how long it takes at least.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .fate import E2E, ITL, MEASURES, TTFT, Fate, Outcome
from .table import Route
from .wire.answers import KINDS

GENERATIONS = 4
# Pairs of session and kind that a generation remembers, some 60 bytes each.
MAX_SEEN = 8192
_SMALL_BYTES, _MEDIUM_BYTES = 4 << 10, 32 << 10


def _geometric(first_s: float, ratio: float, count: int = 24) -> tuple[float, ...]:
    return tuple(float(f"{first_s * ratio**n:.3g}") for n in range(count))


# Upper ends, inclusive, in seconds: to 112 s, 2.3 s and 990 s. What is longer is in one more bucket.
BOUNDS: Mapping[str, tuple[float, ...]] = {
    TTFT: _geometric(0.01, 1.5),
    ITL: _geometric(0.001, 1.4),
    E2E: _geometric(0.02, 1.6),
}


def stratum(size_bytes: int, *, stream: bool) -> str:
    """Requests that are compared with one another: known before a revision is chosen, so that it cannot change it."""
    size = "b<4k" if size_bytes < _SMALL_BYTES else "b<32k" if size_bytes < _MEDIUM_BYTES else "b>=32k"
    return f"{size},{'stream' if stream else 'whole'}"


class Times:
    """Seconds by measure and stratum, in buckets."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[int]]] = {measure: {} for measure in MEASURES}

    def add(self, measure: str, at: str, seconds: float) -> None:
        bounds = BOUNDS[measure]
        self._found[measure].setdefault(at, [0] * (len(bounds) + 1))[bisect_left(bounds, seconds)] += 1

    def copy(self) -> "Times":
        made = Times()
        made._found = self.report()
        return made

    def report(self) -> dict[str, dict[str, list[int]]]:
        return {name: {at: list(counts) for at, counts in strata.items()} for name, strata in self._found.items()}


@dataclass(slots=True)
class Counts:
    """Requests that were assigned to one revision, those whose first attempt ended, their bad events, and times."""

    assigned: int = 0
    requests: int = 0
    events: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    slow: Times = field(default_factory=Times)
    late: Times = field(default_factory=Times)  # of those that are over without a time: what they took at least

    def report(self, late: Times) -> dict[str, Any]:
        return {
            "assigned": self.assigned,
            "requests": self.requests,
            "events": dict(self.events),
            "slow": self.slow.report(),
            "late": late.report(),
        }


class Epoch:
    """One generation of a route's weights."""

    def __init__(self, route: Route) -> None:
        self.generation = route.generation
        self._weights = {backend.revision: backend.weight for backend in route.backends}
        self._revisions = {backend.revision: Counts() for backend in route.backends if backend.weight}
        self._seen: set[int] = set()
        self._open: dict[Fate, tuple[str, str]] = {}  # revision and stratum

    def assign(self, revision: str) -> None:
        """The split gave a request to this revision, whether it has an endpoint for it or not."""
        self._revisions[revision].assigned += 1

    def open(self, revision: str, at: str, fate: Fate) -> None:
        """A first attempt began. Where there is nothing to compare with, nobody waits for what does not end."""
        if len(self._revisions) > 1:
            self._open[fate] = (revision, at)

    def close(self, fate: Fate, waited: Mapping[str, float]) -> None:
        """It is over, and these measures have no value but what they took at least."""
        if found := self._open.pop(fate, None):
            revision, at = found
            _add_late(self._revisions[revision].late, at, waited)

    def count(self, revision: str, key: str, at: str, outcome: Outcome) -> None:
        """`key`: of the session; `at`: the stratum."""
        counts = self._revisions[revision]
        counts.requests += 1
        for kind in outcome.bad:
            counts.events[kind] += self._first_of(key, kind)
        for measure, seconds in outcome.seconds.items():
            counts.slow.add(measure, at, seconds)

    def _first_of(self, key: str, kind: str) -> bool:
        """One session with a poisoned prompt is one event, not a hundred; it has one revision in a generation.

        A full memory forgets nothing and takes nothing new: what it does not know counts each time.
        """
        # The process's own keyed hash: no client can choose sessions that collide.
        event = hash((key, kind))
        if event in self._seen:
            return False
        if len(self._seen) < MAX_SEEN:
            self._seen.add(event)
        return True

    def report(self, now_s: float) -> dict[str, Any]:
        """Counts as they are now, with what is known of attempts that have not ended."""
        late = {revision: counts.late.copy() for revision, counts in self._revisions.items()}
        for fate, (revision, at) in self._open.items():
            fate.look(now_s)
            _add_late(late[revision], at, fate.waited(now_s))
        revisions = {revision: counts.report(late[revision]) for revision, counts in self._revisions.items()}
        return {"generation": self.generation, "weights": dict(self._weights), "revisions": revisions}


def _add_late(late: Times, at: str, waited: Mapping[str, float]) -> None:
    for measure, seconds in waited.items():
        # Of one below the first bound nothing is known yet.
        if seconds > BOUNDS[measure][0]:
            late.add(measure, at, seconds)


class Samples:
    """The last `GENERATIONS` of each route under which requests were assigned."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[str, str], list[Epoch]] = {}

    def epoch(self, route: Route) -> Epoch:
        """Of the route as it is now. A request that outlives its epoch counts where nobody looks any more."""
        epochs = self._epochs.setdefault((route.name, route.uid), [])
        if not epochs or epochs[-1].generation != route.generation:
            epochs.append(Epoch(route))
            del epochs[:-GENERATIONS]
        return epochs[-1]

    def keep(self, routes: Mapping[str, Route]) -> None:
        """Forgets routes that are gone, and those of a former object of the same name."""
        kept = {(route.name, route.uid) for route in routes.values()}
        for gone in self._epochs.keys() - kept:
            del self._epochs[gone]

    def report(self, route: Route, now_s: float) -> list[dict[str, Any]]:
        """The oldest first; the shape is in docs/contracts.md."""
        return [epoch.report(now_s) for epoch in self._epochs.get((route.name, route.uid), ())]
