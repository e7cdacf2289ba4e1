"""What the operator judges a revision by: first attempts that the split chose, counted by generation (pure).

Counts only grow. A request belongs to the generation at whose weights it was assigned, however long it takes: the
share of bad events of a revision is compared with the share of requests that these weights gave it.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .fate import E2E, ITL, MEASURES, TTFT, Outcome
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


@dataclass(slots=True)
class Counts:
    """First attempts of one revision that ended, their bad events, and how long the good ones took."""

    requests: int = 0
    events: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    slow: dict[str, dict[str, list[int]]] = field(default_factory=lambda: {measure: {} for measure in MEASURES})

    def report(self) -> dict[str, Any]:
        slow = {name: {at: list(counts) for at, counts in strata.items()} for name, strata in self.slow.items()}
        return {"requests": self.requests, "events": dict(self.events), "slow": slow}


class Epoch:
    """One generation of a route's weights."""

    def __init__(self, route: Route) -> None:
        self.generation = route.generation
        self._weights = {backend.revision: backend.weight for backend in route.backends}
        self._revisions = {backend.revision: Counts() for backend in route.backends if backend.weight}
        self._seen: set[int] = set()

    def count(self, revision: str, key: str, at: str, outcome: Outcome) -> None:
        """`key`: of the session; `at`: the stratum."""
        counts = self._revisions[revision]
        counts.requests += 1
        for kind in outcome.bad:
            counts.events[kind] += self._first_of(key, kind)
        for measure, seconds in outcome.seconds.items():
            bounds = BOUNDS[measure]
            histogram = counts.slow[measure].setdefault(at, [0] * (len(bounds) + 1))
            histogram[bisect_left(bounds, seconds)] += 1

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

    def report(self) -> dict[str, Any]:
        revisions = {revision: counts.report() for revision, counts in self._revisions.items()}
        return {"generation": self.generation, "weights": dict(self._weights), "revisions": revisions}


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

    def report(self, route: Route) -> list[dict[str, Any]]:
        """The oldest first; the shape is in docs/contracts.md."""
        return [epoch.report() for epoch in self._epochs.get((route.name, route.uid), ())]
