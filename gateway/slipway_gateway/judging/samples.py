"""Counts of first attempts that the split routed, by generation and revision, for the operator's judge (pure).

Counts only grow. A request belongs to the generation at whose weights it was assigned, however long it takes: the
share of bad events of a revision is compared with the share of requests that these weights gave it. One that has not
ended counts as assigned, and with lower bounds of its latencies.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from slipway_contracts.counters import (
    BINS,
    Agreement,
    AgreementCounts,
    GenerationCounts,
    PredictionCounts,
    RevisionCounts,
    ShadowCounts,
    zero,
)
from slipway_contracts.twin_shadow import TwinShadow

from ..routing.table import Route
from ..wire.predictions import Value
from ..wire.responses import KINDS
from .outcome import E2E, ITL, MEASURES, TTFT, OutcomeRecorder, RequestOutcome
from .pairs import BAD, BAD_KINDS, TwinTally
from .predictions import PredictionBins
from .units import CountedSessions, SessionMemory, SharedUnits, Units

if TYPE_CHECKING:
    from slipway_plane import _native

GENERATIONS = 4
TEXT, TOKENS = COMPARISONS = ("text", "tokens")
FELL_BACK = "fell_back"  # something else answered, or was to, in place of the revision; it is part of no other event
PREDICTED, COMPARED = "predicted", "compared"  # what counts once for each session
# Sessions of all routes and generations together that are remembered.
MAX_ENTRIES = 262_144
ENTRY_BYTES = 96
_SMALL_BYTES, _MEDIUM_BYTES = 4 << 10, 32 << 10


def _geometric(first_s: float, count: int, ratio: float = 1.1) -> tuple[float, ...]:
    return tuple(float(f"{first_s * ratio**n:.3g}") for n in range(count))


# Upper ends, inclusive, in seconds: to 114 s, 2.5 s and 1,050 s. Longer times are in one more bucket. A judge's limit
# is one of these, so wide buckets would hide a version that is a fifth slower: its latencies would be in the same
# bucket as stable's.
BOUNDS: Mapping[str, tuple[float, ...]] = {
    TTFT: _geometric(0.01, 99),
    ITL: _geometric(0.001, 83),
    E2E: _geometric(0.02, 115),
}


def stratum(size_bytes: int, *, stream: bool, cached: bool = False) -> str:
    """The stratum of a request: requests are compared only within one.

    Size and form are known before a revision is chosen, so they cannot depend on it. `cached`: its endpoint has seen
    most of the prompt before. That does depend on the revision, and is a stratum for this reason: the caches of new
    pods are empty, and with each prompt that they have to compute whole they would look slow.
    """
    size = "b<4k" if size_bytes < _SMALL_BYTES else "b<32k" if size_bytes < _MEDIUM_BYTES else "b>=32k"
    return f"{size},{'stream' if stream else 'whole'}{',cached' if cached else ''}"


class LatencyHistograms:
    """Counts of latencies by measure and stratum, in the buckets of `BOUNDS`."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[int]]] = {measure: {} for measure in MEASURES}

    def add(self, measure: str, at: str, seconds: float) -> None:
        bounds, found = BOUNDS[measure], self._found[measure]
        counts = found.get(at)
        if counts is None:
            counts = found[at] = [0] * (len(bounds) + 1)
        counts[bisect_left(bounds, seconds)] += 1

    def add_counts(self, measure: str, strata: Mapping[str, list[int]]) -> None:
        """Adds counts of another histogram of the measure, by stratum."""
        found = self._found[measure]
        for at, counts in strata.items():
            before = found.get(at)
            found[at] = counts if before is None else [a + b for a, b in zip(before, counts, strict=True)]

    def copy(self) -> "LatencyHistograms":
        made = LatencyHistograms()
        made._found = {name: {at: [*counts] for at, counts in strata.items()} for name, strata in self._found.items()}
        return made

    def report(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """The counts, without the empty buckets at the end: most latencies lie far below the last bound."""
        return {name: {at: _trimmed(counts) for at, counts in strata.items()} for name, strata in self._found.items()}


def _trimmed(counts: list[int]) -> tuple[int, ...]:
    size = len(counts)
    while size and not counts[size - 1]:
        size -= 1
    return tuple(counts[:size])


@dataclass(slots=True)
class RevisionSamples:
    """Counts of one revision. `assigned`: sessions assigned to it. `units`: those with a first attempt that ended.

    `events`: units by kind of failure. `slow`: their latencies. `requests`: all first attempts that ended, also those
    that no other counter takes.
    """

    assigned: int = 0
    requests: int = 0
    units: int = 0
    events: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*KINDS, BAD, FELL_BACK), 0))
    slow: LatencyHistograms = field(default_factory=LatencyHistograms)
    late: LatencyHistograms = field(
        default_factory=LatencyHistograms
    )  # lower bounds, of attempts that ended without a measured time
    rated: int = 0  # sessions with feedback, and those of them with feedback that an answer was wrong
    wrong: int = 0
    predicted: list[int] = field(default_factory=lambda: [0] * BINS)  # sessions by the bin of their first prediction
    unread: int = 0  # sessions whose first prediction could not be read

    def report(self, late: LatencyHistograms) -> RevisionCounts:
        return RevisionCounts(
            assigned=self.assigned,
            requests=self.requests,
            units=self.units,
            events=dict(self.events),
            slow=self.slow.report(),
            late=late.report(),
            rated=self.rated,
            wrong=self.wrong,
            predictions=PredictionCounts(_trimmed(self.predicted), self.unread),
        )


_OF_WHOLE, _OF_STREAM, _OF_NOTHING = frozenset((E2E,)), frozenset(MEASURES), frozenset[str]()


class CountedAttempt(msgspec.Struct, frozen=True):
    """A first attempt at a revision: the key of its session, its stratum, and those of its latencies that count.

    `counts`: whether its session is one that the judge looks at.
    """

    revision: str
    key: str
    stratum: str
    measures: frozenset[str]
    counts: bool = True


class OtherLane(Protocol):
    """The fast lane, which counts first attempts too."""

    def units(self, weights: Mapping[str, int], begun_s: float) -> SharedUnits:
        """Sessions of a generation, which both lanes count."""

    def generation(self, units: SharedUnits, *, keeps_open: bool) -> "_native.Generation":
        """Where the lane counts a generation."""


class GenerationSamples:
    """Counts of first attempts in one generation of a route's weights."""

    def __init__(
        self, route: Route, begun_s: float = 0.0, room: SessionMemory | None = None, lane: OtherLane | None = None
    ) -> None:
        """`lane`: shares its sessions, and has counts of its own."""
        self.generation, self.digest = route.generation, route.digest
        self._weights = {backend.revision: backend.weight for backend in route.backends}
        self._revisions = {backend.revision: RevisionSamples() for backend in route.backends if backend.weight}
        self._shadow: dict[str, dict[str, ShadowCounts]] = {}
        self._twins: dict[str, TwinTally] = {}
        self._agreements: dict[str, AgreementCounts] = {}
        self._open: dict[OutcomeRecorder, CountedAttempt] = {}
        # Whether attempts that have not ended count: only if there is another revision to compare with.
        self.keeps_open = len(self._revisions) > 1
        self.is_used = False  # whether anything was counted, so that it is reported
        self.in_lane: _native.Generation | None = None
        self._units: CountedSessions
        if lane is None:
            self._units = Units(self._weights, begun_s, room)
        else:
            self._units = shared = lane.units(self._weights, begun_s)
            self.in_lane = lane.generation(shared, keeps_open=self.keeps_open)

    def compared(self, revision: str, by: str, canary: int, second: int | None) -> None:
        """One more mirrored request: how much `revision` and a second stable pod differ from stable by a measure."""
        self._shadow.setdefault(revision, {}).setdefault(by, zero(ShadowCounts)).count(canary, second)

    def agreed(self, revision: str, key: str, found: Agreement) -> None:
        """What became of a mirrored request of the session `key` whose predictions were to be compared."""
        if self._units.first(key, COMPARED):
            self._agreements.setdefault(revision, zero(AgreementCounts)).count(found)

    def twins(self, revision: str) -> TwinTally:
        """Counts of pairs of `revision` and a twin."""
        return self._twins.setdefault(revision, TwinTally.begun())

    def assign(self, revision: str, key: str, client: str, now_s: float) -> bool:
        """The split assigned a request to this revision, whether it has an endpoint or not.

        Returns whether the session `key` is one that the judge looks at.
        """
        new, counts = self._units.assign(revision, key, client, now_s)
        self._revisions[revision].assigned += new
        return counts

    def begin(self, revision: str, key: str, at: str, *, stream: bool, counts: bool = True) -> CountedAttempt:
        """A first attempt at the revision that the split chose; `key`: of the session; `at`: the stratum."""
        measures = (_OF_STREAM if stream else _OF_WHOLE) if counts else _OF_NOTHING
        if counts and self._units.has(key):
            measures = frozenset(measure for measure in measures if self._units.first(key, measure))
        return CountedAttempt(revision, key, at, measures, counts)

    def open(self, attempt: CountedAttempt, recorder: OutcomeRecorder) -> None:
        """The attempt began; `close` ends it. Without effect where no attempt is kept open."""
        if self.keeps_open:
            self._open[recorder] = attempt

    def close(self, recorder: OutcomeRecorder, waited: Mapping[str, float]) -> None:
        """The attempt is over. `waited`: lower bounds, in seconds, of the measures that have no value."""
        if attempt := self._open.pop(recorder, None):
            _add_late(self._revisions[attempt.revision].late, attempt, waited)

    def count(self, attempt: CountedAttempt, outcome: RequestOutcome) -> None:
        """The attempt ended, or its server was silent for too long."""
        counts = self._revisions[attempt.revision]
        counts.requests += 1
        if not attempt.counts:
            return
        counts.units += self._units.first_end(attempt.key)
        for kind in outcome.bad:
            counts.events[kind] += self._units.first(attempt.key, kind)
        # A unit with any failure of these counts once here too: sums over kinds would count it more than once.
        if outcome.bad and not BAD_KINDS.isdisjoint(outcome.bad):
            counts.events[BAD] += self._units.first(attempt.key, BAD)
        for measure, seconds in outcome.seconds.items():
            if measure in attempt.measures:
                counts.slow.add(measure, attempt.stratum, seconds)

    def fell_back(self, attempt: CountedAttempt) -> None:
        """After the attempt, and those that followed it, something else was to answer in place of the route."""
        if attempt.counts:
            self._revisions[attempt.revision].events[FELL_BACK] += self._units.first(attempt.key, FELL_BACK)

    def mark(self, attempt: CountedAttempt, kind: str) -> None:
        """A failure of this kind was found after the attempt had been counted."""
        if not attempt.counts:
            return
        counts = self._revisions[attempt.revision]
        counts.events[kind] += self._units.first(attempt.key, kind)
        if kind in BAD_KINDS:
            counts.events[BAD] += self._units.first(attempt.key, BAD)

    def rate(self, revision: str, *, first: bool, wrong: bool) -> None:
        """Counts feedback on an answer of the revision.

        `first`: the first feedback of the session. `wrong`: an answer is wrong for the first time in the session.
        """
        if counts := self._revisions.get(revision):
            counts.rated += first
            counts.wrong += wrong

    def predict(self, attempt: CountedAttempt, prediction: Value | None, bins: PredictionBins) -> None:
        """The attempt's response has this prediction, or one that is not read: the first of its session counts."""
        if not attempt.counts or not self._units.first(attempt.key, PREDICTED):
            return
        counts = self._revisions[attempt.revision]
        if prediction is None:
            counts.unread += 1
        elif (place := bins.place(prediction)) is not None:
            counts.predicted[place] += 1

    def end(self) -> None:
        """The generation is no longer reported: its memory is freed."""
        self._units.end()

    def report(self, now_s: float) -> GenerationCounts:
        """Counts as they are now, with lower bounds for attempts that have not ended."""
        self._add_lane()
        late = {revision: counts.late.copy() for revision, counts in self._revisions.items()}
        for recorder, attempt in self._open.items():
            recorder.check_silence(now_s)
            _add_late(late[attempt.revision], attempt, recorder.seconds_so_far(now_s))
        revisions = {revision: counts.report(late[revision]) for revision, counts in self._revisions.items()}
        return GenerationCounts(
            self.generation, self._weights, revisions, self._shadow, {**self._twins}, self._agreements
        )

    def _add_lane(self) -> None:
        """Adds what the fast lane has counted since the last time."""
        for revision, (assigned, requests, units, slow, late) in (self.in_lane.take() if self.in_lane else {}).items():
            self.is_used = True
            counts = self._revisions[revision]
            counts.assigned += assigned
            counts.requests += requests
            counts.units += units
            counts.slow.add_counts(E2E, slow)
            counts.late.add_counts(E2E, late)


def _add_late(late: LatencyHistograms, attempt: CountedAttempt, waited: Mapping[str, float]) -> None:
    for measure in attempt.measures & waited.keys():
        # A lower bound within the first bucket excludes no bucket.
        if waited[measure] > BOUNDS[measure][0]:
            late.add(measure, attempt.stratum, waited[measure])


class Samples:
    """The last `GENERATIONS` of each route under which requests were assigned."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        """`max_entries`: sessions, and pairs of session and kind, that are remembered in all."""
        self._room = SessionMemory(max_entries)
        self.lane: OtherLane | None = None  # counts for the judge too, where there is one
        self._epochs: dict[tuple[str, str], list[GenerationSamples]] = {}
        # Sessions that gave a pair to a twin shadow, across generations: which shadow and epoch, and which sessions.
        self._paired: dict[tuple[str, str], tuple[tuple[str, ...], CountedSessions]] = {}
        self._bins: dict[tuple[str, str], PredictionBins] = {}

    def paired(self, route: Route, shadow: TwinShadow) -> CountedSessions:
        """Sessions that gave a pair in the present epoch of a twin shadow."""
        key, epoch = (route.name, route.uid), (route.salt, shadow.revision, shadow.twin, str(shadow.epoch))
        known = self._paired.get(key)
        if known is None or known[0] != epoch:
            if known:
                known[1].end()
            known = self._paired[key] = (epoch, Units({}, 0.0, self._room))
        return known[1]

    def bins(self, route: Route) -> PredictionBins:
        """Bins of the route's predictions: one set for all generations of a rollout."""
        return self._bins.setdefault((route.name, route.uid), PredictionBins())

    def epoch(self, route: Route, now_s: float = 0.0, *, is_used: bool = True) -> GenerationSamples | None:
        """Samples of the route's present generation; begins them when the generation is new, and drops old ones.

        A request that outlives its generation still counts there. None where this generation, or a later one, has
        counted with other weights, as after an old status was restored: nothing is counted twice under one number. The
        operator publishes a higher number within a second. `is_used` False: it is not reported before it has counts.
        """
        epochs = self._epochs.setdefault((route.name, route.uid), [])
        if not epochs or epochs[-1].generation < route.generation:
            epochs.append(GenerationSamples(route, now_s, self._room, self.lane))
            for old in epochs[:-GENERATIONS]:
                old.end()
            del epochs[:-GENERATIONS]
        last = epochs[-1]
        last.is_used |= is_used
        return last if (last.generation, last.digest) == (route.generation, route.digest) else None

    def generation(self, route: Route, generation: int) -> GenerationSamples | None:
        """Samples of this generation of the route; None when it is no longer reported, or has none."""
        epochs = self._epochs.get((route.name, route.uid), ())
        return next((epoch for epoch in epochs if epoch.generation == generation), None)

    def keep(self, routes: Mapping[str, Route], now_s: float = 0.0) -> None:
        """Forgets routes that are gone, and former objects of the same name; begins samples of routes with feedback."""
        kept = {(route.name, route.uid) for route in routes.values()}
        for gone in self._epochs.keys() - kept:
            for epoch in self._epochs.pop(gone):
                epoch.end()
        for unpaired in [key for key in self._paired if key not in kept or not routes[key[0]].twin_shadow]:
            self._paired.pop(unpaired)[1].end()
        for unread in [key for key in self._bins if key not in kept or not routes[key[0]].predictions]:
            del self._bins[unread]
        # Feedback may come to a gateway that gets no other request of the generation.
        for route in routes.values():
            if route.feedback:
                self.epoch(route, now_s)

    def report(self, route: Route, now_s: float) -> list[GenerationCounts]:
        """Reports of the route's generations, the oldest first; the shape is in docs/contracts.md."""
        made = [(epoch.report(now_s), epoch) for epoch in self._epochs.get((route.name, route.uid), ())]
        return [report for report, epoch in made if epoch.is_used]
